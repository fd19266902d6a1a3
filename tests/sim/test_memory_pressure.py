# SPDX-License-Identifier: Apache-2.0
"""When memory runs out: who overcommitted pays, everybody else runs on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from gksm_bench.simgpu import Probe, SimulatedGpu
from gksm_bench.stack import PATIENT, Stack

from tests.conftest import VRAM, MakeRemote, MakeStack
from tests.support.control import ask
from tests.support.pages import PAGE, digests
from tests.support.remote import Remote, RemoteError

OUT_OF_MEMORY = 2
OFFSET = 12 * 1024
Sharer = Callable[..., Remote]
Eventually = Callable[..., None]


def take_the_rest(plain: Remote) -> None:
    """Take all free memory of the device with a program that has no libgksm."""
    pages = 64
    while pages:
        with suppress(RemoteError):
            while True:
                plain.write_words(plain.alloc(pages), 1, 1)
        pages //= 2


def container(stack: Stack, name: str) -> dict[str, str]:
    """The environment of a process in the container of that name."""
    box = {"id": name * 8, "engine": "docker", "name": name}
    answer = ask(stack.run_dir / "runtime.sock", op="prepare", container=box)
    return stack.environment() | {"GKSM_SOCKET": answer["result"]["socket"]}


def account(stack: Stack, domain: str) -> dict[str, Any]:
    (found,) = [row for row in stack.status()["accounts"] if row["domain"] == domain]
    return dict(found)


def outcome(writer: Remote, place: int, word: int) -> list[str] | None:
    """After writes to a hundred pages: the pages' names, or None if the program's context died."""
    try:
        writer.receive()
        found: list[str] = writer.digests(place, 100)
    except RemoteError:
        return None
    assert writer.read_words(place + 99 * PAGE + OFFSET, 1) == [word]
    return found


@pytest.mark.parametrize("admission", ["share-aware", "strict"])
def test_a_full_gpu_starts_a_second_program_with_the_same_model_if_that_is_allowed(
    gpu: SimulatedGpu, make_stack: MakeStack, make_remote: MakeRemote, admission: str
) -> None:
    stack = make_stack(gpu, config=f'{PATIENT}[memory]\nadmission = "{admission}"')
    seeds = list(range(1, 65))
    a, b = make_remote(stack.environment()), make_remote(stack.environment())
    at_a = a.alloc(64)
    a.load(at_a, seeds)
    take_the_rest(make_remote(stack.environment(shared=False)))
    if admission == "strict":
        with pytest.raises(RemoteError) as refused:
            b.alloc(64)
        assert refused.value.code == OUT_OF_MEMORY
        return
    with pytest.raises(RemoteError) as refused:
        b.alloc(65)
    assert refused.value.code == OUT_OF_MEMORY
    at_b = b.alloc(64)
    b.load(at_b, seeds)
    assert b.shared_pages(at_b, 64) == 64
    assert b.digests(at_b, 64) == digests(seeds)
    with pytest.raises(RemoteError):
        b.alloc(1)  # each published page counts once


def test_a_program_that_was_let_in_for_another_model_fails_alone(
    sharer: Sharer, stack: Stack, make_remote: MakeRemote
) -> None:
    seeds = list(range(1, 65))
    a, b = sharer(), sharer()
    at_a = a.alloc(64)
    a.load(at_a, seeds)
    take_the_rest(make_remote(stack.environment(shared=False)))
    at_b = b.alloc(64)
    with pytest.raises(RemoteError) as refused:
        b.load(at_b, list(range(1001, 1065)))
    assert refused.value.code == OUT_OF_MEMORY
    b.free(at_b)
    assert a.digests(at_a, 64) == digests(seeds)
    assert len(set(a.hashes(at_a, 64))) == 64


def test_who_overcommits_pays_and_everybody_else_runs_on(
    gpu: SimulatedGpu,
    make_stack: MakeStack,
    make_remote: MakeRemote,
    probe: Probe,
    eventually: Eventually,
) -> None:
    """Memory is filled with shared pages, and then all of them are written to."""
    config = f'{PATIENT}[memory]\nlow_water = "25%"\nreserve = "4%"'
    rules = [[name, "--match", f"container-name={name}"] for name in ("bold", "careful")]
    stack = make_stack(gpu, config=config, domain_rules=rules)
    bold = [make_remote(container(stack, "bold")) for _ in range(3)]
    careful = make_remote(container(stack, "careful"))
    model, own = list(range(1, 101)), list(range(501, 521))
    places = []
    for each in bold:
        places.append(each.alloc(100))
        each.load(places[-1], model)
    assert 3 * 100 * PAGE > VRAM
    at_own, at_promised = careful.alloc(20), careful.alloc(40)
    careful.load(at_own, own)
    eventually(
        lambda: (
            account(stack, "careful")["commit_bytes"] == 40 * PAGE
            and account(stack, "bold")["debt_bytes"] == 200 * PAGE
        ),
        "the accounts",
    )
    assert not stack.status()["gpus"][0]["memory_short"]

    # Memory gets short, and what the other domain was promised is taken while it is there.
    bold[1].write_kernel(places[1], list(range(40)), OFFSET, 1)
    bold[1].sync()
    eventually(lambda: careful.statistics(at_promised)["unbacked_pages"] == 0, "early backing")
    assert stack.status()["gpus"][0]["memory_short"]

    for number in (1, 2):
        bold[number].send("write_kernel", places[number], list(range(100)), OFFSET, number)
        bold[number].receive()
        bold[number].send("sync")
    outcomes = [outcome(bold[n], places[n], n) for n in (1, 2)]
    assert None in outcomes  # somebody's context has died of it
    for found in filter(None, outcomes):
        assert not set(found) & set(digests(model))

    assert bold[0].digests(places[0], 100) == digests(model)
    careful.write_kernel(at_promised, list(range(40)), OFFSET, 7)
    careful.sync()
    assert careful.read_words(at_promised + 39 * PAGE + OFFSET, 1) == [7]
    assert careful.digests(at_own, 20) == digests(own)

    for each in (*bold, careful):
        each.kill()
    eventually(lambda: probe.used_bytes() == 0, "the device getting empty")
    eventually(lambda: stack.status()["instances"] == [], "the instances being forgotten")
    for row in stack.status()["gpus"]:
        assert row["debt_bytes"] == row["promised_bytes"] == row["pages_shared"] == 0
    assert all(row["commit_bytes"] == row["debt_bytes"] == 0 for row in stack.status()["accounts"])


@pytest.mark.seen_in("Project-HAMi/HAMi-core#227")
def test_eight_programs_that_allocate_until_they_are_refused_keep_what_they_got(
    stack: Stack, make_remote: MakeRemote, eventually: Eventually
) -> None:
    actors = [make_remote(stack.environment(), program="tests.support.memory") for _ in range(8)]
    for actor in actors:
        actor.send("alloc_until_refused", 4, 1000)
    answers = [actor.receive() for actor in actors]
    assert {code for _, code in answers} == {OUT_OF_MEMORY}
    got = [blocks for blocks, _ in answers]
    pages = 4 * sum(map(len, got))
    reserve = stack.status()["gpus"][0]["reserve_bytes"]
    assert 0 < pages * PAGE <= VRAM - reserve
    # Promised is promised: all of it can be used.
    for actor, blocks in zip(actors, got, strict=True):
        for block in blocks:
            actor.fill(block, 4, 9)
    assert all(
        actor.read_words(blocks[-1] + 4 * PAGE - 4, 1) == [9]
        for actor, blocks in zip(actors, got, strict=True)
        if blocks
    )
    rich = max(range(8), key=lambda n: len(got[n]))
    actors[rich].free(got[rich].pop())
    eventually(lambda: not actors[rich - 1].alloc_until_refused(4, 1)[1], "what was freed")


def test_while_memory_is_short_one_spare_page_is_kept(
    gpu: SimulatedGpu, make_stack: MakeStack, make_remote: MakeRemote, eventually: Eventually
) -> None:
    stack = make_stack(gpu, config=f'{PATIENT}[memory]\nlow_water = "50%"')
    a, b = make_remote(stack.environment()), make_remote(stack.environment())
    at_a = a.alloc(8)
    a.load(at_a, list(range(8)))
    eventually(lambda: a.statistics(at_a)["spare_pages"] == 2, "the spare pages")
    at_b = b.alloc(120)
    eventually(lambda: a.statistics(at_a)["spare_pages"] == 1, "fewer spare pages")
    a.write_kernel(at_a, list(range(8)), OFFSET, 1)
    a.sync()
    assert b.statistics(at_b)["virtual_pages"] == 120
    # Taken early, it is the program's own all the same: a load may still share it.
    eventually(lambda: b.statistics(at_b)["unbacked_pages"] == 0, "early backing")
    b.free(at_b)
    eventually(lambda: not stack.status()["gpus"][0]["memory_short"], "the end of the shortage")
    eventually(lambda: a.statistics(at_a)["virtual_pages"] == 8, "the count")


def test_what_the_driver_hands_out_itself_is_counted_and_never_refused(
    stack: Stack, make_remote: MakeRemote, eventually: Eventually
) -> None:
    actor = make_remote(stack.environment(), program="tests.support.memory")
    actor.info()

    def used() -> int:
        return int(stack.status()["gpus"][0]["used_bytes"])

    for take, give, nbytes in (
        (lambda: actor.take_pooled(64 << 20), actor.give_pooled, 64 << 20),
        (lambda: actor.take_handle(16), actor.give_handle, 16 * PAGE),
        (lambda: actor.take_small(1 << 20), actor.give_small, 1 << 20),
    ):
        take()
        eventually(lambda nbytes=nbytes: used() == nbytes, "the count")
        give()
        actor.info()
        eventually(lambda: used() == 0, "the count going back to nothing")
