# SPDX-License-Identifier: Apache-2.0
"""Pages that an instantiated graph will copy or set stay private as long as it can run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.actors import entry_point_actors
from tests.support.pages import PAGE
from tests.support.remote import Remote


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    with entry_point_actors(tmp_path_factory.mktemp("actors"), 1) as (actor,):
        yield actor


def shares(process: Remote, address: int, seed: int = 1) -> bool:
    """Whether a load of that page ends in sharing it."""
    process.load(address, [seed])
    return bool(process.shared_pages(address, 1) == 1)


def test_its_pages_are_shared_before_and_after_but_not_while_it_lives(process: Remote) -> None:
    at = process.alloc(2)
    assert shares(process, at)
    _, executable = process.make_graph(at)
    assert process.shared_pages(at, 1) == 0
    assert not shares(process, at)
    assert shares(process, at + PAGE)
    process.launch_graph(executable)
    process.destroy_executable(executable)
    assert shares(process, at)


def test_an_update_moves_the_pin(process: Remote) -> None:
    at = process.alloc(2)
    _, executable = process.make_graph(at)
    other, _ = process.make_graph(at + PAGE)
    process.destroy_executable(_)
    process.update_graph(executable, other)
    assert shares(process, at)
    assert not shares(process, at + PAGE)
    process.launch_graph(executable)
    process.destroy_executable(executable)
    assert shares(process, at + PAGE)


def test_two_graphs_on_one_page_pin_it_until_the_last_is_gone(process: Remote) -> None:
    at = process.alloc(1)
    executables = [process.make_graph(at)[1] for _ in range(3)]
    for executable in executables:
        assert not shares(process, at)
        process.destroy_executable(executable)
    assert shares(process, at)


def test_memory_used_again_is_not_bound_by_a_graph_of_its_predecessor(process: Remote) -> None:
    at = process.alloc(1)
    _, executable = process.make_graph(at)
    process.free(at)
    again = process.alloc(1)
    assert again == at
    assert shares(process, again)
    _, second = process.make_graph(again)
    process.destroy_executable(executable)
    assert not shares(process, again)
    process.destroy_executable(second)
    assert shares(process, again)
