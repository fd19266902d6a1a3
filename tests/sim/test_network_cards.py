# SPDX-License-Identifier: Apache-2.0
"""Network cards reach a program's memory as they would without libgksm, and what they reach
stays in its place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gksm_bench.stack import Stack

from tests.conftest import MakeGpu, MakeRemote, MakeStack
from tests.support.actors import PATIENT, PROGRAM
from tests.support.pages import PAGE, digests
from tests.support.remote import Remote, RemoteError

IS_RDMA_CAPABLE = 15
NOT_SUPPORTED = 801
SEEDS = list(range(1, 41))
WORD = 0x12345678
RDMA = {"SIMCUDA_RDMA": "1"}

MakeActor = Callable[..., Remote]


@pytest.fixture
def start(make_gpu: MakeGpu, make_stack: MakeStack) -> Callable[..., Stack]:
    """A stack on a GPU that is told by environment what it offers."""
    return lambda extra: make_stack(make_gpu(extra=extra), config=PATIENT)


@pytest.fixture
def make_actor(make_remote: MakeRemote) -> MakeActor:
    def make(stack: Stack, *, shared: bool = True) -> Remote:
        actor = make_remote(stack.environment(shared=shared), program=PROGRAM)
        actor.prepare()
        return actor

    return make


@pytest.fixture
def stack(start: Callable[..., Stack]) -> Stack:
    return start(RDMA)


def loaded_twice(stack: Stack, make_actor: MakeActor) -> tuple[Remote, int, Remote, int]:
    """Two processes that share all the pages."""
    a, b = make_actor(stack), make_actor(stack)
    at_a, at_b = a.alloc(len(SEEDS)), b.alloc(len(SEEDS))
    a.load(at_a, SEEDS)
    b.load(at_b, SEEDS)
    assert a.shared_pages(at_a, len(SEEDS)) == b.shared_pages(at_b, len(SEEDS)) == len(SEEDS)
    return a, at_a, b, at_b


@pytest.mark.seen_in("microsoft/mscclpp#657")
def test_memory_can_be_registered_with_a_network_card(stack: Stack, make_actor: MakeActor) -> None:
    actors = make_actor(stack), make_actor(stack, shared=False)
    capable = []
    for actor in actors:
        at = actor.alloc(2)
        actor.load(at, [1, 2])
        capable.append(actor.attribute(IS_RDMA_CAPABLE, at))
        card = actor.register(at, 2 * PAGE)
        assert actor.card_digests(card) == digests([1, 2])
    assert capable[0] == capable[1]
    assert capable[0][1][:2] == "01"


@pytest.mark.seen_in("microsoft/mscclpp#657")
def test_where_the_gpu_offers_no_such_memory_registering_is_refused_as_without_libgksm(
    start: Callable[..., Stack], make_actor: MakeActor
) -> None:
    stack = start({})
    for actor in (make_actor(stack), make_actor(stack, shared=False)):
        at = actor.alloc(2)
        assert actor.attribute(IS_RDMA_CAPABLE, at)[1][:2] == "00"
        with pytest.raises(RemoteError) as refused:
            actor.register(at, 2 * PAGE)
        assert refused.value.code == NOT_SUPPORTED


@pytest.mark.seen_in("pytorch/pytorch#192330")
def test_programs_run_and_share_where_memory_for_network_cards_cannot_be_mapped(
    start: Callable[..., Stack], make_actor: MakeActor
) -> None:
    stack = start({"SIMCUDA_RDMA": "unmappable"})
    a, at_a, b, at_b = loaded_twice(stack, make_actor)
    b.write_kernel(at_b, [0], 4096, WORD)
    b.sync()
    assert b.digests(at_b, len(SEEDS))[1:] == a.digests(at_a, len(SEEDS))[1:] == digests(SEEDS[1:])
    assert "offers memory for RDMA but does not map it" in stack.gksmctl("logs", str(a.pid))


@pytest.mark.seen_in("meta-pytorch/torchcomms#3078")
def test_a_network_card_sees_a_large_buffer_to_its_last_byte(
    stack: Stack, make_actor: MakeActor
) -> None:
    a, at_a, b, at_b = loaded_twice(stack, make_actor)
    card = b.register(at_b, len(SEEDS) * PAGE)
    assert b.card_digests(card) == digests(SEEDS)
    assert b.shared_pages(at_b, len(SEEDS)) == 0
    part = a.register(at_a + 3 * PAGE, 20 * PAGE)
    assert a.card_digests(part) == digests(SEEDS[3:23])
    assert a.shared_pages(at_a, len(SEEDS)) == len(SEEDS) - 20
    last = len(SEEDS) * PAGE - 4
    b.card_write(card, last, WORD)
    assert b.read_words(at_b + last, 1) == [WORD]
    assert a.digests(at_a, len(SEEDS)) == digests(SEEDS)


@pytest.mark.seen_in("fzyzcjy/torch_memory_saver#88")
def test_a_registered_buffer_keeps_its_memory_whatever_is_loaded_and_written(
    stack: Stack, make_actor: MakeActor
) -> None:
    a, at_a, b, at_b = loaded_twice(stack, make_actor)
    card = b.register(at_b, len(SEEDS) * PAGE)
    for turn in range(3):
        seeds = [seed + 100 * turn for seed in SEEDS]
        a.load(at_a, seeds)  # the same bytes are published: b could attach to them
        b.load(at_b, seeds)
        assert b.card_digests(card) == digests(seeds)
        b.write_kernel(at_b, [turn], 4096, WORD)
        b.sync()
        b.write_words(at_b + (turn + 5) * PAGE, WORD, 16)
        b.card_write(card, (turn + 10) * PAGE + 64, WORD)
        found = b.digests(at_b, len(SEEDS))
        assert b.card_digests(card) == found
        assert len(set(found) - set(digests(seeds))) == 3
    assert b.shared_pages(at_b, len(SEEDS)) == 0


def test_what_a_network_card_holds_outlives_its_allocation_and_nothing_else_does(
    stack: Stack, make_actor: MakeActor, make_remote: MakeRemote, eventually: Callable[..., None]
) -> None:
    probe = make_remote(stack.environment(shared=False))
    a = make_actor(stack)
    at = a.alloc(4)
    a.load(at, [1, 2, 3, 4])
    card = a.register(at, 2 * PAGE)
    a.free(at)
    at = a.alloc(4)
    a.load(at, [5, 6, 7, 8])
    assert a.card_digests(card) == digests([1, 2])
    a.deregister(card)
    assert a.finish() == 0
    eventually(lambda: len(set(probe.info())) == 1, "all memory being free")
