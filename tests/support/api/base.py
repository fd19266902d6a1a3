# SPDX-License-Identifier: Apache-2.0
"""A program that looks the driver's symbols up by name."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_int, c_uint64, c_void_p
from typing import Any

from gksm_bench.driver import CudaError

from tests.support.actor import LEGACY, PER_THREAD

SIZE = 96
ROWS, PITCH = 3, 256
PATTERN = bytes(1 + n % 251 for n in range(ROWS * SIZE))
WORD = 0x1234_5678_9ABC_DEF0
IN_STREAM_ORDER = 1
Expected = dict[int, bytes]


class Api:
    """The driver's symbols, as a program that looks them up by name has them."""

    def __init__(self, context: int) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.context = context
        self.keep: list[Any] = []
        self.host = ctypes.create_string_buffer(PATTERN, len(PATTERN))
        self.device = self.out(c_uint64, "cuMemAlloc_v2", 65536)
        self.call("cuMemcpyHtoD_v2", self.device, self.host, len(PATTERN))
        self.stream = self.out(c_void_p, "cuStreamCreate", 0)
        self.sync()

    def call(self, name: str, *arguments: Any) -> None:
        """Integers go as 64 bits, which is right for narrower parameters too."""
        function = getattr(self.library, name)
        function.restype = c_int
        values = [c_uint64(v & (1 << 64) - 1) if isinstance(v, int) else v for v in arguments]
        result = function(*values)
        if result != 0:
            raise CudaError(result, name)

    def out(self, kind: Any, name: str, *arguments: Any) -> Any:
        """The value that the call stores by its first parameter."""
        result = kind()
        self.call(name, byref(result), *arguments)
        return result.value

    def sync(self) -> None:
        for stream in (LEGACY, PER_THREAD, self.stream):
            self.call("cuStreamSynchronize", stream)

    def rows(self) -> Expected:
        """What a copy of all rows leaves at the destination."""
        return {row * PITCH: PATTERN[row * SIZE : (row + 1) * SIZE] for row in range(ROWS)}


Writer = Callable[[Api, int], Expected]
Reader = Callable[[Api, int], bytes]


def both(name: str, suffix: str) -> list[str]:
    return [name, name + suffix]
