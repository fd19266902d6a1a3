# SPDX-License-Identifier: Apache-2.0
"""Promises of memory that is not taken yet, and the counts that settle them.

A promise is given if it could be kept now: what the driver says is free, less the
reserve, less what is promised strictly to others, holds all of the caller's promises
that nothing published can cover. A promise that was covered and turns out not to be is
its own domain's trouble: it stands behind the strict promises of everybody else.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from gksmd.accounts import NONE_GONE, SETTLED_S, Accounts, Gone
from gksmd.counts import SCANS, UNSHARED_REASONS, Usage
from gksmd.model import PAGE_BYTES, Gpu, Instance

_FIELDS = tuple(field.name for field in fields(Usage))
_BEFORE_REASONS = _FIELDS.index("unshared")


def lacking_bytes(
    instance: Instance, pages: int, free_bytes: int, accounts: Accounts, gone: Gone = NONE_GONE
) -> int:
    """How much more would have to be free for ``pages`` more to be promised; 0: none.

    ``gone``: if so many pages of each table were free instead.
    """
    gpu = instance.table.gpu
    needed = accounts.strict_pages(instance, pages, gone) * PAGE_BYTES
    if not pages or not needed:
        return 0
    free = free_bytes + PAGE_BYTES * sum(gone.values())
    room = free - accounts.reserve_bytes(gpu) - accounts.strict_bytes(gpu, instance, gone)
    return max(needed - max(room, 0), 0)


def promise(
    instance: Instance, pages: int, free_bytes: int, accounts: Accounts, now: float
) -> bool:
    """Promise ``pages`` more if that can be kept; ``now`` in seconds, monotonic."""
    if lacking_bytes(instance, pages, free_bytes, accounts):
        return False
    if pages:
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
    behind = _BEFORE_REASONS + UNSHARED_REASONS
    values = [*counts[:_BEFORE_REASONS], tuple(counts[_BEFORE_REASONS:behind]), *counts[behind:]]
    # What comes last only fills the struct.
    return Usage(**dict(zip(_FIELDS, values, strict=False)))
