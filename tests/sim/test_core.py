# SPDX-License-Identifier: Apache-2.0
"""What the core must not do to a program's bytes, seen from the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from gksm_bench.stack import Stack

from tests.support.pages import PAGE, content, digest, digests
from tests.support.remote import Remote, RemoteError

Sharer = Callable[..., Remote]
INVALID_VALUE = 1
WORD = 0x12345678


def test_a_kernel_s_write_to_a_page_that_is_just_complete_is_not_lost(sharer: Sharer) -> None:
    """The page's last piece comes with many full pages; the kernel writes to an older piece."""
    a = sharer()
    seeds = list(range(36))
    for number in range(8):
        at = a.alloc(len(seeds))
        source = a.source([seed + 100 * number for seed in seeds])
        a.copy_in(at, source, PAGE // 2)
        flag = a.hold("nb")
        a.write_kernel(at, [0], 4096, WORD, "nb")
        thread = a.begin("let_go_after", flag, number * 0.003)
        a.copy_in(at + PAGE // 2, source + PAGE // 2, len(seeds) * PAGE - PAGE // 2)
        assert a.end(thread)
        a.sync()
        page = bytearray(content(100 * number))
        page[4096:4100] = WORD.to_bytes(4, "little")
        assert a.digests(at, 1) == [digest(bytes(page))], number
        a.free(at)


@pytest.fixture
def sealers(make_gpu: Any, make_stack: Any, make_remote: Any) -> tuple[Remote, Remote]:
    """Two processes on a GPU without a fault guard, in a domain that shares what is sealed."""
    stack: Stack = make_stack(make_gpu(guard=False), guard_options=["--guard", "seal"])
    return make_remote(stack.environment()), make_remote(stack.environment())


def test_under_seal_nothing_is_shared_and_kernels_may_write_until_it_is_sealed(
    sealers: tuple[Remote, Remote],
) -> None:
    addresses = []
    for process in sealers:
        address = process.alloc(4)
        process.load(address, [1, 2, 3, 4])
        process.load_parts(address, [1, 2], PAGE // 2, [0, 1, 2, 3])
        assert process.shared_pages(address, 4) == 0
        process.write_kernel(address, [0], 4096, WORD)
        process.sync()
        addresses.append(address)
    for process, address in zip(sealers, addresses, strict=True):
        assert process.seal(address, 4) == 0
        assert process.shared_pages(address, 4) == 4
        assert process.read_words(address + 4096, 1) == [WORD]
        assert process.digests(address + PAGE, 3) == digests([2, 3, 4])
    a, at_a = sealers[0], addresses[0]
    assert a.unseal(at_a, 4) == 0
    a.write_kernel(at_a, [1], 4096, WORD)
    a.sync()
    assert a.read_words(at_a + PAGE + 4096, 1) == [WORD]
    assert sealers[1].digests(addresses[1] + PAGE, 3) == digests([2, 3, 4])


def test_a_shared_page_that_is_copied_onto_itself_keeps_its_bytes(sharer: Sharer) -> None:
    a = sharer()
    at = a.alloc(2)
    a.load(at, [1, 2])
    a.copy_device(at, at, 2 * PAGE)
    assert a.digests(at, 2) == digests([1, 2])


def test_a_set_that_is_too_long_leaves_other_allocations_alone(sharer: Sharer) -> None:
    a = sharer()
    at, other = sorted(a.alloc(2) for _ in range(2))
    a.load(at, [1, 2])
    a.load(other, [3, 4])
    with pytest.raises(RemoteError) as refused:
        a.memset(at, 0, (1 << 40) // 4)
    assert refused.value.code == INVALID_VALUE
    assert a.digests(other, 2) == digests([3, 4])
