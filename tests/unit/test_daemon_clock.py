# SPDX-License-Identifier: Apache-2.0
"""The wall clock of the daemons jumps, by years: leases, waits and containers do not care."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.agents import (
    HIT,
    LEASE,
    PENDING,
    Agent,
    Daemon,
    agents,
    connect,
    digest,
    eventually,
    publish,
    take,
)
from tests.support.wall_clock import DAY, WallClock

YEARS = [3650 * DAY, -3650 * DAY]

MakeDaemon = Callable[[str], Daemon]


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    clock = WallClock(tmp_path)
    clock.set_ahead(YEARS[0])
    assert clock.told() - time.time() > YEARS[0] - DAY, "it does not jump: all below shows nothing"
    clock.set_ahead(0)
    return clock


@pytest.fixture
def make_daemon(clock: WallClock) -> Iterator[MakeDaemon]:
    """A gksmd and a vault that have that clock, by the text of gksm.toml."""
    with ExitStack() as undo:
        yield lambda config: undo.enter_context(
            Daemon(config=config, environment=clock.environment)
        )


def look_up(state: Any, number: int) -> int:
    [state.found] = state.client.lookup([digest(number)])
    return int(state.found.outcome)


def publish_it(state: Any, number: int) -> int:
    [(_, status)] = publish(state, [state.found], [number])
    return status


def wait_for_it(state: Any, number: int) -> str:
    """What becomes of a page that somebody else loads."""
    [found] = state.client.wait([state.found.token], 20_000)
    state.found = found
    return take([found])[0] if found.outcome == HIT else "lease" if found.outcome == LEASE else "-"


@pytest.mark.parametrize("jump", YEARS, ids=["ahead", "back"])
def test_a_lease_is_neither_cut_short_nor_made_longer(
    make_daemon: MakeDaemon, clock: WallClock, jump: int
) -> None:
    long = make_daemon("load.lease_deadline_ms = 60000")
    with agents(long.socket, 2) as (loader, waiter):
        assert loader.run(look_up, 1) == LEASE
        assert waiter.run(look_up, 1) == PENDING
        waiter.start(wait_for_it, 1)
        clock.set_ahead(jump)
        assert loader.run(publish_it, 1) == 0
        assert waiter.answer() == "1"
    short = make_daemon("load.lease_deadline_ms = 300")
    clock.set_ahead(0)
    with agents(short.socket, 2) as (silent, waiter):
        assert silent.run(look_up, 2) == LEASE
        assert waiter.run(look_up, 2) == PENDING
        clock.set_ahead(jump)
        assert waiter.run(wait_for_it, 2) == "lease"
        assert waiter.run(publish_it, 2) == 0


@pytest.mark.parametrize("jump", YEARS, ids=["ahead", "back"])
def test_a_container_that_is_being_started_is_not_forgotten(
    make_daemon: MakeDaemon, clock: WallClock, jump: int
) -> None:
    daemon = make_daemon("")
    daemon.prepare("box")
    clock.set_ahead(jump)
    daemon.kill_gksmd()
    daemon.start()
    daemon.ask("runtime", op="bind", id="box", pid=os.getpid())
    assert os.listdir(daemon.run_dir / "c") == ["box"]


@pytest.mark.parametrize("jump", YEARS, ids=["ahead", "back"])
def test_after_a_restart_pages_are_kept_that_are_announced_and_no_others(
    make_daemon: MakeDaemon, clock: WallClock, jump: int
) -> None:
    """Whoever is still there has the same time as ever for it."""
    daemon = make_daemon("grace.announce_ms = 700")
    with Agent(daemon.socket) as gone, Agent(daemon.socket) as stays:
        gone.run(publish_new, 1)
        kept = stays.run(publish_new, 2)
        daemon.kill_gksmd()
        gone.kill()
        clock.set_ahead(jump)
        daemon.start()
        stays.run(connect, daemon.socket)
        assert stays.announce([(kept, digest(2), 1)]) == [0]
        eventually(lambda: daemon.pages() == 1, "the end of what nobody announced")
        with Agent(daemon.socket) as newcomer:
            assert newcomer.run(look_up, 1) == LEASE
            assert newcomer.run(look_up, 2) == HIT


def publish_new(state: Any, number: int) -> int:
    """The id of a page that nobody has."""
    assert look_up(state, number) == LEASE
    [(page_id, status)] = publish(state, [state.found], [number])
    assert status == 0
    return page_id


@pytest.mark.parametrize("jump", YEARS, ids=["ahead", "back"])
def test_gksmd_has_been_up_for_as_long_as_it_has(
    make_daemon: MakeDaemon, clock: WallClock, jump: int
) -> None:
    daemon = make_daemon("")
    clock.set_ahead(jump)
    assert 0 <= daemon.ask("status", op="status")["daemon"]["uptime_s"] < DAY
