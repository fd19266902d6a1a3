# SPDX-License-Identifier: Apache-2.0
"""A real gksmd and gksm-vault with nothing on their GPUs, and gksmctl for them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from gksm_bench.stack import Stack
from gksmd.ctl.main import main

from tests.conftest import build_folder


@dataclass(frozen=True)
class NoGpu:
    """For a stack whose processes only talk to gksmd."""

    build: Path = field(default_factory=build_folder)
    guard: bool = True
    driver: Path = Path("/nonexistent")

    def environment(self) -> dict[str, str]:
        return {}


@contextmanager
def daemon(*, config: str = "", rules: list[list[str]] | None = None) -> Iterator[Stack]:
    """A running stack; no rules unless given."""
    with Stack(NoGpu(), config=config, domain_rules=rules or []) as stack:
        yield stack


def gksmctl(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run gksmctl as a process, whatever comes of it."""
    return subprocess.run(
        [sys.executable, "-m", "gksmd.ctl.main", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        **options,
    )


@dataclass(frozen=True)
class Outcome:
    """What a command came to."""

    status: int
    stdout: str
    stderr: str


def ctl(stack: Stack, *arguments: str) -> Outcome:
    """Run gksmctl on the stack, whatever comes of it; in this process, to be quick."""
    done = CliRunner().invoke(main, ["--run-dir", str(stack.run_dir), *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Outcome(done.exit_code, done.stdout, done.stderr)


def must(stack: Stack, *arguments: str) -> str:
    """Run gksmctl on the stack; its standard output, for it must succeed."""
    done = ctl(stack, *arguments)
    assert done.status == 0, done.stderr
    return done.stdout


def ask(path: Path, **request: Any) -> dict[str, Any]:
    """One request on a JSON-lines socket; its whole answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(20)
        sock.connect(str(path))
        # Who is turned away has an answer waiting, and cannot send.
        with suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(json.dumps({"v": 1, **request}).encode() + b"\n")
        with sock.makefile("rb") as stream:
            answer: dict[str, Any] = json.loads(stream.readline())
            return answer


def alone(stack: Stack) -> bool:
    """Whether no process uses the daemon."""
    return not ask(stack.run_dir / "status.sock", op="ps")["result"]
