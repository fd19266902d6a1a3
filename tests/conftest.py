# SPDX-License-Identifier: Apache-2.0
"""What tests with real processes run on: a simulated GPU, gksmd and gksm-vault."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from gksm_bench.processes import tail
from gksm_bench.simgpu import Probe, SimulatedGpu, memory_probe, simulated_gpu
from gksm_bench.stack import Stack, wait_until
from hypothesis import HealthCheck, settings

from tests.support.remote import Remote
from tests.support.sanitizers import around

VRAM = 512 << 20
ROOT = Path(__file__).parents[1]

# A busy machine is no failure.
settings.register_profile("gksm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gksm")


def pytest_report_header() -> str:
    return f"built files: {build_folder()}"


def build_folder() -> Path:
    """What is tested; GKSM_BUILD names another flavour."""
    return Path(os.environ.get("GKSM_BUILD", ROOT / "build" / "release"))


@pytest.fixture
def build() -> Path:
    return build_folder()


MakeGpu = Callable[..., SimulatedGpu]
MakeStack = Callable[..., Stack]
MakeRemote = Callable[..., Remote]


@pytest.fixture
def make_gpu(build: Path) -> Iterator[MakeGpu]:
    """Simulated GPUs by the arguments of `simulated_gpu`."""
    with ExitStack() as undo:

        def make(**options: Any) -> SimulatedGpu:
            options = {"vram": VRAM} | options
            return undo.enter_context(simulated_gpu(build, **options))

        yield make


@pytest.fixture
def make_stack() -> Iterator[MakeStack]:
    """Stacks by the arguments of `Stack`."""
    with ExitStack() as undo:

        def make(gpu: SimulatedGpu, **options: Any) -> Stack:
            stack = undo.enter_context(Stack(gpu, **options))
            undo.callback(tell_logs, stack)
            return stack

        yield make


def tell_logs(stack: Stack) -> None:
    """For the report of a test that fails."""
    for name in ("gksmd", "gksm-vault"):
        print(f"{name}:\n{tail(stack.log(name), 40)}")


@pytest.fixture
def make_remote(tmp_path: Path) -> Iterator[MakeRemote]:
    """Actors, by environment; killed at the end if they still run."""
    remotes: list[Remote] = []

    def make(environment: dict[str, str], **options: Any) -> Remote:
        remote = Remote(environment, tmp_path / f"actor-{len(remotes)}.log", **options)
        remotes.append(remote)
        return remote

    yield make
    for remote in remotes:
        remote.kill()


@pytest.fixture
def gpu(make_gpu: MakeGpu) -> SimulatedGpu:
    return make_gpu()


@pytest.fixture
def stack(gpu: SimulatedGpu, make_stack: MakeStack) -> Stack:
    return make_stack(gpu)


@pytest.fixture
def probe(gpu: SimulatedGpu, tmp_path: Path) -> Iterator[Probe]:
    """What the simulated hardware says is used."""
    with memory_probe(around(gpu.build, gpu.environment()), tmp_path / "probe.log") as probe:
        yield probe


@pytest.fixture
def sharer(stack: Stack, make_remote: MakeRemote) -> Callable[[], Remote]:
    """Makes a process with libgksm in it."""
    return lambda **options: make_remote(stack.environment(), **options)


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Polls a condition that other processes bring about."""
    return wait_until
