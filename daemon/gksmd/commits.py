# SPDX-License-Identifier: Apache-2.0
"""Memory that is promised and not taken, by the policy "strict".

A promise is given only if it could be kept now: what the driver says is free, less
all that is promised on that GPU, less the reserve for copies on write.
"""

from __future__ import annotations

from typing import Any

from gksmd.model import PAGE_BYTES, SCANS, UNSHARED_REASONS, Gpu, Instance, Usage

# A USAGE this long after a promise includes it, whatever its counts are: clients send
# one at most 100 ms after a change.
SETTLED_S = 0.5
COUNTS = 13  # of gksm_usage, before the array of reasons
SCAN_COUNTS = (  # of gksm_usage, behind it
    "zero_pages",
    "full_scans",
    "stable_pages",
    "volatile_pages",
    "scanned_pages",
    "merged_pages",
    "dropped_merges",
    "churned_merges",
    "scan_ns_total",
    "scan_pass",
)


def promise(
    instance: Instance, pages: int, free_bytes: int, reserve_bytes: int, now: float
) -> bool:
    """Promise ``pages`` more if the GPU has them; ``now`` in seconds, monotonic."""
    room = free_bytes - instance.table.gpu.promised_pages * PAGE_BYTES - reserve_bytes
    if room < pages * PAGE_BYTES:
        return False
    instance.pending_commits.append((now, pages))
    return True


def report(instance: Instance, usage: Usage, now: float) -> None:
    """Take over the counts of a USAGE message.

    It may have been written before the promises that were made last; those stay
    pending until its counts, or the time, show that it includes them.
    """
    grown = usage.virtual_pages - instance.usage.virtual_pages
    pending = instance.pending_commits
    while pending:
        since, pages = pending[0]
        if grown < pages and now - since < SETTLED_S:
            break
        grown -= pages
        del pending[0]
    instance.usage = usage


def retire(gpu: Gpu, instance: Instance) -> None:
    """Add what an instance that is gone has counted to what its GPU remembers."""
    gpu.past_cow_events += instance.usage.cow_events
    gpu.past_cow_ns_total += instance.usage.cow_ns_total
    gpu.past_api_detaches += instance.usage.api_detaches
    gpu.past_scans.update({name: getattr(instance.usage, name) for name in SCANS})


def usage_from(row: tuple[Any, ...]) -> Usage:
    """The counts of a ``gksm_usage``, its fields in order."""
    _, _, *counts = row
    usage = Usage(*counts[:COUNTS])
    usage.unshared = tuple(counts[COUNTS : COUNTS + UNSHARED_REASONS])
    scan = counts[COUNTS + UNSHARED_REASONS :]
    for name, value in zip(SCAN_COUNTS, scan, strict=False):
        setattr(usage, name, value)
    return usage
