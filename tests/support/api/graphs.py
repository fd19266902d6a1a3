# SPDX-License-Identifier: Apache-2.0
"""Nodes that write, however they got into their graph."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_void_p

from tests.support.api.base import PATTERN, PITCH, ROWS, SIZE, Api, Expected, Writer, both
from tests.support.api.writers import OPERATIONS_LEAVE, operations, pitched
from tests.support.cuda_structs import (
    BATCH_MEM_OP_NODE,
    DEVICE,
    MEMCPY_NODE,
    MEMSET_NODE,
    Copy3D,
    InstantiateParams,
    MemOperations,
    Memset,
    NodeParams,
    UpdateResult,
)

# Graphs: (graph, what a launch leaves)

AddNode = Callable[[Api, int, int], tuple[int, Expected]]


def row_copy(api: Api, at: int) -> Copy3D:
    return pitched(Copy3D, at, api.device, DEVICE, 0)


def row_set(at: int) -> Memset:
    return Memset(dst=at, pitch=PITCH, value=0xA5, elementSize=1, width=SIZE, height=ROWS)


SET_LEAVES: Expected = {row * PITCH: b"\xa5" * SIZE for row in range(ROWS)}


def add_memcpy(api: Api, graph: int, at: int) -> tuple[int, Expected]:
    copy = row_copy(api, at)
    node = api.out(c_void_p, "cuGraphAddMemcpyNode", graph, None, 0, byref(copy), api.context)
    return node, api.rows()


def add_memset(api: Api, graph: int, at: int) -> tuple[int, Expected]:
    node = api.out(
        c_void_p, "cuGraphAddMemsetNode", graph, None, 0, byref(row_set(at)), api.context
    )
    return node, SET_LEAVES


def mem_operations(api: Api, at: int) -> MemOperations:
    params = operations(at)
    api.keep.append(params)
    return MemOperations(ctx=api.context, count=2, params=params)


def add_batch_mem_op(api: Api, graph: int, at: int) -> tuple[int, Expected]:
    params = mem_operations(api, at)
    node = api.out(c_void_p, "cuGraphAddBatchMemOpNode", graph, None, 0, byref(params))
    return node, OPERATIONS_LEAVE


def node_params(api: Api, kind: int, at: int) -> tuple[NodeParams, Expected]:
    params = NodeParams(type=kind)
    if kind == MEMCPY_NODE:
        params.node.memcpy.ctx = api.context
        params.node.memcpy.copy = row_copy(api, at)
        return params, api.rows()
    if kind == MEMSET_NODE:
        params.node.memset = row_set(at)
        params.node.memset.ctx = api.context
        return params, SET_LEAVES
    params.node.memop = mem_operations(api, at)
    return params, OPERATIONS_LEAVE


def add_node(name: str, kind: int) -> AddNode:
    def add(api: Api, graph: int, at: int) -> tuple[int, Expected]:
        params, expected = node_params(api, kind, at)
        edges = () if name == "cuGraphAddNode" else (None,)
        return api.out(c_void_p, name, graph, None, *edges, 0, byref(params)), expected

    return add


def instantiate(api: Api, graph: int, name: str = "cuGraphInstantiateWithFlags") -> int:
    if name in {"cuGraphInstantiate", "cuGraphInstantiate_v2"}:
        return int(api.out(c_void_p, name, graph, None, None, 0))
    if "WithParams" in name:
        return int(api.out(c_void_p, name, graph, byref(InstantiateParams())))
    return int(api.out(c_void_p, name, graph, 0))


def run(api: Api, executable: int, name: str = "cuGraphLaunch") -> None:
    api.call(name, executable, 0)
    api.sync()
    api.call("cuGraphExecDestroy", executable)


def graph(
    add: AddNode, made_by: str = "cuGraphInstantiateWithFlags", launched_by: str = "cuGraphLaunch"
) -> Writer:
    def write(api: Api, at: int) -> Expected:
        handle = api.out(c_void_p, "cuGraphCreate", 0)
        _, expected = add(api, handle, at)
        run(api, instantiate(api, handle, made_by), launched_by)
        api.call("cuGraphDestroy", handle)
        return expected

    return write


def changed_before(add: AddNode, change: Callable[[Api, int, int], Expected]) -> Writer:
    """A node that is turned to the address while the graph is built."""

    def write(api: Api, at: int) -> Expected:
        handle = api.out(c_void_p, "cuGraphCreate", 0)
        node, _ = add(api, handle, api.device + 4096)
        expected = change(api, node, at)
        run(api, instantiate(api, handle))
        api.call("cuGraphDestroy", handle)
        return expected

    return write


def changed_after(add: AddNode, change: Callable[[Api, int, int, int], Expected]) -> Writer:
    """A node that is turned to the address in the instantiated graph."""

    def write(api: Api, at: int) -> Expected:
        handle = api.out(c_void_p, "cuGraphCreate", 0)
        node, _ = add(api, handle, api.device + 4096)
        executable = instantiate(api, handle)
        expected = change(api, executable, node, at)
        run(api, executable)
        api.call("cuGraphDestroy", handle)
        return expected

    return write


def updated(name: str) -> Writer:
    """An instantiated graph that takes the nodes of another."""

    def write(api: Api, at: int) -> Expected:
        graphs = [api.out(c_void_p, "cuGraphCreate", 0) for _ in range(2)]
        add_memcpy(api, graphs[0], api.device + 4096)
        _, expected = add_memcpy(api, graphs[1], at)
        executable = instantiate(api, graphs[0])
        outcome = UpdateResult()
        node = c_void_p()
        if name == "cuGraphExecUpdate":
            api.call(name, executable, graphs[1], byref(node), byref(outcome))
        else:
            api.call(name, executable, graphs[1], byref(outcome))
        run(api, executable)
        for each in graphs:
            api.call("cuGraphDestroy", each)
        return expected

    return write


def child(api: Api, graph_: int, at: int) -> tuple[int, Expected]:
    inner = api.out(c_void_p, "cuGraphCreate", 0)
    _, expected = add_memcpy(api, inner, at)
    node = api.out(c_void_p, "cuGraphAddChildGraphNode", graph_, None, 0, inner)
    api.call("cuGraphDestroy", inner)
    return node, expected


def cloned(api: Api, at: int) -> Expected:
    original = api.out(c_void_p, "cuGraphCreate", 0)
    _, expected = add_memset(api, original, at)
    clone = api.out(c_void_p, "cuGraphClone", original)
    api.call("cuGraphDestroy", original)
    run(api, instantiate(api, clone))
    api.call("cuGraphDestroy", clone)
    return expected


def captured(begin: str, end: str, record: Writer) -> Writer:
    """A write that is recorded, and happens at the launch."""

    def write(api: Api, at: int) -> Expected:
        relaxed = 2
        mode = () if begin in {"cuStreamBeginCapture", "cuStreamBeginCapture_ptsz"} else (relaxed,)
        api.call(begin, api.stream, *mode)
        expected = record(api, at)
        handle = c_void_p()
        api.call(end, api.stream, byref(handle))
        run(api, instantiate(api, int(handle.value or 0)))
        api.call("cuGraphDestroy", handle)
        return expected

    return write


def record_copy(api: Api, at: int) -> Expected:
    api.call("cuMemcpyDtoDAsync_v2", at, api.device, SIZE, api.stream)
    return {0: PATTERN[:SIZE]}


def record_pageable_copy(api: Api, at: int) -> Expected:
    api.call("cuMemcpyHtoDAsync_v2", at, api.host, SIZE, api.stream)
    return {0: PATTERN[:SIZE]}


def record_set(api: Api, at: int) -> Expected:
    api.call("cuMemsetD8Async", at, 0xA5, SIZE, api.stream)
    return {0: b"\xa5" * SIZE}


def set_memcpy(api: Api, node: int, at: int) -> Expected:
    api.call("cuGraphMemcpyNodeSetParams", node, byref(row_copy(api, at)))
    return api.rows()


def set_memset(api: Api, node: int, at: int) -> Expected:
    api.call("cuGraphMemsetNodeSetParams", node, byref(row_set(at)))
    return SET_LEAVES


def set_batch_mem_op(api: Api, node: int, at: int) -> Expected:
    api.call("cuGraphBatchMemOpNodeSetParams", node, byref(mem_operations(api, at)))
    return OPERATIONS_LEAVE


def set_node(name: str, kind: int) -> Callable[[Api, int, int], Expected]:
    def change(api: Api, node: int, at: int) -> Expected:
        params, expected = node_params(api, kind, at)
        api.call(name, node, byref(params))
        return expected

    return change


def exec_memcpy(api: Api, executable: int, node: int, at: int) -> Expected:
    copy = row_copy(api, at)
    api.call("cuGraphExecMemcpyNodeSetParams", executable, node, byref(copy), api.context)
    return api.rows()


def exec_memset(api: Api, executable: int, node: int, at: int) -> Expected:
    value = row_set(at)
    api.call("cuGraphExecMemsetNodeSetParams", executable, node, byref(value), api.context)
    return SET_LEAVES


def exec_batch_mem_op(api: Api, executable: int, node: int, at: int) -> Expected:
    params = mem_operations(api, at)
    api.call("cuGraphExecBatchMemOpNodeSetParams", executable, node, byref(params))
    return OPERATIONS_LEAVE


def exec_node(kind: int) -> Callable[[Api, int, int, int], Expected]:
    def change(api: Api, executable: int, node: int, at: int) -> Expected:
        params, expected = node_params(api, kind, at)
        api.call("cuGraphExecNodeSetParams", executable, node, byref(params))
        return expected

    return change


def exec_child(api: Api, executable: int, node: int, at: int) -> Expected:
    inner = api.out(c_void_p, "cuGraphCreate", 0)
    _, expected = add_memcpy(api, inner, at)
    api.call("cuGraphExecChildGraphNodeSetParams", executable, node, inner)
    api.call("cuGraphDestroy", inner)
    return expected


def graph_writers() -> dict[str, Writer]:
    """Nodes, however they got into the graph, and every way to instantiate and launch it."""
    found: dict[str, Writer] = {
        "cuGraphAddMemcpyNode": graph(add_memcpy),
        "cuGraphAddMemsetNode": graph(add_memset),
        "cuGraphAddBatchMemOpNode": graph(add_batch_mem_op),
        "cuGraphAddChildGraphNode": graph(child),
        "cuGraphClone": cloned,
        "cuGraphLaunch_ptsz": graph(add_memcpy, launched_by="cuGraphLaunch_ptsz"),
        "cuGraphMemcpyNodeSetParams": changed_before(add_memcpy, set_memcpy),
        "cuGraphMemsetNodeSetParams": changed_before(add_memset, set_memset),
        "cuGraphBatchMemOpNodeSetParams": changed_before(add_batch_mem_op, set_batch_mem_op),
        "cuGraphExecMemcpyNodeSetParams": changed_after(add_memcpy, exec_memcpy),
        "cuGraphExecMemsetNodeSetParams": changed_after(add_memset, exec_memset),
        "cuGraphExecBatchMemOpNodeSetParams": changed_after(add_batch_mem_op, exec_batch_mem_op),
        "cuGraphExecChildGraphNodeSetParams": changed_after(child, exec_child),
        "cuGraphExecUpdate": updated("cuGraphExecUpdate"),
        "cuGraphExecUpdate_v2": updated("cuGraphExecUpdate_v2"),
    }
    kinds = {
        "memcpy": (MEMCPY_NODE, add_memcpy),
        "memset": (MEMSET_NODE, add_memset),
        "batch mem op": (BATCH_MEM_OP_NODE, add_batch_mem_op),
    }
    for text, (kind, add) in kinds.items():
        for name in ("cuGraphAddNode", "cuGraphAddNode_v2", "cuGraphAddNode_v3"):
            found[f"{name}, {text}"] = graph(add_node(name, kind))
        for name in ("cuGraphNodeSetParams", "cuGraphNodeSetParams_v2"):
            found[f"{name}, {text}"] = changed_before(add, set_node(name, kind))
        found[f"cuGraphExecNodeSetParams, {text}"] = changed_after(add, exec_node(kind))
    for name in (
        "cuGraphInstantiate",
        "cuGraphInstantiate_v2",
        "cuGraphInstantiateWithFlags",
        *both("cuGraphInstantiateWithParams", "_ptsz"),
    ):
        found[name] = graph(add_memset, made_by=name)
    for suffix in ("", "_ptsz"):
        begin, end = f"cuStreamBeginCapture_v2{suffix}", f"cuStreamEndCapture{suffix}"
        found[f"{begin}, copy"] = captured(begin, end, record_copy)
        found[f"{begin}, copy from the host"] = captured(begin, end, record_pageable_copy)
        found[f"{begin}, set"] = captured(begin, end, record_set)
        old = f"cuStreamBeginCapture{suffix}"
        found[old] = captured(old, end, record_copy)
    return found
