# SPDX-License-Identifier: Apache-2.0
"""LOOKUP and WAIT: what a loader is to do with each page of its batch.

Hits are answered with descriptors that the vault is asked for, up to 240 in a packet.
A grant is counted before the vault is asked, so that the page cannot go meanwhile.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gksmd.connection import Connection
from gksmd.leases import Leases
from gksmd.model import Instance, Page, Sharing, State, Wait, WaitEntry
from gksmd.pages import Pages
from gksmd.protocol import (
    LOOKUP,
    LOOKUP_ENTRY,
    LOOKUP_RESULT,
    WAIT,
    WAIT_ENTRY,
    Message,
    ProtocolError,
    encode,
    lib,
)
from gksmd.quota import LEASES_MAX, Quotas
from gksmd.vaultlink import PAGE, VaultLink, VaultLostError, received
from gksmd.wire import FDS_MAX, close_all

BATCH_MAX: int = lib.GKSM_BATCH_MAX
HIT: int = lib.GKSM_LOOKUP_HIT
LEASE: int = lib.GKSM_LOOKUP_LEASE
PENDING: int = lib.GKSM_LOOKUP_PENDING
REFUSED: int = lib.GKSM_LOOKUP_REFUSED
EXPIRED: int = lib.GKSM_LOOKUP_EXPIRED
LOOKED_UP: int = lib.GKSM_LOOKED_UP
MORE: int = lib.GKSM_FLAG_MORE
UNSHARED_REFUSED: int = lib.GKSM_UNSHARED_REFUSED
UNSHARED_DAEMON: int = lib.GKSM_UNSHARED_DAEMON
WAIT_MAX_MS = 600_000
WAITS_MAX = 64  # of one connection at once

Hit = tuple[int, Page]  # index in the request; a grant is counted


def refused(index: int, reason: int = UNSHARED_REFUSED) -> bytes:
    """A result: stay private."""
    row: bytes = LOOKUP_RESULT.pack(index, REFUSED, 0, 0, 0, reason, 0, 0)
    return row


@dataclass(slots=True)
class Lookups:
    """Answers LOOKUP and WAIT."""

    state: State
    pages: Pages
    leases: Leases
    quotas: Quotas
    vault: VaultLink
    lease_ms: int

    async def lookup(self, connection: Connection, message: Message) -> None:
        """Answer a LOOKUP."""
        head = LOOKUP.read(message.head)
        instance = connection.instance(head.gpu)
        if message.entry_count > BATCH_MAX:
            raise ProtocolError(f"{message.entry_count} look-ups in one packet")
        digests = [digest for digest, *_ in LOOKUP_ENTRY.rows(message)]
        counters = self.state.counters
        counters.lookups += len(digests)
        if not await self.admit(connection, instance, message.seq, head.kind, len(digests)):
            return
        rows, hits = [], []
        by_hash, leases = instance.table.by_hash, instance.table.leases
        for index, digest in enumerate(digests):
            page = by_hash.get(digest)
            if page is not None:
                if self.pages.may_grant(instance):
                    self.pages.grant(instance, page)
                    hits.append((index, page))
                else:
                    rows.append(refused(index))
            elif digest in leases:
                ticket = self.leases.ticket(instance, digest)
                rows.append(LOOKUP_RESULT.pack(index, PENDING, 0, ticket, 0, 0, 0, 0))
            elif len(instance.leases) >= LEASES_MAX:
                rows.append(refused(index))
            else:
                lease = self.leases.acquire(instance, digest)
                rows.append(
                    LOOKUP_RESULT.pack(index, LEASE, 0, lease.token, self.lease_ms, 0, 0, 0)
                )
        await self.answer(connection, instance, message.seq, rows, hits, last=True)

    async def admit(
        self, connection: Connection, instance: Instance, seq: int, kind: int, count: int
    ) -> bool:
        """Whether ``count`` look-ups may be made now; else they are answered."""
        reason = await self._why_not(instance, kind, count)
        if connection.closed:
            return False
        if reason is None:
            return True
        self.state.counters.refused += count
        rows = [refused(i, reason) for i in range(count)]
        await self.answer(connection, instance, seq, rows, [], last=True)
        return False

    def wait(self, connection: Connection, message: Message) -> None:
        """Take up a WAIT; it is answered as its tickets resolve."""
        head = WAIT.read(message.head)
        instance = connection.instance(head.gpu)
        if message.entry_count > BATCH_MAX:
            raise ProtocolError(f"{message.entry_count} tickets in one packet")
        if len(connection.waits) >= WAITS_MAX:
            raise ProtocolError("too many WAITs at once")
        wait = Wait(
            connection=connection,
            instance=instance,
            seq=message.seq,
            deadline=asyncio.get_running_loop().time() + min(head.timeout_ms, WAIT_MAX_MS) / 1000,
            changed=asyncio.Event(),
        )
        rows: list[bytes] = []
        table = instance.table
        for index, (ticket, *_) in enumerate(WAIT_ENTRY.rows(message)):
            digest = instance.tickets.get(ticket)
            if digest is None:
                rows.append(LOOKUP_RESULT.pack(index, EXPIRED, 0, 0, 0, 0, 0, 0))
                continue
            page = table.by_hash.get(digest)
            lease = table.leases.get(digest)
            if instance.process.sharing != Sharing.ON:
                wait.refused.append(index)
            elif page is not None and self.pages.may_grant(instance):
                self.pages.grant(instance, page)
                wait.hits.append((index, page))
            elif page is not None:
                wait.refused.append(index)
            elif lease is not None:
                entry = WaitEntry(wait, index, ticket, digest)
                wait.open[index] = entry
                self.leases.queue(lease, entry)
                continue
            else:
                wait.leases.append((index, self.leases.acquire(instance, digest)))
            del instance.tickets[ticket]
        connection.waits.add(wait)
        connection.run(self._run_wait(connection, wait, rows))

    def refuse_waits(self, connection: Connection) -> None:
        """End the waiting of a process that was told to stay private."""
        for wait in connection.waits:
            for index, entry in wait.open.items():
                wait.instance.tickets.pop(entry.ticket, None)
                wait.refused.append(index)
            wait.open.clear()
            wait.changed.set()

    async def _run_wait(self, connection: Connection, wait: Wait, rows: list[bytes]) -> None:
        """Answer what has resolved, until nothing is open, the time is over, or a lease came.

        The first lease ends the WAIT: its holder must load before it waits again, or two
        could wait for each other. What is open then stays PENDING, with its ticket.
        """
        loop = asyncio.get_running_loop()
        try:
            while not connection.closed:
                over = loop.time() >= wait.deadline
                hits, wait.hits = wait.hits, []
                rows += [refused(i) for i in wait.refused]
                wait.refused = []
                rows += [
                    LOOKUP_RESULT.pack(i, LEASE, 0, lease.token, self.lease_ms, 0, 0, 0)
                    for i, lease in wait.leases
                ]
                last = over or bool(wait.leases) or not wait.open
                if last:
                    wait.over = True
                    rows += self._close(wait, expired=over and not wait.leases)
                if last or hits or rows:
                    await self.answer(connection, wait.instance, wait.seq, rows, hits, last=last)
                    rows = []
                if last:
                    return
                if not (wait.hits or wait.leases or wait.refused):
                    wait.changed.clear()
                    timeout = max(wait.deadline - loop.time(), 0)
                    timer = loop.call_later(timeout, wait.changed.set)
                    await wait.changed.wait()
                    timer.cancel()
        finally:
            wait.over = True
            connection.waits.discard(wait)
            for _, page in wait.hits:
                self.pages.ungrant(wait.instance, page)

    def _close(self, wait: Wait, expired: bool) -> list[bytes]:
        """Results for what is still open."""
        outcome = EXPIRED if expired else PENDING
        rows = []
        for index, entry in wait.open.items():
            rows.append(LOOKUP_RESULT.pack(index, outcome, 0, entry.ticket, 0, 0, 0, 0))
            if expired:
                wait.instance.tickets.pop(entry.ticket, None)
        wait.open.clear()
        return rows

    async def _why_not(self, instance: Instance, kind: int, count: int) -> int | None:
        """The reason to refuse a whole batch, or None; waits for the rate's quota."""
        process = instance.process
        if process.sharing != Sharing.ON or not instance.guard:
            return UNSHARED_REFUSED
        if kind > 63 or not process.decision.domain.kind_mask >> kind & 1:
            return UNSHARED_REFUSED
        if not self.vault.up:
            return UNSHARED_DAEMON
        delay = self.quotas.lookup_wait(process, count, asyncio.get_running_loop().time())
        if delay < 0:
            return UNSHARED_REFUSED
        if delay > 0:
            await asyncio.sleep(delay)
        return None

    async def answer(
        self,
        connection: Connection,
        instance: Instance,
        seq: int,
        rows: list[bytes],
        hits: list[Hit],
        *,
        last: bool,
    ) -> None:
        """Send LOOKED_UP packets: ``rows`` first, then the hits with their descriptors."""
        batches = [hits[i : i + FDS_MAX] for i in range(0, len(hits), FDS_MAX)] or [[]]
        replies = [self.vault.get(PAGE, [p.id for _, p in b]) if b else None for b in batches]
        for number, (batch, reply) in enumerate(zip(batches, replies, strict=True)):
            fds: list[int] = []
            if reply is not None:
                fds = await self._fetch(connection, instance, batch, reply, rows)
            flags = 0 if last and number == len(batches) - 1 else MORE
            connection.endpoint.send(
                encode(
                    LOOKED_UP,
                    seq=seq,
                    flags=flags,
                    entries=b"".join(rows),
                    entry_bytes=LOOKUP_RESULT.size,
                    fd_count=len(fds),
                ),
                fds,
            )
            rows = []

    async def _fetch(
        self,
        connection: Connection,
        instance: Instance,
        batch: list[Hit],
        reply: asyncio.Future[Message],
        rows: list[bytes],
    ) -> list[int]:
        """Add a row for each page of the batch; return the descriptors of the hits."""
        ids = [page.id for _, page in batch]
        try:
            answer = await reply
        except VaultLostError:
            fds = [-1] * len(ids)
        else:
            fds = received(answer, ids)
            if answer.fds_lost:
                self.state.counters.fds_exhausted += 1
            elif -1 in fds:
                for (_, page), fd in zip(batch, fds, strict=True):
                    if fd < 0:
                        self.pages.lost(page)
        if connection.closed:
            close_all(fd for fd in fds if fd >= 0)
            fds = [-1] * len(ids)
        elif -1 not in fds:
            pack = LOOKUP_RESULT.pack
            self.state.counters.hits += len(fds)
            for index, page in batch:
                segment = page.segment
                if segment is not None and segment.sealed:
                    rows.append(pack(index, HIT, page.id, 0, 0, 0, segment.id, page.segment_offset))
                else:
                    rows.append(pack(index, HIT, page.id, 0, 0, 0, 0, 0))
            return fds
        sent = []
        for (index, page), fd in zip(batch, fds, strict=True):
            if fd >= 0:
                rows.append(LOOKUP_RESULT.pack(index, HIT, page.id, 0, 0, 0, 0, 0))
                sent.append(fd)
                continue
            self.pages.ungrant(instance, page)
            rows.append(refused(index, UNSHARED_DAEMON))
        return sent
