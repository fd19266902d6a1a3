# SPDX-License-Identifier: Apache-2.0
"""Why a process or container is in its domain, and why its pages are or are not shared."""

from __future__ import annotations

from collections.abc import Iterable

from gksmd.config import Config
from gksmd.counts import QuotaUse
from gksmd.domains import KINDS, Decision
from gksmd.model import PAGE_BYTES, Container, DomainState, Instance, Process, Sharing, State
from gksmd.snapshot import GUARDS, Record, format_uuid, sharing_name

# By enum gksm_unshared: why, and what would change it.
UNSHARED = (
    ("kernel", "were first touched or written by a kernel", ""),
    ("api", "were written by a copy, set or graph node", ""),
    (
        "partial",
        "were never completely filled by host-to-device copies of pageable memory",
        "load weights into whole 2 MiB pages, for example with one allocation for all tensors",
    ),
    (
        "order",
        "were loaded while earlier work on the stream had not finished in time",
        "load before launching, or raise load.order_wait_ms",
    ),
    (
        "refused",
        "were refused by gksmd: sharing was off, a quota was full, or the kind is not shared",
        "see sharing and quotas above, and gksmctl trust-domain show DOMAIN",
    ),
    ("daemon", "were loaded while gksmd could not be reached", "see gksmctl doctor"),
    ("pinned", "were handed out of the process (IPC, RDMA) or belong to a graph", ""),
    ("collision", "have the hash of another page but other bytes", ""),
    (
        "pressure",
        "were taken before they were used, because GPU memory was short",
        "see gksmctl status; put fewer programs on this GPU, or lower memory.low_water",
    ),
)


class Unshared(Record, frozen=True):
    """How many pages are private for one reason."""

    reason: str
    pages: int
    text: str
    way_out: str


class OnGpu(Record, frozen=True):
    """A process on one GPU."""

    gpu: str
    guard: str
    virtual_bytes: int
    unbacked_bytes: int
    private_bytes: int
    shared_bytes: int
    loaded_pages: int
    attached_pages: int
    cow_events: int
    alone_pages: int  # published, but no other instance maps them
    unshared: list[Unshared]
    domain_warm_bytes: int  # of its domain on this GPU, that nobody maps


class ProcessExplanation(Record, frozen=True):
    """One process."""

    pid: int
    name: str
    identified_by: str
    connected: bool
    guards_offered: list[str]
    sharing: str
    reason: str
    gpus: list[OnGpu]


class Explanation(Record, frozen=True):
    """The answer to ``explain``."""

    target: str
    container: str
    domain: str
    rule: str
    rule_source: str
    shares: list[str]
    guard_wanted: str
    sharing: str
    sharing_reason: str
    quotas_refused: dict[str, int]
    processes: list[ProcessExplanation]
    notes: list[str]


def find_processes(state: State, target: str) -> tuple[Container | None, list[Process]] | None:
    """Who ``target`` means: a pid, or a container's id or a prefix of it that is unique.

    A pid may be of any GPU process. None: nobody is it.
    """
    if target.isdigit():
        found = [p for p in state.processes.values() if p.identity.pid == int(target)]
        if found:
            newest = max(found, key=lambda p: p.identity.start_ticks)
            return state.containers.get(newest.identity.container or ""), [newest]
    if target in state.containers:
        ids = [target]
    else:
        ids = [i for i in state.containers if len(target) >= 4 and i.startswith(target)]
    if len(ids) != 1:
        return None
    inside = [p for p in state.processes.values() if p.identity.container == ids[0]]
    return state.containers[ids[0]], sorted(inside, key=lambda p: p.identity.pid)


def explain(
    state: State,
    config: Config,
    target: str,
    container: Container | None,
    processes: list[Process],
) -> Explanation:
    """Explain what ``find_processes`` found."""
    decision: Decision
    if container is not None:
        decision = container.decision
        usages = [container.usage]
    else:
        decision = processes[0].decision
        usages = [processes[0].usage]
    domain = decision.domain
    shared_state = state.domains.get(domain.name)
    if shared_state is not None:
        usages.append(shared_state.usage)
    sharing, reason = _sharing(state, container, shared_state, processes)
    wanted = domain.guard or config.guard.default
    return Explanation(
        target=target,
        container=container.id if container else "",
        domain=domain.name,
        rule=decision.reason,
        rule_source=str(domain.source or ""),
        shares=[kind for kind in KINDS if kind in domain.kinds],
        guard_wanted=wanted,
        sharing=sharing_name(sharing),
        sharing_reason=reason,
        quotas_refused=_refused(usages),
        processes=[_process(p) for p in processes],
        notes=list(_notes(state, decision, processes, sharing, reason)),
    )


def _sharing(
    state: State,
    container: Container | None,
    domain: DomainState | None,
    processes: list[Process],
) -> tuple[Sharing, str]:
    """The strictest of what holds, with its reason."""
    found = [(state.sharing, state.sharing_reason)]
    found += [(p.sharing, p.reason) for p in processes if p.sharing != Sharing.ON]
    if container is not None:
        found.append((container.sharing, container.sharing_reason))
    if domain is not None:
        found.append((domain.sharing, domain.sharing_reason))
    return max(found, key=lambda pair: pair[0])


def _refused(usages: Iterable[QuotaUse]) -> dict[str, int]:
    total: dict[str, int] = {}
    for usage in usages:
        for name, count in usage.refused.items():
            total[name] = total.get(name, 0) + count
    return total


def _process(process: Process) -> ProcessExplanation:
    return ProcessExplanation(
        pid=process.identity.pid,
        name=process.identity.name,
        identified_by=process.identity.how,
        connected=process.connection is not None,
        guards_offered=[name for bit, name in enumerate(GUARDS) if process.guards >> bit & 1],
        sharing=sharing_name(process.sharing),
        reason=process.reason,
        gpus=[_on_gpu(i) for i in process.instances.values()],
    )


def _on_gpu(instance: Instance) -> OnGpu:
    usage = instance.usage
    return OnGpu(
        gpu=format_uuid(instance.table.gpu.uuid),
        guard=GUARDS[instance.guard],
        virtual_bytes=usage.virtual_pages * PAGE_BYTES,
        unbacked_bytes=usage.unbacked_pages * PAGE_BYTES,
        private_bytes=(usage.private_pages + usage.spare_pages) * PAGE_BYTES,
        shared_bytes=sum(instance.mapped.values()) * PAGE_BYTES,
        loaded_pages=usage.loaded_pages,
        attached_pages=usage.attached_pages,
        cow_events=usage.cow_events,
        alone_pages=sum(1 for page in instance.mapped if page.sharers == 1),
        unshared=[
            Unshared(reason=name, pages=count, text=text, way_out=way_out)
            for (name, text, way_out), count in zip(UNSHARED, usage.unshared, strict=False)
            if count
        ],
        domain_warm_bytes=instance.table.warm_pages * PAGE_BYTES,
    )


def _notes(
    state: State,
    decision: Decision,
    processes: list[Process],
    sharing: Sharing,
    reason: str,
) -> Iterable[str]:
    """Sentences that say what stands in the way of sharing, the weightiest first."""
    if sharing != Sharing.ON:
        why = f": {reason}" if reason else ""
        yield f"New pages are not shared{why}. `gksmctl on` turns sharing on again."
    if decision.domain.rule is None:
        yield (
            "No rule gives it a trust domain, so it shares with nobody. "
            "`gksmctl trust-domain add NAME --match SOURCE=VALUE` makes one; it holds for "
            "containers and processes started afterwards."
        )
    if not processes:
        yield "No process in it has used a GPU through gKSM yet."
    for process in processes:
        pid = process.identity.pid
        if process.connection is None:
            yield f"Process {pid} is not connected; it keeps its pages and tries again by itself."
        if process.sharing == Sharing.ON and process.reason:
            yield (
                f"Process {pid} shares nothing: {process.reason}. `gksmctl doctor` says what "
                "this host lacks."
            )
        for instance in process.instances.values():
            uuid = instance.table.gpu.uuid
            if state.drains.covers(uuid):
                yield (
                    f"{format_uuid(uuid)} drains, so nothing new is shared on it; "
                    "`gksmctl undrain` ends that."
                )
            others = sum(1 for i in instance.table.instances if i is not instance)
            if not others:
                yield f"Process {pid} is the only one of its domain on its GPU."
        if process.reports_dropped:
            yield f"{process.reports_dropped} records of process {pid} were dropped as too many."
    if not state.vault_up:
        yield "gksm-vault cannot be reached, so nobody new can attach; `gksmctl doctor` says more."
