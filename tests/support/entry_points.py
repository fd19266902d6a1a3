# SPDX-License-Identifier: Apache-2.0
"""Every entry point that writes or reads device memory, called by the name of its symbol.

Run inside an actor (`python -m tests.support.entry_points`). A writer puts something at an
address of device memory and says which bytes now stand there: {offset: bytes}. A reader brings
SIZE bytes from an address to the host.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

from gksm_bench.driver import CudaError

from tests.support import actor
from tests.support.actor import LEGACY, PER_THREAD, Actor
from tests.support.cuda_structs import (
    BATCH_MEM_OP_NODE,
    DEVICE,
    HOST,
    MEMCPY_NODE,
    MEMSET_NODE,
    POINTER_OPERAND,
    UNIFIED,
    WRITE_32,
    WRITE_64,
    BatchOperation,
    Copy2D,
    Copy3D,
    CopyAttributes,
    InstantiateParams,
    LaunchConfig,
    MemOperation,
    MemOperations,
    Memset,
    NodeParams,
    Operand,
    Pointer,
    UpdateResult,
)
from tests.support.pages import PAGE

SIZE = 96
ROWS, PITCH = 3, 256
PATTERN = bytes(1 + n % 251 for n in range(ROWS * SIZE))
WORD = 0x1234_5678_9ABC_DEF0
IN_STREAM_ORDER = 1
# gksm.toml for a machine that may be too busy to answer in the times meant for a real one.
PATIENT = """
[guard]
hold_deadline_ms = 10000
stall_budget_ms = 1000
[load]
order_wait_ms = 10000
"""

Expected = dict[int, bytes]


class Api:
    """The driver's symbols, as a program that looks them up by name has them."""

    def __init__(self, context: int) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.context = context
        self.keep: list[Any] = []
        self.host = ctypes.create_string_buffer(PATTERN, len(PATTERN))
        self.device = self.out(c_uint64, "cuMemAlloc_v2", 65536)
        self.call("cuMemcpyHtoD_v2", self.device, self.host, len(PATTERN))
        self.stream = self.out(c_void_p, "cuStreamCreate", 0)
        self.sync()

    def call(self, name: str, *arguments: Any) -> None:
        """Integers go as 64 bits, which is right for narrower parameters too."""
        function = getattr(self.library, name)
        function.restype = c_int
        values = [c_uint64(v & (1 << 64) - 1) if isinstance(v, int) else v for v in arguments]
        result = function(*values)
        if result != 0:
            raise CudaError(result, name)

    def out(self, kind: Any, name: str, *arguments: Any) -> Any:
        """The value that the call stores by its first parameter."""
        result = kind()
        self.call(name, byref(result), *arguments)
        return result.value

    def sync(self) -> None:
        for stream in (LEGACY, PER_THREAD, self.stream):
            self.call("cuStreamSynchronize", stream)

    def rows(self) -> Expected:
        """What a copy of all rows leaves at the destination."""
        return {row * PITCH: PATTERN[row * SIZE : (row + 1) * SIZE] for row in range(ROWS)}


Writer = Callable[[Api, int], Expected]
Reader = Callable[[Api, int], bytes]


def both(name: str, suffix: str) -> list[str]:
    return [name, name + suffix]


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
    return found | graph_writers()


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


# Launches


class Arguments:
    """The parameters of write_pages (one word at the address), in the driver's two forms."""

    def __init__(self, at: int) -> None:
        offset = at % PAGE
        self.values = [c_uint64(v) for v in (at - offset, 0, 1, 1, offset)]
        self.word = ctypes.c_uint32(WORD & 0xFFFF_FFFF)
        each = [*self.values, self.word]
        self.pointers = (c_void_p * len(each))(*map(ctypes.addressof, each))
        self.packed = b"".join(map(bytes, each))
        self.size = c_size_t(len(self.packed))
        end, pointer, size = 0, 1, 2
        self.extra = (c_void_p * 5)(
            pointer,
            ctypes.cast(self.packed, c_void_p).value,
            size,
            ctypes.addressof(self.size),
            end,
        )


Launcher = Callable[[Api, int, Arguments], None]


def launch(name: str, *, packed: bool = False) -> Launcher:
    one = (1, 1, 1, 1, 1, 1, 0)

    def use(api: Api, function: int, arguments: Arguments) -> None:
        parameters = (None, arguments.extra) if packed else (arguments.pointers, None)
        if "Ex" in name:
            config = LaunchConfig(grid=(1, 1, 1), block=(1, 1, 1))
            api.call(name, byref(config), function, *parameters)
        elif "Cooperative" in name:
            api.call(name, function, *one, 0, arguments.pointers)
        else:
            api.call(name, function, *one, 0, *parameters)
        api.sync()

    return use


def launch_captured(api: Api, function: int, arguments: Arguments) -> None:
    relaxed = 2
    api.call("cuStreamBeginCapture_v2", api.stream, relaxed)
    api.call(
        "cuLaunchKernel", function, *(1, 1, 1, 1, 1, 1, 0), api.stream, arguments.pointers, None
    )
    handle = c_void_p()
    api.call("cuStreamEndCapture", api.stream, byref(handle))
    run(api, instantiate(api, int(handle.value or 0)))
    api.call("cuGraphDestroy", handle)


def launchers() -> dict[str, Launcher]:
    """Every way to start a kernel, by name."""
    found: dict[str, Launcher] = {"a graph": launch_captured}
    for name in both("cuLaunchKernel", "_ptsz") + both("cuLaunchKernelEx", "_ptsz"):
        found[name] = launch(name)
        found[f"{name}, packed parameters"] = launch(name, packed=True)
    for name in both("cuLaunchCooperativeKernel", "_ptsz"):
        found[name] = launch(name)
    return found


class EntryPointActor(Actor):
    """An actor that can be told to use one entry point."""

    def prepare(self) -> None:
        self.api = Api(int(self.context))

    def write_by(self, name: str, address: int) -> dict[str, str]:
        """What now stands where: {offset: bytes in hex}."""
        left = writers()[name](self.api, address)
        self.api.sync()
        return {str(offset): data.hex() for offset, data in left.items()}

    def read_by(self, name: str, address: int) -> str:
        return readers()[name](self.api, address).hex()

    def launch_by(self, name: str, address: int) -> dict[str, str]:
        """A kernel that writes one word at the address."""
        function = int(self.function("write_pages"))
        launchers()[name](self.api, function, Arguments(address))
        self.api.sync()
        return {"0": (WORD & 0xFFFF_FFFF).to_bytes(4, "little").hex()}

    # Questions

    def status(self, name: str, *arguments: int) -> int:
        """The CUresult of a call with integer arguments."""
        try:
            self.api.call(name, *arguments)
        except CudaError as error:
            return error.code
        return 0

    def range_of(self, address: int) -> list[int]:
        base, size = c_uint64(), c_size_t()
        self.api.call("cuMemGetAddressRange_v2", byref(base), byref(size), address)
        self.api.call("cuMemGetAddressRange_v2", None, byref(size), address)
        self.api.call("cuMemGetAddressRange_v2", byref(base), None, address)
        return [base.value, size.value]

    def attribute(self, attribute: int, address: int) -> list[Any]:
        """[CUresult, what is in 16 bytes of 0xEE afterwards]."""
        data = ctypes.create_string_buffer(b"\xee" * 16, 16)
        code = self.status("cuPointerGetAttribute", ctypes.addressof(data), attribute, address)
        return [code, data.raw.hex()]

    def attributes(self, wanted: list[int], address: int) -> list[Any]:
        """The same by one call for many: [CUresult, [bytes, ...]]."""
        buffers = [ctypes.create_string_buffer(b"\xee" * 16, 16) for _ in wanted]
        pointers = (c_void_p * len(wanted))(*map(ctypes.addressof, buffers))
        names = (c_int * len(wanted))(*wanted)
        code = self.status(
            "cuPointerGetAttributes",
            len(wanted),
            ctypes.addressof(names),
            ctypes.addressof(pointers),
            address,
        )
        return [code, [buffer.raw.hex() for buffer in buffers]]

    def ipc_handle(self, address: int) -> int:
        handle = ctypes.create_string_buffer(64)
        return self.status("cuIpcGetMemHandle", ctypes.addressof(handle), address)

    def retain_handle(self, address: int) -> int:
        handle = c_uint64()
        code = self.status("cuMemRetainAllocationHandle", ctypes.addressof(handle), address)
        if code == 0:
            self.api.call("cuMemRelease", handle.value)
        return code

    def sync_memops(self, address: int) -> None:
        """What a program does before it registers memory with a NIC."""
        sync_memops = 6
        value = ctypes.c_uint(1)
        self.api.call("cuPointerSetAttribute", byref(value), sync_memops, address)

    def range_handle(self, address: int, nbytes: int) -> int:
        """A dma-buf for the range; the CUresult."""
        dma_buf = 1
        handle = c_int(-1)
        arguments = (ctypes.addressof(handle), address, nbytes, dma_buf, 0)
        return self.status("cuMemGetHandleForAddressRange", *arguments)

    def context_handle(self) -> int:
        return self.api.context

    # Graphs that stay

    def make_graph(self, address: int) -> list[int]:
        """[graph, instantiated graph] with one set at the address."""
        handle = int(self.api.out(c_void_p, "cuGraphCreate", 0))
        add_memset(self.api, handle, address)
        return [handle, instantiate(self.api, handle)]

    def launch_graph(self, executable: int) -> None:
        self.api.call("cuGraphLaunch", executable, 0)
        self.api.sync()

    def update_graph(self, executable: int, graph_: int) -> None:
        self.api.call("cuGraphExecUpdate_v2", executable, graph_, byref(UpdateResult()))

    def destroy_executable(self, executable: int) -> None:
        self.api.call("cuGraphExecDestroy", executable)

    # Streams

    def destroy_stream(self, name: str) -> None:
        self.api.call("cuStreamDestroy_v2", int(self.streams.pop(name)))

    def begin_capture(self, name: str, mode: int) -> None:
        self.api.call("cuStreamBeginCapture_v2", int(self.stream(name)), mode)

    def end_capture(self, name: str) -> int:
        """How many nodes were recorded."""
        handle, nodes = c_void_p(), c_size_t()
        self.api.call("cuStreamEndCapture", int(self.stream(name)), byref(handle))
        self.api.call("cuGraphGetNodes", handle, None, byref(nodes))
        self.api.call("cuGraphDestroy", handle)
        return nodes.value

    def set_in(self, name: str, address: int) -> None:
        self.api.call("cuMemsetD8Async", address, 0xA5, SIZE, int(self.stream(name)))

    def hold_per_thread(self) -> int:
        """Like `hold`, in the per-thread stream of a thread that stays; its number for `end`."""
        started = threading.Event()
        flags: list[int] = []

        def work() -> int:
            flags.append(self.hold("per-thread"))
            started.set()
            self.sync("per-thread")
            return flags[0]

        self.held_work = work
        self.begin("held_work")
        started.wait()
        return flags[0]


if __name__ == "__main__":
    actor.main(EntryPointActor())
