# SPDX-License-Identifier: Apache-2.0
"""Modules, functions, libraries and launches."""

from __future__ import annotations

import ctypes

import numpy as np
import xxhash
from cuda.bindings import driver as cu

from tests.sim.driver_api.client import (
    BUILTIN,
    ERROR,
    PAGE,
    SIGNATURES,
    Flag,
    alloc,
    context,
    download,
    fails,
    kernel,
    launch,
    ok,
    read_only_page,
    stream,
    upload,
)


def images_that_are_not_ours_are_refused() -> None:
    context()
    fails(cu.cuModuleLoadData(b"\x7fELF\x02\x01\x01"), ERROR.CUDA_ERROR_NO_BINARY_FOR_GPU)
    fails(cu.cuModuleLoadData(b"nonsense"), ERROR.CUDA_ERROR_INVALID_IMAGE)
    fails(cu.cuModuleLoad(b"/no/such/file"), ERROR.CUDA_ERROR_FILE_NOT_FOUND)
    module = ok(cu.cuModuleLoadData(BUILTIN))
    fails(cu.cuModuleGetFunction(module, b"no_such"), ERROR.CUDA_ERROR_NOT_FOUND)
    ok(cu.cuModuleUnload(module))
    fails(cu.cuModuleUnload(module), ERROR.CUDA_ERROR_INVALID_HANDLE)
    fails(cu.cuModuleGetFunction(module, b"fill"), ERROR.CUDA_ERROR_INVALID_HANDLE)


def kernels_compute() -> None:
    context()
    count = 100_001
    a, b, out, total = alloc(4 * count), alloc(4 * count), alloc(4 * count), alloc(8)
    launch("fill", 0, a, count, 5)
    upload(b, np.arange(count, dtype=np.uint32))
    launch("add", 0, out, a, b, count)
    launch("sum", 0, total, out, count)
    expected = np.arange(count, dtype=np.uint64) + 5
    assert (download(out, count) == expected).all()
    assert download(total, 1, np.uint64)[0] == expected.sum()
    launch("copy", 0, a, out, 4 * count)
    assert (download(a, count) == expected).all()


def page_kernels_agree_with_the_host() -> None:
    context()
    pages = np.random.default_rng(1).integers(0, 256, (3, PAGE), np.uint8)
    pages[2] = pages[0]
    base, hashes, equal = alloc(pages.nbytes), alloc(48), alloc(12)
    upload(base, pages)
    launch("hash", 0, hashes, base, 3)
    found = download(hashes, 6, np.uint64).reshape(3, 2)
    for page, (low, high) in zip(pages, found, strict=True):
        assert int(high) << 64 | int(low) == xxhash.xxh3_128_intdigest(page.tobytes())
    launch("compare", 0, equal, base, base + PAGE, 2)
    launch("compare", 0, equal + 8, base, base + 2 * PAGE, 1)
    assert download(equal, 3).tolist() == [0, 0, 1]
    launch("write_pages", 0, base, 0, 2, 2, 12, 0xABCD)
    pages.view(np.uint32)[[0, 2], 3] = 0xABCD
    assert (download(base, pages.size, np.uint8) == pages.reshape(-1)).all()


def packed_parameters_work_and_short_ones_are_refused() -> None:
    context()
    out = alloc(4096)
    packed = (ctypes.c_ubyte * 24)()
    ctypes.memmove(packed, np.array([out, 1024, 9], np.uint64).ctypes.data, 24)
    size = ctypes.c_size_t(20)
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(packed), 2, ctypes.addressof(size), 0)
    arguments = (kernel("fill"), 1, 1, 1, 1, 1, 1, 0, 0, 0, ctypes.addressof(extra))
    ok(cu.cuLaunchKernel(*arguments))
    assert (download(out, 1024) == 9).all()
    size.value = 8
    fails(cu.cuLaunchKernel(*arguments), ERROR.CUDA_ERROR_INVALID_VALUE)


def impossible_launches_are_refused() -> None:
    context()
    function = kernel("fill")
    parameters = ((alloc(64), 4, 1), SIGNATURES["fill"])

    def attempt(*shape: int) -> tuple[cu.CUresult]:
        return cu.cuLaunchKernel(function, *shape, 0, parameters, 0)

    ok(attempt(1, 1, 1, 1024, 1, 1, 0))
    fails(attempt(1, 1, 1, 1025, 1, 1, 0), ERROR.CUDA_ERROR_INVALID_VALUE)
    fails(attempt(0, 1, 1, 1, 1, 1, 0), ERROR.CUDA_ERROR_INVALID_VALUE)
    fails(attempt(1, 65536, 1, 1, 1, 1, 0), ERROR.CUDA_ERROR_INVALID_VALUE)
    fails(attempt(1, 1, 1, 1, 1, 1, 49153), ERROR.CUDA_ERROR_INVALID_VALUE)
    wanted = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    ok(cu.cuFuncSetAttribute(function, wanted, 65536))
    ok(attempt(1, 1, 1, 1, 1, 1, 65536))
    bad = cu.CUfunction(12345)
    fails(cu.cuLaunchKernel(bad, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0), ERROR.CUDA_ERROR_INVALID_HANDLE)


def cooperative_launches_must_fit_the_device() -> None:
    context()
    function = kernel("fill")
    parameters = ((alloc(64), 4, 1), SIGNATURES["fill"])
    ok(cu.cuLaunchCooperativeKernel(function, 132, 1, 1, 1024, 1, 1, 0, 0, parameters))
    fails(cu.cuLaunchCooperativeKernel(function, 1000, 1, 1, 1024, 1, 1, 0, 0, parameters),
          ERROR.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE)  # fmt: skip


def launches_are_asynchronous_and_in_stream_order() -> None:
    context()
    work, flag, out = stream(), Flag(), alloc(4)
    flag.hold(work)
    launch("fill", work, out, 1, 7)
    fails(cu.cuStreamQuery(work), ERROR.CUDA_ERROR_NOT_READY)
    assert download(out, 1)[0] == 0
    flag.release()
    ok(cu.cuStreamSynchronize(work))
    assert download(out, 1)[0] == 7


def a_store_to_a_read_only_page_kills_the_context() -> None:
    context()
    with read_only_page() as page:
        launch("fill", 0, page, 1, 7)
        fails(cu.cuCtxSynchronize(), ERROR.CUDA_ERROR_ILLEGAL_ADDRESS)
        fails(cu.cuMemAlloc(64), ERROR.CUDA_ERROR_ILLEGAL_ADDRESS)


def a_touch_of_nothing_kills_the_context_and_no_other() -> None:
    other = context()
    out = alloc(4)
    context()
    launch("fill", 0, 0x7_0000_0000, 1, 7)
    fails(cu.cuCtxSynchronize(), ERROR.CUDA_ERROR_ILLEGAL_ADDRESS)
    ok(cu.cuCtxSetCurrent(other))
    launch("fill", 0, out, 1, 3)
    assert download(out, 1)[0] == 3


def a_dead_context_ends_its_spinning_kernel() -> None:
    doomed = context()
    Flag().hold(stream())
    launch("fill", stream(), 0x7_0000_0000, 1, 7)
    fails(cu.cuCtxSynchronize(), ERROR.CUDA_ERROR_ILLEGAL_ADDRESS)
    # Destroyed all the same; the answer is the error that it died of.
    fails(cu.cuCtxDestroy(doomed), ERROR.CUDA_ERROR_ILLEGAL_ADDRESS)
    context()
    ok(cu.cuCtxSynchronize())


def libraries_serve_every_context() -> None:
    first = context(0)
    library = ok(cu.cuLibraryLoadData(BUILTIN, None, None, 0, None, None, 0))
    fill = ok(cu.cuLibraryGetKernel(library, b"fill"))
    assert ok(cu.cuKernelGetName(fill)) == b"fill"
    functions = []
    for current in (first, context(1)):
        ok(cu.cuCtxSetCurrent(current))
        out = alloc(16)
        parameters = ((out, 4, 6), SIGNATURES["fill"])
        functions.append(ok(cu.cuKernelGetFunction(fill)))
        ok(cu.cuLaunchKernel(functions[-1], 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0))
        ok(cu.cuLaunchKernel(cu.CUfunction(int(fill)), 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0))
        assert download(out, 4).tolist() == [6] * 4
    assert functions[0] != functions[1]
    ok(cu.cuLibraryUnload(library))
    fails(cu.cuKernelGetFunction(fill), ERROR.CUDA_ERROR_INVALID_HANDLE)


def functions_describe_their_parameters() -> None:
    context()
    function = kernel("write_pages")
    library, offset, size = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t(), ctypes.c_size_t()
    seen = []
    for index in range(6):
        call = (ctypes.c_void_p(int(function)), ctypes.c_size_t(index))
        assert library.cuFuncGetParamInfo(*call, ctypes.byref(offset), ctypes.byref(size)) == 0
        seen.append((offset.value, size.value))
    assert seen == [(0, 8), (8, 8), (16, 8), (24, 8), (32, 8), (40, 4)]
    fails(cu.cuFuncGetParamInfo(function, 6), ERROR.CUDA_ERROR_INVALID_VALUE)
    assert ok(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, 1024, 0)) == 2
    assert ok(cu.cuFuncGetName(function)) == b"write_pages"


def module_globals_are_device_memory() -> None:
    context()
    module = ok(cu.cuModuleLoadData(BUILTIN))
    address, size = ok(cu.cuModuleGetGlobal(module, b"scratch"))
    assert size == 64
    assert (download(int(address), 16) == 0).all()
    launch("fill", 0, int(address), 16, 1)
    assert (download(int(address), 16) == 1).all()
    fails(cu.cuModuleGetGlobal(module, b"no_such"), ERROR.CUDA_ERROR_NOT_FOUND)
