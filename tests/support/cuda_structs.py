# SPDX-License-Identifier: Apache-2.0
"""Structs of cuda.h as ctypes, for calling entry points by the names of their symbols."""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

HOST, DEVICE, ARRAY, UNIFIED = 1, 2, 3, 4  # CUmemorytype
POINTER_OPERAND = 1
WAIT_32, WRITE_32, FLUSH, WAIT_64, WRITE_64, REDUCTION = 1, 2, 3, 4, 5, 8
MEMCPY_NODE, MEMSET_NODE, BATCH_MEM_OP_NODE = 1, 2, 12


def _side(prefix: str, *, layers: bool) -> list[tuple[str, Any]]:
    fields: list[tuple[str, Any]] = [("XInBytes", c_size_t), ("Y", c_size_t)]
    if layers:
        fields += [("Z", c_size_t), ("LOD", c_size_t)]
    fields += [("MemoryType", c_int), ("Host", c_void_p), ("Device", c_uint64), ("Array", c_void_p)]
    if layers:
        fields += [("Context", c_void_p)]
    fields += [("Pitch", c_size_t)]
    if layers:
        fields += [("Height", c_size_t)]
    return [(prefix + name, kind) for name, kind in fields]


class Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = (
        *_side("src", layers=False),
        *_side("dst", layers=False),
        ("WidthInBytes", c_size_t),
        ("Height", c_size_t),
    )


class Copy3D(ctypes.Structure):
    """CUDA_MEMCPY3D, and CUDA_MEMCPY3D_PEER, which has contexts where the other has NULL."""

    _fields_ = (
        *_side("src", layers=True),
        *_side("dst", layers=True),
        ("WidthInBytes", c_size_t),
        ("Height", c_size_t),
        ("Depth", c_size_t),
    )


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", c_int), ("id", c_int))


class CopyAttributes(ctypes.Structure):
    """CUmemcpyAttributes."""

    _fields_ = (("order", c_int), ("src", Location), ("dst", Location), ("flags", c_uint))


class Pointer(ctypes.Structure):
    """The pointer in a CUmemcpy3DOperand."""

    _fields_ = (
        ("ptr", c_uint64),
        ("rowLength", c_size_t),
        ("layerHeight", c_size_t),
        ("hint", Location),
    )


class _OperandUnion(ctypes.Union):
    _fields_ = (("pointer", Pointer), ("array", c_uint64 * 4))


class Operand(ctypes.Structure):
    """CUmemcpy3DOperand."""

    _anonymous_ = ("operand",)
    _fields_ = (("type", c_int), ("operand", _OperandUnion))


class BatchOperation(ctypes.Structure):
    """CUDA_MEMCPY3D_BATCH_OP."""

    _fields_ = (
        ("src", Operand),
        ("dst", Operand),
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
        ("order", c_int),
        ("flags", c_uint),
    )


class MemOperation(ctypes.Structure):
    """CUstreamBatchMemOpParams of a write or wait."""

    _fields_ = (
        ("operation", c_int),
        ("address", c_uint64),
        ("value", c_uint64),
        ("flags", c_uint),
        ("alias", c_uint64),
        ("pad", c_uint64),
    )


class Reduction(ctypes.Structure):
    """CUstreamBatchMemOpParams of an atomic."""

    _fields_ = (
        ("operation", c_int),
        ("flags", c_uint),
        ("op", c_int),
        ("type", c_int),
        ("address", c_uint64),
        ("value", c_uint64),
        ("alias", c_uint64),
        ("pad", c_uint64),
    )


class Memset(ctypes.Structure):
    """CUDA_MEMSET_NODE_PARAMS; version 2 has the context in it."""

    _fields_ = (
        ("dst", c_uint64),
        ("pitch", c_size_t),
        ("value", c_uint),
        ("elementSize", c_uint),
        ("width", c_size_t),
        ("height", c_size_t),
        ("ctx", c_void_p),
    )


class MemOperations(ctypes.Structure):
    """CUDA_BATCH_MEM_OP_NODE_PARAMS."""

    _fields_ = (
        ("ctx", c_void_p),
        ("count", c_uint),
        ("params", ctypes.POINTER(MemOperation)),
        ("flags", c_uint),
    )


class CopyNode(ctypes.Structure):
    """CUDA_MEMCPY_NODE_PARAMS."""

    _fields_ = (("flags", c_int), ("reserved", c_int), ("ctx", c_void_p), ("copy", Copy3D))


class _NodeUnion(ctypes.Union):
    _fields_ = (
        ("memcpy", CopyNode),
        ("memset", Memset),
        ("memop", MemOperations),
        ("padding", ctypes.c_char * 232),
    )


class NodeParams(ctypes.Structure):
    """CUgraphNodeParams."""

    _fields_ = (
        ("type", c_int),
        ("reserved", c_int * 3),
        ("node", _NodeUnion),
        ("reserved2", c_uint64),
    )


class InstantiateParams(ctypes.Structure):
    """CUDA_GRAPH_INSTANTIATE_PARAMS."""

    _fields_ = (("flags", c_uint64), ("stream", c_void_p), ("node", c_void_p), ("result", c_int))


class UpdateResult(ctypes.Structure):
    """CUgraphExecUpdateResultInfo."""

    _fields_ = (("result", c_int), ("node", c_void_p), ("from_node", c_void_p))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("count", c_uint),
    )


class _AllocationFlags(ctypes.Structure):
    _fields_ = (
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class AllocationProp(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("flags", _AllocationFlags),
    )


class AccessDesc(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", Location), ("flags", c_int))
