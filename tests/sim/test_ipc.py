# SPDX-License-Identifier: Apache-2.0
"""Memory handed to another process by legacy CUDA IPC, as vLLM, PyTorch and NCCL do.

Numbers in names are rows of the public bug corpus (interposer notes, section 3).
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gksm_bench.simgpu import Probe
from gksm_bench.stack import Stack

from tests.support.pages import PAGE, digests
from tests.support.remote import Remote, RemoteError

PROGRAM = "tests.support.neighbours"
INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT, MAP_FAILED, NOT_FOUND = 1, 2, 201, 205, 500
WORD, OFFSET = 0x5EED_CAFE, 4096
SIZE = 4  # pages
Neighbour = Callable[..., Remote]


# A gksmd that has just started waits for exporters that may come back; not here.
QUICK = """
[guard]
hold_deadline_ms = 10000
stall_budget_ms = 1000
[grace]
announce_ms = 1
"""


@pytest.fixture
def stack(gpu: Any, make_stack: Any) -> Stack:
    made: Stack = make_stack(gpu, config=QUICK)
    return made


@pytest.fixture
def neighbour(stack: Stack, make_remote: Any) -> Neighbour:
    """Makes a process with libgksm in it."""

    def make(**options: Any) -> Remote:
        remote: Remote = make_remote(stack.environment(), program=PROGRAM, **options)
        remote.prepare()
        return remote

    return make


@pytest.fixture
def pair(neighbour: Neighbour) -> tuple[Remote, Remote]:
    return neighbour(), neighbour()


def refused(action: Callable[..., Any], *arguments: Any) -> int:
    with pytest.raises(RemoteError) as error:
        action(*arguments)
    return error.value.code


def exported(owner: Remote, pages: int = SIZE) -> tuple[int, str]:
    address = owner.alloc(pages)
    return address, owner.ipc_get(address)


@pytest.mark.seen_in("vllm-project/vllm#42609", "vllm-project/vllm#56193")
def test_custom_all_reduce_finds_its_peers_buffers(pair: tuple[Remote, Remote]) -> None:
    """vLLM: each rank opens the others' buffers, and kernels of all write and read them."""
    buffers = [exported(rank) for rank in pair]
    for rank, other in ((0, 1), (1, 0)):
        address, handle = buffers[other]
        there = pair[rank].ipc_open(handle)
        pair[rank].write_kernel(there, [0, 3], OFFSET, WORD + rank)
        pair[rank].sync()
        for page in (0, 3):
            assert pair[other].read_words(address + page * PAGE + OFFSET, 1) == [WORD + rank]
        pair[other].memset(address + PAGE, 7 + rank, 1)
        pair[other].sync()
        pair[rank].copy_kernel(there + 2 * PAGE, there + PAGE, 4096)
        pair[rank].sync()
        assert pair[other].read_words(address + 2 * PAGE, 1) == [7 + rank]
        pair[rank].ipc_close(there)


@pytest.mark.seen_in("NVIDIA/nccl#1820")
def test_the_last_byte_of_a_large_buffer_is_the_peers_too(
    make_gpu: Any, make_stack: Any, make_remote: Any
) -> None:
    """NCCL: a peer mapped only the first segment of 64 MiB. Here also more than one message
    can carry."""
    pages = 270
    stack = make_stack(make_gpu(vram=2 << 30, room=128 << 20))
    owner, other = (make_remote(stack.environment(), program=PROGRAM) for _ in range(2))
    address, handle = exported(owner, pages)
    there = other.ipc_open(handle)
    for page in (0, 31, 239, 240, pages - 1):
        owner.memset(address + (page + 1) * PAGE - 4, page + 1, 1)
        owner.sync()
        assert other.read_words(there + (page + 1) * PAGE - 4, 1) == [page + 1]
    other.memset(there + pages * PAGE - 4, WORD, 1)
    other.sync()
    assert owner.read_words(address + pages * PAGE - 4, 1) == [WORD]


def test_an_offset_into_the_allocation_is_the_programs_to_add(pair: tuple[Remote, Remote]) -> None:
    """PyTorch: one segment, many tensors; the handle is the segment's."""
    owner, other = pair
    address, handle = exported(owner)
    assert owner.ipc_get(address + PAGE + 512) == handle
    owner.load(address, [1, 2, 3, 4])
    there = other.ipc_open(handle)
    assert other.digests(there + PAGE, 1) == digests([2])


@pytest.mark.seen_in("LMCache/LMCache#4805")
def test_opened_memory_answers_as_memory_that_the_driver_has_opened(
    stack: Stack, make_remote: Any, pair: tuple[Remote, Remote]
) -> None:
    """LMCache: what an address is, and whether it has a VMM handle, fits together."""
    owner, other = pair
    plain = [make_remote(stack.environment(shared=False), program=PROGRAM) for _ in range(2)]
    for remote in plain:
        remote.prepare()
    answers = []
    for exporter, opener in ((owner, other), (plain[0], plain[1])):
        base = exporter.alloc_bytes(3 * PAGE + 512)
        there = opener.ipc_open(exporter.ipc_get(base))
        assert opener.range_of(there + PAGE) == [there, 3 * PAGE + 512]
        said = {}
        for attribute in range(1, 22):
            if attribute in (5, 7, 20):  # P2P tokens; ids, which differ
                continue
            code, data = opener.attribute(attribute, there + PAGE)
            value = int.from_bytes(bytes.fromhex(data)[:8], "little")
            if attribute == 1:  # the context
                value = value == opener.context_handle()
            if attribute in (3, 11, 19):  # addresses
                value -= there
            said[attribute] = (code, value if code == 0 else None)
        answers.append(said)
        assert refused(opener.ipc_get, there) == INVALID_VALUE
        assert opener.retain_handle(there) == INVALID_VALUE
        assert opener.status("cuMemUnmap", there, PAGE) == INVALID_VALUE
        assert opener.status("cuMemFree_v2", there) == INVALID_VALUE
        assert opener.status("cuIpcCloseMemHandle", there + PAGE) == INVALID_VALUE
        opener.ipc_close(there)
        assert refused(opener.range_of, there) == NOT_FOUND
        assert opener.status("cuIpcCloseMemHandle", there) == INVALID_VALUE
    assert answers[0] == answers[1]


def test_opening_twice_gives_the_same_address_until_it_is_closed_twice(
    pair: tuple[Remote, Remote],
) -> None:
    owner, other = pair
    address, handle = exported(owner)
    there = other.ipc_open(handle)
    assert other.ipc_open(handle) == there
    other.ipc_close(there)
    owner.memset(address, WORD, 1)
    owner.sync()
    assert other.read_words(there, 1) == [WORD]
    other.ipc_close(there)
    assert refused(other.ipc_close, there) == INVALID_VALUE


def test_a_process_cannot_open_its_own(pair: tuple[Remote, Remote]) -> None:
    owner, _ = pair
    _, handle = exported(owner)
    assert refused(owner.ipc_open, handle) == INVALID_CONTEXT


def test_exported_pages_are_not_shared_and_are_none_of_a_load(
    stack: Stack, pair: tuple[Remote, Remote], eventually: Callable[..., None]
) -> None:
    owner, other = pair
    twin = other.alloc(SIZE)
    other.load(twin, [1, 2, 3, 4])
    address = owner.alloc(SIZE)
    owner.load(address, [1, 2, 3, 4])
    assert owner.shared_pages(address, SIZE) == SIZE
    handle = owner.ipc_get(address)
    assert owner.shared_pages(address, SIZE) == 0
    told = "handed out of the process"
    eventually(lambda: told in stack.gksmctl("explain", str(owner.pid)), "explain says why")
    there = other.ipc_open(handle)
    owner.load(address, [1, 2, 3, 4])
    assert owner.shared_pages(address, SIZE) == 0
    assert other.digests(there, SIZE) == digests([1, 2, 3, 4])
    other.load(there, [5, 6, 7, 8])
    assert owner.digests(address, SIZE) == digests([5, 6, 7, 8])
    assert other.digests(twin, SIZE) == digests([1, 2, 3, 4])


def test_memory_that_its_owner_frees_stays_valid_until_it_is_closed(
    pair: tuple[Remote, Remote], probe: Probe, eventually: Callable[..., None]
) -> None:
    owner, other = pair
    address, handle = exported(owner)
    owner.load(address, [1, 2, 3, 4])
    there = other.ipc_open(handle)
    before = probe.used_bytes()
    owner.free(address)
    assert other.digests(there, SIZE) == digests([1, 2, 3, 4])
    other.write_kernel(there, [1], OFFSET, WORD)
    other.sync()
    assert probe.used_bytes() == before
    other.ipc_close(there)
    eventually(lambda: probe.used_bytes() == before - SIZE * PAGE, "its memory comes back")
    assert refused(other.ipc_open, handle) == INVALID_VALUE


def test_memory_survives_its_owner_where_it_is_open_and_nowhere_else(
    pair: tuple[Remote, Remote], neighbour: Neighbour
) -> None:
    owner, other = pair
    address, handle = exported(owner)
    owner.load(address, [1, 2, 3, 4])
    there = other.ipc_open(handle)
    owner.kill()
    assert other.digests(there, SIZE) == digests([1, 2, 3, 4])
    assert refused(neighbour().ipc_open, handle) == INVALID_VALUE


def test_an_owner_that_is_frozen_costs_the_opener_a_bounded_wait(
    pair: tuple[Remote, Remote], neighbour: Neighbour
) -> None:
    owner, other = pair
    _, handle = exported(owner)
    os.kill(owner.pid, signal.SIGSTOP)
    third = neighbour()
    other.send("ipc_open", handle)
    at = third.alloc(SIZE)  # others are served meanwhile
    third.load(at, [1, 2, 3, 4])
    with pytest.raises(RemoteError) as error:
        other.receive()
    assert error.value.code == MAP_FAILED
    os.kill(owner.pid, signal.SIGCONT)
    assert other.ipc_open(handle)


def test_what_is_no_handle_is_the_drivers_to_refuse(pair: tuple[Remote, Remote]) -> None:
    owner, other = pair
    _, handle = exported(owner)
    damaged = handle[:-2] + f"{int(handle[-2:], 16) ^ 1:02x}"
    for garbage in ("00" * 64, "ff" * 64, damaged, handle[::-1]):
        assert refused(other.ipc_open, garbage) == INVALID_VALUE


def test_small_memory_is_the_drivers_as_ever(pair: tuple[Remote, Remote]) -> None:
    owner, other = pair
    address = owner.alloc_bytes(PAGE - 512)
    owner.memset(address, WORD, 1)
    owner.sync()
    there = other.ipc_open(owner.ipc_get(address))
    assert other.read_words(there, 1) == [WORD]
    other.ipc_close(there)


def test_invariant_2_a_handle_opens_nothing_in_another_trust_domain(
    stack: Stack, neighbour: Neighbour, make_remote: Any
) -> None:
    """The stranger is in a container of its own."""
    _, handle = exported(neighbour())
    box = {"id": "stranger", "engine": "docker"}
    mount = ask(stack.run_dir / "runtime.sock", op="prepare", container=box)
    stranger = make_remote(stack.environment() | {"GKSM_SOCKET": mount["socket"]}, program=PROGRAM)
    assert refused(stranger.ipc_open, handle) == INVALID_VALUE
    assert "trust domain" in stack.gksmctl("logs", str(stranger.pid))


def test_invariant_7_workers_that_no_rule_names_open_each_others_memory(
    gpu: Any, make_stack: Any, make_remote: Any
) -> None:
    """vLLM on a host where nobody has said who may share."""
    stack: Stack = make_stack(gpu, config=QUICK, domain_rules=[])
    owner, worker = (make_remote(stack.environment(), program=PROGRAM) for _ in range(2))
    address, handle = exported(owner)
    owner.memset(address, WORD, 1)
    owner.sync()
    assert worker.read_words(worker.ipc_open(handle), 1) == [WORD]


def ask(path: Path, **request: Any) -> Any:
    """One request on a socket of gksmd's for programs."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(json.dumps({"v": 1, **request}).encode() + b"\n")
        with client.makefile() as lines:
            return json.loads(lines.readline())["result"]


def test_invariant_4_a_handle_of_before_gksmd_was_killed_opens_when_it_is_back(
    gpu: Any, make_stack: Any, make_remote: Any
) -> None:
    stack: Stack = make_stack(gpu)
    owner, other = (make_remote(stack.environment(), program=PROGRAM) for _ in range(2))
    address, handle = exported(owner)
    owner.load(address, [1, 2, 3, 4])
    other.ipc_close(other.ipc_open(handle))
    stack.kill_gksmd()
    later = exported(owner)[1]  # told to gksmd when it is back
    stack.restart_dead()
    assert other.digests(other.ipc_open(handle), SIZE) == digests([1, 2, 3, 4])
    assert other.digests(other.ipc_open(later), SIZE) == digests([0] * SIZE)


def test_without_gksmd_an_open_fails_and_says_why(
    stack: Stack, pair: tuple[Remote, Remote]
) -> None:
    owner, other = pair
    address, handle = exported(owner)
    there = other.ipc_open(handle)
    stack.kill_gksmd()
    owner.memset(address, WORD, 1)  # what is open stays open
    owner.sync()
    assert other.read_words(there, 1) == [WORD]
    other.ipc_close(there)
    assert refused(other.ipc_open, handle) == MAP_FAILED
    assert "gksmd, which passes it on, does not run" in other.records()


def test_invariant_6_nothing_is_left_of_handles(
    stack: Stack, pair: tuple[Remote, Remote], probe: Probe, eventually: Callable[..., None]
) -> None:
    owner, other = pair
    fds = []
    for _ in range(3):
        address, handle = exported(owner)
        there = other.ipc_open(handle)
        other.ipc_close(there)
        owner.free(address)
        fds.append([remote.open_fds() for remote in pair])
    assert fds[2] == fds[1] == fds[0]
    exported(owner)
    other.ipc_open(exported(owner)[1])
    owner.kill()
    other.kill()
    eventually(lambda: probe.used_bytes() == 0, "all memory comes back")
    eventually(lambda: not stack.status()["instances"], "gksmd forgets them")
