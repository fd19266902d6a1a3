# SPDX-License-Identifier: Apache-2.0
"""Stable pages that one instance has offered and nobody else has: the unstable tree of KSM.

A candidate is a hint and nothing more: its page may have changed since. When a second
instance offers the same hash, that one publishes its page; whoever was noted before is
told to offer again, finds the page published and merges, or finds its own changed.

Instances offer what is stable anew in each of their passes, so a candidate that is not
refreshed for a while is forgotten.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gksmd.model import Candidate, GpuTable, Instance, Page
from gksmd.protocol import CONTROL, encode, lib

LIFETIME_S = 60.0
SWEPT_A_NOTE = 2  # more than one, so that the old ones go faster than new ones come
NOTED_MAX = 131_072  # of one instance: 256 GiB
TELL_DELAY_S = 0.2  # many pages are published at a time; their holders are told once


@dataclass(slots=True)
class Candidates:
    """The candidates of all tables."""

    lifetime_s: float = LIFETIME_S

    def wanted_by_another(self, instance: Instance, digest: bytes) -> bool:
        """Whether another instance has offered such a page lately."""
        found = instance.table.candidates.get(digest)
        return (
            found is not None
            and found.instance is not instance
            and found.offered_at > self._now() - self.lifetime_s
        )

    def note(self, instance: Instance, digest: bytes) -> None:
        """Remember that the instance has such a page."""
        table, now = instance.table, self._now()
        _forget(table, digest)  # so that the order is that of the times
        self._sweep(table, now)
        if instance.noted < NOTED_MAX:
            table.candidates[digest] = Candidate(instance, now)
            instance.noted += 1

    def published(self, publisher: Instance, page: Page) -> None:
        """The page can be attached now: whoever was noted for it is told."""
        found = _forget(page.table, page.hash)
        if found is None or found.instance is publisher or found.instance.told_to_offer:
            return
        found.instance.told_to_offer = True
        asyncio.get_running_loop().call_later(TELL_DELAY_S, _tell, found.instance)

    def leave(self, instance: Instance) -> None:
        """The instance has ended."""
        table = instance.table
        for digest in [d for d, c in table.candidates.items() if c.instance is instance]:
            _forget(table, digest)

    def _sweep(self, table: GpuTable, now: float) -> None:
        for _ in range(SWEPT_A_NOTE):
            oldest = next(iter(table.candidates), None)
            if oldest is None or table.candidates[oldest].offered_at > now - self.lifetime_s:
                return
            _forget(table, oldest)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _forget(table: GpuTable, digest: bytes) -> Candidate | None:
    found = table.candidates.pop(digest, None)
    if found is not None:
        found.instance.noted -= 1
    return found


def _tell(instance: Instance) -> None:
    instance.told_to_offer = False
    connection = instance.process.connection
    if connection is not None and instance.process.features & lib.GKSM_FEATURE_SCAN:
        control = CONTROL.build(action=lib.GKSM_CONTROL_OFFER_AGAIN)
        connection.endpoint.send(encode(lib.GKSM_CONTROL, head=control))
