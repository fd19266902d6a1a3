# SPDX-License-Identifier: Apache-2.0
"""A model that nobody runs stays in GPU memory, and is in nobody's way there."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest
from gksm_bench.simgpu import Probe, SimulatedGpu
from gksm_bench.stack import PATIENT, Stack, wait_until

from tests.conftest import VRAM, MakeRemote, MakeStack
from tests.support.control import gksmctl
from tests.support.pages import PAGE, digests
from tests.support.remote import Remote, RemoteError

OUT_OF_MEMORY = 2

MODEL = list(range(900, 948))
OTHER = list(range(1900, 1948))


def warm_config(budget: str, more: str = "") -> str:
    """No low-water mark: on so small a GPU warm pages would be gone before they are asked for."""
    return f'{PATIENT}\n[memory]\nwarm_bytes = "{budget}"\nlow_water = 0\n{more}\n'


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


@pytest.mark.parametrize(
    "way",
    ["cuMemAlloc", "cuMemAllocPitch", "cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemCreate"],
)
def test_warm_memory_makes_way_for_an_allocation(
    stack: Stack, sharer: Callable[[], Remote], way: str
) -> None:
    """What is promised may be covered by them, and takes their memory when it is written to."""
    run_once(sharer, MODEL)
    run_once(sharer, OTHER)
    is_warm(stack, len(MODEL) + len(OTHER))
    needy = sharer()

    def take() -> None:
        if way == "cuMemAlloc":
            needy.memset(needy.alloc(170), 7, 170 * PAGE // 4)
        else:
            needy.allocate(way, 170 * PAGE)

    take()
    # Nobody has used the first one for longer.
    is_warm(stack, len(OTHER))
    with pytest.raises(RemoteError) as caught:
        take()
    assert caught.value.code == OUT_OF_MEMORY


def test_programs_that_start_at_once_share_out_the_memory_of_warm_pages(
    gpu: SimulatedGpu, make_stack: MakeStack, make_remote: MakeRemote
) -> None:
    """Whoever asks while pages make way for another is not refused what is then left."""
    stack = make_stack(gpu, config=warm_config("90%", 'admission = "strict"'))
    for first in range(0, 192, 48):
        run_once(lambda: make_remote(stack.environment()), list(range(first, first + 48)))
    is_warm(stack, 192)
    needy = [make_remote(stack.environment()) for _ in range(4)]
    for actor in needy:
        actor.alloc(1)
    begun = [actor.begin("alloc", 50) for actor in needy]
    for actor, number in zip(needy, begun, strict=True):
        actor.memset(actor.end(number)["value"], 7, 50 * PAGE // 4)


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
    filler.allocate("cuMemCreate", (VRAM - probe.used_bytes()) // PAGE * PAGE)
    assert warm_bytes(stack) == len(MODEL) * PAGE
    actor.write_words(at + 3 * PAGE, 7, 1)
    assert actor.read_words(at + 3 * PAGE, 1) == [7]
    is_warm(stack, 0)
    assert len(loads(stack)) == 1


def test_an_allocation_that_fails_while_gksmd_is_frozen_fails_and_does_not_hang(
    stack: Stack, sharer: Callable[[], Remote]
) -> None:
    run_once(sharer, MODEL)
    is_warm(stack, len(MODEL))
    needy = sharer()
    needy.alloc(1)
    assert stack.gksmd is not None
    stack.gksmd.send_signal(signal.SIGSTOP)
    with pytest.raises(RemoteError) as caught:
        needy.allocate("cuMemCreate", 230 * PAGE)
    assert caught.value.code == OUT_OF_MEMORY
    stack.gksmd.send_signal(signal.SIGCONT)

    def succeeds() -> bool:
        try:
            needy.allocate("cuMemCreate", 230 * PAGE)
        except RemoteError:
            return False
        return True

    wait_until(succeeds, "the memory being had once gksmd answers again")


def test_a_program_sees_warm_memory_as_free_and_can_have_it(
    stack: Stack, sharer: Callable[[], Remote]
) -> None:
    run_once(sharer, MODEL)
    is_warm(stack, len(MODEL))
    needy = sharer()
    needy.alloc(1)
    free, _ = needy.info()
    assert free == VRAM - PAGE - stack.status()["gpus"][0]["reserve_bytes"]
    needy.memset(needy.alloc(free // PAGE), 7, free // PAGE * PAGE // 4)
    assert warm_bytes(stack) == 0


def test_a_warm_model_starts_on_a_gpu_that_has_no_room_for_it_twice(
    gpu: SimulatedGpu, make_stack: MakeStack, make_remote: MakeRemote, probe: Probe
) -> None:
    """Its allocations are no reason to give it up, memory being short is none either."""
    config = f'{PATIENT}\n[memory]\nwarm_bytes = "80%"\n'
    stack = make_stack(gpu, config=config)
    seeds = list(range(3000, 3160))
    run_once(lambda: make_remote(stack.environment()), seeds)
    is_warm(stack, len(seeds))
    before = probe.copied_bytes()
    again = make_remote(stack.environment())
    places = [again.alloc(40) for _ in range(4)]
    for i, place in enumerate(places):
        again.load(place, seeds[i * 40 : (i + 1) * 40])
    assert probe.copied_bytes() == before
    assert again.digests(places[3], 40) == digests(seeds[120:])


def test_a_pinned_model_stays_where_an_allocation_fails(
    gpu: SimulatedGpu, make_stack: MakeStack, make_remote: MakeRemote
) -> None:
    """Where nothing but free memory counts; else it may be what is allocated for."""
    stack = make_stack(gpu, config=warm_config("50%", 'admission = "strict"'))

    def sharer() -> Remote:
        return make_remote(stack.environment())

    run_once(sharer, MODEL)
    is_warm(stack, len(MODEL))
    [load] = loads(stack)
    stack.gksmctl("warm", "pin", str(load["load"]))
    needy = sharer()
    with pytest.raises(RemoteError) as caught:
        needy.alloc(210)
    assert caught.value.code == OUT_OF_MEMORY
    assert warm_bytes(stack) == len(MODEL) * PAGE
    stack.gksmctl("warm", "drop", str(load["load"]))
    needy.alloc(210)


def drained(stack: Stack, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit status and answer of `gksmctl drain --json`."""
    done = gksmctl(*stack.where_arguments, "drain", "--json", *arguments)
    return done.returncode, json.loads(done.stdout)


def test_a_drain_names_who_holds_the_gpu_and_ends_well_when_they_have_left(
    stack: Stack, sharer: Callable[[], Remote], probe: Probe
) -> None:
    run_once(sharer, MODEL)
    is_warm(stack, len(MODEL))
    [load] = loads(stack)
    stack.gksmctl("warm", "pin", str(load["load"]))
    living = sharer()
    at = living.alloc(len(OTHER))
    living.load(at, OTHER)
    wait_until(lambda: living.statistics(at)["spare_pages"] > 0, "the spare pages")

    # Of this GPU: others may be in use on this machine.
    of_it = ("--gpu", stack.status()["gpus"][0]["uuid"])
    status, answer = drained(stack, *of_it, "--wait", "0.5")
    assert status == 1
    assert not answer["clear"]
    assert living.pid in [h["pid"] for h in answer["holders"] if h["gksm"]]
    # The probe uses the GPU without gKSM: it is shown, and is none of ours.
    assert probe.process.pid in [h["pid"] for h in answer["holders"] if not h["gksm"]]
    said = gksmctl(*stack.where_arguments, "drain", *of_it, "--wait", "0")
    assert said.returncode == 1
    assert f"({living.pid})" in said.stderr
    assert "undrain" in said.stderr
    assert warm_bytes(stack) == 0
    wait_until(lambda: living.statistics(at)["spare_pages"] == 0, "the end of the spare pages")

    # It goes on with what it has, and shares nothing new.
    assert living.digests(at, len(OTHER)) == digests(OTHER)
    more = living.alloc(4)
    living.load(more, MODEL[:4])
    assert living.shared_pages(more, 4) == 0
    newcomer = sharer()
    new = newcomer.alloc(len(OTHER))
    newcomer.load(new, OTHER)
    assert newcomer.shared_pages(new, len(OTHER)) == 0
    newcomer.kill()

    stack.kill_gksmd()
    stack.start_gksmd()
    living.finish()
    status, answer = drained(stack, *of_it)
    assert status == 0, answer
    assert answer["clear"]
    assert [h for h in answer["holders"] if h["gksm"]] == []
    assert probe.used_bytes() == 0


def test_undrain_lets_the_programs_that_run_share_again(
    stack: Stack, sharer: Callable[[], Remote], eventually: Callable[..., None]
) -> None:
    a, b = sharer(), sharer()
    at_a, at_b = a.alloc(8), b.alloc(8)
    a.load(at_a, OTHER[:8])
    [gpu] = stack.status()["gpus"]
    drained(stack, "--gpu", gpu["uuid"], "--wait", "0")
    eventually(lambda: a.statistics(at_a)["spare_pages"] == 0, "the end of the spare pages")
    stack.gksmctl("undrain", "--gpu", gpu["uuid"])
    eventually(lambda: a.statistics(at_a)["spare_pages"] > 0, "new spare pages")

    def shares() -> bool:
        b.load(at_b, OTHER[:8])
        return bool(b.shared_pages(at_b, 8) == 8)

    eventually(shares, "sharing to resume")
    assert b.digests(at_b, 8) == digests(OTHER[:8])


def test_one_gpu_of_two_is_drained(
    make_gpu: Callable[..., SimulatedGpu], make_stack: MakeStack, make_remote: MakeRemote
) -> None:
    stack = make_stack(make_gpu(devices=2), config=warm_config("50%"))
    for device in (0, 1):
        run_once(lambda device=device: make_remote(stack.environment(), device=device), OTHER[:8])
    is_warm(stack, 16)
    first, second = (gpu["uuid"] for gpu in stack.status()["gpus"])
    status, answer = drained(stack, "--gpu", first)
    assert status == 0, answer
    [left] = [gpu for gpu in stack.status()["gpus"] if gpu["warm_bytes"]]
    assert (left["uuid"], left["draining"]) == (second, False)
    status, answer = drained(stack, "--gpu", second[:12])
    assert status == 0, answer
    is_warm(stack, 0)
