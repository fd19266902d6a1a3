# SPDX-License-Identifier: Apache-2.0
"""kill -9 of anybody at any step harms nobody else.

The moment of the kill is drawn from a seeded random number, many times, so that it
falls into each step of loading, publishing, attaching and copying on write.
"""

from __future__ import annotations

import os
import random
import re
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gksm_bench.simgpu import Probe, SimulatedGpu
from gksm_bench.stack import PATIENT, Stack, wait_until

from tests.conftest import MakeRemote, MakeStack
from tests.support.pages import PAGE, digests
from tests.support.remote import Remote

Sharer = Callable[..., Remote]

KNOWN = list(range(1, 9))
OFFSET = 20 * 1024
# GKSM_TEST_ROUNDS=50 looks longer for a moment that hurts.
ROUNDS = int(os.environ.get("GKSM_TEST_ROUNDS", "6"))
QUICK_LEASES = PATIENT + "[load]\nlease_deadline_ms = 500\nload_wait_ms = 2000\n"


@pytest.fixture
def survivor(sharer: Sharer) -> tuple[Remote, int]:
    """A process with pages of its own, which are shared with all who load the same."""
    actor = sharer()
    at = actor.alloc(len(KNOWN))
    actor.load(at, KNOWN)
    return actor, at


def unharmed(survivor: tuple[Remote, int]) -> None:
    """Its bytes are right, by copy engine and by kernel."""
    actor, at = survivor
    assert actor.digests(at, len(KNOWN)) == digests(KNOWN)
    assert len(set(actor.hashes(at, len(KNOWN)))) == len(KNOWN)


def all_gone(stack: Stack, probe: Probe) -> None:
    """Nothing counted is left once nobody runs any more."""
    wait_until(lambda: probe.used_bytes() == 0, "the device getting empty")
    wait_until(lambda: stack.status()["instances"] == [], "the last instance being forgotten")
    assert all(gpu["pages_shared"] == 0 for gpu in stack.status()["gpus"])


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_loader_killed_at_any_step_of_load_and_publish(
    sharer: Sharer,
    survivor: tuple[Remote, int],
    stack: Stack,
    probe: Probe,
    seed: int,
) -> None:
    """Whoever waits for the dead loader's pages loads them itself."""
    dice = random.Random(seed)
    heir = sharer()
    for attempt in range(ROUNDS):
        seeds = [5000 + 64 * attempt + n for n in range(32)]
        victim = sharer()
        at_victim, at_heir = victim.alloc(32), heir.alloc(32)
        victim.send("load", at_victim, seeds)
        heir.send("load", at_heir, seeds)
        time.sleep(dice.uniform(0, 0.12))
        victim.kill()
        heir.receive()
        assert heir.digests(at_heir, 32) == digests(seeds)
        heir.free(at_heir)
        unharmed(survivor)
    heir.finish()
    survivor[0].finish()
    all_gone(stack, probe)


@pytest.mark.timeout(240)
def test_a_process_killed_at_any_step_of_attaching(
    sharer: Sharer, survivor: tuple[Remote, int], stack: Stack, probe: Probe
) -> None:
    dice = random.Random(3)
    for _ in range(ROUNDS):
        victim = sharer()
        at = victim.alloc(len(KNOWN) * 4)
        victim.send("load", at, KNOWN * 4)
        time.sleep(dice.uniform(0, 0.06))
        victim.kill()
        unharmed(survivor)
    survivor[0].finish()
    all_gone(stack, probe)


@pytest.mark.timeout(240)
def test_a_process_killed_at_any_step_of_copy_on_write(
    sharer: Sharer, survivor: tuple[Remote, int], stack: Stack, probe: Probe
) -> None:
    dice = random.Random(4)
    for attempt in range(ROUNDS):
        victim = sharer()
        at = victim.alloc(len(KNOWN))
        victim.load(at, KNOWN)
        victim.send("write_kernel", at, list(range(len(KNOWN))), OFFSET, attempt)
        time.sleep(dice.uniform(0, 0.01))
        victim.kill()
        unharmed(survivor)
        actor, mine = survivor
        actor.write_kernel(mine, [attempt % 8], OFFSET, attempt)
        actor.sync()
        actor.load(mine + attempt % 8 * PAGE, [KNOWN[attempt % 8]])
    survivor[0].finish()
    all_gone(stack, probe)


def shared_files(pid: int, device: Path) -> set[str]:
    """Files that the process shares with others or writes, without the simulated hardware."""
    maps = [line.split(maxsplit=5) for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    found = {line[5] for line in maps if len(line) == 6 and line[1][1] + line[1][3] == "ws"}
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        flags = re.search(r"flags:\s+(\d+)", (fd.parent.parent / "fdinfo" / fd.name).read_text())
        if flags is not None and int(flags[1], 8) & os.O_ACCMODE:
            found.add(os.readlink(fd))
    named = {path for path in found if path.startswith("/") and not path.endswith("(deleted)")}
    return {path for path in named if not path.startswith((str(device), "/dev/null"))}


@pytest.mark.seen_in("vllm-project/vllm#51317")
def test_kill_9_leaves_no_file_no_descriptor_and_no_memory(
    sharer: Sharer,
    survivor: tuple[Remote, int],
    stack: Stack,
    gpu: SimulatedGpu,
    probe: Probe,
) -> None:
    before = [probe.used_bytes(), *fd_counts(stack)]
    victims = [sharer(), sharer()]
    for victim in victims:
        victim.load(victim.alloc(16), list(range(900, 916)))
    files = set.union(*(shared_files(victim.pid, gpu.folder) for victim in victims))
    assert {str(victim.log) for victim in victims} <= files, "not even the log: shows nothing"
    for victim in victims:
        victim.kill()
    left = {path for path in files if Path(path).exists()} - {str(v.log) for v in victims}
    assert left == set()
    for table in ("shm", "sem", "msg"):
        rows = Path(f"/proc/sysvipc/{table}").read_text().split()
        assert not {str(victim.pid) for victim in victims} & set(rows)
    wait_until(lambda: [probe.used_bytes(), *fd_counts(stack)] == before, "all coming back")
    unharmed(survivor)


def fd_counts(stack: Stack) -> list[int]:
    """How many descriptors the daemons have open."""
    children = [child for child in (stack.vault, stack.gksmd) if child is not None]
    return [len(os.listdir(f"/proc/{child.pid}/fd")) for child in children]


def test_a_parent_killed_while_its_forked_child_lives(
    sharer: Sharer, survivor: tuple[Remote, int], stack: Stack
) -> None:
    parent = sharer()
    at = parent.alloc(16)
    parent.load(at, [*KNOWN, *range(700, 708)])
    child = parent.fork()
    try:
        parent.kill()
        os.kill(child, 0)  # it lives
        wait_until(
            lambda: all(entry["pid"] != parent.pid for entry in stack.status()["instances"]),
            "the dead parent being forgotten",
        )
        unharmed(survivor)
        newcomer = sharer()
        at = newcomer.alloc(8)
        newcomer.load(at, KNOWN)
        assert newcomer.shared_pages(at, 8) == 8
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("who", ["gksmd", "vault"])
def test_the_daemons_killed_at_any_step_of_a_load(
    sharer: Sharer, survivor: tuple[Remote, int], stack: Stack, who: str
) -> None:
    """Loads finish with the right bytes; sharing resumes once the daemon is back."""
    dice = random.Random(who)
    a, b = sharer(), sharer()
    for attempt in range(ROUNDS):
        seeds = [9000 + 64 * attempt + n for n in range(32)]
        at_a, at_b = a.alloc(32), b.alloc(32)
        a.send("load", at_a, seeds)
        b.send("load", at_b, seeds[::-1])
        time.sleep(dice.uniform(0, 0.12))
        (stack.kill_gksmd if who == "gksmd" else stack.kill_vault)()
        stack.restart_dead()
        a.receive()
        b.receive()
        assert a.digests(at_a, 32) == digests(seeds)
        assert b.digests(at_b, 32) == digests(seeds[::-1])
        unharmed(survivor)
        a.free(at_a)
        b.free(at_b)
    wait_until(lambda: shares_again(a, b, dice), "sharing resuming", seconds=60)


def shares_again(a: Remote, b: Remote, dice: random.Random) -> bool:
    """Whether a page that both load now is kept once."""
    seed = dice.getrandbits(40) + 1
    shared = []
    places = []
    for actor in (a, b):
        at = actor.alloc(1)
        actor.load(at, [seed])
        assert actor.digests(at, 1) == digests([seed])
        shared.append(actor.shared_pages(at, 1))
        places.append(at)
    attached = b.statistics(places[1])["attached_pages"]
    for actor, at in zip((a, b), places, strict=True):
        actor.free(at)
    return shared == [1, 1] and attached > 0


@pytest.mark.timeout(240)
@pytest.mark.parametrize("who", ["gksmd", "vault", "both"])
def test_writes_go_on_while_the_daemons_are_dead(
    sharer: Sharer, survivor: tuple[Remote, int], stack: Stack, who: str
) -> None:
    actor = sharer()
    at = actor.alloc(len(KNOWN))
    actor.load(at, KNOWN)
    if who in ("gksmd", "both"):
        stack.kill_gksmd()
    if who in ("vault", "both"):
        stack.kill_vault()
    actor.write_kernel(at, [0, 1, 2], OFFSET, 77)
    actor.write_words(at + 3 * PAGE + OFFSET, 77, 1)
    actor.sync()
    unharmed(survivor)
    for page in range(4):
        assert actor.read_words(at + page * PAGE + OFFSET, 1) == [77]
    assert actor.digests(at, 8)[4:] == digests(KNOWN[4:])
    fresh = actor.alloc(4)
    actor.load(fresh, [901, 902, 903, 904])
    assert actor.digests(fresh, 4) == digests([901, 902, 903, 904])
    stack.restart_dead()
    wait_until(
        lambda: shares_again(survivor[0], actor, random.Random(who)), "sharing resuming", seconds=60
    )
    unharmed(survivor)


@pytest.mark.timeout(240)
def test_a_loader_that_never_publishes_holds_nobody_up_for_ever(
    gpu: SimulatedGpu, make_stack: MakeStack, make_remote: MakeRemote
) -> None:
    stack = make_stack(gpu, config=QUICK_LEASES)
    dice = random.Random(6)
    waiter = make_remote(stack.environment())
    for attempt in range(5):
        loader = make_remote(stack.environment())
        seeds = [20000 + 64 * attempt + n for n in range(32)]
        at_loader, at_waiter = loader.alloc(32), waiter.alloc(32)
        loader.send("load", at_loader, seeds)
        time.sleep(dice.uniform(0, 0.1))
        os.kill(loader.pid, signal.SIGSTOP)
        try:
            waiter.load(at_waiter, seeds)
            assert waiter.digests(at_waiter, 32) == digests(seeds)
        finally:
            os.kill(loader.pid, signal.SIGCONT)
        loader.receive()
        assert loader.digests(at_loader, 32) == digests(seeds)
        loader.kill()
        waiter.free(at_waiter)


@pytest.mark.timeout(240)
def test_full_descriptor_tables_of_the_daemons_only_cost_sharing(
    sharer: Sharer, survivor: tuple[Remote, int], stack: Stack
) -> None:
    assert stack.vault is not None
    assert stack.gksmd is not None
    actor = sharer()
    before: dict[int, Any] = {}
    for child in (stack.vault, stack.gksmd):
        highest = max(int(name) for name in os.listdir(f"/proc/{child.pid}/fd"))
        before[child.pid] = resource.prlimit(child.pid, resource.RLIMIT_NOFILE)
        limit = (highest + 3, before[child.pid][1])
        resource.prlimit(child.pid, resource.RLIMIT_NOFILE, limit)
    at = actor.alloc(32)
    seeds = list(range(30000, 30032))
    actor.load(at, seeds)
    assert actor.digests(at, 32) == digests(seeds)
    unharmed(survivor)
    for pid, limit in before.items():
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)
    wait_until(
        lambda: shares_again(survivor[0], actor, random.Random(7)), "sharing resuming", seconds=60
    )
