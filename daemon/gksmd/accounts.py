# SPDX-License-Identifier: Apache-2.0
"""Whose memory is whose: what is promised, what may cover it, what sharing owes.

Four figures of a GPU, all in bytes:

- *commit*: promised to instances and not taken. The part of it that pages may cover
  which the instance's domain has published already, each at most once for each instance,
  is only asked for if its loads turn out different; the rest is *strict*.
- *reserve*: never promised. It is there for copies on write, because nobody else is
  given it.
- *debt*: what the sharers would need on top if every shared page were written.
- *headroom*: free, and neither reserved nor strictly promised. Below the low-water mark
  memory is short.

Free memory is what the driver told the instance that asked last, less what instances
have reported to use since: gksmd has no CUDA context to ask with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gksmd.config import Memory
from gksmd.model import PAGE_BYTES, FreeFigure, Gpu, GpuTable, Instance

# Reports of usage come within 100 ms of a change; what is older than this is in them.
SETTLED_S = 0.5

# How many pages fewer each table would have.
Gone = Mapping[GpuTable, int]
NONE_GONE: Gone = MappingProxyType({})


def cover_pages(instance: Instance, gone: int = 0) -> int:
    """How many published pages the instance may yet attach instead of filling a page.

    A page that it backed itself was the chance of one of them: who has loaded something
    else by now, or works on memory that is not loaded, has nothing covered any more.
    ``gone``: if so many that it has not mapped were not there.
    """
    published = len(instance.table.by_hash) - gone - len(instance.mapped)
    missed = instance.usage.private_pages + min(instance.published_pages, len(instance.mapped))
    return max(published - missed, 0)


@dataclass(frozen=True, slots=True)
class Accounts:
    """The accounts by the operator's terms (``[memory]`` of gksm.toml)."""

    memory: Memory

    def strict_pages(self, instance: Instance, more: int = 0, gone: Gone = NONE_GONE) -> int:
        """Pages promised to it, with ``more``, that nothing published can cover."""
        return self._strict(instance, instance.promised_pages + more, gone)

    def _strict(self, instance: Instance, promised: int, gone: Gone) -> int:
        if self.memory.admission == "strict":
            return promised
        return max(promised - cover_pages(instance, gone.get(instance.table, 0)), 0)

    def reserve_bytes(self, gpu: Gpu) -> int:
        """What is kept for copies on write."""
        return min(self.memory.reserve.of(gpu.total_bytes) or 0, gpu.total_bytes)

    def low_water_bytes(self, gpu: Gpu) -> int:
        """With less headroom than this, memory is short."""
        return min(self.memory.low_water.of(gpu.total_bytes) or 0, gpu.total_bytes)

    def strict_bytes(
        self, gpu: Gpu, without: Instance | None = None, gone: Gone = NONE_GONE
    ) -> int:
        """Promised on the GPU and not covered, to all but one."""
        limit = gpu.total_bytes // PAGE_BYTES
        return PAGE_BYTES * sum(
            self._strict(i, min(i.claimed_pages, limit), gone)
            for i in gpu.instances
            if i is not without
        )

    def covered_bytes(self, table: GpuTable) -> int:
        """The part of a domain's commit that its published pages may cover."""
        strict = PAGE_BYTES * sum(self.strict_pages(i) for i in table.instances)
        return commit_bytes(table) - strict

    def headroom(self, gpu: Gpu, gone: Gone = NONE_GONE) -> int | None:
        """Free, and neither reserved nor strictly promised; None: nobody has said yet."""
        free = free_bytes(gpu)
        if free is None:
            return None
        free += PAGE_BYTES * sum(gone.values())
        return free - self.reserve_bytes(gpu) - self.strict_bytes(gpu, gone=gone)

    def held_bytes(self, instance: Instance, free: int, ahead: int = 0) -> int:
        """Of ``free``, as its driver says now, what is not for this instance to have.

        What others have been backing since they last reported is gone from ``free``
        already, and is not held a second time. ``ahead`` is what it has itself taken
        since its own last report.
        """
        gpu = instance.table.gpu
        promised = self.strict_bytes(gpu, without=instance)
        backed = max(unreported_bytes(gpu, free) - ahead, 0)
        return self.reserve_bytes(gpu) + max(promised - backed, 0)

    def warm_bytes_for(self, instance: Instance) -> int:
        """What warm pages could be given up for it, less what of them covers others' promises."""
        gpu = instance.table.gpu
        gone = {table: table.reclaimable_pages for table in gpu.tables.values()}
        if not any(gone.values()):
            return 0
        covering = self.strict_bytes(gpu, instance, gone) - self.strict_bytes(gpu, instance)
        return max(PAGE_BYTES * sum(gone.values()) - covering, 0)


def debt_bytes(table: GpuTable) -> int:
    """What a domain's sharers would need on top if every shared page were written."""
    return PAGE_BYTES * sum(max(page.mappings - 1, 0) for page in table.by_id.values())


def commit_bytes(table: GpuTable) -> int:
    """What is promised to a domain's instances and not taken."""
    limit = table.gpu.total_bytes // PAGE_BYTES
    return PAGE_BYTES * sum(min(i.claimed_pages, limit) for i in table.instances)


def note_free(gpu: Gpu, free: int, now: float, ahead: int = 0) -> None:
    """Keep what the driver told an instance just now; ``ahead`` as in ``held_bytes``."""
    figure = FreeFigure(min(free, gpu.total_bytes), gpu.used_bytes + ahead, now)
    gpu.newest_free = figure
    if gpu.settled_free is None or now - gpu.settled_free.at > SETTLED_S:
        gpu.settled_free = figure


def free_bytes(gpu: Gpu) -> int | None:
    """What is free now, as far as it is known."""
    return None if gpu.newest_free is None else _since(gpu, gpu.newest_free)


def unreported_bytes(gpu: Gpu, free: int) -> int:
    """What has been taken that nobody has reported yet."""
    settled = gpu.settled_free
    return 0 if settled is None else max(_since(gpu, settled) - free, 0)


def _since(gpu: Gpu, figure: FreeFigure) -> int:
    left = figure.free_bytes - (gpu.used_bytes - figure.used_bytes)
    return min(max(left, 0), gpu.total_bytes)
