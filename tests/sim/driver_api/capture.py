# SPDX-License-Identifier: Apache-2.0
"""Graphs made by capturing streams."""

from __future__ import annotations

import threading

import numpy as np
from cuda.bindings import driver as cu

from tests.sim.driver_api.client import (
    ERROR,
    alloc,
    context,
    download,
    fails,
    host_function,
    launch,
    ok,
    run_graph,
    stream,
)

MODE = cu.CUstreamCaptureMode
STATUS = cu.CUstreamCaptureStatus
GLOBAL = MODE.CU_STREAM_CAPTURE_MODE_GLOBAL
LOCAL = MODE.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
RELAXED = MODE.CU_STREAM_CAPTURE_MODE_RELAXED


def _nodes_of(graph: cu.CUgraph) -> int:
    return ok(cu.cuGraphGetNodes(graph, 0))[1]


def captured_work_does_not_run_until_launched() -> None:
    context()
    work, out, seen = stream(), alloc(400), []
    kept, function = host_function(lambda: seen.append(1))
    host = np.full(100, 3, np.uint32)
    pinned = ok(cu.cuMemHostAlloc(400, 0))
    launch("fill", 0, int(pinned), 100, 3)
    ok(cu.cuStreamBeginCapture(work, GLOBAL))
    ok(cu.cuMemcpyHtoDAsync(out, int(pinned), 400, work))
    _launch_in_capture(work, out)
    ok(cu.cuMemsetD32Async(out, 9, 1, work))
    ok(cu.cuLaunchHostFunc(work, function, 0))
    graph = ok(cu.cuStreamEndCapture(work))
    assert _nodes_of(graph) == 4
    assert (download(out, 100) == 0).all()
    run_graph(graph, work)
    assert download(out, 100).tolist() == [9] + [2 * int(host[0])] * 99
    assert seen == [1]
    assert kept is not None


def _launch_in_capture(work: cu.CUstream, out: int) -> None:
    # Loading a module is unsafe during capture, so the thread says that it knows.
    old = ok(cu.cuThreadExchangeStreamCaptureMode(RELAXED))
    launch("add", work, out, out, out, 100)
    ok(cu.cuThreadExchangeStreamCaptureMode(old))


def other_streams_join_by_events() -> None:
    context()
    first, second, out = stream(), stream(), alloc(8)
    fork, join = ok(cu.cuEventCreate(0)), ok(cu.cuEventCreate(0))
    ok(cu.cuStreamBeginCapture(first, GLOBAL))
    ok(cu.cuMemsetD32Async(out, 1, 2, first))
    ok(cu.cuEventRecord(fork, first))
    ok(cu.cuStreamWaitEvent(second, fork, 0))
    assert ok(cu.cuStreamIsCapturing(second)) == STATUS.CU_STREAM_CAPTURE_STATUS_ACTIVE
    ok(cu.cuMemsetD32Async(out + 4, 2, 1, second))
    ok(cu.cuEventRecord(join, second))
    ok(cu.cuStreamWaitEvent(first, join, 0))
    graph = ok(cu.cuStreamEndCapture(first))
    assert ok(cu.cuGraphGetEdges(graph, 0))[-1] == 1
    assert ok(cu.cuStreamIsCapturing(second)) == STATUS.CU_STREAM_CAPTURE_STATUS_NONE
    run_graph(graph)
    assert download(out, 2).tolist() == [1, 2]


def unjoined_streams_spoil_the_capture() -> None:
    context()
    first, second, out = stream(), stream(), alloc(8)
    fork = ok(cu.cuEventCreate(0))
    ok(cu.cuStreamBeginCapture(first, GLOBAL))
    ok(cu.cuEventRecord(fork, first))
    ok(cu.cuStreamWaitEvent(second, fork, 0))
    ok(cu.cuMemsetD32Async(out, 2, 1, second))
    fails(cu.cuStreamEndCapture(first), ERROR.CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
    ok(cu.cuStreamSynchronize(first))
    ok(cu.cuStreamSynchronize(second))


def waiting_for_a_capturing_stream_invalidates_it() -> None:
    context()
    for forbidden in (cu.cuStreamSynchronize, cu.cuStreamQuery):
        work = stream()
        ok(cu.cuStreamBeginCapture(work, GLOBAL))
        fails(forbidden(work), ERROR.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        status = ok(cu.cuStreamIsCapturing(work))
        assert status == STATUS.CU_STREAM_CAPTURE_STATUS_INVALIDATED
        fails(cu.cuMemsetD32Async(_alloc_relaxed(), 1, 1, work),
              ERROR.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)  # fmt: skip
        fails(cu.cuStreamEndCapture(work), ERROR.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        ok(cu.cuStreamSynchronize(work))


def _alloc_relaxed() -> int:
    old = ok(cu.cuThreadExchangeStreamCaptureMode(RELAXED))
    address = alloc(16)
    ok(cu.cuThreadExchangeStreamCaptureMode(old))
    return address


def unsafe_calls_are_judged_by_the_modes() -> None:
    context()
    for mode, expected in ((GLOBAL, 900), (LOCAL, 900), (RELAXED, 0)):
        work = stream()
        ok(cu.cuStreamBeginCapture(work, mode))
        assert int(cu.cuMemAlloc(64)[0]) == expected
        assert int(cu.cuStreamEndCapture(work)[0]) == (901 if expected else 0)


def a_local_capture_is_safe_from_other_threads() -> None:
    current = context()
    results = []

    def elsewhere() -> None:
        ok(cu.cuCtxSetCurrent(current))
        results.append(int(cu.cuMemAlloc(64)[0]))

    for mode, expected in ((LOCAL, 0), (GLOBAL, 900)):
        work = stream()
        ok(cu.cuStreamBeginCapture(work, mode))
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert results.pop() == expected
        assert int(cu.cuStreamEndCapture(work)[0]) == (901 if expected else 0)


def a_capture_ends_in_its_own_thread_and_stream() -> None:
    current = context()
    work, other, results = stream(), stream(), []
    fails(cu.cuStreamEndCapture(work), ERROR.CUDA_ERROR_ILLEGAL_STATE)
    ok(cu.cuStreamBeginCapture(work, LOCAL))
    fails(cu.cuStreamBeginCapture(work, LOCAL), ERROR.CUDA_ERROR_ILLEGAL_STATE)

    def elsewhere() -> None:
        ok(cu.cuCtxSetCurrent(current))
        results.append(cu.cuStreamEndCapture(work)[0])

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert results == [ERROR.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD]
    fork = ok(cu.cuEventCreate(0))
    ok(cu.cuEventRecord(fork, work))
    ok(cu.cuStreamWaitEvent(other, fork, 0))
    fails(cu.cuStreamEndCapture(other), ERROR.CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)
    fails(cu.cuStreamEndCapture(work), ERROR.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)


def the_legacy_stream_cannot_take_part() -> None:
    context()
    fails(cu.cuStreamBeginCapture(0, GLOBAL), ERROR.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    blocking = stream(blocking=True)
    ok(cu.cuStreamBeginCapture(blocking, RELAXED))
    fails(cu.cuStreamIsCapturing(0), ERROR.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
    graph = ok(cu.cuGraphCreate(0))
    instance = ok(cu.cuGraphInstantiate(graph, 0))
    fails(cu.cuGraphLaunch(instance, 0), ERROR.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
    fails(cu.cuStreamEndCapture(blocking), ERROR.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
    out = alloc(4)
    ok(cu.cuStreamBeginCapture(blocking, RELAXED))
    fails(cu.cuMemsetD32Async(out, 1, 1, 0), ERROR.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
    fails(cu.cuStreamEndCapture(blocking), ERROR.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)


def separate_captures_cannot_merge() -> None:
    context()
    first, second = stream(), stream()
    event = ok(cu.cuEventCreate(0))
    ok(cu.cuStreamBeginCapture(first, GLOBAL))
    ok(cu.cuStreamBeginCapture(second, GLOBAL))
    ok(cu.cuEventRecord(event, first))
    fails(cu.cuStreamWaitEvent(second, event, 0), ERROR.CUDA_ERROR_STREAM_CAPTURE_MERGE)
    for each in (first, second):
        fails(cu.cuStreamEndCapture(each), ERROR.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)


def uncaptured_work_cannot_be_waited_for() -> None:
    context()
    outside, work = stream(), stream()
    event = ok(cu.cuEventCreate(0))
    ok(cu.cuEventRecord(event, outside))
    ok(cu.cuStreamBeginCapture(work, GLOBAL))
    fails(cu.cuStreamWaitEvent(work, event, 0), ERROR.CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
    fails(cu.cuStreamEndCapture(work), ERROR.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)


def dependencies_can_be_read_and_set() -> None:
    context()
    work, out = stream(), alloc(8)
    ok(cu.cuStreamBeginCapture(work, GLOBAL))
    ok(cu.cuMemsetD32Async(out, 1, 1, work))
    status, capture, graph, nodes, _, count = ok(cu.cuStreamGetCaptureInfo(work))
    assert status == STATUS.CU_STREAM_CAPTURE_STATUS_ACTIVE
    assert (int(capture) > 0, count) == (True, 1)
    own = ok(cu.cuGraphAddEmptyNode(graph, nodes, 1))
    ok(cu.cuStreamUpdateCaptureDependencies(work, [own], None, 1, 1))
    assert int(ok(cu.cuStreamGetCaptureInfo(work))[3][0]) == int(own)
    ok(cu.cuMemsetD32Async(out + 4, 2, 1, work))
    assert _nodes_of(ok(cu.cuStreamEndCapture(work))) == 3


def captures_can_add_to_a_graph() -> None:
    context()
    work, out = stream(), alloc(8)
    graph = ok(cu.cuGraphCreate(0))
    root = ok(cu.cuGraphAddEmptyNode(graph, None, 0))
    ok(cu.cuStreamBeginCaptureToGraph(work, graph, [root], None, 1, GLOBAL))
    ok(cu.cuMemsetD32Async(out, 6, 1, work))
    assert int(ok(cu.cuStreamEndCapture(work))) == int(graph)
    assert ok(cu.cuGraphGetEdges(graph, 0))[-1] == 1
    run_graph(graph)
    assert download(out, 1)[0] == 6


def a_graph_launched_in_a_capture_becomes_a_child() -> None:
    context()
    work, out = stream(), alloc(4)
    ok(cu.cuStreamBeginCapture(work, GLOBAL))
    ok(cu.cuMemsetD32Async(out, 6, 1, work))
    inner = ok(cu.cuGraphInstantiate(ok(cu.cuStreamEndCapture(work)), 0))
    ok(cu.cuStreamBeginCapture(work, GLOBAL))
    ok(cu.cuGraphLaunch(inner, work))
    graph = ok(cu.cuStreamEndCapture(work))
    node = ok(cu.cuGraphGetNodes(graph, 1))[0][0]
    assert ok(cu.cuGraphNodeGetType(node)) == cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_GRAPH
    run_graph(graph)
    assert download(out, 1)[0] == 6


def a_destroyed_stream_ends_its_capture() -> None:
    context()
    work = stream()
    ok(cu.cuStreamBeginCapture(work, GLOBAL))
    ok(cu.cuStreamDestroy(work))
    ok(cu.cuMemAlloc(64))


def a_destroyed_context_ends_the_captures_of_its_streams() -> None:
    doomed = context()
    ok(cu.cuStreamBeginCapture(stream(), GLOBAL))
    ok(cu.cuCtxDestroy(doomed))
    context()
    ok(cu.cuMemAlloc(64))


def a_graph_destroyed_during_its_capture_spoils_it() -> None:
    context()
    work, out = stream(), alloc(8)
    graph = ok(cu.cuGraphCreate(0))
    ok(cu.cuStreamBeginCaptureToGraph(work, graph, None, None, 0, GLOBAL))
    ok(cu.cuMemsetD32Async(out, 6, 1, work))
    ok(cu.cuGraphDestroy(graph))
    fails(cu.cuMemsetD32Async(out, 6, 1, work), ERROR.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
    fails(cu.cuStreamEndCapture(work), ERROR.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
