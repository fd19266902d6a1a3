# SPDX-License-Identifier: Apache-2.0
"""Who a peer is, by the kernel's word, on new and on old kernels."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gksmd import identity
from gksmd.identity import PeerGoneError, ended, identify
from gksmd.wire import seqpacket

from tests.support.agents import Agent, Daemon, agents, connect, eventually, load


def modes() -> Iterator[Any]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        try:
            os.close(one.getsockopt(socket.SOL_SOCKET, identity.SO_PEERPIDFD))
            yield "pidfd"
        except OSError:
            yield pytest.param("pidfd", marks=pytest.mark.skip("this kernel has no SO_PEERPIDFD"))
    yield "proc"


MODES = list(modes())


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with seqpacket() as sock:
        sock.bind(str(tmp_path / "s"))
        sock.listen(4)
        yield sock


@pytest.mark.parametrize("mode", MODES)
def test_a_peer_is_who_the_kernel_says(listener: socket.socket, mode: Any) -> None:
    with Agent() as agent:
        agent.run(dial, listener.getsockname())
        accepted, _ = listener.accept()
        with accepted:
            who, pidfd = identify(accepted, "box", mode)
        assert (who.pid, who.uid, who.container, who.how) == (agent.pid, os.getuid(), "box", mode)
        assert who.name.startswith("python")
        assert not ended(pidfd)
        agent.kill()
        assert ended(pidfd)
        os.close(pidfd)


def dial(state: Any, path: str) -> None:
    state.sock = seqpacket()
    state.sock.connect(path)


@pytest.mark.parametrize("mode", MODES)
def test_a_peer_that_has_ended_is_nobody(listener: socket.socket, mode: Any) -> None:
    with Agent() as agent:
        agent.run(dial, listener.getsockname())
        accepted, _ = listener.accept()
        agent.kill()
        with accepted, pytest.raises(PeerGoneError):
            identify(accepted, None, mode)


def test_old_kernels_another_process_under_the_pid_is_not_taken_for_the_peer(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Agent() as agent:
        agent.run(dial, listener.getsockname())
        accepted, _ = listener.accept()
        facts = identity._facts
        seen = iter([1, 2])  # start times before and after pidfd_open

        def changing(pid: int) -> Any:
            real = facts(pid)
            return identity._Facts(next(seen), real.cgroup, real.name)

        monkeypatch.setattr(identity, "_facts", changing)
        with accepted, pytest.raises(PeerGoneError, match="another process"):
            identify(accepted, None, "proc")


def test_old_kernels_a_peer_that_hung_up_before_it_was_looked_at_is_nobody(
    listener: socket.socket,
) -> None:
    with Agent() as agent:
        agent.run(dial, listener.getsockname())
        accepted, _ = listener.accept()
        agent.run(hang_up)
        with accepted, pytest.raises(PeerGoneError):
            identify(accepted, None, "proc")


def hang_up(state: Any) -> None:
    state.sock.close()


def test_a_name_with_parentheses_and_spaces_does_not_confuse_the_start_time(
    listener: socket.socket,
) -> None:
    with Agent() as agent:
        agent.run(rename, b") R 1 1 (")
        agent.run(dial, listener.getsockname())
        accepted, _ = listener.accept()
        with accepted:
            who, pidfd = identify(accepted, None, "proc")
        os.close(pidfd)
        stat = Path(f"/proc/{agent.pid}/stat").read_text()
        assert who.start_ticks == int(stat.rpartition(") ")[2].split()[19])


def rename(state: Any, name: bytes) -> None:
    Path("/proc/self/comm").write_bytes(name)


def test_nobody_on_the_host_reaches_a_containers_socket(daemon: Daemon) -> None:
    path = daemon.prepare("private")
    assert path.parent.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o666


@pytest.mark.parametrize("mode", MODES)
def test_the_instances_life_is_its_process_whichever_way_it_was_identified(mode: Any) -> None:
    with (
        Daemon(config=f'identity.mode = "{mode}"') as daemon,
        agents(daemon.socket, 2) as (first, second),
    ):
        assert first.run(load, [1, 2])["published"] == [1, 2]
        assert second.run(load, [1])["attached"] == [1]
        first.run(connect, daemon.socket)
        first.kill()
        eventually(lambda: daemon.pages() == 1, "the end of what nobody maps")
        assert [row["pid"] for row in daemon.ask("status", op="ps")] == [second.pid]
        second.kill()
        eventually(lambda: daemon.pages() == 0, "the end of all pages")
