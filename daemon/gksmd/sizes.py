# SPDX-License-Identifier: Apache-2.0
"""Amounts of memory as an operator writes them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d+)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Size(int):
    """A number of bytes; in TOML an integer, or text with K, M, G or T (1024-based)."""

    @classmethod
    def parse(cls, value: object) -> Size:
        """Turn 4096, "64M" or "8 GiB" into bytes; ValueError says what is expected."""
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return cls(value)
        if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
            return cls(int(match[1]) * _FACTORS[match[2].upper()])
        raise ValueError('Expected a size such as 67108864 or "64M"')


class GpuSize:
    """An amount of one GPU's memory: bytes as ``Size`` has them, or text such as "20%"."""

    __slots__ = ("amount", "percent")

    def __init__(self, amount: int = 0, percent: float = 0.0) -> None:
        """Bytes, and a share of the GPU's memory; one of the two is 0."""
        self.amount = amount
        self.percent = percent

    @classmethod
    def parse(cls, value: object) -> GpuSize:
        """Read "8G", 4096 or "20%"; ValueError says what is expected."""
        if isinstance(value, str) and (match := _PERCENT.fullmatch(value.strip())):
            if float(match[1]) <= 100:
                return cls(percent=float(match[1]))
        else:
            try:
                return cls(int(Size.parse(value)))
            except ValueError:
                pass
        raise ValueError('Expected a size such as "8G", or a share of the GPU such as "20%"')

    def of(self, total_bytes: int) -> int | None:
        """Bytes on a GPU that has ``total_bytes``; None: that (0) is not known yet."""
        if self.percent and not total_bytes:
            return None
        return self.amount + int(total_bytes * self.percent / 100)

    def written(self) -> int | str:
        """As ``parse`` reads it."""
        return f"{self.percent:g}%" if self.percent else self.amount

    def __str__(self) -> str:
        return str(self.written())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GpuSize) and self.written() == other.written()

    def __hash__(self) -> int:
        return hash(self.written())
