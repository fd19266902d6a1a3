# SPDX-License-Identifier: Apache-2.0
"""What programs do past libgksm is seen, told and counted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from gksm_bench.simgpu import Probe, SimulatedGpu
from gksm_bench.stack import Stack

from tests.conftest import VRAM, MakeRemote
from tests.support.pages import PAGE
from tests.support.remote import Remote, RemoteError

OUT_OF_MEMORY = 2
MIB = 1 << 20


@pytest.fixture
def gksmctl(stack: Stack, gpu: SimulatedGpu) -> Callable[..., subprocess.CompletedProcess[str]]:
    """gksmctl on the machine with the simulated GPU, whatever comes of it."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gksmd.ctl.main", *stack.where_arguments, *arguments]
        return subprocess.run(
            command, env=gpu.environment(), capture_output=True, text=True, check=False, timeout=60
        )

    return run


def told(gksmctl: Any) -> dict[str, str]:
    """Verdict to reason, of what doctor says about processes."""
    rows = json.loads(gksmctl("doctor", "--json").stdout)
    return {row["verdict"]: row["reason"] for row in rows if row["name"] == "GPU processes"}


@pytest.mark.seen_in("Project-HAMi/HAMi#777", "Project-HAMi/HAMi#1346")
def test_a_program_whose_preload_was_ignored_is_named_to_the_operator(
    stack: Stack, make_remote: MakeRemote, gksmctl: Any
) -> None:
    hooked = make_remote(stack.environment())
    assert "ok" in told(gksmctl)
    ignored = make_remote(stack.environment() | {"LD_PRELOAD": ""})
    assert f"{ignored.pid} (" in told(gksmctl)["warn"]
    assert "without libgksm" in told(gksmctl)["warn"]
    assert str(hooked.pid) not in told(gksmctl)["warn"]
    explained = gksmctl("explain", str(ignored.pid))
    assert explained.returncode == 1
    assert "without libgksm" in explained.stderr
    ignored.kill()
    assert "ok" in told(gksmctl)


@pytest.mark.seen_in("Project-HAMi/HAMi#1346")
def test_a_program_that_has_libgksm_and_no_gksmd_is_named_to_the_operator(
    stack: Stack, make_remote: MakeRemote, gksmctl: Any
) -> None:
    lost = make_remote(stack.environment() | {"GKSM_SOCKET": "/nonexistent/gksm.sock"})
    assert f"{lost.pid} (" in told(gksmctl)["warn"]
    assert "gksmd does not know" in told(gksmctl)["warn"]


@pytest.mark.seen_in("Project-HAMi/HAMi-core#74")
@pytest.mark.parametrize("how", ["in a stream", "from a pool", "pitched"])
def test_memory_that_libgksm_does_not_manage_counts_like_any_other(
    stack: Stack, make_remote: MakeRemote, probe: Probe, how: str
) -> None:
    """It is missing from what is reported as free, and it is promised to nobody."""
    a, b = make_remote(stack.environment()), make_remote(stack.environment())
    b.alloc(1)
    before = [actor.info()[0] for actor in (a, b)]
    used = probe.used_bytes()
    match how:
        case "in a stream":
            at = a.alloc_in_stream(VRAM // 2, "own")
        case "from a pool":
            at = a.alloc_from_pool(VRAM // 2, "own")
        case "pitched":
            at = a.alloc_pitched(MIB, VRAM // 2 // MIB)
    a.memset(at, 1, VRAM // 8, "own")
    a.sync()
    taken = probe.used_bytes() - used
    assert taken >= VRAM // 2
    for actor, free in zip((a, b), before, strict=True):
        assert free - actor.info()[0] >= VRAM // 2
    with pytest.raises(RemoteError) as refused:
        b.alloc(VRAM // 2 // PAGE)
    assert refused.value.code == OUT_OF_MEMORY
    assert usable(b, 32)


def usable(actor: Remote, pages: int) -> bool:
    """Whether as much can be allocated and written to by a kernel."""
    at = actor.alloc(pages)
    actor.write_kernel(at, list(range(pages)), 0, 7)
    actor.sync()
    return bool(actor.read_words(at + (pages - 1) * PAGE, 1) == [7])
