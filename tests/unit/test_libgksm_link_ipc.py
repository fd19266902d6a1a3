# SPDX-License-Identifier: Apache-2.0
"""The link's part of legacy IPC: tickets, pages asked for and handed out."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from gksmd import protocol
from gksmd.protocol import lib
from gksmd.wire import FDS_MAX, close_all

from tests.support.scripted import LinkClient, ScriptedDaemon, Session, page_fd, page_of


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[ScriptedDaemon]:
    with ScriptedDaemon(tmp_path / "gksm.sock") as made:
        yield made


@pytest.fixture
def client(build: Path, daemon: ScriptedDaemon, tmp_path: Path) -> Iterator[LinkClient]:
    made = LinkClient(build, daemon.path, tmp_path / "client.log")
    yield made
    made.finish()


@pytest.fixture
def session(client: LinkClient, daemon: ScriptedDaemon) -> Session:
    made = daemon.up()
    client.until("up", "1")
    return made


def opened(session: Session, seq: int, count: int, first: int = 0) -> None:
    """Answer IPC_OPEN."""
    head = protocol.IPC_OPENED.build(pages=first + count, bytes=(first + count) << 21)
    fds = [page_fd(first + i) for i in range(count)]
    session.say(lib.GKSM_IPC_OPENED, fds, seq=seq, head=head)


def open_fds(client: LinkClient) -> int:
    return len(os.listdir(f"/proc/{client.process.pid}/fd"))


def test_an_open_gets_the_descriptors_in_order(client: LinkClient, session: Session) -> None:
    for first, count in ((0, FDS_MAX), (FDS_MAX, 1)):
        client.start(f"ipc-open 5 {first}")
        asked = session.next()
        head = protocol.IPC_OPEN.read(asked.head)
        assert (asked.type, head.ticket[0], head.first_page) == (lib.GKSM_IPC_OPEN, 5, first)
        opened(session, asked.seq, count, first)
        wanted = " ".join(str(page) for page in range(first, first + count))
        assert client.answer() == f"{count} {wanted}"


def test_a_refusal_of_the_daemon_is_the_answer(client: LinkClient, session: Session) -> None:
    client.start("ipc-open 5 0")
    session.say(lib.GKSM_IPC_OPENED, seq=session.next().seq, status=-errno.ENOENT)
    assert client.answer() == str(-errno.ENOENT)


def test_an_export_names_the_gpu_as_the_daemon_knows_it(
    client: LinkClient, session: Session
) -> None:
    client.start("open 0")
    gpu = session.opened()
    client.answer()
    client.start("ipc-export 0 12")
    asked = session.next()
    head = protocol.IPC_EXPORT.read(asked.head)
    assert (head.gpu, head.pages) == (gpu, 12)
    session.say(lib.GKSM_IPC_EXPORTED, seq=asked.seq, status=-errno.EDQUOT)
    assert client.answer() == str(-errno.EDQUOT)
    assert client.ask("ipc-drop 9") == "0"
    assert protocol.IPC_REF.read(session.next(lib.GKSM_IPC_DROP).head).ticket[0] == 9


def test_pages_go_out_with_their_descriptors_when_somebody_wants_them(
    client: LinkClient, session: Session
) -> None:
    wanted = protocol.IPC_WANTED.build(request=77, count=3)
    session.say(lib.GKSM_IPC_WANTED, head=wanted)
    assert "wanted:3" in client.events("wanted:3")
    client.start("ipc-pages 77 3")
    asked = session.next()
    assert protocol.IPC_PAGES.read(asked.head).request == 77
    assert [page_of(fd) for fd in asked.fds] == [0, 1, 2]
    close_all(asked.fds)
    session.say(lib.GKSM_IPC_TAKEN, seq=asked.seq)
    assert client.answer() == "0"


def test_a_daemon_too_old_for_it_is_never_asked(
    build: Path, daemon: ScriptedDaemon, tmp_path: Path
) -> None:
    client = LinkClient(build, daemon.path, tmp_path / "client.log")
    session = daemon.accept()
    session.welcome(features=lib.GKSM_FEATURE_COMMIT)
    client.until("up", "1")
    unsupported = str(-errno.EOPNOTSUPP)
    for command in ("ipc-open 5 0", "ipc-export 0 1", "ipc-pages 1 1"):
        assert client.ask(command) == unsupported
    client.ask("ipc-drop 5")
    client.start("open 0")
    assert session.next().type == lib.GKSM_GPU_OPEN
    client.kill()


@pytest.mark.parametrize("command", ["ipc-open 5 0", "ipc-pages 1 2"])
def test_a_request_ends_when_the_daemon_dies(
    client: LinkClient, daemon: ScriptedDaemon, session: Session, command: str
) -> None:
    before = open_fds(client)
    client.start(command)
    close_all(session.next().fds)
    daemon.close()
    assert client.answer() == str(-errno.ENOTCONN)
    client.until("up", "0")
    assert open_fds(client) < before  # the connection's own is gone, and nothing came


def test_an_answer_that_comes_too_late_leaves_no_descriptor(
    client: LinkClient, session: Session
) -> None:
    before = open_fds(client)
    client.start("ipc-open 5 0")
    asked = session.next()
    session.say(lib.GKSM_CONTROL, head=protocol.CONTROL.build(action=lib.GKSM_CONTROL_RESUME))
    assert client.answer() == str(-errno.ETIMEDOUT)
    opened(session, asked.seq, 3)
    client.start("ipc-open 5 0")
    opened(session, session.next().seq, 1)
    assert client.answer() == "1 0"
    assert open_fds(client) == before


def test_an_answer_without_descriptors_makes_no_sense(
    client: LinkClient, daemon: ScriptedDaemon, session: Session
) -> None:
    client.start("ipc-open 5 0")
    head = protocol.IPC_OPENED.build(pages=1, bytes=1)
    session.say(lib.GKSM_IPC_OPENED, seq=session.next().seq, head=head)
    assert client.answer() == str(-errno.ENOTCONN)
    daemon.up()
    client.until("up", "1")
