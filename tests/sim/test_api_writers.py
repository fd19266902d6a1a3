# SPDX-License-Identifier: Apache-2.0
"""No entry point that writes changes a page for anybody but the writer; none that reads sees
anything but the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import pytest

from tests.support.actors import entry_point_actors
from tests.support.api.base import SIZE
from tests.support.api.launches import launchers
from tests.support.api.readers import readers
from tests.support.entry_points import all_writers
from tests.support.pages import PAGE, content, digest
from tests.support.remote import Remote

OFFSET = 12 * 1024
SEEDS = count(1_000_000)


@dataclass
class Pair:
    """Two processes that hold the same page."""

    writer: Remote
    other: Remote

    def load(self) -> tuple[int, int, bytes]:
        """A fresh page that they share: the two addresses and its bytes."""
        seed = next(SEEDS)
        addresses = []
        for process in (self.writer, self.other):
            address = process.alloc(1)
            process.load(address, [seed])
            addresses.append(address)
        assert self.writer.shared_pages(addresses[0], 1) == 1
        assert self.other.shared_pages(addresses[1], 1) == 1
        return addresses[0], addresses[1], content(seed)

    def free(self, at_writer: int, at_other: int) -> None:
        self.writer.free(at_writer)
        self.other.free(at_other)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with entry_point_actors(tmp_path_factory.mktemp("actors"), 2) as actors:
        yield Pair(*actors)


def after(page: bytes, left: dict[str, str]) -> bytes:
    """The page with what the writer says it left at OFFSET."""
    changed = bytearray(page)
    for offset, data in left.items():
        raw = bytes.fromhex(data)
        changed[OFFSET + int(offset) : OFFSET + int(offset) + len(raw)] = raw
    return bytes(changed)


@pytest.mark.parametrize("name", launchers())
def test_a_kernel_write_changes_the_page_of_the_writer_alone(pair: Pair, name: str) -> None:
    at, at_other, page = pair.load()
    expected = after(page, pair.writer.launch_by(name, at + OFFSET))
    assert pair.writer.digests(at, 1) == [digest(expected)]
    assert pair.writer.shared_pages(at, 1) == 0
    assert pair.other.digests(at_other, 1) == [digest(page)]
    assert pair.other.shared_pages(at_other, 1) == 1
    pair.free(at, at_other)


@pytest.mark.parametrize("name", all_writers())
def test_a_write_by_the_api_changes_the_page_of_the_writer_alone(pair: Pair, name: str) -> None:
    at, at_other, page = pair.load()
    expected = after(page, pair.writer.write_by(name, at + OFFSET))
    assert expected != page
    assert pair.writer.digests(at, 1) == [digest(expected)]
    assert pair.writer.shared_pages(at, 1) == 0
    assert pair.other.digests(at_other, 1) == [digest(page)]
    assert pair.other.shared_pages(at_other, 1) == 1
    pair.free(at, at_other)


@pytest.mark.parametrize("name", all_writers())
def test_a_write_by_the_api_to_memory_never_touched_finds_zeros_around_it(
    pair: Pair, name: str
) -> None:
    at = pair.writer.alloc(1)
    expected = after(bytes(PAGE), pair.writer.write_by(name, at + OFFSET))
    assert pair.writer.digests(at, 1) == [digest(expected)]
    pair.writer.free(at)


@pytest.mark.parametrize("name", readers())
def test_a_read_by_the_api_brings_the_bytes_of_a_shared_page(pair: Pair, name: str) -> None:
    at, at_other, page = pair.load()
    assert bytes.fromhex(pair.writer.read_by(name, at + OFFSET)) == page[OFFSET : OFFSET + SIZE]
    assert pair.writer.digests(at, 1) == pair.other.digests(at_other, 1) == [digest(page)]
    pair.free(at, at_other)


@pytest.mark.parametrize("name", readers())
def test_a_read_by_the_api_of_memory_never_touched_brings_zeros(pair: Pair, name: str) -> None:
    at = pair.writer.alloc(1)
    assert bytes.fromhex(pair.writer.read_by(name, at + OFFSET)) == bytes(SIZE)
    pair.writer.free(at)
