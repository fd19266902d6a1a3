# SPDX-License-Identifier: Apache-2.0
"""A real gksmd and gksm-vault with nothing on their GPUs, and gksmctl for them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gksm_bench.stack import Stack


@dataclass(frozen=True)
class NoGpu:
    """For a stack whose processes only talk to gksmd."""

    build: Path
    guard: bool = True
    driver: Path = Path("/nonexistent")

    def environment(self) -> dict[str, str]:
        return {}


@contextmanager
def daemon(
    build: Path, *, config: str = "", rules: list[list[str]] | None = None
) -> Iterator[Stack]:
    """A running stack; no rules unless given."""
    with Stack(NoGpu(build), config=config, domain_rules=rules or []) as stack:
        yield stack


def gksmctl(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run gksmctl, whatever comes of it."""
    return subprocess.run(
        [sys.executable, "-m", "gksmd.ctl.main", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        **options,
    )


def ctl(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run gksmctl on the stack, whatever comes of it."""
    return gksmctl("--run-dir", str(stack.run_dir), *arguments)


def ask(path: Path, **request: Any) -> dict[str, Any]:
    """One request on a JSON-lines socket; its whole answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(20)
        sock.connect(str(path))
        sock.sendall(json.dumps({"v": 1, **request}).encode() + b"\n")
        with sock.makefile("rb") as stream:
            answer: dict[str, Any] = json.loads(stream.readline())
            return answer
