# SPDX-License-Identifier: Apache-2.0
"""Equal pages that no load showed are found, merged, and written to without a trace."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from gksm_bench.simgpu import Probe, SimulatedGpu
from gksm_bench.stack import DOMAIN, PATIENT, Stack

from tests.support.pages import PAGE, digests
from tests.support.remote import Remote

WEIGHTS, KV, OTHER = range(3)
SEEDS = [21, 22, 23, 24]
WORD = 0x51AB1E
QUIET = PATIENT + "[scan]\nrun = false\n"  # only `gksmctl scan now` looks
ALL_KINDS = [[DOMAIN, "--match", f"uid={os.getuid()}", "--share", "weights,kv,other"]]

Sharer = Callable[..., Remote]


@pytest.fixture
def stack(gpu: SimulatedGpu, make_stack: Callable[..., Stack]) -> Stack:
    return make_stack(gpu, config=QUIET, domain_rules=ALL_KINDS)


def filled(actor: Remote, seeds: list[int]) -> int:
    """Pages that the load path could not share: they came from pinned memory."""
    at: int = actor.alloc(len(seeds))
    actor.load_pinned(at, seeds)
    assert actor.shared_pages(at, len(seeds)) == 0
    return at


def scan(stack: Stack, *options: str) -> None:
    stack.gksmctl("scan", "now", *options)


def test_equal_pages_from_pinned_memory_become_one(
    stack: Stack, sharer: Sharer, probe: Probe
) -> None:
    a, b = sharer(), sharer()
    at_a, at_b = filled(a, SEEDS), filled(b, SEEDS)
    before = probe.used_bytes()
    scan(stack)
    assert a.shared_pages(at_a, 4) == b.shared_pages(at_b, 4) == 4
    spares = (a.statistics(at_a)["spare_pages"] + b.statistics(at_b)["spare_pages"]) * PAGE
    assert probe.used_bytes() <= before - 4 * PAGE + spares
    assert a.digests(at_a, 4) == b.digests(at_b, 4) == digests(SEEDS)
    assert stack.status()["gpus"][0]["pages_sharing"] == 4


def test_equal_pages_of_one_process_become_one(stack: Stack, sharer: Sharer, probe: Probe) -> None:
    a = sharer()
    at = filled(a, [5] * 16)
    scan(stack)
    assert a.shared_pages(at, 16) == 16
    (gpu,) = stack.status()["gpus"]
    assert (gpu["pages_shared"], gpu["pages_sharing"]) == (1, 15)
    assert a.digests(at, 16) == digests([5] * 16)


def test_a_page_joins_one_that_was_loaded_before(stack: Stack, sharer: Sharer) -> None:
    a, b = sharer(), sharer()
    at_a = a.alloc(4)
    a.load(at_a, SEEDS)
    at_b = filled(b, SEEDS)
    scan(stack)
    assert b.shared_pages(at_b, 4) == 4
    assert stack.status()["gpus"][0]["pages_sharing"] == 4
    assert b.digests(at_b, 4) == digests(SEEDS)


def write(actor: Remote, at: int, page: int, way: str) -> None:
    match way:
        case "kernel":
            actor.write_kernel(at, [page], 4096, WORD)
        case "memset":
            actor.memset(at + page * PAGE + 4096, WORD, 1)
        case "copy":
            actor.write_words(at + page * PAGE + 4096, WORD, 1)
    actor.sync()


@pytest.mark.parametrize("way", ["kernel", "memset", "copy"])
def test_a_write_to_a_merged_page_is_seen_by_the_writer_alone(
    stack: Stack, sharer: Sharer, way: str
) -> None:
    a, b = sharer(), sharer()
    at_a, at_b = filled(a, SEEDS), filled(b, SEEDS)
    scan(stack)
    write(b, at_b, 2, way)
    assert a.digests(at_a, 4) == digests(SEEDS)
    found = b.digests(at_b, 4)
    assert [n for n in range(4) if found[n] != digests(SEEDS)[n]] == [2]
    assert b.read_words(at_b + 2 * PAGE + 4096, 1) == [WORD]
    assert b.shared_pages(at_b, 4) == 3


def test_a_page_that_keeps_changing_is_never_merged(stack: Stack, sharer: Sharer) -> None:
    a, b = sharer(), sharer()
    at_a, at_b = filled(a, [31] * 2), filled(b, [31] * 2)
    for step in range(8):
        for actor, at in ((a, at_a), (b, at_b)):
            actor.write_kernel(at, [0], 8192, step)  # the same in both, and new each time
            actor.sync()
        scan(stack, "--passes", "1")
    assert a.shared_pages(at_a, 1) == b.shared_pages(at_b, 1) == 0
    assert a.shared_pages(at_a + PAGE, 1) == b.shared_pages(at_b + PAGE, 1) == 1
    assert a.statistics(at_a)["churned_merges"] == b.statistics(at_b)["churned_merges"] == 0


def test_it_takes_as_many_equal_looks_as_were_asked_for(stack: Stack, sharer: Sharer) -> None:
    stack.gksmctl("scan", "set", "stable_hashes=5")
    a = sharer()
    at = filled(a, [6, 6])
    scan(stack, "--passes", "4")
    assert a.shared_pages(at, 2) == 0
    scan(stack, "--passes", "1")
    assert a.shared_pages(at, 2) == 2


def test_passes_on_demand_leave_nobody_with_a_page_to_merge(stack: Stack, sharer: Sharer) -> None:
    """The last pass that was asked for published the pages that one process was noted for."""
    a, b = sharer(), sharer()
    at_a, at_b = filled(a, SEEDS), filled(b, SEEDS)
    scan(stack, "--passes", "3")
    assert a.shared_pages(at_a, 4) == b.shared_pages(at_b, 4) == 4


def test_a_page_copied_on_the_device_is_merged_sooner(stack: Stack, sharer: Sharer) -> None:
    a = sharer()
    at = a.alloc(2)
    a.load(at, [8, 9])
    copy = a.alloc(2)
    a.copy_device(copy, at, 2 * PAGE)
    a.sync()
    scan(stack, "--passes", "2")
    assert a.shared_pages(copy, 2) == 2
    assert a.digests(copy, 2) == digests([8, 9])


def test_what_a_copy_engine_is_at_is_left_alone(stack: Stack, sharer: Sharer) -> None:
    a = sharer()
    at = filled(a, [11, 11, 12, 12])
    held = a.hold("nb-copies")
    pinned = a.begin_read(at, 2 * PAGE, "nb-copies")
    scan(stack)
    assert a.shared_pages(at, 2) == 0
    assert a.shared_pages(at + 2 * PAGE, 2) == 2
    a.let_go(held)
    a.sync()
    assert a.pinned_digests(pinned, 2) == digests([11, 11])
    scan(stack)
    assert a.shared_pages(at, 4) == 4


def test_a_kernel_that_writes_all_the_time_never_stumbles_over_the_scanner(
    stack: Stack, sharer: Sharer
) -> None:
    a, b = sharer(), sharer()
    seeds = [41, 41, 42, 43]
    at_a, at_b = filled(a, seeds), filled(b, seeds)
    stack.gksmctl("scan", "set", "run=on", "interval_ms=1", "max_interval_ms=1", "stable_hashes=1")
    stack.gksmctl("scan", "set", "max_percent=100")
    for step in range(1, 150):
        for actor, at in ((a, at_a), (b, at_b)):
            actor.write_kernel(at, [step % 4], 64 * step, WORD + step, f"s{step % 2}")
            if step % 5 == 0:
                actor.memset(at + (step % 3) * PAGE + 64 * step + 32, step, 1, f"s{step % 2}")
    for actor, at in ((a, at_a), (b, at_b)):
        actor.sync()
        for step in range(1, 150):
            assert actor.read_words(at + (step % 4) * PAGE + 64 * step, 1) == [WORD + step]
    assert a.digests(at_a, 4) == b.digests(at_b, 4)


def test_freeing_and_loading_beside_the_scanner_loses_no_byte_and_no_count(
    stack: Stack, sharer: Sharer, eventually: Callable[..., None]
) -> None:
    stack.gksmctl("scan", "set", "run=on", "interval_ms=1", "max_interval_ms=1", "stable_hashes=1")
    stack.gksmctl("scan", "set", "max_percent=100", "zero_pages=on")
    actors = [sharer(), sharer()]
    begun = [actor.begin("storm", 3, 4.0, 77 + n) for n, actor in enumerate(actors)]
    for actor, number in zip(actors, begun, strict=True):
        assert actor.end(number) == {"value": []}

    def mapped() -> list[int]:
        return [instance["shared_bytes"] for instance in stack.status()["instances"]]

    eventually(lambda: mapped() == [0, 0], "the end of all mappings")


# Kinds


def test_a_domain_shares_weights_only_unless_told_otherwise(
    gpu: SimulatedGpu, make_stack: Callable[..., Stack], make_remote: Callable[..., Remote]
) -> None:
    stack = make_stack(gpu, config=QUIET)
    a = make_remote(stack.environment())
    weights = filled(a, [1, 1])
    other = a.alloc(2)
    a.memset(other, WORD, 2 * PAGE // 4)
    a.sync()
    scan(stack)
    assert a.shared_pages(weights, 2) == 2
    assert a.shared_pages(other, 2) == 0
    assert a.set_kind(other, 2, WEIGHTS) == 0
    scan(stack)
    assert a.shared_pages(other, 2) == 2


def test_a_hint_holds_until_the_memory_is_freed(stack: Stack, sharer: Sharer) -> None:
    a = sharer()
    at = filled(a, [1, 1])
    assert a.set_kind(at, 2, KV) == 0
    scan(stack)
    kinds = stack.gksmctl("pages", "--json")
    assert '"kv"' in kinds
    assert '"weights"' not in kinds
    a.free(at)
    filled(a, [1, 1])
    scan(stack)
    assert '"weights"' in stack.gksmctl("pages", "--json")


@pytest.mark.parametrize("kind", [-1, 3])
def test_a_kind_that_does_not_exist_is_refused(stack: Stack, sharer: Sharer, kind: int) -> None:
    a = sharer()
    assert a.set_kind(a.alloc(1), 1, kind) == -22


# Zeros


def zeroed(actor: Remote, pages: int) -> int:
    """Backed pages of zeros."""
    at: int = actor.alloc(pages)
    actor.memset(at, 1, pages * PAGE // 4)
    actor.memset(at, 0, pages * PAGE // 4)
    actor.sync()
    return at


def test_pages_of_zeros_are_merged_only_if_asked_for(stack: Stack, sharer: Sharer) -> None:
    a, b = sharer(), sharer()
    at_a, at_b = zeroed(a, 8), zeroed(b, 8)
    scan(stack)
    assert a.shared_pages(at_a, 8) == 0
    stack.gksmctl("scan", "set", "zero_pages=on")
    scan(stack)
    assert a.shared_pages(at_a, 8) == b.shared_pages(at_b, 8) == 8
    (gpu,) = stack.status()["gpus"]
    assert (gpu["pages_zero"], gpu["pages_shared"], gpu["pages_sharing"]) == (16, 0, 0)
    assert gpu["saved_bytes"] == 15 * PAGE


def test_the_first_write_to_a_page_of_zeros_gives_a_private_one(
    stack: Stack, sharer: Sharer
) -> None:
    stack.gksmctl("scan", "set", "zero_pages=on")
    a, b = sharer(), sharer()
    at_a, at_b = zeroed(a, 4), zeroed(b, 4)
    scan(stack)
    a.write_kernel(at_a, [1], 4096, WORD)
    a.sync()
    assert a.read_words(at_a + PAGE + 4096, 1) == [WORD]
    assert a.read_words(at_a + PAGE, 1024) == [0] * 1024
    assert b.digests(at_b, 4) == digests([0] * 4)
    assert a.digests(at_a, 4)[::3] == digests([0, 0])
    assert a.statistics(at_a)["zero_pages"] == 3


@pytest.mark.parametrize("stream", ["", "own", "per-thread"])
def test_memory_that_was_only_ever_zeroed_takes_none(
    stack: Stack, sharer: Sharer, probe: Probe, stream: str
) -> None:
    a = sharer()
    at = a.alloc(16)
    before = probe.used_bytes()
    a.memset(at, 0, 16 * PAGE // 4, stream)
    a.sync()
    assert probe.used_bytes() == before
    assert a.statistics(at)["unbacked_pages"] == 16
    assert a.digests(at, 16) == digests([0] * 16)


def test_zeros_behind_a_kernel_that_still_writes_come_after_it(
    stack: Stack, sharer: Sharer
) -> None:
    a = sharer()
    at = a.alloc(2)
    held = a.hold("own")
    a.write_kernel(at, [0, 1], 4096, WORD, "own")
    begun = a.begin("let_go_after", held, 0.3)
    a.memset(at, 0, 2 * PAGE // 4, "own")
    a.end(begun)
    a.sync()
    assert a.digests(at, 2) == digests([0, 0])


def test_zeros_over_some_pages_that_are_written_to_clear_those(
    stack: Stack, sharer: Sharer
) -> None:
    a = sharer()
    at = a.alloc(4)
    a.write_kernel(at, [0, 2], 4096, WORD)
    a.sync()
    a.memset(at, 0, 4 * PAGE // 4)
    a.sync()
    assert a.digests(at, 4) == digests([0] * 4)


# Steering


def test_settings_are_in_force_at_once_and_shown(stack: Stack, sharer: Sharer) -> None:
    a = sharer()
    filled(a, [3, 3])
    told = stack.gksmctl("scan", "set", "run=on", "interval_ms=10", "max_interval_ms=20")
    assert "1 instances" in told
    shown: Any = stack.gksmctl("scan", "show")
    assert "interval_ms = 10\n" in shown
    assert "run = true\n" in shown


def test_the_scanner_finds_equal_pages_by_itself(
    stack: Stack, sharer: Sharer, eventually: Callable[..., None]
) -> None:
    a, b = sharer(), sharer()
    at_a, at_b = filled(a, SEEDS), filled(b, SEEDS)
    stack.gksmctl("scan", "set", "run=on", "interval_ms=10", "max_interval_ms=20")
    eventually(lambda: a.shared_pages(at_a, 4) == b.shared_pages(at_b, 4) == 4, "merging by itself")
    assert a.digests(at_a, 4) == b.digests(at_b, 4) == digests(SEEDS)
