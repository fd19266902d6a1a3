# SPDX-License-Identifier: Apache-2.0
"""An actor that can be told to use one entry point (`python -m tests.support.entry_points`)."""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

from gksm_bench.driver import CudaError

from tests.support import actor
from tests.support.actor import Actor
from tests.support.api.base import SIZE, WORD, Api, Writer
from tests.support.api.graphs import add_memset, graph_writers, instantiate
from tests.support.api.launches import Arguments, launchers
from tests.support.api.readers import readers
from tests.support.api.writers import writers
from tests.support.cuda_structs import AccessDesc, AllocationProp, UpdateResult
from tests.support.network_card import Registration
from tests.support.pages import PAGE, digest


def all_writers() -> dict[str, Writer]:
    """Those that write when called, and those that write when a graph is launched."""
    return writers() | graph_writers()


class EntryPointActor(Actor):
    """An actor that can be told to use one entry point."""

    def prepare(self) -> None:
        self.api = Api(int(self.context))
        self.cards: dict[int, Registration] = {}

    def write_by(self, name: str, address: int) -> dict[str, str]:
        """What now stands where: {offset: bytes in hex}."""
        left = all_writers()[name](self.api, address)
        self.api.sync()
        return {str(offset): data.hex() for offset, data in left.items()}

    def read_by(self, name: str, address: int) -> str:
        return readers()[name](self.api, address).hex()

    def launch_by(self, name: str, address: int) -> dict[str, str]:
        """A kernel that writes one word at the address."""
        function = int(self.function("write_pages"))
        launchers()[name](self.api, function, Arguments(address))
        self.api.sync()
        return {"0": (WORD & 0xFFFF_FFFF).to_bytes(4, "little").hex()}

    # Questions

    def status(self, name: str, *arguments: int) -> int:
        """The CUresult of a call with integer arguments."""
        try:
            self.api.call(name, *arguments)
        except CudaError as error:
            return error.code
        return 0

    def range_of(self, address: int) -> list[int]:
        base, size = c_uint64(), c_size_t()
        self.api.call("cuMemGetAddressRange_v2", byref(base), byref(size), address)
        self.api.call("cuMemGetAddressRange_v2", None, byref(size), address)
        self.api.call("cuMemGetAddressRange_v2", byref(base), None, address)
        return [base.value, size.value]

    def attribute(self, attribute: int, address: int) -> list[Any]:
        """[CUresult, what is in 16 bytes of 0xEE afterwards]."""
        data = ctypes.create_string_buffer(b"\xee" * 16, 16)
        code = self.status("cuPointerGetAttribute", ctypes.addressof(data), attribute, address)
        return [code, data.raw.hex()]

    def attributes(self, wanted: list[int], address: int) -> list[Any]:
        """The same by one call for many: [CUresult, [bytes, ...]]."""
        buffers = [ctypes.create_string_buffer(b"\xee" * 16, 16) for _ in wanted]
        pointers = (c_void_p * len(wanted))(*map(ctypes.addressof, buffers))
        names = (c_int * len(wanted))(*wanted)
        code = self.status(
            "cuPointerGetAttributes",
            len(wanted),
            ctypes.addressof(names),
            ctypes.addressof(pointers),
            address,
        )
        return [code, [buffer.raw.hex() for buffer in buffers]]

    def ipc_handle(self, address: int) -> int:
        handle = ctypes.create_string_buffer(64)
        return self.status("cuIpcGetMemHandle", ctypes.addressof(handle), address)

    def retain_handle(self, address: int) -> int:
        handle = c_uint64()
        code = self.status("cuMemRetainAllocationHandle", ctypes.addressof(handle), address)
        if code == 0:
            self.api.call("cuMemRelease", handle.value)
        return code

    def create_own(self, place: int, number: int, handle_types: int) -> list[int]:
        """[CUresult of cuMemCreate for a place, what its handle says it is...]."""
        handle, said = c_uint64(), AllocationProp()
        prop = AllocationProp(type=1, handle_types=handle_types, location=(place, number))
        code = self.status("cuMemCreate", ctypes.addressof(handle), PAGE, ctypes.addressof(prop), 0)
        if code:
            return [code]
        self.own = handle.value
        self.api.call("cuMemGetAllocationPropertiesFromHandle", byref(said), self.own)
        location = said.location
        return [code, said.type, said.handle_types, location.type, location.id, said.flags.rdma]

    def allocation_status(self, nbytes: int) -> int:
        """The CUresult of an allocation that is not to succeed."""
        address = c_uint64()
        return self.status("cuMemAlloc_v2", ctypes.addressof(address), nbytes)

    def without_context(self, method: str, *arguments: int) -> Any:
        """Run a command on a thread that has no current context."""
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(getattr(self, method)(*arguments)))
        thread.start()
        thread.join()
        return answers[0]

    def export_own(self) -> list[int]:
        """The CUresults of exporting the handle made last, as a descriptor and as FABRIC."""
        fd, fabric = c_int(-1), ctypes.create_string_buffer(64)
        codes = [
            self.status("cuMemExportToShareableHandle", ctypes.addressof(room), self.own, kind, 0)
            for kind, room in ((1, fd), (8, fabric))
        ]
        if fd.value >= 0:
            os.close(fd.value)
        return codes

    def use_own(self, word: int) -> list[int]:
        """Map the handle made last, write a word there and read it; gives it all back."""
        base = int(self.api.out(c_uint64, "cuMemAddressReserve", PAGE, 0, 0, 0))
        rights = AccessDesc(location=(1, 0), flags=3)
        self.api.call("cuMemMap", base, PAGE, 0, self.own, 0)
        self.api.call("cuMemSetAccess", base, PAGE, byref(rights), 1)
        self.write_words(base, word, 1)
        found = self.read_words(base, 2)
        self.api.call("cuMemUnmap", base, PAGE)
        self.api.call("cuMemAddressFree", base, PAGE)
        self.api.call("cuMemRelease", self.own)
        return found

    def device_attribute(self, attribute: int) -> list[int]:
        """[CUresult, value or -1]."""
        value = c_int(-1)
        code = self.status("cuDeviceGetAttribute", ctypes.addressof(value), attribute, 0)
        return [code, value.value]

    def sync_memops(self, address: int) -> None:
        """What a program does before it registers memory with a NIC."""
        sync_memops = 6
        value = ctypes.c_uint(1)
        self.api.call("cuPointerSetAttribute", byref(value), sync_memops, address)

    def range_handle(self, address: int, nbytes: int) -> int:
        """A dma-buf for the range; the CUresult."""
        dma_buf = 1
        handle = c_int(-1)
        arguments = (ctypes.addressof(handle), address, nbytes, dma_buf, 0)
        return self.status("cuMemGetHandleForAddressRange", *arguments)

    def register(self, address: int, nbytes: int) -> int:
        """Let a network card at the range; a number for the `card_` commands."""
        dma_buf = 1
        handle = c_int(-1)
        self.api.call("cuMemGetHandleForAddressRange", byref(handle), address, nbytes, dma_buf, 0)
        self.cards[handle.value] = Registration(handle.value)
        return handle.value

    def card_digests(self, card: int) -> list[str]:
        data = self.cards[card].read()
        return [digest(data[at : at + PAGE]) for at in range(0, len(data), PAGE)]

    def card_write(self, card: int, at: int, word: int) -> None:
        self.cards[card].write(at, word.to_bytes(4, "little"))

    def deregister(self, card: int) -> None:
        self.cards.pop(card).close()

    def context_handle(self) -> int:
        return self.api.context

    # Graphs that stay

    def make_graph(self, address: int) -> list[int]:
        """[graph, instantiated graph] with one set at the address."""
        handle = int(self.api.out(c_void_p, "cuGraphCreate", 0))
        add_memset(self.api, handle, address)
        return [handle, instantiate(self.api, handle)]

    def launch_graph(self, executable: int) -> None:
        self.api.call("cuGraphLaunch", executable, 0)
        self.api.sync()

    def update_graph(self, executable: int, graph_: int) -> None:
        self.api.call("cuGraphExecUpdate_v2", executable, graph_, byref(UpdateResult()))

    def destroy_executable(self, executable: int) -> None:
        self.api.call("cuGraphExecDestroy", executable)

    # Streams

    def stream_made(self, name: str) -> str:
        self.stream(name)
        return name

    def destroy_stream(self, name: str) -> int:
        """What was its handle."""
        handle = int(self.streams.pop(name))
        self.api.call("cuStreamDestroy_v2", handle)
        return handle

    def begin_capture(self, name: str, mode: int) -> None:
        self.api.call("cuStreamBeginCapture_v2", int(self.stream(name)), mode)

    def end_capture(self, name: str) -> int:
        """How many nodes were recorded."""
        handle, nodes = c_void_p(), c_size_t()
        self.api.call("cuStreamEndCapture", int(self.stream(name)), byref(handle))
        self.api.call("cuGraphGetNodes", handle, None, byref(nodes))
        self.api.call("cuGraphDestroy", handle)
        return nodes.value

    def set_in(self, name: str, address: int) -> None:
        self.api.call("cuMemsetD8Async", address, 0xA5, SIZE, int(self.stream(name)))

    def hold_per_thread(self) -> int:
        """Like `hold`, in the per-thread stream of a thread that stays; its number for `end`."""
        started = threading.Event()
        flags: list[int] = []

        def work() -> int:
            flags.append(self.hold("per-thread"))
            started.set()
            self.sync("per-thread")
            return flags[0]

        self.held_work = work
        self.begin("held_work")
        started.wait()
        return flags[0]


if __name__ == "__main__":
    actor.main(EntryPointActor())
