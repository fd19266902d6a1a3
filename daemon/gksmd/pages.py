# SPDX-License-Identifier: Apache-2.0
"""Published pages: who was granted one, who maps it, and when the last one has left.

A page lives in the table of its domain and GPU. When nobody maps it and no grant of it
is outstanding it goes, and with it the vault's descriptor, unless it stays as a warm
one (``warm.py``).
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass

from gksmd.model import PAGE_BYTES, DomainState, Gpu, GpuTable, Instance, Page, State, Uuid
from gksmd.protocol import lib
from gksmd.quota import GRANTS_MAX, Quotas
from gksmd.segments import Segments
from gksmd.vaultlink import PAGE, SEGMENT, Item, VaultLink
from gksmd.warm import Warm

LOG = logging.getLogger("gksmd.pages")
MODEL_ENDED = frozenset({lib.GKSM_DETACH_FREE, lib.GKSM_DETACH_DECLINED, lib.GKSM_DETACH_LOST})


@dataclass(slots=True)
class Pages:
    """All tables. Changes only the counts; who may change them is decided elsewhere."""

    state: State
    quotas: Quotas
    segments: Segments
    vault: VaultLink
    warm: Warm
    adopted: bool = False

    def __post_init__(self) -> None:
        self.warm.forget = self._forget

    def domain(self, name: str, host_copy_budget: int | None = None) -> DomainState:
        """The state of a domain, made when it is first needed."""
        domain = self.state.domains.get(name)
        if domain is None:
            domain = self.state.domains[name] = DomainState(name)
        if host_copy_budget is not None:
            domain.host_copy_budget = host_copy_budget
        return domain

    def table(self, domain: DomainState, uuid: Uuid) -> GpuTable:
        """The domain's table on a GPU, made when it is first needed."""
        table = domain.tables.get(uuid)
        if table is None:
            gpu = self.state.gpus.get(uuid)
            if gpu is None:
                gpu = self.state.gpus[uuid] = Gpu(uuid)
            table = domain.tables[uuid] = gpu.tables[domain.name] = GpuTable(domain, gpu)
        return table

    def tidy(self, domain: DomainState) -> None:
        """Forget what is empty: tables, their GPUs, and the domain itself."""
        for uuid, table in list(domain.tables.items()):
            if table.by_id or table.leases or table.instances or table.arriving:
                continue
            del domain.tables[uuid], table.gpu.tables[domain.name]
            if not table.gpu.tables:
                self.state.gpus.pop(uuid, None)
        if not (domain.tables or domain.processes or domain.segments or domain.sharing):
            self.state.domains.pop(domain.name, None)

    # What a process does.

    def publish(self, instance: Instance, page: Page, *, attachable: bool) -> None:
        """Enter a new page; its publisher maps it once, if it still lives.

        The caller then serves those who wait for it, and calls ``drop_if_left``.
        """
        table = page.table
        table.arriving -= 1
        page.attachable = attachable
        table.by_id[page.id] = page
        if attachable:
            table.by_hash[page.hash] = page
        self.state.counters.published += 1
        self.warm.enter(instance, page)
        if instance in table.instances:
            instance.published_pages += 1
            self.map(instance, page, 1)

    def may_grant(self, instance: Instance) -> bool:
        """Whether the process may have one more grant outstanding."""
        return len(instance.granted) < GRANTS_MAX

    def grant(self, instance: Instance, page: Page) -> None:
        """Count a descriptor of the page that is about to be sent."""
        if not page.mappings:
            self.warm.taken(page)
        page.grants += 1
        instance.granted[page] = instance.granted.get(page, 0) + 1

    def ungrant(self, instance: Instance, page: Page) -> bool:
        """Take back one grant; False if there was none (the instance may be gone)."""
        count = instance.granted.get(page, 0)
        if not count:
            return False
        if count == 1:
            del instance.granted[page]
        else:
            instance.granted[page] = count - 1
        page.grants -= 1
        self.drop_if_left(page)
        return True

    def map(self, instance: Instance, page: Page, mappings: int, *, may_stay: bool = True) -> None:
        """Set how many addresses of the instance map the page.

        ``may_stay``: as a warm one, if that was the last.
        """
        before = instance.mapped.get(page, 0)
        page.mappings += mappings - before
        if mappings:
            if not before:
                self.warm.taken(page)
            instance.mapped[page] = mappings
            page.sharers += not before
        elif before:
            del instance.mapped[page]
            page.sharers -= 1
        if may_stay or page.mappings or page.grants or page.orphan:
            self.drop_if_left(page)
        else:
            self._forget([page])

    def attached(self, instance: Instance, page_id: int) -> None:
        """A grant became a mapping.

        Without a grant it is one from before a lost connection, or already counted.
        """
        page = instance.table.by_id.get(page_id)
        if page is None:
            return
        instance.unconfirmed.pop(page, None)
        before = instance.mapped.get(page, 0)
        if page in instance.granted:
            self.map(instance, page, before + 1)
            self.ungrant(instance, page)
        elif not before:
            self.map(instance, page, 1)
        self.warm.used(instance, page)

    def detached(self, instance: Instance, page_id: int, reason: int) -> None:
        """A mapping, or a grant, was given up; ``reason`` is an enum gksm_detach_reason.

        A page that its last sharer has written to does not stay: copies of what somebody
        goes on using would take the memory that its next writes need.
        """
        page = instance.table.by_id.get(page_id)
        if page is None:
            return
        if reason == lib.GKSM_DETACH_DECLINED and self.ungrant(instance, page):
            return
        before = instance.mapped.get(page, 0)
        if before:
            self.map(instance, page, before - 1, may_stay=reason in MODEL_ENDED)
        else:
            self.ungrant(instance, page)

    def announce(self, instance: Instance, page_id: int, digest: bytes, mappings: int) -> int:
        """A page that the instance maps since before its connection was made.

        Returns 0, or -ENOENT: it is counted, but nobody new can attach it; -EINVAL: it
        cannot be what it is said to be; -EDQUOT.
        """
        table = instance.table
        page = table.by_id.get(page_id)
        if page is None:
            if not page_id or not mappings:
                return -errno.EINVAL
            if not self.quotas.take_page(instance.process):
                return -errno.EDQUOT
            page = Page(page_id, digest, table, 0, attachable=False)
            page.charged = instance.process.usage
            table.by_id[page_id] = page
        elif page.hash != digest:
            return -errno.EINVAL
        if page in instance.unconfirmed:
            del instance.unconfirmed[page]
            self._clear_grants(instance, page)
        self.warm.enter(instance, page)
        self.map(instance, page, mappings)
        return 0 if page.attachable else -errno.ENOENT

    def reconnect(self, instance: Instance) -> None:
        """Its connection was made anew: what it maps is to be announced again."""
        instance.unconfirmed = dict.fromkeys([*instance.mapped, *instance.granted])

    def confirm_deadline(self, instance: Instance) -> None:
        """What was not announced again is not mapped any more."""
        unconfirmed, instance.unconfirmed = instance.unconfirmed, {}
        for page in unconfirmed:
            self._clear_grants(instance, page)
            self.map(instance, page, 0)

    def leave(self, instance: Instance) -> None:
        """The instance has ended: everything it had is gone."""
        instance.unconfirmed.clear()
        gone: list[Page] = []
        for page, mappings in instance.mapped.items():
            page.mappings -= mappings
            page.sharers -= 1
            gone.append(page)
        for page, grants in instance.granted.items():
            page.grants -= grants
            gone.append(page)
        instance.mapped.clear()
        instance.granted.clear()
        self._drop_left(gone)

    def _clear_grants(self, instance: Instance, page: Page) -> None:
        page.grants -= instance.granted.pop(page, 0)

    # When the last one has left.

    def drop_if_left(self, page: Page) -> None:
        """Drop the page if nobody has it any more."""
        if not (page.mappings or page.grants or page.orphan):
            self._drop_left([page])

    def _drop_left(self, pages: Iterable[Page]) -> None:
        """Drop those that nobody has any more, but for what stays warm."""
        dropped: list[Page] = []
        warm: set[Gpu] = set()
        may_stay: dict[GpuTable, bool] = {}
        for page in dict.fromkeys(pages):  # one may have been mapped and granted
            if page.mappings or page.grants or page.orphan or page.id not in page.table.by_id:
                continue
            table = page.table
            if table not in may_stay:
                may_stay[table] = self.warm.may_keep(table)
            if not may_stay[table] or not self.warm.keep(page):
                dropped.append(page)
                continue
            warm.add(table.gpu)
            # Whoever published it has no more of it than anybody else.
            if page.charged is not None:
                page.charged.published_pages -= 1
                page.charged = None
        self._forget(dropped)
        for gpu in warm:
            self.warm.trim(gpu)

    def _forget(self, pages: Iterable[Page]) -> None:
        """Drop pages, which nobody has, from the tables and from the vault."""
        dropped: dict[Gpu, list[int]] = {}
        domains: set[DomainState] = set()
        for page in pages:
            table = page.table
            self.warm.leave(page)
            del table.by_id[page.id]
            if table.by_hash.get(page.hash) is page:
                del table.by_hash[page.hash]
            self.segments.detach(page)
            self.quotas.return_page(page.charged, table.domain)
            self.state.counters.pages_dropped += 1
            if not table.domain.processes:
                domains.add(table.domain)
            if page.attachable:
                dropped.setdefault(table.gpu, []).append(page.id)
        for gpu, ids in dropped.items():
            self._leave_vault(gpu, ids)
        for domain in domains:
            self.tidy(domain)

    def _leave_vault(self, gpu: Gpu, ids: list[int]) -> None:
        def gone(_: object) -> None:
            gpu.leaving_pages -= len(ids)

        done = self.vault.drop(PAGE, ids)
        if done is not None:
            gpu.leaving_pages += len(ids)
            done.add_done_callback(gone)

    # When the vault goes and comes.

    def vault_down(self) -> None:
        """No descriptor can be had: what is mapped stays mapped, nobody new attaches."""
        self.state.vault_up = False
        for table in self._tables():
            table.by_hash.clear()
            for page in table.by_id.values():
                page.attachable = False
            # Their memory went with the vault; should it come back, it is told to drop them.
            self._forget([page for load in list(table.loads.values()) for page in load.warm])

    def vault_up(self, items: list[Item]) -> None:
        """Make the tables agree with what the vault has.

        The first time, what we do not know was published before we started and is
        adopted. Later it is a remainder that nobody was told about.
        """
        self.state.vault_up = True
        self.state.counters.vault_reconnects += self.adopted
        adopt, self.adopted = not self.adopted, True
        unknown: list[int] = []
        self.segments.vault_up([i for i in items if i.item_class == SEGMENT], self.domain, adopt)
        for item in (i for i in items if i.item_class == PAGE):
            if adopt:
                table = self.table(self.domain(item.domain), item.gpu_uuid)
            else:
                domain = self.state.domains.get(item.domain)
                found = domain.tables.get(item.gpu_uuid) if domain else None
                if found is None:
                    unknown.append(item.id)
                    continue
                table = found
            if not self._reconcile(table, item, adopt):
                unknown.append(item.id)
        for page in (p for t in self._tables() for p in t.by_id.values()):
            if not page.attachable:
                self.segments.detach(page)  # nobody can compare with it any more
        self.segments.drop_unused()
        if unknown:
            self.vault.drop(PAGE, unknown)
        LOG.info("the vault holds %d descriptors, %d of no use", len(items), len(unknown))

    def _reconcile(self, table: GpuTable, item: Item, adopt: bool) -> bool:
        page = table.by_id.get(item.id)
        if item.hash in table.by_hash or (page is None and not adopt):
            return False
        if page is None:
            page = Page(item.id, item.hash, table, item.kind, orphan=True)
            table.by_id[page.id] = page
            table.domain.usage.published_pages += 1
        elif page.hash != item.hash:
            return False
        page.attachable = True
        page.kind = item.kind
        table.by_hash[page.hash] = page
        if page.segment is None:
            self.segments.attach_adopted(page, item.segment_id, item.segment_offset)
        return True

    def orphan_deadline(self) -> None:
        """Adopted pages that nobody has announced are dropped."""
        orphans = [p for t in self._tables() for p in t.by_id.values() if p.orphan]
        for page in orphans:
            page.orphan = False
        self._drop_left(orphans)
        for domain in list(self.state.domains.values()):
            self.tidy(domain)

    def lost(self, page: Page) -> None:
        """The vault turned out not to have this one."""
        page.attachable = False
        if page.table.by_hash.get(page.hash) is page:
            del page.table.by_hash[page.hash]

    def _tables(self) -> list[GpuTable]:
        return [t for domain in self.state.domains.values() for t in domain.tables.values()]

    def new_page(
        self,
        instance: Instance,
        digest: bytes,
        kind: int,
    ) -> Page | None:
        """A page to be published, counted against the limits; None: over one of them.

        ``publish`` or ``discard`` has to follow.
        """
        table, budget = instance.table, instance.process.decision.domain.budget_bytes
        full = budget and (len(table.by_id) + table.arriving + 1) * PAGE_BYTES > budget
        # What nobody runs makes way for what somebody runs.
        if full and not self.warm.make_room(table):
            return None
        if not self.quotas.page_fits(instance.process):
            self.warm.make_room(table)
        if not self.quotas.take_page(instance.process):
            return None
        page = Page(int.from_bytes(os.urandom(8), "little") or 1, digest, instance.table, kind)
        page.charged = instance.process.usage
        table.arriving += 1
        return page

    def discard(self, page: Page) -> None:
        """A page that was not published after all."""
        page.table.arriving -= 1
        self.segments.detach(page)
        self.quotas.return_page(page.charged, page.table.domain)
