# SPDX-License-Identifier: Apache-2.0
"""Packets with descriptors over AF_UNIX SOCK_SEQPACKET, one system call each."""

from __future__ import annotations

import array
import contextlib
import os
import resource
import socket
from collections.abc import Iterable

from gksmd.protocol import Message, ProtocolError, lib, parse

PACKET_MAX: int = lib.GKSM_PACKET_MAX
FDS_MAX: int = lib.GKSM_FDS_MAX
# The kernel's own limit: room for any packet, so that MSG_CTRUNC can only mean that
# our descriptor table is full.
_ANCILLARY_BYTES = socket.CMSG_SPACE(253 * 4)
_INT = array.array("i").itemsize


def receive(sock: socket.socket) -> Message | None:
    """Read one packet; None at the end of the connection.

    Raises ProtocolError, after closing what descriptors came along, and OSError
    (BlockingIOError when there is nothing to read).
    """
    data, ancillary, flags, _ = sock.recvmsg(PACKET_MAX, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.extend(array.array("i", payload[: len(payload) // _INT * _INT]))
    if not data:
        close_all(fds)
        return None
    try:
        if flags & socket.MSG_TRUNC:
            raise ProtocolError("packet too large")
        return parse(data, fds, bool(flags & socket.MSG_CTRUNC))
    except ProtocolError:
        close_all(fds)
        raise


def hang_up(sock: socket.socket) -> None:
    """Close a connection so that the peer can still read what it was told last.

    A Unix socket that is closed with unread packets in it gives the peer ECONNRESET
    before everything that was sent to it (unix_release_sock(), net/unix/af_unix.c).
    """
    with sock, contextlib.suppress(OSError):
        sock.setblocking(False)
        sock.shutdown(socket.SHUT_RD)  # first: nothing more can come while we empty it
        while sock.recv(1):
            pass


def send(sock: socket.socket, data: bytes, fds: list[int]) -> None:
    """Send one packet; the descriptors stay the caller's. Raises OSError."""
    if fds:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        sock.sendmsg([data], [rights], socket.MSG_NOSIGNAL)
    else:
        sock.send(data, socket.MSG_NOSIGNAL)


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors that nobody else has."""
    for fd in fds:
        os.close(fd)


def seqpacket() -> socket.socket:
    """A new socket of the kind that all of gKSM speaks over."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def raise_descriptor_limit(wanted: int = 1 << 20) -> int:
    """Raise the soft limit of open files as far as allowed; return what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in ((wanted, max(wanted, hard)), (hard, hard)):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        except (OSError, ValueError):
            continue
        return limit[0]
    return soft
