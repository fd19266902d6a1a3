# SPDX-License-Identifier: Apache-2.0
"""libgksm's daemon link against a daemon that says exactly what a test tells it to."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from gksmd import protocol
from gksmd.protocol import lib
from gksmd.wire import close_all

from tests.support.scripted import (
    WIRE,
    Echo,
    LinkClient,
    ScriptedDaemon,
    Session,
    page_fd,
    page_ids,
    page_of,
    result,
)

HIT, LEASE, PENDING, REFUSED, EXPIRED = (
    lib.GKSM_LOOKUP_HIT,
    lib.GKSM_LOOKUP_LEASE,
    lib.GKSM_LOOKUP_PENDING,
    lib.GKSM_LOOKUP_REFUSED,
    lib.GKSM_LOOKUP_EXPIRED,
)
ENOENT, ENOMEM, EACCES, ESTALE, ENOTCONN, ETIMEDOUT, EMFILE = -2, -12, -13, -116, -107, -110, -24


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[ScriptedDaemon]:
    with ScriptedDaemon(tmp_path / "gksm.sock") as listening:
        yield listening


@pytest.fixture
def client(build: Path, tmp_path: Path, daemon: ScriptedDaemon) -> Iterator[LinkClient]:
    made = LinkClient(build, daemon.path, tmp_path / "client.log")
    try:
        yield made
        made.finish()
    finally:
        made.kill()


@pytest.fixture
def session(daemon: ScriptedDaemon, client: LinkClient) -> Session:
    """Up, with GPU 0 open."""
    client.start("wait 10000")
    made = daemon.up()
    assert client.answer() == "0 tenant"
    client.start("open 0")
    made.opened()
    assert client.answer() == f"0 {WIRE} 123"
    return made


def again(daemon: ScriptedDaemon, client: LinkClient) -> Session:
    """The client's next connection, up; GPU 0 is open again."""
    made = daemon.up(0)
    client.until("up", "1")
    return made


def test_without_a_socket_the_wait_ends_at_once(build: Path, tmp_path: Path) -> None:
    client = LinkClient(build, tmp_path / "nobody.sock", tmp_path / "client.log")
    assert client.ask("wait 10000").split()[0] == str(ENOTCONN)
    assert client.ask("lookup 0 1 1") == str(ENOTCONN)
    assert client.ask("open 0").split()[0] == str(ENOTCONN)
    assert client.ask("up") == "0"
    client.finish()


def test_a_daemon_that_says_nothing_holds_nobody_up(
    daemon: ScriptedDaemon, client: LinkClient
) -> None:
    silent = daemon.accept()
    assert client.ask("wait 100").split()[0] == str(ETIMEDOUT)
    assert client.ask("lookup 0 1 1") == str(ENOTCONN)
    silent.rest()
    daemon.up()
    client.until("up", "1")


def test_a_gpu_asked_for_while_down_is_opened_once_the_daemon_is_there(
    daemon: ScriptedDaemon, client: LinkClient
) -> None:
    early = daemon.accept()
    assert client.ask("open 0").split()[0] == str(ENOTCONN)
    early.welcome()
    assert early.opened() == WIRE
    client.events(f"opened:0:{WIRE}", "up:tenant")
    client.start("commit 0 1")
    message = early.next(lib.GKSM_COMMIT)
    early.say(lib.GKSM_COMMITTED, seq=message.seq)
    assert client.answer() == "0"


def test_each_page_gets_its_own_outcome_and_descriptor(
    client: LinkClient, session: Session
) -> None:
    client.start("lookup 0 100 5")
    message = session.next()
    assert protocol.LOOKUP.read(message.head).gpu == WIRE
    assert [row[0][:8] for row in protocol.LOOKUP_ENTRY.rows(message)] == [
        (100 + i).to_bytes(8, "little") for i in range(5)
    ]
    first = [result(4, HIT, 54), result(0, LEASE, token=70), result(2, HIT, 52)]
    session.looked_up(message.seq, first, [page_fd(54), page_fd(52)], more=True)
    session.looked_up(message.seq, [result(1, PENDING, token=71), result(3, REFUSED)])
    assert client.answer() == f"0 {LEASE}:70:0 {PENDING}:71:0 {HIT}:52:52 {REFUSED}:0:0 {HIT}:54:54"


def test_a_full_batch_of_hits_comes_in_as_many_packets_as_descriptors_need(
    client: LinkClient, session: Session
) -> None:
    before = client.ask("fds")
    client.start("lookup 0 1 512")
    seq = session.next().seq
    for at in range(0, 512, 200):
        pages = range(1 + at, 1 + min(at + 200, 512))
        session.hits(seq, pages, first=at, more=at < 400)
    assert client.answer() == "0 " + " ".join(f"{HIT}:{i}:{i}" for i in range(1, 513))
    assert client.ask("fds") == before


def test_tickets_come_as_they_resolve_and_the_rest_has_expired(
    client: LinkClient, session: Session
) -> None:
    client.start("tickets 0 500 7 8 9")
    message = session.next()
    assert message.type == lib.GKSM_WAIT
    assert protocol.WAIT.read(message.head).timeout_ms == 500
    assert [row[0] for row in protocol.WAIT_ENTRY.rows(message)] == [7, 8, 9]
    session.hits(message.seq, [50], first=1, more=True)
    session.looked_up(message.seq, [result(0, EXPIRED)])
    assert client.answer() == f"0 {EXPIRED}:0:0 {HIT}:50:50 {EXPIRED}:0:0"


def test_publishing_many_pages_sends_each_descriptor_once_and_in_order(
    client: LinkClient, session: Session
) -> None:
    client.start("publish 0 1000 500")
    sizes = []
    published: list[int] = []
    while len(published) < 500:
        message = session.next()
        assert message.type == lib.GKSM_PUBLISH
        tokens = [row[0] for row in protocol.PUBLISH_ENTRY.rows(message)]
        assert [page_of(fd) for fd in message.fds] == tokens
        close_all(message.fds)
        sizes.append(len(tokens))
        published += tokens
        entries = [
            protocol.PUBLISH_RESULT.build(
                page_id=0 if token == 1003 else token + 1, status=ESTALE if token == 1003 else 0
            )
            for token in tokens
        ]
        session.say(
            lib.GKSM_PUBLISHED,
            seq=message.seq,
            entries=b"".join(entries),
            entry_bytes=protocol.PUBLISH_RESULT.size,
        )
    assert published == list(range(1000, 1500))
    assert max(sizes) <= lib.GKSM_FDS_MAX
    answer = client.answer().split()
    assert answer[0] == "0"
    assert answer[4] == f"{ESTALE}:0"
    assert [int(a.split(":")[1]) for a in answer[5:]] == list(range(1005, 1501))


def test_parts_already_published_stand_when_the_connection_is_lost(
    client: LinkClient, session: Session
) -> None:
    client.start("publish 0 1 300")
    message = session.next()
    close_all(message.fds)
    entries = [protocol.PUBLISH_RESULT.build(page_id=i) for i in range(1, 241)]
    session.say(
        lib.GKSM_PUBLISHED,
        seq=message.seq,
        entries=b"".join(entries),
        entry_bytes=protocol.PUBLISH_RESULT.size,
    )
    close_all(session.next().fds)
    session.close()
    answer = client.answer().split()
    assert answer[0] == "0"
    assert answer[1:241] == [f"0:{i}" for i in range(1, 241)]
    assert set(answer[241:]) == {f"{ENOTCONN}:0"}


def test_a_descriptor_that_cannot_be_sent_fails_that_publication_alone(
    client: LinkClient, session: Session
) -> None:
    assert client.ask("publish-bad 0") == "-9"
    client.start("commit 0 1")
    session.say(lib.GKSM_COMMITTED, seq=session.next().seq)
    assert client.answer() == "0"


@pytest.mark.parametrize("status", [0, ENOMEM])
def test_commit_returns_what_the_daemon_decided(
    client: LinkClient, session: Session, status: int
) -> None:
    client.start("commit 0 33")
    message = session.next()
    commit = protocol.COMMIT.read(message.head)
    assert (commit.gpu, commit.pages) == (WIRE, 33)
    session.say(lib.GKSM_COMMITTED, seq=message.seq, status=status)
    assert client.answer() == str(status)


@pytest.mark.parametrize(("head", "held"), [(protocol.COMMITTED.build(held_bytes=5), 5), (b"", 0)])
def test_what_is_kept_for_others_is_known_if_the_daemon_says_so(
    client: LinkClient, session: Session, head: bytes, held: int
) -> None:
    client.start("held 0")
    message = session.next()
    assert protocol.COMMIT.read(message.head).pages == 0
    session.say(lib.GKSM_COMMITTED, seq=message.seq, head=head)
    assert client.answer() == f"0 {held}"


def test_warm_pages_can_be_asked_for_and_are_not_waited_for_long(
    client: LinkClient, session: Session
) -> None:
    client.start("reclaim 0 10000 4096")
    message = session.next(lib.GKSM_RECLAIM)
    ask = protocol.RECLAIM.read(message.head)
    assert (ask.gpu, ask.bytes) == (WIRE, 4096)
    head = protocol.RECLAIMED.build(bytes=2048)
    session.say(lib.GKSM_RECLAIMED, seq=message.seq, head=head)
    assert client.answer() == "0 2048"
    assert client.ask("reclaim 0 20 4096") == f"{ETIMEDOUT} 0"


def test_short_memory_is_told_by_the_processs_own_number_of_the_gpu(
    client: LinkClient, session: Session
) -> None:
    # On the wire and to the caller the numbers are one more: 0 is all of the process. Of a
    # GPU that was never opened nobody is told.
    for wire, pages in ((WIRE + 1, 8), (WIRE, 9)):
        head = protocol.CONTROL.build(
            action=lib.GKSM_CONTROL_PRESSURE,
            level=lib.GKSM_PRESSURE_LOW,
            gpu=wire + 1,
            pages=pages,
        )
        session.say(lib.GKSM_CONTROL, head=head)
    assert "pressure:1:1:8" not in client.events("pressure:1:1:9")


def test_segments_come_with_their_descriptor(client: LinkClient, session: Session) -> None:
    before = client.ask("fds")
    for command, kind in (("segment 0 4", "GET"), ("segment-open 0 77", "OPEN")):
        client.start(command)
        message = session.next(getattr(lib, f"GKSM_SEGMENT_{kind}"))
        head = protocol.SEGMENT.build(segment_id=77, bytes=8 << 20)
        session.say(lib.GKSM_SEGMENT, [page_fd(1)], seq=message.seq, head=head)
        assert client.answer() == f"0 77 {8 << 20} 1"
    client.start("segment-open 0 78")
    session.say(lib.GKSM_SEGMENT, seq=session.next().seq, status=ENOENT)
    assert client.answer().split()[0] == str(ENOENT)
    assert client.ask("fds") == before


def test_messages_arrive_in_the_order_they_were_given(client: LinkClient, session: Session) -> None:
    client.ask("attached 0 1 2 3")
    client.ask("detached 0 1 1")
    client.ask("detached 0 1 2")
    client.ask("detached 0 2 3")
    client.ask("drop 0 90 91")
    client.ask("seal 0 5")
    client.start("commit 0 1")
    told: list[tuple[int, int, list[int]]] = []
    while (message := session.next()).type != lib.GKSM_COMMIT:
        if message.type == lib.GKSM_SEGMENT_SEAL:
            told.append((message.type, 0, [protocol.SEGMENT_REF.read(message.head).segment_id]))
            continue
        ref = protocol.GPU_REF.read(message.head)
        assert ref.gpu == WIRE
        rows = protocol.LEASE_ENTRY if message.type == lib.GKSM_LEASE_DROP else protocol.PAGE_ENTRY
        ids = [row[0] for row in rows.rows(message)]
        if told and told[-1][:2] == (message.type, ref.reason):
            told[-1][2].extend(ids)
        else:
            told.append((message.type, ref.reason, ids))
    session.say(lib.GKSM_COMMITTED, seq=message.seq)
    assert client.answer() == "0"
    assert told == [
        (lib.GKSM_ATTACHED, 0, [1, 2, 3]),
        (lib.GKSM_DETACHED, lib.GKSM_DETACH_COW, [1, 2]),
        (lib.GKSM_DETACHED, lib.GKSM_DETACH_API_WRITE, [3]),
        (lib.GKSM_LEASE_DROP, 0, [90, 91]),
        (lib.GKSM_SEGMENT_SEAL, 0, [5]),
    ]


def test_of_many_usage_updates_the_last_arrives(client: LinkClient, session: Session) -> None:
    client.ask("usage 0 5000")
    seen: list[int] = []
    while not seen or seen[-1] != 5000:
        usage = protocol.USAGE.read(session.next(lib.GKSM_USAGE).head)
        assert usage.gpu == WIRE
        seen.append(usage.virtual_pages)
    assert len(seen) < 50


def test_a_flood_of_reports_is_cut_and_counted(client: LinkClient, session: Session) -> None:
    client.ask("report 1000")
    arrived = lost = 0
    while arrived + lost < 1000:
        message = session.next(lib.GKSM_REPORT)
        assert message.entries.startswith(b"record ")
        assert len(message.entries) == 512
        arrived += 1
        lost += protocol.REPORT.read(message.head).dropped
    assert arrived + lost == 1000
    assert arrived < 200


def test_orders_reach_the_process(client: LinkClient, session: Session) -> None:
    for action in (lib.GKSM_CONTROL_PAUSE, lib.GKSM_CONTROL_RESUME, lib.GKSM_CONTROL_UNSHARE):
        head = protocol.CONTROL.build(action=action, reason=b"because")
        session.say(lib.GKSM_CONTROL, head=head)
        client.events(f"control:{action}:because")


def test_longer_structs_of_a_newer_daemon_are_understood(
    daemon: ScriptedDaemon, client: LinkClient
) -> None:
    more = b"\xff" * 24
    session = daemon.accept()
    hello = session.next(lib.GKSM_HELLO)
    head = protocol.WELCOME.build(protocol=1, sharing=1, domain=b"newer") + more
    session.say(lib.GKSM_WELCOME, seq=hello.seq, head=head)
    client.until("wait 10", "0 newer")
    client.start("open 0")
    opened = protocol.GPU_OPENED.build(gpu=3) + more
    session.say(lib.GKSM_GPU_OPENED, seq=session.next().seq, head=opened)
    assert client.answer() == "0 3 0"
    client.start("lookup 0 1 2")
    entries = (result(1, HIT, 5) + more, result(0, LEASE, token=6) + more)
    session.say(
        lib.GKSM_LOOKED_UP,
        [page_fd(5)],
        seq=session.next().seq,
        entries=b"".join(entries),
        entry_bytes=protocol.LOOKUP_RESULT.size + len(more),
    )
    assert client.answer() == f"0 {LEASE}:6:0 {HIT}:5:5"


@pytest.mark.parametrize(
    ("status", "head"),
    [(-93, b""), (0, protocol.WELCOME.build(protocol=2, sharing=1))],
    ids=["refused", "version 2"],
)
def test_a_daemon_of_another_version_leaves_the_process_alone(
    daemon: ScriptedDaemon, client: LinkClient, status: int, head: bytes
) -> None:
    client.start("wait 10000")
    session = daemon.accept()
    session.say(lib.GKSM_WELCOME, seq=session.next().seq, status=status, head=head)
    assert client.answer().split()[0] == str(ENOTCONN)
    session.rest()


@pytest.mark.parametrize("when", ["before HELLO is read", "after it"])
def test_who_is_turned_away_hears_why_once_and_asks_again(
    daemon: ScriptedDaemon, client: LinkClient, when: str
) -> None:
    for reason in (b"full", b"full", b"", b"full"):
        session = daemon.accept()
        seq = session.next(lib.GKSM_HELLO).seq if when == "after it" else 0
        head = protocol.WELCOME.build(reason=reason)
        session.say(lib.GKSM_WELCOME, seq=seq, status=EACCES, head=head)
        session.rest()
    daemon.up()
    said = client.events("up:tenant")
    assert said == ["away:full", "away:errno", "13", "away:full", "up:tenant"]


def test_a_restarted_daemon_hears_of_every_mapped_page(
    daemon: ScriptedDaemon, client: LinkClient, session: Session
) -> None:
    client.ask("map 0 1 1300")
    client.ask("usage 0 5")
    session.close()
    back = daemon.up(0)
    announced: list[int] = []
    while len(announced) < 1300:
        message = back.next()
        assert message.type == lib.GKSM_ANNOUNCE
        assert protocol.GPU_REF.read(message.head).gpu == WIRE
        announced += page_ids(message)
        results = [protocol.ANNOUNCE_RESULT.build(page_id=page) for page in page_ids(message)]
        back.say(
            lib.GKSM_ANNOUNCED,
            seq=message.seq,
            entries=b"".join(results),
            entry_bytes=protocol.ANNOUNCE_RESULT.size,
        )
    assert announced == list(range(1, 1301))
    assert protocol.USAGE.read(back.next(lib.GKSM_USAGE).head).virtual_pages == 5
    events = client.events("down", "up:tenant", f"opened:0:{WIRE}")
    assert events.index("down") < events.index(f"opened:0:{WIRE}") < len(events) - 1
    client.start("commit 0 1")
    back.say(lib.GKSM_COMMITTED, seq=back.next().seq)
    assert client.answer() == "0"


def test_a_page_mapped_at_several_addresses_is_announced_once_with_their_number(
    daemon: ScriptedDaemon, client: LinkClient, session: Session
) -> None:
    client.ask("map-twice 0 1 600")
    session.close()
    back = daemon.up(0)
    announced: dict[int, int] = {}
    while len(announced) < 600:
        for page, _, mappings, *_ in protocol.PAGE_ENTRY.rows(back.next(lib.GKSM_ANNOUNCE)):
            assert page not in announced
            announced[page] = mappings
    assert announced == dict.fromkeys(range(1, 601), 2)


def test_a_page_left_during_the_announcement_is_detached_behind_it(
    daemon: ScriptedDaemon, client: LinkClient, session: Session
) -> None:
    client.ask("map 0 1 700")
    client.ask("leave 650")
    session.close()
    back = daemon.up(0)
    announced = page_ids(back.next(lib.GKSM_ANNOUNCE)) + page_ids(back.next(lib.GKSM_ANNOUNCE))
    assert 650 in announced
    message = back.next()
    assert (message.type, page_ids(message)) == (lib.GKSM_DETACHED, [650])


def _hang_up_at_once(session: Session) -> None:
    session.close()


def _hang_up_after_hello(session: Session) -> None:
    session.next(lib.GKSM_HELLO)
    session.close()


def _hang_up_after_welcome(session: Session) -> None:
    session.welcome()
    session.next(lib.GKSM_GPU_OPEN)
    session.close()


def _hang_up_in_the_announcement(session: Session) -> None:
    session.welcome()
    session.opened()
    session.next(lib.GKSM_ANNOUNCE)
    session.close()


@pytest.mark.parametrize(
    "step",
    [
        _hang_up_at_once,
        _hang_up_after_hello,
        _hang_up_after_welcome,
        _hang_up_in_the_announcement,
    ],
)
def test_a_daemon_that_dies_while_the_link_comes_up_is_tried_again(
    daemon: ScriptedDaemon, client: LinkClient, session: Session, step: object
) -> None:
    client.ask("map 0 1 3")
    before = client.ask("fds")
    session.close()
    for _ in range(2):
        assert callable(step)
        step(daemon.accept())
    back = again(daemon, client)
    assert page_ids(back.next(lib.GKSM_ANNOUNCE)) == [1, 2, 3]
    assert client.ask("fds") == before


@pytest.mark.parametrize(
    "command",
    ["lookup 0 1 3", "tickets 0 60000 1 2", "publish 0 1 3", "commit 0 1", "segment 0 1", "open 1"],
)
def test_a_request_ends_when_the_daemon_dies(
    daemon: ScriptedDaemon, client: LinkClient, session: Session, command: str
) -> None:
    before = client.ask("fds")
    client.start(command)
    close_all(session.next().fds)
    session.close()
    assert client.answer().split()[0] == str(ENOTCONN)
    assert client.ask("lookup 0 1 1") == str(ENOTCONN)
    daemon.up(0, *([1] if command == "open 1" else []))
    client.until("up", "1")
    assert client.ask("fds") == before


def test_half_an_answer_before_death_leaves_no_descriptor(
    daemon: ScriptedDaemon, client: LinkClient, session: Session
) -> None:
    before = client.ask("fds")
    client.start("lookup 0 1 300")
    session.hits(session.next().seq, range(1, 201), more=True)
    session.close()
    assert client.answer() == str(ENOTCONN)
    again(daemon, client)
    assert client.ask("fds") == before


def test_a_late_answer_is_given_back(client: LinkClient, session: Session) -> None:
    before = client.ask("fds")
    client.start("lookup 0 1 4")
    asked = session.next()
    # A sign of life, so that the connection is not given up as dead.
    session.say(lib.GKSM_CONTROL, head=protocol.CONTROL.build(action=lib.GKSM_CONTROL_PAUSE))
    assert client.answer() == str(ETIMEDOUT)
    first = [result(0, HIT, 11), result(1, LEASE, token=12)]
    session.looked_up(asked.seq, first, [page_fd(11)], more=True)
    session.looked_up(asked.seq, [result(2, HIT, 13), result(3, PENDING)], [page_fd(13)])
    declined = session.next()
    assert (declined.type, page_ids(declined)) == (lib.GKSM_DETACHED, [11])
    assert protocol.GPU_REF.read(declined.head).reason == lib.GKSM_DETACH_DECLINED
    dropped = session.next()
    assert dropped.type == lib.GKSM_LEASE_DROP
    assert [row[0] for row in protocol.LEASE_ENTRY.rows(dropped)] == [12]
    assert page_ids(session.next(lib.GKSM_DETACHED)) == [13]
    assert client.ask("fds") == before
    client.start("commit 0 1")
    session.say(lib.GKSM_COMMITTED, seq=session.next().seq)
    assert client.answer() == "0"


def test_late_segments_and_publications_are_given_back(
    client: LinkClient, session: Session
) -> None:
    before = client.ask("fds")
    client.start("publish 0 1 2")
    published = session.next()
    close_all(published.fds)
    session.say(lib.GKSM_CONTROL, head=protocol.CONTROL.build(action=lib.GKSM_CONTROL_PAUSE))
    assert client.answer().split()[0] == str(ETIMEDOUT)
    client.start("segment 0 1")
    segment = session.next()
    entries = [
        protocol.PUBLISH_RESULT.build(page_id=21),
        protocol.PUBLISH_RESULT.build(status=ESTALE),
    ]
    session.say(
        lib.GKSM_PUBLISHED,
        seq=published.seq,
        entries=b"".join(entries),
        entry_bytes=protocol.PUBLISH_RESULT.size,
    )
    assert page_ids(session.next(lib.GKSM_DETACHED)) == [21]
    assert client.answer().split()[0] == str(ETIMEDOUT)
    head = protocol.SEGMENT.build(segment_id=9, bytes=2 << 20)
    session.say(lib.GKSM_SEGMENT, [page_fd(1)], seq=segment.seq, head=head)
    seal = session.next(lib.GKSM_SEGMENT_SEAL)
    assert protocol.SEGMENT_REF.read(seal.head).segment_id == 9
    assert client.ask("fds") == before


def test_a_frozen_daemon_delays_one_request_and_no_more(
    daemon: ScriptedDaemon, client: LinkClient, session: Session
) -> None:
    client.start("lookup 0 1 1")
    session.next()
    assert client.answer() == str(ETIMEDOUT)
    answers = [client.ask("lookup 0 1 1") for _ in range(50)]
    assert set(answers) <= {str(ETIMEDOUT), str(ENOTCONN)}
    # They failed at once: none of them was even sent before the link gave up.
    assert lib.GKSM_LOOKUP not in [message.type for message in session.rest()]
    again(daemon, client)


def test_a_daemon_that_stops_reading_blocks_nobody_and_is_told_afresh(
    daemon: ScriptedDaemon, client: LinkClient, session: Session
) -> None:
    client.ask("map 0 1 5")
    assert client.ask("storm 0 400000") == "0"
    session.rest()
    back = daemon.up(0)
    assert page_ids(back.next(lib.GKSM_ANNOUNCE)) == [1, 2, 3, 4, 5]


def test_with_a_full_descriptor_table_pages_stay_private_and_grants_go_back(
    client: LinkClient, session: Session
) -> None:
    # ".", ".." and opendir's own are counted too: two descriptors are left.
    client.ask(f"limit {int(client.ask('fds')) - 3 + 2}")
    client.start("lookup 0 1 5")
    session.hits(session.next().seq, [31, 32, 33, 34, 35])
    assert client.answer() == f"0 {HIT}:31:31 {HIT}:32:32" + f" {REFUSED}:0:0" * 3
    declined = session.next(lib.GKSM_DETACHED)
    client.ask("limit 1024")
    assert page_ids(declined) == [33, 34, 35]
    assert protocol.GPU_REF.read(declined.head).reason == lib.GKSM_DETACH_DECLINED


def test_with_a_full_descriptor_table_a_segment_is_refused_and_released(
    client: LinkClient, session: Session
) -> None:
    client.ask(f"limit {int(client.ask('fds')) - 3}")
    client.start("segment 0 1")
    head = protocol.SEGMENT.build(segment_id=4, bytes=2 << 20)
    session.say(lib.GKSM_SEGMENT, [page_fd(1)], seq=session.next().seq, head=head)
    assert client.answer().split()[0] == str(EMFILE)
    client.ask("limit 1024")
    seal = session.next(lib.GKSM_SEGMENT_SEAL)
    assert protocol.SEGMENT_REF.read(seal.head).segment_id == 4


def test_a_wall_clock_that_jumps_changes_nothing(client: LinkClient, session: Session) -> None:
    client.ask("jump")
    client.ask("usage 0 3")
    while protocol.USAGE.read(session.next(lib.GKSM_USAGE).head).virtual_pages != 3:
        pass
    client.ask("report 2")
    assert session.next(lib.GKSM_REPORT)
    client.start("lookup 0 1 1")
    message = session.next()
    session.say(lib.GKSM_CONTROL, head=protocol.CONTROL.build(action=lib.GKSM_CONTROL_PAUSE))
    assert client.answer() == str(ETIMEDOUT)
    session.looked_up(message.seq, [result(0, REFUSED)])
    client.start("lookup 0 1 1")
    session.looked_up(session.next().seq, [result(0, REFUSED)])
    assert client.answer() == f"0 {REFUSED}:0:0"


def test_a_forked_child_keeps_no_connection_open(
    build: Path, tmp_path: Path, daemon: ScriptedDaemon
) -> None:
    parent = LinkClient(build, daemon.path, tmp_path / "parent.log")
    session = daemon.up()
    parent.until("up", "1")
    child, kept = map(int, parent.ask("fork").split())
    try:
        assert kept == 0
        assert parent.ask("up") == "1"
        parent.kill()
        session.rest()
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_program_that_closes_all_descriptors_is_connected_again(
    daemon: ScriptedDaemon, client: LinkClient, session: Session
) -> None:
    client.ask("close-all")
    session.rest()
    # It may have been connected again, and robbed again, before all were closed.
    echo = Echo(daemon)
    echo.start()
    client.until("lookup 0 3 1", f"0 {HIT}:3:3")
    echo.stop()


@pytest.mark.parametrize("drop_every", [0, 37])
def test_threads_never_get_each_others_answers(
    daemon: ScriptedDaemon, client: LinkClient, drop_every: int
) -> None:
    echo = Echo(daemon, drop_every)
    echo.start()
    client.until("wait 10000", "0 tenant")
    before = client.ask("fds")
    client.ask("open 0")
    right, failed, wrong = map(int, client.ask("hammer 0 6 150").split())
    assert wrong == 0
    assert right + failed == 900
    if drop_every:
        assert echo.connections > 1
        assert right > 0
        echo.drop_every = 0
    else:
        assert failed == 0
    client.until("up", "1")
    assert client.ask("fds") == before
    echo.stop()


def test_a_program_that_closed_the_eventfd_is_connected_again_after_a_restart(
    daemon: ScriptedDaemon, client: LinkClient, session: Session
) -> None:
    session.close()
    # While it pauses before the next attempt: the next socket gets the closed number,
    # which must not be read as an eventfd.
    client.until("up", "0")
    client.ask("close-events")
    echo = Echo(daemon)
    echo.start()
    client.until("lookup 0 3 1", f"0 {HIT}:3:3")
    echo.stop()
