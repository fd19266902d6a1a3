# SPDX-License-Identifier: Apache-2.0
"""Host copies: nobody reads one that could still change, or that is another domain's."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path
from typing import Any

from tests.support.agents import (
    HIT,
    LEASE,
    Agent,
    Daemon,
    agents,
    connect,
    digest,
    digests,
    eventually,
    page_fd,
)

PAGE = 2 << 20


def fill(state: Any, numbers: list[int], pages: int | None = None) -> int:
    """Borrow a segment, write a page for each number, publish them with it; its id."""
    status, state.segment, state.fd = state.client.segment_get(pages or len(numbers))
    assert status == 0
    found = state.client.lookup(digests(numbers))
    assert {f.outcome for f in found} == {LEASE}
    for i, number in enumerate(numbers):
        os.pwrite(state.fd, str(number).encode(), i * PAGE)
    fds = [page_fd(n) for n in numbers]
    results = state.client.publish(
        [(f.token, digest(n), fd) for f, n, fd in zip(found, numbers, fds, strict=True)],
        [(state.segment, i * PAGE) for i in range(len(numbers))],
    )
    for fd in fds:
        os.close(fd)
    assert {status for _, status in results} == {0}
    state.page_ids = [page_id for page_id, _ in results]
    return int(state.segment)


def seal(state: Any) -> None:
    os.close(state.fd)
    state.client.segment_seal(state.segment)
    state.client.commit(0, 0)  # requests are taken up in order


def read_copy(state: Any, number: int) -> bytes | None:
    """The host copy that a look-up of the page names; None if it names none."""
    [found] = state.client.lookup([digest(number)])
    assert found.outcome == HIT
    os.close(found.fd)
    state.client.attached([found.page_id])
    if not found.segment_id:
        return None
    status, _, fd = state.client.segment_open(found.segment_id)
    assert status == 0
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as memory:
        at = found.segment_offset
        copy = memory[at : at + 16].rstrip(b"\0")
    os.close(fd)
    return bytes(copy)


def test_a_sealed_copy_reaches_the_next_loader(daemon: Daemon) -> None:
    with agents(daemon.socket, 2) as (loader, other):
        loader.run(fill, [11, 12, 13])
        loader.run(seal)
        assert [other.run(read_copy, n) for n in (11, 12, 13)] == [b"11", b"12", b"13"]


def test_a_copy_that_is_not_sealed_is_not_handed_out(daemon: Daemon) -> None:
    with agents(daemon.socket, 2) as (loader, other):
        segment = loader.run(fill, [11])
        assert other.run(read_copy, 11) is None
        assert other.segment_open(segment)[0] == -errno.ENOENT


def test_what_was_handed_out_can_be_changed_by_nobody(daemon: Daemon) -> None:
    with agents(daemon.socket, 2) as (loader, other):
        segment = loader.run(fill, [11])
        loader.run(seal)
        assert other.run(try_to_write, segment) == [errno.EPERM] * 4


def try_to_write(state: Any, segment: int) -> list[int]:
    _, _, fd = state.client.segment_open(segment)
    errors: list[int] = []

    def attempt(action: Any) -> None:
        try:
            action()
            errors.append(0)
        except OSError as error:
            errors.append(error.errno or -1)

    attempt(lambda: os.pwrite(fd, b"x", 0))
    attempt(lambda: os.ftruncate(fd, 0))
    attempt(lambda: mmap.mmap(fd, 0, prot=mmap.PROT_READ | mmap.PROT_WRITE))
    attempt(lambda: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK))
    return errors


def test_a_loader_that_keeps_a_writable_mapping_is_not_believed(daemon: Daemon) -> None:
    with agents(daemon.socket, 2) as (liar, other):
        liar.run(fill, [11])
        liar.run(seal_with_a_mapping)
        assert other.run(read_copy, 11) is None
        eventually(lambda: not daemon.gksmd_fds("gksm-host-copies"), "the end of the copies")


def seal_with_a_mapping(state: Any) -> None:
    state.memory = mmap.mmap(state.fd, 0)
    seal(state)


def test_a_segment_goes_with_the_last_of_its_pages(daemon: Daemon) -> None:
    with agents(daemon.socket, 1) as (loader,):
        loader.run(fill, [11, 12])
        loader.run(seal)
        loader.run(detach_first)
        assert daemon.gksmd_fds("gksm-host-copies") == 1
        loader.run(detach_first)
        eventually(lambda: not daemon.gksmd_fds("gksm-host-copies"), "the end of the copies")
        eventually(lambda: daemon.pages() == 0, "the end of the pages")


def detach_first(state: Any) -> None:
    state.client.detached([state.page_ids.pop(0)])
    state.client.commit(0, 0)


def test_an_unsealed_segment_goes_with_its_loader(daemon: Daemon) -> None:
    with agents(daemon.socket, 2) as (loader, other):
        loader.run(fill, [11])
        assert other.run(read_copy, 11) is None
        loader.kill()
        eventually(lambda: not daemon.gksmd_fds("gksm-host-copies"), "the end of the copies")
        assert daemon.pages() == 1


def test_a_segment_of_another_process_cannot_be_published_from_or_sealed(daemon: Daemon) -> None:
    with agents(daemon.socket, 2) as (loader, thief):
        segment = loader.run(fill, [11])
        thief.segment_seal(segment)
        thief.run(publish_from, segment, 12)
        assert loader.run(read_copy, 12) is None
        loader.run(seal)
        assert thief.run(read_copy, 11) == b"11"


def publish_from(state: Any, segment: int, number: int) -> None:
    [found] = state.client.lookup([digest(number)])
    fd = page_fd(number)
    [(_, status)] = state.client.publish([(found.token, digest(number), fd)], [(segment, 0)])
    os.close(fd)
    assert status == 0


def test_invariant_2_host_copies_do_not_cross_trust_domains(daemon: Daemon) -> None:
    path = daemon.prepare("host-copies")
    with Agent(daemon.socket) as loader, Agent(path) as stranger:
        segment = loader.run(fill, [11])
        loader.run(seal)
        assert stranger.segment_open(segment)[0] == -errno.ENOENT


def test_an_offset_outside_the_segment_is_ignored(daemon: Daemon) -> None:
    with agents(daemon.socket, 2) as (liar, other):
        liar.run(publish_outside)
        assert [other.run(read_copy, n) for n in (11, 12, 13)] == [None] * 3


def publish_outside(state: Any) -> None:
    _, segment, state.fd = state.client.segment_get(1)
    for number, offset in ((11, PAGE), (12, 1), (13, (1 << 64) - PAGE)):
        [found] = state.client.lookup([digest(number)])
        fd = page_fd(number)
        state.client.publish([(found.token, digest(number), fd)], [(segment, offset)])
        os.close(fd)
    state.segment = segment
    seal(state)


def test_sizes_beyond_a_segment_are_refused(daemon: Daemon) -> None:
    with agents(daemon.socket, 1) as (one,):
        assert one.segment_get(0)[0] == -errno.EINVAL
        assert one.segment_get(33)[0] == -errno.EINVAL
        assert one.segment_get(32)[0] == 0


def test_the_budget_for_host_copies_is_kept_and_given_back() -> None:
    with (
        Daemon(config='memory.host_copy_bytes = "8M"') as daemon,
        agents(daemon.socket, 2) as (one, other),
    ):
        assert one.segment_get(3)[0] == 0
        assert other.segment_get(2)[0] == -errno.EDQUOT
        assert other.segment_get(1)[0] == 0
        one.kill()
        eventually(lambda: other.segment_get(2)[0] == 0, "the budget's return")


def test_copies_survive_a_restart_of_gksmd() -> None:
    with Daemon() as daemon, agents(daemon.socket, 2) as (loader, other):
        loader.run(fill, [11])
        loader.run(seal)
        eventually(
            lambda: any("host-copies" in t for t in vault_targets(daemon)), "the vault's own"
        )
        daemon.kill_gksmd()
        daemon.start()
        other.run(connect, daemon.socket)
        assert other.run(read_copy, 11) == b"11"


def vault_targets(daemon: Daemon) -> list[str]:
    folder = Path(f"/proc/{daemon.vault_pid}/fd")
    return [os.readlink(path) for path in folder.iterdir()]
