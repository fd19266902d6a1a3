# SPDX-License-Identifier: Apache-2.0
"""Legacy IPC at gksmd: tickets, and descriptors that pass from exporter to opener."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from gksmd.client import ClosedError
from gksmd.protocol import IPC_OPEN, IPC_PAGES, lib
from gksmd.quota import IPC_EXPORTS_MAX, IPC_OPENS_MAX
from gksmd.wire import FDS_MAX, close_all

from tests.support.agents import Agent, Daemon, agents, connect, eventually, page_fd

TICKET = bytes(range(16))
NOT_HERE = -errno.ENOENT
QUICK = "grace.announce_ms = 1"


@pytest.fixture
def quick() -> Iterator[Daemon]:
    """A gksmd that waits for nobody who may come back."""
    with Daemon(config=QUICK) as daemon:
        yield daemon


def serve(state: Any, *, status: int = 0, short: int = 0) -> list[int]:
    """Answer the next IPC_WANTED with that many descriptors less; what was asked for."""
    wanted = state.client.ipc_wanted()
    first, count = wanted.first_page, wanted.count
    fds = [] if status else [page_fd(first + i) for i in range(count - short)]
    try:
        done = state.client.ipc_pages(wanted.request, fds, status)
    finally:
        close_all(fds)
    return [first, count, done]


def opened(state: Any, ticket: bytes = TICKET, first: int = 0) -> tuple[int, int, list[str]]:
    """Open a part: status, pages of the whole, and which pages came."""
    status, pages, fds = state.client.ipc_open(ticket, first)
    names = [os.pread(fd, 64, 0).decode() for fd in fds]
    close_all(fds)
    return status, pages, names


def names(first: int, end: int) -> list[str]:
    return [str(page) for page in range(first, end)]


def test_an_open_gets_the_exporters_pages_in_order(quick: Daemon) -> None:
    with agents(quick.socket, 2) as (owner, opener):
        assert owner.ipc_export(TICKET, FDS_MAX + 30) == 0
        opener.start(opened)
        assert owner.run(serve) == [0, FDS_MAX, 0]
        assert opener.answer() == (0, FDS_MAX + 30, names(0, FDS_MAX))
        opener.start(opened, first=FDS_MAX)
        assert owner.run(serve) == [FDS_MAX, 30, 0]
        assert opener.answer() == (0, FDS_MAX + 30, names(FDS_MAX, FDS_MAX + 30))


def test_two_that_open_each_others_memory_do_not_wait_for_each_other(quick: Daemon) -> None:
    tickets = [bytes([n]) * 16 for n in (1, 2)]
    with agents(quick.socket, 2) as both:
        for agent, ticket in zip(both, tickets, strict=True):
            assert agent.ipc_export(ticket, 1) == 0
        for agent, ticket in zip(both, reversed(tickets), strict=True):
            agent.start(open_while_serving, ticket)
        for agent in both:
            assert agent.answer() == ["0"]


def open_while_serving(state: Any, ticket: bytes) -> list[str]:
    """Send the open, answer the other's, and only then read what was opened."""
    client = state.client
    head = protocol_open(ticket)
    seq = client.send(lib.GKSM_IPC_OPEN, head=head)
    wanted = client.ipc_wanted()
    fd = page_fd(0)
    answer = client.send(lib.GKSM_IPC_PAGES, head=protocol_pages(wanted.request), fds=[fd])
    os.close(fd)
    replies = {message.seq: message for message in (client.receive(), client.receive())}
    assert set(replies) == {seq, answer}
    found = [os.pread(each, 64, 0).decode() for each in replies[seq].fds]
    close_all(replies[seq].fds)
    return found


def protocol_open(ticket: bytes) -> bytes:
    return IPC_OPEN.build(ticket=list(ticket))


def protocol_pages(request: int) -> bytes:
    return IPC_PAGES.build(request=request)


def test_unknown_freed_and_own_tickets_open_nothing(quick: Daemon) -> None:
    with agents(quick.socket, 2) as (owner, opener):
        assert opener.run(opened)[0] == NOT_HERE
        assert owner.ipc_export(TICKET, 1) == 0
        assert owner.run(opened)[0] == -errno.EINVAL
        assert opener.run(opened, first=1)[0] == -errno.EINVAL
        owner.ipc_drop(TICKET)
        eventually(lambda: opener.run(opened)[0] == NOT_HERE, "the drop")


def test_invariant_2_a_ticket_of_another_trust_domain_names_nothing(quick: Daemon) -> None:
    sockets = [quick.prepare(name) for name in ("one", "two")]
    with Agent(sockets[0]) as owner, Agent(sockets[1]) as thief, Agent(sockets[0]) as friend:
        assert owner.ipc_export(TICKET, 1) == 0
        assert thief.run(opened)[0] == NOT_HERE
        # Nor does it take the name away from the other.
        assert thief.ipc_export(TICKET, 1) == 0
        thief.ipc_drop(TICKET)
        assert thief.run(opened)[0] == NOT_HERE
        friend.start(opened)
        assert owner.run(serve) == [0, 1, 0]
        assert friend.answer()[0] == 0


def test_invariant_7_processes_of_one_user_that_no_rule_names_open_each_others_memory() -> None:
    """They share no page, each being a domain by itself, but what a program hands to its own
    workers has to arrive."""
    with (
        Daemon(domains={}, config=QUICK) as daemon,
        agents(daemon.socket, 2) as (owner, worker),
        Agent(daemon.prepare("box")) as contained,
    ):
        assert owner.ipc_export(TICKET, 1) == 0
        worker.start(opened)
        assert owner.run(serve) == [0, 1, 0]
        assert worker.answer()[0] == 0
        assert contained.run(opened)[0] == NOT_HERE


def test_a_ticket_belongs_to_the_process_that_said_it_first(quick: Daemon) -> None:
    with agents(quick.socket, 3) as (owner, thief, opener):
        assert owner.ipc_export(TICKET, 1) == 0
        assert owner.ipc_export(TICKET, 1) == 0  # as after a reconnect
        assert thief.ipc_export(TICKET, 1) == -errno.EEXIST
        thief.ipc_drop(TICKET)
        opener.start(opened)
        assert owner.run(serve) == [0, 1, 0]
        assert opener.answer()[0] == 0


def test_invariant_3_an_exporter_that_dies_or_lies_ends_the_open_at_once(quick: Daemon) -> None:
    with agents(quick.socket, 3) as (dying, lying, opener):
        tickets = [bytes([n]) * 16 for n in (1, 2)]
        assert dying.ipc_export(tickets[0], 4) == 0
        assert lying.ipc_export(tickets[1], 4) == 0
        opener.start(opened, tickets[0])
        dying.run(wait_wanted)
        dying.kill()
        assert opener.answer()[0] == NOT_HERE
        for options, expected in (
            ({"short": 1}, -errno.EIO),
            ({"status": -errno.EIO}, -errno.EIO),
            ({"status": 12345}, -errno.EIO),
        ):
            opener.start(opened, tickets[1])
            lying.run(serve, **options)
            assert opener.answer()[0] == expected
        opener.start(opened, tickets[1])
        lying.run(serve, status=-errno.ESTALE)
        assert opener.answer()[0] == NOT_HERE
        assert opener.run(opened, tickets[1])[0] == NOT_HERE
    eventually(lambda: quick.gksmd_fds("memfd:page") == 0, "descriptors closed")


def wait_wanted(state: Any) -> int:
    return int(state.client.ipc_wanted().count)


def test_invariant_3_an_exporter_that_hangs_costs_others_nothing(quick: Daemon) -> None:
    with agents(quick.socket, 3) as (owner, opener, third):
        assert owner.ipc_export(TICKET, 4) == 0
        owner.stop()
        opener.start(opened)
        assert third.ipc_export(bytes([9]) * 16, 1) == 0
        assert opener.answer()[0] == -errno.ETIMEDOUT
        owner.resume()
        # What comes too late is for nobody.
        assert owner.run(serve) == [0, 4, NOT_HERE]
        opener.start(opened)
        assert owner.run(serve) == [0, 4, 0]
        assert opener.answer()[2] == names(0, 4)


def test_an_exporter_that_reconnects_is_asked_again(quick: Daemon) -> None:
    with agents(quick.socket, 2) as (owner, opener):
        assert owner.ipc_export(TICKET, 1) == 0
        opener.start(opened)
        owner.run(wait_wanted)
        owner.run(come_back, quick.socket)
        assert owner.run(serve) == [0, 1, 0]
        assert opener.answer() == (0, 1, ["0"])


def come_back(state: Any, path: Any) -> None:
    connect(state, path)
    assert state.client.ipc_export(TICKET, 1) == 0


def test_invariant_4_a_ticket_is_waited_for_after_a_restart() -> None:
    with Daemon() as daemon, Agent(daemon.socket) as owner:
        assert owner.ipc_export(TICKET, 1) == 0
        daemon.kill_gksmd()
        daemon.start()
        with Agent(daemon.socket) as opener:
            opener.start(opened)
            owner.run(come_back, daemon.socket)
            assert owner.run(serve) == [0, 1, 0]
            assert opener.answer() == (0, 1, ["0"])


def test_quotas_bound_what_one_process_can_export_and_open(quick: Daemon) -> None:
    with agents(quick.socket, 2) as (owner, opener):
        assert owner.run(export_many, IPC_EXPORTS_MAX + 1) == [0] * IPC_EXPORTS_MAX + [
            -errno.EDQUOT
        ]
        owner.ipc_drop(ticket_of(1))
        assert owner.ipc_export(TICKET, 1) == 0
        owner.stop()
        assert opener.run(open_many, IPC_OPENS_MAX + 1) == -errno.EBUSY
        owner.resume()


def ticket_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def export_many(state: Any, count: int) -> list[int]:
    return [state.client.ipc_export(ticket_of(n), 1) for n in range(1, count + 1)]


def open_many(state: Any, count: int) -> int:
    """The status of the first of so many opens at once that is answered."""
    for _ in range(count):
        state.client.send(lib.GKSM_IPC_OPEN, head=protocol_open(ticket_of(2)))
    return int(state.client.receive().status)


@pytest.mark.parametrize(("ticket", "pages"), [(bytes(16), 1), (TICKET, 0), (TICKET, 1 << 40)])
def test_an_export_that_makes_no_sense_ends_the_connection(
    quick: Daemon, ticket: bytes, pages: int
) -> None:
    with agents(quick.socket, 1) as (owner,):
        assert owner.run(export_closes, ticket, pages)


def export_closes(state: Any, ticket: bytes, pages: int) -> bool:
    try:
        state.client.ipc_export(ticket, pages)
    except ClosedError:
        return True
    return False


def test_pages_that_nobody_asked_for_are_closed(quick: Daemon) -> None:
    with agents(quick.socket, 1) as (owner,):
        assert owner.run(push, range(1, 4)) == [NOT_HERE] * 3
    assert quick.gksmd_fds("memfd:page") == 0


def push(state: Any, requests: Sequence[int]) -> list[int]:
    fds = [page_fd(0)]
    try:
        return [state.client.ipc_pages(request, fds) for request in requests]
    finally:
        close_all(fds)
