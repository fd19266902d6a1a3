# SPDX-License-Identifier: Apache-2.0
"""One process that loads a model the way an engine does. It knows nothing of gKSM.

Reports JSON objects on standard output, one a line, and obeys one command a line on
standard input: `check`, `write-kernel PAGE,PAGE`, `write-memcpy PAGE,PAGE`, `exit`.
Pages are numbered over all segments in the order of their allocation. It ends when
standard input does.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gksm_bench.demo import kernels
from gksm_bench.demo.layout import PAGE, Layout, packed, torch
from gksm_bench.demo.model import Model, open_model
from gksm_bench.driver import check, driver

REPORT_EVERY = 4 << 20
CHECK_PAGES = 8
WRITTEN_BYTES = 64 << 10


def report(event: str, **values: Any) -> None:
    """One line on standard output."""
    print(json.dumps({"event": event, **values}), flush=True)


@dataclass
class Extent:
    """Part of a page that must equal `nbytes` of host memory from `source` on."""

    offset: int
    source: int
    nbytes: int


@dataclass
class Page:
    """What one device page must contain."""

    address: int
    segment: int
    extents: list[Extent] = field(default_factory=list)
    # Once this process has written to the page: what all of it must be.
    image: ctypes.Array[ctypes.c_char] | None = None

    @property
    def covered(self) -> int:
        """Bytes that the model fills."""
        return sum(extent.nbytes for extent in self.extents)


class Worker:
    """A model on a device."""

    def __init__(self, model: Model, layout: Layout, module: kernels.Kernels) -> None:
        self.model = model
        self.layout = layout
        self.module = module
        self.memcmp = ctypes.CDLL(None).memcmp
        self.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        self.staging = (ctypes.c_char * (CHECK_PAGES * PAGE))()
        self.segments: list[int] = []
        self.pages: list[Page] = []

    def allocate(self) -> None:
        """Take the segments, and note what each page of them has to contain."""
        first_page = []
        for number, size in enumerate(self.layout.segments):
            address = int(check(driver.cuMemAlloc(size)))
            self.segments.append(address)
            first_page.append(len(self.pages))
            self.pages += [Page(address + at, number) for at in range(0, size, PAGE)]
        for tensor, place in zip(self.model.tensors, self.layout.places, strict=True):
            at, source, left = place.offset, self.model.address + tensor.start, tensor.nbytes
            while left:
                step = min(left, PAGE - at % PAGE)
                page = self.pages[first_page[place.segment] + at // PAGE]
                page.extents.append(Extent(at % PAGE, source, step))
                at, source, left = at + step, source + step, left - step

    def load(self, *, asynchronous: bool) -> None:
        """Copy tensor by tensor, from the memory-mapped file."""
        stream = check(driver.cuStreamCreate(0)) if asynchronous else None
        copied = reported = 0
        for tensor, place in zip(self.model.tensors, self.layout.places, strict=True):
            target = self.segments[place.segment] + place.offset
            source = self.model.address + tensor.start
            if stream is not None:
                check(driver.cuMemcpyHtoDAsync(target, source, tensor.nbytes, stream))
                check(driver.cuStreamSynchronize(stream))
            else:
                check(driver.cuMemcpyHtoD(target, source, tensor.nbytes))
            copied += tensor.nbytes
            if copied - reported >= REPORT_EVERY:
                report("progress", bytes=copied, total=self.model.nbytes)
                reported = copied
        report("progress", bytes=copied, total=self.model.nbytes)

    def corrupt_pages(self) -> list[int]:
        """Numbers of the pages with a wrong byte, after reading all of them back."""
        corrupt = []
        base = ctypes.addressof(self.staging)
        number = 0
        while number < len(self.pages):
            first = self.pages[number].address
            count = 1
            while (
                count < CHECK_PAGES
                and number + count < len(self.pages)
                and self.pages[number + count].segment == self.pages[number].segment
            ):
                count += 1
            check(driver.cuMemcpyDtoH(base, first, count * PAGE))
            corrupt += [
                number + i
                for i in range(count)
                if not self.page_is_right(self.pages[number + i], base + i * PAGE)
            ]
            number += count
        return corrupt

    def equal(self, a: int, b: int, nbytes: int) -> bool:
        """Whether host memory at the two addresses has the same bytes."""
        return bool(self.memcmp(a, b, nbytes) == 0)

    def page_is_right(self, page: Page, read: int) -> bool:
        """Whether the page's bytes, read to host address `read`, are what they must be."""
        if page.image is not None:
            return self.equal(read, ctypes.addressof(page.image), PAGE)
        return all(
            self.equal(read + extent.offset, extent.source, extent.nbytes)
            for extent in page.extents
        )

    def full_pages(self) -> list[int]:
        """Numbers of the pages that the model fills to the last byte."""
        return [n for n, page in enumerate(self.pages) if page.covered == PAGE]

    def image_of(self, page: Page) -> ctypes.Array[ctypes.c_char]:
        """What the page must contain, to be changed as the page is."""
        if page.image is None:
            page.image = (ctypes.c_char * PAGE)()
            base = ctypes.addressof(page.image)
            check(driver.cuMemcpyDtoH(base, page.address, PAGE))
            for extent in page.extents:
                ctypes.memmove(base + extent.offset, extent.source, extent.nbytes)
        return page.image

    def write_kernel(self, numbers: list[int]) -> None:
        """One kernel changes a few words of each of the pages."""
        for number in numbers:
            page = self.pages[number]
            self.module.expect(self.image_of(page))
        self.module.write([self.pages[number].address for number in numbers])
        check(driver.cuCtxSynchronize())

    def write_memcpy(self, numbers: list[int]) -> None:
        """A copy from the host changes a part of each of the pages."""
        offset = (PAGE - WRITTEN_BYTES) // 2
        for number in numbers:
            page = self.pages[number]
            patch = ctypes.create_string_buffer(os.urandom(WRITTEN_BYTES), WRITTEN_BYTES)
            image = ctypes.addressof(self.image_of(page))
            ctypes.memmove(image + offset, patch, WRITTEN_BYTES)
            check(
                driver.cuMemcpyHtoD(page.address + offset, ctypes.addressof(patch), WRITTEN_BYTES)
            )

    def obey(self, command: str) -> None:
        """Do what one line of standard input says."""
        verb, _, argument = command.partition(" ")
        numbers = [int(part) for part in argument.split(",") if part]
        started = time.monotonic()
        if verb == "check":
            report("checked", corrupt=self.corrupt_pages())
        elif verb == "write-kernel":
            self.write_kernel(numbers)
            report("written", pages=numbers, seconds=time.monotonic() - started)
        elif verb == "write-memcpy":
            self.write_memcpy(numbers)
            report("written", pages=numbers, seconds=time.monotonic() - started)
        else:
            report("error", message=f"unknown command {verb}")


def main() -> int:
    """Load, check, then obey."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--limit", type=int, help="load only the first so many bytes")
    parser.add_argument("--per-tensor-alloc", action="store_true")
    parser.add_argument("--async-copy", action="store_true", dest="asynchronous")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--ptx", action="store_true", help="a real GPU: compile the kernel")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # standard input ends when the user is done

    model = open_model(args.model, args.limit)
    sizes = [tensor.nbytes for tensor in model.tensors]
    layout = torch(sizes) if args.per_tensor_alloc else packed(sizes)
    check(driver.cuInit(0))
    context = check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(args.device))))
    check(driver.cuCtxSetCurrent(context))
    module = kernels.load(ptx=args.ptx)
    worker = Worker(model, layout, module)
    started = time.monotonic()
    worker.allocate()
    worker.load(asynchronous=args.asynchronous)
    loaded = time.monotonic()
    corrupt = worker.corrupt_pages()
    report(
        "ready",
        pages=len(worker.pages),
        full_pages=worker.full_pages(),
        corrupt=corrupt,
        load_seconds=loaded - started,
    )
    for line in sys.stdin:
        if line.strip() == "exit":
            break
        worker.obey(line.strip())
    for address in worker.segments:
        check(driver.cuMemFree(address))
    return 0


if __name__ == "__main__":
    sys.exit(main())
