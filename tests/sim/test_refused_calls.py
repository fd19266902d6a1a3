# SPDX-License-Identifier: Apache-2.0
"""A call that the driver refuses changes nothing, though libgksm had made room for its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.actors import entry_point_actors
from tests.support.pages import PAGE, digests
from tests.support.remote import Remote

SEEDS = list(range(1, 9))
SIZE = len(SEEDS) * PAGE
WORD = 0x12345678
INVALID_CONTEXT = 201

Call = Callable[[Remote, int, int], int]  # (actor, its pages, a stream that is none)

REFUSED: dict[str, Call] = {
    "a set in a stream that is none": lambda a, at, none: a.status(
        "cuMemsetD8Async", at, 7, SIZE, none
    ),
    "a copy from the host in a stream that is none": lambda a, at, none: a.status(
        "cuMemcpyHtoDAsync_v2", at, a.source(SEEDS[::-1]), SIZE, none
    ),
    "a copy on the device in a stream that is none": lambda a, at, none: a.status(
        "cuMemcpyDtoDAsync_v2", at, a.alloc(len(SEEDS)), SIZE, none
    ),
    "a copy from an address that is none": lambda a, at, _: a.status(
        "cuMemcpyDtoD_v2", at, at + (1 << 36), SIZE
    ),
    "a set without a context": lambda a, at, _: a.without_context(
        "status", "cuMemsetD8_v2", at, 7, SIZE
    ),
    "a set of words that are not aligned": lambda a, at, _: a.status(
        "cuMemsetD32_v2", at + 2, 7, SIZE // 4 - 1
    ),
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Remote]]:
    with entry_point_actors(tmp_path_factory.mktemp("actors"), 2) as actors:
        yield actors


def share(process: Remote) -> int:
    at: int = process.alloc(len(SEEDS))
    process.load(at, SEEDS)
    assert process.shared_pages(at, len(SEEDS)) == len(SEEDS)
    return at


@pytest.mark.parametrize("what", REFUSED)
def test_pages_that_a_refused_call_was_to_write_over_keep_their_bytes(
    pair: list[Remote], what: str
) -> None:
    a, b = pair
    at_a, at_b = share(a), share(b)
    # One that was published here, and one that was attached.
    for process, at in ((a, at_a), (b, at_b)):
        process.sync(process.stream_made("gone"))
        none = process.destroy_stream("gone")
        assert REFUSED[what](process, at, none) != 0
        assert process.digests(at, len(SEEDS)) == digests(SEEDS)
    # Both can be written, shared and freed as ever.
    a.write_kernel(at_a, [0], 4096, WORD)
    a.memset(at_a + PAGE, WORD, PAGE // 4)
    a.sync()
    assert a.read_words(at_a + 4096, 1) == a.read_words(at_a + PAGE, 1) == [WORD]
    assert a.digests(at_a + 2 * PAGE, 6) == digests(SEEDS[2:])
    assert b.digests(at_b, len(SEEDS)) == digests(SEEDS)
    b.load(at_b, SEEDS)
    assert b.shared_pages(at_b, len(SEEDS)) == len(SEEDS)
    for process, at in ((a, at_a), (b, at_b)):
        process.free(at)


def test_half_a_page_that_waits_for_the_rest_survives_a_refused_call_too(
    pair: list[Remote],
) -> None:
    a = pair[0]
    at = a.alloc(1)
    a.load_parts(at, [1], PAGE // 4, [0, 1])
    a.stream_made("gone")
    none = a.destroy_stream("gone")
    assert a.status("cuMemsetD8Async", at, 7, PAGE, none) != 0
    a.load_parts(at, [1], PAGE // 4, [2, 3])
    assert a.digests(at, 1) == digests([1])
    a.free(at)


def test_what_a_call_that_succeeds_writes_over_is_left_for_good(pair: list[Remote]) -> None:
    a, b = pair
    at_a, at_b = share(a), share(b)
    for process, at in ((a, at_a), (b, at_b)):
        process.memset(at, WORD, SIZE // 4)
        process.sync()
        assert process.shared_pages(at, len(SEEDS)) == 0
        assert process.read_words(at + SIZE - 4, 1) == [WORD]
        process.free(at)
