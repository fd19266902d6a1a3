# SPDX-License-Identifier: Apache-2.0
"""The bytes that a process must find, kept outside of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property

import xxhash

from tests.support.pages import PAGE, content

# Few contents, so that equal pages are frequent; what a kernel fills a page with can be
# loaded, too.
WORDS = (0, 7, 0x5A5A5A5A)
PATTERNS = 8
OFFSETS = (0, 4096, 64 * 1024, PAGE - 4096)


class Page:
    """2 MiB that do not change: a write makes another."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @cached_property
    def hash(self) -> int:
        """XXH3-128."""
        return xxhash.xxh3_128_intdigest(self.data)


@cache
def filled(word: int) -> Page:
    """The page that holds one word over and over."""
    return Page(word.to_bytes(4, "little") * (PAGE // 4))


@cache
def pattern(number: int) -> Page:
    """One page of the pool: zeros, contents, and what kernels fill in."""
    number %= PATTERNS
    filling = PATTERNS - len(WORDS) + 1
    return Page(content(number)) if number < filling else filled(WORDS[number - filling + 1])


ZEROS = pattern(0)


@dataclass
class Allocation:
    """What one cuMemAlloc gave; new memory is zeros, and never what another process had."""

    address: int
    pages: list[Page]
    graphs: list[tuple[int, int, int, int]] = field(default_factory=list)

    def at(self, page: int) -> int:
        """Device address of a page."""
        return self.address + page * PAGE

    def put(self, first: int, pages: list[Page]) -> None:
        """Replace whole pages."""
        self.pages[first : first + len(pages)] = pages

    def write(self, offset: int, data: bytes) -> None:
        """Replace bytes."""
        while data:
            page, start = divmod(offset, PAGE)
            part, data = data[: PAGE - start], data[PAGE - start :]
            before = self.pages[page].data
            self.pages[page] = Page(before[:start] + part + before[start + len(part) :])
            offset += len(part)

    def read(self, offset: int, nbytes: int) -> bytes:
        """Bytes of one page."""
        page, start = divmod(offset, PAGE)
        return self.pages[page].data[start : start + nbytes]
