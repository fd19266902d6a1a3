# SPDX-License-Identifier: Apache-2.0
"""The life of a process at the daemon: HELLO, connections lost and made anew, its end.

A process lives as long as its pidfd says. Losing its connection costs it its leases,
tickets and unsealed host copies; what it maps stays counted. Its end takes everything
at once, however it came.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass, field

from gksmd.candidates import Candidates
from gksmd.commits import retire
from gksmd.config import Config
from gksmd.connection import Connection, Work
from gksmd.core import Decide
from gksmd.counts import QuotaUse
from gksmd.domains import Decision, Subject
from gksmd.guards import choose_guard, why_no_guard
from gksmd.leases import Leases
from gksmd.lookups import Lookups
from gksmd.model import Departed, Identity, Process, Sharing, State
from gksmd.pages import Pages
from gksmd.protocol import CONTROL, HELLO, WELCOME, Message, ProtocolError, clip, encode, lib, text
from gksmd.quota import Quotas
from gksmd.requests import Requests
from gksmd.segments import Segments

LOG = logging.getLogger("gksmd.peers")
HELLO_S = 5.0
ROOM_POLL_S = 0.005
DEPARTED_REPORTS = 64  # kept of each process that has ended
FEATURES: int = (
    lib.GKSM_FEATURE_HOST_COPIES
    | lib.GKSM_FEATURE_COMMIT
    | lib.GKSM_FEATURE_RECLAIM
    | lib.GKSM_FEATURE_SCAN
    | lib.GKSM_FEATURE_IPC
)
_ACTIONS = {
    Sharing.ON: lib.GKSM_CONTROL_RESUME,
    Sharing.PAUSED: lib.GKSM_CONTROL_PAUSE,
    Sharing.UNSHARED: lib.GKSM_CONTROL_UNSHARE,
}


@dataclass(slots=True)
class Peers:
    """Every process that is connected, or was and still lives."""

    state: State
    config: Config
    decide: Decide
    pages: Pages
    leases: Leases
    segments: Segments
    lookups: Lookups
    candidates: Candidates
    quotas: Quotas
    requests: Requests
    greeting: dict[Connection, asyncio.TimerHandle] = field(default_factory=dict)

    def greet(self, connection: Connection) -> None:
        """A connection was accepted: it has to say HELLO soon."""
        timer = asyncio.get_running_loop().call_later(
            HELLO_S, connection.end, "it said no HELLO in time"
        )
        self.greeting[connection] = timer

    def handle(self, connection: Connection, message: Message) -> Work:
        """HELLO first, then requests."""
        process = connection.process
        if process is not None:
            work = self.requests.handle(connection, message)
            return work and self._metered(connection, process, message, work)
        for fd in message.fds:
            os.close(fd)
        if message.type != lib.GKSM_HELLO or message.fds:
            raise ProtocolError("the first message is not HELLO")
        self._hello(connection, message)
        return None

    async def _metered(
        self, connection: Connection, process: Process, message: Message, work: Awaitable[None]
    ) -> None:
        """Let a request that takes a while wait until there is room for it in the quota."""
        size = len(message.head) + len(message.entries)
        while not self.quotas.room_in_flight(process, size) and not connection.closed:
            await asyncio.sleep(ROOM_POLL_S)
        self.quotas.count_in_flight(process, size)
        try:
            await work
        finally:
            self.quotas.count_in_flight(process, -size)

    def _hello(self, connection: Connection, message: Message) -> None:
        head = HELLO.read(message.head)
        if head.protocol_min > lib.GKSM_PROTOCOL_MAX or head.protocol_max < lib.GKSM_PROTOCOL_MIN:
            self._refuse(
                connection,
                message.seq,
                -errno.EPROTONOSUPPORT,
                f"gksmd speaks protocol {lib.GKSM_PROTOCOL_MIN} to {lib.GKSM_PROTOCOL_MAX}, "
                f"this process {head.protocol_min} to {head.protocol_max}: update the older one",
            )
            return
        process = self.state.processes.get(connection.identity.key)
        box = connection.identity.container
        if box is not None and box not in self.state.containers:
            # Never decided by the rules for bare processes instead.
            self._refuse(connection, message.seq, -errno.EACCES, "its container has ended")
            return
        if process is None:
            decision = self._decision(connection.identity)
            domain = self.pages.domain(decision.domain.name, self._host_copies(decision))
            limit = self.config.quota.domain.connections
            if limit and domain.usage.connections >= limit:
                domain.usage.refused["connections"] = domain.usage.refused.get("connections", 0) + 1
                self.pages.tidy(domain)
                reason = f"domain {domain.name} has all its {limit} connections in use"
                self._refuse(connection, message.seq, -errno.EDQUOT, reason)
                return
            process = self._enter(connection, decision)
        elif process.connection is not None:
            process.connection.end("the process connected anew")
        self.greeting.pop(connection).cancel()
        self.state.refusals.forget(process.identity)
        process.connection = connection
        process.connected_at = time.time()
        process.instance_id = secrets.randbits(63) | 1
        process.framework = text(head.framework)
        process.build_id = text(head.build_id)
        process.protocol = min(head.protocol_max, lib.GKSM_PROTOCOL_MAX)
        process.features = head.features & FEATURES
        process.guards = head.guards
        process.domain.usage.connections += 1
        connection.process = process
        self._welcome(connection, process, message.seq)

    def _refuse(self, connection: Connection, seq: int, status: int, reason: str) -> None:
        """Say why a peer is not served, and close."""
        self.state.refusals.note(connection.identity, reason)
        welcome = WELCOME.build(reason=clip(reason, 128))
        connection.endpoint.send(encode(lib.GKSM_WELCOME, seq=seq, status=status, head=welcome))
        connection.end(reason)

    def _welcome(self, connection: Connection, process: Process, seq: int) -> None:
        wanted = process.decision.domain.guard or self.config.guard.default
        guard = choose_guard(process.guards, wanted)
        process.reason = self._guard_reason(process)
        welcome = WELCOME.build(
            protocol=process.protocol,
            sharing=int(bool(guard)),
            features=process.features,
            instance_id=process.instance_id,
            daemon_epoch=self.state.epoch,
            domain=clip(process.domain.name, 64),
            reason=clip(process.reason, 128),
        )
        connection.endpoint.send(encode(lib.GKSM_WELCOME, seq=seq, head=welcome))
        process.sharing = Sharing.ON
        if guard:
            self.apply_sharing(process)

    def _guard_reason(self, process: Process) -> str:
        wanted = process.decision.domain.guard or self.config.guard.default
        return "" if choose_guard(process.guards, wanted) else why_no_guard(wanted)

    def _enter(self, connection: Connection, decision: Decision) -> Process:
        identity = connection.identity
        domain = self.pages.domain(decision.domain.name)
        process = Process(
            identity=identity,
            pidfd=connection.pidfd,
            domain=domain,
            decision=decision,
            usage=connection.charged if identity.container else QuotaUse(),
            connected_at=time.time(),
            reports=deque(maxlen=self.config.logs.records_per_instance),
        )
        connection.pidfd = -1
        self.state.processes[identity.key] = process
        domain.processes.add(process)
        asyncio.get_running_loop().add_reader(process.pidfd, self._died, process)
        return process

    def _decision(self, identity: Identity) -> Decision:
        if identity.container is not None:
            return self.state.containers[identity.container].decision
        return self.decide(
            Subject(
                uid=identity.uid,
                pid=identity.pid,
                start_time=identity.start_ticks,
                cgroup=identity.cgroup,
            )
        )

    def _host_copies(self, decision: Decision) -> int:
        own = decision.domain.host_copy_bytes
        return int(self.config.memory.host_copy_bytes if own is None else own)

    # The end of a connection, and of a process.

    def disconnected(self, connection: Connection, reason: str) -> None:
        """The socket is gone. The process may live on and come back."""
        timer = self.greeting.pop(connection, None)
        if timer is not None:
            timer.cancel()
        if connection.pidfd >= 0:
            os.close(connection.pidfd)
            connection.pidfd = -1
        connection.charged.connections -= 1
        identity = connection.identity
        LOG.debug("process %d (%s): connection ended: %s", identity.pid, identity.name, reason)
        process = connection.process
        if process is None:
            return
        process.domain.usage.connections -= 1
        if process.connection is connection:
            process.connection = None
        for instance in connection.gpus:
            self.leases.leave(instance)
        self.segments.leave(process)
        self.requests.ipc.disconnected(process)

    def _died(self, process: Process) -> None:
        """The process has ended: everything it had is free at once."""
        process.ended = True
        asyncio.get_running_loop().remove_reader(process.pidfd)
        os.close(process.pidfd)
        process.pidfd = -1
        if process.connection is not None:
            process.connection.end("the process ended")
        for instance in process.instances.values():
            table = instance.table
            table.instances.discard(instance)
            table.gpu.instances.discard(instance)
            self.leases.leave(instance)
            self.candidates.leave(instance)
            self.pages.leave(instance)
            retire(table.gpu, instance)
            self.requests.pressure.look(table.gpu)
        self.segments.leave(process)
        self.requests.ipc.leave(process)
        process.domain.processes.discard(process)
        self.state.processes.pop(process.identity.key, None)
        self.pages.tidy(process.domain)
        self.state.departed.append(
            Departed(
                process.identity,
                process.domain.name,
                time.time(),
                tuple(process.reports)[-DEPARTED_REPORTS:],
            )
        )

    # Off and on.

    def apply_sharing(self, process: Process) -> bool:
        """Tell the process what holds for it now; False if it knew."""
        wanted, reason = self._wanted_sharing(process)
        if wanted == process.sharing:
            return False
        process.sharing = wanted
        process.reason = reason or self._guard_reason(process)
        if process.connection is None:
            return True
        if wanted != Sharing.ON:
            self.lookups.refuse_waits(process.connection)
        control = CONTROL.build(action=_ACTIONS[wanted], reason=clip(reason, 128))
        process.connection.endpoint.send(encode(lib.GKSM_CONTROL, head=control))
        return True

    def _wanted_sharing(self, process: Process) -> tuple[Sharing, str]:
        container = self.state.containers.get(process.identity.container or "")
        levels = [
            (self.state.sharing, self.state.sharing_reason),
            (process.domain.sharing, process.domain.sharing_reason),
        ]
        if container is not None:
            levels.append((container.sharing, container.sharing_reason))
        return max(levels, key=lambda level: level[0])
