# SPDX-License-Identifier: Apache-2.0
"""Page contents that both ends of a test can make from a number."""

from __future__ import annotations

import random
from functools import lru_cache

import xxhash

PAGE = 2 << 20
BLOCK = 64 << 10


@lru_cache(maxsize=64)
def content(seed: int) -> bytes:
    """The 2 MiB that belong to `seed`; seed 0 is all zeros."""
    if seed == 0:
        return bytes(PAGE)
    block = random.Random(seed).randbytes(BLOCK - 8)
    return b"".join(at.to_bytes(8, "little") + block for at in range(0, PAGE, BLOCK))


def digest(data: bytes) -> str:
    """Short name of some bytes."""
    return xxhash.xxh3_128_hexdigest(data)


def digests(seeds: list[int]) -> list[str]:
    """The names of the pages that belong to `seeds`."""
    return [digest(content(seed)) for seed in seeds]
