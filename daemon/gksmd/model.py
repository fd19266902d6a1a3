# SPDX-License-Identifier: Apache-2.0
"""The state of gksmd: who is connected, what is published, who maps it.

Plain data. Only ``table.py``, ``segments.py``, ``server.py`` and their neighbours
change it, always on the event loop, so a reader on the loop sees a consistent state
and needs no lock as long as it does not await in between. The admin and status
sockets read it and change it through ``core.Core`` alone.

    State
     ├─ domains: name -> DomainState ── tables: uuid -> GpuTable ── pages, leases
     ├─ gpus: uuid -> Gpu ── instances
     ├─ containers: id -> Container (a socket of its own)
     └─ processes: (pid, start time) -> Process ── instances: uuid -> Instance

A process is what connects; an instance is a process on one GPU. Pages are counted
in units of 2 MiB, times are seconds of the event loop's monotonic clock unless a
name says otherwise.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

import xxhash

from gksmd.counts import Counters, QuotaUse, Usage
from gksmd.domains import Decision
from gksmd.refusals import Refusals

if TYPE_CHECKING:
    import asyncio

    from gksmd.connection import Connection

PAGE_BYTES = 2 << 20
ZERO_HASH: bytes = xxhash.xxh3_128_digest(bytes(PAGE_BYTES))[::-1]  # low half first

Uuid = bytes  # 16 bytes, of the GPU or MIG instance
ProcessKey = tuple[int, int]  # pid and start time in clock ticks since boot


class Sharing(IntEnum):
    """What CONTROL last told a process."""

    ON = 0
    PAUSED = 1
    UNSHARED = 2


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a peer is, as the kernel says; nothing here comes from the peer itself."""

    pid: int
    start_ticks: int
    uid: int
    gid: int
    container: str | None  # the container whose socket it connected to; None: bare
    cgroup: str  # its path in the unified hierarchy, "" if it cannot be read
    name: str  # basename of argv[0], for people
    how: str  # "pidfd" or "proc": which path found it

    @property
    def key(self) -> ProcessKey:
        """What tells this process from a later one with the same pid."""
        return (self.pid, self.start_ticks)


@dataclass(slots=True)
class Container:
    """A container with a socket of its own. Its domain was decided when it was prepared."""

    id: str
    decision: Decision
    sharing: Sharing = Sharing.ON
    cgroup: str = ""  # in the unified hierarchy, once it is bound
    sharing_reason: str = ""
    usage: QuotaUse = field(default_factory=QuotaUse)

    def holds(self, cgroup: str) -> bool | None:
        """Whether a process of ``cgroup`` is in it; None where that cannot be told."""
        if self.cgroup in ("", "/"):
            return None
        return cgroup == self.cgroup or cgroup.startswith(self.cgroup + "/")


@dataclass(slots=True, eq=False)
class Segment:
    """Host copies of up to 32 pages: one sealed memfd."""

    id: int
    domain: DomainState
    bytes: int
    fd: int  # our own; -1: only the vault has it
    filler: Process | None  # who may write to it; None once sealed
    charged: QuotaUse | None  # of the container, until that is gone
    pages: set[Page] = field(default_factory=set)
    sealed: bool = False
    in_vault: bool = False


@dataclass(slots=True, eq=False)
class Page:
    """A published page. 100,000 of these must fit: keep it small."""

    id: int
    hash: bytes  # 16 bytes, low half first
    table: GpuTable
    kind: int
    sharers: int = 0  # instances that map it
    mappings: int = 0  # addresses that map it
    grants: int = 0  # fds sent and not yet answered by ATTACHED or DETACHED
    attachable: bool = True  # the vault has it
    orphan: bool = False  # found in the vault at start; its sharers may still announce it
    charged: QuotaUse | None = None  # the publisher's, until that is gone
    segment: Segment | None = None
    segment_offset: int = 0
    load: Load | None = None  # None: its sharers have not announced it yet


@dataclass(slots=True, eq=False)
class Load:
    """What one instance published or attached in one go: what warm pages are kept by.

    A page belongs to the load that used it last, but never leaves a pinned one.
    """

    id: int
    table: GpuTable
    name: str  # of the program, for people; "": from before gksmd started
    used_at: float  # monotonic: a page of it was mapped, or left, last
    pinned: bool = False
    pages: int = 0
    warm: set[Page] = field(default_factory=set)  # those that nobody has


@dataclass(slots=True, eq=False)
class Lease:
    """One process is filling a page that nobody has published yet."""

    token: int
    hash: bytes
    instance: Instance
    deadline: float
    publishing: bool = False  # the fd is on its way to the vault: no longer lapses
    waiters: deque[WaitEntry] | None = None  # an empty one would take 600 bytes
    sweep_at: int = 256  # length at which waiters that are over are swept out


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stable page that one instance has, and nobody else as far as we know."""

    instance: Instance
    offered_at: float


@dataclass(slots=True, eq=False)
class WaitEntry:
    """One ticket of one WAIT, until it is answered."""

    wait: Wait
    index: int  # in the request
    ticket: int
    hash: bytes


@dataclass(slots=True, eq=False)
class Wait:
    """A WAIT request: what is open and what can be answered."""

    connection: Connection
    instance: Instance
    seq: int
    deadline: float
    changed: asyncio.Event
    open: dict[int, WaitEntry] = field(default_factory=dict)  # by index
    hits: list[tuple[int, Page]] = field(default_factory=list)  # each with a grant taken
    leases: list[tuple[int, Lease]] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    over: bool = False  # nothing more is to be resolved for it


@dataclass(slots=True, eq=False)
class GpuTable:
    """What one domain has published on one GPU."""

    domain: DomainState
    gpu: Gpu
    by_hash: dict[bytes, Page] = field(default_factory=dict)  # attachable pages
    by_id: dict[int, Page] = field(default_factory=dict)  # all of them
    leases: dict[bytes, Lease] = field(default_factory=dict)
    candidates: dict[bytes, Candidate] = field(default_factory=dict)  # oldest first
    instances: set[Instance] = field(default_factory=set)
    arriving: int = 0  # pages on their way to the vault
    loads: dict[int, Load] = field(default_factory=dict)  # by id, those with pages

    @property
    def warm_pages(self) -> int:
        """Pages that nobody has, kept for the next start."""
        return sum(len(load.warm) for load in self.loads.values())

    @property
    def reclaimable_pages(self) -> int:
        """Those of them that make way for somebody who needs memory."""
        return sum(len(load.warm) for load in self.loads.values() if not load.pinned)


@dataclass(slots=True, eq=False)
class Instance:
    """A process on one GPU."""

    process: Process
    table: GpuTable
    number: int  # the `gpu` of this connection's messages
    guard: int  # enum gksm_guard
    total_bytes: int = 0  # of the GPU, as it said
    gpu_name: str = ""
    usage: Usage = field(default_factory=Usage)
    pending_commits: list[tuple[float, int]] = field(default_factory=list)  # when, pages
    published_pages: int = 0  # so many that it loaded were not there to attach
    strict_told: int = 0  # while memory is short: what it was last told to take, less that taken
    told_usage: Usage = field(default_factory=Usage)  # its counts then
    mapped: dict[Page, int] = field(default_factory=dict)  # -> how many addresses
    granted: dict[Page, int] = field(default_factory=dict)  # -> fds under way
    leases: dict[int, Lease] = field(default_factory=dict)  # by token
    tickets: dict[int, bytes] = field(default_factory=dict)  # -> hash, oldest first
    noted: int = 0  # candidates that are its own
    # Mapped or granted before the connection broke, and not announced again yet.
    unconfirmed: dict[Page, None] = field(default_factory=dict)
    load: Load | None = None  # the one that it is at, or was last
    loaded_at: float = 0.0  # monotonic: when a page was last put to it

    @property
    def claimed_pages(self) -> int:
        """Pages that it was promised and has not taken, as it says itself.

        What it has mapped since it said so last it needs no more.
        """
        promised = self.usage.unbacked_pages + sum(pages for _, pages in self.pending_commits)
        mapped_since = max(len(self.mapped) - self.usage.shared_pages, 0)
        return max(promised - mapped_since, 0)

    @property
    def promised_pages(self) -> int:
        """The same, and never more than the GPU has."""
        return min(self.claimed_pages, self.table.gpu.total_bytes // PAGE_BYTES)

    @property
    def used_bytes(self) -> int:
        """Physical memory of its own, as it reported last."""
        private = self.usage.private_pages + self.usage.spare_pages
        return private * PAGE_BYTES + self.usage.foreign_bytes

    @property
    def proportional_bytes(self) -> int:
        """Its private memory and its share of each page that it maps."""
        shared = sum(count / page.mappings for page, count in self.mapped.items())
        private = self.usage.private_pages + self.usage.spare_pages
        return round((private + shared) * PAGE_BYTES)


@dataclass(frozen=True, slots=True, eq=False)
class IpcExport:
    """An allocation of one process that others in its scope may open (legacy CUDA IPC)."""

    scope: str  # its domain, or its user: see Ipc
    ticket: bytes  # 16 random bytes
    process: Process
    uuid: Uuid  # of its GPU
    pages: int
    bytes: int  # as the program allocated


@dataclass(slots=True, eq=False)
class Process:
    """A process with libgksm in it. It lives as long as its pidfd says."""

    identity: Identity
    pidfd: int
    domain: DomainState
    decision: Decision  # which rule gave it its domain
    usage: QuotaUse  # its container's, or its own if it is bare
    connected_at: float  # CLOCK_REALTIME, of the present or last connection
    connection: Connection | None = None
    instance_id: int = 0  # of the present connection
    framework: str = ""
    build_id: str = ""
    protocol: int = 0
    features: int = 0
    guards: int = 0  # bits it offered
    sharing: Sharing = Sharing.ON
    reason: str = ""  # why it does not share now
    instances: dict[Uuid, Instance] = field(default_factory=dict)
    filling: dict[int, Segment] = field(default_factory=dict)
    ipc_exports: dict[bytes, IpcExport] = field(default_factory=dict)  # by ticket
    ipc_opening: int = 0  # opens of others' memory under way
    reports: deque[Report] = field(default_factory=lambda: deque(maxlen=256))
    reports_dropped: int = 0
    report_second: int = 0
    reports_this_second: int = 0
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """One record that libgksm sent."""

    time_ns: int  # CLOCK_REALTIME
    severity: int  # enum gksm_severity
    text: str  # printable, at most 512 characters


@dataclass(frozen=True, slots=True)
class Departed:
    """A process that has ended, for `gksmctl logs`."""

    identity: Identity
    domain: str
    ended_at: float  # CLOCK_REALTIME
    reports: tuple[Report, ...]


@dataclass(frozen=True, slots=True)
class FreeFigure:
    """What a driver said is free, and what was reported as used at that moment."""

    free_bytes: int
    used_bytes: int
    at: float  # seconds, monotonic


@dataclass(slots=True, eq=False)
class Gpu:
    """A GPU or MIG instance as its users see it."""

    uuid: Uuid
    instances: set[Instance] = field(default_factory=set)
    tables: dict[str, GpuTable] = field(default_factory=dict)  # by domain
    # Counts of instances that are gone, so that counters never fall.
    past_cow_events: int = 0
    past_cow_ns_total: int = 0
    past_api_detaches: int = 0
    # As its users saw it when the last of them opened it: warm pages outlive them.
    last_total_bytes: int = 0
    last_name: str = ""
    newest_free: FreeFigure | None = None  # of any instance
    settled_free: FreeFigure | None = None  # one so old that all was reported since
    leaving_pages: int = 0  # the vault was asked to let go of, and may still hold
    short: bool = False  # below the low-water mark; its instances have been told
    past_scans: Counter[str] = field(default_factory=Counter)  # by the names of SCANS

    @property
    def total_bytes(self) -> int:
        """Its size as most of its users see it: a lie of one of them changes nothing."""
        sizes = Counter(instance.total_bytes for instance in self.instances)
        return sizes.most_common(1)[0][0] if sizes else self.last_total_bytes

    @property
    def name(self) -> str:
        """Its name as most of its users see it."""
        names = Counter(instance.gpu_name for instance in self.instances)
        return names.most_common(1)[0][0] if names else self.last_name

    @property
    def warm_bytes(self) -> int:
        """Memory in pages that nobody has, kept for the next start."""
        return sum(table.warm_pages for table in self.tables.values()) * PAGE_BYTES

    @property
    def promised_pages(self) -> int:
        """Promised to all instances and not taken."""
        limit = self.total_bytes // PAGE_BYTES
        return sum(min(instance.claimed_pages, limit) for instance in self.instances)

    @property
    def used_bytes(self) -> int:
        """Physical memory in use as reported: private and spare pages, and each shared one once.

        The daemon has no CUDA context of its own to ask.
        """
        reported = sum(instance.used_bytes for instance in self.instances)
        return reported + sum(len(table.by_id) for table in self.tables.values()) * PAGE_BYTES

    def scans(self, name: str) -> int:
        """One of ``SCANS``, of all instances ever."""
        now: int = sum(getattr(instance.usage, name) for instance in self.instances)
        return self.past_scans[name] + now

    @property
    def cow_events(self) -> int:
        """Private copies made for writing kernels, of all instances ever."""
        return self.past_cow_events + sum(i.usage.cow_events for i in self.instances)


@dataclass(slots=True, eq=False)
class DomainState:
    """A trust domain with at least one process, page or segment."""

    name: str
    tables: dict[Uuid, GpuTable] = field(default_factory=dict)
    processes: set[Process] = field(default_factory=set)
    segments: dict[int, Segment] = field(default_factory=dict)
    usage: QuotaUse = field(default_factory=QuotaUse)
    host_copy_budget: int = 0  # bytes; 0: no limit
    sharing: Sharing = Sharing.ON
    sharing_reason: str = ""


@dataclass(slots=True)
class Drains:
    """The GPUs that are to be let go of: nothing is shared on them, nothing stays warm."""

    everything: bool = False
    listed: set[Uuid] = field(default_factory=set)  # those, or the exceptions of everything

    def covers(self, uuid: Uuid) -> bool:
        """Whether that GPU drains."""
        return (uuid in self.listed) != self.everything


@dataclass(slots=True)
class State:
    """Everything; the root that the sockets read."""

    epoch: int  # changes when gksmd restarts
    version: str = ""
    started_at: float = field(default_factory=time.time)  # CLOCK_REALTIME, for people
    started: float = field(default_factory=time.monotonic)
    sharing: Sharing = Sharing.ON  # of all; domains and containers have their own
    sharing_reason: str = ""
    domains: dict[str, DomainState] = field(default_factory=dict)
    gpus: dict[Uuid, Gpu] = field(default_factory=dict)
    containers: dict[str, Container] = field(default_factory=dict)
    processes: dict[ProcessKey, Process] = field(default_factory=dict)
    ipc_exports: dict[tuple[str, bytes], IpcExport] = field(default_factory=dict)  # scope, ticket
    counters: Counters = field(default_factory=Counters)
    vault_up: bool = False
    drains: Drains = field(default_factory=Drains)
    departed: deque[Departed] = field(default_factory=lambda: deque(maxlen=16))
    refusals: Refusals = field(default_factory=Refusals)

    @property
    def instances(self) -> list[Instance]:
        """Every process on each of its GPUs."""
        return [i for process in self.processes.values() for i in process.instances.values()]
