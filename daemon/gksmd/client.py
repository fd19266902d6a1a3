# SPDX-License-Identifier: Apache-2.0
"""A small blocking client of the protocol, for tests, benchmarks and tools.

It speaks as libgksm does and checks nothing that gksmd sends beyond its form. One
thread at a time.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gksmd.protocol import (
    ANNOUNCE_RESULT,
    COMMIT,
    COMMITTED,
    CONTROL,
    GPU_OPEN,
    GPU_OPENED,
    GPU_REF,
    HELLO,
    IPC_EXPORT,
    IPC_OPEN,
    IPC_OPENED,
    IPC_PAGES,
    IPC_REF,
    IPC_WANTED,
    LOOKUP,
    LOOKUP_RESULT,
    OFFER,
    OFFER_ENTRY,
    PAGE_ENTRY,
    PUBLISH,
    PUBLISH_ENTRY,
    PUBLISH_RESULT,
    RECLAIM,
    RECLAIMED,
    REPORT,
    SCAN_TERMS,
    SEGMENT,
    SEGMENT_GET,
    SEGMENT_REF,
    USAGE,
    WAIT,
    WELCOME,
    Message,
    encode,
    lib,
)
from gksmd.wire import receive, send, seqpacket

ALL_GUARDS = 0b1110
ALL_FEATURES = 0b1_0000_1111
_UNASKED = (lib.GKSM_CONTROL, lib.GKSM_IPC_WANTED)
TIMEOUT_S = 30.0


class ClosedError(Exception):
    """gksmd closed the connection."""


@dataclass(frozen=True, slots=True)
class Found:
    """One result of LOOKUP or WAIT; ``fd`` is the receiver's, -1 where there is none."""

    index: int
    outcome: int
    page_id: int
    token: int
    deadline_ms: int
    reason: int
    segment_id: int
    segment_offset: int
    fd: int


class Client:
    """A connection to gksmd."""

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S) -> None:
        """Connect; OSError if nobody listens."""
        self.sock = seqpacket()
        self.sock.settimeout(timeout_s)
        self.sock.connect(str(path))
        self.unasked: dict[int, deque[Any]] = {kind: deque() for kind in _UNASKED}
        self.scan_terms: Any = None  # the last SCAN_TERMS
        self.welcome: Any = None
        self._seq = 0

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()

    # Packets.

    def send(self, kind: int, *, fds: Sequence[int] = (), **parts: Any) -> int:
        """Send a message; returns its seq."""
        self._seq += 1
        packet = encode(kind, seq=self._seq, fd_count=len(fds), **parts)
        send(self.sock, packet, list(fds))
        return self._seq

    def receive(self) -> Message:
        """The next message that answers something. Raises ClosedError, TimeoutError."""
        while True:
            message = self._next()
            if message.type not in (*_UNASKED, lib.GKSM_SCAN_TERMS):
                return message
            self._keep(message)

    def _next(self) -> Message:
        try:
            message = receive(self.sock)
        except (ConnectionResetError, BrokenPipeError):
            raise ClosedError from None
        if message is None:
            raise ClosedError
        return message

    def _keep(self, message: Message) -> None:
        if message.type == lib.GKSM_SCAN_TERMS:
            self.scan_terms = SCAN_TERMS.read(message.head)
            return
        struct = CONTROL if message.type == lib.GKSM_CONTROL else IPC_WANTED
        self.unasked[message.type].append(struct.read(message.head))

    def ask(self, kind: int, **parts: Any) -> Message:
        """Send a request and receive its one reply."""
        seq = self.send(kind, **parts)
        message = self.receive()
        if message.seq != seq:
            raise ClosedError(f"reply to {message.seq} where {seq} was asked")
        return message

    def control(self) -> Any:
        """Wait for the next CONTROL."""
        return self._wait_for(lib.GKSM_CONTROL)

    def _wait_for(self, kind: int) -> Any:
        while not self.unasked[kind]:
            self._keep(self._next())
        return self.unasked[kind].popleft()

    # Requests.

    def hello(self, guards: int = ALL_GUARDS, protocol: int = 1, **fields: Any) -> Message:
        """Say HELLO; keeps and returns what came back.

        A refusal (status < 0) may have been said before HELLO was read, or even sent.
        """
        head = HELLO.build(
            protocol_min=protocol,
            protocol_max=protocol,
            guards=guards,
            **{"framework": b"test", "features": ALL_FEATURES, **fields},
        )
        with contextlib.suppress(BrokenPipeError):
            self.send(lib.GKSM_HELLO, head=head)
        message = self.receive()
        if message.type != lib.GKSM_WELCOME:
            raise ClosedError(f"message type {message.type} where WELCOME was due")
        self.welcome = WELCOME.read(message.head)
        return message

    def gpu_open(self, uuid: bytes, total_bytes: int = 80 << 30) -> Any:
        """Open a GPU; returns GPU_OPENED's struct."""
        head = GPU_OPEN.build(uuid=list(uuid), total_bytes=total_bytes, name=b"test GPU")
        return GPU_OPENED.read(self.ask(lib.GKSM_GPU_OPEN, head=head).head)

    def commit(self, pages: int, free_bytes: int, gpu: int = 0) -> int:
        """Ask for a promise; returns the status."""
        head = COMMIT.build(gpu=gpu, pages=pages, free_bytes=free_bytes)
        return self.ask(lib.GKSM_COMMIT, head=head).status

    def reclaim(self, wanted_bytes: int, gpu: int = 0) -> int:
        """Ask for memory that nobody maps to be given up; returns the bytes."""
        head = RECLAIM.build(gpu=gpu, bytes=wanted_bytes)
        return int(RECLAIMED.read(self.ask(lib.GKSM_RECLAIM, head=head).head).bytes)

    def held(self, free_bytes: int, gpu: int = 0) -> int:
        """How much of what is free gksmd keeps for others."""
        head = COMMIT.build(gpu=gpu, free_bytes=free_bytes)
        return int(COMMITTED.read(self.ask(lib.GKSM_COMMIT, head=head).head).held_bytes)

    def usage(self, gpu: int = 0, **counts: int) -> None:
        """Report absolute counts."""
        self.send(lib.GKSM_USAGE, head=USAGE.build(gpu=gpu, **counts))

    def lookup(self, hashes: Iterable[bytes], gpu: int = 0, kind: int = 0) -> list[Found]:
        """Look pages up; results in the order of the hashes."""
        seq = self.send(
            lib.GKSM_LOOKUP,
            head=LOOKUP.build(gpu=gpu, kind=kind),
            entries=b"".join(hashes),
            entry_bytes=16,
        )
        return self.results(seq)

    def offer(
        self, pages: Iterable[tuple[bytes, bool]], gpu: int = 0, kind: int = 0
    ) -> list[Found]:
        """Offer stable pages given as hash and "I have another"; results in their order."""
        entries = [
            OFFER_ENTRY.pack(digest, lib.GKSM_OFFER_TWIN if twin else 0, 0)
            for digest, twin in pages
        ]
        seq = self.send(
            lib.GKSM_OFFER,
            head=OFFER.build(gpu=gpu, kind=kind),
            entries=b"".join(entries),
            entry_bytes=OFFER_ENTRY.size,
        )
        return self.results(seq)

    def start_wait(self, tickets: Iterable[int], timeout_ms: int, gpu: int = 0) -> int:
        """Send a WAIT; ``results`` of the returned seq has its answers."""
        return self.send(
            lib.GKSM_WAIT,
            head=WAIT.build(gpu=gpu, timeout_ms=timeout_ms),
            entries=b"".join(t.to_bytes(8, sys.byteorder) for t in tickets),
            entry_bytes=8,
        )

    def wait(self, tickets: Iterable[int], timeout_ms: int, gpu: int = 0) -> list[Found]:
        """Wait for tickets; results in their order."""
        return self.results(self.start_wait(tickets, timeout_ms, gpu))

    def results(self, seq: int) -> list[Found]:
        """Collect the LOOKED_UP packets of one request."""
        found: list[Found] = []
        while True:
            message = self.receive()
            if message.seq != seq:
                raise ClosedError(f"reply to {message.seq} where {seq} was asked")
            fds = iter(message.fds)
            for row in LOOKUP_RESULT.rows(message):
                fd = next(fds) if row[1] == lib.GKSM_LOOKUP_HIT else -1
                index, outcome, page_id, token, deadline_ms, reason, segment, offset, *_ = row
                found.append(
                    Found(index, outcome, page_id, token, deadline_ms, reason, segment, offset, fd)
                )
            if not message.flags & lib.GKSM_FLAG_MORE:
                return sorted(found, key=lambda result: result.index)

    def publish(
        self,
        pages: Sequence[tuple[int, bytes, int]],
        segments: Sequence[tuple[int, int]] | None = None,
        gpu: int = 0,
        kind: int = 0,
    ) -> list[tuple[int, int]]:
        """Publish pages given as token, hash, fd; returns page id and status of each.

        ``segments``: id and offset of each page's host copy.
        """
        entries = [
            PUBLISH_ENTRY.pack(token, digest, *(segments[i] if segments else (0, 0)))
            for i, (token, digest, _) in enumerate(pages)
        ]
        reply = self.ask(
            lib.GKSM_PUBLISH,
            head=PUBLISH.build(gpu=gpu, kind=kind),
            entries=b"".join(entries),
            entry_bytes=PUBLISH_ENTRY.size,
            fds=[fd for _, _, fd in pages],
        )
        return [(page_id, status) for page_id, status, *_ in PUBLISH_RESULT.rows(reply)]

    def lease_drop(self, tokens: Iterable[int], gpu: int = 0) -> None:
        """Give leases up."""
        entries = b"".join(t.to_bytes(8, sys.byteorder) for t in tokens)
        head = GPU_REF.build(gpu=gpu)
        self.send(lib.GKSM_LEASE_DROP, head=head, entries=entries, entry_bytes=8)

    def attached(self, page_ids: Iterable[int], gpu: int = 0) -> None:
        """Grants became mappings."""
        self._pages(lib.GKSM_ATTACHED, page_ids, gpu, 0)

    def detached(self, page_ids: Iterable[int], gpu: int = 0, reason: int = 0) -> None:
        """Mappings or grants are given up."""
        self._pages(lib.GKSM_DETACHED, page_ids, gpu, reason)

    def announce(self, pages: Iterable[tuple[int, bytes, int]], gpu: int = 0) -> list[int]:
        """Announce pages given as id, hash, mappings; returns the statuses."""
        entries = b"".join(PAGE_ENTRY.pack(i, digest, count, 0) for i, digest, count in pages)
        reply = self.ask(
            lib.GKSM_ANNOUNCE,
            head=GPU_REF.build(gpu=gpu),
            entries=entries,
            entry_bytes=PAGE_ENTRY.size,
        )
        return [status for _, status, *_ in ANNOUNCE_RESULT.rows(reply)]

    def segment_get(self, pages: int, gpu: int = 0) -> tuple[int, int, int]:
        """Borrow a segment; returns status, id and fd (the caller's; -1 on refusal)."""
        reply = self.ask(lib.GKSM_SEGMENT_GET, head=SEGMENT_GET.build(gpu=gpu, pages=pages))
        return _segment(reply)

    def segment_seal(self, segment_id: int, gpu: int = 0) -> None:
        """Nothing writes to the segment any more."""
        head = SEGMENT_REF.build(gpu=gpu, segment_id=segment_id)
        self.send(lib.GKSM_SEGMENT_SEAL, head=head)

    def segment_open(self, segment_id: int, gpu: int = 0) -> tuple[int, int, int]:
        """Get a sealed segment; as ``segment_get``."""
        head = SEGMENT_REF.build(gpu=gpu, segment_id=segment_id)
        return _segment(self.ask(lib.GKSM_SEGMENT_OPEN, head=head))

    def ipc_export(self, ticket: bytes, pages: int, gpu: int = 0) -> int:
        """Let others open an allocation; returns the status."""
        head = IPC_EXPORT.build(gpu=gpu, ticket=list(ticket), pages=pages, bytes=pages << 21)
        return self.ask(lib.GKSM_IPC_EXPORT, head=head).status

    def ipc_drop(self, ticket: bytes) -> None:
        """Such an allocation is freed."""
        self.send(lib.GKSM_IPC_DROP, head=IPC_REF.build(ticket=list(ticket)))

    def ipc_open(self, ticket: bytes, first_page: int = 0) -> tuple[int, int, list[int]]:
        """Open a part of another's allocation; status, pages of the whole, and descriptors."""
        head = IPC_OPEN.build(ticket=list(ticket), first_page=first_page)
        reply = self.ask(lib.GKSM_IPC_OPEN, head=head)
        if reply.status:
            return reply.status, 0, []
        return 0, IPC_OPENED.read(reply.head).pages, reply.fds

    def ipc_wanted(self) -> Any:
        """Wait for the next IPC_WANTED."""
        return self._wait_for(lib.GKSM_IPC_WANTED)

    def ipc_pages(self, request: int, fds: Sequence[int], status: int = 0) -> int:
        """Answer it; the descriptors stay the caller's. Returns the status."""
        head = IPC_PAGES.build(request=request, status=status)
        return self.ask(lib.GKSM_IPC_PAGES, head=head, fds=fds).status

    def report(self, text: bytes, severity: int = 1) -> None:
        """Send a record for people."""
        head = REPORT.build(severity=severity)
        self.send(lib.GKSM_REPORT, head=head, entries=text, entry_bytes=1)

    def _pages(self, kind: int, page_ids: Iterable[int], gpu: int, reason: int) -> None:
        entries = b"".join(PAGE_ENTRY.pack(i, bytes(16), 1, 0) for i in page_ids)
        self.send(
            kind,
            head=GPU_REF.build(gpu=gpu, reason=reason),
            entries=entries,
            entry_bytes=PAGE_ENTRY.size,
        )


def connected(path: Path, uuid: bytes, **hello: Any) -> Client:
    """A client that has said HELLO and opened one GPU, as its number 0."""
    client = Client(path)
    client.hello(**hello)
    client.gpu_open(uuid)
    return client


def _segment(reply: Message) -> tuple[int, int, int]:
    if reply.status:
        return reply.status, 0, -1
    return 0, SEGMENT.read(reply.head).segment_id, reply.fds[0]
