# SPDX-License-Identifier: Apache-2.0
"""A model that nobody runs stays in GPU memory, and is in nobody's way there."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from gksm_bench.simgpu import Probe, SimulatedGpu
from gksm_bench.stack import PATIENT, Stack, wait_until

from tests.support.pages import PAGE, digests
from tests.support.remote import Remote, RemoteError

MakeRemote = Callable[..., Remote]
MakeStack = Callable[..., Stack]
OUT_OF_MEMORY = 2

MODEL = list(range(900, 948))
OTHER = list(range(1900, 1948))


def warm_config(budget: str) -> str:
    return f'{PATIENT}\n[memory]\nwarm_bytes = "{budget}"\n'


def warm_bytes(stack: Stack) -> int:
    return sum(gpu["warm_bytes"] for gpu in stack.status()["gpus"])


def loads(stack: Stack) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(stack.gksmctl("warm", "list", "--json"))
    return found


def is_warm(stack: Stack, pages: int) -> None:
    wait_until(lambda: warm_bytes(stack) == pages * PAGE, f"{pages} warm pages")


def run_once(start: Callable[[], Remote], seeds: list[int]) -> None:
    """Load a model, and end."""
    actor = start()
    actor.load(actor.alloc(len(seeds)), seeds)
    assert actor.finish() == 0


@pytest.fixture
def stack(gpu: SimulatedGpu, make_stack: MakeStack) -> Stack:
    """On a GPU of 256 pages, half of which may stay warm."""
    return make_stack(gpu, config=warm_config("50%"))


def test_a_warm_models_second_start_transfers_no_byte(
    stack: Stack, sharer: Callable[[], Remote], probe: Probe
) -> None:
    run_once(sharer, MODEL)
    is_warm(stack, len(MODEL))
    before = probe.copied_bytes()
    assert before >= len(MODEL) * PAGE
    again = sharer()
    at = again.alloc(len(MODEL))
    again.load(at, MODEL)
    assert again.digests(at, len(MODEL)) == digests(MODEL)
    assert again.statistics(at)["attached_pages"] == len(MODEL)
    assert probe.copied_bytes() == before
    assert warm_bytes(stack) == 0


def test_nothing_stays_by_default(
    gpu: SimulatedGpu, make_stack: MakeStack, make_remote: MakeRemote, probe: Probe
) -> None:
    stack = make_stack(gpu)
    run_once(lambda: make_remote(stack.environment()), MODEL)
    wait_until(lambda: probe.used_bytes() == 0, "the device getting empty")


def test_a_warm_model_survives_gksmd_and_goes_with_the_vault(
    stack: Stack, sharer: Callable[[], Remote], probe: Probe
) -> None:
    run_once(sharer, MODEL)
    is_warm(stack, len(MODEL))
    stack.kill_gksmd()
    stack.start_gksmd()
    before = probe.copied_bytes()
    again = sharer()
    again.load(again.alloc(len(MODEL)), MODEL)
    assert probe.copied_bytes() == before
    again.finish()
    is_warm(stack, len(MODEL))
    stack.kill_vault()
    is_warm(stack, 0)
    wait_until(lambda: probe.used_bytes() == 0, "the memory being free")
    stack.start_vault()
    run_once(sharer, MODEL)
    is_warm(stack, len(MODEL))


def everything_else(actor: Remote, way: str, pages: int) -> None:
    """Allocate that much in one of the ways that programs have."""
    if way == "cuMemAlloc":
        actor.alloc(pages)
    else:
        actor.allocate(way, pages * PAGE)


@pytest.mark.parametrize(
    "way",
    [
        "cuMemAlloc",
        "cuMemAllocManaged",
        "cuMemAllocPitch",
        "cuMemAllocAsync",
        "cuMemAllocFromPoolAsync",
        "cuMemCreate",
    ],
)
def test_warm_memory_makes_way_for_an_allocation(
    stack: Stack, sharer: Callable[[], Remote], way: str
) -> None:
    run_once(sharer, MODEL)
    run_once(sharer, OTHER)
    is_warm(stack, len(MODEL) + len(OTHER))
    needy = sharer()
    everything_else(needy, way, 170)
    # Nobody has used the first one for longer.
    is_warm(stack, len(OTHER))
    with pytest.raises(RemoteError) as caught:
        everything_else(needy, way, 170)
    assert caught.value.code == OUT_OF_MEMORY


def test_many_small_allocations_get_the_memory_of_warm_pages(
    stack: Stack, sharer: Callable[[], Remote], probe: Probe
) -> None:
    run_once(sharer, MODEL)
    is_warm(stack, len(MODEL))
    needy = sharer()
    needy.allocate("cuMemCreate", (256 - len(MODEL)) * PAGE)
    needy.alloc_bytes(PAGE // 2)
    is_warm(stack, 0)


def test_a_write_to_a_shared_page_gets_the_memory_of_warm_pages(
    stack: Stack, sharer: Callable[[], Remote], probe: Probe
) -> None:
    """By a copy; a kernel's write has the reserve."""
    run_once(sharer, MODEL)
    is_warm(stack, len(MODEL))
    actor, filler = sharer(), sharer()
    at = actor.alloc(8)
    actor.load(at, OTHER[:8])
    wait_until(lambda: actor.statistics(at)["spare_pages"] > 0, "the spare pages")
    free, _ = filler.info()
    filler.allocate("cuMemCreate", free // PAGE * PAGE)
    assert warm_bytes(stack) == len(MODEL) * PAGE
    actor.write_words(at + 3 * PAGE, 7, 1)
    assert actor.read_words(at + 3 * PAGE, 1) == [7]
    is_warm(stack, 0)


def test_a_pinned_model_stays_where_an_allocation_fails(
    stack: Stack, sharer: Callable[[], Remote]
) -> None:
    run_once(sharer, MODEL)
    is_warm(stack, len(MODEL))
    [load] = loads(stack)
    stack.gksmctl("warm", "pin", str(load["load"]))
    needy = sharer()
    with pytest.raises(RemoteError) as caught:
        needy.alloc(240)
    assert caught.value.code == OUT_OF_MEMORY
    assert warm_bytes(stack) == len(MODEL) * PAGE
    stack.gksmctl("warm", "drop", str(load["load"]))
    needy.alloc(240)
