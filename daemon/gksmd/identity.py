# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of a socket, as the kernel says.

``SO_PEERPIDFD`` (Linux 6.5) gives a descriptor of the very process that connected.
Older kernels give a number only, which may belong to another process by the time it
is looked at: there the start time is read before and after ``pidfd_open``, and the
peer must still hold its end of the connection.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gksmd.model import Identity

SO_PEERPIDFD = 77
_UCRED = struct.Struct("3i")

Mode = Literal["auto", "pidfd", "proc"]


class PeerGoneError(Exception):
    """The process that connected has ended, or cannot be seen from here."""


@dataclass(frozen=True, slots=True)
class _Facts:
    start_ticks: int
    cgroup: str
    name: str


def identify(sock: socket.socket, container: str | None, mode: Mode) -> tuple[Identity, int]:
    """The peer and its pidfd, which is the caller's to close.

    ``auto`` takes SO_PEERPIDFD where there is one, ``proc`` never, ``pidfd`` only it.
    Raises PeerGoneError, and OSError when descriptors have run out.
    """
    ucred = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(ucred)
    if pid <= 0:
        raise PeerGoneError("the peer is in a pid namespace that cannot be seen from here")
    pidfd = -1 if mode == "proc" else _peer_pidfd(sock, required=mode == "pidfd")
    how = "proc" if pidfd < 0 else "pidfd"
    try:
        if pidfd >= 0:
            facts = _facts(pid)
        else:
            before = _facts(pid)
            pidfd = _open_pidfd(pid)
            facts = _facts(pid)
            if facts.start_ticks != before.start_ticks or _hung_up(sock):
                raise PeerGoneError("its pid was taken by another process")
        # Alive now means that what was read under its pid was its own.
        if ended(pidfd):
            raise PeerGoneError("it has ended")
    except BaseException:
        if pidfd >= 0:
            os.close(pidfd)
        raise
    identity = Identity(
        pid=pid,
        start_ticks=facts.start_ticks,
        uid=uid,
        gid=gid,
        container=container,
        cgroup=facts.cgroup,
        name=facts.name,
        how=how,
    )
    return identity, pidfd


def ended(pidfd: int) -> bool:
    """Whether the process has ended; its zombie counts as ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _peer_pidfd(sock: socket.socket, required: bool) -> int:
    try:
        return sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        if error.errno in (errno.ESRCH, errno.ENODATA):
            raise PeerGoneError("it has ended") from None
        if error.errno in (errno.EMFILE, errno.ENFILE) or required:
            raise
        return -1  # ENOPROTOOPT: an older kernel


def _open_pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise PeerGoneError("it has ended") from None


def _hung_up(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, 0)
    return any(events & select.POLLHUP for _, events in poll.poll(0))


def _facts(pid: int) -> _Facts:
    proc = Path("/proc") / str(pid)
    try:
        stat = (proc / "stat").read_bytes()
        cgroup = (proc / "cgroup").read_bytes().decode(errors="replace")
        arguments = (proc / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        raise PeerGoneError("it has ended") from None
    # comm may contain anything, ") " included; what follows the last one is regular.
    comm, _, rest = stat.partition(b"(")[2].rpartition(b") ")
    argv0 = arguments.partition(b"\0")[0] or comm
    name = os.path.basename(argv0).decode(errors="replace")
    path = next((line[3:] for line in cgroup.splitlines() if line.startswith("0::")), "")
    return _Facts(
        start_ticks=int(rest.split()[19]),
        cgroup=path,
        name="".join(c if c.isprintable() else "?" for c in name)[:64],
    )
