# SPDX-License-Identifier: Apache-2.0
"""Line-delimited JSON on a unix socket: the base of the admin, runtime and status sockets.

A request is one line ``{"v":1,"op":NAME,...}``; its answer is one line
``{"v":1,"ok":true,"result":...}`` or ``{"v":1,"ok":false,"error":SENTENCE}``. Unknown
fields are skipped, so that an older daemon serves a newer tool.

A peer can cost no more than a bounded line, a bounded time and one of a bounded number
of places, of which one uid gets a quarter unless it is root's or the daemon's own.
What is not a request closes its connection and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gksmd.config import decode_hook, encode_hook

VERSION = 1
IDLE_SECONDS = 60.0
SEND_SECONDS = 10.0

log = logging.getLogger(__name__)


class RefusedError(Exception):
    """The request cannot be done; the text is one sentence for the caller."""


class Request(msgspec.Struct, frozen=True, tag_field="op", kw_only=True):
    """What every request has."""

    v: int


class _Version(msgspec.Struct, frozen=True):
    v: int


@dataclass(frozen=True)
class Peer:
    """Who asks, as the kernel said when it connected."""

    pid: int
    uid: int

    @property
    def privileged(self) -> bool:
        """Root, or the uid that the daemon runs as."""
        return self.uid in (0, os.geteuid())


Handler = Callable[[Any, Peer], Awaitable[object]]


class JsonLineServer:
    """One listening socket. ``start`` makes it, ``close`` removes it."""

    def __init__(
        self,
        path: Path,
        requests: Any,
        handler: Handler,
        *,
        mode: int,
        private: bool,
        clients: int,
        line_bytes: int,
    ) -> None:
        """``requests`` is the union of the ops served; ``private``: only privileged peers."""
        self.path = path
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
            requests, dec_hook=decode_hook
        )
        self._handler = handler
        self._mode = mode
        self._private = private
        self._clients = clients
        self._line_bytes = line_bytes
        self._by_uid: Counter[int] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Listen. A socket file left by a killed daemon is replaced. OSError if it fails."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            # Nobody may connect between bind and chmod.
            mask = os.umask(0o177)
            try:
                listener.bind(os.fspath(self.path))
            finally:
                os.umask(mask)
            self.path.chmod(self._mode)
            self._server = await asyncio.start_unix_server(
                self._connected, sock=listener, limit=self._line_bytes, backlog=self._clients
            )
        except BaseException:
            listener.close()
            raise

    async def close(self) -> None:
        """Stop listening, end all connections, remove the socket file. Idempotent."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = _peer(writer)
        # drain() is then over when everything is sent, so close() never cuts an answer.
        writer.transport.set_write_buffer_limits(0)
        self._by_uid[peer.uid] += 1
        try:
            if self._private and not peer.privileged:
                await self._send(writer, _error(f"{self.path} serves root only; use sudo."))
            elif self._full(peer):
                await self._send(writer, _error(f"{self.path} has too many clients; try later."))
            else:
                while await self._exchange(reader, writer, peer):
                    pass
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
            pass
        finally:
            self._by_uid[peer.uid] -= 1
            if not self._by_uid[peer.uid]:
                del self._by_uid[peer.uid]
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()  # it does not read; waiting would keep the fd
            else:
                writer.close()

    def _full(self, peer: Peer) -> bool:
        if peer.privileged:
            return self._by_uid[peer.uid] > self._clients
        theirs = sum(n for uid, n in self._by_uid.items() if uid not in (0, os.geteuid()))
        return theirs > self._clients or self._by_uid[peer.uid] > max(self._clients // 4, 1)

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Peer
    ) -> bool:
        """Serve one request; False when the connection is to be closed."""
        try:
            line = await asyncio.wait_for(reader.readuntil(b"\n"), IDLE_SECONDS)
        except asyncio.LimitOverrunError:
            await self._send(writer, _error(f"A request is longer than {self._line_bytes} bytes."))
            return False
        try:
            version = msgspec.json.decode(line, type=_Version).v
            if version != VERSION:
                await self._send(
                    writer,
                    _error(
                        f"gksmd speaks version {VERSION} of this protocol and was asked in "
                        f"{version}; install gksmctl and gksmd of one release."
                    ),
                )
                return False
            request = self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            await self._send(writer, _error(f"Not a request that {self.path} serves: {error}."))
            return False
        try:
            result = await self._handler(request, peer)
        except RefusedError as refusal:
            await self._send(writer, _error(str(refusal)))
        except Exception:
            log.exception("%s: %s failed", self.path.name, type(request).__name__)
            await self._send(writer, _error("gksmd failed at this request; its log says where."))
        else:
            await self._send(writer, {"v": VERSION, "ok": True, "result": result})
        return True

    async def _send(self, writer: asyncio.StreamWriter, answer: object) -> None:
        writer.write(msgspec.json.encode(answer, enc_hook=encode_hook) + b"\n")
        await asyncio.wait_for(writer.drain(), SEND_SECONDS)


def _error(text: str) -> dict[str, object]:
    return {"v": VERSION, "ok": False, "error": text}


def _peer(writer: asyncio.StreamWriter) -> Peer:
    sock = writer.get_extra_info("socket")
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    return Peer(pid, uid)
