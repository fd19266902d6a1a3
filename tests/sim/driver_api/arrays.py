# SPDX-License-Identifier: Apache-2.0
"""Arrays, advice for managed memory, SMs as a resource."""

from __future__ import annotations

import numpy as np
from cuda.bindings import driver as cu

from tests.sim.driver_api.client import ERROR, context, fails, ok

HOST, ARRAY = cu.CUmemorytype.CU_MEMORYTYPE_HOST, cu.CUmemorytype.CU_MEMORYTYPE_ARRAY


def _float_array(width: int, height: int, depth: int) -> cu.CUarray:
    described = cu.CUDA_ARRAY3D_DESCRIPTOR()
    described.Width, described.Height, described.Depth = width, height, depth
    described.Format = cu.CUarray_format.CU_AD_FORMAT_FLOAT
    described.NumChannels = 1
    return ok(cu.cuArray3DCreate(described))


def _copy_of(host: np.ndarray, array: cu.CUarray, *, up: bool) -> cu.CUDA_MEMCPY3D:
    depth, height, width = host.shape
    copy = cu.CUDA_MEMCPY3D()
    copy.srcMemoryType, copy.dstMemoryType = (HOST, ARRAY) if up else (ARRAY, HOST)
    if up:
        copy.srcHost, copy.dstArray = host.ctypes.data, array
        copy.srcPitch, copy.srcHeight = width * 4, height
    else:
        copy.dstHost, copy.srcArray = host.ctypes.data, array
        copy.dstPitch, copy.dstHeight = width * 4, height
    copy.WidthInBytes, copy.Height, copy.Depth = width * 4, height, depth
    return copy


def arrays_hold_what_is_copied_into_them() -> None:
    context()
    array = _float_array(33, 5, 3)
    data = np.arange(33 * 5 * 3, dtype=np.float32).reshape(3, 5, 33)
    back = np.zeros_like(data)
    ok(cu.cuMemcpy3D(_copy_of(data, array, up=True)))
    ok(cu.cuMemcpy3D(_copy_of(back, array, up=False)))
    assert (back == data).all()
    assert ok(cu.cuArray3DGetDescriptor(array)).Width == 33
    ok(cu.cuArrayDestroy(array))
    fails(cu.cuArrayDestroy(array), ERROR.CUDA_ERROR_INVALID_HANDLE)


def mipmaps_halve_down_to_one() -> None:
    context()
    described = cu.CUDA_ARRAY3D_DESCRIPTOR()
    described.Width, described.Height = 8, 2
    described.Format = cu.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8
    described.NumChannels = 4
    mipmap = ok(cu.cuMipmappedArrayCreate(described, 10))
    sizes = []
    for level in range(4):
        found = ok(cu.cuArray3DGetDescriptor(ok(cu.cuMipmappedArrayGetLevel(mipmap, level))))
        sizes.append((found.Width, found.Height))
    assert sizes == [(8, 2), (4, 1), (2, 1), (1, 1)]
    fails(cu.cuMipmappedArrayGetLevel(mipmap, 4), ERROR.CUDA_ERROR_INVALID_VALUE)
    ok(cu.cuMipmappedArrayDestroy(mipmap))


def impossible_arrays_are_refused() -> None:
    context()
    described = cu.CUDA_ARRAY3D_DESCRIPTOR()
    described.Format = cu.CUarray_format.CU_AD_FORMAT_FLOAT
    for width, channels in ((0, 1), (4, 3), (1 << 20, 1)):
        described.Width, described.NumChannels = width, channels
        fails(cu.cuArray3DCreate(described), ERROR.CUDA_ERROR_INVALID_VALUE)


def advice_is_answered_for_the_span_it_was_given() -> None:
    context()
    half = 1 << 20
    base = int(ok(cu.cuMemAllocManaged(2 * half, 1)))
    advice, attribute = cu.CUmem_advise, cu.CUmem_range_attribute
    place = cu.CUmemLocation()
    place.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    ok(cu.cuMemAdvise(base, half, advice.CU_MEM_ADVISE_SET_READ_MOSTLY, place))
    mostly = attribute.CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY
    answers = [
        ok(cu.cuMemRangeGetAttribute(4, mostly, start, size))
        for start, size in ((base, half), (base + half, half), (base, 2 * half))
    ]
    assert answers == [1, 0, 0]
    plain = int(ok(cu.cuMemAlloc(half)))
    fails(cu.cuMemAdvise(plain, half, advice.CU_MEM_ADVISE_SET_READ_MOSTLY, place),
          ERROR.CUDA_ERROR_INVALID_VALUE)  # fmt: skip


def sms_are_divided_in_groups() -> None:
    context()
    sm = cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    whole = ok(cu.cuDeviceGetDevResource(0, sm))
    parts, count, rest = ok(cu.cuDevSmResourceSplitByCount(16, whole, 0, 8))
    assert (count, [part.sm.smCount for part in parts], rest.sm.smCount) == (16, [8] * 16, 4)
    fails(cu.cuDevSmResourceSplitByCount(1, whole, 0, 133),
          ERROR.CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION)  # fmt: skip
