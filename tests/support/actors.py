# SPDX-License-Identifier: Apache-2.0
"""Processes on a stack of their own, for the tests of a whole module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gksm_bench.simgpu import simulated_gpu
from gksm_bench.stack import Stack

from tests.conftest import VRAM, build_folder
from tests.support.remote import Remote

# gksm.toml for a machine that may be too busy to answer in the times meant for a real one.
PATIENT = """
[guard]
hold_deadline_ms = 10000
stall_budget_ms = 1000
[load]
order_wait_ms = 10000
"""
PROGRAM = "tests.support.entry_points"


@contextmanager
def entry_point_actors(logs: Path, count: int, *, plain: int = 0) -> Iterator[list[Remote]]:
    """Processes that can be told to use one entry point: `count` with libgksm in them, and
    `plain` more that use the same GPU without it."""
    with ExitStack() as undo:
        gpu = undo.enter_context(simulated_gpu(build_folder(), vram=VRAM))
        stack = undo.enter_context(Stack(gpu, config=PATIENT))
        actors = []
        environments = [stack.environment()] * count + [gpu.environment()] * plain
        for number, environment in enumerate(environments):
            actor = Remote(environment, logs / f"actor-{number}", program=PROGRAM)
            undo.callback(actor.kill)
            actor.prepare()
            actors.append(actor)
        yield actors
