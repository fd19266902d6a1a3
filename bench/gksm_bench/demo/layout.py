# SPDX-License-Identifier: Apache-2.0
"""Where tensors lie in device memory.

`packed` is one flat segment, parameters start where the ones before them end. `torch`
carves each tensor out of segments by the rules of PyTorch's caching allocator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

PAGE = 2 << 20
BLOCK_ROUND = 512
SMALL_LIMIT = 1 << 20
SMALL_SEGMENT = 2 << 20
LARGE_SEGMENT = 20 << 20
OWN_SEGMENT_FROM = 10 << 20
SEGMENT_ROUND = 2 << 20
LARGE_SPLIT_OVER = 1 << 20


@dataclass(frozen=True)
class Place:
    """Segment number and byte offset in it."""

    segment: int
    offset: int


@dataclass
class Layout:
    """Sizes in bytes of the segments to allocate, and one place for each tensor."""

    segments: list[int] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)


def round_up(value: int, step: int) -> int:
    """The least multiple of `step` that is not below `value`."""
    return -(-value // step) * step


def packed(sizes: Sequence[int]) -> Layout:
    """All tensors back to back in one segment, as a flat parameter buffer has them."""
    layout = Layout()
    offset = 0
    for size in sizes:
        layout.places.append(Place(0, offset))
        offset += size
    layout.segments.append(round_up(offset, SEGMENT_ROUND))
    return layout


@dataclass
class FreeBlock:
    """A cached block of a segment."""

    segment: int
    offset: int
    nbytes: int


def torch(sizes: Sequence[int]) -> Layout:
    """Every tensor allocated on its own: best fit over cached blocks, else a new segment."""
    layout = Layout()
    pools: dict[bool, list[FreeBlock]] = {True: [], False: []}
    for size in sizes:
        wanted = max(BLOCK_ROUND, round_up(size, BLOCK_ROUND))
        small = wanted <= SMALL_LIMIT
        pool = pools[small]
        fitting = [block for block in pool if block.nbytes >= wanted]
        if fitting:
            block = min(fitting, key=lambda b: (b.nbytes, b.segment, b.offset))
            pool.remove(block)
        else:
            block = FreeBlock(len(layout.segments), 0, segment_size(wanted))
            layout.segments.append(block.nbytes)
        layout.places.append(Place(block.segment, block.offset))
        rest = block.nbytes - wanted
        if rest >= BLOCK_ROUND if small else rest > LARGE_SPLIT_OVER:
            pool.append(FreeBlock(block.segment, block.offset + wanted, rest))
    return layout


def segment_size(wanted: int) -> int:
    """How much PyTorch asks cudaMalloc for when no cached block fits `wanted` bytes."""
    if wanted <= SMALL_LIMIT:
        return SMALL_SEGMENT
    if wanted < OWN_SEGMENT_FROM:
        return LARGE_SEGMENT
    return round_up(wanted, SEGMENT_ROUND)
