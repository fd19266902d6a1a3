# SPDX-License-Identifier: Apache-2.0
"""An actor that hands memory to other processes and GPUs (`python -m tests.support.neighbours`).

Beside the device it starts on it can use others: `use` says which is current.
"""

from __future__ import annotations

import ctypes
from typing import Any

from gksm_bench.demo.kernels import BUILTIN_IMAGE
from gksm_bench.driver import CudaError, check, driver

from tests.support import actor
from tests.support.entry_points import EntryPointActor

LAZY_PEER_ACCESS = 1


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle, which goes by value."""

    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


class NeighbourActor(EntryPointActor):
    """The methods are the commands."""

    def init(self, device: int = 0) -> int:
        pid = super().init(device)
        self.contexts = {device: self.context}
        self.modules = {device: self.module}
        return pid

    # Other processes

    def ipc_get(self, address: int) -> str:
        """A handle of the memory, in hex."""
        handle = IpcHandle()
        self.driver_call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address))
        return bytes(handle.bytes).hex()

    def ipc_open(self, handle: str, flags: int = LAZY_PEER_ACCESS) -> int:
        wanted = IpcHandle.from_buffer_copy(bytes.fromhex(handle))
        opened = ctypes.c_uint64()
        self.driver_call("cuIpcOpenMemHandle_v2", ctypes.byref(opened), wanted, flags)
        return opened.value

    def ipc_close(self, address: int) -> None:
        check(driver.cuIpcCloseMemHandle(address))

    def driver_call(self, name: str, *arguments: Any) -> None:
        code = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
        if code != 0:
            raise CudaError(code, name)

    def records(self) -> str:
        """What libgksm has to say."""
        text = ctypes.create_string_buffer(65536)
        self.gksm().gksm_records(text, ctypes.c_size_t(len(text)))
        return text.value.decode()

    # Other GPUs

    def use(self, device: int) -> None:
        """Make the device's primary context current; its first use also retains it."""
        if device not in self.contexts:
            handle = check(driver.cuDeviceGet(device))
            self.contexts[device] = check(driver.cuDevicePrimaryCtxRetain(handle))
            check(driver.cuCtxSetCurrent(self.contexts[device]))
            self.modules[device] = check(driver.cuModuleLoadData(BUILTIN_IMAGE))
        self.context = self.contexts[device]
        self.module = self.modules[device]
        check(driver.cuCtxSetCurrent(self.context))

    def drop(self, device: int) -> None:
        """Release the device's primary context."""
        del self.contexts[device], self.modules[device]
        check(driver.cuDevicePrimaryCtxRelease(check(driver.cuDeviceGet(device))))

    def can_reach(self, device: int, peer: int) -> int:
        return int(check(driver.cuDeviceCanAccessPeer(device, peer)))

    def enable_peer(self, device: int) -> None:
        """The current context may reach that device's memory."""
        check(driver.cuCtxEnablePeerAccess(self.contexts[device], 0))

    def disable_peer(self, device: int) -> None:
        check(driver.cuCtxDisablePeerAccess(self.contexts[device]))

    def copy_peer(
        self, to: tuple[int, int], source: tuple[int, int], nbytes: int, stream: str = ""
    ) -> None:
        """cuMemcpyPeer, or with a stream cuMemcpyPeerAsync, between [address, device]."""
        ends = (to[0], self.contexts[to[1]], source[0], self.contexts[source[1]], nbytes)
        if stream:
            check(driver.cuMemcpyPeerAsync(*ends, self.stream(stream)))
        else:
            check(driver.cuMemcpyPeer(*ends))

    def mark(self, stream: str) -> int:
        """An event behind what is in the stream now."""
        event = check(driver.cuEventCreate(2))
        check(driver.cuEventRecord(event, self.stream(stream)))
        return int(event)

    def wait_mark(self, stream: str, event: int) -> None:
        """The stream, of any device, goes on behind the event."""
        check(driver.cuStreamWaitEvent(self.stream(stream), event, 0))

    def copy_kernel(self, to: int, source: int, nbytes: int) -> None:
        """A kernel of the current device copies."""
        self.launch("copy", [to, source, nbytes], "QQQ")


if __name__ == "__main__":
    actor.main(NeighbourActor())
