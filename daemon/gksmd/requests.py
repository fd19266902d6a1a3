# SPDX-License-Identifier: Apache-2.0
"""The requests of a client that has said HELLO, each in a few lines.

What is asked by number is looked up in the connection's own GPUs, and what is asked
by page or segment id in the process's own domain, so nothing that a client sends can
name anything of another domain.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gksmd.accounts import note_free
from gksmd.commits import promise, report, usage_from
from gksmd.config import Config
from gksmd.connection import Connection, Work, refuse_fds
from gksmd.drain import Drain
from gksmd.guards import choose_guard
from gksmd.ipc import Ipc
from gksmd.leases import Leases
from gksmd.lookups import BATCH_MAX, Lookups
from gksmd.model import (
    PAGE_BYTES,
    Instance,
    Report,
    Segment,
    State,
)
from gksmd.offers import Offers
from gksmd.pages import Pages
from gksmd.pressure import Pressure
from gksmd.protocol import (
    ANNOUNCE_RESULT,
    COMMIT,
    COMMITTED,
    GPU_OPEN,
    GPU_OPENED,
    GPU_REF,
    LEASE_ENTRY,
    PAGE_ENTRY,
    RECLAIM,
    RECLAIMED,
    REPORT,
    SEGMENT,
    SEGMENT_GET,
    SEGMENT_REF,
    USAGE,
    Message,
    ProtocolError,
    encode,
    lib,
    text,
)
from gksmd.publications import Publications
from gksmd.quota import GPUS_MAX
from gksmd.replies import process_of, reply
from gksmd.scanning import Scanning
from gksmd.segments import NoSegmentError, Segments
from gksmd.vaultlink import VaultLink

REPORT_CHARS = 512
# For the vault to let go of what is reclaimed; libgksm waits 1 s for the answer.
RECLAIM_WAIT_S = 0.7
_WITH_FDS = (lib.GKSM_PUBLISH, lib.GKSM_IPC_PAGES)


@dataclass(slots=True)
class Requests:
    """Everything a client may ask; errors of its own making raise ProtocolError."""

    state: State
    config: Config
    pages: Pages
    leases: Leases
    segments: Segments
    lookups: Lookups
    offers: Offers
    scanning: Scanning
    publications: Publications
    drain: Drain
    vault: VaultLink
    pressure: Pressure
    ipc: Ipc
    _handlers: dict[int, Callable[[Connection, Message], Work]] = field(init=False)

    def __post_init__(self) -> None:
        self._handlers = self._by_type()

    def _by_type(self) -> dict[int, Callable[[Connection, Message], Work]]:
        return {
            lib.GKSM_GPU_OPEN: self.gpu_open,
            lib.GKSM_COMMIT: self.commit,
            lib.GKSM_USAGE: self.usage,
            lib.GKSM_LOOKUP: self.lookups.lookup,
            lib.GKSM_OFFER: self.offers.offer,
            lib.GKSM_WAIT: self.lookups.wait,
            lib.GKSM_PUBLISH: self.publications.publish,
            lib.GKSM_LEASE_DROP: self.lease_drop,
            lib.GKSM_SEGMENT_GET: self.segment_get,
            lib.GKSM_SEGMENT_SEAL: self.segment_seal,
            lib.GKSM_SEGMENT_OPEN: self.segment_open,
            lib.GKSM_ATTACHED: self.attached,
            lib.GKSM_DETACHED: self.detached,
            lib.GKSM_ANNOUNCE: self.announce,
            lib.GKSM_REPORT: self.report,
            lib.GKSM_RECLAIM: self.reclaim,
            lib.GKSM_IPC_EXPORT: self.ipc.export,
            lib.GKSM_IPC_DROP: self.ipc.drop,
            lib.GKSM_IPC_OPEN: self.ipc.open,
            lib.GKSM_IPC_PAGES: self.ipc.pages,
        }

    def handle(self, connection: Connection, message: Message) -> Work:
        """Carry out one request, or return what is left to be awaited of it."""
        if message.type not in _WITH_FDS:
            refuse_fds(message)
        handler = self._handlers.get(message.type)
        if handler is None:
            raise ProtocolError(f"message type {message.type}")
        return handler(connection, message)

    def gpu_open(self, connection: Connection, message: Message) -> None:
        """Number a GPU for this connection and say how to behave on it."""
        head = GPU_OPEN.read(message.head)
        uuid = bytes(head.uuid)
        process = process_of(connection)
        if not any(uuid):
            raise ProtocolError("a GPU without UUID")
        known = next((i for i in connection.gpus if i.table.gpu.uuid == uuid), None)
        if known is None and len(connection.gpus) >= GPUS_MAX:
            raise ProtocolError("too many GPUs")
        instance = process.instances.get(uuid)
        if instance is None:
            table = self.pages.table(process.domain, uuid)
            instance = Instance(process, table, 0, 0)
            process.instances[uuid] = instance
            table.instances.add(instance)
            table.gpu.instances.add(instance)
        if known is None:
            instance.number = len(connection.gpus)
            connection.gpus.append(instance)
            if instance.mapped or instance.granted:
                self.pages.reconnect(instance)
                loop = asyncio.get_running_loop()
                grace_s = self.config.grace.announce_ms / 1000
                loop.call_later(grace_s, self.pages.confirm_deadline, instance)
        instance.guard = choose_guard(
            process.guards, process.decision.domain.guard or self.config.guard.default
        )
        instance.total_bytes = head.total_bytes
        instance.gpu_name = text(head.name)
        gpu = instance.table.gpu
        gpu.last_total_bytes, gpu.last_name = gpu.total_bytes, gpu.name
        guard, load = self.config.guard, self.config.load
        opened = GPU_OPENED.build(
            gpu=instance.number,
            guard=instance.guard,
            hold_deadline_ms=guard.hold_deadline_ms,
            stall_budget_ms=guard.stall_budget_ms,
            load_wait_ms=load.load_wait_ms,
            order_wait_ms=load.order_wait_ms,
            drain_ms=guard.drain_ms,
            spare_pages=self.config.memory.spare_pages,
            kinds=process.decision.domain.kind_mask,
        )
        reply(connection, message, lib.GKSM_GPU_OPENED, head=opened)
        self.drain.opened(instance)
        self.pressure.joined(instance)
        self.scanning.tell(instance)

    def commit(self, connection: Connection, message: Message) -> Work:
        """Promise memory, or just say how much of what is free is for others.

        Memory that nobody maps is given up for a promise that can be kept then.
        """
        head = COMMIT.read(message.head)
        instance = connection.instance(head.gpu)
        gpu, accounts, now = instance.table.gpu, self.pressure.accounts, time.monotonic()
        free = min(head.free_bytes, gpu.total_bytes)
        ahead = max(head.used_bytes - instance.used_bytes, 0)
        held = accounts.held_bytes(instance, free, ahead)
        if free or head.pages:
            note_free(gpu, free, now, ahead)
        reclaimed = self.pressure.make_room(instance, head.pages, free)
        kept = promise(instance, head.pages, free + reclaimed, accounts, now)
        self.state.counters.commits_refused += not kept
        self.pressure.look(gpu)
        answer = COMMITTED.build(held_bytes=held, warm_bytes=accounts.warm_bytes_for(instance))
        return self._committed(connection, message, kept, answer, wait=reclaimed > 0)

    def _committed(
        self, connection: Connection, message: Message, kept: bool, head: Any, *, wait: bool
    ) -> Work:
        """Answer; ``wait``: once what was reclaimed is free, for the promise may be used then."""
        status = 0 if kept else -errno.ENOMEM

        async def later() -> None:
            await self.vault.settled(RECLAIM_WAIT_S)
            reply(connection, message, lib.GKSM_COMMITTED, status=status, head=head)

        if wait:
            return later()
        reply(connection, message, lib.GKSM_COMMITTED, status=status, head=head)
        return None

    async def reclaim(self, connection: Connection, message: Message) -> None:
        """An allocation has failed: give up memory that nobody maps.

        What was given up before and is not free yet is as good.
        """
        head = RECLAIM.read(message.head)
        instance = connection.instance(head.gpu)
        gpu = instance.table.gpu
        wanted = min(head.bytes, gpu.total_bytes)
        leaving = gpu.leaving_pages * PAGE_BYTES
        freed = leaving + self.pressure.reclaim(instance, wanted - leaving)
        if freed and not await self.vault.settled(RECLAIM_WAIT_S):
            freed = 0
        answer = RECLAIMED.build(bytes=freed)
        reply(connection, message, lib.GKSM_RECLAIMED, head=answer)

    def usage(self, connection: Connection, message: Message) -> None:
        """Take over the counts of an instance."""
        row = USAGE.unpack(USAGE.fit(message.head))
        instance = connection.instance(row[0])
        report(instance, usage_from(row), time.monotonic())
        self.pressure.look(instance.table.gpu)
        self.scanning.reported(instance)

    def lease_drop(self, connection: Connection, message: Message) -> None:
        """The loader gives up; somebody else may load these pages."""
        instance = connection.instance(GPU_REF.read(message.head).gpu)
        for token, *_ in LEASE_ENTRY.rows(message):
            lease = instance.leases.get(token)
            if lease is not None and not lease.publishing:
                self.leases.give_up(lease)

    def segment_get(self, connection: Connection, message: Message) -> Work:
        """Lend memory for host copies."""
        head = SEGMENT_GET.read(message.head)
        connection.instance(head.gpu)
        return self._segment_get(connection, message, head.pages)

    async def _segment_get(self, connection: Connection, message: Message, pages: int) -> None:
        process = process_of(connection)
        try:
            segment = await self.segments.lend(process, pages)
        except NoSegmentError as error:
            reply(connection, message, lib.GKSM_SEGMENT, status=error.status)
            return
        if connection.closed:
            process.filling.pop(segment.id, None)
            self.segments.discard(segment)
            return
        send_segment(connection, message, segment)

    def segment_seal(self, connection: Connection, message: Message) -> Work:
        """The loader writes no more to its host copies."""
        head = SEGMENT_REF.read(message.head)
        return self.segments.seal(process_of(connection), head.segment_id)

    def segment_open(self, connection: Connection, message: Message) -> Work:
        """Hand out sealed host copies of the process's own domain."""
        head = SEGMENT_REF.read(message.head)
        connection.instance(head.gpu)
        return self._segment_open(connection, message, head.segment_id)

    async def _segment_open(self, connection: Connection, message: Message, number: int) -> None:
        try:
            segment = await self.segments.open(process_of(connection).domain, number)
        except NoSegmentError as error:
            reply(connection, message, lib.GKSM_SEGMENT, status=error.status)
            return
        send_segment(connection, message, segment)

    def attached(self, connection: Connection, message: Message) -> None:
        """Grants became mappings."""
        instance = connection.instance(GPU_REF.read(message.head).gpu)
        for page_id, *_ in PAGE_ENTRY.rows(message):
            self.pages.attached(instance, page_id)

    def detached(self, connection: Connection, message: Message) -> None:
        """Mappings or grants were given up."""
        head = GPU_REF.read(message.head)
        instance = connection.instance(head.gpu)
        for page_id, *_ in PAGE_ENTRY.rows(message):
            self.pages.detached(instance, page_id, head.reason)
        if instance.table.gpu.short:
            self.pressure.look(instance.table.gpu)  # a promise may not be covered any more

    def announce(self, connection: Connection, message: Message) -> None:
        """Pages that are mapped since before this connection."""
        instance = connection.instance(GPU_REF.read(message.head).gpu)
        if message.entry_count > BATCH_MAX:
            raise ProtocolError(f"{message.entry_count} pages in one packet")
        results = [
            ANNOUNCE_RESULT.pack(
                page_id, self.pages.announce(instance, page_id, digest, mappings), 0
            )
            for page_id, digest, mappings, *_ in PAGE_ENTRY.rows(message)
        ]
        reply(
            connection,
            message,
            lib.GKSM_ANNOUNCED,
            entries=b"".join(results),
            entry_bytes=ANNOUNCE_RESULT.size,
        )

    def report(self, connection: Connection, message: Message) -> None:
        """Keep a record for `gksmctl logs`, at most so many a second."""
        head = REPORT.read(message.head)
        process = process_of(connection)
        process.reports_dropped += head.dropped
        second = int(time.monotonic())
        if process.report_second != second:
            process.report_second, process.reports_this_second = second, 0
        process.reports_this_second += 1
        if process.reports_this_second > self.config.logs.records_per_second:
            process.reports_dropped += 1
            return
        raw = message.entries.decode(errors="replace")[:REPORT_CHARS]
        line = "".join(c if c.isprintable() else " " for c in raw).strip()
        process.reports.append(Report(head.time_ns, head.severity, line))


def send_segment(connection: Connection, message: Message, segment: Segment) -> None:
    """Answer with a segment and its descriptor."""
    packet = encode(
        lib.GKSM_SEGMENT,
        seq=message.seq,
        head=SEGMENT.build(segment_id=segment.id, bytes=segment.bytes),
        fd_count=1,
    )
    try:
        fd = os.dup(segment.fd)
    except OSError as error:
        reply(connection, message, lib.GKSM_SEGMENT, status=-(error.errno or errno.EMFILE))
        return
    connection.endpoint.send(packet, [fd])
