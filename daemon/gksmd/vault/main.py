# SPDX-License-Identifier: Apache-2.0
"""gksm-vault: one socket, one client, one loop.

It outlives gksmd, so it does nothing that could make it need a restart: it decides
nothing, reads no configuration and writes no file. Its client is gksmd; a second one
is turned away while the first is there.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gksmd.protocol import ProtocolError
from gksmd.vault.store import Store
from gksmd.wire import close_all, raise_descriptor_limit, receive, send, seqpacket


class AlreadyRunningError(Exception):
    """Another vault has this socket."""


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """The vault's socket, its own user's alone. The lock beside it names one vault."""
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunningError from None
        path.unlink(missing_ok=True)
        with seqpacket() as listener:
            before = os.umask(0o177)
            try:
                listener.bind(str(path))
            finally:
                os.umask(before)
            listener.listen(4)
            yield listener
            path.unlink(missing_ok=True)
    finally:
        os.close(lock)


def trusted(client: socket.socket) -> bool:
    """Whether the peer is root or our own user."""
    ucred = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", ucred)
    return uid in (0, os.geteuid())


def serve_one(client: socket.socket, store: Store) -> bool:
    """Answer one request; False when the client is gone or broke the protocol."""
    try:
        message = receive(client)
        if message is None:
            return False
        for packet, fds in store.answer(message):
            send(client, packet, fds)
    except (ProtocolError, OSError) as error:
        print(f"gksm-vault: client dropped: {error}", file=sys.stderr)
        return False
    return True


def serve(listener: socket.socket, store: Store, linger_s: float) -> None:
    """Serve until nobody needs it: never, if ``linger_s`` is 0.

    Otherwise until it has been without a client for ``linger_s`` seconds, or has
    none and nothing to keep after having had one.
    """
    client: socket.socket | None = None
    alone_since = time.monotonic()
    served = False
    while True:
        # poll, not select: with many descriptors held the client's is above 1023.
        sources = select.poll()
        sources.register(listener, select.POLLIN)
        if client is not None:
            sources.register(client, select.POLLIN)
        ready = {fd for fd, _ in sources.poll(linger_s * 1000 if linger_s and not client else None)}
        if client is not None and client.fileno() in ready and not serve_one(client, store):
            client.close()
            client = None
            alone_since = time.monotonic()
        if listener.fileno() in ready:
            peer = accept(listener)
            if peer is None or client is not None or not trusted(peer):
                if peer is not None:
                    peer.close()
            else:
                client = peer
                served = True
        if client is None and linger_s:
            waited = time.monotonic() - alone_since
            if waited >= linger_s or (served and not len(store)):
                return


def accept(listener: socket.socket) -> socket.socket | None:
    """The next client, or None if there is no descriptor for it (it will try again)."""
    try:
        return listener.accept()[0]
    except OSError:
        time.sleep(0.1)
        return None


def main(arguments: list[str] | None = None) -> int:
    """Run the vault; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="gksm-vault", description="Holds the descriptors of published pages for gksmd."
    )
    parser.add_argument("--socket", type=Path, default=Path("/run/gksm/vault.sock"))
    parser.add_argument(
        "--linger",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="end when gksmd has been away this long (0: never)",
    )
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise_descriptor_limit()
    store = Store()
    try:
        with listening(options.socket) as listener:
            serve(listener, store, options.linger)
    except AlreadyRunningError:
        print(f"gksm-vault: another vault serves {options.socket}; stop it first.", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"gksm-vault: cannot serve {options.socket} ({error.strerror}); make its directory "
            "writable for this user.",
            file=sys.stderr,
        )
        return 1
    finally:
        for shelf in store.items.values():
            close_all(fd for fd, _ in shelf.values())
    return 0


if __name__ == "__main__":
    sys.exit(main())
