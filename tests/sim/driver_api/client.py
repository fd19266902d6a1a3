# SPDX-License-Identifier: Apache-2.0
"""What the client programs share. Not a program itself."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

PAGE = 2 << 20
OK = cu.CUresult.CUDA_SUCCESS
ERROR = cu.CUresult
BUILTIN = b"simcuda builtin"

# The types of a built-in kernel's parameters, as simcuda/kernels.h declares them.
U32, U64 = ctypes.c_uint32, ctypes.c_uint64
SIGNATURES = {
    "fill": (U64, U64, U32),
    "add": (U64, U64, U64, U64),
    "sum": (U64, U64, U64),
    "copy": (U64, U64, U64),
    "write_pages": (U64, U64, U64, U64, U64, U32),
    "spin_until": (U64, U32),
    "hash": (U64, U64, U64),
    "compare": (U64, U64, U64, U64),
}


def ok(answer: tuple[Any, ...]) -> Any:
    """What a call answered beside its success."""
    assert answer[0] == OK, answer[0]
    rest = answer[1:]
    return rest[0] if len(rest) == 1 else rest


def fails(answer: tuple[Any, ...], expected: cu.CUresult) -> None:
    """The call failed, and in the way it had to."""
    assert answer[0] == expected, answer[0]


def context(device: int = 0) -> cu.CUcontext:
    """A context of this program's own, current."""
    ok(cu.cuInit(0))
    return ok(cu.cuCtxCreate(None, 0, device))


def stream(*, blocking: bool = False) -> cu.CUstream:
    flags = cu.CUstream_flags.CU_STREAM_DEFAULT if blocking else 1
    return ok(cu.cuStreamCreate(int(flags)))


def alloc(size: int) -> int:
    return int(ok(cu.cuMemAlloc(size)))


def upload(address: int, data: np.ndarray) -> None:
    ok(cu.cuMemcpyHtoD(address, data, data.nbytes))


def download(address: int, count: int, dtype: Any = np.uint32) -> np.ndarray:
    data = np.zeros(count, dtype)
    ok(cu.cuMemcpyDtoH(data, address, data.nbytes))
    return data


@cache
def module_of(_context: int) -> cu.CUmodule:
    """Loaded once: loading waits for all work of the context, as on a real device."""
    return ok(cu.cuModuleLoadData(BUILTIN))


def kernel(name: str) -> cu.CUfunction:
    module = module_of(int(ok(cu.cuCtxGetCurrent())))
    return ok(cu.cuModuleGetFunction(module, name.encode()))


def launch(name: str, on: Any, *arguments: int) -> None:
    """Launches a built-in kernel of one thread."""
    parameters = (arguments, SIGNATURES[name])
    ok(cu.cuLaunchKernel(kernel(name), 1, 1, 1, 1, 1, 1, 0, on, parameters, 0))


def kernel_node(name: str, *arguments: int) -> cu.CUDA_KERNEL_NODE_PARAMS:
    params = cu.CUDA_KERNEL_NODE_PARAMS()
    params.func = kernel(name)
    params.gridDimX = params.gridDimY = params.gridDimZ = 1
    params.blockDimX = params.blockDimY = params.blockDimZ = 1
    params.kernelParams = (arguments, SIGNATURES[name])
    return params


def memset_node(address: int, value: int, width: int) -> cu.CUDA_MEMSET_NODE_PARAMS:
    params = cu.CUDA_MEMSET_NODE_PARAMS()
    params.dst, params.value, params.elementSize = address, value, 4
    params.width, params.height = width, 1
    return params


def copy_node(to: int, source: int, size: int) -> cu.CUDA_MEMCPY3D:
    params = cu.CUDA_MEMCPY3D()
    params.srcMemoryType = params.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
    params.srcDevice, params.dstDevice = source, to
    params.WidthInBytes, params.Height, params.Depth = size, 1, 1
    return params


def run_graph(graph: cu.CUgraph, on: Any = 0) -> cu.CUgraphExec:
    """Instantiates, launches and waits."""
    instance = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphLaunch(instance, on))
    ok(cu.cuStreamSynchronize(on))
    return instance


def host_function(function: Callable[[], None]) -> tuple[Any, cu.CUhostFn]:
    """A callback for the driver, and what keeps it alive."""
    kept = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: function())
    return kept, cu.CUhostFn(ctypes.cast(kept, ctypes.c_void_p).value)


class Flag:
    """A word that a spinning kernel watches, in memory that both sides see."""

    def __init__(self) -> None:
        self.address = int(ok(cu.cuMemHostAlloc(4, 0)))
        self.word = U32.from_address(self.address)
        self.word.value = 0

    def hold(self, on: Any) -> None:
        """Nothing behind this runs in the stream until `release`."""
        launch("spin_until", on, self.address, 1)

    def release(self) -> None:
        self.word.value = 1


@contextmanager
def read_only_page() -> Iterable[int]:
    """One mapped page of device memory that nothing may write."""
    properties = cu.CUmemAllocationProp()
    properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    handle = ok(cu.cuMemCreate(PAGE, properties, 0))
    address = ok(cu.cuMemAddressReserve(PAGE, 0, 0, 0))
    ok(cu.cuMemMap(address, PAGE, 0, handle, 0))
    rights = cu.CUmemAccessDesc()
    rights.location = properties.location
    rights.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
    ok(cu.cuMemSetAccess(address, PAGE, [rights], 1))
    yield int(address)
