# SPDX-License-Identifier: Apache-2.0
"""Limits of one container, process or domain: reached by one, they cost nobody else."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from gksmd import protocol
from gksmd.client import Client
from gksmd.config import Config, Quota, Quotas
from gksmd.counts import QuotaUse
from gksmd.domains import Decision, Domain
from gksmd.model import DomainState, Identity, Process
from gksmd.protocol import lib
from gksmd.quota import Quotas as Applied

from tests.support.agents import (
    Agent,
    Daemon,
    agents,
    digests,
    eventually,
    load,
    publish,
)

GIB = 1 << 30


def process(domain: DomainState) -> Process:
    identity = Identity(1, 1, 0, 0, None, "", "test", "pidfd")
    return Process(identity, -1, domain, Decision(Domain("d"), ""), QuotaUse(), 0.0)


def test_promises_of_a_process_end_with_it(daemon: Daemon) -> None:
    with agents(daemon.socket, 2) as (one, other):
        assert one.commit(400, 4 * GIB) == 0
        assert other.commit(900, 4 * GIB) == -errno.ENOMEM
        one.kill()
        eventually(lambda: other.commit(900, 4 * GIB) == 0, "the promise's return")


def test_look_ups_beyond_the_rate_wait_and_then_are_refused() -> None:
    config = Config(quota=Quotas(container=Quota(lookups_per_second=1000), domain=Quota()))
    quotas, one = Applied(config), process(DomainState("d"))
    assert quotas.lookup_wait(one, 1000, 5.0) == 0.0
    assert quotas.lookup_wait(one, 500, 5.0) == 0.5
    assert quotas.lookup_wait(one, 600, 5.0) < 0
    assert one.usage.refused == {"lookups_per_second": 1}
    assert quotas.lookup_wait(one, 500, 6.0) == 0.0


def test_what_one_process_spends_another_of_its_domain_still_has() -> None:
    config = Config(quota=Quotas(container=Quota(lookups_per_second=100), domain=Quota()))
    quotas, domain = Applied(config), DomainState("d")
    one, other = process(domain), process(domain)
    assert quotas.lookup_wait(one, 100, 5.0) == 0.0
    assert quotas.lookup_wait(one, 100, 5.0) > 0.0
    assert quotas.lookup_wait(other, 100, 5.0) == 0.0


def test_requests_beyond_what_may_be_in_flight_wait_for_room() -> None:
    config = Config(quota=Quotas(container=Quota(bytes_in_flight=100), domain=Quota()))
    quotas, one = Applied(config), process(DomainState("d"))
    assert quotas.room_in_flight(one, 1000)  # alone, even a large one is served
    quotas.count_in_flight(one, 60)
    assert quotas.room_in_flight(one, 40)
    assert not quotas.room_in_flight(one, 41)
    quotas.count_in_flight(one, -60)
    assert quotas.room_in_flight(one, 41)


def test_little_room_in_flight_makes_a_container_slow_and_not_wrong() -> None:
    with Daemon(config="quota.container.bytes_in_flight = 1000") as daemon:
        path = daemon.prepare("narrow")
        with agents(path, 3) as three:
            for agent in three:
                agent.start(load, list(range(1, 201)))
            done = [agent.answer() for agent in three]
        assert sum(len(one["published"]) for one in done) == 200
        assert sum(len(one["attached"]) for one in done) == 400


def test_pages_beyond_the_quota_stay_private_and_the_next_may_load_them() -> None:
    with (
        Daemon(config="quota.container.published_pages = 3") as daemon,
        agents(daemon.socket, 2) as (greedy, other),
    ):
        done = greedy.run(load, [1, 2, 3, 4, 5])
        assert (done["published"], done["private"]) == ([1, 2, 3], [4, 5])
        done = other.run(load, [1, 4, 5])
        assert done == {"attached": [1], "published": [4, 5], "private": []}
        greedy.kill()
        other.kill()
        eventually(lambda: daemon.pages() == 0, "the end of the pages")


def test_pages_beyond_the_domains_budget_stay_private() -> None:
    rules = f'[[domain]]\nname = "d"\nmatch = ["uid={os.getuid()}"]\nbudget = "4M"\n'
    with Daemon(domains={"d": rules}) as daemon, agents(daemon.socket, 1) as (one,):
        assert one.run(load_one_by_one, [1, 2, 3]) == [1, 2]
        assert daemon.pages() == 2


def load_one_by_one(state: Any, numbers: list[int]) -> list[int]:
    return [n for n in numbers if load(state, [n])["published"]]


def test_connections_beyond_the_quota_are_told_and_others_are_served() -> None:
    with Daemon(config="quota.container.connections = 2") as daemon:
        box, other_box = daemon.prepare("full"), daemon.prepare("other")
        with Agent(box) as one, Agent(box), Agent() as third, Agent(other_box) as elsewhere:
            assert "connections" in third.run(turned_away, box)
            assert one.run(load, [1])["published"] == [1]
            assert elsewhere.run(load, [1])["published"] == [1]
            one.kill()
            eventually(lambda: not third.run(turned_away, box), "a place")


def turned_away(state: Any, path: Path) -> str:
    """Why a connection is refused; "" if it is not."""
    with Client(path) as client:
        client.sock.settimeout(0.3)
        try:
            message = client.receive()
        except TimeoutError:
            return ""
        return protocol.text(protocol.WELCOME.read(message.head).reason)


def test_a_peer_of_another_uid_is_told_why_it_is_not_served() -> None:
    with Daemon(config="bare.uids = [12345]") as daemon, Agent() as one:
        assert "bare.uids" in one.run(turned_away, daemon.socket)


def test_a_peer_that_spoke_before_it_was_refused_hears_why() -> None:
    with Daemon(config="bare.uids = [12345]") as daemon, Agent() as one:
        os.kill(daemon.gksmd_pid, signal.SIGSTOP)
        try:
            one.run(speak_first, daemon.socket)
        finally:
            os.kill(daemon.gksmd_pid, signal.SIGCONT)
        assert "bare.uids" in one.run(hear)


def speak_first(state: Any, path: Path) -> None:
    """Connect and say much, as if gksmd had accepted already."""
    state.client = Client(path)
    head = protocol.HELLO.build(protocol_min=1, protocol_max=1)
    for _ in range(5):
        state.client.send(lib.GKSM_HELLO, head=head)


def hear(state: Any) -> str:
    """What came as the first answer."""
    return protocol.text(protocol.WELCOME.read(state.client.receive().head).reason)


def test_a_flood_of_look_ups_leaves_others_served(daemon: Daemon) -> None:
    with agents(daemon.socket, 5) as (victim, *flooders):
        for flooder in flooders:
            flooder.start(flood, 2.0)
        for number in range(100, 120):
            assert victim.run(load, [number])["published"] == [number]
        assert all(flooder.answer() > 0 for flooder in flooders)


def flood(state: Any, seconds: float) -> int:
    """Look up as fast as answers come."""
    deadline = time.monotonic() + seconds
    rounds = 0
    while time.monotonic() < deadline:
        found = state.client.lookup(digests(range(10_000, 10_512)))
        state.client.lease_drop([f.token for f in found if f.outcome == lib.GKSM_LOOKUP_LEASE])
        rounds += 1
    return rounds


def test_a_full_descriptor_table_refuses_politely_and_goes_on() -> None:
    with Daemon(fd_limit=64) as daemon, agents(daemon.socket, 1) as (early,):
        assert early.run(load, [1])["published"] == [1]
        crowd: list[Agent] = []
        try:
            reason = ""
            while not reason and len(crowd) < 64:
                crowd.append(Agent())
                reason = crowd[-1].run(stay, daemon.socket)
            assert "descriptor" in reason
            # 240 descriptors do not fit: the publication fails, the connection does not.
            statuses = {s for _, s in early.run(publish_many, list(range(2, 242)))}
            assert statuses <= {0, -errno.EMFILE}
            assert statuses == {-errno.EMFILE}
        finally:
            for agent in crowd:
                agent.__exit__()
        eventually(lambda: early.run(load, [300])["published"] == [300], "service")
        with agents(daemon.socket, 1) as (late,):
            assert late.run(load, [1])["attached"] == [1]


def stay(state: Any, path: Path) -> str:
    """Connect and stay; why it was refused, if it was."""
    state.client = Client(path)
    message = state.client.hello()
    return protocol.text(protocol.WELCOME.read(message.head).reason) if message.status else ""


def publish_many(state: Any, numbers: list[int]) -> list[tuple[int, int]]:
    found = state.client.lookup(digests(numbers))
    return publish(state, found, numbers)


def test_leases_that_are_never_used_are_bounded(daemon: Daemon) -> None:
    with agents(daemon.socket, 2) as (hoarder, other):
        outcomes = hoarder.run(hoard, 20_000)
        assert outcomes == {lib.GKSM_LOOKUP_LEASE: 8192, lib.GKSM_LOOKUP_REFUSED: 20_000 - 8192}
        assert other.run(load, [30_000])["published"] == [30_000]


def hoard(state: Any, count: int) -> Counter[int]:
    return Counter(
        found.outcome
        for first in range(0, count, 500)
        for found in state.client.lookup(digests(range(first, first + 500)))
    )


def test_everything_a_quota_counted_is_given_back(daemon: Daemon) -> None:
    for _ in range(3):
        with agents(daemon.socket, 4) as four:
            for agent in four:
                agent.run(load, list(range(1, 101)))
        eventually(lambda: daemon.pages() == 0, "the end of the pages")
    eventually(lambda: daemon.ask("status", op="status")["domains"] == [], "the end of the domain")
