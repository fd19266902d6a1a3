# SPDX-License-Identifier: Apache-2.0
"""A client of gksmd that can also lie about what it publishes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import xxhash
from gksm_bench import peer
from gksm_bench.driver import check, driver
from gksmd import protocol
from gksmd.protocol import lib
from gksmd.wire import close_all

from tests.support.pages import PAGE, content


class Peer(peer.Peer):
    """Looks up and publishes pages by the seed of their bytes."""

    def lookup(self, gpu: int, seed: int) -> Any:
        """LOOKUP of the page that belongs to `seed`; descriptors are closed."""
        message = self.ask(
            lib.GKSM_LOOKUP,
            head=protocol.LOOKUP.build(gpu=gpu),
            entries=page_hash(seed),
            entry_bytes=protocol.LOOKUP_ENTRY.size,
        )
        close_all(message.fds)
        return protocol.LOOKUP_RESULT.read(message.entries[: message.entry_bytes])

    def publish(self, gpu: int, token: int, seed: int, fd: int) -> int:
        """PUBLISH a descriptor as the page of `seed`; the status."""
        message = self.ask(
            lib.GKSM_PUBLISH,
            [fd],
            head=protocol.PUBLISH.build(gpu=gpu),
            entries=token.to_bytes(8, "little") + page_hash(seed) + bytes(16),
            entry_bytes=protocol.PUBLISH_ENTRY.size,
        )
        return int(protocol.PUBLISH_RESULT.read(message.entries[: message.entry_bytes]).status)


def page_hash(seed: int) -> bytes:
    """struct gksm_hash128 of the page that belongs to `seed`."""
    return xxhash.xxh3_128(content(seed)).intdigest().to_bytes(16, "little")


class Device:
    """The simulated GPU, used without libgksm: makes pages and exports them."""

    def __init__(self) -> None:
        check(driver.cuInit(0))
        self.device = check(driver.cuDeviceGet(0))
        check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(self.device))))

    @property
    def uuid(self) -> bytes:
        """As GPU_OPEN wants it."""
        answer = check(driver.cuDeviceGetUuid(self.device))
        return bytes(answer.bytes)[:16]

    def export_page(self, seed: int) -> int:
        """The descriptor of a new page with the bytes of `seed`."""
        prop = driver.CUmemAllocationProp()
        prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        prop.location.id = 0
        fd_type = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        prop.requestedHandleTypes = fd_type
        handle = check(driver.cuMemCreate(PAGE, prop, 0))
        address = check(driver.cuMemAddressReserve(PAGE, PAGE, 0, 0))
        check(driver.cuMemMap(address, PAGE, 0, handle, 0))
        access = driver.CUmemAccessDesc()
        access.location = prop.location
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        check(driver.cuMemSetAccess(address, PAGE, [access], 1))
        check(driver.cuMemcpyHtoD(address, content(seed), PAGE))
        return int(check(driver.cuMemExportToShareableHandle(handle, fd_type, 0)))


def main() -> None:
    """Publish one page under another's hash, say `published`, stay until input ends."""
    path, claimed, real = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    device = Device()
    peer = Peer(path)
    peer.hello()
    gpu = peer.open_gpu(device.uuid).gpu
    result = peer.lookup(gpu, claimed)
    if result.outcome != lib.GKSM_LOOKUP_LEASE:
        sys.exit(f"LOOKUP gave {result.outcome}, no lease")
    fd = device.export_page(real)
    status = peer.publish(gpu, result.token, claimed, fd)
    os.close(fd)
    print("published" if status == 0 else f"refused {status}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
