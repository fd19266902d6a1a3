# SPDX-License-Identifier: Apache-2.0
"""What people and tools see of the state: plain records, made in one pass.

``Status`` is a stable contract (``gksmctl status --json``): fields are only appended.
Sizes are bytes. Shared and sharing mean what they mean for KSM: ``pages_shared`` are
the physical pages in use by at least one mapping, ``pages_sharing`` the further
mappings of them. ``pages_zero`` are the mappings of pages of zeros, which count in
neither; ``saved_bytes`` is what all of them save. A page that
nobody maps any more is warm.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import msgspec

from gksmd.accounts import Accounts, commit_bytes, debt_bytes, free_bytes
from gksmd.domains import KINDS, DomainSet
from gksmd.model import PAGE_BYTES, ZERO_HASH, GpuTable, Instance, Page, Sharing, State

GUARDS = ("off", "seal", "optimistic", "fault")  # enum gksm_guard, in order

T = TypeVar("T")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One row of an answer."""


class DaemonRow(Record, frozen=True):
    """gksmd itself."""

    version: str
    uptime_s: float


class GpuRow(Record, frozen=True):
    """One GPU or MIG instance. ``guard`` is that of its instances, "mixed" if they differ."""

    uuid: str
    name: str
    guard: str
    total_bytes: int
    used_bytes: int
    pages_shared: int
    pages_sharing: int
    saved_bytes: int
    warm_bytes: int
    cow_events: int
    pages_zero: int
    draining: bool
    free_bytes: int  # as the driver told who asked last; 0 too while nobody has
    promised_bytes: int
    reserve_bytes: int
    debt_bytes: int
    memory_short: bool  # below the low-water mark


class AccountRow(Record, frozen=True):
    """What one domain owes and is owed on one GPU."""

    gpu: str
    domain: str
    commit_bytes: int  # promised and not taken
    covered_bytes: int  # of that, what pages it has published may cover
    debt_bytes: int  # needed on top if every shared page were written


class InstanceRow(Record, frozen=True):
    """One process on one GPU. The proportional size counts a shared page by its mappings."""

    pid: int
    domain: str
    gpu: str
    framework: str
    virtual_bytes: int
    private_bytes: int
    shared_bytes: int
    proportional_bytes: int


class DomainRow(Record, frozen=True):
    """One trust domain, configured or in use."""

    name: str
    instances: int
    pages_shared: int
    saved_bytes: int
    warm_bytes: int


class Status(Record, frozen=True):
    """The answer to ``status``."""

    daemon: DaemonRow
    gpus: list[GpuRow]
    instances: list[InstanceRow]
    domains: list[DomainRow]
    accounts: list[AccountRow]


class ProcessRow(Record, frozen=True):
    """One process on one GPU (or on none yet), with what decides about its sharing."""

    pid: int
    name: str
    uid: int
    container: str
    domain: str
    gpu: str
    guard: str
    framework: str
    connected: bool
    sharing: str
    reason: str
    virtual_bytes: int
    unbacked_bytes: int
    private_bytes: int
    shared_bytes: int
    cow_events: int
    api_detaches: int
    cow_ns_total: int  # from faults held to their answers
    cow_ns_max: int
    full_scans: int
    stable_pages: int
    volatile_pages: int
    merged_pages: int
    dropped_merges: int
    churned_merges: int


class PageRow(Record, frozen=True):
    """Published pages of one domain, GPU and kind that the same processes map.

    The kind of a page of zeros is "zero", whatever it was meant for.
    """

    gpu: str
    domain: str
    kind: str
    pages: int
    mappings: int
    saved_bytes: int
    host_copies: int
    attachable: int
    pids: list[int]


class LoadRow(Record, frozen=True):
    """What one process loaded in one go: what warm memory is kept, and dropped, by."""

    load: int
    gpu: str
    domain: str
    program: str  # "": loaded before gksmd started
    warm_bytes: int  # that nobody has
    in_use_bytes: int
    idle_s: float  # since a page of it was mapped or left last
    pinned: bool


class DomainDetail(Record, frozen=True):
    """A configured domain, in the order in which rules are tried."""

    name: str
    match: list[str]
    share: list[str]
    guard: str
    budget_bytes: int
    file: str
    instances: int
    pages_shared: int
    saved_bytes: int


def format_uuid(raw: bytes) -> str:
    """The driver's way to write a UUID."""
    return f"GPU-{uuid.UUID(bytes=raw)}"


def sharing_name(sharing: Sharing) -> str:
    """For people: "on", "off" or "unshared"."""
    return {Sharing.ON: "on", Sharing.PAUSED: "off", Sharing.UNSHARED: "unshared"}[sharing]


class TableCounts(NamedTuple):
    """Pages of one domain on one GPU."""

    shared: int = 0
    sharing: int = 0
    warm: int = 0
    zero: int = 0  # mappings of the page of zeros, which counts in neither of the first two
    saved: int = 0


def table_counts(table: GpuTable) -> TableCounts:
    """Count the pages of one domain on one GPU."""
    shared = sharing = warm = zero = saved = 0
    for page in table.by_id.values():
        if not page.mappings:
            warm += 1
            continue
        saved += page.mappings - 1
        if page.hash == ZERO_HASH:
            zero += page.mappings
        else:
            shared += 1
            sharing += page.mappings - 1
    return TableCounts(shared, sharing, warm, zero, saved)


def status(state: State, domains: DomainSet, accounts: Accounts) -> Status:
    """The whole status, consistent: the caller does not await meanwhile."""
    pages: Counter[str] = Counter()
    saved: Counter[str] = Counter()
    warm_pages: Counter[str] = Counter()
    gpus = []
    for raw, gpu in state.gpus.items():
        counts = {name: table_counts(table) for name, table in gpu.tables.items()}
        for name, count in counts.items():
            pages[name] += count.shared
            warm_pages[name] += count.warm
            saved[name] += count.saved * PAGE_BYTES
        guards = {GUARDS[instance.guard] for instance in gpu.instances}
        gpus.append(
            GpuRow(
                uuid=format_uuid(raw),
                name=gpu.name,
                guard=guards.pop() if len(guards) == 1 else "mixed" if guards else "off",
                total_bytes=gpu.total_bytes,
                used_bytes=gpu.used_bytes,
                pages_shared=sum(c.shared for c in counts.values()),
                pages_sharing=sum(c.sharing for c in counts.values()),
                pages_zero=sum(c.zero for c in counts.values()),
                saved_bytes=sum(c.saved for c in counts.values()) * PAGE_BYTES,
                warm_bytes=sum(c.warm for c in counts.values()) * PAGE_BYTES,
                cow_events=gpu.cow_events,
                draining=state.drains.covers(raw),
                free_bytes=free_bytes(gpu) or 0,
                promised_bytes=gpu.promised_pages * PAGE_BYTES,
                reserve_bytes=accounts.reserve_bytes(gpu),
                debt_bytes=sum(map(debt_bytes, gpu.tables.values())),
                memory_short=gpu.short,
            )
        )
    instances = state.instances
    users = Counter(instance.process.domain.name for instance in instances)
    names = dict.fromkeys([*(d.name for d in domains), *state.domains])
    return Status(
        daemon=DaemonRow(
            version=state.version, uptime_s=round(time.monotonic() - state.started, 3)
        ),
        gpus=gpus,
        instances=sorted((_instance(i) for i in instances), key=lambda row: (row.gpu, row.pid)),
        domains=[
            DomainRow(
                name=name,
                instances=users[name],
                pages_shared=pages[name],
                saved_bytes=saved[name],
                warm_bytes=warm_pages[name] * PAGE_BYTES,
            )
            for name in names
        ],
        accounts=[
            AccountRow(
                gpu=format_uuid(raw),
                domain=name,
                commit_bytes=commit_bytes(table),
                covered_bytes=accounts.covered_bytes(table),
                debt_bytes=debt_bytes(table),
            )
            for raw, gpu in state.gpus.items()
            for name, table in gpu.tables.items()
        ],
    )


def _instance(instance: Instance) -> InstanceRow:
    usage = instance.usage
    return InstanceRow(
        pid=instance.process.identity.pid,
        domain=instance.process.domain.name,
        gpu=format_uuid(instance.table.gpu.uuid),
        framework=instance.process.framework,
        virtual_bytes=usage.virtual_pages * PAGE_BYTES,
        private_bytes=(usage.private_pages + usage.spare_pages) * PAGE_BYTES,
        shared_bytes=sum(instance.mapped.values()) * PAGE_BYTES,
        proportional_bytes=instance.proportional_bytes,
    )


def processes(state: State) -> list[ProcessRow]:
    """Every process on each of its GPUs; one without a GPU yet has one row, too."""
    rows = []
    for process in state.processes.values():
        found: list[Instance | None] = [*process.instances.values()] or [None]
        for instance in found:
            usage = instance.usage if instance else None
            rows.append(
                ProcessRow(
                    pid=process.identity.pid,
                    name=process.identity.name,
                    uid=process.identity.uid,
                    container=process.identity.container or "",
                    domain=process.domain.name,
                    gpu=format_uuid(instance.table.gpu.uuid) if instance else "",
                    guard=GUARDS[instance.guard] if instance else "",
                    framework=process.framework,
                    connected=process.connection is not None,
                    sharing=sharing_name(process.sharing),
                    reason=process.reason,
                    virtual_bytes=usage.virtual_pages * PAGE_BYTES if usage else 0,
                    unbacked_bytes=usage.unbacked_pages * PAGE_BYTES if usage else 0,
                    private_bytes=(usage.private_pages + usage.spare_pages) * PAGE_BYTES
                    if usage
                    else 0,
                    shared_bytes=sum(instance.mapped.values()) * PAGE_BYTES if instance else 0,
                    cow_events=usage.cow_events if usage else 0,
                    api_detaches=usage.api_detaches if usage else 0,
                    cow_ns_total=usage.cow_ns_total if usage else 0,
                    cow_ns_max=usage.cow_ns_max if usage else 0,
                    full_scans=usage.full_scans if usage else 0,
                    stable_pages=usage.stable_pages if usage else 0,
                    volatile_pages=usage.volatile_pages if usage else 0,
                    merged_pages=usage.merged_pages if usage else 0,
                    dropped_merges=usage.dropped_merges if usage else 0,
                    churned_merges=usage.churned_merges if usage else 0,
                )
            )
    return sorted(rows, key=lambda row: (row.pid, row.gpu))


def _kind(page: Page) -> str:
    if page.hash == ZERO_HASH:
        return "zero"
    return KINDS[page.kind] if page.kind < len(KINDS) else str(page.kind)


def pages(state: State) -> list[PageRow]:
    """The published pages, those with the same holders in one row. No hash is shown."""
    rows = []
    for raw, gpu in state.gpus.items():
        for name, table in gpu.tables.items():
            holders: dict[int, list[int]] = {}
            for instance in table.instances:
                for page in instance.mapped:
                    holders.setdefault(page.id, []).append(instance.process.identity.pid)
            groups: dict[tuple[str, tuple[int, ...]], list[int]] = {}
            for page in table.by_id.values():
                pids = tuple(sorted(holders.get(page.id, ())))
                group = groups.setdefault((_kind(page), pids), [0, 0, 0, 0, 0])
                group[0] += 1
                group[1] += page.mappings
                group[2] += max(page.mappings - 1, 0)
                group[3] += page.segment is not None
                group[4] += page.attachable
            rows += [
                PageRow(
                    gpu=format_uuid(raw),
                    domain=name,
                    kind=kind,
                    pages=group[0],
                    mappings=group[1],
                    saved_bytes=group[2] * PAGE_BYTES,
                    host_copies=group[3],
                    attachable=group[4],
                    pids=list(pids),
                )
                for (kind, pids), group in groups.items()
            ]
    return sorted(rows, key=lambda row: (row.gpu, row.domain, -row.pages))


def loads(state: State) -> list[LoadRow]:
    """Every load, the one that was used last first."""
    now = time.monotonic()
    rows = [
        LoadRow(
            load=load.id,
            gpu=format_uuid(raw),
            domain=name,
            program=load.name,
            warm_bytes=len(load.warm) * PAGE_BYTES,
            in_use_bytes=(load.pages - len(load.warm)) * PAGE_BYTES,
            idle_s=round(now - load.used_at, 3),
            pinned=load.pinned,
        )
        for raw, gpu in state.gpus.items()
        for name, table in gpu.tables.items()
        for load in table.loads.values()
    ]
    return sorted(rows, key=lambda row: (row.gpu, row.idle_s))


def domain_details(state: State, domains: DomainSet, accounts: Accounts) -> list[DomainDetail]:
    """The configured domains in order."""
    use = {row.name: row for row in status(state, domains, accounts).domains}
    return [
        DomainDetail(
            name=domain.name,
            match=[str(s) for s in domain.rule.selectors] if domain.rule else [],
            share=[kind for kind in KINDS if kind in domain.kinds],
            guard=domain.guard or "default",
            budget_bytes=domain.budget_bytes,
            file=str(domain.source or ""),
            instances=use[domain.name].instances,
            pages_shared=use[domain.name].pages_shared,
            saved_bytes=use[domain.name].saved_bytes,
        )
        for domain in domains
    ]


class Paced(Generic[T]):
    """Makes a record anew only so often that it takes a tenth of the loop's time at most.

    The status socket is open to everybody, and a big host has a million mappings to
    count. On a small one every answer is fresh.
    """

    def __init__(self, make: Callable[[], T], clock: Callable[[], float] = time.monotonic) -> None:
        self._make = make
        self._clock = clock
        self._last: T | None = None
        self._fresh_until = 0.0

    def get(self) -> T:
        """The record, at most ten times as old as it took to make."""
        now = self._clock()
        if self._last is None or now >= self._fresh_until:
            self._last = self._make()
            done = self._clock()
            took = done - now
            # What takes a millisecond is not worth being stale for.
            self._fresh_until = done + 10 * took if took > 0.001 else done
        return self._last
