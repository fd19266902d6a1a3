# SPDX-License-Identifier: Apache-2.0
"""Devices on which sharing is not sound are left alone, and an operator is told why."""

from __future__ import annotations

from tests.conftest import MakeGpu, MakeRemote, MakeStack
from tests.support.pages import digests

SEEDS = [1, 2, 3, 4]


def test_nothing_is_shared_through_mps_and_explain_says_so(
    make_gpu: MakeGpu, make_stack: MakeStack, make_remote: MakeRemote
) -> None:
    stack = make_stack(make_gpu(extra={"SIMCUDA_CLAIM": "mps"}))
    a, b = make_remote(stack.environment()), make_remote(stack.environment())
    for process in (a, b):
        at = process.alloc(len(SEEDS))
        process.load(at, SEEDS)
        assert process.digests(at, len(SEEDS)) == digests(SEEDS)
    assert stack.status()["domains"][0]["pages_shared"] == 0
    assert "MPS" in stack.gksmctl("logs", str(a.pid))
    assert "off" in stack.gksmctl("explain", str(a.pid))


def test_a_mig_instance_shares_within_itself(
    make_gpu: MakeGpu, make_stack: MakeStack, make_remote: MakeRemote
) -> None:
    stack = make_stack(make_gpu(extra={"SIMCUDA_CLAIM": "mig"}))
    a, b = make_remote(stack.environment()), make_remote(stack.environment())
    places = [process.alloc(len(SEEDS)) for process in (a, b)]
    for process, at in zip((a, b), places, strict=True):
        process.load(at, SEEDS)
    for process, at in zip((a, b), places, strict=True):
        assert process.shared_pages(at, len(SEEDS)) == len(SEEDS)
        assert process.digests(at, len(SEEDS)) == digests(SEEDS)
