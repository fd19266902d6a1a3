# SPDX-License-Identifier: Apache-2.0
"""Peers that send garbage, too much, nothing, or die in the middle: they harm nobody else."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from gksmd import protocol
from gksmd.client import Client, ClosedError
from gksmd.protocol import HEADER, encode, lib
from gksmd.wire import close_all, send, seqpacket

from tests.support.agents import (
    GPU,
    HIT,
    LEASE,
    PENDING,
    Agent,
    Daemon,
    agents,
    digest,
    digests,
    eventually,
    load,
    page_fd,
    publish,
    settled,
)

PAGE = 2 << 20


@contextmanager
def healthy(daemon: Daemon) -> Iterator[Agent]:
    """An instance that shares pages before and after what happens inside."""
    with agents(daemon.socket, 1) as (bystander,):
        assert bystander.run(load, [1001])["published"] == [1001]
        yield bystander
        assert bystander.run(load, [1001, 1002]) == {
            "attached": [1001],
            "published": [1002],
            "private": [],
        }


@contextmanager
def raw(path: Path) -> Iterator[socket.socket]:
    with seqpacket() as sock:
        sock.settimeout(20)
        sock.connect(str(path))
        yield sock


def closed(sock: socket.socket) -> bool:
    """Whether gksmd closes the connection; what it says before is read."""
    try:
        while sock.recv(1 << 16):
            pass
    except (ConnectionResetError, BrokenPipeError):
        pass
    return True


def header(**fields: int) -> bytes:
    values = {
        "magic": lib.GKSM_MAGIC,
        "type": lib.GKSM_HELLO,
        "flags": 0,
        "seq": 1,
        "status": 0,
        "head_bytes": 0,
        "entry_bytes": 0,
        "entry_count": 0,
        "fd_count": 0,
    }
    return HEADER.pack(*(values | fields).values())


GARBAGE = {
    "random bytes": os.urandom(500),
    "one byte": b"G",
    "half a header": header()[:16],
    "half a message": header(head_bytes=120) + bytes(60),
    "a huge length": header(head_bytes=0xFFFFFFFF),
    "lengths that wrap around": header(entry_bytes=1 << 31, entry_count=2),
    "a huge count": header(entry_count=0xFFFFFFFF, entry_bytes=0),
    "descriptors that did not come": header(fd_count=3),
    "another magic": header(magic=1),
    "a reply": encode(lib.GKSM_WELCOME, head=bytes(224)),
    "a vault's request": encode(lib.GKSM_VAULT_LIST, head=bytes(8)),
    "a look-up before HELLO": encode(lib.GKSM_LOOKUP, head=bytes(8)),
    "an unknown type": encode(999),
    "a HELLO that is too short": encode(lib.GKSM_HELLO, head=bytes(20)),
}


@pytest.mark.parametrize("packet", GARBAGE.values(), ids=GARBAGE)
def test_garbage_ends_only_its_own_connection(daemon: Daemon, packet: bytes) -> None:
    with healthy(daemon), raw(daemon.socket) as sock:
        sock.send(packet)
        assert closed(sock)


AFTER_HELLO = {
    "a GPU that was not opened": encode(lib.GKSM_COMMIT, head=protocol.COMMIT.build(gpu=1)),
    "a look-up on one": encode(
        lib.GKSM_LOOKUP, head=protocol.LOOKUP.build(gpu=7), entries=digest(1), entry_bytes=16
    ),
    "usage of one": encode(lib.GKSM_USAGE, head=protocol.USAGE.build(gpu=0xFFFFFFFF)),
    "a GPU without UUID": encode(lib.GKSM_GPU_OPEN, head=protocol.GPU_OPEN.build()),
    "too many look-ups": encode(
        lib.GKSM_LOOKUP, head=bytes(8), entries=bytes(16 * 513), entry_bytes=16
    ),
    "entries that are too short": encode(
        lib.GKSM_LOOKUP, head=bytes(8), entries=bytes(32), entry_bytes=8
    ),
    "too many announcements": encode(
        lib.GKSM_ANNOUNCE, head=bytes(8), entries=bytes(32 * 513), entry_bytes=32
    ),
    "a publication without descriptors": encode(
        lib.GKSM_PUBLISH, head=bytes(8), entries=bytes(40), entry_bytes=40
    ),
    "a second HELLO": encode(lib.GKSM_HELLO, head=bytes(120)),
    "an unknown type": encode(999),
    "the vault's DROP": encode(
        lib.GKSM_VAULT_DROP, head=bytes(8), entries=bytes(16), entry_bytes=16
    ),
    "nothing at all": b"",
}


@pytest.mark.parametrize("packet", AFTER_HELLO.values(), ids=AFTER_HELLO)
def test_a_broken_request_ends_only_its_own_connection(daemon: Daemon, packet: bytes) -> None:
    with healthy(daemon), agents(daemon.socket, 1) as (liar,):
        assert liar.run(send_and_lose, packet)


def send_and_lose(state: Any, packet: bytes) -> bool:
    state.client.sock.send(packet)
    return closed(state.client.sock)


@pytest.mark.parametrize("count", [1, 240, 253])
def test_descriptors_with_a_message_that_has_none_are_closed(daemon: Daemon, count: int) -> None:
    with healthy(daemon), agents(daemon.socket, 1) as (liar,):
        before = daemon.gksmd_fds("memfd:page")
        assert liar.run(send_fds, count)
        assert daemon.gksmd_fds("memfd:page") == before


def send_fds(state: Any, count: int) -> bool:
    fd = page_fd("stray")
    try:
        packet = encode(lib.GKSM_COMMIT, head=bytes(24), fd_count=count)
        send(state.client.sock, packet, [fd] * count)
    finally:
        os.close(fd)
    return closed(state.client.sock)


def test_a_packet_larger_than_allowed_ends_its_connection(daemon: Daemon) -> None:
    with healthy(daemon), raw(daemon.socket) as sock:
        sock.send(bytes(100_000))
        assert closed(sock)


def test_silence_is_ended_and_costs_nobody_anything(daemon: Daemon) -> None:
    with healthy(daemon), raw(daemon.socket) as sock:
        assert closed(sock)


def test_a_version_that_is_not_served_is_told_why(daemon: Daemon) -> None:
    with healthy(daemon), Client(daemon.socket) as client:
        message = client.hello(protocol=99)
        assert message.status == -errno.EPROTONOSUPPORT
        assert client.welcome.sharing == 0
        assert "update the older one" in protocol.text(client.welcome.reason)
        with pytest.raises(ClosedError):
            client.receive()


def greet(state: Any, path: Path, head: bytes) -> tuple[int, int, int, str]:
    """Say HELLO with these bytes; status, protocol, sharing and reason of the WELCOME."""
    state.client = Client(path)
    message = state.client.ask(lib.GKSM_HELLO, head=head)
    welcome = protocol.WELCOME.read(message.head)
    return message.status, welcome.protocol, welcome.sharing, protocol.text(welcome.reason)


def open_gpu(state: Any) -> int:
    """The guard to use."""
    return int(state.client.gpu_open(GPU).guard)


def test_invariant_8_a_newer_peer_is_spoken_to_in_our_version(daemon: Daemon) -> None:
    head = protocol.HELLO.build(protocol_min=1, protocol_max=5, guards=8) + b"appended fields"
    with Agent() as newer:
        assert newer.run(greet, daemon.socket, head) == (0, 1, 1, "")


def test_a_process_that_offers_no_guard_is_told_to_stay_private(daemon: Daemon) -> None:
    head = protocol.HELLO.build(protocol_min=1, protocol_max=1, guards=1)
    with Agent() as unguarded:
        _, _, sharing, reason = unguarded.run(greet, daemon.socket, head)
        assert sharing == 0
        assert "guard" in reason
        assert unguarded.run(open_gpu) == lib.GKSM_GUARD_OFF
        [found] = unguarded.lookup([digest(1)])
        assert found.outcome == lib.GKSM_LOOKUP_REFUSED


@pytest.mark.parametrize("offered", [0b1110, 0b0110, 0b0010])
def test_the_strongest_guard_that_is_offered_and_allowed_is_used(
    daemon: Daemon, offered: int
) -> None:
    head = protocol.HELLO.build(protocol_min=1, protocol_max=1, guards=offered)
    with Agent() as one:
        one.run(greet, daemon.socket, head)
        expected = lib.GKSM_GUARD_FAULT if offered & 0b1000 else lib.GKSM_GUARD_SEAL
        assert one.run(open_gpu) == expected


# Killed at each step of load, publish, attach.


def in_look_up(state: Any) -> None:
    state.client.send(lib.GKSM_LOOKUP, head=bytes(8), entries=digest(2), entry_bytes=16)


def with_a_lease(state: Any) -> None:
    state.found = state.client.lookup(digests([2]))
    assert [f.outcome for f in state.found] == [LEASE]


def in_publish(state: Any) -> None:
    """The packet is sent, its answer not received."""
    with_a_lease(state)
    fd = page_fd(2)
    entry = protocol.PUBLISH_ENTRY.pack(state.found[0].token, digest(2), 0, 0)
    state.client.send(
        lib.GKSM_PUBLISH, head=bytes(8), entries=entry, entry_bytes=len(entry), fds=[fd]
    )


def after_publish(state: Any) -> None:
    with_a_lease(state)
    assert publish(state, state.found, [2])[0][1] == 0


def with_a_grant(state: Any) -> None:
    state.found = state.client.lookup(digests([1001]))
    assert [f.outcome for f in state.found] == [HIT]


def after_attach(state: Any) -> None:
    with_a_grant(state)
    state.client.attached([state.found[0].page_id])


def with_a_segment(state: Any) -> None:
    status, _, fd = state.client.segment_get(4)
    assert status == 0
    os.pwrite(fd, b"x" * PAGE, 0)


def in_wait(state: Any) -> None:
    state.found = state.client.lookup(digests([3]))
    assert [f.outcome for f in state.found] == [PENDING]
    state.client.start_wait([state.found[0].token], 20_000)


STEPS: list[Callable[[Any], None]] = [
    in_look_up,
    with_a_lease,
    in_publish,
    after_publish,
    with_a_grant,
    after_attach,
    with_a_segment,
    in_wait,
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_invariant_3_a_client_killed_at_any_step_leaves_nothing_behind(
    daemon: Daemon, step: Callable[[Any], None]
) -> None:
    with agents(daemon.socket, 2) as (survivor, holder):
        assert survivor.run(load, [1001])["published"] == [1001]
        held = holder.lookup(digests([3]))
        gksmd, vault = settled(daemon.gksmd_fds), settled(daemon.vault_fds)
        with agents(daemon.socket, 1) as (victim,):
            victim.run(step)
        eventually(lambda: daemon.gksmd_fds() == gksmd, "the end of its descriptors")
        eventually(lambda: daemon.vault_fds() == vault, "the end of its pages")
        holder.lease_drop([held[0].token])
        assert survivor.run(load, [1001, 2, 3]) == {
            "attached": [1001],
            "published": [2, 3],
            "private": [],
        }


def test_invariant_3_a_frozen_client_keeps_its_pages_and_delays_nobody(daemon: Daemon) -> None:
    with agents(daemon.socket, 2) as (frozen, other):
        assert frozen.run(load, list(range(1, 301)))["published"]
        frozen.run(leave_replies_unread)
        frozen.stop()
        try:
            assert len(other.run(load, list(range(1, 301)))["attached"]) == 300
        finally:
            frozen.resume()


def leave_replies_unread(state: Any) -> None:
    for _ in range(4):
        state.client.send(
            lib.GKSM_LOOKUP,
            head=bytes(8),
            entries=b"".join(digests(range(1, 301))),
            entry_bytes=16,
        )


def test_a_parent_killed_while_its_forked_child_lives_is_gone_at_once(daemon: Daemon) -> None:
    """The child has inherited the socket; the instance is the parent."""
    with agents(daemon.socket, 2) as (survivor, parent):
        assert parent.run(load, [1, 2])["published"] == [1, 2]
        child = parent.run(fork_a_child)
        try:
            parent.kill()
            eventually(lambda: daemon.pages() == 0, "the end of its pages")
            assert survivor.run(load, [1])["published"] == [1]
            os.kill(child, 0)
        finally:
            os.kill(child, 9)


def fork_a_child(state: Any) -> int:
    child = os.fork()
    if not child:
        signal.pause()
    return child


def test_a_client_that_does_not_read_is_given_up(daemon: Daemon) -> None:
    with healthy(daemon), agents(daemon.socket, 1) as (slow,):
        assert slow.run(load, list(range(1, 513)))["published"]
        assert slow.run(flood_until_given_up)


def flood_until_given_up(state: Any) -> bool:
    """Ask and never read, until the connection ends."""
    entries = b"".join(digests(range(1, 513)))
    packet = encode(lib.GKSM_LOOKUP, head=bytes(8), entries=entries, entry_bytes=16)
    state.client.sock.settimeout(20)
    try:
        for _ in range(10_000):
            state.client.sock.send(packet)
    except (BrokenPipeError, ConnectionResetError):
        return True
    return False


def test_two_connections_of_one_process_are_one_instance(daemon: Daemon) -> None:
    with agents(daemon.socket, 1) as (one,):
        assert one.run(load, [1])["published"] == [1]
        assert one.run(second_connection, daemon.socket)
        assert len(daemon.ask("status", op="ps")) == 1


def second_connection(state: Any, path: Path) -> bool:
    """Connect anew; the older connection ends."""
    newer = Client(path)
    newer.hello()
    newer.gpu_open(GPU)
    old, state.client = state.client, newer
    return closed(old.sock)


def test_reports_are_cut_cleaned_and_counted(daemon: Daemon) -> None:
    with agents(daemon.socket, 1) as (one,):
        one.report(b"first \x1b[31mred\x00" + b"x" * 2000)
        for _ in range(200):
            one.report(b"again")
        one.commit(0, 0)
        logs = daemon.ask("status", op="logs", pid=one.pid)
        assert logs["records"][0]["text"].startswith("first  [31mred")
        assert len(logs["records"][0]["text"]) <= 512
        assert logs["dropped"] + len(logs["records"]) == 201
        assert logs["dropped"] > 0


def test_a_hash_is_never_in_the_log(daemon: Daemon) -> None:
    secret = bytes.fromhex("deadbeefcafef00d0123456789abcdef")
    with agents(daemon.socket, 1) as (one,):
        [found] = one.lookup([secret])
        one.run(publish_secret, found.token, secret)
        one.run(
            send_and_lose,
            encode(lib.GKSM_LOOKUP, head=bytes(8), entries=secret * 2, entry_bytes=32, fd_count=1),
        )
    assert "connection ended" in daemon.log()
    assert secret.hex()[:9] not in daemon.log()
    assert secret[::-1].hex()[:9] not in daemon.log()


def publish_secret(state: Any, token: int, secret: bytes) -> None:
    fd = page_fd("secret")
    state.client.publish([(token, secret, fd)])
    close_all([fd])
