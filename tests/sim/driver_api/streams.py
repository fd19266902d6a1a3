# SPDX-License-Identifier: Apache-2.0
"""Streams, events, copies and sets."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
from cuda.bindings import driver as cu

from tests.sim.driver_api.client import (
    ERROR,
    PAGE,
    Flag,
    alloc,
    context,
    download,
    fails,
    host_function,
    launch,
    ok,
    read_only_page,
    stream,
    upload,
)


def copies_and_sets_arrive() -> None:
    context()
    data = np.arange(5 * PAGE // 8, dtype=np.uint64)
    a, b = alloc(data.nbytes), alloc(data.nbytes)
    upload(a, data)
    ok(cu.cuMemcpyDtoD(b, a, data.nbytes))
    assert (download(b, data.size, np.uint64) == data).all()
    ok(cu.cuMemsetD8(a, 0xAB, 3))
    ok(cu.cuMemsetD16(a + 4, 0x1234, 2))
    ok(cu.cuMemsetD32(a + 8, 0xDEADBEEF, 1))
    assert download(a, 12, np.uint8).tobytes().hex() == "ababab00" + "34123412" + "efbeadde"


def two_dimensional_copies_and_sets_keep_to_their_rows() -> None:
    context()
    device, pitch = ok(cu.cuMemAllocPitch(100, 8, 4))
    assert pitch >= 100
    ok(cu.cuMemsetD8(device, 0xEE, pitch * 8))
    ok(cu.cuMemsetD2D8(device, pitch, 0x11, 100, 8))
    rows = np.zeros((8, 50), np.uint8)
    copy = cu.CUDA_MEMCPY2D()
    copy.srcMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.srcDevice, copy.srcPitch, copy.srcXInBytes = device, pitch, 75
    copy.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_HOST
    copy.dstHost, copy.dstPitch = rows.ctypes.data, 50
    copy.WidthInBytes, copy.Height = 50, 8
    ok(cu.cuMemcpy2D(copy))
    assert (rows[:, :25] == 0x11).all()
    assert pitch < 125 or (rows[:, 25:] == 0xEE).all()


def work_of_a_stream_runs_in_order() -> None:
    context()
    work, flag, out = stream(), Flag(), alloc(4)
    flag.hold(work)
    for value in range(1, 50):
        ok(cu.cuMemsetD32Async(out, value, 1, work))
        _launch_add(work, out)
    flag.release()
    ok(cu.cuStreamSynchronize(work))
    assert download(out, 1)[0] == 98


def _launch_add(work: cu.CUstream, out: int) -> None:
    launch("add", work, out, out, out, 1)


def blocking_streams_order_with_the_legacy_stream() -> None:
    context()
    blocking, free, flag, out = stream(blocking=True), stream(), Flag(), alloc(8)
    flag.hold(blocking)
    # Behind the blocking stream, and so behind the spinning kernel.
    ok(cu.cuMemsetD32Async(out, 1, 1, 0))
    # A non-blocking stream waits for neither.
    ok(cu.cuMemsetD32Async(out + 4, 2, 1, free))
    ok(cu.cuStreamSynchronize(free))
    fails(cu.cuStreamQuery(0), ERROR.CUDA_ERROR_NOT_READY)
    seen = np.zeros(2, np.uint32)
    ok(cu.cuMemcpyDtoHAsync(seen, out, 8, free))
    ok(cu.cuStreamSynchronize(free))
    assert seen.tolist() == [0, 2]
    flag.release()
    ok(cu.cuCtxSynchronize())
    assert download(out, 2).tolist() == [1, 2]


def per_thread_variants_use_the_threads_own_stream() -> None:
    context()
    library, flag, out = ctypes.CDLL("libcuda.so.1"), Flag(), alloc(4)
    own = cu.CUstream(cu.CU_STREAM_PER_THREAD)
    flag.hold(own)
    call = (ctypes.c_uint64(out), 5, ctypes.c_size_t(1), None)
    assert library.cuMemsetD32Async_ptsz(*call) == 0
    assert library.cuStreamQuery_ptsz(None) == 600
    flag.release()
    assert library.cuStreamSynchronize_ptsz(None) == 0
    word = ctypes.c_uint32()
    size = ctypes.c_size_t(4)
    copied = library.cuMemcpyDtoH_v2_ptds(ctypes.byref(word), ctypes.c_uint64(out), size)
    assert (copied, word.value) == (0, 5)


def events_order_streams() -> None:
    context()
    first, second, flag, out = stream(), stream(), Flag(), alloc(4)
    event = ok(cu.cuEventCreate(0))
    ok(cu.cuEventQuery(event))
    flag.hold(first)
    ok(cu.cuMemsetD32Async(out, 3, 1, first))
    ok(cu.cuEventRecord(event, first))
    ok(cu.cuStreamWaitEvent(second, event, 0))
    _launch_add(second, out)
    fails(cu.cuEventQuery(event), ERROR.CUDA_ERROR_NOT_READY)
    flag.release()
    ok(cu.cuStreamSynchronize(second))
    ok(cu.cuEventSynchronize(event))
    assert download(out, 1)[0] == 6


def events_tell_time_unless_told_not_to() -> None:
    context()
    start, end = ok(cu.cuEventCreate(0)), ok(cu.cuEventCreate(0))
    fails(cu.cuEventElapsedTime(start, end), ERROR.CUDA_ERROR_INVALID_HANDLE)
    ok(cu.cuEventRecord(start, 0))
    ok(cu.cuEventRecord(end, 0))
    ok(cu.cuEventSynchronize(end))
    assert ok(cu.cuEventElapsedTime(start, end)) >= 0
    timeless = ok(cu.cuEventCreate(int(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING)))
    ok(cu.cuEventRecord(timeless, 0))
    fails(cu.cuEventElapsedTime(start, timeless), ERROR.CUDA_ERROR_INVALID_HANDLE)


def host_functions_run_in_stream_order() -> None:
    context()
    work, flag, seen = stream(), Flag(), []
    kept, function = host_function(lambda: seen.append(len(seen)))
    flag.hold(work)
    for _ in range(3):
        ok(cu.cuLaunchHostFunc(work, function, 0))
    assert seen == []
    flag.release()
    ok(cu.cuStreamSynchronize(work))
    assert seen == [0, 1, 2]
    assert kept is not None


def streams_can_wait_for_and_write_values() -> None:
    context()
    work, word, out = stream(), alloc(4), alloc(4)
    ok(cu.cuStreamWaitValue32(work, word, 7, 0))
    ok(cu.cuStreamWriteValue32(work, out, 1, 0))
    other = stream()
    seen = np.zeros(1, np.uint32)
    ok(cu.cuMemcpyDtoHAsync(seen, out, 4, other))
    ok(cu.cuStreamSynchronize(other))
    assert seen[0] == 0
    ok(cu.cuStreamWriteValue32(other, word, 7, 0))
    ok(cu.cuStreamSynchronize(work))
    assert download(out, 1)[0] == 1


def freeing_waits_for_running_work() -> None:
    context()
    work, flag, out, done = stream(), Flag(), alloc(4 << 20), threading.Event()
    current = ok(cu.cuCtxGetCurrent())
    flag.hold(work)

    def free() -> None:
        ok(cu.cuCtxSetCurrent(current))
        ok(cu.cuMemFree(out))
        done.set()

    thread = threading.Thread(target=free)
    thread.start()
    assert not done.wait(0.2)
    flag.release()
    thread.join()
    assert done.is_set()


def api_writes_to_a_read_only_page_are_refused_and_harmless() -> None:
    context()
    data, other = np.ones(4, np.uint32), alloc(16)
    with read_only_page() as page:
        fails(cu.cuMemcpyHtoD(page, data, 16), ERROR.CUDA_ERROR_INVALID_VALUE)
        fails(cu.cuMemcpyDtoD(page, other, 16), ERROR.CUDA_ERROR_INVALID_VALUE)
        fails(cu.cuMemsetD32(page, 1, 4), ERROR.CUDA_ERROR_INVALID_VALUE)
        ok(cu.cuMemcpyDtoD(other, page, 16))
        assert (download(page, PAGE // 4) == 0).all()
        ok(cu.cuCtxSynchronize())


def stream_attributes_are_kept_and_copied() -> None:
    context()
    first, second = stream(), stream()
    attribute = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY
    value = cu.CUstreamAttrValue()
    value.syncPolicy = cu.CUsynchronizationPolicy.CU_SYNC_POLICY_YIELD
    ok(cu.cuStreamSetAttribute(first, attribute, value))
    ok(cu.cuStreamCopyAttributes(second, first))
    assert ok(cu.cuStreamGetAttribute(second, attribute)).syncPolicy == value.syncPolicy
    wrong = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    fails(cu.cuStreamSetAttribute(first, wrong, value), ERROR.CUDA_ERROR_INVALID_VALUE)


def stream_ordered_memory_lives_as_long_as_its_stream_says() -> None:
    context()
    work = stream()
    address = int(ok(cu.cuMemAllocAsync(1 << 20, work)))
    ok(cu.cuMemsetD32Async(address, 5, 1 << 18, work))
    seen = np.zeros(1 << 18, np.uint32)
    ok(cu.cuMemcpyDtoHAsync(seen, address, seen.nbytes, work))
    ok(cu.cuMemFreeAsync(address, work))
    ok(cu.cuStreamSynchronize(work))
    assert (seen == 5).all()
