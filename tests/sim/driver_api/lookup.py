# SPDX-License-Identifier: Apache-2.0
"""Versions, errors, attributes, and how entry points are found."""

from __future__ import annotations

import ctypes
import os

from cuda.bindings import driver as cu

from tests.sim.driver_api.client import ERROR, OK, context, fails, ok

LEGACY = cu.CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_LEGACY_STREAM
PER_THREAD = cu.CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
FOUND = cu.CUdriverProcAddressQueryResult.CU_GET_PROC_ADDRESS_SUCCESS


def _symbol(name: str) -> int:
    library = ctypes.CDLL("libcuda.so.1")
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def _find(name: str, version: int, flags: int = 0) -> tuple[int, cu.CUdriverProcAddressQueryResult]:
    address, status = ok(cu.cuGetProcAddress(name.encode(), version, int(flags)))
    return int(address), status


def calls_before_cuinit_are_refused() -> None:
    fails(cu.cuDeviceGetCount(), ERROR.CUDA_ERROR_NOT_INITIALIZED)
    fails(cu.cuCtxGetCurrent(), ERROR.CUDA_ERROR_NOT_INITIALIZED)
    # One that simcuda does not implement: also there initialisation comes first.
    library = ctypes.CDLL("libcuda.so.1")
    assert library.cuLinkCreate_v2(0, None, None, None) == 3
    ok(cu.cuInit(0))
    assert library.cuLinkCreate_v2(0, None, None, None) == 801


def version_argument_selects_the_abi_version() -> None:
    ok(cu.cuInit(0))
    assert _find("cuMemAlloc", 2000)[0] == _symbol("cuMemAlloc")
    assert _find("cuMemAlloc", 3020)[0] == _symbol("cuMemAlloc_v2")
    assert _find("cuMemAlloc", 12000)[0] == _symbol("cuMemAlloc_v2")
    assert _find("cuCtxCreate", 11039)[0] == _symbol("cuCtxCreate_v2")
    assert _find("cuCtxCreate", 11040)[0] == _symbol("cuCtxCreate_v3")
    assert _find("cuCtxCreate", 12050)[0] == _symbol("cuCtxCreate_v4")
    assert _find("cuGetProcAddress", 11030)[0] == _symbol("cuGetProcAddress")
    assert _find("cuGetProcAddress", 12000)[0] == _symbol("cuGetProcAddress_v2")


def flags_select_the_per_thread_variant() -> None:
    ok(cu.cuInit(0))
    assert _find("cuMemcpyHtoD", 12000)[0] == _symbol("cuMemcpyHtoD_v2")
    assert _find("cuMemcpyHtoD", 12000, LEGACY)[0] == _symbol("cuMemcpyHtoD_v2")
    assert _find("cuMemcpyHtoD", 12000, PER_THREAD)[0] == _symbol("cuMemcpyHtoD_v2_ptds")
    assert _find("cuLaunchKernel", 12000, PER_THREAD)[0] == _symbol("cuLaunchKernel_ptsz")
    # No stream, no variant: the plain one then.
    assert _find("cuMemAlloc", 12000, PER_THREAD)[0] == _symbol("cuMemAlloc_v2")


def status_tells_unknown_from_too_new() -> None:
    ok(cu.cuInit(0))
    query = cu.CUdriverProcAddressQueryResult
    assert _find("cuMemAlloc", 12000)[1] == FOUND
    assert _find("cuNoSuchCall", 12000) == (0, query.CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)
    too_new = _find("cuGraphAddNode", 12010)
    assert too_new == (0, query.CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT)
    library, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    missing = int(ERROR.CUDA_ERROR_NOT_FOUND)
    out = ctypes.byref(address)
    assert library.cuGetProcAddress(b"cuNoSuchCall", out, 12000, ctypes.c_uint64(0)) == missing
    newer = (b"cuNoSuchCall", out, 12000, ctypes.c_uint64(0), None)
    assert library.cuGetProcAddress_v2(*newer) == int(OK)
    assert address.value is None
    assert library.cuGetProcAddress(b"cuMemAlloc", out, 12000, ctypes.c_uint64(0)) == int(OK)
    assert address.value == _symbol("cuMemAlloc_v2")
    both = ctypes.c_uint64(int(LEGACY) | int(PER_THREAD))
    assert library.cuGetProcAddress(b"cuMemAlloc", out, 12000, both) == 1


def every_error_has_name_and_text() -> None:
    for error in cu.CUresult:
        assert ok(cu.cuGetErrorName(error)) == error.name.encode()
        assert len(ok(cu.cuGetErrorString(error))) > 0
    library, text = ctypes.CDLL("libcuda.so.1"), ctypes.c_char_p(b"x")
    assert library.cuGetErrorName(12345, ctypes.byref(text)) == 1
    assert text.value is None


def every_attribute_is_answered_and_unknown_ones_refused() -> None:
    ok(cu.cuInit(0))
    names = cu.CUdevice_attribute
    for attribute in names:
        if attribute != names.CU_DEVICE_ATTRIBUTE_MAX:
            ok(cu.cuDeviceGetAttribute(attribute, 0))
    library, value = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    for unknown in (0, -1, 4000):
        assert library.cuDeviceGetAttribute(ctypes.byref(value), unknown, 0) == 1
    assert ok(cu.cuDeviceComputeCapability(0)) == (9, 0)
    fails(cu.cuDeviceGetAttribute(names.CU_DEVICE_ATTRIBUTE_WARP_SIZE, 99),
          ERROR.CUDA_ERROR_INVALID_DEVICE)  # fmt: skip


def devices_are_found_by_bus_id() -> None:
    ok(cu.cuInit(0))
    assert ok(cu.cuDeviceGetCount()) == 2
    for device in range(2):
        text = ok(cu.cuDeviceGetPCIBusId(64, device)).split(b"\0")[0]
        assert int(ok(cu.cuDeviceGetByPCIBusId(text))) == device
    fails(cu.cuDeviceGetByPCIBusId(b"0000:99:00.0"), ERROR.CUDA_ERROR_INVALID_DEVICE)
    uuids = {bytes(ok(cu.cuDeviceGetUuid(device)).bytes) for device in range(2)}
    assert len(uuids) == 2


def peers_are_enabled_once() -> None:
    first = context(0)
    second = context(1)
    assert ok(cu.cuDeviceCanAccessPeer(0, 1)) == 1
    assert ok(cu.cuDeviceCanAccessPeer(0, 0)) == 0
    fails(cu.cuCtxDisablePeerAccess(first), ERROR.CUDA_ERROR_PEER_ACCESS_NOT_ENABLED)
    ok(cu.cuCtxEnablePeerAccess(first, 0))
    fails(cu.cuCtxEnablePeerAccess(first, 0), ERROR.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
    ok(cu.cuCtxDisablePeerAccess(first))
    fails(cu.cuCtxEnablePeerAccess(second, 0), ERROR.CUDA_ERROR_INVALID_CONTEXT)


def limits_are_kept() -> None:
    context()
    limit = cu.CUlimit.CU_LIMIT_STACK_SIZE
    assert ok(cu.cuCtxGetLimit(limit)) == 1024
    ok(cu.cuCtxSetLimit(limit, 4096))
    assert ok(cu.cuCtxGetLimit(limit)) == 4096
    fails(cu.cuCtxSetLimit(cu.CUlimit.CU_LIMIT_MAX, 1), ERROR.CUDA_ERROR_UNSUPPORTED_LIMIT)
    assert ok(cu.cuCtxGetStreamPriorityRange()) == (0, -5)


def private_tables_are_unknown() -> None:
    ok(cu.cuInit(0))
    library, table = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(1)
    uuid = (ctypes.c_ubyte * 16)(*range(16))
    assert library.cuGetExportTable(ctypes.byref(table), uuid) == 500
    assert table.value is None


def an_older_driver_does_not_know_newer_symbols() -> None:
    os.environ["SIMCUDA_DRIVER_VERSION"] = "12040"
    ok(cu.cuInit(0))
    assert ok(cu.cuDriverGetVersion()) == 12040
    query = cu.CUdriverProcAddressQueryResult
    assert _find("cuStreamGetCaptureInfo", 13000)[0] == _symbol("cuStreamGetCaptureInfo_v3")
    assert _find("cuCtxCreate", 13000)[0] == _symbol("cuCtxCreate_v3")
    assert _find("cuGraphGetId", 13010) == (0, query.CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)


def a_mig_instance_is_not_its_gpu() -> None:
    os.environ["SIMCUDA_CLAIM"] = "mig"
    ok(cu.cuInit(0))
    library, whole = ctypes.CDLL("libcuda.so.1"), ctypes.create_string_buffer(16)
    part = ctypes.create_string_buffer(16)
    assert library.cuDeviceGetUuid(whole, 0) == library.cuDeviceGetUuid_v2(part, 0) == 0
    assert whole.raw != part.raw
    assert b"MIG" in ok(cu.cuDeviceGetName(64, 0))
    assert ok(cu.cuDeviceCanAccessPeer(0, 1)) == 0
