# SPDX-License-Identifier: Apache-2.0
"""Whatever processes do, in whatever order, each finds its own bytes in its memory.

Hypothesis draws lists of steps; a model keeps the true bytes of each process. Together
the shards make 10,000 steps. GKSM_MODEL_SEED=N draws others.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st

from tests.support.model.ops import Op, operations
from tests.support.model.run import Plan, difference, run

SEED = int(os.environ.get("GKSM_MODEL_SEED", "1"))
SHARDS, RUNS, STEPS = 5, 4, 500
# Long lists, since processes take long to start; `python -m tests.support.model --reduce`
# shortens one that fails, step by step instead of number by number.
DRAWN = settings(
    max_examples=RUNS,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
)


def assume_variety(ops: list[Op]) -> None:
    """Not the simplest list, which hypothesis always begins with: one step over and over."""
    assume(len(set(ops)) > len(ops) // 2)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_process_finds_its_own_bytes_whatever_all_of_them_do(
    build: Path, tmp_path: Path, shard: int
) -> None:
    number = 1000 * SEED + shard
    steps = []

    @seed(number)
    @DRAWN
    @given(processes=st.integers(2, 4), ops=operations(STEPS))
    def whatever_they_do(processes: int, ops: list[Op]) -> None:
        assume_variety(ops)
        run(build, tmp_path / str(len(steps)), Plan(number, processes, ops))
        steps.append(len(ops))

    whatever_they_do()
    assert sum(steps) >= RUNS * STEPS


@pytest.mark.timeout(600)
def test_the_same_steps_share_the_same_pages(build: Path, tmp_path: Path) -> None:
    """Twice, each time on a stack of its own: at each check the same pages are shared, with
    the same ones, after as many copies on write, loads and attaches."""

    @seed(SEED)
    @settings(DRAWN, max_examples=2)
    @given(ops=operations(STEPS // 2))
    def twice(ops: list[Op]) -> None:
        assume_variety(ops)
        plan = Plan(SEED, 3, ops)
        first, second = (run(build, tmp_path / name, plan) for name in ("first", "second"))
        assert not difference(first, second)
        assert any(each["mappings"] > each["published"] > 0 for each in first.accounts)
        last = [count for each in first.accounts for count in each["counts"].values()]
        assert any(count["merged_pages"] for count in last)

    twice()
