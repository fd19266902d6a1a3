# SPDX-License-Identifier: Apache-2.0
"""What must hold on the stock driver, without gksm.ko."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gksm_bench.demo.realgpu import RealGpu
from gksm_bench.stack import Stack

from tests.conftest import MakeRemote
from tests.support.actors import PROGRAM
from tests.support.pages import PAGE, digests
from tests.support.remote import Remote

Sharers = Callable[[str], tuple[Remote, Remote]]
SEEDS = list(range(1, 65))
WORD = 0x12345678
IS_RDMA_CAPABLE = 15


def load_both(pair: tuple[Remote, Remote]) -> list[int]:
    addresses = [process.alloc(len(SEEDS)) for process in pair]
    for process, address in zip(pair, addresses, strict=True):
        process.load(address, SEEDS)
    return addresses


def test_equal_pages_of_two_processes_are_kept_once(sharers: Sharers) -> None:
    pair = sharers("optimistic")
    free_before = pair[0].info()[0]
    for process, address in zip(pair, load_both(pair), strict=True):
        assert process.shared_pages(address, len(SEEDS)) == len(SEEDS)
        assert process.digests(address, len(SEEDS)) == digests(SEEDS)
    taken = free_before - pair[0].info()[0]
    assert taken < 2 * len(SEEDS) * PAGE, "two copies"


@pytest.mark.parametrize("way", ["memset", "copy from the host", "copy on the device"])
def test_a_write_by_the_api_is_seen_by_the_writer_alone(sharers: Sharers, way: str) -> None:
    pair = sharers("optimistic")
    (a, b), (at_a, at_b) = pair, load_both(pair)
    if way == "memset":
        a.memset(at_a + 4096, WORD, 16)
    elif way == "copy from the host":
        a.load(at_a, [1000])
    else:
        a.copy_device(at_a, at_a + PAGE, PAGE)
    a.sync()
    written = a.digests(at_a, len(SEEDS))
    assert written[0] != digests(SEEDS)[0]
    assert written[1:] == digests(SEEDS[1:])
    if way != "memset":
        assert written[0] == digests([1000] if way == "copy from the host" else [SEEDS[1]])[0]
    assert b.digests(at_b, len(SEEDS)) == digests(SEEDS)
    assert b.shared_pages(at_b, len(SEEDS)) == len(SEEDS)


def test_memory_that_kernels_write_is_theirs(sharers: Sharers) -> None:
    for process in sharers("optimistic"):
        address = process.alloc(len(SEEDS))
        process.write_kernel(address, list(range(len(SEEDS))), 4096, WORD)
        process.sync()
        for page in range(len(SEEDS)):
            assert process.read_words(address + page * PAGE + 4096, 1) == [WORD]
        assert process.shared_pages(address, len(SEEDS)) == 0


def test_pages_are_shared_when_they_are_sealed_and_private_when_unsealed(sharers: Sharers) -> None:
    pair = sharers("seal")
    (a, b), (at_a, at_b) = pair, load_both(pair)
    for process, address in zip(pair, (at_a, at_b), strict=True):
        assert process.shared_pages(address, len(SEEDS)) == 0
        assert process.seal(address, len(SEEDS)) == 0
        assert process.shared_pages(address, len(SEEDS)) == len(SEEDS)
        assert process.digests(address, len(SEEDS)) == digests(SEEDS)
    assert a.unseal(at_a, len(SEEDS)) == 0
    a.write_kernel(at_a, [0], 4096, WORD)
    a.sync()
    assert a.read_words(at_a + 4096, 1) == [WORD]
    assert b.digests(at_b, len(SEEDS)) == digests(SEEDS)


@pytest.mark.seen_in("microsoft/mscclpp#657", "meta-pytorch/torchcomms#3078")
def test_a_network_card_gets_at_memory_as_it_does_without_libgksm(
    real_gpu: RealGpu, make_stack: Callable[..., Stack], make_remote: MakeRemote
) -> None:
    """By one dma-buf for many pages, where the machine has dma-bufs."""
    stack = make_stack(real_gpu, guard_options=["--guard", "optimistic"])
    answers = []
    for shared in (True, False):
        process = make_remote(stack.environment(shared=shared), program=PROGRAM)
        process.prepare()
        address = process.alloc(len(SEEDS))
        process.load(address, SEEDS)
        answers.append(
            [
                process.attribute(IS_RDMA_CAPABLE, address),
                process.range_handle(address, PAGE),
                process.range_handle(address, len(SEEDS) * PAGE),
            ]
        )
        assert process.digests(address, len(SEEDS)) == digests(SEEDS)
    assert answers[0] == answers[1]


def test_the_demo(build: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "gksm_bench.demo", "--build", build, "--gpu", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout.splitlines()[-1])
    assert told["corrupt_pages"] == 0
    assert told["cow_events"] == told["pages_written"]
