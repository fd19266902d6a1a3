# SPDX-License-Identifier: Apache-2.0
"""Which bytes of the device a copy or set touches is computed without missing one."""

from __future__ import annotations

import ctypes
from ctypes import c_size_t, c_uint, c_uint64
from pathlib import Path
from typing import Any

import pytest

from tests.support.compile import ROOT, compile_c
from tests.support.cuda_structs import (
    ARRAY,
    DEVICE,
    FLUSH,
    HOST,
    POINTER_OPERAND,
    REDUCTION,
    UNIFIED,
    WAIT_32,
    WAIT_64,
    WRITE_32,
    WRITE_64,
    BatchOperation,
    Copy2D,
    Copy3D,
    MemOperation,
    Operand,
    Pointer,
    Reduction,
)

WRITE, EVERY_BYTE = 1, 2
SPANS_BYTES = 4096  # more than struct gksm_spans


class Span(ctypes.Structure):
    _fields_ = (("address", c_uint64), ("bytes", c_size_t), ("flags", c_uint))


class Spans(ctypes.Structure):
    _fields_ = (
        ("items", ctypes.POINTER(Span)),
        ("count", c_size_t),
        ("capacity", c_size_t),
        ("lost", ctypes.c_bool),
        ("rest", ctypes.c_char * SPANS_BYTES),
    )


Found = list[tuple[int, int, int]]


class Library:
    """interpose/spans.c by itself."""

    def __init__(self, path: Path) -> None:
        self.code = ctypes.CDLL(str(path))

    def found(self, function: str, *arguments: Any) -> Found:
        """(address, bytes, flags) of what the function appends to an empty list."""
        spans = Spans()
        self.code.gksm_spans_init(ctypes.byref(spans))
        getattr(self.code, function)(ctypes.byref(spans), *arguments)
        assert not spans.lost
        result = [(s.address, s.bytes, s.flags) for s in spans.items[: spans.count]]
        self.code.gksm_spans_free(ctypes.byref(spans))
        return result


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("spans")
    stub = folder / "driver.c"
    stub.write_text("const void *gksm_driver(void) { return 0; }\n")
    include = [f"-I{ROOT / path}" for path in ("libgksm/include", "libgksm/src", "build/gen")]
    source = ROOT / "libgksm/src/interpose/spans.c"
    return Library(compile_c(folder / "spans.so", [source, stub], "-shared", *include))


def touched(copy: Copy3D, prefix: str, base: int) -> set[int]:
    """Every byte of one side, enumerated."""
    get = lambda name: getattr(copy, prefix + name)  # noqa: E731
    return {
        base
        + get("XInBytes")
        + x
        + (get("Y") + y) * get("Pitch")
        + (get("Z") + z) * get("Pitch") * get("Height")
        for x in range(copy.WidthInBytes)
        for y in range(copy.Height)
        for z in range(copy.Depth)
    }


@pytest.mark.parametrize("kind", [DEVICE, UNIFIED])
@pytest.mark.parametrize(
    "shape",  # width, rows, layers; pitch, height; x, y, z
    [
        (64, 1, 1, 64, 1, 0, 0, 0),
        (64, 4, 1, 64, 4, 0, 0, 0),
        (64, 4, 3, 64, 4, 0, 0, 0),
        (64, 4, 3, 64, 6, 0, 0, 0),
        (48, 4, 3, 64, 4, 0, 0, 0),
        (48, 4, 3, 64, 7, 5, 2, 1),
        (1, 1, 1, 512, 9, 511, 8, 4),
    ],
)
def test_a_pitched_copy_covers_its_bytes_exactly_from_first_to_last(
    library: Library, kind: int, shape: tuple[int, ...]
) -> None:
    width, rows, layers, pitch, height, x, y, z = shape
    base = 1 << 40
    copy = Copy3D(WidthInBytes=width, Height=rows, Depth=layers)
    for prefix, at in (("dst", base), ("src", 2 * base)):
        for name, value in (
            ("XInBytes", x), ("Y", y), ("Z", z), ("MemoryType", kind), ("Device", at),
            ("Pitch", pitch), ("Height", height),
        ):  # fmt: skip
            setattr(copy, prefix + name, value)
    written = touched(copy, "dst", base)
    read = touched(copy, "src", 2 * base)
    dense = len(written) == max(written) - min(written) + 1
    assert library.found("gksm_spans_copy_3d", ctypes.byref(copy)) == [
        (min(written), max(written) - min(written) + 1, WRITE | (EVERY_BYTE if dense else 0)),
        (min(read), max(read) - min(read) + 1, 0),
    ]


def test_a_2d_copy_from_the_host_writes_rows_and_the_gaps_stay(library: Library) -> None:
    copy = Copy2D(
        srcMemoryType=HOST, srcHost=4096, srcPitch=100,
        dstMemoryType=DEVICE, dstDevice=1 << 40, dstPitch=256, dstXInBytes=16, dstY=2,
        WidthInBytes=100, Height=3,
    )  # fmt: skip
    assert library.found("gksm_spans_copy_2d", ctypes.byref(copy)) == [
        ((1 << 40) + 16 + 512, 2 * 256 + 100, WRITE),
        (4096, 300, 0),
    ]


def test_an_array_is_no_address(library: Library) -> None:
    copy = Copy2D(
        srcMemoryType=ARRAY, srcArray=77, srcDevice=1 << 40,
        dstMemoryType=DEVICE, dstDevice=1 << 41, dstPitch=64, WidthInBytes=64, Height=1,
    )  # fmt: skip
    assert library.found("gksm_spans_copy_2d", ctypes.byref(copy)) == [
        (1 << 41, 64, WRITE | EVERY_BYTE)
    ]


def test_a_copy_of_nothing_touches_nothing(library: Library) -> None:
    flat = Copy2D(
        srcMemoryType=DEVICE, srcDevice=4096, dstMemoryType=DEVICE, dstDevice=8192,
        srcPitch=64, dstPitch=64, WidthInBytes=0, Height=9,
    )  # fmt: skip
    assert library.found("gksm_spans_copy_2d", ctypes.byref(flat)) == []
    assert library.found("gksm_spans_copy_1d", c_uint64(8192), c_uint64(4096), c_size_t(0)) == []


def test_sizes_that_overflow_do_not_shrink_the_span(library: Library) -> None:
    huge = c_size_t((1 << 64) - 1)
    (span,) = library.found(
        "gksm_spans_memset_2d", c_uint64(1 << 40), huge, c_size_t(4), huge, huge
    )
    assert span[0] == 1 << 40
    assert span[1] == (1 << 64) - 1 - (1 << 40)


@pytest.mark.parametrize("element", [1, 2, 4])
def test_a_memset_counts_elements(library: Library, element: int) -> None:
    dense = library.found(
        "gksm_spans_memset_2d", c_uint64(4096), c_size_t(0), c_size_t(element), c_size_t(100),
        c_size_t(1),
    )  # fmt: skip
    assert dense == [(4096, 100 * element, WRITE | EVERY_BYTE)]
    rows = library.found(
        "gksm_spans_memset_2d", c_uint64(4096), c_size_t(1024), c_size_t(element), c_size_t(100),
        c_size_t(3),
    )  # fmt: skip
    assert rows == [(4096, 2048 + 100 * element, WRITE)]


def operand(address: int, row: int) -> Operand:
    return Operand(type=POINTER_OPERAND, pointer=Pointer(ptr=address, rowLength=row))


def test_batch_operands_of_length_zero_are_packed(library: Library) -> None:
    copy = BatchOperation(
        src=operand(1 << 41, 80),
        dst=operand(1 << 40, 0),
        width=64, height=4, depth=2,
    )  # fmt: skip
    assert library.found("gksm_spans_copy_operand", ctypes.byref(copy)) == [
        (1 << 40, 512, WRITE | EVERY_BYTE),
        (1 << 41, 80 * 4 + 80 * 3 + 64, 0),
    ]


def test_stream_operations_write_words_and_what_is_polled_must_not_change(library: Library) -> None:
    operations = (MemOperation * 6)(
        MemOperation(operation=WRITE_32, address=4096),
        MemOperation(operation=WAIT_32, address=8192),
        MemOperation(operation=WRITE_64, address=12288),
        MemOperation(operation=WAIT_64, address=16384),
        MemOperation(operation=FLUSH, address=20480),
        MemOperation.from_buffer_copy(bytes(Reduction(operation=REDUCTION, address=24576))),
    )
    assert library.found("gksm_spans_stream_ops", operations, c_size_t(6)) == [
        (4096, 4, WRITE | EVERY_BYTE),
        (8192, 4, WRITE),
        (12288, 8, WRITE | EVERY_BYTE),
        (16384, 8, WRITE),
        (24576, 8, WRITE),
    ]


def test_a_long_list_keeps_every_span(library: Library) -> None:
    operations = (MemOperation * 1000)(
        *(MemOperation(operation=WRITE_32, address=4096 * (n + 1)) for n in range(1000))
    )
    found = library.found("gksm_spans_stream_ops", operations, c_size_t(1000))
    assert [address for address, _, _ in found] == [4096 * (n + 1) for n in range(1000)]
