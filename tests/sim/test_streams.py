# SPDX-License-Identifier: Apache-2.0
"""What waits for work finds all of it: in streams that are gone, of other threads, captured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.actors import entry_point_actors
from tests.support.pages import PAGE, digests
from tests.support.remote import Remote

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
A_WHILE = 0.3  # seconds; a call that does not wait is over long before


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    with entry_point_actors(tmp_path_factory.mktemp("actors"), 1) as (actor,):
        yield actor


def free_waits(process: Remote, flag: int) -> None:
    """cuMemFree returns only after the held work is let go."""
    address = process.alloc(1)
    call = process.begin("free", address)
    assert process.end(call, A_WHILE) is None
    process.let_go(flag)
    assert process.end(call) == {"value": None}


@pytest.mark.parametrize("stream", ["legacy", "own", "nb"])
def test_free_waits_for_running_work_as_the_driver_does(process: Remote, stream: str) -> None:
    free_waits(process, process.hold(stream))


@pytest.mark.parametrize("stream", ["own", "nb"])
def test_free_waits_for_the_work_of_a_destroyed_stream(process: Remote, stream: str) -> None:
    flag = process.hold(stream)
    process.destroy_stream(stream)
    free_waits(process, flag)


def test_free_waits_for_the_per_thread_stream_of_another_thread(process: Remote) -> None:
    free_waits(process, process.hold_per_thread())


@pytest.mark.parametrize("stream", ["own", "nb"])
def test_free_waits_for_work_enqueued_before_a_capture_began(process: Remote, stream: str) -> None:
    flag = process.hold(stream)
    process.begin_capture(stream, RELAXED)
    free_waits(process, flag)
    assert process.end_capture(stream) == 0


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
def test_a_load_in_another_thread_does_not_break_a_capture(process: Remote, mode: int) -> None:
    at = process.alloc(3)
    process.begin_capture("nb-captured", mode)
    process.set_in("nb-captured", at + 2 * PAGE)
    load = process.begin("load", at, [1, 2], "nb-load")
    assert process.end(load) == {"value": None}
    assert process.end_capture("nb-captured") == 1
    assert process.digests(at, 2) == digests([1, 2])
    assert process.shared_pages(at, 2) == 2


def test_a_page_read_while_other_work_runs_is_read_right_and_given_up(process: Remote) -> None:
    at = process.alloc(1)
    process.load(at, [1])
    flag = process.hold("nb")
    assert process.digests(at, 1) == digests([1])
    process.let_go(flag)
    process.sync()
    assert process.digests(at, 1) == digests([1])


def test_a_read_behind_work_reaches_a_shared_page_that_follows_a_private_one(
    process: Remote,
) -> None:
    at = process.alloc(4)
    process.load(at, [1, 2, 3, 4])
    process.write_kernel(at, [0, 2], 0, 0)
    process.sync()
    assert process.shared_pages(at, 4) == 2
    expected = process.digests(at, 4)
    flag = process.hold("nb")
    pinned = process.begin_read(at, 4 * PAGE, "nb")
    process.let_go(flag)
    process.sync("nb")
    assert process.pinned_digests(pinned, 4) == expected
