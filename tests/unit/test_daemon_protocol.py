# SPDX-License-Identifier: Apache-2.0
"""The codec: what is written once in protocol.h, and what becomes of peers that break it."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest
from gksmd import protocol, wire
from gksmd.cdef import preprocess
from gksmd.protocol import HEADER, Message, ProtocolError, Struct, encode, lib, parse
from hypothesis import given
from hypothesis import strategies as some

ROOT = Path(__file__).parents[2]
STRUCTS = [value for value in vars(protocol).values() if isinstance(value, Struct)]


def test_layout_is_the_compilers(tmp_path: Path) -> None:
    """The daemon lays structs out as a C compiler does, field by field."""
    lines = []
    for struct in STRUCTS:
        kind = protocol.ffi.typeof(f"struct gksm_{struct.name}")
        lines.append(f'printf("{struct.name} %zu\\n", sizeof(struct gksm_{struct.name}));')
        lines += [
            f'printf("{struct.name}.{name} %zu\\n", offsetof(struct gksm_{struct.name}, {name}));'
            for name, _ in kind.fields
        ]
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <stdio.h>\n#include <stddef.h>\n#include <gksm/protocol.h>\n"
        f"int main(void) {{ {' '.join(lines)} return 0; }}\n"
    )
    program = tmp_path / "layout"
    command = ["gcc", f"-I{ROOT}/libgksm/include", str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    ours = []
    for struct in STRUCTS:
        kind = protocol.ffi.typeof(f"struct gksm_{struct.name}")
        ours.append(f"{struct.name} {struct.size}")
        ours += [f"{struct.name}.{name} {member.offset}" for name, member in kind.fields]
    assert printed.split("\n")[:-1] == ours


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda s: s.name)
def test_tuples_and_named_fields_are_the_same_bytes(struct: Struct) -> None:
    raw = bytes(i % 251 for i in range(struct.size))
    read = struct.read(raw)
    values = iter(struct.unpack(raw))
    for name, member in protocol.ffi.typeof(f"struct gksm_{struct.name}").fields:
        kind = member.type
        # Arrays of numbers come one by one, text and structs as bytes.
        numbers = kind.kind == "array" and kind.item.cname not in ("char", "uint8_t")
        for index in range(kind.length if numbers else 1):
            value = next(values)
            field = getattr(read, name)
            if isinstance(value, int):
                assert (field[index] if numbers else field) == value, name
    assert next(values, None) is None


def test_a_packaged_daemon_reads_what_the_build_made_of_the_header() -> None:
    made = preprocess((ROOT / "libgksm/include/gksm/protocol.h").read_text())
    assert "#include" not in made
    assert "#ifndef" not in made
    ffi = protocol.cffi.FFI()
    ffi.cdef(made)
    assert ffi.sizeof("struct gksm_header") == HEADER.size


def test_fields_that_an_older_peer_lacks_read_as_zero() -> None:
    struct = Struct("segment", min_bytes=8)
    read = struct.read((7).to_bytes(8, "little"))
    assert (read.segment_id, read.bytes) == (7, 0)


def test_fields_that_a_newer_peer_has_on_top_are_skipped() -> None:
    raw = protocol.SEGMENT.build(segment_id=7, bytes=9) + b"newer"
    assert protocol.SEGMENT.read(raw).bytes == 9


def test_entries_of_an_older_or_newer_peer_are_read_one_by_one() -> None:
    newer = b"".join(n.to_bytes(8, "little") + b"extra!!!" for n in (1, 2, 3))
    message = Message(0, 0, 0, 0, b"", newer, 16, 3)
    assert [row[0] for row in protocol.LEASE_ENTRY.rows(message)] == [1, 2, 3]
    older = Struct("segment", min_bytes=8)
    message = Message(0, 0, 0, 0, b"", newer[:8] + newer[16:24], 8, 2)
    assert list(older.rows(message)) == [(1, 0), (2, 0)]


def test_a_struct_shorter_than_that_of_the_first_version_is_an_error() -> None:
    with pytest.raises(ProtocolError):
        protocol.WELCOME.read(bytes(protocol.WELCOME.size - 1))
    with pytest.raises(ProtocolError):
        list(protocol.PAGE_ENTRY.rows(Message(0, 0, 0, 0, b"", bytes(8), 8, 1)))


@given(some.binary(max_size=300))
def test_any_bytes_are_a_message_or_an_error(data: bytes) -> None:
    try:
        message = parse(data, [])
    except ProtocolError:
        return
    assert len(message.entries) == message.entry_bytes * message.entry_count


@given(some.data())
def test_any_damage_to_a_header_is_a_message_or_an_error(data: some.DataObject) -> None:
    packet = bytearray(encode(lib.GKSM_LOOKUP, head=bytes(8), entries=bytes(64), entry_bytes=16))
    packet[data.draw(some.integers(0, 31))] = data.draw(some.integers(0, 255))
    try:
        message = parse(bytes(packet), [])
    except ProtocolError:
        return
    assert len(message.head) + len(message.entries) + HEADER.size == len(packet)


def test_huge_lengths_that_wrap_around_are_an_error() -> None:
    header = HEADER.pack(lib.GKSM_MAGIC, 1, 0, 0, 0, 0, 1 << 31, 2, 0)
    with pytest.raises(ProtocolError):
        parse(header, [])
    with pytest.raises(ProtocolError):
        parse(HEADER.pack(lib.GKSM_MAGIC, 1, 0, 0, 0, 0xFFFFFFFF, 0, 0, 0), [])
    with pytest.raises(ProtocolError):
        parse(HEADER.pack(lib.GKSM_MAGIC, 1, 0, 0, 0, 0, 0, 0xFFFFFFFF, 0), [])


def test_descriptors_of_a_bad_packet_are_closed() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        before = len(os.listdir("/proc/self/fd"))
        wire.send(theirs, b"garbage", [0] * 253)
        with pytest.raises(ProtocolError):
            wire.receive(ours)
        wire.send(theirs, encode(lib.GKSM_LOOKUP, fd_count=3), [0, 0])
        with pytest.raises(ProtocolError):
            wire.receive(ours)
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_packet_that_is_too_large_is_an_error() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.send(bytes(wire.PACKET_MAX + 1))
        with pytest.raises(ProtocolError, match="too large"):
            wire.receive(ours)


def test_text_of_a_peer_becomes_printable() -> None:
    hello = protocol.HELLO.build(framework=b"vl\x1b[2Jlm\xff")
    assert (
        protocol.text(protocol.HELLO.read(hello).framework) == "vl?[2Jlm\N{REPLACEMENT CHARACTER}"
    )


def test_text_for_a_peer_is_cut_between_characters() -> None:
    assert protocol.clip("aé", 3) == b"a"
    assert protocol.clip("aé", 4) == "aé".encode()
