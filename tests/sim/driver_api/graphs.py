# SPDX-License-Identifier: Apache-2.0
"""Graphs built node by node."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from cuda.bindings import driver as cu

from tests.sim.driver_api.client import (
    ERROR,
    Flag,
    alloc,
    context,
    copy_node,
    download,
    fails,
    host_function,
    kernel_node,
    memset_node,
    ok,
    read_only_page,
    run_graph,
    stream,
)

NODE = cu.CUgraphNodeType


def nodes_run_after_what_they_depend_on() -> None:
    current = context()
    a, b = alloc(400), alloc(400)
    graph = ok(cu.cuGraphCreate(0))
    # Added in the wrong order; only the edges say what comes first.
    copied = ok(cu.cuGraphAddMemcpyNode(graph, None, 0, copy_node(b, a, 400), current))
    added = ok(cu.cuGraphAddKernelNode(graph, None, 0, kernel_node("add", a, a, a, 100)))
    zeroed = ok(cu.cuGraphAddMemsetNode(graph, None, 0, memset_node(a, 21, 100), current))
    ok(cu.cuGraphAddDependencies(graph, [zeroed, added], [added, copied], None, 2))
    run_graph(graph)
    assert (download(b, 100) == 42).all()


def a_launch_can_be_repeated_and_changed() -> None:
    current = context()
    out = alloc(16)
    graph = ok(cu.cuGraphCreate(0))
    node = ok(cu.cuGraphAddMemsetNode(graph, None, 0, memset_node(out, 1, 4), current))
    instance = run_graph(graph)
    assert download(out, 4).tolist() == [1] * 4
    ok(cu.cuGraphExecMemsetNodeSetParams(instance, node, memset_node(out, 2, 4), current))
    ok(cu.cuGraphLaunch(instance, 0))
    assert download(out, 4).tolist() == [2] * 4
    # The graph itself has kept what it was made with.
    assert ok(cu.cuGraphMemsetNodeGetParams(node)).value == 1
    run_graph(graph)
    assert download(out, 4).tolist() == [1] * 4
    ok(cu.cuGraphNodeSetEnabled(instance, node, 0))
    ok(cu.cuGraphLaunch(instance, 0))
    assert download(out, 4).tolist() == [1] * 4


def launches_of_one_instance_follow_each_other_across_streams() -> None:
    current = context()
    first, second, flag, out = stream(), stream(), Flag(), alloc(4)
    graph = ok(cu.cuGraphCreate(0))
    spin = kernel_node("spin_until", flag.address, 1)
    node = ok(cu.cuGraphAddKernelNode(graph, None, 0, spin))
    ok(cu.cuGraphAddMemsetNode(graph, [node], 1, memset_node(out, 5, 1), current))
    instance = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphLaunch(instance, first))
    ok(cu.cuGraphLaunch(instance, second))
    fails(cu.cuStreamQuery(second), ERROR.CUDA_ERROR_NOT_READY)
    flag.release()
    ok(cu.cuStreamSynchronize(second))
    ok(cu.cuStreamSynchronize(first))
    assert download(out, 1)[0] == 5


def cycles_are_refused_when_instantiated() -> None:
    context()
    graph = ok(cu.cuGraphCreate(0))
    a = ok(cu.cuGraphAddEmptyNode(graph, None, 0))
    b = ok(cu.cuGraphAddEmptyNode(graph, [a], 1))
    ok(cu.cuGraphAddDependencies(graph, [b], [a], None, 1))
    fails(cu.cuGraphInstantiate(graph, 0), ERROR.CUDA_ERROR_INVALID_VALUE)
    ok(cu.cuGraphRemoveDependencies(graph, [b], [a], None, 1))
    ok(cu.cuGraphInstantiate(graph, 0))
    fails(cu.cuGraphAddDependencies(graph, [a], [b], None, 1), ERROR.CUDA_ERROR_INVALID_VALUE)


def graphs_can_be_asked_what_they_are() -> None:
    current = context()
    graph = ok(cu.cuGraphCreate(0))
    root = ok(cu.cuGraphAddEmptyNode(graph, None, 0))
    leaf = ok(cu.cuGraphAddMemsetNode(graph, [root], 1, memset_node(alloc(4), 1, 1), current))
    nodes, count = ok(cu.cuGraphGetNodes(graph, 2))
    assert ([int(node) for node in nodes], count) == ([int(root), int(leaf)], 2)
    assert ok(cu.cuGraphGetRootNodes(graph, 1))[1] == 1
    assert ok(cu.cuGraphNodeGetType(leaf)) == NODE.CU_GRAPH_NODE_TYPE_MEMSET
    clone = ok(cu.cuGraphClone(graph))
    twin = ok(cu.cuGraphNodeFindInClone(leaf, clone))
    assert twin != leaf
    assert ok(cu.cuGraphNodeGetType(twin)) == NODE.CU_GRAPH_NODE_TYPE_MEMSET
    ok(cu.cuGraphDestroyNode(root))
    assert ok(cu.cuGraphGetNodes(graph, 0))[1] == 1
    fails(cu.cuGraphNodeGetType(root), ERROR.CUDA_ERROR_INVALID_VALUE)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.dot"
        ok(cu.cuGraphDebugDotPrint(clone, str(path).encode(), 0))
        assert "->" in path.read_text()


def children_and_host_functions_run_in_place() -> None:
    current = context()
    out, seen = alloc(4), []
    child = ok(cu.cuGraphCreate(0))
    ok(cu.cuGraphAddMemsetNode(child, None, 0, memset_node(out, 8, 1), current))
    graph = ok(cu.cuGraphCreate(0))
    inner = ok(cu.cuGraphAddChildGraphNode(graph, None, 0, child))
    params = cu.CUDA_HOST_NODE_PARAMS()
    kept, params.fn = host_function(lambda: seen.append("host"))
    ok(cu.cuGraphAddHostNode(graph, [inner], 1, params))
    # The child was cloned: what happens to it later is no matter.
    ok(cu.cuGraphDestroy(child))
    run_graph(graph)
    assert (seen, download(out, 1)[0]) == (["host"], 8)
    assert kept is not None


def event_nodes_record_and_wait() -> None:
    context()
    event = ok(cu.cuEventCreate(0))
    flag, out = Flag(), alloc(4)
    graph = ok(cu.cuGraphCreate(0))
    spin = ok(cu.cuGraphAddKernelNode(graph, None, 0, kernel_node("spin_until", flag.address, 1)))
    ok(cu.cuGraphAddEventRecordNode(graph, [spin], 1, event))
    waiting = ok(cu.cuGraphCreate(0))
    wait = ok(cu.cuGraphAddEventWaitNode(waiting, None, 0, event))
    ok(cu.cuGraphAddKernelNode(waiting, [wait], 1, kernel_node("fill", out, 1, 4)))
    first, second = stream(), stream()
    instances = [ok(cu.cuGraphInstantiate(each, 0)) for each in (graph, waiting)]
    ok(cu.cuGraphLaunch(instances[0], first))
    ok(cu.cuGraphLaunch(instances[1], second))
    assert download(out, 1)[0] == 0
    flag.release()
    ok(cu.cuStreamSynchronize(second))
    assert download(out, 1)[0] == 4


def memory_operations_are_nodes() -> None:
    current = context()
    word = alloc(8)
    params = cu.CUDA_BATCH_MEM_OP_NODE_PARAMS()
    operation = cu.CUstreamBatchMemOpParams()
    operation.operation = cu.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WRITE_VALUE_32
    operation.writeValue.operation = operation.operation
    operation.writeValue.address, operation.writeValue.value = word, 77
    params.ctx, params.count, params.paramArray = current, 1, [operation]
    graph = ok(cu.cuGraphCreate(0))
    ok(cu.cuGraphAddBatchMemOpNode(graph, None, 0, params))
    run_graph(graph)
    assert download(word, 1)[0] == 77


def updates_need_the_same_shape() -> None:
    current = context()
    out = alloc(16)

    def made(value: int, *, longer: bool = False) -> cu.CUgraph:
        graph = ok(cu.cuGraphCreate(0))
        node = ok(cu.cuGraphAddMemsetNode(graph, None, 0, memset_node(out, value, 4), current))
        if longer:
            ok(cu.cuGraphAddEmptyNode(graph, [node], 1))
        return graph

    instance = run_graph(made(1))
    ok(cu.cuGraphExecUpdate(instance, made(2)))
    ok(cu.cuGraphLaunch(instance, 0))
    assert download(out, 4).tolist() == [2] * 4
    fails(cu.cuGraphExecUpdate(instance, made(3, longer=True)),
          ERROR.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)  # fmt: skip
    ok(cu.cuGraphLaunch(instance, 0))
    assert download(out, 4).tolist() == [2] * 4


def conditional_bodies_run_by_their_value() -> None:
    current = context()
    out = alloc(8)
    for value, expected in ((0, [0, 0]), (1, [1, 0])):
        graph = ok(cu.cuGraphCreate(0))
        handle = ok(cu.cuGraphConditionalHandleCreate(graph, current, value, 1))
        params = cu.CUgraphNodeParams()
        params.type = NODE.CU_GRAPH_NODE_TYPE_CONDITIONAL
        params.conditional.handle = handle
        params.conditional.type = cu.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_IF
        params.conditional.size, params.conditional.ctx = 1, current
        ok(cu.cuGraphAddNode(graph, None, None, 0, params))
        body = params.conditional.phGraph_out[0]
        ok(cu.cuGraphAddMemsetNode(body, None, 0, memset_node(out, 1, 1), current))
        run_graph(graph)
        assert download(out, 2).tolist() == expected


def a_node_that_meets_a_read_only_page_kills_the_context_when_it_runs() -> None:
    current = context()
    with read_only_page() as page:
        graph = ok(cu.cuGraphCreate(0))
        ok(cu.cuGraphAddMemsetNode(graph, None, 0, memset_node(page, 1, 4), current))
        instance = ok(cu.cuGraphInstantiate(graph, 0))
        # A call is refused at once; the node is found out later, and is fatal.
        fails(cu.cuMemsetD32(page, 1, 4), ERROR.CUDA_ERROR_INVALID_VALUE)
        ok(cu.cuGraphLaunch(instance, 0))
        fails(cu.cuStreamSynchronize(0), ERROR.CUDA_ERROR_LAUNCH_FAILED)
        fails(cu.cuMemAlloc(4), ERROR.CUDA_ERROR_LAUNCH_FAILED)


def handles_that_are_gone_are_refused() -> None:
    context()
    graph = ok(cu.cuGraphCreate(0))
    instance = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphDestroy(graph))
    fails(cu.cuGraphDestroy(graph), ERROR.CUDA_ERROR_INVALID_VALUE)
    fails(cu.cuGraphInstantiate(graph, 0), ERROR.CUDA_ERROR_INVALID_VALUE)
    ok(cu.cuGraphLaunch(instance, 0))
    ok(cu.cuGraphExecDestroy(instance))
    fails(cu.cuGraphLaunch(instance, 0), ERROR.CUDA_ERROR_INVALID_VALUE)


def memory_of_allocation_nodes_is_given_back() -> None:
    context()
    free_before = ok(cu.cuMemGetInfo())[0]
    params = cu.CUDA_MEM_ALLOC_NODE_PARAMS()
    params.poolProps.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    params.poolProps.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    params.bytesize = 8 << 20
    graph = ok(cu.cuGraphCreate(0))
    node = ok(cu.cuGraphAddMemAllocNode(graph, None, 0, params))
    fill = kernel_node("fill", int(params.dptr), 4, 1)
    used = ok(cu.cuGraphAddKernelNode(graph, [node], 1, fill))
    ok(cu.cuGraphAddMemFreeNode(graph, [used], 1, params.dptr))
    instance = run_graph(graph)
    used_now = cu.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT
    assert int(ok(cu.cuDeviceGetGraphMemAttribute(0, used_now))) == 8 << 20
    ok(cu.cuGraphExecDestroy(instance))
    ok(cu.cuGraphDestroy(graph))
    assert int(ok(cu.cuDeviceGetGraphMemAttribute(0, used_now))) == 0
    assert ok(cu.cuMemGetInfo())[0] == free_before


def a_large_graph_runs_in_order() -> None:
    current = context()
    out = alloc(4)
    graph = ok(cu.cuGraphCreate(0))
    last = None
    for value in range(2000):
        before = [last] if last else None
        params = memset_node(out, value, 1)
        last = ok(cu.cuGraphAddMemsetNode(graph, before, len(before or ()), params, current))
    run_graph(graph)
    assert np.uint32(1999) == download(out, 1)[0]


def user_objects_live_as_long_as_a_graph_holds_them() -> None:
    context()
    gone = []
    kept, destroy = host_function(lambda: gone.append(1))
    no_sync = int(cu.CUuserObject_flags.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
    held = ok(cu.cuUserObjectCreate(0, destroy, 1, no_sync))
    graph = ok(cu.cuGraphCreate(0))
    move = int(cu.CUuserObjectRetain_flags.CU_GRAPH_USER_OBJECT_MOVE)
    ok(cu.cuGraphRetainUserObject(graph, held, 1, move))
    instance = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphDestroy(graph))
    assert gone == []
    ok(cu.cuGraphExecDestroy(instance))
    assert gone == [1]
    fails(cu.cuUserObjectRelease(held, 1), ERROR.CUDA_ERROR_INVALID_VALUE)
    assert kept is not None
