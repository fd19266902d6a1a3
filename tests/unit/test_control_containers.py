# SPDX-License-Identifier: Apache-2.0
"""A container's life at the daemon: prepared, bound, forgotten, and a restart between."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gksm_bench.stack import Stack, wait_until
from gksmd.client import Client
from gksmd.domains import Decision, Domain
from gksmd.model import Container
from gksmd.protocol import WELCOME, lib, text

from tests.support.control import alone, ask, daemon, must
from tests.support.member import member

BOX = {"id": "box1", "engine": "docker", "image": "llm", "name": "/chat"}


@pytest.fixture
def stack() -> Iterator[Stack]:
    with daemon() as running:
        yield running


@pytest.fixture
def init() -> Iterator[subprocess.Popen[bytes]]:
    """A container's first process."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def runtime(stack: Stack, **request: Any) -> dict[str, Any]:
    answer = ask(stack.run_dir / "runtime.sock", **request)
    assert answer["ok"], answer
    result: dict[str, Any] = answer["result"]
    return result


def folders(stack: Stack) -> list[str]:
    return sorted(path.name for path in (stack.run_dir / "c").iterdir())


def test_a_prepared_container_has_a_folder_with_a_socket_and_is_who_connects_there(
    stack: Stack,
) -> None:
    prepared = runtime(stack, op="prepare", container=BOX)
    assert prepared["domain"] == "container:box1"
    assert Path(prepared["directory"]) == stack.run_dir / "c" / "box1"
    with member(Path(prepared["socket"]), 1):
        (row,) = json.loads(must(stack, "ps", "--json"))
        assert (row["container"], row["domain"]) == ("box1", "container:box1")
        for target in ("box1", "chat"):
            assert "Container box1" in must(stack, "explain", target)


def test_preparing_twice_changes_nothing(stack: Stack) -> None:
    first = runtime(stack, op="prepare", container=BOX)
    must(stack, "trust-domain", "add", "team", "--match", "image=llm")
    assert runtime(stack, op="prepare", container=BOX) == first


def test_forget_removes_the_folder_and_may_be_repeated(stack: Stack) -> None:
    runtime(stack, op="prepare", container=BOX)
    assert folders(stack) == ["box1"]
    for _ in range(2):
        runtime(stack, op="forget", id="box1")
        assert folders(stack) == []
    assert list((stack.run_dir / "state" / "containers").iterdir()) == []


def test_the_end_of_its_first_process_forgets_a_container(
    stack: Stack, init: subprocess.Popen[bytes]
) -> None:
    runtime(stack, op="prepare", container=BOX)
    runtime(stack, op="bind", id="box1", pid=init.pid)
    init.kill()
    wait_until(lambda: folders(stack) == [], "the container being forgotten")


def test_a_dead_process_cannot_be_bound(stack: Stack, init: subprocess.Popen[bytes]) -> None:
    runtime(stack, op="prepare", container=BOX)
    init.kill()
    init.wait()
    answer = ask(stack.run_dir / "runtime.sock", op="bind", id="box1", pid=init.pid)
    assert not answer["ok"]


def test_what_is_prepared_and_never_bound_is_forgotten() -> None:
    with daemon(config="[grace]\nprepare_ms = 200") as stack:
        runtime(stack, op="prepare", container=BOX)
        wait_until(lambda: folders(stack) == [], "the container being forgotten")


@pytest.mark.parametrize("bound", [False, True])
def test_invariant_4_after_kill_9_of_gksmd_a_container_has_its_socket_and_its_old_domain(
    stack: Stack, init: subprocess.Popen[bytes], bound: bool
) -> None:
    must(stack, "trust-domain", "add", "team", "--match", "image=llm", "--share", "weights,kv")
    prepared = runtime(stack, op="prepare", container=BOX)
    if bound:
        runtime(stack, op="bind", id="box1", pid=init.pid)
    inode = (stack.run_dir / "c" / "box1").stat().st_ino
    stack.kill_gksmd()
    # Meanwhile the rule goes; the container keeps what it was given.
    (stack.config_dir / "domains.d" / "team.toml").unlink()
    stack.restart_dead()
    assert runtime(stack, op="prepare", container=BOX) == prepared
    # The folder is mounted into the container: another one would not be seen there.
    assert (stack.run_dir / "c" / "box1").stat().st_ino == inode
    with member(Path(prepared["socket"]), 1):
        (row,) = json.loads(must(stack, "ps", "--json"))
        assert row["domain"] == "team"
    wait_until(lambda: alone(stack), "the end of the process")


def test_a_container_that_ended_while_gksmd_was_dead_is_not_restored(
    stack: Stack, init: subprocess.Popen[bytes]
) -> None:
    runtime(stack, op="prepare", container=BOX)
    runtime(stack, op="bind", id="box1", pid=init.pid)
    stack.kill_gksmd()
    init.kill()
    init.wait()
    stack.restart_dead()
    assert list((stack.run_dir / "state" / "containers").iterdir()) == []
    assert folders(stack) == []


def test_a_container_s_socket_serves_nobody_of_another_cgroup(
    stack: Stack, init: subprocess.Popen[bytes]
) -> None:
    """Whoever got hold of the socket, by a leaked mount or a volume in common."""
    prepared = runtime(stack, op="prepare", container=BOX)
    runtime(stack, op="bind", id="box1", pid=init.pid)
    stack.kill_gksmd()
    # As if it had started in a cgroup of its own, which takes root to make.
    path = stack.run_dir / "state" / "containers" / "box1.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    record["cgroup"] = "/elsewhere"
    path.write_text(json.dumps(record), encoding="utf-8")
    stack.restart_dead()
    with Client(Path(prepared["socket"])) as client, pytest.raises(OSError, match="not in"):
        refused(client)


def test_a_process_in_a_container_cannot_pass_for_a_bare_one(
    stack: Stack, init: subprocess.Popen[bytes]
) -> None:
    runtime(stack, op="prepare", container=BOX)
    runtime(stack, op="bind", id="box1", pid=init.pid)
    stack.kill_gksmd()
    own = next(
        (
            line[3:]
            for line in Path("/proc/self/cgroup").read_text().splitlines()
            if line[:3] == "0::"
        ),
        "/",
    )
    if own == "/":
        pytest.skip("this process has no cgroup of its own")
    path = stack.run_dir / "state" / "containers" / "box1.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    record["cgroup"] = own
    path.write_text(json.dumps(record), encoding="utf-8")
    stack.restart_dead()
    with Client(stack.run_dir / "gksm.sock") as client, pytest.raises(OSError, match="box1"):
        refused(client)


def refused(client: Client) -> None:
    """Say HELLO; OSError with the reason if that is refused."""
    message = client.receive()
    assert message.type == lib.GKSM_WELCOME
    if message.status:
        raise OSError(text(WELCOME.read(message.head).reason))


@pytest.mark.parametrize("content", [b"", b"{", b'{"facts": 3}', b"\xff" * 100])
def test_a_damaged_state_file_is_dropped_and_stops_nothing(stack: Stack, content: bytes) -> None:
    stack.kill_gksmd()
    path = stack.run_dir / "state" / "containers" / "box1.json"
    path.write_bytes(content)
    stack.restart_dead()
    assert not path.exists()


@pytest.mark.parametrize(
    ("own", "cgroup", "held"),
    [
        ("/docker/a", "/docker/a", True),
        ("/docker/a", "/docker/a/init.scope", True),
        ("/docker/a", "/docker/ab", False),
        ("/docker/a", "/docker", False),
        ("/docker/a", "", False),
        ("/", "/anything", None),
        ("", "/anything", None),
    ],
)
def test_a_container_holds_its_cgroup_and_what_is_below(
    own: str, cgroup: str, held: bool | None
) -> None:
    box = Container("box1", Decision(Domain("team"), ""), cgroup=own)
    assert box.holds(cgroup) is held
