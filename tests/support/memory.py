# SPDX-License-Identifier: Apache-2.0
"""An actor that takes memory in all ways (`python -m tests.support.memory`)."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_size_t
from typing import Any

from gksm_bench.driver import CudaError, check, driver

from tests.support.actor import Actor, main
from tests.support.pages import PAGE


class MemoryActor(Actor):
    """An actor that takes memory in all ways."""

    def __init__(self) -> None:
        super().__init__()
        self.pooled: list[Any] = []
        self.handles: list[Any] = []
        self.small: list[int] = []

    def alloc_until_refused(self, pages: int, most: int) -> list[Any]:
        """Allocate that many pages at a time: [addresses, the error's code, or 0]."""
        blocks: list[int] = []
        try:
            while len(blocks) < most:
                blocks.append(self.alloc(pages))
        except CudaError as error:
            return [blocks, error.code]
        return [blocks, 0]

    def fill(self, address: int, pages: int, value: int) -> None:
        """Write every word, by the driver."""
        self.memset(address, value, pages * PAGE // 4)

    def take_pooled(self, nbytes: int) -> None:
        """A stream-ordered allocation."""
        self.pooled.append(check(driver.cuMemAllocAsync(nbytes, self.stream("pool"))))
        self.sync("pool")

    def give_pooled(self) -> None:
        check(driver.cuMemFreeAsync(self.pooled.pop(), self.stream("pool")))
        self.sync("pool")

    def take_handle(self, pages: int) -> None:
        """Memory of the VMM interface, as the program's own."""
        prop = driver.CUmemAllocationProp()
        prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        prop.location.id = 0
        self.handles.append(check(driver.cuMemCreate(pages * PAGE, prop, 0)))

    def give_handle(self) -> None:
        check(driver.cuMemRelease(self.handles.pop()))

    def take_small(self, nbytes: int) -> None:
        """Less than a page: the driver's own."""
        self.small.append(self.alloc_bytes(nbytes))

    def give_small(self) -> None:
        self.free(self.small.pop())

    def info_with(self, free: bool, total: bool) -> int:
        """The status of cuMemGetInfo with pointers for these answers, NULL for others."""
        places = (c_size_t(), c_size_t())
        library = ctypes.CDLL("libcuda.so.1")
        return int(
            library.cuMemGetInfo_v2(
                *(
                    byref(p) if wanted else None
                    for p, wanted in zip(places, (free, total), strict=True)
                )
            )
        )


if __name__ == "__main__":
    main(MemoryActor())
