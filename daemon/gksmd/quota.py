# SPDX-License-Identifier: Apache-2.0
"""How much one container, bare process or domain may use.

Every amount is counted at two levels at once: the container's (a bare process counts
as one) and the domain's. A limit of 0 is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gksmd.config import Config, Quota
from gksmd.counts import QuotaUse
from gksmd.model import DomainState, Process

# Of one instance at once. A load has at most 512 of each under way, so these only stop
# one that never comes to an end with any.
# Descriptors sent and neither attached nor declined: those that a client leaves unread
# count against the limit that the kernel sets to all of gksmd's user.
GRANTS_MAX = 4096
LEASES_MAX = 8192
TICKETS_MAX = 8192  # the oldest are forgotten
GPUS_MAX = 16
# Allocations of one process that others may open, and opens of one process at once: each
# has up to GKSM_FDS_MAX descriptors under way, well within what a peer may leave unread.
IPC_EXPORTS_MAX = 1024
IPC_OPENS_MAX = 4
# A look-up that would have to wait longer than this for its quota is refused.
LOOKUP_WAIT_MAX_S = 1.0


@dataclass(frozen=True, slots=True)
class Quotas:
    """The configured limits, applied."""

    config: Config

    def levels(self, process: Process) -> Iterator[tuple[QuotaUse, Quota]]:
        """Both levels that the process counts against, with their limits."""
        yield process.usage, self.config.quota.container
        yield process.domain.usage, self.config.quota.domain

    def lookup_wait(self, process: Process, count: int, now: float) -> float:
        """Seconds until ``count`` look-ups are within the rates; they count from now on.

        A negative result refuses them: they would have to wait too long.
        """
        buckets = [
            (use, quota.lookups_per_second)
            for use, quota in self.levels(process)
            if quota.lookups_per_second
        ]
        wait = 0.0
        for use, rate in buckets:
            if use.lookup_tokens == 0.0 and use.lookup_time == 0.0:
                use.lookup_tokens = float(rate)
            else:
                earned = (now - use.lookup_time) * rate
                use.lookup_tokens = min(use.lookup_tokens + earned, float(rate))
            use.lookup_time = now
            wait = max(wait, (count - use.lookup_tokens) / rate)
        if wait > LOOKUP_WAIT_MAX_S:
            self._refuse(process, "lookups_per_second")
            return -1.0
        for use, _ in buckets:
            use.lookup_tokens -= count
        return wait

    def room_in_flight(self, process: Process, size: int) -> bool:
        """Whether a request of ``size`` bytes may be taken up beside those under way."""
        return all(
            not quota.bytes_in_flight
            or not use.bytes_in_flight
            or use.bytes_in_flight + size <= quota.bytes_in_flight
            for use, quota in self.levels(process)
        )

    def count_in_flight(self, process: Process, size: int) -> None:
        """Count a request, or with a negative size its end."""
        for use, _ in self.levels(process):
            use.bytes_in_flight += size

    def page_fits(self, process: Process) -> bool:
        """Whether the limits allow one more published page."""
        return not any(
            quota.published_pages and use.published_pages >= quota.published_pages
            for use, quota in self.levels(process)
        )

    def take_page(self, process: Process) -> bool:
        """Count one more published page if the limits allow it."""
        if not self.page_fits(process):
            self._refuse(process, "published_pages")
            return False
        for use, _ in self.levels(process):
            use.published_pages += 1
        return True

    def return_page(self, charged: QuotaUse | None, domain: DomainState) -> None:
        """Undo ``take_page``."""
        if charged is not None:
            charged.published_pages -= 1
        domain.usage.published_pages -= 1

    def take_host_copy(self, process: Process, size: int) -> bool:
        """Count host memory for a segment if the limits and the domain's budget allow it."""
        budget = process.domain.host_copy_budget
        over = bool(budget) and process.domain.usage.host_copy_bytes + size > budget
        if over or any(
            quota.host_copy_bytes and use.host_copy_bytes + size > quota.host_copy_bytes
            for use, quota in self.levels(process)
        ):
            self._refuse(process, "host_copy_bytes")
            return False
        for use, _ in self.levels(process):
            use.host_copy_bytes += size
        return True

    def return_host_copy(self, charged: QuotaUse | None, domain: DomainState, size: int) -> None:
        """Undo ``take_host_copy``."""
        if charged is not None:
            charged.host_copy_bytes -= size
        domain.usage.host_copy_bytes -= size

    def take_ipc_export(self, process: Process) -> bool:
        """Whether the process may let others open one more allocation."""
        if len(process.ipc_exports) < IPC_EXPORTS_MAX:
            return True
        self._refuse(process, "ipc_exports")
        return False

    def _refuse(self, process: Process, name: str) -> None:
        for use, _ in self.levels(process):
            use.refused[name] = use.refused.get(name, 0) + 1
