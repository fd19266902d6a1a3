# SPDX-License-Identifier: Apache-2.0
"""Copies, sets and stream operations."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

from tests.support.api.base import (
    IN_STREAM_ORDER,
    PATTERN,
    PITCH,
    ROWS,
    SIZE,
    WORD,
    Api,
    Expected,
    Writer,
    both,
)
from tests.support.cuda_structs import (
    DEVICE,
    HOST,
    POINTER_OPERAND,
    UNIFIED,
    WRITE_32,
    WRITE_64,
    BatchOperation,
    Copy2D,
    Copy3D,
    CopyAttributes,
    MemOperation,
    Operand,
    Pointer,
)

# Linear copies


def linear(name: str, source: str, extra: tuple[Any, ...] = ()) -> Writer:
    def write(api: Api, at: int) -> Expected:
        origin = api.host if source == "host" else api.device
        stream = (api.stream if extra else 0,) if "Async" in name else ()
        api.call(name, at, origin, SIZE, *extra, *stream)
        return {0: PATTERN[:SIZE]}

    return write


def peer(name: str) -> Writer:
    def write(api: Api, at: int) -> Expected:
        stream = (0,) if "Async" in name else ()
        api.call(name, at, api.context, api.device, api.context, SIZE, *stream)
        return {0: PATTERN[:SIZE]}

    return write


def from_array(name: str) -> Writer:
    def write(api: Api, at: int) -> Expected:
        array = array_with_pattern(api)
        api.call(name, at, array, 0, SIZE)
        api.call("cuArrayDestroy", array)
        return {0: PATTERN[:SIZE]}

    return write


def array_with_pattern(api: Api) -> int:
    class Descriptor(ctypes.Structure):
        _fields_ = (
            ("Width", c_size_t),
            ("Height", c_size_t),
            ("Format", c_int),
            ("NumChannels", ctypes.c_uint),
        )

    unsigned_int8 = 1
    descriptor = Descriptor(Width=SIZE, Height=0, Format=unsigned_int8, NumChannels=1)
    array = int(api.out(c_void_p, "cuArrayCreate_v2", byref(descriptor)))
    api.call("cuMemcpyHtoA_v2", array, 0, api.host, SIZE)
    return array


# Pitched copies


def pitched(kind: Any, at: int, source: int, source_type: int, context: int) -> Any:
    copy = kind(
        srcMemoryType=source_type,
        srcPitch=SIZE,
        dstMemoryType=DEVICE,
        dstDevice=at,
        dstPitch=PITCH,
        WidthInBytes=SIZE,
        Height=ROWS,
    )
    if source_type == HOST:
        copy.srcHost = source
    else:
        copy.srcDevice = source
    if kind is Copy3D:
        copy.srcHeight = copy.dstHeight = ROWS
        copy.Depth = 1
        copy.srcContext = copy.dstContext = context
    return copy


def rows(name: str, kind: Any, source_type: int) -> Writer:
    def write(api: Api, at: int) -> Expected:
        source = ctypes.addressof(api.host) if source_type == HOST else api.device
        context = api.context if "Peer" in name else 0
        copy = pitched(kind, at, source, source_type, context)
        api.call(name, byref(copy), *((0,) if "Async" in name else ()))
        return api.rows()

    return write


def operation(at: int, source: int) -> BatchOperation:
    def operand(address: int, row: int) -> Operand:
        return Operand(type=POINTER_OPERAND, pointer=Pointer(ptr=address, rowLength=row))

    return BatchOperation(
        src=operand(source, SIZE),
        dst=operand(at, PITCH),
        width=SIZE,
        height=ROWS,
        depth=1,
        order=IN_STREAM_ORDER,
    )


def operand_rows(name: str) -> Writer:
    def write(api: Api, at: int) -> Expected:
        api.call(name, byref(operation(at, api.device)), 0, api.stream)
        return api.rows()

    return write


# Batches


def batch(name: str) -> Writer:
    def write(api: Api, at: int) -> Expected:
        targets = (c_uint64 * 2)(at, at + PITCH)
        sources = (c_uint64 * 2)(api.device, api.device + SIZE)
        sizes = (c_size_t * 2)(SIZE, SIZE)
        attributes = CopyAttributes(order=IN_STREAM_ORDER)
        first, failed = c_size_t(0), c_size_t(0)
        failure = () if "_v2" in name else (byref(failed),)
        api.call(
            name, targets, sources, sizes, 2, byref(attributes), byref(first), 1, *failure,
            api.stream,
        )  # fmt: skip
        return {0: PATTERN[:SIZE], PITCH: PATTERN[SIZE : 2 * SIZE]}

    return write


def batch_3d(name: str) -> Writer:
    def write(api: Api, at: int) -> Expected:
        failed = c_size_t(0)
        failure = () if "_v2" in name else (byref(failed),)
        api.call(name, 1, byref(operation(at, api.device)), *failure, 0, api.stream)
        return api.rows()

    return write


# Sets and stream operations


def memset(name: str, element: int) -> Writer:
    value = WORD & (1 << 8 * element) - 1
    unit = value.to_bytes(element, "little")

    def write(api: Api, at: int) -> Expected:
        stream = (0,) if "Async" in name else ()
        if "D2D" in name:
            api.call(name, at, PITCH, value, SIZE // element, ROWS, *stream)
            return {row * PITCH: unit * (SIZE // element) for row in range(ROWS)}
        api.call(name, at, value, SIZE // element, *stream)
        return {0: unit * (SIZE // element)}

    return write


def write_value(name: str, size: int) -> Writer:
    value = WORD & (1 << 8 * size) - 1

    def write(api: Api, at: int) -> Expected:
        api.call(name, 0, at, value, 0)
        return {0: value.to_bytes(size, "little")}

    return write


def operations(at: int) -> Any:
    return (MemOperation * 2)(
        MemOperation(operation=WRITE_32, address=at, value=WORD & 0xFFFF_FFFF),
        MemOperation(operation=WRITE_64, address=at + 64, value=WORD),
    )


OPERATIONS_LEAVE: Expected = {
    0: (WORD & 0xFFFF_FFFF).to_bytes(4, "little"),
    64: WORD.to_bytes(8, "little"),
}


def batch_mem_op(name: str) -> Writer:
    def write(api: Api, at: int) -> Expected:
        api.call(name, 0, 2, operations(at), 0)
        return OPERATIONS_LEAVE

    return write


def writers() -> dict[str, Writer]:
    """By name: the entry point's, or what is done with several."""
    found: dict[str, Writer] = {}
    for sync, asynchronous in (
        ("cuMemcpyHtoD_v2", "cuMemcpyHtoDAsync_v2"),
        ("cuMemcpyDtoD_v2", "cuMemcpyDtoDAsync_v2"),
    ):
        source = "host" if "HtoD" in sync else "device"
        for name in both(sync, "_ptds") + both(asynchronous, "_ptsz"):
            found[name] = linear(name, source)
    for name in both("cuMemcpy", "_ptds") + both("cuMemcpyAsync", "_ptsz"):
        found[f"{name} from the host"] = linear(name, "host")
        found[f"{name} on the device"] = linear(name, "device")
    for name in both("cuMemcpyWithAttributesAsync", "_ptsz"):
        attributes = CopyAttributes(order=IN_STREAM_ORDER)
        found[name] = linear(name, "device", (byref(attributes),))
    for name in both("cuMemcpyPeer", "_ptds") + both("cuMemcpyPeerAsync", "_ptsz"):
        found[name] = peer(name)
    for name in both("cuMemcpyAtoD_v2", "_ptds"):
        found[name] = from_array(name)
    for name, kind in (
        *((name, Copy2D) for name in both("cuMemcpy2D_v2", "_ptds")),
        *((name, Copy2D) for name in both("cuMemcpy2DUnaligned_v2", "_ptds")),
        *((name, Copy2D) for name in both("cuMemcpy2DAsync_v2", "_ptsz")),
        *((name, Copy3D) for name in both("cuMemcpy3D_v2", "_ptds")),
        *((name, Copy3D) for name in both("cuMemcpy3DAsync_v2", "_ptsz")),
    ):
        found[f"{name} from the host"] = rows(name, kind, HOST)
        found[f"{name} on the device"] = rows(name, kind, DEVICE)
        found[f"{name} of unified addresses"] = rows(name, kind, UNIFIED)
    for name in both("cuMemcpy3DPeer", "_ptds") + both("cuMemcpy3DPeerAsync", "_ptsz"):
        found[name] = rows(name, Copy3D, DEVICE)
    for name in both("cuMemcpy3DWithAttributesAsync", "_ptsz"):
        found[name] = operand_rows(name)
    for version in ("", "_v2"):
        for name in both("cuMemcpyBatchAsync" + version, "_ptsz"):
            found[name] = batch(name)
        for name in both("cuMemcpy3DBatchAsync" + version, "_ptsz"):
            found[name] = batch_3d(name)
    for element in (1, 2, 4):
        for shape in ("D", "D2D"):
            base = f"cuMemset{shape}{8 * element}"
            for name in both(base + "_v2", "_ptds") + both(base + "Async", "_ptsz"):
                found[name] = memset(name, element)
    for version in ("", "_v2"):
        for size in (4, 8):
            for name in both(f"cuStreamWriteValue{8 * size}{version}", "_ptsz"):
                found[name] = write_value(name, size)
        for name in both(f"cuStreamBatchMemOp{version}", "_ptsz"):
            found[name] = batch_mem_op(name)
    return found
