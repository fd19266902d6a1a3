# SPDX-License-Identifier: Apache-2.0
"""C programs that do everything at once. The sanitizer builds run these."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gksm_bench.simgpu import Probe, SimulatedGpu
from gksm_bench.stack import DOMAIN, PATIENT, Stack, wait_until

from tests.support.sanitizers import around, flavour

ROUNDS = {"asan": 15, "tsan": 10}
DEFAULT_ROUNDS = 40
SECONDS = 280


@pytest.fixture
def run(build: Path) -> Callable[..., list[tuple[int, str]]]:
    """Runs programs of the build's workers at once: exit status and output of each."""

    def start(environment: dict[str, str], *commands: list[str]) -> list[tuple[int, str]]:
        children = [
            subprocess.Popen(
                [str((build / "workers" / command[0]).absolute()), *command[1:]],
                env=around(build, environment),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for command in commands
        ]
        try:
            outputs = [child.communicate(timeout=SECONDS)[0] for child in children]
            return [(child.returncode, out) for child, out in zip(children, outputs, strict=True)]
        finally:
            for child in children:
                child.kill()
                child.wait()

    return start


@pytest.fixture
def rounds(build: Path) -> str:
    return str(ROUNDS.get(flavour(build), DEFAULT_ROUNDS))


def all_well(outcomes: list[tuple[int, str]]) -> None:
    """Every program ended with 0 and printed nothing."""
    for status, output in outcomes:
        assert (status, output) == (0, "")


@pytest.mark.seen_in("THUDM/slime#1690")
@pytest.mark.timeout(300)
def test_threads_that_load_launch_copy_and_free_at_once(
    run: Any, rounds: str, stack: Stack, probe: Probe
) -> None:
    """In two processes, which share with each other."""
    all_well(run(stack.environment(), ["storm", "4", rounds, "1"], ["storm", "4", rounds, "2"]))
    wait_until(lambda: probe.used_bytes() == 0, "the device getting empty")


RESTLESS = """
[scan]
interval_ms = 1
max_interval_ms = 1
stable_hashes = 1
max_percent = 100
zero_pages = true
"""


@pytest.mark.timeout(300)
def test_a_storm_beside_a_scanner_that_never_rests(
    run: Any, rounds: str, gpu: SimulatedGpu, make_stack: Callable[..., Stack], probe: Probe
) -> None:
    """Every page is merged as soon as it looks like another, whatever happens to it then."""
    everything = [[DOMAIN, "--match", f"uid={os.getuid()}", "--share", "weights,kv,other"]]
    stack = make_stack(gpu, config=PATIENT + RESTLESS, domain_rules=everything)
    all_well(run(stack.environment(), ["storm", "4", rounds, "3"], ["storm", "4", rounds, "4"]))
    wait_until(lambda: probe.used_bytes() == 0, "the device getting empty")


@pytest.mark.timeout(300)
def test_the_same_storm_without_libgksm(run: Any, rounds: str, gpu: SimulatedGpu) -> None:
    """What fails here, too, is not libgksm's fault."""
    all_well(run(gpu.environment(), ["storm", "4", rounds, "1"], ["storm", "4", rounds, "2"]))


@pytest.mark.timeout(300)
def test_a_storm_while_the_daemons_are_killed(
    run: Any, rounds: str, stack: Stack, build: Path
) -> None:
    environment = around(build, stack.environment())
    program = str((build / "workers" / "storm").absolute())
    child = subprocess.Popen(
        [program, "3", rounds, "3"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    turn = 0
    try:
        while child.poll() is None:
            (stack.kill_vault if turn % 3 == 2 else stack.kill_gksmd)()
            stack.restart_dead()
            turn += 1
        assert child.stdout is not None
        assert (child.returncode, child.stdout.read()) == (0, "")
        assert turn > 0
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


@pytest.mark.timeout(300)
def test_contexts_made_reset_and_destroyed_while_pages_are_shared(
    run: Any, stack: Stack, probe: Probe
) -> None:
    all_well(run(stack.environment(), ["contexts", "8"], ["contexts", "8"]))
    wait_until(lambda: probe.used_bytes() == 0, "the device getting empty")
