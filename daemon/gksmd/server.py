# SPDX-License-Identifier: Apache-2.0
"""gksmd's core put together: listening sockets, accept, start and stop.

One socket for bare processes and one for each container, in a directory of its own:
which socket a peer reached tells which container it is in.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import shutil
import socket
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from gksmd.accounts import Accounts
from gksmd.candidates import Candidates
from gksmd.config import Config, Scan
from gksmd.connection import Connection
from gksmd.core import Configured, Decide
from gksmd.counts import QuotaUse
from gksmd.domains import Decision
from gksmd.drain import Drain
from gksmd.endpoint import BROKEN, SLOW
from gksmd.identity import PeerGoneError, identify
from gksmd.ipc import Ipc
from gksmd.leases import Leases
from gksmd.lookups import Lookups
from gksmd.model import Container, Identity, Instance, Load, Sharing, State, Uuid
from gksmd.offers import Offers
from gksmd.pages import Pages
from gksmd.peers import Peers
from gksmd.pressure import Pressure
from gksmd.protocol import WELCOME, clip, encode, lib
from gksmd.publications import Publications
from gksmd.quota import Quotas
from gksmd.requests import Requests
from gksmd.scanning import Scanning
from gksmd.segments import Segments
from gksmd.vaultlink import VaultLink
from gksmd.warm import Warm
from gksmd.wire import hang_up, seqpacket

LOG = logging.getLogger("gksmd.server")
BACKLOG = 128
ACCEPTS_A_TURN = 16
VAULT_WAIT_S = 3.0  # for the vault to let go of what was dropped


@dataclass(slots=True)
class Listener:
    """A listening socket in the file system."""

    path: Path
    container: str | None
    sock: socket.socket
    charged: dict[int, QuotaUse] = field(default_factory=dict)  # bare: by uid


class Server:
    """The running core; ``core.Core`` is what the other sockets see of it."""

    def __init__(self, config: Config, decide: Decide, configured: Configured) -> None:
        """Wire the parts; nothing runs before ``start``."""
        self.config = config
        self.state = State(epoch=secrets.randbits(63) | 1, version=version("gksm"))
        self._quotas = Quotas(config)
        self._vault = VaultLink(config.vault_socket, config.vault.mode == "spawn")
        self._segments = Segments(self.state.domains, self._quotas, self._vault)
        self._warm = Warm(
            self.state, config.memory.warm_bytes, config.bare.default_domain, configured
        )
        self._pages = Pages(self.state, self._quotas, self._segments, self._vault, self._warm)
        lease_ms = config.load.lease_deadline_ms
        self._leases = Leases(self.state, self._pages, lease_ms / 1000)
        self._lookups = Lookups(
            self.state, self._pages, self._leases, self._quotas, self._vault, lease_ms
        )
        self._drain = Drain(self.state, config.state_dir / "drain.json", self._warm, self._lookups)
        self._candidates = Candidates()
        self._scanning = Scanning(self.state, config.scan, self._candidates)
        publications = Publications(
            self.state, self._pages, self._leases, self._candidates, self._segments, self._vault
        )
        offers = Offers(self._pages, self._leases, self._lookups, self._candidates)
        requests = Requests(
            self.state,
            config,
            self._pages,
            self._leases,
            self._segments,
            self._lookups,
            offers,
            self._scanning,
            publications,
            self._drain,
            self._vault,
            Pressure(Accounts(config.memory), self.state.counters, self._warm),
            Ipc(self.state, config, self._quotas),
        )
        self._peers = Peers(
            self.state,
            config,
            decide,
            self._pages,
            self._leases,
            self._segments,
            self._lookups,
            self._candidates,
            self._quotas,
            requests,
        )
        self._listeners: dict[str | None, Listener] = {}
        self._connections: set[Connection] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._spare_fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    async def start(self) -> None:
        """Find or start the vault, take over what it holds, and open the sockets.

        Raises OSError if the socket for bare processes cannot be made.
        """
        self.config.run_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        # Whoever reaches a container's socket counts as in it: nobody on the host may.
        # The runtime mounts the directories below it as root.
        self.config.containers_dir.mkdir(mode=0o700, exist_ok=True)
        self.config.containers_dir.chmod(0o700)
        self._drain.restore()
        self._tasks.append(
            asyncio.create_task(self._vault.run(self._pages.vault_up, self._pages.vault_down))
        )
        if not await self._vault.wait_up(self.config.vault.connect_ms / 1000):
            LOG.warning(
                "no vault answers at %s; nothing is shared until one does",
                self.config.vault_socket,
            )
        loop = asyncio.get_running_loop()
        loop.call_later(self.config.grace.announce_ms / 1000, self._pages.orphan_deadline)
        self._listen(self.config.client_socket, None)

    async def stop(self) -> None:
        """Close everything; published pages stay with the vault."""
        for listener in list(self._listeners.values()):
            self._close(listener)
        for connection in list(self._connections):
            connection.end("gksmd ends")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        os.close(self._spare_fd)

    # core.Core

    def open_container(self, container_id: str, decision: Decision) -> Path:
        """See ``core.Core``."""
        path = self.config.containers_dir / container_id / "gksm.sock"
        if container_id not in self._listeners:
            self.state.containers[container_id] = Container(container_id, decision)
            path.parent.mkdir(mode=0o755, exist_ok=True)
            try:
                self._listen(path, container_id)
            except OSError:
                del self.state.containers[container_id]
                raise
        return path

    def bind_container(self, container_id: str, cgroup: str) -> None:
        """See ``core.Core``."""
        self.state.containers[container_id].cgroup = cgroup

    def close_container(self, container_id: str) -> None:
        """See ``core.Core``."""
        listener = self._listeners.get(container_id)
        if listener is not None:
            self._close(listener)
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(listener.path.parent)
        if self.state.containers.pop(container_id, None) is not None:
            self._warm.domains_changed()

    def domains_changed(self) -> None:
        """See ``core.Core``."""
        self._warm.domains_changed()

    async def drop_warm(self, loads: list[Load]) -> int:
        """See ``core.Core``."""
        dropped = self._warm.drop(loads)
        await self._vault.settled(VAULT_WAIT_S)
        return dropped

    def pin(self, load: Load, pinned: bool) -> None:
        """See ``core.Core``."""
        load.pinned = pinned
        self._warm.trim(load.table.gpu)

    async def drain(self, uuid: Uuid | None) -> None:
        """See ``core.Core``."""
        self._drain.begin(uuid)
        await self._vault.settled(VAULT_WAIT_S)

    def undrain(self, uuid: Uuid | None) -> None:
        """See ``core.Core``."""
        self._drain.end(uuid)

    def vault_pid(self) -> int:
        """See ``core.Core``."""
        return self._vault.pid

    @property
    def scan(self) -> Scan:
        """See ``core.Core``."""
        return self._scanning.settings

    def set_scan(self, settings: Scan) -> int:
        """See ``core.Core``."""
        return self._scanning.change(settings)

    async def scan_now(self, passes: int, wait_s: float) -> list[Instance]:
        """See ``core.Core``."""
        return await self._scanning.now(passes, wait_s)

    def set_sharing(
        self,
        sharing: Sharing,
        reason: str,
        *,
        domain: str | None = None,
        container: str | None = None,
    ) -> int:
        """See ``core.Core``."""
        reason = "" if sharing == Sharing.ON else reason
        if container is not None:
            box = self.state.containers[container]
            box.sharing, box.sharing_reason = sharing, reason
        elif domain is not None:
            state = self._pages.domain(domain)
            state.sharing, state.sharing_reason = sharing, reason
            self._pages.tidy(state)
        else:
            self.state.sharing, self.state.sharing_reason = sharing, reason
        return sum(map(self._peers.apply_sharing, list(self.state.processes.values())))

    # Listening and accepting.

    def _listen(self, path: Path, container: str | None) -> None:
        sock = seqpacket()
        try:
            # What a gksmd before us left; that it is gone is what its lock file says.
            path.unlink(missing_ok=True)
            sock.bind(str(path))
            # Who may connect is decided by the kernel's word about the peer.
            path.chmod(0o666)
            sock.listen(BACKLOG)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
        listener = Listener(path, container, sock)
        self._listeners[container] = listener
        asyncio.get_running_loop().add_reader(sock.fileno(), self._accept, listener)

    def _close(self, listener: Listener) -> None:
        asyncio.get_running_loop().remove_reader(listener.sock.fileno())
        listener.sock.close()
        del self._listeners[listener.container]
        listener.path.unlink(missing_ok=True)

    def _accept(self, listener: Listener) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                sock, _ = listener.sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    LOG.warning("%s: accept: %s", listener.path, error)
                    return
                self._accept_and_refuse(listener)
                return
            self._admit(listener, sock)

    def _admit(self, listener: Listener, sock: socket.socket) -> None:
        try:
            identity, pidfd = identify(sock, listener.container, self.config.identity.mode)
        except PeerGoneError as error:
            LOG.debug("%s: a peer is not served: %s", listener.path, error)
            sock.close()
            return
        except OSError as error:
            LOG.warning("%s: a peer cannot be identified: %s", listener.path, error)
            self._turn_away(sock, -errno.EMFILE, "gksmd has no descriptor left")
            return
        reason = self._why_not(listener, identity)
        if reason:
            os.close(pidfd)
            self.state.refusals.note(identity, reason)
            self._turn_away(sock, -errno.EACCES, reason)
            return
        charged = self._charged(listener, identity)
        charged.connections += 1
        self.state.counters.connections += 1
        connection = Connection(
            sock, identity, pidfd, charged=charged, handle=self._peers.handle, on_end=self._ended
        )
        self._connections.add(connection)
        self._peers.greet(connection)

    def _charged(self, listener: Listener, identity: Identity) -> QuotaUse:
        if listener.container is not None:
            return self.state.containers[listener.container].usage
        return listener.charged.setdefault(identity.uid, QuotaUse())

    def _why_not(self, listener: Listener, identity: Identity) -> str:
        if listener.container is None:
            if identity.uid not in self.config.bare_uids:
                return f"uid {identity.uid} is not in bare.uids of gksm.toml"
            boxes = self.state.containers.values()
            if inside := next((box.id for box in boxes if box.holds(identity.cgroup)), ""):
                return f"it is in container {inside}, which has a socket of its own"
            # Bare processes count one by one elsewhere; here all of a uid together.
            limit = self.config.quota.domain.connections
        else:
            if self.state.containers[listener.container].holds(identity.cgroup) is False:
                return f"it is not in container {listener.container}, whose socket this is"
            limit = self.config.quota.container.connections
        use = self._charged(listener, identity)
        if limit and use.connections >= limit:
            use.refused["connections"] = use.refused.get("connections", 0) + 1
            return f"all its {limit} connections are in use"
        return ""

    def _accept_and_refuse(self, listener: Listener) -> None:
        """No descriptor is left: use the spare one to tell the peer, or it would stay queued."""
        self.state.counters.fds_exhausted += 1
        os.close(self._spare_fd)
        try:
            sock, _ = listener.sock.accept()
            self._turn_away(sock, -errno.EMFILE, "gksmd has no descriptor left")
        except OSError:
            LOG.warning("%s: no descriptor left even to refuse a peer", listener.path)
        finally:
            self._spare_fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def _turn_away(self, sock: socket.socket, status: int, reason: str) -> None:
        self.state.counters.connections_refused += 1
        welcome = WELCOME.build(reason=clip(reason, 128))
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.send(encode(lib.GKSM_WELCOME, status=status, head=welcome), socket.MSG_NOSIGNAL)
        hang_up(sock)

    def _ended(self, connection: Connection, reason: str) -> None:
        self._connections.discard(connection)
        self.state.counters.protocol_errors += reason.startswith(BROKEN)
        self.state.counters.slow_peers += reason == SLOW
        self._peers.disconnected(connection, reason)
