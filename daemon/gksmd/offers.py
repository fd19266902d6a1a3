# SPDX-License-Identifier: Apache-2.0
"""OFFER: what a scanner is to do with each of its stable pages."""

from __future__ import annotations

from dataclasses import dataclass

from gksmd.candidates import Candidates
from gksmd.connection import Connection
from gksmd.leases import Leases
from gksmd.lookups import BATCH_MAX, LEASE, PENDING, Hit, Lookups, refused
from gksmd.model import Instance
from gksmd.pages import Pages
from gksmd.protocol import LOOKUP_RESULT, OFFER, OFFER_ENTRY, Message, ProtocolError, lib
from gksmd.quota import LEASES_MAX

NOTED: int = lib.GKSM_LOOKUP_NOTED
TWIN: int = lib.GKSM_OFFER_TWIN


@dataclass(slots=True)
class Offers:
    """Answers OFFER."""

    pages: Pages
    leases: Leases
    lookups: Lookups
    candidates: Candidates

    async def offer(self, connection: Connection, message: Message) -> None:
        """Answer an OFFER."""
        head = OFFER.read(message.head)
        instance = connection.instance(head.gpu)
        if message.entry_count > BATCH_MAX:
            raise ProtocolError(f"{message.entry_count} offers in one packet")
        offered = [(digest, flags) for digest, flags, *_ in OFFER_ENTRY.rows(message)]
        if not await self.lookups.admit(connection, instance, message.seq, head.kind, len(offered)):
            return
        rows: list[bytes] = []
        hits: list[Hit] = []
        by_hash = instance.table.by_hash
        for index, (digest, flags) in enumerate(offered):
            page = by_hash.get(digest)
            if page is None:
                rows.append(self._missing(instance, index, digest, bool(flags & TWIN)))
            elif self.pages.may_grant(instance):
                self.pages.grant(instance, page)
                hits.append((index, page))
            else:
                rows.append(refused(index))
        await self.lookups.answer(connection, instance, message.seq, rows, hits, last=True)

    def _missing(self, instance: Instance, index: int, digest: bytes, twin: bool) -> bytes:
        """A result for a page that is not published."""
        outcome, token, lease_ms = NOTED, 0, 0
        if digest in instance.table.leases:
            outcome = PENDING
        elif not twin and not self.candidates.wanted_by_another(instance, digest):
            self.candidates.note(instance, digest)
        elif len(instance.leases) >= LEASES_MAX:
            return refused(index)
        else:
            outcome = LEASE
            token, lease_ms = self.leases.acquire(instance, digest).token, self.lookups.lease_ms
        row: bytes = LOOKUP_RESULT.pack(index, outcome, 0, token, lease_ms, 0, 0, 0)
        return row
