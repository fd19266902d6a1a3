# SPDX-License-Identifier: Apache-2.0
"""A process that gksmd does not serve runs on, and everybody who may ask hears why."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gksm_bench.processes import ChildError
from gksm_bench.simgpu import SimulatedGpu
from gksm_bench.stack import PATIENT, Stack

from tests.conftest import MakeRemote, MakeStack
from tests.support.pages import digests
from tests.support.remote import Remote

SEEDS = [1, 2, 3, 4]


def runs(actor: Remote) -> bool:
    """Whether it loads and reads."""
    at = actor.alloc(len(SEEDS))
    actor.load(at, SEEDS)
    return bool(actor.digests(at, len(SEEDS)) == digests(SEEDS))


def explained(stack: Stack, actor: Remote) -> str:
    """What gksmctl says, be it a refusal."""
    try:
        return stack.gksmctl("explain", str(actor.pid))
    except ChildError as error:
        return str(error)


REASONS = {
    "its user may not": ("bare.uids = [12345]\n", "is not in bare.uids of gksm.toml"),
    "its domain has no place left": (
        "quota.domain.connections = 1\n", "connections are in use"),
}  # fmt: skip


@pytest.mark.parametrize("case", REASONS)
def test_the_reason_is_in_its_records_and_in_explain(
    gpu: SimulatedGpu, make_stack: MakeStack, make_remote: MakeRemote, case: str
) -> None:
    config, reason = REASONS[case]
    stack = make_stack(gpu, config=config + PATIENT)
    make_remote(stack.environment())  # takes the place, if there is one
    actor = make_remote(stack.environment())
    assert runs(actor)
    told = [line for line in actor.records().splitlines() if reason in line]
    assert len(told) == 1, actor.records()
    assert told[0].startswith("warning: gksmd does not serve this process: ")
    assert "does not answer" not in actor.records()
    assert reason in explained(stack, actor)
    assert "turned away" in explained(stack, actor)


def test_once_there_is_a_place_it_is_served_and_its_records_tell_what_was(
    gpu: SimulatedGpu,
    make_stack: MakeStack,
    make_remote: MakeRemote,
    eventually: Callable[..., None],
) -> None:
    stack = make_stack(gpu, config="quota.domain.connections = 1\n" + PATIENT)
    first = make_remote(stack.environment())
    second = make_remote(stack.environment())
    assert runs(second)
    first.kill()
    eventually(lambda: "turned away" not in explained(stack, second), "its being served")
    assert "identified by" in explained(stack, second)
    eventually(
        lambda: "does not serve this process" in stack.gksmctl("logs", str(second.pid)),
        "the record reaching gksmd",
    )
