# SPDX-License-Identifier: Apache-2.0
"""The wire format, read from ``libgksm/include/gksm/protocol.h``.

The header is the only place where a struct, an enum or a limit is written down. A
build turns it into ``protocol.cdef`` beside this file; in a source tree the header
itself is read. cffi lays the structs out in ABI mode, so no compiler is needed.

``lib.GKSM_...`` are the constants. ``Struct`` reads and writes one struct; the
``struct`` module's formats are derived from cffi's layout for those that come by the
hundred in a packet.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cffi

from gksmd.cdef import preprocess

# Sizes at GKSM_PROTOCOL_MIN of structs that have grown since: what a peer may send.
FIRST_SIZES: dict[str, int] = {"usage": 240}

_FORMATS = {
    "char": "s",
    "uint8_t": "s",
    "uint16_t": "H",
    "int32_t": "i",
    "uint32_t": "I",
    "uint64_t": "Q",
}


class ProtocolError(Exception):
    """The peer broke a rule of the protocol; its connection ends."""


def definitions() -> str:
    """The text for cdef: generated at build, or made from the header of a source tree."""
    generated = Path(__file__).with_name("protocol.cdef")
    if generated.exists():
        return generated.read_text()
    header = Path(__file__).resolve().parents[2] / "libgksm/include/gksm/protocol.h"
    return preprocess(header.read_text())


ffi = cffi.FFI()
ffi.cdef(definitions())
lib: Any = ffi.dlopen(None)


def _format(kind: Any) -> str:
    """The ``struct`` format of a cffi struct type: arrays of bytes and structs as bytes."""
    text, at = "=", 0
    for _, member in kind.fields:
        text += "x" * (member.offset - at)
        at = member.offset + ffi.sizeof(member.type)
        if member.type.kind == "array":
            item = _FORMATS[member.type.item.cname]
            text += f"{member.type.length}{item}"
        elif member.type.kind == "struct":
            text += f"{ffi.sizeof(member.type)}s"
        else:
            item = _FORMATS[member.type.cname]
            text += "B" if member.type.cname == "uint8_t" else item
    return text + "x" * (ffi.sizeof(kind) - at)


class Struct:
    """One struct of the protocol, under its name without ``gksm_``."""

    def __init__(self, name: str, min_bytes: int | None = None) -> None:
        self.name = name
        self._pointer = f"struct gksm_{name} *"
        kind: Any = ffi.typeof(f"struct gksm_{name}")
        self.size = ffi.sizeof(kind)
        self.min_bytes = min_bytes or FIRST_SIZES.get(name, self.size)
        packer = struct.Struct(_format(kind))
        self.pack = packer.pack  # all fields in order; nested structs and char[] as bytes
        self.pack_into = packer.pack_into
        self.unpack = packer.unpack
        self._iter_unpack = packer.iter_unpack

    def fit(self, data: bytes) -> bytes:
        """Give ``data`` our own size: zero-fill what an older peer lacks, cut a newer one's."""
        if len(data) == self.size:
            return data
        if len(data) < self.min_bytes:
            raise ProtocolError(f"{self.name} of {len(data)} bytes")
        return data[: self.size].ljust(self.size, b"\0")

    def read(self, data: bytes) -> Any:
        """The struct in ``data`` as a cffi object with the header's field names."""
        return ffi.from_buffer(self._pointer, self.fit(data))

    def build(self, **fields: Any) -> bytes:
        """A struct with these fields and zeroes elsewhere; text must fit with its NUL."""
        made: Any = ffi.new(self._pointer)
        for name, value in fields.items():
            setattr(made, name, value)
        return bytes(ffi.buffer(made))

    def rows(self, message: Message) -> Iterator[tuple[Any, ...]]:
        """The entries of ``message`` as tuples; take ``*_`` last, fields get appended."""
        stride = message.entry_bytes
        if stride == self.size:
            return self._iter_unpack(message.entries)
        if stride < self.min_bytes and message.entry_count:
            raise ProtocolError(f"{self.name} of {stride} bytes")
        entries = message.entries
        fitted = (entries[i : i + stride] for i in range(0, len(entries), stride))
        return self._iter_unpack(b"".join(map(self.fit, fitted)))


@dataclass(slots=True)
class Message:
    """One packet, taken apart. Whoever holds it owns its descriptors."""

    type: int
    flags: int
    seq: int
    status: int
    head: bytes
    entries: bytes
    entry_bytes: int
    entry_count: int
    fds: list[int] = field(default_factory=list)
    fds_lost: bool = False  # our own descriptor table was full


HEADER = Struct("header")
_MAGIC: int = lib.GKSM_MAGIC
_FDS_MAX: int = lib.GKSM_FDS_MAX


def parse(data: bytes, fds: list[int], truncated: bool = False) -> Message:
    """Take a packet apart; ``truncated``: the kernel could not deliver all descriptors.

    Raises ProtocolError; the descriptors stay the caller's then.
    """
    if len(data) < HEADER.size:
        raise ProtocolError(f"packet of {len(data)} bytes")
    magic, kind, flags, seq, status, head_bytes, entry_bytes, count, fd_count = HEADER.unpack(
        data[: HEADER.size]
    )
    if magic != _MAGIC:
        raise ProtocolError("no magic number")
    body = HEADER.size + head_bytes
    if body + entry_bytes * count != len(data) or (count and not entry_bytes):
        raise ProtocolError("lengths do not add up")
    if fd_count > _FDS_MAX:
        raise ProtocolError(f"{fd_count} descriptors")
    if fd_count != len(fds) and not (truncated and len(fds) < fd_count):
        raise ProtocolError(f"{len(fds)} descriptors where {fd_count} are announced")
    return Message(
        kind,
        flags,
        seq,
        status,
        data[HEADER.size : body],
        data[body:],
        entry_bytes,
        count,
        fds,
        truncated,
    )


def encode(
    kind: int,
    *,
    seq: int = 0,
    status: int = 0,
    flags: int = 0,
    head: bytes = b"",
    entries: bytes = b"",
    entry_bytes: int = 0,
    fd_count: int = 0,
) -> bytes:
    """Make a packet."""
    count = len(entries) // entry_bytes if entry_bytes else 0
    header = HEADER.pack(_MAGIC, kind, flags, seq, status, len(head), entry_bytes, count, fd_count)
    return bytes(header) + head + entries


def text(value: Any) -> str:
    """A char array as printable text."""
    raw = bytes(ffi.buffer(value)).partition(b"\0")[0]
    return "".join(c if c.isprintable() else "?" for c in raw.decode(errors="replace"))


def clip(value: str, room: int) -> bytes:
    """Text for a ``char[room]``: cut so that it ends in a NUL, and never inside a character."""
    return value.encode()[: room - 1].decode(errors="ignore").encode()


HELLO = Struct("hello")
WELCOME = Struct("welcome")
GPU_OPEN = Struct("gpu_open")
GPU_OPENED = Struct("gpu_opened")
GPU_REF = Struct("gpu_ref")
COMMIT = Struct("commit")
USAGE = Struct("usage")
LOOKUP = Struct("lookup")
LOOKUP_ENTRY = Struct("lookup_entry")
LOOKUP_RESULT = Struct("lookup_result")
OFFER = Struct("offer")
OFFER_ENTRY = Struct("offer_entry")
SCAN_TERMS = Struct("scan_terms")
WAIT = Struct("wait")
WAIT_ENTRY = Struct("wait_entry")
PUBLISH = Struct("publish")
PUBLISH_ENTRY = Struct("publish_entry")
PUBLISH_RESULT = Struct("publish_result")
LEASE_ENTRY = Struct("lease_entry")
SEGMENT_GET = Struct("segment_get")
SEGMENT_REF = Struct("segment_ref")
SEGMENT = Struct("segment")
PAGE_ENTRY = Struct("page_entry")
ANNOUNCE_RESULT = Struct("announce_result")
REPORT = Struct("report")
CONTROL = Struct("control")
VAULT_REF = Struct("vault_ref")
VAULT_KEY = Struct("vault_key")
VAULT_ITEM = Struct("vault_item")
