# SPDX-License-Identifier: Apache-2.0
"""Copies from device memory."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_void_p
from typing import Any

from tests.support.api.base import ROWS, SIZE, Api, Reader, both
from tests.support.api.graphs import instantiate, run
from tests.support.api.writers import array_with_pattern
from tests.support.cuda_structs import DEVICE, HOST, Copy2D, Copy3D

# Readers


def read_linear(name: str, *, to_device: bool = False) -> Reader:
    def read(api: Api, at: int) -> bytes:
        host = ctypes.create_string_buffer(SIZE)
        stream = (0,) if "Async" in name else ()
        target: Any = api.device + 8192 if to_device else host
        api.call(name, target, at, SIZE, *stream)
        api.sync()
        if to_device:
            api.call("cuMemcpyDtoH_v2", host, api.device + 8192, SIZE)
        return host.raw

    return read


def read_rows(name: str, kind: Any) -> Reader:
    def read(api: Api, at: int) -> bytes:
        host = ctypes.create_string_buffer(SIZE)
        copy = kind(
            srcMemoryType=DEVICE,
            srcDevice=at,
            srcPitch=SIZE // ROWS,
            dstMemoryType=HOST,
            dstHost=ctypes.addressof(host),
            dstPitch=SIZE // ROWS,
            WidthInBytes=SIZE // ROWS,
            Height=ROWS,
        )
        if kind is Copy3D:
            copy.srcHeight = copy.dstHeight = ROWS
            copy.Depth = 1
        api.call(name, byref(copy), *((0,) if "Async" in name else ()))
        api.sync()
        return host.raw

    return read


def read_to_array(name: str) -> Reader:
    def read(api: Api, at: int) -> bytes:
        array = array_with_pattern(api)
        host = ctypes.create_string_buffer(SIZE)
        api.call(name, array, 0, at, SIZE)
        api.sync()
        api.call("cuMemcpyAtoH_v2", host, array, 0, SIZE)
        api.call("cuArrayDestroy", array)
        return host.raw

    return read


def read_by_graph(api: Api, at: int) -> bytes:
    host = ctypes.create_string_buffer(SIZE)
    copy = Copy3D(
        srcMemoryType=DEVICE,
        srcDevice=at,
        srcPitch=SIZE,
        srcHeight=1,
        dstMemoryType=HOST,
        dstHost=ctypes.addressof(host),
        dstPitch=SIZE,
        dstHeight=1,
        WidthInBytes=SIZE,
        Height=1,
        Depth=1,
    )
    handle = api.out(c_void_p, "cuGraphCreate", 0)
    api.out(c_void_p, "cuGraphAddMemcpyNode", handle, None, 0, byref(copy), api.context)
    run(api, instantiate(api, handle))
    api.call("cuGraphDestroy", handle)
    return host.raw


def readers() -> dict[str, Reader]:
    """By name: the entry point's."""
    found: dict[str, Reader] = {}
    for name in both("cuMemcpyDtoH_v2", "_ptds") + both("cuMemcpyDtoHAsync_v2", "_ptsz"):
        found[name] = read_linear(name)
    for name in both("cuMemcpyDtoD_v2", "_ptds") + both("cuMemcpyDtoDAsync_v2", "_ptsz"):
        found[name] = read_linear(name, to_device=True)
    for name in both("cuMemcpy", "_ptds") + both("cuMemcpyAsync", "_ptsz"):
        found[f"{name} to the host"] = read_linear(name)
        found[f"{name} on the device"] = read_linear(name, to_device=True)
    for name in both("cuMemcpyDtoA_v2", "_ptds"):
        found[name] = read_to_array(name)
    for name in (
        *both("cuMemcpy2D_v2", "_ptds"),
        *both("cuMemcpy2DUnaligned_v2", "_ptds"),
        *both("cuMemcpy2DAsync_v2", "_ptsz"),
    ):
        found[name] = read_rows(name, Copy2D)
    for name in both("cuMemcpy3D_v2", "_ptds") + both("cuMemcpy3DAsync_v2", "_ptsz"):
        found[name] = read_rows(name, Copy3D)
    found["a memcpy node's source"] = read_by_graph
    return found
