# SPDX-License-Identifier: Apache-2.0
"""What a program does with the driver's finer calls is its own affair: answers and memory are
those that it would get without libgksm, and libgksm goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.actors import entry_point_actors
from tests.support.pages import digests
from tests.support.remote import Remote

DEVICE, HOST, HOST_NUMA, HOST_NUMA_CURRENT = 1, 2, 3, 4
NO_HANDLE, DESCRIPTOR, FABRIC = 0, 1, 8
UNKNOWN_ATTRIBUTE = 9999
OK, INVALID_CONTEXT, INVALID_VALUE = 0, 201, 1
WORD = 0x12345678


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Remote]]:
    """A process with libgksm in it, and one without."""
    with entry_point_actors(tmp_path_factory.mktemp("actors"), 1, plain=1) as actors:
        for actor in actors:
            actor.load(actor.alloc(2), [1, 2])
        yield actors


def shares(process: Remote, seeds: list[int]) -> bool:
    """Whether what it loads is shared, and what it holds right."""
    at = process.alloc(len(seeds))
    process.load(at, seeds)
    shared = process.shared_pages(at, len(seeds)) == len(seeds)
    right = process.digests(at, len(seeds)) == digests(seeds)
    process.free(at)
    return bool(shared and right)


@pytest.mark.seen_in("Project-HAMi/HAMi-core#169", "Project-HAMi/HAMi-core#276", "NVIDIA/nccl#2106")
def test_memory_on_the_host_is_created_or_refused_as_without_libgksm(both: list[Remote]) -> None:
    """Its number names no GPU; and nobody needs a context for that."""
    places = [(place, number) for place in (HOST, HOST_NUMA, HOST_NUMA_CURRENT, DEVICE)
              for number in (-1, 0, 1, 7, 1 << 20)]  # fmt: skip
    answers = []
    for actor in both:
        answers.append([])
        for place, number in places:
            answers[-1].append(actor.create_own(place, number, NO_HANDLE))
            answers[-1].append(actor.without_context("create_own", place, number, NO_HANDLE))
    assert answers[0] == answers[1]
    assert [OK] in [answer[:1] for answer in answers[0]], "not even device memory: shows nothing"
    assert shares(both[0], [1, 2])


@pytest.mark.seen_in("NVIDIA/nccl#2106")
def test_memory_without_a_context_is_refused_as_without_libgksm(both: list[Remote]) -> None:
    codes = [
        [actor.without_context("allocation_status", nbytes) for nbytes in (0, 9 << 20)]
        for actor in both
    ]
    assert codes[0] == codes[1]
    assert codes[0][1] == INVALID_CONTEXT
    assert shares(both[0], [3, 4])


@pytest.mark.seen_in("pytorch/pytorch#179220")
@pytest.mark.parametrize("types", [NO_HANDLE, DESCRIPTOR, FABRIC, DESCRIPTOR | FABRIC])
def test_a_programs_own_handles_stay_of_the_kind_it_asked_for(
    both: list[Remote], types: int
) -> None:
    """Though libgksm wants descriptors for its own."""
    answers = []
    for actor in both:
        made = actor.create_own(DEVICE, 0, types)
        answers.append([made])
        if made[0] == OK:
            answers[-1] += [actor.export_own(), actor.use_own(WORD)]
    assert answers[0] == answers[1]
    if types in (NO_HANDLE, DESCRIPTOR):
        assert answers[0][0][:3] == [OK, 1, types]
        assert (answers[0][1][0] == OK) == (types == DESCRIPTOR)
        assert answers[0][2] == [WORD, 0]


@pytest.mark.seen_in("vllm-project/vllm#35489")
def test_a_question_that_the_driver_does_not_know_spoils_no_later_call(both: list[Remote]) -> None:
    answers = []
    for actor in both:
        known = actor.device_attribute(1)
        unknown = actor.device_attribute(UNKNOWN_ATTRIBUTE)
        at = actor.alloc(2)
        about = [actor.attribute(UNKNOWN_ATTRIBUTE, at)[0],
                 actor.attributes([UNKNOWN_ATTRIBUTE], at)[0]]  # fmt: skip
        actor.load(at, [5, 6])
        made = actor.create_own(DEVICE, 0, NO_HANDLE)
        answers.append([known, unknown, about, made, actor.use_own(WORD), actor.digests(at, 2)])
        assert actor.device_attribute(1) == known
    assert answers[0] == answers[1]
    assert answers[0][1][0] == INVALID_VALUE
    assert shares(both[0], [5, 6])
