# SPDX-License-Identifier: Apache-2.0
"""The daemon's three JSON-lines sockets and its metrics, started and stopped together.

========== ====================== ==================================================
socket     peers                  ops
========== ====================== ==================================================
admin      root, the daemon's uid info reload check domain_users set_sharing set_scan scan_now
runtime    root, the daemon's uid prepare bind forget
status     everybody              status ps pages domains explain logs
========== ====================== ==================================================

``explain`` and ``logs`` tell about a process to its own uid and to root only.
"""

from __future__ import annotations

import logging
import os

import msgspec

from gksmd import metrics, snapshot
from gksmd.config import Config, ConfigError, Scan
from gksmd.containers import Registry
from gksmd.core import Core
from gksmd.domain_files import Entry, Located, arrange, read_entries
from gksmd.domains import Subject
from gksmd.explain import explain, find_processes
from gksmd.jsonlines import JsonLineServer, Peer, RefusedError
from gksmd.model import Sharing
from gksmd.ops import (
    SEVERITIES,
    AdminRequest,
    Bind,
    Check,
    CheckAnswer,
    DomainUsers,
    Explain,
    Forget,
    GetDomains,
    GetPages,
    GetProcesses,
    GetStatus,
    Info,
    InfoAnswer,
    LogRecord,
    Logs,
    LogsAnswer,
    Prepare,
    PrepareAnswer,
    Reload,
    ReloadAnswer,
    RuntimeRequest,
    ScanAnswer,
    ScannedAnswer,
    ScanNow,
    SetScan,
    SetSharing,
    SharingAnswer,
    StatusRequest,
    UsersAnswer,
)
from gksmd.policy import Policy
from gksmd.snapshot import Paced

log = logging.getLogger(__name__)


class Control:
    """The sockets and the metrics of one daemon."""

    def __init__(self, config: Config, policy: Policy, core: Core) -> None:
        """Nothing is opened before ``start``."""
        self._config = config
        self._policy = policy
        self._core = core
        self.containers = Registry(core, policy.decide, config.state_dir, config.grace.prepare_ms)
        limits = {"clients": config.sockets.clients, "line_bytes": config.sockets.line_bytes}
        self._servers = (
            JsonLineServer(
                config.admin_socket,
                AdminRequest,
                self._admin,
                mode=0o600,
                private=True,
                **limits,
            ),
            JsonLineServer(
                config.runtime_socket,
                RuntimeRequest,
                self._runtime,
                mode=0o600,
                private=True,
                **limits,
            ),
            JsonLineServer(
                config.status_socket,
                StatusRequest,
                self._status,
                mode=0o666,
                private=False,
                **limits,
            ),
        )
        state = core.state
        self._get_status = Paced(lambda: snapshot.status(state, policy.domains))
        self._get_processes = Paced(lambda: snapshot.processes(state))
        self._get_pages = Paced(lambda: snapshot.pages(state))
        self._get_domains = Paced(lambda: snapshot.domain_details(state, policy.domains))
        self._metrics = metrics.Exporter(config.metrics.listen, state)

    async def start(self) -> None:
        """Restore the containers and listen. OSError if a socket cannot be made."""
        self.containers.restore()
        for server in self._servers:
            await server.start()
        await self._metrics.start()

    async def close(self) -> None:
        """Stop listening. Containers stay known for the next start."""
        await self._metrics.close()
        for server in self._servers:
            await server.close()
        self.containers.close()

    def reload(self) -> None:
        """Read the domains again and log the outcome; for SIGHUP."""
        try:
            domains = self._policy.reload()
            log.info("%d trust domains are in force", len(domains.domains))
        except ConfigError as error:
            log.error("the trust domains stay as they were: %s", error)

    async def _admin(self, request: object, _peer: Peer) -> object:
        state = self._core.state
        if isinstance(request, Info):
            return InfoAnswer(
                version=state.version,
                pid=os.getpid(),
                run_dir=str(self._config.run_dir),
                state_dir=str(self._config.state_dir),
                config_dir=str(self._policy.config_dir),
                vault_up=state.vault_up,
                processes=len(state.processes),
            )
        if isinstance(request, Reload):
            try:
                return ReloadAnswer(domains=len(self._policy.reload().domains))
            except ConfigError as error:
                raise RefusedError(str(error)) from error
        if isinstance(request, Check):
            return self._check(request.domain)
        if isinstance(request, DomainUsers):
            return UsersAnswer(
                pids=sorted(
                    p.identity.pid
                    for p in state.processes.values()
                    if p.domain.name == request.name
                ),
                containers=sorted(
                    name
                    for name, box in state.containers.items()
                    if box.decision.domain.name == request.name
                ),
            )
        if isinstance(request, SetSharing):
            return self._set_sharing(request)
        if isinstance(request, SetScan):
            return self._set_scan(request)
        if isinstance(request, ScanNow):
            return await self._scan_now(request)
        raise TypeError(type(request))

    def _check(self, entry: Entry) -> CheckAnswer:
        path = self._policy.config_dir / "domains.d" / f"{entry.name}.toml"
        try:
            entries = [e for e in read_entries(self._policy.config_dir) if e.path != path]
            domains = arrange(
                [*entries, Located(entry, path, False)],
                self._config.identity.trusted_sources,
            )
        except ConfigError as error:
            raise RefusedError(str(error)) from error

        def moves(subject: Subject, now: str) -> bool:
            return now != entry.name and domains.decide(subject).domain.name == entry.name

        return CheckAnswer(
            containers=sorted(
                name
                for name, record in self.containers.records.items()
                if moves(record.subject, record.domain.name)
            ),
            pids=sorted(
                process.identity.pid
                for process in self._core.state.processes.values()
                if process.identity.container is None
                and moves(
                    Subject(
                        uid=process.identity.uid,
                        pid=process.identity.pid,
                        start_time=process.identity.start_ticks,
                        cgroup=process.identity.cgroup,
                    ),
                    process.domain.name,
                )
            ),
        )

    def _set_scan(self, request: SetScan) -> ScanAnswer:
        wanted = {name: getattr(request, name) for name in Scan.__struct_fields__}
        changes = {name: value for name, value in wanted.items() if value is not None}
        told = 0
        if changes:
            settings = msgspec.structs.replace(self._core.scan, **changes)
            if settings.max_interval_ms < settings.interval_ms:
                raise RefusedError(
                    f"max_interval_ms ({settings.max_interval_ms}) is below interval_ms "
                    f"({settings.interval_ms}); set both."
                )
            told = self._core.set_scan(settings)
        return ScanAnswer(settings=self._core.scan, instances=told)

    async def _scan_now(self, request: ScanNow) -> ScannedAnswer:
        def merged() -> int:
            return sum(i.usage.merged_pages for i in self._core.state.instances)

        before = merged()
        late = await self._core.scan_now(request.passes, request.wait_s)
        return ScannedAnswer(
            merged=max(merged() - before, 0),
            late=sorted(i.process.identity.pid for i in late),
        )

    def _set_sharing(self, request: SetSharing) -> SharingAnswer:
        state = self._core.state
        if request.container is not None:
            found = find_processes(state, self.containers.by_name(request.container))
            if found is None or found[0] is None:
                raise RefusedError(
                    f'"{request.container}" is no container that gksmd knows; '
                    "list them with gksmctl ps."
                )
            container: str | None = found[0].id
        else:
            container = None
        known = {*state.domains, *self._policy.domains.by_name}
        if request.domain is not None and request.domain not in known:
            raise RefusedError(
                f'"{request.domain}" is no domain that gksmd knows; '
                "list them with gksmctl trust-domain list."
            )
        level = {"on": Sharing.ON, "off": Sharing.PAUSED, "unshared": Sharing.UNSHARED}
        told = self._core.set_sharing(
            level[request.sharing], request.reason, domain=request.domain, container=container
        )
        return SharingAnswer(processes=told)

    async def _runtime(self, request: object, _peer: Peer) -> object:
        if isinstance(request, Prepare):
            socket, decision = self.containers.prepare(request.container, request.cgroup)
            return PrepareAnswer(
                directory=str(socket.parent),
                socket=str(socket),
                domain=decision.domain.name,
                reason=decision.reason,
            )
        if isinstance(request, Bind):
            self.containers.bind(request.id, request.pid)
            return {}
        if isinstance(request, Forget):
            self.containers.forget(request.id)
            return {}
        raise TypeError(type(request))

    async def _status(self, request: object, peer: Peer) -> object:
        if isinstance(request, GetStatus):
            return self._get_status.get()
        if isinstance(request, GetProcesses):
            return self._get_processes.get()
        if isinstance(request, GetPages):
            return self._get_pages.get()
        if isinstance(request, GetDomains):
            return self._get_domains.get()
        if isinstance(request, Explain):
            target = self.containers.by_name(request.target)
            found = find_processes(self._core.state, target)
            # The same sentence for "not there" and "not yours": pids of others stay theirs.
            if found is None or not (
                peer.privileged
                or (found[0] is None and all(p.identity.uid == peer.uid for p in found[1]))
            ):
                raise RefusedError(
                    f'"{request.target[:64]}" is no GPU process or container that gksmd knows '
                    "and you may ask about; list them with gksmctl ps, or use sudo."
                )
            return explain(self._core.state, self._config, request.target, *found)
        if isinstance(request, Logs):
            return self._logs(request.pid, peer)
        raise TypeError(type(request))

    def _logs(self, pid: int, peer: Peer) -> LogsAnswer:
        state = self._core.state
        living = [p for p in state.processes.values() if p.identity.pid == pid]
        # A pid may come again; the living, else the last that died, is meant.
        found = next(iter(living), None) or next(
            (d for d in reversed(state.departed) if d.identity.pid == pid), None
        )
        if found is None or not (peer.privileged or found.identity.uid == peer.uid):
            raise RefusedError(
                f"{pid} is no GPU process that gksmd knows and you may ask about; "
                "list them with gksmctl ps, or use sudo."
            )
        return LogsAnswer(
            pid=pid,
            dropped=living[0].reports_dropped if living else 0,
            records=[
                LogRecord(
                    time_ns=report.time_ns,
                    severity=SEVERITIES[min(report.severity, len(SEVERITIES) - 1)],
                    text=report.text,
                )
                for report in found.reports
            ],
        )
