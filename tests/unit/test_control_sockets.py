# SPDX-License-Identifier: Apache-2.0
"""The admin, runtime and status sockets against peers that misbehave."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from gksm_bench.stack import Stack, wait_until

from tests.support.control import ask, daemon

SOCKETS = ("admin.sock", "runtime.sock", "status.sock")
CLIENTS = 8
LINE = 4096


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with daemon(config=f"[sockets]\nclients = {CLIENTS}\nline_bytes = {LINE}") as running:
        yield running


def connect(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(20)
    sock.connect(str(path))
    return sock


def send(path: Path, data: bytes) -> bytes:
    """All that comes back until the daemon closes the connection, for it must."""
    with connect(path) as sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(data)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := sock.recv(65536):
                received += chunk
        return received


def serves(stack: Stack) -> bool:
    return bool(ask(stack.run_dir / "status.sock", op="status")["ok"])


@pytest.mark.parametrize("name", SOCKETS)
@pytest.mark.parametrize(
    "data",
    [
        b"garbage\n",
        b"\n",
        b"\x00" * 100 + b"\n",
        b"\xff\xfe\n",
        b"[]\n",
        b"null\n",
        b'{"v":1}\n',
        b'{"v":1,"op":"no such"}\n',
        b'{"v":1,"op":7}\n',
        b'{"v":99,"op":"status"}\n',
        b'{"v":"1","op":"status"}\n',
        b'{"op":"status"}\n',
        b'{"v":1,"op":"explain","target":{}}\n',
        b"[" * 2000 + b"\n",
        b"x" * (LINE * 4),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_request_closes_that_connection_only(
    stack: Stack, name: str, data: bytes
) -> None:
    with connect(stack.run_dir / "status.sock") as other:
        answer = send(stack.run_dir / name, data)
        if answer:
            assert json.loads(answer.splitlines()[0])["ok"] is False
        other.sendall(b'{"v":1,"op":"status"}\n')
        assert json.loads(other.makefile().readline())["ok"]


@pytest.mark.parametrize("name", SOCKETS)
def test_half_a_request_waits_for_the_rest(stack: Stack, name: str) -> None:
    with connect(stack.run_dir / name) as sock:
        sock.sendall(b'{"v":1,"op":"sta')
        assert serves(stack)
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(100) == b""


def test_several_requests_share_a_connection(stack: Stack) -> None:
    with connect(stack.run_dir / "status.sock") as sock, sock.makefile() as lines:
        sock.sendall(b'{"v":1,"op":"status"}\n{"v":1,"op":"ps"}\n{"v":1,"op":"pages"}\n')
        assert all(json.loads(lines.readline())["ok"] for _ in range(3))


def test_fields_that_a_newer_tool_sends_are_skipped(stack: Stack) -> None:
    assert ask(stack.run_dir / "status.sock", op="status", verbosity=3)["ok"]


def test_too_many_clients_are_told_so_and_places_come_back(stack: Stack) -> None:
    path = stack.run_dir / "status.sock"
    with ExitStack() as held:
        for _ in range(CLIENTS):
            held.enter_context(connect(path)).sendall(b'{"v":1,')
        wait_until(
            lambda: "too many clients" in ask(path, op="status").get("error", ""),
            "the places running out",
        )
        assert ask(stack.run_dir / "admin.sock", op="info")["ok"]
    wait_until(lambda: serves(stack), "a free place")


@pytest.mark.parametrize(
    ("name", "mode"), [("admin.sock", 0o600), ("runtime.sock", 0o600), ("status.sock", 0o666)]
)
def test_only_the_status_socket_is_everybodys(stack: Stack, name: str, mode: int) -> None:
    assert stat.S_IMODE((stack.run_dir / name).stat().st_mode) == mode


def as_nobody(path: Path, **request: Any) -> dict[str, Any]:
    """The answer that another uid gets; the mode of the socket does not stop it."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            folder = os.open(path.parent, os.O_PATH)
            os.fchdir(folder)
            os.setuid(65534)
            os.write(write, json.dumps(ask(Path(path.name), **request)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another uid")
def test_another_uid_may_look_and_nothing_else(stack: Stack) -> None:
    stack.folder.chmod(0o755)
    for name in ("admin.sock", "runtime.sock"):
        path = stack.run_dir / name
        path.chmod(0o666)
        answer = as_nobody(path, op="reload")
        assert not answer["ok"]
        assert "root" in answer["error"]
        path.chmod(0o600)
    assert as_nobody(stack.run_dir / "status.sock", op="status")["ok"]
    refused = as_nobody(stack.run_dir / "status.sock", op="logs", pid=os.getpid())
    assert not refused["ok"]


@pytest.mark.parametrize(
    "request_",
    [
        {"op": "prepare", "container": {"id": "../x", "engine": "docker"}},
        {"op": "prepare", "container": {"id": "", "engine": "docker"}},
        {"op": "prepare", "container": {"id": "x" * 200, "engine": "docker"}},
        {"op": "bind", "id": "unknown", "pid": 1},
    ],
)
def test_the_runtime_socket_refuses_what_cannot_be(stack: Stack, request_: dict[str, Any]) -> None:
    answer = ask(stack.run_dir / "runtime.sock", **request_)
    assert not answer["ok"]
    assert answer["error"].endswith(".")
    assert sorted(p.name for p in (stack.run_dir / "c").iterdir()) == []
