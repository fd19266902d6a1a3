# SPDX-License-Identifier: Apache-2.0
"""Warm pages at gksmd: what stays when the last one has left, and what goes for whom."""

from __future__ import annotations

from gksmd.model import PAGE_BYTES

from tests.support.agents import Daemon, agents, eventually, load

GIB = 1 << 30


def warm(pages: int) -> str:
    return f"memory.warm_bytes = {pages * PAGE_BYTES}"


def leave_warm(daemon: Daemon, numbers: list[int]) -> None:
    """Somebody loads these, and ends."""
    before = warm_pages(daemon)
    with agents(daemon.socket, 1) as (one,):
        one.run(load, numbers)
    eventually(lambda: warm_pages(daemon) != before, "the pages staying")


def warm_pages(daemon: Daemon) -> int:
    gpus = daemon.ask("status", op="status")["gpus"]
    return sum(gpu["warm_bytes"] for gpu in gpus) // PAGE_BYTES


def test_reclaimed_memory_is_free_when_the_answer_comes() -> None:
    with Daemon(config=warm(16)) as daemon:
        leave_warm(daemon, [1, 2, 3])
        with agents(daemon.socket, 1) as (one,):
            assert one.reclaim(1) == 3 * PAGE_BYTES
            assert daemon.pages() == 0
            assert one.reclaim(1) == 0
