# SPDX-License-Identifier: Apache-2.0
"""Drain at gksmd: nothing new is shared on a GPU, and nothing is kept for later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gksmd.ctl.holders import ANY, Proc
from gksmd.protocol import lib

from tests.support.agents import (
    OTHER_GPU,
    PENDING,
    REFUSED,
    Agent,
    Daemon,
    agents,
    digests,
    eventually,
    load,
    publish,
)
from tests.unit.test_daemon_warm import ctl, run_once, warm, warm_pages


@contextmanager
def draining(daemon: Daemon, gpu: str | None = None) -> Iterator[None]:
    daemon.ask("admin", op="drain", gpu=gpu)
    yield
    daemon.ask("admin", op="undrain", gpu=gpu)


def test_a_drain_drops_what_nobody_maps_and_refuses_what_is_new() -> None:
    with Daemon(config=warm(16)) as daemon, agents(daemon.socket, 2) as (one, other):
        one.run(load, [1, 2])
        run_two = [3, 4]
        with Agent(daemon.socket) as third:
            third.run(load, run_two)
        eventually(lambda: warm_pages(daemon) == 2, "the pages staying")
        [row] = [r for r in daemon.ask("status", op="warm") if r["warm_bytes"]]
        daemon.ask("admin", op="pin_warm", load=row["load"], pinned=True)
        with draining(daemon):
            assert daemon.pages() == 2
            assert one.run(next_control) == (lib.GKSM_CONTROL_DRAIN, 1)
            assert {f.outcome for f in other.lookup(digests([1, 9]))} == {REFUSED}
            one.kill()
            eventually(lambda: daemon.pages() == 0, "the last pages going with their process")
        assert other.run(next_control) == (lib.GKSM_CONTROL_DRAIN, 1)
        assert other.run(next_control) == (lib.GKSM_CONTROL_RESUME, 1)
        assert other.run(load, [1])["published"] == [1]


def next_control(state: Any) -> tuple[int, int]:
    control = state.client.control()
    return control.action, control.gpu


def test_a_drain_ends_the_waiting_for_other_loaders_and_refuses_what_they_publish() -> None:
    with Daemon() as daemon, agents(daemon.socket, 2) as (loader, waiter):
        loader.run(keep, [1])
        waiter.run(keep, [1])
        waiter.start(wait_kept)
        with draining(daemon):
            assert waiter.answer() == [REFUSED]
            assert loader.run(publish_kept, [1]) == [-1]


def keep(state: Any, numbers: Sequence[int]) -> list[int]:
    state.found = state.client.lookup(digests(numbers))
    return [f.outcome for f in state.found]


def wait_kept(state: Any) -> list[int]:
    assert [f.outcome for f in state.found] == [PENDING]
    return [f.outcome for f in state.client.wait([f.token for f in state.found], 20_000)]


def publish_kept(state: Any, numbers: Sequence[int]) -> list[int]:
    return [status for _, status in publish(state, state.found, numbers)]


def test_a_drain_outlives_gksmd_and_is_told_to_whoever_connects() -> None:
    with Daemon(config=warm(16)) as daemon:
        run_once(daemon, [1, 2])
        daemon.ask("admin", op="drain")
        daemon.kill_gksmd()
        daemon.start()
        with agents(daemon.socket, 1) as (one,):
            assert one.run(next_control) == (lib.GKSM_CONTROL_DRAIN, 1)
            assert [f.outcome for f in one.lookup(digests([1]))] == [REFUSED]
            explained = daemon.ask("status", op="explain", target=str(one.pid))
            assert any("gksmctl undrain" in note for note in explained["notes"])
            daemon.ask("admin", op="undrain")
            assert one.run(next_control) == (lib.GKSM_CONTROL_RESUME, 1)
            assert one.run(load, [1])["published"] == [1]
        daemon.kill_gksmd()
        daemon.start()
        with agents(daemon.socket, 1) as (one,):
            assert one.run(load, [2])["published"] == [2]


def test_one_gpu_drains_and_the_others_do_not() -> None:
    with Daemon() as daemon, Agent(daemon.socket) as one, Agent(daemon.socket, OTHER_GPU) as two:
        first, second = (g["uuid"] for g in daemon.ask("status", op="status")["gpus"])
        with draining(daemon, first):
            assert [f.outcome for f in one.lookup(digests([1]))] == [REFUSED]
            assert two.run(load, [1])["published"] == [1]
        assert one.run(load, [1])["published"] == [1]
        with draining(daemon):
            daemon.ask("admin", op="undrain", gpu=second)
            assert [f.outcome for f in one.lookup(digests([2]))] == [REFUSED]
            assert two.run(load, [2])["published"] == [2]


def test_an_older_libgksm_is_told_nothing_that_it_would_take_for_something_else() -> None:
    with Daemon() as daemon, Agent(daemon.socket, features=3) as one:
        with draining(daemon):
            assert [f.outcome for f in one.lookup(digests([1]))] == [REFUSED]
        assert one.run(load, [1])["published"] == [1]
        assert one.run(controls) == 0


def controls(state: Any) -> int:
    return len(state.client.unasked[lib.GKSM_CONTROL])


def test_a_gpu_that_does_not_exist_cannot_be_drained_by_half_its_name() -> None:
    with Daemon() as daemon:
        done = ctl(daemon, "drain", "--gpu", "GPU-12")
        assert done.status == 1
        assert "nvidia-smi -L" in done.stderr


def process(root: Path, pid: int, targets: Sequence[str], maps: str = "") -> None:
    """A process of a /proc of our own making."""
    folder = root / str(pid)
    (folder / "fd").mkdir(parents=True)
    for number, target in enumerate(targets):
        (folder / "fd" / str(number)).symlink_to(target)
    (folder / "cmdline").write_bytes(b"/usr/bin/python3\0serve.py\0")
    (folder / "cgroup").write_text("0::/system.slice/docker-abc.scope\n")
    (folder / "maps").write_text(maps)


def test_descriptors_of_the_drivers_devices_are_told_from_others(tmp_path: Path) -> None:
    """By the numbers that the kernel gives the driver; here /dev/null plays the device."""
    (tmp_path / "devices").write_text("Character devices:\n  1 nvidia-uvm\n  5 /dev/tty\n")
    library = "7f00-7f01 r-xp 0 00:00 1 /usr/lib/gksm/1.0/libgksm.so\n"
    process(tmp_path, 10, ["/dev/null", "/dev/null", "socket:[1]"], library)
    process(tmp_path, 11, ["/dmabuf:"])
    process(tmp_path, 12, ["/dev/tty", "/etc/passwd", "/dev/gone", "pipe:[7]"])
    process(tmp_path, 13, [])
    ours, other = Proc(tmp_path).holders()
    assert (ours.pid, ours.name, ours.ours) == (10, "python3", True)
    assert ours.devices == {ANY: 2}
    assert ours.cgroup == "/system.slice/docker-abc.scope"
    assert (other.pid, other.ours, other.devices) == (11, False, {ANY: 1})


def test_gksmd_and_the_vault_are_known_where_gksmd_cannot_name_them(tmp_path: Path) -> None:
    (tmp_path / "devices").write_text("  1 nvidia-uvm\n")
    lines = (
        b"/usr/bin/python3\0-m\0gksmd.vault.main\0--socket=/run/gksm/vault.sock\0",
        b"/usr/bin/python3\0/usr/bin/gksm-vault\0",
        b"/usr/bin/less\0/var/log/gksmd.log\0",
    )
    for pid, line in enumerate(lines, 10):
        process(tmp_path, pid, ["/dev/null"])
        (tmp_path / str(pid) / "cmdline").write_bytes(line)
    assert [h.ours for h in Proc(tmp_path).holders()] == [True, True, False]


def test_a_simulated_gpu_is_known_by_its_state_file(tmp_path: Path) -> None:
    folder = tmp_path / "sim" / "dev3"
    folder.mkdir(parents=True)
    uuid = bytes(range(16))
    (folder / "state").write_bytes(b"1MIS" + bytes(4) + uuid)
    other = tmp_path / "sim" / "dev4"
    other.mkdir()
    proc = tmp_path / "proc"
    process(proc, 10, [f"{folder}", f"{folder}/bank2", f"{folder}/state", f"{other}/bank0"])
    (proc / "10" / "root").symlink_to("/")
    [holder] = Proc(proc).holders()
    assert holder.devices == {"GPU-00010203-0405-0607-0809-0a0b0c0d0e0f": 3}
