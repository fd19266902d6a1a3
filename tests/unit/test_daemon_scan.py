# SPDX-License-Identifier: Apache-2.0
"""Offers of stable pages: who is noted, who publishes, and who is told."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
from gksmd.protocol import lib

from tests.support.agents import (
    HIT,
    LEASE,
    PENDING,
    REFUSED,
    Agent,
    Daemon,
    agents,
    digest,
    eventually,
    load,
    publish,
)

NOTED: int = lib.GKSM_LOOKUP_NOTED
SCANS: int = 3 | lib.GKSM_FEATURE_SCAN
KV = 1


@pytest.fixture
def daemon() -> Any:
    with Daemon() as running:
        yield running


def offer(state: Any, numbers: Sequence[int], twin: bool = False, kind: int = 0) -> list[int]:
    """The outcomes; what was found is kept for `publish_offered`, descriptors are closed."""
    state.found = state.client.offer([(digest(n), twin) for n in numbers], kind=kind)
    for found in state.found:
        if found.outcome == HIT:
            os.close(found.fd)
            state.client.attached([found.page_id])
    return [found.outcome for found in state.found]


def publish_offered(state: Any, numbers: Sequence[int]) -> list[int]:
    leases = [found for found in state.found if found.outcome == LEASE]
    return [status for _, status in publish(state, leases, numbers)]


def next_order(state: Any) -> int:
    action: int = state.client.control().action
    return action


def test_the_second_who_offers_a_page_publishes_it_and_the_first_is_told(daemon: Daemon) -> None:
    with agents(daemon.socket, 2, features=SCANS) as (first, second):
        assert first.run(offer, [1, 2]) == [NOTED, NOTED]
        assert second.run(offer, [1, 3]) == [LEASE, NOTED]
        assert second.run(publish_offered, [1]) == [0]
        assert first.run(next_order) == lib.GKSM_CONTROL_OFFER_AGAIN
        assert first.run(offer, [1, 2]) == [HIT, NOTED]
        (gpu,) = daemon.ask("status", op="status")["gpus"]
        assert (gpu["pages_shared"], gpu["pages_sharing"]) == (1, 1)


def test_one_with_two_equal_pages_publishes_at_once(daemon: Daemon) -> None:
    with agents(daemon.socket, 1, features=SCANS) as (alone,):
        assert alone.run(offer, [1, 1], True) == [LEASE, PENDING]
        assert alone.run(publish_offered, [1]) == [0]
        assert alone.run(offer, [1], True) == [HIT]


def test_who_was_loaded_before_is_found(daemon: Daemon) -> None:
    with agents(daemon.socket, 2, features=SCANS) as (loader, late):
        assert loader.run(load, [5])["published"] == [5]
        assert late.run(offer, [5]) == [HIT]


def test_a_load_of_a_noted_page_tells_its_holder(daemon: Daemon) -> None:
    with agents(daemon.socket, 2, features=SCANS) as (holder, loader):
        assert holder.run(offer, [6]) == [NOTED]
        assert loader.run(load, [6])["published"] == [6]
        assert holder.run(next_order) == lib.GKSM_CONTROL_OFFER_AGAIN


def test_what_a_dead_process_had_counts_no_more(daemon: Daemon) -> None:
    with agents(daemon.socket, 2, features=SCANS) as (dead, living):
        assert dead.run(offer, [7]) == [NOTED]
        dead.kill()
        eventually(lambda: len(daemon.ask("status", op="ps")) == 1, "its end")
        assert living.run(offer, [7]) == [NOTED]


def test_a_lapsed_lease_leaves_the_page_to_the_next_who_offers(daemon: Daemon) -> None:
    with agents(daemon.socket, 3, features=SCANS) as (first, hanging, third):
        assert first.run(offer, [8]) == [NOTED]
        assert hanging.run(offer, [8]) == [LEASE]
        assert third.run(offer, [8]) == [PENDING]
        hanging.kill()
        eventually(lambda: third.run(offer, [8]) == [LEASE], "the lease")


def test_no_candidate_is_seen_across_domains() -> None:
    # Without a rule each process is in a domain of its own.
    with Daemon(domains={}) as apart, agents(apart.socket, 2, features=SCANS) as (one, other):
        assert one.run(offer, [9]) == [NOTED]
        assert other.run(offer, [9]) == [NOTED]


def test_a_kind_that_the_domain_does_not_share_is_refused(daemon: Daemon) -> None:
    with agents(daemon.socket, 1, features=SCANS) as (one,):
        assert one.run(offer, [10], False, KV) == [REFUSED]


def test_nothing_is_offered_while_sharing_is_off(daemon: Daemon) -> None:
    with agents(daemon.socket, 1, features=SCANS) as (one,):
        daemon.ask("admin", op="set_sharing", sharing="off")
        assert one.run(offer, [11]) == [REFUSED]


def scan_terms(state: Any) -> tuple[int, ...] | None:
    """The last settings that came with an answer."""
    state.client.lookup([digest(12345)])
    terms = state.client.scan_terms
    return terms and (terms.run, terms.interval_ms, terms.stable_hashes, terms.zero_pages)


def test_settings_reach_who_can_scan_and_nobody_else(daemon: Daemon) -> None:
    with Agent(daemon.socket, features=SCANS) as able, Agent(daemon.socket, features=3) as old:
        assert able.run(scan_terms) == (1, 1000, 3, 0)
        answer = daemon.ask("admin", op="set_scan", run=False, stable_hashes=7)
        assert answer["instances"] == 1
        assert able.run(scan_terms) == (0, 1000, 7, 0)
        assert old.run(scan_terms) is None


def test_an_interval_above_its_maximum_is_refused(daemon: Daemon) -> None:
    with pytest.raises(AssertionError, match="set both"):
        daemon.ask("admin", op="set_scan", interval_ms=20_000)


def test_a_pass_that_is_not_made_in_time_is_said(daemon: Daemon) -> None:
    with Agent(daemon.socket, features=SCANS) as deaf:
        answer = daemon.ask("admin", op="scan_now", passes=1, wait_s=0.3)
        assert answer["late"] == [deaf.pid]


def test_what_does_not_scan_holds_up_no_pass(daemon: Daemon) -> None:
    with Agent(daemon.socket, features=3):
        assert daemon.ask("admin", op="scan_now", passes=2)["late"] == []
