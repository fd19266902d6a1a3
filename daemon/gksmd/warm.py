# SPDX-License-Identifier: Apache-2.0
"""Warm pages: published pages that nobody has any more, kept for their model's next start.

They are kept by load: what one instance published or attached in one go. A budget
evicts the loads that were not used for the longest time, whole, so that a model is
either there or not; only of a load that is larger than its budget a part stays. A
pinned load goes by ``drop`` or a drain alone, whatever the budget is.

A domain with a budget of its own counts against that; all others share one, and what
one of them leaves may push out what another one left. Nothing else is to be seen of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from gksmd.core import Configured
from gksmd.model import PAGE_BYTES, DomainState, Gpu, GpuTable, Instance, Load, Page, State
from gksmd.protocol import lib
from gksmd.sizes import GpuSize

# Without a publication or attachment for this long, what follows is another load.
GAP_S = 30.0


@dataclass(slots=True)
class Warm:
    """Decides what stays. What goes is handed to ``forget``, which Pages sets."""

    state: State
    budget: GpuSize  # of each GPU, for the domains without one of their own
    bare_default: str  # bare.default_domain of gksm.toml
    configured: Configured
    forget: Callable[[Iterable[Page]], None] = field(init=False)
    next_id: int = 1

    # Which load a page belongs to.

    def enter(self, instance: Instance, page: Page) -> None:
        """The instance published the page, or announced one that belongs nowhere yet."""
        if page.load is None:
            self._put(page, self._load_of(instance))

    def used(self, instance: Instance, page: Page) -> None:
        """The instance attached the page: it goes with what else it loads."""
        load = self._load_of(instance)
        if page.load is load:
            return
        if page.load is not None and page.load.pinned:
            page.load.used_at = load.used_at
            return
        self.leave(page)
        self._put(page, load)

    def leave(self, page: Page) -> None:
        """The page is no part of its load any more."""
        load, page.load = page.load, None
        if load is None:
            return
        load.warm.discard(page)
        load.pages -= 1
        if not load.pages:
            load.table.loads.pop(load.id, None)

    def _load_of(self, instance: Instance) -> Load:
        """The load that the instance is at."""
        load, now = instance.load, time.monotonic()
        if load is None or now - instance.loaded_at > GAP_S:
            name = instance.process.framework or instance.process.identity.name or "?"
            load = instance.load = self._new(instance.table, name, now)
        load.used_at = instance.loaded_at = now
        return load

    def _new(self, table: GpuTable, name: str, now: float) -> Load:
        load = Load(self.next_id, table, name, now)
        self.next_id += 1
        return load

    def _put(self, page: Page, load: Load) -> None:
        page.load = load
        load.pages += 1
        load.table.loads[load.id] = load

    # What stays.

    def may_keep(self, table: GpuTable) -> bool:
        """Whether pages of the table that nobody has may stay."""
        return not self.state.drains.covers(table.gpu.uuid) and self._returns(table.domain.name)

    def keep(self, page: Page) -> bool:
        """Nobody has the page any more, and it may stay. True: it does, until it is evicted."""
        table, load = page.table, page.load
        if not page.attachable or table.by_hash.get(page.hash) is not page:
            return False
        if page.kind != lib.GKSM_KIND_WEIGHTS:  # what a run computed, none starts with
            return False
        if self._limit(table) == 0 and not (load and load.pinned):
            return False
        if load is None:  # from before gksmd started: who loaded it is not known
            unknown = (each for each in table.loads.values() if not each.name)
            load = next(unknown, None) or self._new(table, "", 0.0)
            self._put(page, load)
        load.warm.add(page)
        load.used_at = time.monotonic()
        return True

    def taken(self, page: Page) -> None:
        """Somebody has the page again."""
        if page.load is not None:
            page.load.warm.discard(page)

    def trim(self, gpu: Gpu) -> None:
        """Evict what is beyond the budgets."""
        common: list[Load] = []
        for table in list(gpu.tables.values()):
            own = self._own(table.domain.name)
            loads = [load for load in table.loads.values() if load.warm]
            if own is None:
                common += loads
            else:
                self._fit(loads, own.of(gpu.total_bytes))
        self._fit(common, self.budget.of(gpu.total_bytes))

    def _fit(self, loads: list[Load], limit: int | None) -> None:
        if limit is None:  # of a GPU that nobody has opened since we started
            return
        surplus = sum(len(load.warm) for load in loads) - limit // PAGE_BYTES
        mortal = _oldest_first(loads)
        for load in mortal:
            if surplus <= 0:
                return
            gone = list(load.warm if load is not mortal[-1] else islice(load.warm, surplus))
            surplus -= len(gone)
            self.forget(gone)

    def _limit(self, table: GpuTable) -> int | None:
        own = self._own(table.domain.name)
        return (self.budget if own is None else own).of(table.gpu.total_bytes)

    def _own(self, name: str) -> GpuSize | None:
        domain = self.configured().get(name)
        return domain.warm if domain is not None else None

    def _returns(self, name: str) -> bool:
        """Whether somebody may yet start in that domain: else its pages are of no use.

        Nobody who is given the name by another rule may find the pages of its former
        members, so those of a domain that is deleted go.
        """
        kind, colon, _ = name.partition(":")
        if not colon:
            return name in self.configured()
        if kind == "container":
            boxes = self.state.containers.values()
            return any(box.decision.domain.name == name for box in boxes)
        return kind == "uid" and self.bare_default == "uid"

    # What goes.

    def victims(self, gpu: Gpu, asker: GpuTable | None = None) -> list[Load]:
        """Loads that make way for who needs memory, the one to go first at the front.

        Those of the asker's go last: they may be what is asked for. Pinned ones stay.
        """
        loads = _oldest_first(load for t in gpu.tables.values() for load in t.loads.values())
        return sorted(loads, key=lambda load: load.table is asker)

    def make_room(self, table: GpuTable) -> bool:
        """Evict the table's oldest load, for a page that its domain publishes now."""
        oldest = next(iter(_oldest_first(table.loads.values())), None)
        return oldest is not None and self._drop(oldest) > 0

    def drop(self, loads: Iterable[Load]) -> int:
        """Drop what is warm of these, pinned ones too; bytes.

        The vault has been told, and may not have closed the descriptors yet.
        """
        return sum(self._drop(load) for load in list(loads))

    def domains_changed(self) -> None:
        """Domains were configured, or containers went: what cannot return goes."""
        for domain in list(self.state.domains.values()):
            if not self._returns(domain.name):
                self.drop(_loads(domain))
        for gpu in list(self.state.gpus.values()):
            self.trim(gpu)

    def _drop(self, load: Load) -> int:
        gone = list(load.warm)
        self.forget(gone)
        return len(gone) * PAGE_BYTES


def _loads(domain: DomainState) -> list[Load]:
    return [load for table in domain.tables.values() for load in table.loads.values()]


def _oldest_first(loads: Iterable[Load]) -> list[Load]:
    """Those that may be evicted, the one to go first at the front."""
    mortal = [load for load in loads if load.warm and not load.pinned]
    return sorted(mortal, key=lambda load: load.used_at)
