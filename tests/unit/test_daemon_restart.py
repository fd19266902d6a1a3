# SPDX-License-Identifier: Apache-2.0
"""gksmd and the vault killed with -9 at any moment; they come back and sharing resumes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from gksmd import protocol
from gksmd.protocol import lib

from tests.support.agents import (
    HIT,
    LEASE,
    PENDING,
    Agent,
    Daemon,
    agents,
    connect,
    digest,
    digests,
    eventually,
    load,
    page_fd,
    publish,
    take,
)

SHORT_GRACE = "grace.announce_ms = 700"


def publish_new(state: Any, numbers: Sequence[int]) -> list[tuple[int, bytes, int]]:
    """Load pages that nobody has; what to announce for each."""
    found = state.client.lookup(digests(numbers))
    assert {f.outcome for f in found} == {LEASE}
    results = publish(state, found, numbers)
    assert {status for _, status in results} == {0}
    return [(page_id, digest(n), 1) for (page_id, _), n in zip(results, numbers, strict=True)]


def attach(state: Any, numbers: Sequence[int]) -> list[tuple[int, bytes, int]]:
    """Attach pages that somebody has; what to announce for each."""
    found = state.client.lookup(digests(numbers))
    assert take(found) == [str(n) for n in numbers]
    state.client.attached(f.page_id for f in found)
    return [(f.page_id, digest(n), 1) for f, n in zip(found, numbers, strict=True)]


def connect_when_back(state: Any, path: Path) -> None:
    def attempt() -> bool:
        try:
            connect(state, path)
        except OSError:
            return False
        return True

    eventually(attempt, "gksmd's return")


def test_invariant_4_pages_survive_gksmd_and_are_shared_with_newcomers() -> None:
    with Daemon(config=SHORT_GRACE) as daemon, agents(daemon.socket, 2) as (first, second):
        pages = first.run(publish_new, [1, 2, 3])
        mapped = second.run(attach, [1, 2])
        daemon.kill_gksmd()
        daemon.start()
        for agent, announced in ((first, pages), (second, mapped)):
            agent.run(connect_when_back, daemon.socket)
            assert agent.announce(announced) == [0] * len(announced)
        with agents(daemon.socket, 1) as (newcomer,):
            assert newcomer.run(load, [1, 2, 3])["attached"] == [1, 2, 3]
        [gpu] = daemon.ask("status", op="status")["gpus"]
        assert gpu["pages_shared"] == 3
        first.kill()
        second.kill()
        eventually(lambda: daemon.pages() == 0, "the end of the pages")


def test_invariant_4_the_daemon_epoch_changes_with_a_restart() -> None:
    with Daemon() as daemon, agents(daemon.socket, 1) as (one,):
        before = one.run(epoch)
        daemon.kill_gksmd()
        daemon.start()
        one.run(connect_when_back, daemon.socket)
        assert one.run(epoch) != before


def epoch(state: Any) -> int:
    return int(state.client.welcome.daemon_epoch)


def test_pages_that_nobody_announces_after_a_restart_are_dropped() -> None:
    with Daemon(config=SHORT_GRACE) as daemon, agents(daemon.socket, 2) as (first, second):
        first.run(publish_new, [1, 2])
        pages = second.run(publish_new, [3])
        daemon.kill_gksmd()
        first.kill()
        daemon.start()
        second.run(connect_when_back, daemon.socket)
        second.announce(pages)
        eventually(lambda: daemon.pages() == 1, "the end of the orphans")
        assert second.run(load, [3])["attached"] == [3]


def test_pages_that_a_living_process_does_not_announce_again_are_dropped() -> None:
    with Daemon(config=SHORT_GRACE) as daemon, agents(daemon.socket, 1) as (one,):
        pages = one.run(publish_new, [1, 2])
        one.run(connect, daemon.socket)
        assert one.announce(pages[:1]) == [0]
        eventually(lambda: daemon.pages() == 1, "the end of the page that is not announced")
        time.sleep(0.8)
        assert daemon.pages() == 1


def test_losing_the_connection_alone_loses_no_page() -> None:
    with Daemon(config=SHORT_GRACE) as daemon, agents(daemon.socket, 1) as (one,):
        one.run(publish_new, [1])
        one.close()
        time.sleep(1.0)
        assert daemon.pages() == 1
        with agents(daemon.socket, 1) as (other,):
            assert other.run(load, [1])["attached"] == [1]


def test_a_lease_from_before_a_restart_is_stale() -> None:
    with Daemon() as daemon, agents(daemon.socket, 1) as (one,):
        one.run(keep_lease, [1])
        daemon.kill_gksmd()
        daemon.start()
        one.run(connect_when_back, daemon.socket)
        assert one.run(publish_kept, [1]) == [-116]
        assert one.run(load, [1])["published"] == [1]


def keep_lease(state: Any, numbers: Sequence[int]) -> None:
    state.found = state.client.lookup(digests(numbers))
    assert {f.outcome for f in state.found} == {LEASE}


def publish_kept(state: Any, numbers: Sequence[int]) -> list[int]:
    return [status for _, status in publish(state, state.found, numbers)]


def test_invariant_4_a_killed_vault_takes_no_sharer_with_it() -> None:
    with Daemon() as daemon, agents(daemon.socket, 3) as (first, second, third):
        pages = first.run(publish_new, [1, 2])
        second.run(attach, [1, 2])
        daemon.kill_vault()
        daemon.start_vault()
        # New loads publish anew; those who map the old copies go on with them.
        anew = eventually(lambda: third.run(load_published, [1, 2]), "sharing to resume")
        assert anew == [1, 2]
        assert second.run(load, [1, 2])["attached"] == [1, 2]
        assert first.announce(pages) == [-2, -2]
        [gpu] = daemon.ask("status", op="status")["gpus"]
        assert gpu["pages_shared"] == 4
        for agent in (first, second, third):
            agent.kill()
        eventually(lambda: daemon.pages() == 0, "the end of the pages")
        eventually(lambda: not daemon.ask("status", op="status")["gpus"], "the end of the counts")


def load_published(state: Any, numbers: Sequence[int]) -> list[int]:
    return load(state, numbers)["published"]


def test_look_ups_while_the_vault_is_away_are_refused_and_not_left_waiting() -> None:
    with Daemon() as daemon, agents(daemon.socket, 2) as (first, second):
        first.run(publish_new, [1])
        daemon.kill_vault()
        eventually(lambda: not daemon.ask("admin", op="info")["vault_up"], "the loss of the vault")
        [found] = second.lookup(digests([1]))
        assert found.outcome == lib.GKSM_LOOKUP_REFUSED
        assert found.reason == lib.GKSM_UNSHARED_DAEMON


def test_a_page_whose_fate_at_the_vault_is_unknown_counts_as_published_and_is_given_to_nobody() -> (
    None
):
    """Its publisher must not take it for private: a later gksmd might find it."""
    with Daemon() as daemon, agents(daemon.socket, 2) as (first, second):
        first.run(keep_lease, [1])
        os.kill(daemon.vault_pid, signal.SIGSTOP)
        first.start(publish_kept, [1])
        eventually(lambda: daemon.gksmd_fds("memfd:page") == 0, "the descriptor's passing on")
        time.sleep(0.2)
        daemon.kill_vault()
        assert first.answer() == [0]
        daemon.start_vault()
        eventually(lambda: daemon.ask("admin", op="info")["vault_up"], "the vault's return")
        assert second.run(load, [1])["published"] == [1]


def test_a_frozen_vault_is_given_up_and_taken_back_when_it_runs_again() -> None:
    with Daemon() as daemon, agents(daemon.socket, 2) as (first, second):
        first.run(publish_new, [1])
        os.kill(daemon.vault_pid, signal.SIGSTOP)
        [found] = second.lookup(digests([1]))
        assert found.outcome == lib.GKSM_LOOKUP_REFUSED
        assert second.commit(1, 1 << 33) == 0
        os.kill(daemon.vault_pid, signal.SIGCONT)
        eventually(lambda: daemon.ask("admin", op="info")["vault_up"], "the vault's return")
        assert second.run(load, [1])["attached"] == [1]


def test_invariant_4_both_killed_at_once_and_sharing_resumes() -> None:
    with Daemon() as daemon, agents(daemon.socket, 2) as (first, second):
        pages = first.run(publish_new, [1])
        daemon.kill_gksmd()
        daemon.kill_vault()
        daemon.start()
        first.run(connect_when_back, daemon.socket)
        assert first.announce(pages) == [-2]
        second.run(connect_when_back, daemon.socket)
        assert second.run(load, [1])["published"] == [1]
        [gpu] = daemon.ask("status", op="status")["gpus"]
        assert gpu["pages_shared"] == 2


def step_nothing(state: Any) -> None:
    pass


def step_lease(state: Any) -> None:
    keep_lease(state, [50])


def step_publish(state: Any) -> None:
    keep_lease(state, [50])
    entry = protocol.PUBLISH_ENTRY.pack(state.found[0].token, digest(50), 0, 0)
    fd = page_fd(50)
    state.client.send(
        lib.GKSM_PUBLISH, head=bytes(8), entries=entry, entry_bytes=len(entry), fds=[fd]
    )
    os.close(fd)


def step_grant(state: Any) -> None:
    found = state.client.lookup(digests([1]))
    assert [f.outcome for f in found] == [HIT]


def step_segment(state: Any) -> None:
    status, state.segment, _ = state.client.segment_get(2)
    assert status == 0


def step_sealed(state: Any) -> None:
    step_segment(state)
    state.client.segment_seal(state.segment)


def step_wait(state: Any) -> None:
    found = state.client.lookup(digests([60]))
    assert [f.outcome for f in found] == [PENDING]
    state.client.start_wait([found[0].token], 20_000)


STEPS = [
    step_nothing,
    step_lease,
    step_publish,
    step_grant,
    step_segment,
    step_sealed,
    step_wait,
]


@pytest.fixture(scope="module")
def mortal() -> Iterator[Daemon]:
    """Both of its processes may be killed, if they are started again."""
    with Daemon(config=SHORT_GRACE) as daemon:
        yield daemon


@pytest.mark.parametrize("killed", ["gksmd", "vault"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_invariant_4_killed_at_any_step_sharing_resumes(
    mortal: Daemon, killed: str, step: Callable[[Any], None]
) -> None:
    daemon = mortal
    with agents(daemon.socket, 3) as (holder, one, loader):
        pages = holder.run(publish_new, [1])
        loader.run(keep_lease, [60])
        one.run(step)
        if killed == "gksmd":
            daemon.kill_gksmd()
        else:
            daemon.kill_vault()
        daemon.start()
        one.run(connect_when_back, daemon.socket)
        holder.run(connect_when_back, daemon.socket)
        loader.run(connect_when_back, daemon.socket)
        status = holder.announce(pages)
        assert status in ([0], [-2])
        eventually(lambda: daemon.ask("admin", op="info")["vault_up"], "the vault's return")
        done = one.run(load, [1, 50, 60])
        assert sorted(done["attached"] + done["published"]) == [1, 50, 60]
        done = loader.run(load, [1, 50, 60])
        assert done["attached"] == [1, 50, 60]
        for agent in (holder, one, loader):
            agent.kill()
        eventually(lambda: daemon.pages() == 0, "the end of all pages")
        eventually(lambda: daemon.gksmd_fds("memfd:") == 0, "the end of host copies")


def test_a_vault_that_gksmd_started_outlives_it_and_ends_when_it_is_not_needed() -> None:
    with Daemon(vault="spawn", config=SHORT_GRACE) as daemon:
        with agents(daemon.socket, 1) as (one,):
            pages = one.run(publish_new, [1])
            vault = daemon.vault_pid
            daemon.kill_gksmd()
            assert daemon.vault_pid == vault
            daemon.start()
            one.run(connect_when_back, daemon.socket)
            assert one.announce(pages) == [0]
            assert daemon.vault_pid == vault
        eventually(lambda: daemon.pages() == 0, "the end of the pages")
        assert daemon.gksmd is not None
        daemon.gksmd.terminate()
        assert daemon.gksmd.wait(30) == 0
        eventually(lambda: not Path(f"/proc/{vault}/fd").exists(), "the end of the vault")


def test_a_vault_that_was_killed_is_started_again() -> None:
    with Daemon(vault="spawn") as daemon, agents(daemon.socket, 1) as (one,):
        one.run(publish_new, [1])
        os.kill(daemon.vault_pid, 9)
        eventually(
            lambda: one.run(load_published, [2]) == [2] or one.run(load, [2])["attached"] == [2],
            "sharing to resume",
        )


def test_a_second_gksmd_in_the_same_place_is_refused() -> None:
    with Daemon() as daemon, Agent(daemon.socket) as one:
        second = daemon._run(
            "gksmd.main", "--config-dir", str(daemon.config_dir), "--run-dir", str(daemon.run_dir)
        )
        assert second.wait(30) == 1
        assert "another gksmd serves" in daemon.log()
        assert one.run(load, [1])["published"] == [1]


def test_containers_keep_their_socket_and_domain_across_a_restart() -> None:
    with Daemon() as daemon:
        path = daemon.prepare("box")
        with Agent(path) as one:
            pages = one.run(publish_new, [1])
            daemon.kill_gksmd()
            daemon.start()
            one.run(connect_when_back, path)
            assert one.announce(pages) == [0]
            with Agent(path) as two, Agent(daemon.socket) as outside:
                assert two.run(load, [1])["attached"] == [1]
                assert outside.run(load, [1])["published"] == [1]
