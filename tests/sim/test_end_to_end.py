# SPDX-License-Identifier: Apache-2.0
"""Unmodified programs share pages and never notice: the whole stack, real processes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from gksm_bench.simgpu import Probe
from gksm_bench.stack import Stack

from tests.support.full import fill_the_rest
from tests.support.pages import PAGE, digests
from tests.support.remote import Remote, RemoteError

Sharer = Callable[..., Remote]
OUT_OF_MEMORY = 2

SEEDS = list(range(1, 9))
OFFSET = 12 * 1024
WORD = 0x12345678


@pytest.fixture
def pair(sharer: Sharer) -> tuple[Remote, int, Remote, int]:
    """Two processes with the same eight pages, and where these are."""
    a, b = sharer(), sharer()
    at_a, at_b = a.alloc(len(SEEDS)), b.alloc(len(SEEDS))
    a.load(at_a, SEEDS)
    b.load(at_b, SEEDS)
    assert a.shared_pages(at_a, len(SEEDS)) == len(SEEDS)
    assert b.shared_pages(at_b, len(SEEDS)) == len(SEEDS)
    return a, at_a, b, at_b


def changed(seed_digests: list[str], found: list[str]) -> list[int]:
    """Numbers of the pages that differ."""
    return [n for n, (x, y) in enumerate(zip(seed_digests, found, strict=True)) if x != y]


def spares_of(actor: Remote, address: int, eventually: Callable[..., None]) -> int:
    """How many spare pages it has, once they are there: they come after the first shared page."""
    eventually(lambda: actor.statistics(address)["spare_pages"] > 0, "the spare pages")
    count: int = actor.statistics(address)["spare_pages"]
    return count


def test_the_second_load_of_the_same_bytes_takes_no_memory(
    sharer: Sharer, probe: Probe, eventually: Callable[..., None]
) -> None:
    a, b = sharer(), sharer()
    at_a, at_b = a.alloc(64), b.alloc(64)
    seeds = list(range(100, 164))
    a.load(at_a, seeds)
    spares_of(a, at_a, eventually)
    before = probe.used_bytes()
    b.load(at_b, seeds)
    spares = spares_of(b, at_b, eventually)
    assert probe.used_bytes() - before <= (spares + 1) * PAGE
    assert b.statistics(at_b)["attached_pages"] == 64
    assert a.digests(at_a, 64) == b.digests(at_b, 64) == digests(seeds)


def test_equal_pages_of_one_process_are_kept_once(
    sharer: Sharer, probe: Probe, eventually: Callable[..., None]
) -> None:
    a = sharer()
    at = a.alloc(32)
    before = probe.used_bytes()
    a.load(at, [7] * 32)
    spares = spares_of(a, at, eventually)
    assert probe.used_bytes() - before <= (spares + 2) * PAGE
    assert a.digests(at, 32) == digests([7] * 32)


def test_kernels_read_shared_pages(pair: tuple[Remote, int, Remote, int], gpu: Any) -> None:
    a, at_a, b, at_b = pair
    hashes = a.hashes(at_a, len(SEEDS))
    assert hashes == b.hashes(at_b, len(SEEDS))
    assert len(set(hashes)) == len(SEEDS)
    assert a.shared_pages(at_a, len(SEEDS)) == len(SEEDS)


def write_by(way: str, actor: Remote, address: int, page: int) -> None:
    """Change the word at OFFSET of one page."""
    target = address + page * PAGE + OFFSET
    match way:
        case "kernel":
            actor.write_kernel(address, [page], OFFSET, WORD)
            actor.sync()
        case "copy from the host":
            actor.write_words(target, WORD, 1)
        case "copy on the device":
            source = actor.alloc_bytes(4096)
            actor.write_words(source, WORD, 1)
            actor.copy_device(target, source, 4)
            actor.sync()
        case "memset":
            actor.memset(target, WORD, 1)
            actor.sync()
        case "memset in a stream":
            actor.memset(target, WORD, 1, "own")
            actor.sync()


@pytest.mark.parametrize(
    "way", ["kernel", "copy from the host", "copy on the device", "memset", "memset in a stream"]
)
def test_a_write_is_seen_by_the_writer_alone(
    pair: tuple[Remote, int, Remote, int], way: str
) -> None:
    a, at_a, b, at_b = pair
    write_by(way, b, at_b, 3)
    assert a.digests(at_a, len(SEEDS)) == digests(SEEDS)
    assert changed(digests(SEEDS), b.digests(at_b, len(SEEDS))) == [3]
    assert b.read_words(at_b + 3 * PAGE + OFFSET, 2)[0] == WORD
    assert b.shared_pages(at_b, len(SEEDS)) == len(SEEDS) - 1
    counts = b.statistics(at_b)
    assert counts["cow_events"] + counts["api_detaches"] == 1


def test_the_first_loader_may_write_too(pair: tuple[Remote, int, Remote, int]) -> None:
    a, at_a, b, at_b = pair
    a.write_kernel(at_a, [0, 5], OFFSET, WORD)
    a.sync()
    assert b.digests(at_b, len(SEEDS)) == digests(SEEDS)
    assert changed(digests(SEEDS), a.digests(at_a, len(SEEDS))) == [0, 5]


def test_many_kernel_writes_to_all_pages_lose_no_word(
    pair: tuple[Remote, int, Remote, int],
) -> None:
    a, at_a, b, at_b = pair
    for step in range(16):
        for actor, at in ((a, at_a), (b, at_b)):
            actor.write_kernel(
                at, list(range(8)), step * 64, actor.pid * 100 + step, f"s{step % 3}"
            )
    for actor, at in ((a, at_a), (b, at_b)):
        actor.sync()
        for page in range(8):
            words = actor.read_words(at + page * PAGE, 16 * 16)
            assert [words[step * 16] for step in range(16)] == [
                actor.pid * 100 + step for step in range(16)
            ]


@pytest.mark.parametrize("part", [4096, PAGE // 2, PAGE + PAGE // 2, 3 * PAGE // 4])
def test_pages_filled_by_several_copies_in_any_order_are_shared(sharer: Sharer, part: int) -> None:
    a, b = sharer(), sharer()
    seeds = SEEDS[: 2 if part == 4096 else 6]
    count = -(-len(seeds) * PAGE // part)
    order = list(range(count))
    random.Random(part).shuffle(order)
    at_a, at_b = a.alloc(len(seeds)), b.alloc(len(seeds))
    a.load_parts(at_a, seeds, part, list(range(count)))
    b.load_parts(at_b, seeds, part, order)
    assert a.digests(at_a, len(seeds)) == b.digests(at_b, len(seeds)) == digests(seeds)
    assert b.shared_pages(at_b, len(seeds)) == len(seeds)


def test_a_half_filled_page_reads_as_zeros_where_nothing_was_written(sharer: Sharer) -> None:
    a = sharer()
    at = a.alloc(2)
    a.write_words(at + 4096, WORD, 16)
    assert a.read_words(at, 1) == [0]
    assert a.read_words(at + 4096, 17) == [WORD] * 16 + [0]
    assert a.read_words(at + PAGE, 1) == [0]


def test_loading_over_a_shared_page_replaces_it(pair: tuple[Remote, int, Remote, int]) -> None:
    a, at_a, b, at_b = pair
    b.load(at_b + 2 * PAGE, [42])
    expected = [*SEEDS[:2], 42, *SEEDS[3:]]
    assert b.digests(at_b, len(SEEDS)) == digests(expected)
    assert a.digests(at_a, len(SEEDS)) == digests(SEEDS)


def test_pinned_and_stream_copies_read_back_right(sharer: Sharer) -> None:
    a = sharer()
    at = a.alloc(4)
    a.load_pinned(at, [1, 2, 3, 4])
    assert a.digests(at, 4) == digests([1, 2, 3, 4])
    for stream in ("legacy", "per-thread", "own", "nb"):
        a.load(at, [5, 6, 7, 8], stream)
        a.sync()
        assert a.digests(at, 4) == digests([5, 6, 7, 8])


def test_freed_memory_can_be_used_again(
    sharer: Sharer, probe: Probe, eventually: Callable[..., None]
) -> None:
    a = sharer()
    first = a.alloc(8)
    a.load(first, SEEDS)
    a.free(first)
    # The vault lets go of a page shortly after its last mapping has gone.
    eventually(lambda: probe.used_bytes() < 8 * PAGE, "the freed pages come back")
    before = probe.used_bytes()
    for round_number in range(5):
        at = a.alloc(8)
        assert a.digests(at, 8) == digests([0] * 8), "fresh memory must be zero"
        a.load(at, [seed + 10 * round_number for seed in SEEDS])
        assert a.digests(at, 8) == digests([seed + 10 * round_number for seed in SEEDS])
        a.free(at)
    eventually(lambda: probe.used_bytes() <= before, "what was freed comes back")


def test_sharing_survives_the_end_of_the_first_loader(
    pair: tuple[Remote, int, Remote, int], sharer: Sharer
) -> None:
    a, _, b, at_b = pair
    assert a.finish() == 0
    assert b.digests(at_b, len(SEEDS)) == digests(SEEDS)
    c = sharer()
    at_c = c.alloc(len(SEEDS))
    c.load(at_c, SEEDS)
    assert c.shared_pages(at_c, len(SEEDS)) == len(SEEDS)
    b.write_kernel(at_b, list(range(8)), OFFSET, WORD)
    b.sync()
    assert c.digests(at_c, len(SEEDS)) == digests(SEEDS)


def test_two_devices_do_not_share_with_each_other(
    make_gpu: Any, make_stack: Any, make_remote: Any
) -> None:
    stack: Stack = make_stack(make_gpu(devices=2, vram=128 << 20))
    a = make_remote(stack.environment(), device=0)
    b = make_remote(stack.environment(), device=1)
    for actor in (a, b):
        at = actor.alloc(4)
        actor.load(at, [1, 2, 3, 4])
        assert actor.digests(at, 4) == digests([1, 2, 3, 4])
        assert actor.statistics(at)["attached_pages"] == 0


def test_without_a_fault_guard_nothing_breaks(
    make_gpu: Any, make_stack: Any, make_remote: Any
) -> None:
    stack: Stack = make_stack(make_gpu(guard=False))
    a, b = make_remote(stack.environment()), make_remote(stack.environment())
    for actor in (a, b):
        at = actor.alloc(8)
        actor.load(at, SEEDS)
        actor.write_kernel(at, [1], OFFSET, WORD)
        actor.sync()
        assert changed(digests(SEEDS), actor.digests(at, 8)) == [1]


@pytest.mark.parametrize("stream", ["legacy", "per-thread", "own", "nb"])
@pytest.mark.parametrize("late", [False, True], ids=["soon", "late"])
def test_a_kernel_queued_before_a_load_writes_before_it(
    sharer: Sharer, stream: str, late: bool
) -> None:
    """The load comes second in the stream, so its bytes are what stays."""
    a, b = sharer(), sharer()
    at_a, at_b = a.alloc(2), b.alloc(2)
    for actor, at in ((a, at_a), (b, at_b)):
        actor.load(at, [1, 2])
    flag = a.hold(stream)
    a.write_kernel(at_a, [0, 1], OFFSET, WORD, stream)
    waker = a.begin("let_go_after", flag, 1.0 if late else 0.02)
    a.load(at_a, [3, 2], stream)
    a.sync()
    a.end(waker)
    assert a.digests(at_a, 2) == digests([3, 2])
    assert b.digests(at_b, 2) == digests([1, 2])


@pytest.mark.parametrize("late", [False, True], ids=["soon", "late"])
def test_a_kernel_joined_by_an_event_writes_before_the_load(sharer: Sharer, late: bool) -> None:
    a, b = sharer(), sharer()
    at_a, at_b = a.alloc(1), b.alloc(1)
    b.load(at_b, [1])
    a.load(at_a, [1])
    flag = a.hold("nb1")
    a.write_kernel(at_a, [0], OFFSET, WORD, "nb1")
    a.join("nb2", "nb1")
    waker = a.begin("let_go_after", flag, 1.0 if late else 0.02)
    a.load(at_a, [2], "nb2")
    a.sync()
    a.end(waker)
    assert a.digests(at_a, 1) == digests([2])
    assert b.digests(at_b, 1) == digests([1])


def test_a_kernel_queued_before_the_first_load_of_a_page_is_overwritten_by_it(
    sharer: Sharer,
) -> None:
    a = sharer()
    at = a.alloc(1)
    flag = a.hold("own")
    a.write_kernel(at, [0], OFFSET, WORD, "own")
    waker = a.begin("let_go_after", flag, 0.05)
    a.load(at, [9], "own")
    a.sync()
    a.end(waker)
    assert a.digests(at, 1) == digests([9])


def test_a_copy_to_the_host_in_flight_while_a_kernel_writes_its_page(sharer: Sharer) -> None:
    """The copy engine may see the old or the new word, but nothing else, and lives."""
    a, b = sharer(), sharer()
    at_b = b.alloc(16)
    b.load(at_b, list(range(1, 17)))
    for attempt in range(12):
        at_a = a.alloc(16)
        a.load(at_a, list(range(1, 17)))
        pinned = a.begin_read(at_a, 16 * PAGE, "nb1")
        for page in range(16):
            a.write_kernel(at_a, [page], OFFSET, WORD + attempt, f"nb{2 + page % 3}")
        a.sync()
        now = a.digests(at_a, 16)
        read = a.pinned_digests(pinned, 16)
        for seed, before, after in zip(range(1, 17), read, now, strict=True):
            assert before in (digests([seed])[0], after)
            assert after != digests([seed])[0]
        a.free(at_a)
    assert b.digests(at_b, 16) == digests(list(range(1, 17)))


def test_memory_freed_while_its_pages_are_being_copied_on_write(sharer: Sharer) -> None:
    a, b = sharer(), sharer()
    at_b = b.alloc(8)
    b.load(at_b, SEEDS)
    for _ in range(15):
        at_a = a.alloc(8)
        a.load(at_a, SEEDS)
        a.write_kernel(at_a, list(range(8)), OFFSET, WORD, "nb")
        a.free(at_a)
    a.sync()
    assert b.digests(at_b, 8) == digests(SEEDS)


def test_threads_that_load_free_launch_and_copy_at_once(sharer: Sharer) -> None:
    actors = [sharer(), sharer()]
    for number, actor in enumerate(actors):
        actor.send("storm", 4, 8.0, number)
    assert [actor.receive() for actor in actors] == [[], []]


def test_a_source_that_changes_during_the_call_gives_one_consistent_page(
    sharer: Sharer, tmp_path: Any
) -> None:
    """Whatever snapshot was taken, whoever attaches to it had exactly those bytes."""
    a, b = sharer(), sharer()
    for attempt in range(6):
        at_a, at_b = a.alloc(4), b.alloc(4)
        source = a.source([1, 2, 3, 4])
        changer = a.begin("change_source", source, 4 * PAGE, 0.1)
        a.copy_in(at_a, source, 4 * PAGE)
        first = a.digests(at_a, 4)
        a.end(changer)
        assert a.digests(at_a, 4) == first
        a.dump(at_a, 4, str(tmp_path / f"{attempt}"))
        b.load_file(at_b, str(tmp_path / f"{attempt}"))
        assert b.digests(at_b, 4) == first
        # What the file's pages hash to is found under that hash, with these bytes.
        if a.shared_pages(at_a, 4) == 4:
            assert b.shared_pages(at_b, 4) == 4
        a.free(at_a)
        b.free(at_b)


def test_two_processes_waiting_for_each_others_pages_both_finish(sharer: Sharer) -> None:
    a, b = sharer(), sharer()
    for attempt in range(8):
        seeds = [1000 + 32 * attempt + n for n in range(24)]
        at_a, at_b = a.alloc(24), b.alloc(24)
        a.send("load", at_a, seeds)
        b.send("load", at_b, seeds[::-1])
        a.receive()
        b.receive()
        assert a.digests(at_a, 24) == digests(seeds)
        assert b.digests(at_b, 24) == digests(seeds[::-1])
        a.free(at_a)
        b.free(at_b)


def take_all(actor: Remote, blocks: list[int]) -> None:
    """Allocate until it fails."""
    while True:
        blocks.append(actor.alloc(16))


@pytest.mark.seen_in("Project-HAMi/HAMi-core#55", "fzyzcjy/torch_memory_saver#87")
def test_full_memory_at_allocation_is_an_ordinary_out_of_memory(sharer: Sharer) -> None:
    a = sharer()
    blocks: list[int] = []
    with pytest.raises(RemoteError) as refused:
        take_all(a, blocks)
    assert refused.value.code == OUT_OF_MEMORY
    assert blocks
    a.load(blocks[0], SEEDS)
    assert a.digests(blocks[0], 8) == digests(SEEDS)
    a.free(blocks.pop())
    # Spare pages may have been taken out of what was given back.
    blocks.append(a.alloc(8))


def test_attaching_needs_no_free_memory(
    sharer: Sharer, stack: Stack, make_remote: Callable[..., Remote]
) -> None:
    a, b = sharer(), sharer()
    at_a = a.alloc(8)
    a.load(at_a, SEEDS)
    at_b = b.alloc(8)
    fill_the_rest(make_remote(stack.environment(shared=False)))
    b.load(at_b, SEEDS)
    assert b.digests(at_b, 8) == digests(SEEDS)


def test_full_memory_at_copy_on_write_harms_nobody_but_the_writer(
    sharer: Sharer, stack: Stack, make_remote: Callable[..., Remote]
) -> None:
    a, b = sharer(), sharer()
    seeds = list(range(1, 65))
    at_a, at_b = a.alloc(64), b.alloc(64)
    a.load(at_a, seeds)
    b.load(at_b, seeds)
    fill_the_rest(make_remote(stack.environment(shared=False)))
    b.write_kernel(at_b, list(range(64)), OFFSET, WORD)
    try:
        b.sync()
        found = b.digests(at_b, 64)
    except RemoteError:
        pass  # refused at once: the writer's context has died, as without a guard
    else:
        assert changed(digests(seeds), found) == list(range(64))
    assert a.digests(at_a, 64) == digests(seeds)
    assert len(set(a.hashes(at_a, 64))) == 64


@pytest.mark.parametrize("left", [18, 24, 40])
def test_a_nearly_full_descriptor_table_of_the_program_only_costs_sharing(
    sharer: Sharer, left: int
) -> None:
    """simcuda needs a descriptor for each page of its own; no real driver does."""
    a, b = sharer(), sharer()
    at_a, at_b = a.alloc(16), b.alloc(16)
    seeds = list(range(1, 17))
    a.load(at_a, seeds)
    b.set_fd_limit(256)
    b.limit_fds(left)
    b.load(at_b, seeds)
    b.give_fds_back()
    assert b.digests(at_b, 16) == digests(seeds)


def test_fork_after_init_leaves_the_parents_sharing_alone(
    pair: tuple[Remote, int, Remote, int],
) -> None:
    a, at_a, b, at_b = pair
    status, _ = a.fork_and(
        "[driver.cuCtxSynchronize()[0].value, driver.cuMemAlloc(4 << 20)[0].value]"
    )
    assert status == 0
    a.write_kernel(at_a, [1], OFFSET, WORD)
    a.sync()
    assert changed(digests(SEEDS), a.digests(at_a, 8)) == [1]
    assert b.digests(at_b, 8) == digests(SEEDS)


def test_fork_before_init_gives_a_child_that_shares(sharer: Sharer) -> None:
    a, parent = sharer(), sharer(init=False)
    at = a.alloc(8)
    a.load(at, SEEDS)
    code = (
        f"[actor.init(), at := actor.alloc(8), actor.load(at, {SEEDS}), "
        "actor.digests(at, 8), actor.shared_pages(at, 8)][3:]"
    )
    status, value = parent.fork_and(code)
    assert status == 0
    assert value == [digests(SEEDS), 8]
    assert a.digests(at, 8) == digests(SEEDS)


def test_two_domains_with_equal_weights_share_nothing(
    gpu: Any, make_stack: Any, make_remote: Any, probe: Probe
) -> None:
    stack: Stack = make_stack(gpu, domain_rules=[])  # then each process is alone
    a, b = make_remote(stack.environment()), make_remote(stack.environment())
    at_a = a.alloc(32)
    a.load(at_a, list(range(1, 33)))
    before = probe.used_bytes()
    at_b = b.alloc(32)
    b.load(at_b, list(range(1, 33)))
    assert probe.used_bytes() - before >= 32 * PAGE
    assert b.statistics(at_b)["attached_pages"] == 0
    assert b.digests(at_b, 32) == digests(list(range(1, 33)))
