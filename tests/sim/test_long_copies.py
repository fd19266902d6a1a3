# SPDX-License-Identifier: Apache-2.0
"""Copies that take longer than a fault may be held."""

from __future__ import annotations

import pytest
from gksm_bench.simgpu import SimulatedGpu
from gksm_bench.stack import Stack

from tests.conftest import MakeGpu, MakeRemote, MakeStack
from tests.support.full import fill_the_rest
from tests.support.pages import PAGE, content, digest, digests
from tests.support.remote import RemoteError

SEED = 7
PAGES = 1500
OFFSET = 4096
WORD = 0x12345678
INVALID_VALUE = 1
# All of PAGES takes longer than half of it, an eighth of it in pages takes less.
DEADLINE = "[guard]\nhold_deadline_ms = 600\nstall_budget_ms = 1000\n"


@pytest.fixture
def gpu(make_gpu: MakeGpu) -> SimulatedGpu:
    """Large, though little of it will be used."""
    return make_gpu(vram=16 << 30, room=256 << 20)


@pytest.fixture
def stack(gpu: SimulatedGpu, make_stack: MakeStack) -> Stack:
    return make_stack(gpu, config=DEADLINE)


@pytest.mark.parametrize(
    ("stream", "pinned"), [("", False), ("own", True)], ids=["pageable", "pinned, in a stream"]
)
def test_a_kernel_may_write_to_a_page_in_the_middle_of_a_long_copy_to_the_host(
    stack: Stack, make_remote: MakeRemote, stream: str, pinned: bool
) -> None:
    a = make_remote(stack.environment())
    at, source = a.alloc(PAGES), a.source_of_one_page(SEED, PAGES)
    target = a.source_of_one_page(0, PAGES, pinned)
    a.copy_in(at, source, PAGES * PAGE)
    assert a.shared_pages(at, PAGES) == PAGES
    copy = a.begin("copy_out", target, at, PAGES * PAGE, stream)
    written = list(range(PAGES - 1, 0, -PAGES // 5))
    for page in written:
        a.write_kernel(at, [page], OFFSET, WORD, "nb")
        a.sync("nb")
    assert a.end(copy) == {"value": None}
    a.sync()
    for page in written:
        assert a.read_words(at + page * PAGE + OFFSET, 1) == [WORD]
        assert a.digests(at + (page - 1) * PAGE, 1) == digests([SEED])


@pytest.mark.parametrize("shift", [0, 12, PAGE // 2])
def test_a_long_copy_brings_every_byte_to_its_place(
    stack: Stack, make_remote: MakeRemote, shift: int
) -> None:
    a = make_remote(stack.environment())
    seeds = list(range(1, 101))
    at = a.alloc(len(seeds))
    a.load(at, seeds)
    assert a.shared_pages(at, len(seeds)) == len(seeds)
    whole = b"".join(map(content, seeds))
    assert a.digest_of(at + shift, len(whole) - 2 * shift) == digest(
        whole[shift : len(whole) - shift]
    )


def test_a_long_copy_that_leaves_its_allocation_is_refused_whole(
    stack: Stack, make_remote: MakeRemote
) -> None:
    a = make_remote(stack.environment())
    at, target = a.alloc(100), a.source_of_one_page(1, 300)
    a.load(at, list(range(2, 102)))
    with pytest.raises(RemoteError) as refused:
        a.copy_out(target, at, 300 * PAGE)
    assert refused.value.code == INVALID_VALUE
    assert a.host_digest(target) == digest(content(1))


def test_shared_pages_can_be_read_behind_other_work_when_memory_is_full(
    make_gpu: MakeGpu, make_stack: MakeStack, make_remote: MakeRemote
) -> None:
    """There is none to give them pages of their own first."""
    stack = make_stack(make_gpu())
    a = make_remote(stack.environment())
    at = a.alloc(8)
    a.load(at, list(range(1, 9)))
    fill_the_rest(make_remote(stack.environment(shared=False)))
    flag = a.hold("nb")
    assert a.digests(at, 8) == digests(list(range(1, 9)))
    a.let_go(flag)
    a.sync()
    assert a.shared_pages(at, 8) > 0, "there was memory, after all: the test shows nothing"
