# SPDX-License-Identifier: Apache-2.0
"""A client of gksmd that speaks the protocol by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gksmd import protocol
from gksmd.protocol import Message, encode, lib
from gksmd.wire import close_all, receive, send, seqpacket

PAGE = 2 << 20
ANSWER_SECONDS = 20.0


class Peer:
    """One connection. Every request waits for its answer."""

    def __init__(self, path: Path) -> None:
        self.socket = seqpacket()
        self.socket.settimeout(ANSWER_SECONDS)
        self.socket.connect(str(path))
        self.seq = 0

    def ask(self, kind: int, fds: list[int] | None = None, **packet: Any) -> Message:
        """Send one packet and return the answer, or the first packet of it."""
        self.tell(kind, fds, **packet)
        return self.next()

    def tell(self, kind: int, fds: list[int] | None = None, **packet: Any) -> None:
        """Send one packet."""
        self.seq += 1
        fds = fds or []
        send(self.socket, encode(kind, seq=self.seq, fd_count=len(fds), **packet), fds)

    def next(self) -> Message:
        """The next packet that answers the last request; its descriptors are the caller's."""
        while True:
            message = receive(self.socket)
            if message is None:
                raise ConnectionError("gksmd closed the connection")
            if message.seq == self.seq:
                return message
            close_all(message.fds)  # a CONTROL

    def hello(self, low: int = lib.GKSM_PROTOCOL_MIN, high: int = lib.GKSM_PROTOCOL_MAX) -> Any:
        """Say HELLO with a range of protocol versions; the WELCOME."""
        head = protocol.HELLO.build(
            protocol_min=low,
            protocol_max=high,
            features=lib.GKSM_FEATURE_COMMIT,
            guards=1 << lib.GKSM_GUARD_FAULT,
            build_id=b"by hand",
            framework=b"test",
        )
        return protocol.WELCOME.read(self.ask(lib.GKSM_HELLO, head=head).head)

    def open_gpu(self, uuid: bytes, total_bytes: int = 1 << 30) -> Any:
        """GPU_OPEN; the GPU_OPENED."""
        head = protocol.GPU_OPEN.build(
            uuid=list(uuid),
            total_bytes=total_bytes,
            arena_base=PAGE,
            arena_pages=1024,
            name=b"by hand",
        )
        return protocol.GPU_OPENED.read(self.ask(lib.GKSM_GPU_OPEN, head=head).head)
