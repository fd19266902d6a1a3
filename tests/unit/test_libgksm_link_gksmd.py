# SPDX-License-Identifier: Apache-2.0
"""libgksm's daemon link against the real gksmd: both read one protocol.h."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from gksmd.protocol import lib

from tests.support.agents import Daemon, eventually
from tests.support.scripted import LinkClient

HIT, LEASE, PENDING = lib.GKSM_LOOKUP_HIT, lib.GKSM_LOOKUP_LEASE, lib.GKSM_LOOKUP_PENDING
FREE, DECLINED = lib.GKSM_DETACH_FREE, lib.GKSM_DETACH_DECLINED


@pytest.fixture
def own_daemon() -> Iterator[Daemon]:
    """One that may be killed."""
    with Daemon(config="grace.announce_ms = 5000") as made:
        yield made


@contextmanager
def clients(build: Path, folder: Path, daemon: Daemon, count: int) -> Iterator[list[LinkClient]]:
    """Connected processes with GPU 0 open."""
    with ExitStack() as undo:
        made = []
        for i in range(count):
            client = LinkClient(build, daemon.socket, folder / f"client-{i}.log")
            undo.callback(client.kill)
            assert client.ask("wait 20000").split()[0] == "0"
            assert client.ask("open 0").split()[0] == "0"
            made.append(client)
        yield made
        for client in made:
            client.finish()


def replies(line: str) -> list[tuple[int, int, int]]:
    """Outcome, page id or token, and what the descriptor contains."""
    status, *rest = line.split()
    assert status == "0", line
    return [(int(a), int(b), int(c)) for a, b, c in (word.split(":") for word in rest)]


def lookup(client: LinkClient, first: int, count: int) -> list[tuple[int, int, int]]:
    return replies(client.ask(f"lookup 0 {first} {count}"))


def ids(found: list[tuple[int, int, int]]) -> str:
    """Page ids or tokens as a command wants them."""
    return " ".join(str(number) for _, number, _ in found)


def publish(client: LinkClient, first: int, count: int) -> str:
    """Look up pages that nobody has and publish them; their page ids."""
    found = lookup(client, first, count)
    assert {outcome for outcome, _, _ in found} == {LEASE}
    status, *results = client.ask(f"publish-leased 0 {first} {ids(found)}").split()
    assert status == "0"
    assert {result.split(":")[0] for result in results} == {"0"}
    return " ".join(result.split(":")[1] for result in results)


def test_one_process_publishes_and_the_other_attaches(
    build: Path, tmp_path: Path, daemon: Daemon
) -> None:
    with clients(build, tmp_path, daemon, 2) as (first, second):
        pages = publish(first, 1, 300)
        found = lookup(second, 1, 300)
        assert [outcome for outcome, _, _ in found] == [HIT] * 300
        assert [content for _, _, content in found] == list(range(1, 301))
        assert ids(found) == pages
        assert second.ask(f"attached 0 {pages}") == "0"
        assert first.ask(f"detached 0 {FREE} {pages}") == "0"
        assert lookup(first, 1, 1) == [(HIT, int(pages.split()[0]), 1)]
        first.ask(f"detached 0 {DECLINED} {pages.split()[0]}")
        assert daemon.pages() == 300
        second.ask(f"detached 0 {FREE} {pages}")
        eventually(lambda: daemon.pages() == 0, "the end of pages that nobody maps")


def test_a_waiting_process_gets_the_page_once_it_is_published(
    build: Path, tmp_path: Path, daemon: Daemon
) -> None:
    with clients(build, tmp_path, daemon, 2) as (first, second):
        leases = lookup(first, 1, 2)
        tickets = lookup(second, 1, 2)
        assert [outcome for outcome, _, _ in tickets] == [PENDING] * 2
        second.start(f"tickets 0 20000 {ids(tickets)}")
        first.ask(f"publish-leased 0 1 {ids(leases)}")
        found = replies(second.answer())
        assert [(outcome, content) for outcome, _, content in found] == [(HIT, 1), (HIT, 2)]


def test_a_dropped_lease_goes_to_who_waits(build: Path, tmp_path: Path, daemon: Daemon) -> None:
    with clients(build, tmp_path, daemon, 2) as (first, second):
        lease = lookup(first, 1, 1)
        ticket = lookup(second, 1, 1)
        second.start(f"tickets 0 20000 {ids(ticket)}")
        first.ask(f"drop 0 {ids(lease)}")
        assert [outcome for outcome, _, _ in replies(second.answer())] == [LEASE]


def test_segments_are_lent_and_end_with_their_process(
    build: Path, tmp_path: Path, daemon: Daemon
) -> None:
    with clients(build, tmp_path, daemon, 1) as (only,):
        status, number, nbytes, has_fd = only.ask("segment 0 4").split()
        assert (status, nbytes, has_fd) == ("0", str(8 << 20), "1")
        only.ask(f"seal 0 {number}")
        assert only.ask("commit 0 8") == "0"


def test_after_a_restart_of_gksmd_pages_are_known_again_and_end_with_their_mappings(
    build: Path, tmp_path: Path, own_daemon: Daemon
) -> None:
    with clients(build, tmp_path, own_daemon, 2) as (first, second):
        pages = publish(first, 1, 5)
        first.ask(f"map-ids 0 1 {pages}")
        own_daemon.kill_gksmd()
        first.until("up", "0")
        own_daemon.start()
        for client in (first, second):
            client.until("up", "1")
        found = lookup(second, 1, 5)
        assert [(outcome, content) for outcome, _, content in found] == [
            (HIT, i) for i in range(1, 6)
        ]
        second.ask(f"attached 0 {pages}")
        for client in (first, second):
            assert own_daemon.pages() == 5
            client.ask(f"detached 0 {FREE} {pages}")
        eventually(lambda: own_daemon.pages() == 0, "the end of pages that nobody maps")
