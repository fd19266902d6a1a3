# SPDX-License-Identifier: Apache-2.0
"""Stable pages that one instance has offered and nobody else has: the unstable tree of KSM.

A candidate is a hint and nothing more: its page may have changed since. When a second
instance offers the same hash, that one publishes its page; whoever was noted before is
told to offer again, finds the page published and merges, or finds its own changed.
Where scanners look on demand only, nobody is told: the passes that are asked for
(``scanning.py``) go on until nobody is due.

Instances offer what is stable anew in each of their passes, so a candidate that is not
refreshed for a while is forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

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
    unasked: bool = True  # scanners look by themselves, so they are told by themselves
    _held: bool = False  # passes are being made, and cover whoever is due
    # Those whose noted pages were published, with the timer that tells them.
    _due: dict[Instance, asyncio.TimerHandle | None] = field(default_factory=dict)

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
        if found is None or found.instance is publisher or found.instance in self._due:
            return
        if self._held:
            self._due[found.instance] = None
        elif self.unasked:
            self._tell_soon(found.instance)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Tell nobody for now, not even those whose time was near: passes are made."""
        for timer in self._due.values():
            if timer is not None:
                timer.cancel()
        self._due = dict.fromkeys(self._due)
        self._held = True
        try:
            yield
        finally:
            self._held = False
            due, self._due = list(self._due), {}
            for instance in due if self.unasked else ():
                self._tell_soon(instance)

    def take_due(self, instance: Instance) -> bool:
        """Whether a page of the instance was published that it had been noted for.

        To be asked while they are held, before a pass: that finds all that was published.
        """
        if instance not in self._due:
            return False
        del self._due[instance]
        return True

    def start_anew(self, tables: Iterable[GpuTable]) -> None:
        """Forget what was offered before: passes over all who had it begin, and what is
        still there comes again."""
        for table in tables:
            for candidate in table.candidates.values():
                candidate.instance.noted -= 1
            table.candidates.clear()

    def leave(self, instance: Instance) -> None:
        """The instance has ended."""
        timer = self._due.pop(instance, None)
        if timer is not None:
            timer.cancel()
        table = instance.table
        for digest in [d for d, c in table.candidates.items() if c.instance is instance]:
            _forget(table, digest)

    def _sweep(self, table: GpuTable, now: float) -> None:
        for _ in range(SWEPT_A_NOTE):
            oldest = next(iter(table.candidates), None)
            if oldest is None or table.candidates[oldest].offered_at > now - self.lifetime_s:
                return
            _forget(table, oldest)

    def _tell_soon(self, instance: Instance) -> None:
        loop = asyncio.get_running_loop()
        self._due[instance] = loop.call_later(TELL_DELAY_S, self._tell, instance)

    def _tell(self, instance: Instance) -> None:
        del self._due[instance]
        connection = instance.process.connection
        if connection is not None and instance.process.features & lib.GKSM_FEATURE_SCAN:
            control = CONTROL.build(action=lib.GKSM_CONTROL_OFFER_AGAIN)
            connection.endpoint.send(encode(lib.GKSM_CONTROL, head=control))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _forget(table: GpuTable, digest: bytes) -> Candidate | None:
    found = table.candidates.pop(digest, None)
    if found is not None:
        found.instance.noted -= 1
    return found
