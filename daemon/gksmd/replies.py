# SPDX-License-Identifier: Apache-2.0
"""What every handler of a request needs."""

from __future__ import annotations

from gksmd.connection import Connection
from gksmd.model import Process
from gksmd.protocol import Message, ProtocolError, encode


def process_of(connection: Connection) -> Process:
    """The process of a connection that has said HELLO."""
    if connection.process is None:
        raise ProtocolError("no HELLO")
    return connection.process


def reply(
    connection: Connection,
    message: Message,
    kind: int,
    *,
    status: int = 0,
    head: bytes = b"",
    entries: bytes = b"",
    entry_bytes: int = 0,
) -> None:
    """Answer a request."""
    connection.endpoint.send(
        encode(
            kind,
            seq=message.seq,
            status=status,
            head=head,
            entries=entries,
            entry_bytes=entry_bytes,
        )
    )
