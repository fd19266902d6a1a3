# SPDX-License-Identifier: Apache-2.0
"""Processes with few rights share like any others."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from gksm_bench.simgpu import SimulatedGpu
from gksm_bench.stack import Stack

from tests.support.confined import has_ptrace, steal, without_ptrace
from tests.support.pages import digests
from tests.support.remote import Remote

SEEDS = list(range(1, 9))
WORD = 0x12345678


@pytest.mark.seen_in("pytorch/pytorch#165685", "verl-project/verl#3377")
def test_processes_share_where_nobody_may_ptrace_anybody(gpu: SimulatedGpu, tmp_path: Path) -> None:
    def story() -> None:
        with Stack(gpu) as stack:
            actors = [Remote(stack.environment(), tmp_path / str(n), init=False) for n in range(2)]
            try:
                share(stack, *actors)
            finally:
                for actor in actors:
                    actor.kill()

    def share(stack: Stack, a: Remote, b: Remote) -> None:
        places = []
        for actor in (a, b):
            actor.hide()
            actor.init()
            at = actor.alloc(len(SEEDS))
            actor.load(at, SEEDS)
            assert actor.shared_pages(at, len(SEEDS)) == len(SEEDS)
            places.append(at)
        assert b.statistics(places[1])["attached_pages"] == len(SEEDS)
        b.write_kernel(places[1], [0], 4096, WORD)
        b.sync()
        assert a.digests(places[0], len(SEEDS)) == digests(SEEDS)
        assert "identified by" in stack.gksmctl("explain", str(a.pid))
        assert stack.gksmd is not None
        assert stack.vault is not None
        assert not any(map(has_ptrace, (stack.gksmd.pid, stack.vault.pid, a.pid, b.pid)))
        assert steal(a.pid) == errno.EPERM, "they may, after all: the test shows nothing"

    without_ptrace(story)
