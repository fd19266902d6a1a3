# SPDX-License-Identifier: Apache-2.0
"""Without a fault guard, memory that a kernel may touch is there when it is launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from gksm_bench.stack import Stack

from tests.support.api.launches import launchers
from tests.support.pages import PAGE, digest
from tests.support.remote import Remote

PROGRAM = "tests.support.entry_points"
WORD = bytes.fromhex("f0debc9a")
UNREADABLE = {"a graph"}  # whose parameters are not looked at


@pytest.fixture
def process_under(make_gpu: Any, make_stack: Any, make_remote: Any) -> Callable[[str], Remote]:
    """A process on a GPU without a fault guard, in a domain with the guard named."""

    def make(guard: str) -> Remote:
        stack: Stack = make_stack(make_gpu(guard=False), guard_options=["--guard", guard])
        remote: Remote = make_remote(stack.environment(), program=PROGRAM)
        remote.prepare()
        return remote

    return make


def test_under_optimistic_a_launch_backs_the_allocations_in_its_parameters_and_no_other(
    process_under: Callable[[str], Remote],
) -> None:
    process = process_under("optimistic")
    named, other = process.alloc(2), process.alloc(3)
    assert process.statistics(named)["unbacked_pages"] == 5
    readable = [name for name in launchers() if name not in UNREADABLE]
    for name in readable:
        process.launch_by(name, named + PAGE + 4096)
        assert process.statistics(named)["unbacked_pages"] == 3, name
        expected = bytes(4096) + WORD + bytes(PAGE - 4096 - len(WORD))
        assert process.digests(named, 2) == [digest(bytes(PAGE)), digest(expected)]
        process.free(named)
        named = process.alloc(2)
    for name in UNREADABLE:
        process.launch_by(name, named + 4096)
        assert process.statistics(named)["unbacked_pages"] == 0, name
    assert process.digests(other, 3) == [digest(bytes(PAGE))] * 3


def test_under_seal_a_launch_backs_everything(process_under: Callable[[str], Remote]) -> None:
    process = process_under("seal")
    named, other = process.alloc(2), process.alloc(3)
    process.launch_by("cuLaunchKernel", named + 4096)
    assert process.statistics(named)["unbacked_pages"] == 0
    assert process.digests(other, 3) == [digest(bytes(PAGE))] * 3
