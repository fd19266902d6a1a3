# SPDX-License-Identifier: Apache-2.0
"""Memory that libgksm manages answers every question as plain cuMemAlloc memory does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.actors import entry_point_actors
from tests.support.pages import PAGE, digests
from tests.support.remote import Remote, RemoteError

BYTES = 2 * PAGE + 12345
INVALID_VALUE, NOT_FOUND = 1, 500
BUFFER_ID = 7
P2P_TOKENS, SYNC_MEMOPS = 5, 6
UNKNOWN = 99
ASKED = [n for n in range(1, 22) if n not in {P2P_TOKENS, SYNC_MEMOPS}]
SPOTS = [0, 1, PAGE - 1, PAGE, BYTES - 1]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Remote]]:
    """A process with libgksm in it, and one without."""
    with entry_point_actors(tmp_path_factory.mktemp("actors"), 1, plain=1) as actors:
        yield actors


@pytest.fixture
def managed(both: list[Remote]) -> Remote:
    return both[0]


@pytest.fixture
def plain(both: list[Remote]) -> Remote:
    return both[1]


def relative(attribute: int, data: str, remote: Remote, base: int) -> Any:
    """The answer without what differs from process to process."""
    raw = bytes.fromhex(data)
    value = int.from_bytes(raw[:8], "little")
    match attribute:
        case 1:  # CONTEXT
            return value == remote.context_handle()
        case 3 | 11 | 19:  # DEVICE_POINTER, RANGE_START, MAPPING_BASE
            return value - base
        case 7 | 20:  # BUFFER_ID, MEMORY_BLOCK_ID
            return value > 0
        case 18:  # MAPPING_SIZE
            return value >= BYTES
        case _:
            return raw


def told(remote: Remote, base: int, spot: int) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for attribute in [*ASKED, UNKNOWN]:
        code, data = remote.attribute(attribute, base + spot)
        found[attribute] = (code, relative(attribute, data, remote, base) if code == 0 else None)
    return found


def test_attributes_are_those_of_plain_memory_whatever_state_the_pages_are_in(
    managed: Remote, plain: Remote
) -> None:
    bases = [remote.alloc_bytes(BYTES) for remote in (managed, plain)]
    managed.load(bases[0], [1])
    assert managed.shared_pages(bases[0], 1) == 1
    for spot in SPOTS:
        assert told(managed, bases[0], spot) == told(plain, bases[1], spot)


def test_many_attributes_at_once_answer_as_one_by_one(managed: Remote, plain: Remote) -> None:
    host_pointer = 4
    bases = [remote.alloc_bytes(BYTES) for remote in (managed, plain)]
    answers = []
    for remote, base in zip((managed, plain), bases, strict=True):
        code, data = remote.attributes(ASKED, base + PAGE)
        assert code == 0
        one_by_one = told(remote, base, PAGE)
        answer = {
            name: relative(name, raw, remote, base) for name, raw in zip(ASKED, data, strict=True)
        }
        for name in ASKED:
            if one_by_one[name][0] == 0:
                assert answer[name] == one_by_one[name][1], name
        answers.append(answer[host_pointer])
    assert answers[0] == answers[1]


def test_unknown_attributes_are_the_drivers_to_answer_and_spoil_nothing(
    managed: Remote, plain: Remote
) -> None:
    codes = []
    for remote in (managed, plain):
        base = remote.alloc_bytes(BYTES)
        codes.append(remote.attribute(UNKNOWN, base)[0])
        assert remote.range_of(base) == [base, BYTES]
    assert codes[0] == codes[1]


def test_the_range_is_the_allocation_as_requested(managed: Remote) -> None:
    base = managed.alloc_bytes(BYTES)
    for spot in SPOTS:
        assert managed.range_of(base + spot) == [base, BYTES]
    managed.free(base)
    with pytest.raises(RemoteError) as refused:
        managed.range_of(base)
    assert refused.value.code == NOT_FOUND


def test_buffer_ids_stay_and_are_never_used_twice(managed: Remote) -> None:
    seen = set()
    for _ in range(5):
        base = managed.alloc_bytes(BYTES)
        ids = {managed.attribute(BUFFER_ID, base + spot)[1] for spot in SPOTS}
        assert len(ids) == 1
        seen |= ids
        managed.free(base)
    assert len(seen) == 5


def test_calls_of_the_vmm_interface_refuse_it(managed: Remote) -> None:
    base = managed.alloc(2)
    managed.load(base, [1, 2])
    assert managed.retain_handle(base) == INVALID_VALUE
    assert managed.status("cuMemUnmap", base, PAGE) == INVALID_VALUE
    assert managed.status("cuMemAddressFree", base, 2 * PAGE) == INVALID_VALUE
    assert managed.digests(base, 2) == digests([1, 2])
    assert managed.shared_pages(base, 2) == 2


def test_only_the_base_of_a_live_allocation_can_be_freed(managed: Remote) -> None:
    base = managed.alloc(2)
    managed.load(base, [1, 2])
    assert managed.status("cuMemFree_v2", base + PAGE) == INVALID_VALUE
    assert managed.status("cuMemFree_v2", base + 256) == INVALID_VALUE
    assert managed.digests(base, 2) == digests([1, 2])
    assert managed.status("cuMemFree_v2", base) == 0
    assert managed.status("cuMemFree_v2", base) == INVALID_VALUE
    assert managed.status("cuMemFree_v2", 0) == 0


def test_an_allocation_of_nothing_is_refused_as_by_the_driver(
    managed: Remote, plain: Remote
) -> None:
    codes = []
    for remote in (managed, plain):
        with pytest.raises(RemoteError) as refused:
            remote.alloc_bytes(0)
        codes.append(refused.value.code)
    assert codes == [INVALID_VALUE, INVALID_VALUE]


def shares(process: Remote, address: int) -> bool:
    """Whether a load of a page ends in sharing it."""
    process.load(address, [1])
    return bool(process.shared_pages(address, 1) == 1)


def test_memory_registered_with_a_nic_is_private_until_it_is_freed(managed: Remote) -> None:
    base = managed.alloc(2)
    assert shares(managed, base)
    assert shares(managed, base + PAGE)
    for _ in range(3):
        managed.sync_memops(base + 4096)
        assert managed.shared_pages(base, 2) == 0
    assert managed.digests(base, 2) == digests([1, 1])
    assert not shares(managed, base)
    assert not shares(managed, base + PAGE)
    managed.free(base)
    base = managed.alloc(2)
    assert shares(managed, base)
    managed.free(base)


def test_an_export_that_the_driver_refuses_binds_nothing(managed: Remote, plain: Remote) -> None:
    base, unmanaged = managed.alloc(2), plain.alloc(2)
    # Sizes and addresses must be whole host pages.
    assert plain.range_handle(unmanaged + 1, 77) != 0
    assert managed.range_handle(base + 1, 77) != 0
    assert shares(managed, base)
    managed.free(base)
    plain.free(unmanaged)
