# SPDX-License-Identifier: Apache-2.0
"""The process that works (`python -m tests.support.model.actor`)."""

from __future__ import annotations

import ctypes
from typing import Any

import xxhash
from gksm_bench.driver import check, driver

from tests.support import actor
from tests.support.actor import Actor
from tests.support.model.truth import pattern
from tests.support.pages import PAGE

BEHIND = "nb-behind"
BESIDE = "nb-beside"


class ModelActor(Actor):
    """Commands that are done with the GPU when they answer."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs: dict[int, Any] = {}
        self.graph_count = 0

    # Writes

    def load_patterns(self, address: int, patterns: list[int], stream: str = "") -> None:
        """One copy from pageable memory, by the plain call or in a stream."""
        data = b"".join(pattern(number).data for number in patterns)
        if stream:
            check(driver.cuMemcpyHtoDAsync(address, data, len(data), self.stream(stream)))
            self.sync(stream)
        else:
            check(driver.cuMemcpyHtoD(address, data, len(data)))

    def load_part(self, address: int, number: int, offset: int, nbytes: int) -> None:
        """Bytes of one pattern, repeated where it ends."""
        data = (pattern(number).data * 2)[offset : offset + nbytes]
        check(driver.cuMemcpyHtoD(address, data, nbytes))

    def load_pinned_in(self, address: int, patterns: list[int], stream: str) -> None:
        pinned = self.pinned(patterns)
        size = len(patterns) * PAGE
        check(driver.cuMemcpyHtoDAsync(address, pinned, size, self.stream(stream)))
        self.sync(stream)
        check(driver.cuMemFreeHost(pinned))

    def pinned(self, patterns: list[int]) -> int:
        """Host memory that the driver knows, with those pages."""
        data = b"".join(pattern(number).data for number in patterns)
        address = int(check(driver.cuMemAllocHost(len(data))))
        ctypes.memmove(address, data, len(data))
        return address

    def memset_and_wait(self, address: int, value: int, words: int, stream: str) -> None:
        self.memset(address, value, words, stream)
        self.sync(stream)

    def launch_and_wait(self, name: str, values: list[int], types: str, stream: str) -> None:
        self.launch(name, values, types, stream)
        self.sync(stream)

    # Reads

    def hashes_of(self, ranges: list[list[int]]) -> list[int]:
        """XXH3-128 of all pages of [address, pages] ranges, by the copy engine."""
        found = []
        for address, pages in ranges:
            buffer = bytearray(pages * PAGE)
            view = memoryview(buffer)
            at = ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))
            check(driver.cuMemcpyDtoH(at, address, len(buffer)))
            found += [
                xxhash.xxh3_128_intdigest(view[at : at + PAGE])
                for at in range(0, len(buffer), PAGE)
            ]
        return found

    def behind(self, address: int, pages: int, work: str, write: list[int]) -> list[int]:
        """Hashes by a read that is enqueued while a kernel keeps the stream busy; between the
        two a kernel may write a word, or a copy a page: write is page, offset and value."""
        page, offset, value = write
        size = pages * PAGE
        into = int(check(driver.cuMemAllocHost(size)))
        source = self.pinned([value])
        flag = self.hold(BEHIND)
        if work == "kernel":
            self.write_kernel(address, [page], offset, value, BEHIND)
        elif work == "copy":
            at = address + page * PAGE
            check(driver.cuMemcpyHtoDAsync(at, source, PAGE, self.stream(BEHIND)))
        check(driver.cuMemcpyDtoHAsync(into, address, size, self.stream(BEHIND)))
        self.let_go(flag)
        return self.collect(into, pages, BEHIND, [source, flag])

    def overtake(self, address: int, into: int, work: str, value: int) -> None:
        """While a kernel that is to copy the page elsewhere is pending, enqueue the write of
        another page over it."""
        source = self.pinned([value])
        flag = self.hold(BEHIND)
        self.launch("copy", [into, address, PAGE], "QQQ", BEHIND)
        if work == "copy":
            check(driver.cuMemcpyHtoDAsync(address, source, PAGE, self.stream(BEHIND)))
        else:
            self.memset(address, value, PAGE // 4, BEHIND)
        self.let_go(flag)
        self.sync(BEHIND)
        for pinned in (source, flag):
            check(driver.cuMemFreeHost(pinned))

    def beside(self, address: int, pages: int) -> list[int]:
        """Hashes by a read in one stream while a kernel keeps another one busy."""
        into = int(check(driver.cuMemAllocHost(pages * PAGE)))
        flag = self.hold(BEHIND)
        check(driver.cuMemcpyDtoHAsync(into, address, pages * PAGE, self.stream(BESIDE)))
        self.sync(BESIDE)
        self.let_go(flag)
        return self.collect(into, pages, BEHIND, [flag])

    def collect(self, into: int, pages: int, stream: str, pinned: list[int]) -> list[int]:
        self.sync(stream)
        found = [
            xxhash.xxh3_128_intdigest(ctypes.string_at(into + at * PAGE, PAGE))
            for at in range(pages)
        ]
        for address in (into, *pinned):
            check(driver.cuMemFreeHost(address))
        return found

    # Work that is never waited for: the process is about to die

    def leave_pending(self, address: int, pages: int, offset: int, value: int) -> None:
        self.hold(BEHIND)
        self.write_kernel(address, list(range(pages)), offset, value, BEHIND)

    # Graphs

    def make_graph(self, address: int, value: int, words: int) -> int:
        """A graph of one set; it stays, instantiated."""
        graph = check(driver.cuGraphCreate(0))
        node = driver.CUDA_MEMSET_NODE_PARAMS()
        node.dst, node.value, node.elementSize, node.width, node.height = (
            address,
            value,
            4,
            words,
            1,
        )
        check(driver.cuGraphAddMemsetNode(graph, None, 0, node, self.context))
        self.graph_count += 1
        self.graphs[self.graph_count] = check(driver.cuGraphInstantiate(graph, 0))
        check(driver.cuGraphDestroy(graph))
        return self.graph_count

    def launch_graph(self, number: int) -> None:
        check(driver.cuGraphLaunch(self.graphs[number], self.stream(BESIDE)))
        self.sync(BESIDE)

    def drop_graph(self, number: int) -> None:
        check(driver.cuGraphExecDestroy(self.graphs.pop(number)))

    # The daemon

    def settle(self) -> None:
        """Returns once gksmd has taken in all that this process told it: its answer to
        the promise that an allocation asks for comes after that."""
        check(driver.cuMemFree(check(driver.cuMemAlloc(PAGE))))

    def shared_map(self, ranges: list[list[int]]) -> list[bool]:
        """Of each page, whether it is a published one."""
        return [
            self.shared_pages(address + page * PAGE, 1) == 1
            for address, pages in ranges
            for page in range(pages)
        ]


if __name__ == "__main__":
    actor.main(ModelActor())
