# SPDX-License-Identifier: Apache-2.0
"""Look-ups, leases, publication: one copy for all of a domain, none across domains."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gksmd.client import Client
from gksmd.protocol import lib, text

from tests.support.agents import (
    EXPIRED,
    HIT,
    LEASE,
    OTHER_GPU,
    PENDING,
    REFUSED,
    Agent,
    Daemon,
    agents,
    connect,
    digest,
    digests,
    eventually,
    load,
    publish,
    settled,
    take,
)

KV = 1
SHORT_LEASE = "load.lease_deadline_ms = 200"


def lookup(state: Any, numbers: Sequence[int]) -> list[Any]:
    return state.client.lookup(digests(numbers))


def wait_and_take(state: Any, tickets: Sequence[int], timeout_ms: int = 20_000) -> list[Any]:
    """Wait for tickets; the outcome of each, or the page it turned out to be."""
    found = state.client.wait(tickets, timeout_ms)
    return [take([f])[0] if f.outcome == HIT else f.outcome for f in found]


def keep_lookup(state: Any, numbers: Sequence[int]) -> list[int]:
    state.found = lookup(state, numbers)
    return [f.outcome for f in state.found]


def publish_kept(state: Any, numbers: Sequence[int]) -> list[int]:
    return [status for _, status in publish(state, state.found, numbers)]


def wait_kept(state: Any, timeout_ms: int = 20_000) -> list[Any]:
    return wait_and_take(state, [f.token for f in state.found if f.outcome == PENDING], timeout_ms)


def test_a_second_process_attaches_what_the_first_published(daemon: Daemon) -> None:
    with agents(daemon.socket, 2) as (first, second):
        pages = list(range(1, 601))
        assert first.run(load, pages)["published"] == pages
        assert second.run(load, pages)["attached"] == pages
        assert daemon.pages() == 600


def test_cold_starts_at_the_same_time_load_each_page_once(daemon: Daemon) -> None:
    with agents(daemon.socket, 4) as four:
        pages = list(range(1, 301))
        for agent in four:
            agent.start(load, pages)
        done = [agent.answer() for agent in four]
        published = sorted(n for one in done for n in one["published"])
        assert published == pages
        assert sum(len(one["attached"]) for one in done) == 3 * len(pages)
        assert not any(one["private"] for one in done)


def test_invariant_2_no_sharing_across_trust_domains() -> None:
    with Daemon(domains={}) as daemon, agents(daemon.socket, 2) as (first, second):
        pages = list(range(1, 101))
        assert first.run(load, pages)["published"] == pages
        assert second.run(load, pages)["published"] == pages
        assert daemon.pages() == 200


def test_invariant_2_a_container_shares_with_no_other_by_default(daemon: Daemon) -> None:
    sockets = [daemon.prepare(name) for name in ("one", "two")]
    with Agent(sockets[0]) as first, Agent(sockets[1]) as second, Agent(sockets[0]) as third:
        assert first.run(load, [1, 2])["published"] == [1, 2]
        assert second.run(load, [1, 2])["published"] == [1, 2]
        assert third.run(load, [1, 2])["attached"] == [1, 2]


def test_invariant_2_a_container_that_ended_before_hello_is_not_taken_for_a_bare_process(
    daemon: Daemon,
) -> None:
    path = daemon.prepare("brief")
    with Agent() as late:
        late.run(dial, path)
        daemon.ask("runtime", op="forget", id="brief")
        assert late.run(greet) == (-errno.EACCES, "its container has ended")


def dial(state: Any, path: Path) -> None:
    state.client = Client(path)


def greet(state: Any) -> tuple[int, str]:
    message = state.client.hello()
    return message.status, text(state.client.welcome.reason)


def test_invariant_2_a_page_id_of_another_domain_names_nothing() -> None:
    with Daemon(domains={}) as daemon, agents(daemon.socket, 2) as (owner, thief):
        owner.run(keep_lookup, [1])
        [(page_id, _)] = owner.run(publish_first, [1])
        thief.attached([page_id])
        thief.detached([page_id])
        thief.detached([page_id], reason=lib.GKSM_DETACH_DECLINED)
        assert thief.announce([(page_id, digest(1), 1)]) != [0]
        thief.kill()
        eventually(lambda: len(daemon.ask("status", op="status")["instances"]) == 1, "its end")
        assert daemon.pages() == 1


def publish_first(state: Any, numbers: Sequence[int]) -> list[tuple[int, int]]:
    return publish(state, state.found, numbers)


def test_kinds_that_the_domain_does_not_share_are_refused(daemon: Daemon) -> None:
    with agents(daemon.socket, 1) as (one,):
        assert [f.outcome for f in one.lookup(digests([1]), kind=KV)] == [REFUSED]
        assert [f.outcome for f in one.lookup(digests([1]))] == [LEASE]


def test_pages_of_one_gpu_are_not_found_on_another(daemon: Daemon) -> None:
    with (
        Agent(daemon.socket) as one,
        Agent(daemon.socket, gpu=OTHER_GPU) as other,
    ):
        assert one.run(load, [1])["published"] == [1]
        assert other.run(load, [1])["published"] == [1]


def test_a_page_goes_when_the_last_mapping_and_grant_are_gone(daemon: Daemon) -> None:
    with agents(daemon.socket, 2) as (first, second):
        first.run(keep_lookup, [1])
        [(page_id, _)] = first.run(publish_first, [1])
        second.run(keep_lookup, [1])  # a grant, not a mapping yet
        first.detached([page_id])
        assert [f.outcome for f in first.lookup(digests([1]))] == [HIT]
        first.detached([page_id], reason=lib.GKSM_DETACH_DECLINED)
        assert daemon.pages() == 1
        second.detached([page_id], reason=lib.GKSM_DETACH_DECLINED)
        eventually(lambda: daemon.pages() == 0, "the end of the page")
        assert [f.outcome for f in first.lookup(digests([1]))] == [LEASE]


def test_a_page_mapped_twice_stays_until_both_mappings_are_gone(daemon: Daemon) -> None:
    with agents(daemon.socket, 1) as (one,):
        one.run(keep_lookup, [1])
        [(page_id, _)] = one.run(publish_first, [1])
        assert one.run(load, [1])["attached"] == [1]
        one.detached([page_id])
        assert [f.outcome for f in one.lookup(digests([1]))] == [HIT]
        one.detached([page_id], reason=lib.GKSM_DETACH_DECLINED)
        one.detached([page_id])
        eventually(lambda: daemon.pages() == 0, "the end of the page")


def test_the_same_page_twice_in_one_batch_does_not_wait_for_itself(daemon: Daemon) -> None:
    with agents(daemon.socket, 1) as (one,):
        assert one.run(keep_lookup, [1, 1]) == [LEASE, PENDING]
        assert one.run(load_kept, [1]) == ["1"]


def load_kept(state: Any, numbers: Sequence[int]) -> list[Any]:
    """Publish one's own first, then wait."""
    publish(state, [f for f in state.found if f.outcome == LEASE], numbers)
    return wait_kept(state)


def test_two_instances_that_wait_for_each_others_pages_both_finish(daemon: Daemon) -> None:
    with agents(daemon.socket, 2) as (first, second):
        assert first.run(keep_lookup, [1]) == [LEASE]
        assert second.run(keep_lookup, [2]) == [LEASE]
        first_lease, second_lease = first.run(kept), second.run(kept)
        assert first.run(keep_lookup, [2]) == [PENDING]
        assert second.run(keep_lookup, [1]) == [PENDING]
        first.run(publish, first_lease, [1])
        first.start(wait_kept)
        second.run(publish, second_lease, [2])
        assert second.run(wait_kept) == ["1"]
        assert first.answer() == ["2"]


def kept(state: Any) -> list[Any]:
    return state.found


def test_waiters_that_get_leases_are_sent_to_work_instead_of_waiting_for_each_other(
    daemon: Daemon,
) -> None:
    """Both loaders die; each waiter gets one lease and waits for the other's page."""
    with agents(daemon.socket, 4) as (loader, other, first, second):
        loader.run(keep_lookup, [1])
        other.run(keep_lookup, [2])
        assert first.run(keep_lookup, [1, 2]) == [PENDING] * 2
        assert second.run(keep_lookup, [2, 1]) == [PENDING] * 2
        first.run(begin_wait)
        second.run(begin_wait)
        loader.kill()
        assert first.run(end_wait) == [LEASE, PENDING]
        other.kill()
        assert second.run(end_wait) == [LEASE, PENDING]


def begin_wait(state: Any) -> None:
    """Send a WAIT and make sure that gksmd has taken it up."""
    tickets = [f.token for f in state.found if f.outcome == PENDING]
    state.seq = state.client.start_wait(tickets, 20_000)
    state.client.commit(0, 0)  # requests of one connection are taken up in order


def end_wait(state: Any) -> list[int]:
    return [f.outcome for f in state.client.results(state.seq)]


def test_a_lease_that_lapses_goes_to_exactly_one_waiter() -> None:
    with Daemon(config=SHORT_LEASE) as daemon, agents(daemon.socket, 4) as four:
        silent, *waiters = four
        assert silent.run(keep_lookup, [1]) == [LEASE]
        for waiter in waiters:
            assert waiter.run(keep_lookup, [1]) == [PENDING]
            waiter.start(finish_kept, [1])
        outcomes = sorted(str(waiter.answer()) for waiter in waiters)
        assert outcomes == ["1", "1", "published"]


def finish_kept(state: Any, numbers: Sequence[int]) -> str:
    """Wait; become the loader if told to, at once."""
    [found] = state.client.wait([f.token for f in state.found], 20_000)
    if found.outcome == HIT:
        return take([found])[0]
    assert found.outcome == LEASE, found
    [(_, status)] = publish(state, [found], numbers)
    assert status == 0
    return "published"


def test_a_late_publish_with_an_old_token_is_refused() -> None:
    with Daemon(config=SHORT_LEASE) as daemon, agents(daemon.socket, 2) as (late, prompt):
        late.run(keep_lookup, [1])
        prompt.run(keep_lookup, [1])
        assert prompt.run(finish_kept, [1]) == "published"
        assert late.run(publish_kept, [1]) == [-116]
        assert daemon.pages() == 1


def test_a_publish_of_another_page_than_the_leases_is_refused(daemon: Daemon) -> None:
    with agents(daemon.socket, 1) as (liar,):
        liar.run(keep_lookup, [1])
        assert liar.run(publish_kept, [2]) == [-116]
        assert daemon.pages() == 0


def test_a_dropped_lease_goes_to_the_next_at_once(daemon: Daemon) -> None:
    with agents(daemon.socket, 2) as (first, second):
        first.run(keep_lookup, [1])
        second.run(keep_lookup, [1])
        second.start(finish_kept, [1])
        first.lease_drop([f.token for f in first.run(kept)])
        assert second.answer() == "published"
        assert daemon.pages() == 1


def test_a_loader_that_dies_hands_its_pages_to_the_next(daemon: Daemon) -> None:
    with agents(daemon.socket, 2) as (first, second):
        first.run(keep_lookup, [1])
        second.run(keep_lookup, [1])
        second.start(finish_kept, [1])
        first.kill()
        assert second.answer() == "published"
        assert daemon.pages() == 1


def test_waiting_is_bounded_for_a_loader_that_never_publishes(daemon: Daemon) -> None:
    with agents(daemon.socket, 2) as (silent, other):
        silent.run(keep_lookup, [1])
        other.run(keep_lookup, [1])
        started = time.monotonic()
        assert other.run(wait_kept, 100) == [EXPIRED]
        assert time.monotonic() - started >= 0.1
        assert other.run(wait_kept, 100) == [EXPIRED]  # the ticket is spent


def test_a_wait_answers_each_page_as_it_comes(daemon: Daemon) -> None:
    with agents(daemon.socket, 2) as (loader, other):
        loader.run(keep_lookup, [1, 2])
        other.run(keep_lookup, [1, 2])
        other.start(first_answer)
        leases = loader.run(kept)
        loader.run(publish, leases[:1], [1])
        assert other.answer() == ["1"]
        loader.run(publish, leases[1:], [2])
        assert other.run(next_answer) == ["2"]


def first_answer(state: Any) -> list[str]:
    state.seq = state.client.start_wait([f.token for f in state.found], 20_000)
    return next_answer(state)


def next_answer(state: Any) -> list[str]:
    message = state.client.receive()
    assert message.seq == state.seq
    return [os.pread(fd, 64, 0).decode() for fd in message.fds]


def test_off_and_on_reach_connected_and_later_processes(daemon: Daemon) -> None:
    with agents(daemon.socket, 2) as (loader, one):
        loader.run(keep_lookup, [7])
        one.run(keep_lookup, [7])
        one.run(begin_wait)
        daemon.ask("admin", op="set_sharing", sharing="off", reason="maintenance")
        assert one.run(end_wait) == [REFUSED]
        assert one.run(next_control) == (lib.GKSM_CONTROL_PAUSE, "maintenance")
        assert [f.outcome for f in one.lookup(digests([1]))] == [REFUSED]
        with Agent(daemon.socket) as later:
            assert later.run(next_control)[0] == lib.GKSM_CONTROL_PAUSE
            daemon.ask("admin", op="set_sharing", sharing="unshared", reason="now")
            assert later.run(next_control) == (lib.GKSM_CONTROL_UNSHARE, "now")
            daemon.ask("admin", op="set_sharing", sharing="on")
            assert later.run(next_control)[0] == lib.GKSM_CONTROL_RESUME
            assert later.run(load, [1])["published"] == [1]


def next_control(state: Any) -> tuple[int, str]:
    control = state.client.control()
    return control.action, text(control.reason)


def test_invariant_6_everything_counted_returns_to_zero() -> None:
    with Daemon() as daemon:
        with agents(daemon.socket, 1) as (warm_up,):
            warm_up.run(load, [1])
        eventually(lambda: not daemon.ask("status", op="status")["instances"], "its end")
        eventually(lambda: daemon.pages() == 0, "the end of its page")
        gksmd, vault = settled(daemon.gksmd_fds), settled(daemon.vault_fds)
        with agents(daemon.socket, 3) as (first, second, third):
            first.run(load, range(100))
            second.run(load, range(200))
            third.run(keep_lookup, range(300))
            second.run(keep_lookup, range(250, 300))
            second.start(wait_kept)
        eventually(lambda: daemon.pages() == 0, "the end of all pages")
        status = daemon.ask("status", op="status")
        assert status["gpus"] == status["instances"] == []
        eventually(lambda: daemon.gksmd_fds() == gksmd, "the end of gksmd's descriptors")
        eventually(lambda: daemon.vault_fds() == vault, "the end of the vault's descriptors")


def test_reconnecting_costs_nothing_but_leases(daemon: Daemon) -> None:
    with agents(daemon.socket, 2) as (one, other):
        one.run(keep_lookup, [1, 2])
        leases = one.run(kept)
        [(page_id, _)] = one.run(publish, leases[:1], [1])
        one.run(connect, daemon.socket)
        assert [f.outcome for f in other.lookup(digests([2]))] == [LEASE]
        assert one.run(publish, leases[1:], [2]) == [(0, -116)]
        assert one.announce([(page_id, digest(1), 1)]) == [0]
        assert other.run(load, [1])["attached"] == [1]
