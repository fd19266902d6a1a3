# SPDX-License-Identifier: Apache-2.0
"""Locks, the launch gate and threads of libgksm, plain and under ThreadSanitizer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.compile import ROOT, compile_c

SOURCE = ROOT / "libgksm" / "src"
FLAGS = {"plain": (), "tsan": ("-fsanitize=thread",)}


@pytest.fixture(scope="module", params=FLAGS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [Path(__file__).parent / "sync" / "sync.c"]
    sources += [SOURCE / name for name in ("sync.c", "thread.c", "libc_symbols.c")]
    flags = ("-D_GNU_SOURCE", "-iquote", str(SOURCE), "-pthread", *FLAGS[request.param])
    return compile_c(tmp_path_factory.mktemp("sync") / "sync", sources, *flags)


@pytest.mark.parametrize(
    "part",
    [
        pytest.param("mutex", id="a mutex lets one thread in at a time"),
        pytest.param("gate", id="nobody is inside a closed gate and everybody gets through"),
        pytest.param("gate-timeout", id="a gate that cannot be closed in time is open again"),
        pytest.param("futex", id="waits end in time and leave errno alone"),
        pytest.param("thread", id="a thread starts with signals blocked and the caller's kept"),
    ],
)
def test_sync(program: Path, part: str) -> None:
    run = subprocess.run([program, part], capture_output=True, text=True, check=False, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
