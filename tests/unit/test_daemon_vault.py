# SPDX-License-Identifier: Apache-2.0
"""gksm-vault alone: it keeps what it is given, for one client, until told to drop it."""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from gksmd.protocol import VAULT_ITEM, VAULT_KEY, VAULT_REF, Message, encode, lib
from gksmd.vaultlink import Item
from gksmd.wire import close_all, receive, send, seqpacket

from tests.support.agents import eventually, page_fd

PAGE: int = lib.GKSM_VAULT_PAGE
SEGMENT: int = lib.GKSM_VAULT_SEGMENT


@contextmanager
def vault(
    path: Path, *options: str, prefix: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    command = [*prefix, sys.executable, "-m", "gksmd.vault.main", "--socket", str(path), *options]
    child = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        eventually(lambda: listens(path), "the vault's start")
        yield child
    finally:
        child.terminate()
        child.communicate(timeout=30)


def listens(path: Path) -> bool:
    with seqpacket() as sock:
        try:
            sock.connect(str(path))
        except OSError:
            return False
        return True


@contextmanager
def client(path: Path) -> Iterator[socket.socket]:
    with seqpacket() as sock:
        sock.settimeout(20)
        sock.connect(str(path))
        yield sock


def ask(
    sock: socket.socket, kind: int, entries: bytes = b"", size: int = 0, fds: tuple[int, ...] = ()
) -> Message:
    packet = encode(
        kind, head=VAULT_REF.build(), entries=entries, entry_bytes=size, fd_count=len(fds)
    )
    send(sock, packet, list(fds))
    message = receive(sock)
    assert message is not None, "the vault closed the connection"
    return message


def item(number: int, item_class: int = PAGE) -> bytes:
    return Item(item_class, number, 0, "dömäin", bytes(16), bytes(16), 0, 0, 2 << 20).pack()


def keys(*numbers: int, item_class: int = PAGE) -> bytes:
    return b"".join(VAULT_KEY.pack(item_class, 0, n) for n in numbers)


def put(sock: socket.socket, *numbers: int, item_class: int = PAGE) -> int:
    fds = tuple(page_fd(n) for n in numbers)
    entries = b"".join(item(n, item_class) for n in numbers)
    status = ask(sock, lib.GKSM_VAULT_PUT, entries, VAULT_ITEM.size, fds).status
    close_all(fds)
    return status


def get(sock: socket.socket, *numbers: int, item_class: int = PAGE) -> tuple[int, list[str]]:
    reply = ask(sock, lib.GKSM_VAULT_GET, keys(*numbers, item_class=item_class), VAULT_KEY.size)
    names = [os.pread(fd, 64, 0).decode() for fd in reply.fds]
    close_all(reply.fds)
    return reply.status, names


def listed(sock: socket.socket) -> list[int]:
    send(sock, encode(lib.GKSM_VAULT_LIST, head=VAULT_REF.build()), [])
    found: list[int] = []
    while True:
        message = receive(sock)
        assert message is not None
        found += [row[2] for row in VAULT_ITEM.rows(message)]
        if not message.flags & lib.GKSM_FLAG_MORE:
            return found


def test_what_was_put_is_got_in_the_order_asked(tmp_path: Path) -> None:
    with vault(tmp_path / "v"), client(tmp_path / "v") as sock:
        assert put(sock, 1, 2, 3) == 0
        assert get(sock, 3, 1) == (0, ["3", "1"])
        assert get(sock, 3, 9, 1) == (-errno.ENOENT, ["3", "1"])


def test_pages_and_segments_of_one_number_are_different_things(tmp_path: Path) -> None:
    with vault(tmp_path / "v"), client(tmp_path / "v") as sock:
        put(sock, 1)
        assert get(sock, 1, item_class=SEGMENT) == (-errno.ENOENT, [])


def test_what_was_dropped_is_gone_and_closed(tmp_path: Path) -> None:
    with vault(tmp_path / "v") as child, client(tmp_path / "v") as sock:
        assert listed(sock) == []
        before = len(os.listdir(f"/proc/{child.pid}/fd"))
        put(sock, 1, 2)
        put(sock, 2)
        ask(sock, lib.GKSM_VAULT_DROP, keys(1, 2, 7), VAULT_KEY.size)
        assert listed(sock) == []
        assert len(os.listdir(f"/proc/{child.pid}/fd")) == before


def test_invariant_4_everything_is_there_for_the_next_client(tmp_path: Path) -> None:
    with vault(tmp_path / "v"):
        numbers = list(range(1, 1001))
        with client(tmp_path / "v") as sock:
            for i in range(0, 1000, 200):
                put(sock, *numbers[i : i + 200])
        with client(tmp_path / "v") as sock:
            assert listed(sock) == numbers
            assert get(sock, 1000) == (0, ["1000"])


def test_a_second_client_is_turned_away_while_the_first_is_there(tmp_path: Path) -> None:
    with vault(tmp_path / "v"), client(tmp_path / "v") as first:
        put(first, 1)
        with client(tmp_path / "v") as second:
            assert second.recv(100) == b""
        assert get(first, 1) == (0, ["1"])


@pytest.mark.parametrize(
    "packet",
    [
        b"garbage",
        encode(lib.GKSM_LOOKUP, head=bytes(8)),
        encode(lib.GKSM_VAULT_GET, head=bytes(8), entries=keys(1, item_class=9), entry_bytes=16),
        encode(lib.GKSM_VAULT_GET, head=bytes(8), entries=keys(*range(241)), entry_bytes=16),
        encode(lib.GKSM_VAULT_PUT, head=bytes(8), entries=item(5), entry_bytes=VAULT_ITEM.size),
    ],
    ids=["garbage", "a client's request", "an unknown class", "too many keys", "no descriptor"],
)
def test_a_broken_request_loses_the_client_and_nothing_else(tmp_path: Path, packet: bytes) -> None:
    with vault(tmp_path / "v"):
        with client(tmp_path / "v") as sock:
            put(sock, 1)
            sock.send(packet)
            assert sock.recv(100) == b""
        with client(tmp_path / "v") as sock:
            assert get(sock, 1) == (0, ["1"])


def test_a_full_descriptor_table_keeps_all_of_a_put_or_none(tmp_path: Path) -> None:
    with (
        vault(tmp_path / "v", prefix=("prlimit", "--nofile=64:64")),
        client(tmp_path / "v") as sock,
    ):
        assert put(sock, *range(1, 21)) == 0
        assert put(sock, *range(21, 121)) == -errno.EMFILE
        assert listed(sock) == list(range(1, 21))
        assert put(sock, 21) == 0


def test_more_descriptors_than_select_can_count(tmp_path: Path) -> None:
    """Above 1023 descriptors, a client that comes later is served as the first was."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2048:
        pytest.skip("this user may not open 2048 files")
    with vault(tmp_path / "v"):
        with client(tmp_path / "v") as sock:
            for first in range(1, 1201, 200):
                assert put(sock, *range(first, first + 200)) == 0
        with client(tmp_path / "v") as sock:
            assert get(sock, 1200) == (0, ["1200"])


def test_a_second_vault_in_the_same_place_is_refused(tmp_path: Path) -> None:
    with vault(tmp_path / "v"), client(tmp_path / "v") as sock:
        second = subprocess.run(
            [sys.executable, "-m", "gksmd.vault.main", "--socket", str(tmp_path / "v")],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert second.returncode == 1
        assert "another vault serves" in second.stderr
        assert put(sock, 1) == 0
