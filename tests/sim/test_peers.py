# SPDX-License-Identifier: Apache-2.0
"""One process on several GPUs: each shares on its own, and they reach each other's memory.

Numbers in names are rows of the public bug corpus (interposer notes, section 3).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from gksm_bench.simgpu import SimulatedGpu
from gksm_bench.stack import Stack

from tests.support.pages import PAGE, digests
from tests.support.remote import Remote, RemoteError

PROGRAM = "tests.support.neighbours"
OUT_OF_MEMORY, ILLEGAL_ADDRESS = 2, 700
WORD, OFFSET = 0x5EED_CAFE, 4096
SEEDS = [1, 2, 3, 4]
SIZE = len(SEEDS)
Process = Callable[[], Remote]


@pytest.fixture
def gpu(make_gpu: Any) -> SimulatedGpu:
    made: SimulatedGpu = make_gpu(devices=2, vram=256 << 20)
    return made


@pytest.fixture
def process(stack: Stack, make_remote: Any) -> Process:
    """Makes a process with both GPUs at hand, device 0 current."""

    def make() -> Remote:
        remote: Remote = make_remote(stack.environment(), program=PROGRAM)
        remote.use(1)
        remote.use(0)
        return remote

    return make


def on(remote: Remote, device: int, pages: int = SIZE) -> int:
    """Memory of the device, which is current then."""
    remote.use(device)
    return int(remote.alloc(pages))


def test_each_gpu_of_a_process_shares_on_its_own(process: Process) -> None:
    one, two = process(), process()
    for device in (0, 1):
        places = [on(remote, device) for remote in (one, two)]
        for remote, at in zip((one, two), places, strict=True):
            remote.load(at, SEEDS)
            assert remote.shared_pages(at, SIZE) == SIZE
        two.write_kernel(places[1], [2], OFFSET, WORD)
        two.sync()
        assert two.read_words(places[1] + 2 * PAGE + OFFSET, 1) == [WORD]
        assert two.shared_pages(places[1], SIZE) == SIZE - 1
        assert one.digests(places[0], SIZE) == digests(SEEDS)


@pytest.mark.parametrize("stream", ["", "own", "nb"])
def test_copies_between_gpus_detach_where_they_write_and_nowhere_else(
    process: Process, stream: str
) -> None:
    one, two = process(), process()
    theirs = [on(two, device) for device in (0, 1)]
    mine = [on(one, device) for device in (0, 1)]
    for device in (0, 1):
        for remote, places in ((one, mine), (two, theirs)):
            remote.use(device)
            remote.load(places[device], SEEDS)
    for to, source in ((1, 0), (0, 1)):
        one.use(0)
        one.copy_peer((mine[to] + PAGE, to), (mine[source] + 2 * PAGE, source), PAGE, stream)
        one.sync()
        assert one.digests(mine[to], SIZE) == digests([1, 3, 3, 4])
        assert one.shared_pages(mine[to], SIZE) == SIZE - 1
    for device in (0, 1):
        assert two.digests(theirs[device], SIZE) == digests(SEEDS)


def test_a_copy_to_the_other_gpu_behind_its_own_kernels_write_reads_what_was_written(
    process: Process,
) -> None:
    """The copy waits, on the other GPU's stream, for a kernel that writes to a shared page."""
    one, two = process(), process()
    at = [on(remote, 0) for remote in (one, two)]
    for remote, place in zip((one, two), at, strict=True):
        remote.load(place, SEEDS)
    target = on(one, 1)
    one.use(0)
    held = one.hold("nb-0")
    one.write_kernel(at[0], [0], OFFSET, WORD, "nb-0")
    event = one.mark("nb-0")
    one.use(1)
    one.wait_mark("nb-1", event)
    one.send("copy_peer", [target, 1], [at[0], 0], PAGE, "nb-1")
    one.receive()
    one.let_go(held)
    one.sync("nb-1")
    assert one.read_words(target + OFFSET, 1) == [WORD]
    assert two.digests(at[1], SIZE) == digests(SEEDS)


@pytest.mark.parametrize("guard", ["fault", "optimistic"])
@pytest.mark.seen_in("ggml-org/llama.cpp#4620", "ggml-org/llama.cpp#24491")
def test_a_kernel_on_the_other_gpu_reads_and_writes_once_it_has_peer_access(
    gpu: SimulatedGpu, make_stack: Any, make_remote: Any, guard: str
) -> None:
    """llama.cpp: VMM memory was not reachable from the other GPU. Memory allocated later is,
    too, and loads and kernels of the owner go on."""
    options = [] if guard == "fault" else ["--guard", guard]
    stack: Stack = make_stack(gpu, guard_options=options)
    one = make_remote(stack.environment(), program=PROGRAM)
    two = make_remote(stack.environment(), program=PROGRAM)
    one.use(1)
    at = on(one, 0)
    twin = two.alloc(SIZE)
    for remote, place in ((one, at), (two, twin)):
        remote.load(place, SEEDS)
    untouched = on(one, 0)
    assert one.shared_pages(at, SIZE) == SIZE
    assert one.can_reach(1, 0) == 1
    local = on(one, 1)
    one.enable_peer(0)
    assert one.shared_pages(at, SIZE) == 0
    later = on(one, 0)
    one.load(later, SEEDS)
    assert one.shared_pages(later, SIZE) == 0
    one.use(1)
    for source, seed in ((at, 2), (untouched, 0), (later, 2)):
        one.copy_kernel(local, source + PAGE, PAGE)
        one.write_kernel(source, [3], OFFSET, WORD)
        one.sync()
        assert one.digests(local, 1) == digests([seed])
        one.use(0)
        assert one.read_words(source + 3 * PAGE + OFFSET, 1) == [WORD]
        one.write_kernel(source, [0], OFFSET, WORD + 1)
        one.sync()
        one.use(1)
    assert two.digests(twin, SIZE) == digests(SEEDS)


def test_without_peer_access_the_other_gpus_kernel_dies_as_on_any_driver(
    process: Process,
) -> None:
    one = process()
    at = on(one, 0)
    one.load(at, SEEDS)
    local = on(one, 1)
    one.copy_kernel(local, at, PAGE)
    with pytest.raises(RemoteError) as died:
        one.sync()
    assert died.value.code == ILLEGAL_ADDRESS


def test_what_a_peer_may_reach_is_not_shared_until_the_access_is_gone(process: Process) -> None:
    one, two = process(), process()
    at, twin = on(one, 0), on(two, 0)
    two.load(twin, SEEDS)
    one.use(1)
    one.enable_peer(0)
    one.use(0)
    one.load(at, SEEDS)
    assert one.shared_pages(at, SIZE) == 0
    one.use(1)
    one.disable_peer(0)
    one.use(0)
    one.load(at, SEEDS)
    assert one.shared_pages(at, SIZE) == SIZE
    assert one.digests(at, SIZE) == digests(SEEDS)


def test_a_context_that_ends_takes_its_peer_access_along(process: Process) -> None:
    one, two = process(), process()
    twin = on(two, 0)
    two.load(twin, SEEDS)
    one.use(1)
    one.enable_peer(0)
    at = on(one, 0)
    one.load(at, SEEDS)
    assert one.shared_pages(at, SIZE) == 0
    one.drop(1)
    one.load(at, SEEDS)
    assert one.shared_pages(at, SIZE) == SIZE


def test_peer_access_waits_for_running_work_and_harms_none(process: Process) -> None:
    one = process()
    at = on(one, 0, 8)
    one.load(at, [1, 2, 3, 4, 5, 6, 7, 8])
    held = one.hold("nb")
    pinned = one.begin_read(at, 8 * PAGE, "nb")
    one.use(1)
    waiting = one.begin("enable_peer", 0)
    assert one.end(waiting, 0.5) is None
    one.let_go(held)
    assert one.end(waiting) == {"value": None}
    one.use(0)
    one.sync()
    assert one.pinned_digests(pinned, 8) == digests([1, 2, 3, 4, 5, 6, 7, 8])


def test_peer_access_while_kernels_and_copies_run_on_both_gpus(process: Process) -> None:
    one, two = process(), process()
    at, twin = on(one, 0, 8), on(two, 0, 8)
    seeds = [1, 2, 3, 4, 5, 6, 7, 8]
    for remote, place in ((one, at), (two, twin)):
        remote.load(place, seeds)
    storms = [one.begin("storm", 2, 3.0, 1)]
    deadline = time.monotonic() + 3.0
    while time.monotonic() < deadline:
        one.use(1)
        one.enable_peer(0)
        local = one.alloc(1)
        one.copy_kernel(local, at + PAGE, PAGE)
        one.sync()
        assert one.digests(local, 1) == digests([2])
        one.free(local)
        one.disable_peer(0)
        one.use(0)
        one.load(at, seeds)
    assert [one.end(storm) for storm in storms] == [{"value": []}]
    assert one.digests(at, 8) == two.digests(twin, 8) == digests(seeds)


def test_without_memory_for_private_copies_peer_access_is_refused_and_nothing_breaks(
    stack: Stack, process: Process, make_remote: Any
) -> None:
    pages = 24
    seeds = list(range(1, pages + 1))
    one, two = process(), process()
    places = [on(remote, 0, pages) for remote in (one, two)]
    for remote, at in zip((one, two), places, strict=True):
        remote.load(at, seeds)
        assert remote.shared_pages(at, pages) == pages
    hog = make_remote(stack.environment(shared=False))
    hog.alloc(hog.info()[0] // PAGE - 8)
    one.use(1)
    with pytest.raises(RemoteError) as refused:
        one.enable_peer(0)
    assert refused.value.code == OUT_OF_MEMORY
    assert "private copies" in one.records()
    one.use(0)
    assert one.digests(places[0], pages) == two.digests(places[1], pages) == digests(seeds)
    hog.kill()
    one.use(1)
    one.enable_peer(0)
    one.write_kernel(places[0], [5], OFFSET, WORD)
    one.sync()
    assert two.digests(places[1], pages) == digests(seeds)


def test_ipc_of_another_gpus_memory_needs_the_peer_flag(process: Process) -> None:
    owner, other = process(), process()
    not_enabled = 705
    at = on(owner, 0)
    owner.load(at, SEEDS)
    handle = owner.ipc_get(at)
    local = on(other, 1)
    with pytest.raises(RemoteError) as refused:
        other.ipc_open(handle, 0)
    assert refused.value.code == not_enabled
    there = other.ipc_open(handle)
    other.copy_kernel(local, there + PAGE, PAGE)
    other.write_kernel(there, [0], OFFSET, WORD)
    other.sync()
    assert other.digests(local, 1) == digests([2])
    assert owner.read_words(at + OFFSET, 1) == [WORD]


def test_what_is_opened_on_a_gpu_is_its_peers_too(process: Process) -> None:
    owner, other = process(), process()
    at = [on(owner, 1) for _ in range(2)]
    for place in at:
        owner.load(place, SEEDS)
    handles = [owner.ipc_get(place) for place in at]
    other.use(1)
    before = other.ipc_open(handles[0])
    local = on(other, 0)
    other.enable_peer(1)
    other.use(1)
    after = other.ipc_open(handles[1])
    other.use(0)
    for there in (before, after):
        other.copy_kernel(local, there + PAGE, PAGE)
        other.sync()
        assert other.digests(local, 1) == digests([2])
