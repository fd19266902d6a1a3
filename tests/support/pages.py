# SPDX-License-Identifier: Apache-2.0
"""Page contents that both ends of a test can make from a number."""

from __future__ import annotations

import hashlib
import random
from functools import lru_cache

PAGE = 2 << 20


@lru_cache(maxsize=64)
def content(seed: int) -> bytes:
    """The 2 MiB that belong to `seed`; seed 0 is all zeros."""
    return bytes(PAGE) if seed == 0 else random.Random(seed).randbytes(PAGE)


def digest(data: bytes) -> str:
    """Short name of some bytes."""
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def digests(seeds: list[int]) -> list[str]:
    """The names of the pages that belong to `seeds`."""
    return [digest(content(seed)) for seed in seeds]
