# SPDX-License-Identifier: Apache-2.0
"""PUBLISH: a loader's pages become everybody's.

A page is entered once the vault has its descriptor, and from then on it is handed out.
The loader itself has to treat it as published from the moment it sends the descriptor,
because it cannot know how far that came.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from gksmd.candidates import Candidates
from gksmd.connection import Connection, Work
from gksmd.leases import Leases
from gksmd.model import PAGE_BYTES, Instance, Lease, Page, Sharing, State
from gksmd.pages import Pages
from gksmd.protocol import (
    PUBLISH,
    PUBLISH_ENTRY,
    PUBLISH_RESULT,
    Message,
    ProtocolError,
    lib,
)
from gksmd.replies import reply
from gksmd.segments import Segments
from gksmd.vaultlink import PAGE, Item, VaultLink, VaultLostError, VaultRefusedError
from gksmd.wire import close_all

Row = tuple[int, bytes, int, int]  # token, hash, segment id and offset


@dataclass(slots=True)
class Arrival:
    """One page on its way to the vault."""

    index: int  # in the request
    page: Page
    lease: Lease
    fd: int


@dataclass(slots=True)
class Publications:
    """Carries PUBLISH out."""

    state: State
    pages: Pages
    leases: Leases
    candidates: Candidates
    segments: Segments
    vault: VaultLink

    def publish(self, connection: Connection, message: Message) -> Work:
        """Check the form of a PUBLISH; the rest is to be awaited, and closes its descriptors."""
        try:
            head = PUBLISH.read(message.head)
            instance = connection.instance(head.gpu)
            rows: list[Row] = [row[:4] for row in PUBLISH_ENTRY.rows(message)]
            if not message.fds_lost and len(rows) != len(message.fds):
                raise ProtocolError("a PUBLISH needs one descriptor a page")
            if head.kind > 63:
                raise ProtocolError(f"kind {head.kind}")
        except ProtocolError:
            close_all(message.fds)
            raise
        return self._publish(connection, message, instance, head.kind, rows)

    async def _publish(
        self,
        connection: Connection,
        message: Message,
        instance: Instance,
        kind: int,
        rows: list[Row],
    ) -> None:
        refused = self._why_not(instance, kind, message)
        results: list[tuple[int, int]] = []  # page id, status
        arrivals: list[Arrival] = []
        for index, row in enumerate(rows):
            result = self._take(instance, kind, row, refused)
            if isinstance(result, int):
                results.append((0, result))
                continue
            page, lease = result
            results.append((page.id, 0))
            arrivals.append(Arrival(index, page, lease, message.fds[index]))
        going = {arrival.fd for arrival in arrivals}
        close_all(fd for fd in message.fds if fd not in going)
        for index, status in (await self._deliver(instance, arrivals)).items():
            results[index] = (0, status)
        reply(
            connection,
            message,
            lib.GKSM_PUBLISHED,
            entries=b"".join(PUBLISH_RESULT.pack(page_id, s, 0) for page_id, s in results),
            entry_bytes=PUBLISH_RESULT.size,
        )

    def _why_not(self, instance: Instance, kind: int, message: Message) -> int:
        """0, or why nothing of a whole PUBLISH is taken."""
        process = instance.process
        if message.fds_lost:
            self.state.counters.fds_exhausted += 1
            return -errno.EMFILE
        if process.sharing != Sharing.ON or not process.decision.domain.kind_mask >> kind & 1:
            return -errno.EPERM
        return 0

    def _take(
        self, instance: Instance, kind: int, row: Row, refused: int
    ) -> tuple[Page, Lease] | int:
        """The new page with the lease that it ends, or why it is not taken."""
        token, digest, segment_id, offset = row
        lease = instance.leases.get(token)
        if lease is None or lease.hash != digest or lease.publishing:
            self.state.counters.publish_stale += 1
            return -errno.ESTALE
        page = None if refused else self.pages.new_page(instance, digest, kind)
        if page is None:
            self.leases.give_up(lease)
            return refused or -errno.EDQUOT
        self.leases.publishing(lease)
        if segment_id:
            self.segments.attach(instance.process, page, segment_id, offset)
        return page, lease

    async def _deliver(self, instance: Instance, arrivals: list[Arrival]) -> dict[int, int]:
        """Hand the pages to the vault and enter them; the status of those that failed."""
        if not arrivals:
            return {}
        attachable, failed = True, 0
        try:
            await self.vault.put([_item(a.page) for a in arrivals], [a.fd for a in arrivals])
        except VaultLostError:
            # It may have been stored and may yet be found by a later gksmd, so its
            # publisher is told that it is published, though nobody gets it from us.
            attachable = False
        except VaultRefusedError as error:
            failed = error.status
        for arrival in arrivals:
            if failed:
                self.pages.discard(arrival.page)
                self.leases.give_up(arrival.lease)
                continue
            self.pages.publish(instance, arrival.page, attachable=attachable)
            self.leases.fulfil(arrival.lease, arrival.page)
            self.candidates.published(instance, arrival.page)
            self.pages.drop_if_left(arrival.page)
        if instance.process.ended:
            self.pages.tidy(instance.table.domain)
        return {arrival.index: failed for arrival in arrivals} if failed else {}


def _item(page: Page) -> Item:
    """What the vault is to know about a page."""
    return Item(
        item_class=PAGE,
        id=page.id,
        kind=page.kind,
        domain=page.table.domain.name,
        gpu_uuid=page.table.gpu.uuid,
        hash=page.hash,
        segment_id=page.segment.id if page.segment else 0,
        segment_offset=page.segment_offset,
        size=PAGE_BYTES,
    )
