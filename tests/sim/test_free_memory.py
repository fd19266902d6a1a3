# SPDX-License-Identifier: Apache-2.0
"""What cuMemGetInfo tells a program: what it would see without gKSM."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gksm_bench.stack import Stack

from tests.conftest import VRAM, MakeRemote
from tests.support.pages import PAGE
from tests.support.remote import Remote

Eventually = Callable[..., None]
OFFSET = 4096
MODEL = list(range(1, 33))


@pytest.fixture
def actor(stack: Stack, make_remote: MakeRemote) -> Callable[[], Remote]:
    return lambda: make_remote(stack.environment(), program="tests.support.memory")


def free(remote: Remote) -> int:
    """In pages; what is not a whole one is left out."""
    return int(remote.info()[0]) // PAGE


@pytest.mark.seen_in("Project-HAMi/HAMi-core#191")
def test_clients_one_after_another_see_exactly_what_they_take_and_give_back(
    actor: Callable[[], Remote], eventually: Eventually
) -> None:
    starts = []
    for _ in range(2):
        one = actor()
        starts.append(free(one))
        address = one.alloc(10)
        assert free(one) == starts[-1] - 10
        one.fill(address, 10, 1)
        assert free(one) == starts[-1] - 10
        one.load(one.alloc(5), [901, 902, 903, 904, 905])
        with_spares = free(one)
        assert with_spares <= starts[-1] - 15
        one.free(address)
        assert free(one) - with_spares <= 10
        one.finish()
    assert starts[0] == starts[1]


def test_total_is_what_the_driver_says_and_free_can_be_allocated(
    actor: Callable[[], Remote],
) -> None:
    one, other = actor(), actor()
    other.alloc(30)
    left, total = one.info()
    assert total == VRAM
    assert left // PAGE <= VRAM // PAGE - 30
    address = one.alloc(left // PAGE)
    one.fill(address, left // PAGE, 3)
    assert free(one) == 0


def test_free_memory_does_not_rise_while_a_program_loads_what_is_there_already(
    actor: Callable[[], Remote],
) -> None:
    first, second = actor(), actor()
    before = free(second)
    first.load(first.alloc(len(MODEL)), MODEL)
    seen = [free(second)]
    assert seen[0] < before
    address = second.alloc(len(MODEL))
    seen.append(free(second))
    assert seen[1] <= seen[0] - len(MODEL)
    second.load(address, MODEL)
    assert second.shared_pages(address, len(MODEL)) == len(MODEL)
    seen.append(free(second))
    second.free(address)
    assert seen[2] <= seen[1]
    assert free(second) <= seen[0]


@pytest.mark.seen_in("vllm-project/vllm#56830")
def test_free_memory_does_not_rise_while_others_merge_attach_or_end(
    actor: Callable[[], Remote], eventually: Eventually
) -> None:
    """A program that measures how much it needs would end itself over that (vLLM does)."""
    watcher, others = actor(), [actor(), actor()]
    lowest = free(watcher)
    own = watcher.alloc(4)
    places = []

    def look(step: str) -> None:
        nonlocal lowest
        now = free(watcher)
        assert now <= lowest, f"it rose after {step}"
        lowest = now

    look("an allocation")
    for other in others:
        places.append(other.alloc(len(MODEL)))
        look("an allocation of another program")
        other.fill(places[-1], len(MODEL), 5)
        look("memory of another program being taken")
    for other, place in zip(others, places, strict=True):
        # Memory that was private is merged: what is mapped is replaced by what is there.
        other.load(place, MODEL)
        look("a merge elsewhere")
    assert others[1].shared_pages(places[1], len(MODEL)) == len(MODEL)
    for other in others:
        other.finish()
        look("the end of another program")
    watcher.free(own)
    assert free(watcher) == lowest + 4


@pytest.mark.seen_in("vllm-project/vllm#55827")
def test_two_programs_that_start_at_once_see_each_others_memory_once(
    actor: Callable[[], Remote],
) -> None:
    one, two = actor(), actor()
    start = free(one)
    assert free(two) == start
    mine, theirs = 0, 0
    for _ in range(4):
        one.fill(one.alloc(6), 6, 1)
        mine += 6
        assert free(one) == start - mine - theirs
        two.alloc(3)
        theirs += 3
        assert free(one) == start - mine - theirs
        assert free(two) == start - mine - theirs


def test_a_refused_question_is_answered_as_by_the_driver(
    actor: Callable[[], Remote], stack: Stack, make_remote: MakeRemote
) -> None:
    plain = make_remote(stack.environment(shared=False), program="tests.support.memory")
    managed = actor()
    for wanted in ((True, True), (True, False), (False, True), (False, False)):
        assert managed.info_with(*wanted) == plain.info_with(*wanted)


@pytest.mark.seen_in("Project-HAMi/HAMi#1181")
def test_memory_from_pools_and_handles_counts_as_the_programs_own(
    actor: Callable[[], Remote],
) -> None:
    one = actor()
    start = free(one)
    one.take_handle(8)
    one.take_pooled(16 * PAGE)
    assert free(one) <= start - 24
    one.give_handle()
    one.give_pooled()
    assert free(one) == start
