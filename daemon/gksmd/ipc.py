# SPDX-License-Identifier: Apache-2.0
"""Legacy CUDA IPC: memory of one process that another one maps too.

The program hands its memory out on purpose, by a handle that names nothing and cannot be
guessed. A handle is good in the exporter's trust domain. A process outside of containers
that no rule names is a domain by itself, and its workers would not reach each other, as
they do without gKSM; for them the handle is good among those of the same user, who can
read each other's memory anyway.

gksmd keeps tickets and no descriptors. Who opens a ticket asks for a part of its pages at
a time; gksmd asks the exporter for the descriptors and passes them on. An exporter that
dies, hangs or lies costs the one who asked at most ``OPEN_S``, and nobody else anything.
"""

from __future__ import annotations

import asyncio
import errno
import time
from dataclasses import dataclass, field

from gksmd.config import Config
from gksmd.connection import Connection
from gksmd.model import PAGE_BYTES, IpcExport, Process, State
from gksmd.protocol import (
    IPC_EXPORT,
    IPC_OPEN,
    IPC_OPENED,
    IPC_PAGES,
    IPC_REF,
    IPC_WANTED,
    Message,
    ProtocolError,
    encode,
    ffi,
    lib,
)
from gksmd.quota import IPC_OPENS_MAX, Quotas
from gksmd.replies import process_of, reply
from gksmd.wire import FDS_MAX, close_all

OPEN_S = 5.0


class NoMemoryToOpenError(Exception):
    """Why an open comes to nothing."""

    def __init__(self, status: int) -> None:
        super().__init__(errno.errorcode[-status])
        self.status = status


def scope_of(process: Process) -> str:
    """Where the tickets of a process are good: its domain, or its user's own processes."""
    if process.identity.container is None and process.decision.domain.rule is None:
        return f"uid:{process.identity.uid}"
    return process.domain.name


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A part of an allocation that its exporter was asked for."""

    export: IpcExport
    count: int
    # Its descriptors, or None: the exporter's connection is gone.
    answer: asyncio.Future[list[int] | None]


@dataclass(slots=True)
class Ipc:
    """Every ticket, and who waits for pages of one."""

    state: State
    config: Config
    quotas: Quotas
    _asked: dict[int, Asked] = field(default_factory=dict)
    _requests: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _started: float = field(default_factory=time.monotonic)

    def export(self, connection: Connection, message: Message) -> None:
        """Others may open this allocation from now on. Said again after each reconnect."""
        head = IPC_EXPORT.read(message.head)
        instance = connection.instance(head.gpu)
        process = process_of(connection)
        ticket = bytes(ffi.buffer(head.ticket))
        most = (instance.total_bytes or PAGE_BYTES) // PAGE_BYTES
        if not any(ticket) or not 0 < head.pages <= most:
            raise ProtocolError(f"an export of {head.pages} pages")
        scope = scope_of(process)
        held = self.state.ipc_exports.get((scope, ticket))
        status = 0
        if held is not None and held.process is not process:
            status = -errno.EEXIST
        elif held is None and not self.quotas.take_ipc_export(process):
            status = -errno.EDQUOT
        else:
            uuid = instance.table.gpu.uuid
            export = IpcExport(scope, ticket, process, uuid, head.pages, head.bytes)
            process.ipc_exports[ticket] = self.state.ipc_exports[scope, ticket] = export
            self._tell_change()
        reply(connection, message, lib.GKSM_IPC_EXPORTED, status=status)

    def drop(self, connection: Connection, message: Message) -> None:
        """The allocation is freed."""
        head = IPC_REF.read(message.head)
        export = process_of(connection).ipc_exports.get(bytes(ffi.buffer(head.ticket)))
        if export is not None:
            self._forget(export)

    def open(self, connection: Connection, message: Message) -> None:
        """Hand out pages of a ticket; beside the connection's other requests.

        Otherwise two processes that open each other's memory would wait for each other.
        """
        head = IPC_OPEN.read(message.head)
        process = process_of(connection)
        if process.ipc_opening >= IPC_OPENS_MAX:
            reply(connection, message, lib.GKSM_IPC_OPENED, status=-errno.EBUSY)
            return
        process.ipc_opening += 1
        ticket = bytes(ffi.buffer(head.ticket))
        connection.run(self._open(connection, message, ticket, head.first_page))

    async def _open(
        self, connection: Connection, message: Message, ticket: bytes, first: int
    ) -> None:
        process = process_of(connection)
        try:
            export, fds = await self._fetch(process, ticket, first)
        except NoMemoryToOpenError as error:
            reply(connection, message, lib.GKSM_IPC_OPENED, status=error.status)
            return
        finally:
            process.ipc_opening -= 1
        opened = IPC_OPENED.build(
            gpu_uuid=list(export.uuid), pages=export.pages, bytes=export.bytes
        )
        packet = encode(lib.GKSM_IPC_OPENED, seq=message.seq, head=opened, fd_count=len(fds))
        connection.endpoint.send(packet, fds)

    async def _fetch(
        self, process: Process, ticket: bytes, first: int
    ) -> tuple[IpcExport, list[int]]:
        """The descriptors of the pages from ``first`` on. Raises NoMemoryToOpenError."""
        deadline = asyncio.get_running_loop().time() + OPEN_S
        # The exporter works for it: as many look-ups are not to be had for nothing either.
        delay = self.quotas.lookup_wait(process, FDS_MAX, asyncio.get_running_loop().time())
        if delay < 0:
            raise NoMemoryToOpenError(-errno.EDQUOT)
        if delay > 0:
            await asyncio.sleep(delay)
        while True:
            export, exporter = await self._find(process, ticket, deadline)
            if export.process is process or first >= export.pages:
                raise NoMemoryToOpenError(-errno.EINVAL)
            fds = await self._ask(export, exporter, first, deadline)
            if fds is not None:
                return export, fds

    async def _find(
        self, process: Process, ticket: bytes, deadline: float
    ) -> tuple[IpcExport, Connection]:
        """The ticket and its exporter's connection, waiting for one that may come back."""
        while True:
            changed = self._changed
            export = self.state.ipc_exports.get((scope_of(process), ticket))
            if export is not None and export.process.connection is not None:
                return export, export.process.connection
            if export is None and not self._just_started():
                raise NoMemoryToOpenError(-errno.ENOENT)
            left = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(changed.wait(), left)
            except (asyncio.TimeoutError, TimeoutError):
                status = -errno.ENOENT if export is None else -errno.ETIMEDOUT
                raise NoMemoryToOpenError(status) from None

    async def _ask(
        self, export: IpcExport, exporter: Connection, first: int, deadline: float
    ) -> list[int] | None:
        loop = asyncio.get_running_loop()
        count = min(FDS_MAX, export.pages - first)
        self._requests += 1
        number = self._requests
        asked = Asked(export, count, loop.create_future())
        self._asked[number] = asked
        head = IPC_WANTED.build(
            request=number, ticket=list(export.ticket), first_page=first, count=count
        )
        exporter.endpoint.send(encode(lib.GKSM_IPC_WANTED, head=head))
        try:
            # Not wait_for: an answer that comes as the time is up would be lost, and with
            # it its descriptors.
            await asyncio.wait([asked.answer], timeout=deadline - loop.time())
            if not asked.answer.done():
                raise NoMemoryToOpenError(-errno.ETIMEDOUT)
            return asked.answer.result()
        finally:
            del self._asked[number]

    def pages(self, connection: Connection, message: Message) -> None:
        """Take the exporter's answer, for whoever waits for it."""
        try:
            head = IPC_PAGES.read(message.head)
        except ProtocolError:
            close_all(message.fds)
            raise
        asked = self._asked.get(head.request)
        if asked is None or asked.export.process is not connection.process or asked.answer.done():
            close_all(message.fds)
            reply(connection, message, lib.GKSM_IPC_TAKEN, status=-errno.ENOENT)
            return
        if message.fds_lost:
            self.state.counters.fds_exhausted += 1
        if head.status or message.fds_lost or len(message.fds) != asked.count:
            close_all(message.fds)
            asked.answer.set_exception(NoMemoryToOpenError(self._why(asked, head.status, message)))
        else:
            asked.answer.set_result(message.fds)
        reply(connection, message, lib.GKSM_IPC_TAKEN)

    def _why(self, asked: Asked, status: int, message: Message) -> int:
        """What the one who waits is told instead of descriptors."""
        if message.fds_lost:
            return -errno.EMFILE
        if status == -errno.ESTALE:
            self._forget(asked.export)
            return -errno.ENOENT
        # Whatever the exporter says, it is an error.
        return -errno.EIO

    def disconnected(self, process: Process) -> None:
        """Its connection is gone: who waits for it asks again when it is back."""
        for asked in self._asked.values():
            if asked.export.process is process and not asked.answer.done():
                asked.answer.set_result(None)
        self._tell_change()

    def leave(self, process: Process) -> None:
        """The process has ended: its memory can be opened no more."""
        for export in list(process.ipc_exports.values()):
            self._forget(export)

    def _forget(self, export: IpcExport) -> None:
        export.process.ipc_exports.pop(export.ticket, None)
        self.state.ipc_exports.pop((export.scope, export.ticket), None)
        self._tell_change()

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _just_started(self) -> bool:
        """Whether a ticket of before a restart may not have been told yet."""
        return time.monotonic() - self._started < self.config.grace.announce_ms / 1000
