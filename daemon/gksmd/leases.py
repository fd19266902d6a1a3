# SPDX-License-Identifier: Apache-2.0
"""Leases: for each page that is missing, one process at a time is its loader.

A lease ends when its page is published, when its holder gives it up or ends, or at
its deadline. Whoever waits for the page then gets the page, or exactly one of them
gets the next lease. Tokens are never used twice, so a loader that comes too late is
known by its token.

Deadlines are on the event loop's monotonic clock: a jump of the wall clock changes
nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from dataclasses import dataclass, field

from gksmd.model import Instance, Lease, Page, State, WaitEntry
from gksmd.pages import Pages
from gksmd.quota import TICKETS_MAX

SWEEP_MIN = 256


@dataclass(slots=True)
class Leases:
    """All leases. Their deadlines are in the order in which they were given."""

    state: State
    pages: Pages
    duration_s: float
    # A random start: a token from before a restart of gksmd is not valid after it.
    next_token: int = field(default_factory=lambda: secrets.randbits(62) | 1)
    by_deadline: dict[int, Lease] = field(default_factory=dict)  # by token, in that order
    timer: asyncio.TimerHandle | None = None

    def acquire(self, instance: Instance, digest: bytes) -> Lease:
        """Make the instance the loader of a page that has none."""
        loop = asyncio.get_running_loop()
        self.next_token += 1
        lease = Lease(self.next_token, digest, instance, loop.time() + self.duration_s)
        instance.table.leases[digest] = lease
        instance.leases[lease.token] = lease
        self.by_deadline[lease.token] = lease
        self.state.counters.leases += 1
        if self.timer is None:
            self.timer = loop.call_at(lease.deadline, self._lapse)
        return lease

    def ticket(self, instance: Instance, digest: bytes) -> int:
        """A number with which the instance can WAIT for a page that is being loaded."""
        tickets = instance.tickets
        if len(tickets) >= TICKETS_MAX:
            del tickets[next(iter(tickets))]
        self.next_token += 1
        tickets[self.next_token] = digest
        self.state.counters.pending += 1
        return self.next_token

    def queue(self, lease: Lease, entry: WaitEntry) -> None:
        """Let a ticket wait for the end of the lease.

        Those whose WAIT is over are swept out as they become half of the queue.
        """
        if lease.waiters is None:
            lease.waiters = deque()
        if len(lease.waiters) >= lease.sweep_at:
            lease.waiters = deque(e for e in lease.waiters if not e.wait.over)
            lease.sweep_at = max(SWEEP_MIN, 2 * len(lease.waiters))
        lease.waiters.append(entry)

    def give_up(self, lease: Lease) -> None:
        """End a lease without a page: the first who still waits gets the next one."""
        self._end(lease)
        waiters = lease.waiters
        while waiters:
            entry = waiters.popleft()
            if entry.wait.over or entry.index not in entry.wait.open:
                continue
            following = self.acquire(entry.wait.instance, lease.hash)
            following.waiters = waiters
            resolve_lease(entry, following)
            return

    def fulfil(self, lease: Lease, page: Page) -> None:
        """End a lease with its page: all who wait get it."""
        self._end(lease)
        for entry in lease.waiters or ():
            wait = entry.wait
            if wait.over or wait.open.pop(entry.index, None) is None:
                continue
            if page.attachable and self.pages.may_grant(wait.instance):
                self.pages.grant(wait.instance, page)
                wait.hits.append((entry.index, page))
            else:
                wait.refused.append(entry.index)
            wait.instance.tickets.pop(entry.ticket, None)
            wait.changed.set()

    def publishing(self, lease: Lease) -> None:
        """The page is on its way to the vault: the lease does not lapse any more."""
        lease.publishing = True
        self.by_deadline.pop(lease.token, None)

    def leave(self, instance: Instance) -> None:
        """The instance has ended or lost its connection.

        What it has just published goes on to the vault, and to those who wait for it.
        """
        for lease in list(instance.leases.values()):
            if not lease.publishing:
                self.give_up(lease)
        instance.tickets.clear()

    def _end(self, lease: Lease) -> None:
        lease.instance.leases.pop(lease.token, None)
        self.by_deadline.pop(lease.token, None)
        leases = lease.instance.table.leases
        if leases.get(lease.hash) is lease:
            del leases[lease.hash]

    def _lapse(self) -> None:
        """Take back every lease whose time is over, and set the timer for the next one."""
        loop = asyncio.get_running_loop()
        self.timer = None
        while self.by_deadline:
            lease = next(iter(self.by_deadline.values()))
            if lease.deadline > loop.time():
                self.timer = loop.call_at(lease.deadline, self._lapse)
                return
            self.state.counters.leases_lapsed += 1
            self.give_up(lease)


def resolve_lease(entry: WaitEntry, lease: Lease) -> None:
    """Answer a ticket with a lease. Its WAIT ends: the new loader has work to do."""
    wait = entry.wait
    wait.open.pop(entry.index, None)
    wait.instance.tickets.pop(entry.ticket, None)
    wait.leases.append((entry.index, lease))
    wait.changed.set()
