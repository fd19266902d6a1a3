# SPDX-License-Identifier: Apache-2.0
"""The eight promises of the design, each under its number.

Many other tests bear on them too; these are the ones that say so by name.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from gksm_bench.processes import kill, spawn
from gksm_bench.simgpu import Probe, SimulatedGpu
from gksm_bench.stack import Stack, wait_until
from gksmd.protocol import lib

from tests.conftest import ROOT, MakeRemote, MakeStack
from tests.support.pages import PAGE, digests
from tests.support.peer import Peer
from tests.support.remote import Remote

Sharer = Callable[..., Remote]

SEEDS = list(range(1, 17))
OFFSET = 64 * 1024


def loaded(actor: Remote, seeds: list[int] = SEEDS) -> int:
    """Where the process now has these pages, checked."""
    at: int = actor.alloc(len(seeds))
    actor.load(at, seeds)
    assert actor.digests(at, len(seeds)) == digests(seeds)
    return at


@contextmanager
def liar(stack: Stack, claimed: int, real: int, log: Path) -> Iterator[None]:
    """A peer that published the page of `real` under the hash of `claimed`."""
    child = spawn(
        [
            sys.executable,
            "-m",
            "tests.support.peer",
            str(stack.run_dir / "gksm.sock"),
            str(claimed),
            str(real),
        ],
        {**stack.environment(shared=False), "PYTHONPATH": str(ROOT)},
        log,
        piped=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "published\n", log.read_text()
        yield
    finally:
        kill(child)


def test_invariant_1_a_sharer_never_sees_a_byte_that_its_copy_did_not_hold(sharer: Sharer) -> None:
    actors = [sharer() for _ in range(3)]
    places = [loaded(actor) for actor in actors]
    expected = [dict(enumerate(digests(SEEDS))) for _ in actors]
    for step in range(24):
        writer = step % 3
        page = step * 5 % len(SEEDS)
        if step % 2:
            actors[writer].write_kernel(places[writer], [page], OFFSET, step + 1, f"nb{step % 2}")
            actors[writer].sync()
        else:
            actors[writer].write_words(places[writer] + page * PAGE + OFFSET, step + 1, 1)
        for number, (actor, at) in enumerate(zip(actors, places, strict=True)):
            found = dict(enumerate(actor.digests(at, len(SEEDS))))
            if number == writer:
                assert actor.read_words(at + page * PAGE + OFFSET, 1) == [step + 1]
                expected[number][page] = found[page]
            assert found == expected[number]


def test_invariant_2_nothing_is_shared_across_domains(
    gpu: SimulatedGpu, make_stack: MakeStack, make_remote: MakeRemote, probe: Probe
) -> None:
    """Without a rule every process is a domain by itself."""
    stack = make_stack(gpu, domain_rules=[])
    a = make_remote(stack.environment())
    loaded(a)
    before = probe.used_bytes()
    b = make_remote(stack.environment())
    at = loaded(b)
    assert probe.used_bytes() - before >= len(SEEDS) * PAGE
    assert b.statistics(at)["attached_pages"] == 0
    domains = {entry["domain"] for entry in stack.status()["instances"]}
    assert len(domains) == 2


@pytest.mark.parametrize("how", ["dies", "is frozen", "floods", "lies"])
def test_invariant_3_a_bad_instance_costs_the_others_nothing(
    sharer: Sharer, stack: Stack, probe: Probe, tmp_path: Path, how: str
) -> None:
    a, bad = sharer(), sharer()
    at = loaded(a)
    at_bad = loaded(bad)
    match how:
        case "dies":
            private = bad.alloc(32)
            bad.write_kernel(private, list(range(32)), 0, 1)
            bad.sync()
            before = probe.used_bytes()
            bad.kill()
            assert before - probe.used_bytes() >= 32 * PAGE, "its memory must be free at once"
        case "is frozen":
            bad.send("write_kernel", at_bad, list(range(16)), OFFSET, 9)
            time.sleep(0.005)
            os.kill(bad.pid, signal.SIGSTOP)
        case "floods":
            flood(stack.run_dir / "gksm.sock")
        case "lies":
            with liar(stack, 777, 778, tmp_path / "liar.log"):
                loaded(a, [777, 778])
    a.write_kernel(at, [2], OFFSET, 5)
    a.sync()
    found = a.digests(at, len(SEEDS))
    assert found[:2] + found[3:] == digests(SEEDS[:2] + SEEDS[3:])
    c = sharer()
    at_c = loaded(c)
    assert c.shared_pages(at_c, len(SEEDS)) == len(SEEDS)
    if how == "is frozen":
        os.kill(bad.pid, signal.SIGCONT)


def flood(path: Path) -> None:
    """Open connections and send rubbish and half-finished requests on all of them."""
    peers = []
    for number in range(200):
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        peer.settimeout(1)
        try:
            peer.connect(str(path))
            peer.send(os.urandom(64) if number % 2 else b"")
        except OSError:
            peer.close()
            continue
        peers.append(peer)
    for peer in peers:
        peer.close()


def test_invariant_4_daemons_may_be_killed_and_sharing_resumes(
    sharer: Sharer, stack: Stack
) -> None:
    a, b = sharer(), sharer()
    at_a, at_b = loaded(a), loaded(b)
    for step in range(3):
        stack.kill_gksmd()
        if step != 1:
            stack.kill_vault()
        b.write_kernel(at_b, [step], OFFSET, 1 + step)
        b.sync()
        assert b.read_words(at_b + step * PAGE + OFFSET, 1) == [1 + step]
        assert a.digests(at_a, len(SEEDS)) == digests(SEEDS)
        stack.restart_dead()
        wait_until(lambda: shared_anew(a, b), "sharing resuming", seconds=60)
    assert a.digests(at_a, len(SEEDS)) == digests(SEEDS)


def shared_anew(a: Remote, b: Remote) -> bool:
    """Whether bytes that nobody loaded before are kept once for both."""
    seed = time.monotonic_ns()
    at_a, at_b = loaded(a, [seed]), loaded(b, [seed])
    both = a.shared_pages(at_a, 1) + b.shared_pages(at_b, 1) == 2
    a.free(at_a)
    b.free(at_b)
    return both


def test_invariant_5_equal_hashes_alone_never_share(
    sharer: Sharer, stack: Stack, tmp_path: Path
) -> None:
    """A collision, made by a peer that published another page under the hash."""
    with liar(stack, claimed=4242, real=4343, log=tmp_path / "liar.log"):
        for _ in range(2):
            a = sharer()
            at = a.alloc(3)
            a.load(at, [1, 4242, 2])
            assert a.digests(at, 3) == digests([1, 4242, 2])
            assert a.shared_pages(at + PAGE, 1) == 0


def test_invariant_6_everything_counted_returns_to_zero(
    sharer: Sharer, stack: Stack, probe: Probe
) -> None:
    assert stack.vault is not None
    assert stack.gksmd is not None
    sharer().finish()
    wait_until(lambda: stack.status()["instances"] == [], "the first instance being forgotten")
    fds = [open_fds(stack.vault), open_fds(stack.gksmd)]
    actors = [sharer() for _ in range(4)]
    for number, actor in enumerate(actors):
        at = loaded(actor, list(range(1, 33 + number)))
        actor.write_kernel(at, [number], OFFSET, 1)
        actor.sync()
    assert probe.used_bytes() > 0
    for actor in actors[:2]:
        assert actor.finish() == 0
    for actor in actors[2:]:
        actor.kill()
    wait_until(lambda: probe.used_bytes() == 0, "the device getting empty")
    wait_until(lambda: stack.status()["instances"] == [], "the last instance being forgotten")
    wait_until(
        lambda: [open_fds(stack.vault), open_fds(stack.gksmd)] == fds, "every descriptor closing"
    )
    for gpu in stack.status()["gpus"]:
        assert gpu["pages_shared"] == gpu["pages_sharing"] == gpu["warm_bytes"] == 0


def open_fds(child: subprocess.Popen[str] | None) -> int:
    """How many descriptors the process has open."""
    assert child is not None
    return len(os.listdir(f"/proc/{child.pid}/fd"))


@pytest.mark.parametrize(
    "trouble", ["no daemon", "no socket folder", "deaf daemon", "switched off"]
)
def test_invariant_7_a_program_runs_as_it_would_without_gksm(
    gpu: SimulatedGpu, make_stack: MakeStack, tmp_path: Path, trouble: str
) -> None:
    """Same answers, same exit status, nothing printed."""
    stack = make_stack(gpu)
    environment = stack.environment()
    deaf = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    match trouble:
        case "no daemon":
            stack.kill_gksmd()
        case "no socket folder":
            environment["GKSM_SOCKET"] = str(tmp_path / "no" / "such.sock")
        case "deaf daemon":
            deaf.bind(str(tmp_path / "deaf.sock"))
            deaf.listen(8)
            environment["GKSM_SOCKET"] = str(tmp_path / "deaf.sock")
        case "switched off":
            environment["GKSM_DISABLE"] = "1"
    program = [sys.executable, "-m", "tests.support.plain"]
    with deaf:
        outcomes = [
            subprocess.run(
                program,
                env={**each, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                timeout=90,
                check=False,
            )
            for each in (stack.environment(shared=False), environment)
        ]
    assert outcomes[0].returncode == outcomes[1].returncode == 0
    assert outcomes[0].stdout == outcomes[1].stdout != ""
    assert outcomes[0].stderr == outcomes[1].stderr == ""


def test_invariant_8_other_versions_are_understood_or_told_to_pass_through(
    stack: Stack, sharer: Sharer
) -> None:
    path = stack.run_dir / "gksm.sock"
    # Newer, but still able to speak ours.
    newer = Peer(path).hello(lib.GKSM_PROTOCOL_MIN, lib.GKSM_PROTOCOL_MAX + 5)
    assert newer.protocol == lib.GKSM_PROTOCOL_MAX
    # Too new to be understood: told so in one line, and no harm to others.
    try:
        foreign: Any = Peer(path).hello(lib.GKSM_PROTOCOL_MAX + 5, lib.GKSM_PROTOCOL_MAX + 9)
    except ConnectionError:
        pytest.fail("an unknown version must be answered, so that its libgksm passes through")
    assert foreign.sharing == 0
    assert bytes(lib_text(foreign.reason)) != b""
    a, b = sharer(), sharer()
    loaded(a)
    at = loaded(b)
    assert b.shared_pages(at, len(SEEDS)) == len(SEEDS)


def lib_text(field: Any) -> bytes:
    """A char array up to its NUL."""
    raw = b"".join(field[n] for n in range(len(field)))
    return raw.partition(b"\0")[0]
