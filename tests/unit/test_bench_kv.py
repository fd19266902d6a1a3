# SPDX-License-Identifier: Apache-2.0
"""The parts of the KV bench that need no GPU."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from gksm_bench.kv.blocks import Pool, Running
from gksm_bench.kv.plot import NoPlotError, draw
from gksm_bench.kv.requests import BLOCK_TOKENS, Load, Request
from gksm_bench.kv.sampling import SHOWN, Churn, Result, Sample
from hypothesis import given
from hypothesis import strategies as st

SAMPLE = Sample(
    interval=0,
    shared=dict.fromkeys(SHOWN, 0),
    saved=dict.fromkeys(SHOWN, 2 << 20),
    used_bytes=0,
    shared_mappings=1000,
    cow_events=9,
    api_detaches=0,
    merged_pages=0,
    dropped_merges=0,
    churned_merges=0,
    running=0,
    waiting=0,
    free_blocks=0,
)
RESULT = Result(
    instances=2,
    seed=1,
    samples=[SAMPLE],
    merged=0,
    written_soon=0,
    churning=0,
    wrong_tokens=0,
)


def test_the_same_seed_brings_the_same_requests() -> None:
    load = Load(instances=3, seed=7)
    first, second = (list(islice(load.arrivals(), 200)) for _ in range(2))
    assert first == second
    assert first != list(islice(replace(load, seed=8).arrivals(), 200))
    requests = [each for tick in first for each in tick]
    assert {each.instance for each in requests} == {0, 1, 2}
    twins = [each.content for each in requests]
    assert len(set(twins)) < len(twins), "some requests come to two instances"
    assert len({each.prefix for each in requests}) == load.prefixes + 1


@given(
    size=st.integers(4, 24),
    requests=st.lists(
        st.builds(
            Request,
            instance=st.just(0),
            content=st.integers(1, 5),
            prefix=st.integers(-1, 2),
            prefix_tokens=st.just(0),
            prompt_tokens=st.integers(1, 40),
            output_tokens=st.integers(1, 20),
        ),
        max_size=40,
    ),
)
def test_no_block_is_written_for_two_requests_at_once(size: int, requests: list[Request]) -> None:
    """And what a request finds of its system prompt has been written, and nothing else since."""
    pool = Pool(size)
    running: list[Running] = []
    held: dict[tuple[int, int], tuple[int, int]] = {}
    for request in requests:
        full = replace(request, prefix_tokens=2 * BLOCK_TOKENS if request.prefix >= 0 else 0)
        admitted = pool.admit(full)
        while admitted is None and running:
            pool.finish(running.pop(0))
            admitted = pool.admit(full)
        if admitted is None:
            assert full.blocks > size, "an empty pool has room"
            continue
        one, writes = admitted
        held.update({(each.block, each.slot): each.text for each in writes})
        prefix_blocks = full.prefix_tokens // BLOCK_TOKENS
        for number, block in enumerate(one.blocks[:prefix_blocks]):
            for slot in range(BLOCK_TOKENS):
                text = (-1 - full.prefix, number * BLOCK_TOKENS + slot)
                assert held[block, slot] == text
        own = set(one.blocks[prefix_blocks:])
        for other in running:
            assert not own & set(other.blocks)
        running.append(one)
    for one in running:
        pool.finish(one)
    assert sorted([*pool.free, *pool.prefixes.values()]) == list(range(size))


def test_blocks_that_were_freed_first_are_used_first() -> None:
    pool = Pool(4)
    request = Request(0, 1, -1, 0, BLOCK_TOKENS, BLOCK_TOKENS)
    first = pool.admit(request)
    second = pool.admit(request)
    assert first is not None
    assert second is not None
    pool.finish(second[0])
    pool.finish(first[0])
    assert pool.free == deque([2, 3, 0, 1])


@pytest.mark.parametrize(
    ("before", "after", "soon", "churning"),
    [
        ([], [], 0, 0),
        ([1], [9], 0, 0),
        ([1], [7], 1, 0),  # left alone before, and then used anew
        ([5], [9], 0, 0),
        ([4], [6], 1, 1),
        ([5], [7], 1, 1),
    ],
)
def test_a_page_churns_if_it_is_written_shortly_before_and_after_its_merge(
    before: list[int], after: list[int], soon: int, churning: int
) -> None:
    """It is merged in interval 5."""
    churn = Churn(within=2)
    for interval in range(10):
        written = [3] if interval in before + after else []
        churn.add(interval, written, [3] if interval >= 5 else [])
    assert (churn.written_soon, churn.churning) == (soon, churning)


def test_a_result_is_bad_that_costs_more_than_it_may() -> None:
    assert RESULT.good
    assert not replace(RESULT, samples=[replace(SAMPLE, cow_events=10)]).good
    assert not replace(RESULT, churning=1).good
    assert not replace(RESULT, wrong_tokens=1).good
    assert RESULT.as_json()["samples"][0]["cow_percent"] == pytest.approx(0.9)


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="an extra of the bench")
    path = tmp_path / "kv.png"
    draw(RESULT, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_a_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(NoPlotError, match="pip install"):
        draw(RESULT, tmp_path / "kv.png")
    assert not (tmp_path / "kv.png").exists()
