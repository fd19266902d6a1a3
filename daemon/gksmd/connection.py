# SPDX-License-Identifier: Apache-2.0
"""One client's connection: its requests one after another, nothing of it in the way of others.

A request is finished before the next of the same connection is read, except WAIT,
which goes on beside them. A peer that leaves replies unread is not served on.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from gksmd.counts import QuotaUse
from gksmd.endpoint import BROKEN, Bounds, Endpoint
from gksmd.model import Identity, Instance, Process, Wait
from gksmd.protocol import Message, ProtocolError
from gksmd.wire import close_all

LOG = logging.getLogger("gksmd.client")
Work = Awaitable[None] | None  # what is left to be awaited of a request
Handler = Callable[["Connection", Message], Work]


class Connection:
    """A client, from accept to the end of its socket. Owns the socket."""

    def __init__(
        self,
        sock: socket.socket,
        identity: Identity,
        pidfd: int,
        *,
        charged: QuotaUse,
        handle: Handler,
        on_end: Callable[[Connection, str], None],
    ) -> None:
        """``pidfd`` is the connection's until a process takes it over (then -1)."""
        self.identity = identity
        self.pidfd = pidfd
        self.charged = charged
        self.process: Process | None = None
        self.gpus: list[Instance] = []
        self.waits: set[Wait] = set()
        self._handle = handle
        self._told_end = on_end
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy = False
        self.endpoint = Endpoint(sock, Bounds(), self._received, self._ended)

    @property
    def closed(self) -> bool:
        """Whether the socket is closed."""
        return self.endpoint.closed

    def instance(self, number: int) -> Instance:
        """The GPU that the client knows by this number. Raises ProtocolError."""
        if number >= len(self.gpus):
            raise ProtocolError(f"GPU {number} was not opened")
        return self.gpus[number]

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the requests; its errors end this connection alone."""
        self._keep(asyncio.ensure_future(self._guarded(work)))

    def end(self, reason: str) -> None:
        """Close the connection."""
        self.endpoint.end(reason)

    def _received(self, message: Message) -> None:
        try:
            work = self._handle(self, message)
        except ProtocolError as error:
            self.end(f"{BROKEN}: {error}")
            return
        except Exception:
            LOG.exception("process %d: request %d failed", self.identity.pid, message.type)
            self.end("internal error")
            return
        if work is not None:
            self._busy = True
            self.endpoint.pause()
            self._keep(asyncio.ensure_future(self._request(work)))

    async def _request(self, work: Awaitable[None]) -> None:
        await self._guarded(work)
        while self.endpoint.backlog and not self.closed:
            await asyncio.sleep(0.01)
        self._busy = False
        self.endpoint.resume()

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except ProtocolError as error:
            self.end(f"{BROKEN}: {error}")
        except Exception:
            LOG.exception("process %d: a request failed", self.identity.pid)
            self.end("internal error")

    def _keep(self, task: asyncio.Task[None]) -> None:
        """asyncio itself keeps only a weak reference to a task."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _ended(self, reason: str) -> None:
        for wait in self.waits:
            wait.changed.set()
        self._told_end(self, reason)


def refuse_fds(message: Message) -> None:
    """Close descriptors that came with a message that has none. Raises ProtocolError."""
    if message.fds:
        close_all(message.fds)
        raise ProtocolError("descriptors with a message that has none")
