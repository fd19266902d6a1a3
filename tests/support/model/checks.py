# SPDX-License-Identifier: Apache-2.0
"""What must hold between steps, and once everybody has left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gksm_bench.metrics import read_metrics
from gksm_bench.processes import ChildError
from gksm_bench.stack import wait_until

from tests.support.model.truth import PATTERNS, ZEROS, Allocation, pattern
from tests.support.model.world import Process, World
from tests.support.pages import PAGE

# Counts that depend on the steps alone. Spares are made ahead, when there is time.
STEADY = (
    "virtual_pages",
    "unbacked_pages",
    "private_pages",
    "shared_pages",
    "cow_events",
    "api_detaches",
    "first_touches",
    "loaded_pages",
    "attached_pages",
    "zero_pages",
    "merged_pages",
    "dropped_merges",
    "churned_merges",
)


# Bytes


def compare_range(process: Process, allocation: Allocation, first: int, found: list[int]) -> None:
    """What was read from `first` on is what must be there."""
    wrong = [
        f"page {first + at} of {process.name}'s {allocation.address:#x} holds {named(value)}"
        for at, value in enumerate(found)
        if value != allocation.pages[first + at].hash
    ]
    assert not wrong, "; ".join(wrong)


def named(value: int) -> str:
    """Whose bytes these are, if they are anybody's."""
    for number in range(PATTERNS):
        if pattern(number).hash == value:
            return f"pattern {number}, which is wrong"
    return "bytes that are wrong"


def compare(process: Process, *, kernels: bool = False) -> None:
    """Every page, as a copy engine sees it and, if asked for, as kernels do."""
    for allocation in process.allocations:
        at, pages = allocation.address, len(allocation.pages)
        if kernels:
            compare_range(process, allocation, 0, process.remote.hashes(at, pages))
        compare_range(process, allocation, 0, process.remote.hashes_of([[at, pages]]))


# Accounts


def account(world: World) -> dict[str, Any]:
    """The accounts of libgksm, of gksmd and of the hardware agree; the account of now."""
    counts: dict[str, dict[str, int]] = {}
    for process in world.processes:
        if process.frozen:
            continue
        shared = process.ask_shared()
        now = counts[process.name] = process.remote.statistics(0)
        backed = now["unbacked_pages"] + now["private_pages"] + now["shared_pages"]
        assert now["virtual_pages"] == backed == len(process.hashes), f"{process.name}: {now}"
        assert now["shared_pages"] == sum(shared), f"{process.name}: {now}"
    maps = {each.name: shared_contents(each) for each in world.processes}
    mappings = [value for each in maps.values() for value in each if value is not None]
    eventually_empty(lambda: disagreements(world, maps), "gksmd or the hardware counts otherwise")
    return {
        "counts": {name: {key: now[key] for key in STEADY} for name, now in counts.items()},
        "maps": maps,
        "published": len(set(mappings)),
        "mappings": len(mappings),
    }


def eventually_empty(find: Callable[[], dict[str, Any]], what: str) -> None:
    """Wait until nothing is found; AssertionError says what was found last."""
    found: dict[str, Any] = {}

    def empty() -> bool:
        found.clear()
        found.update(find())
        return not found

    try:
        wait_until(empty, what)
    except ChildError:
        raise AssertionError(f"{what}: {found}") from None


def shared_contents(process: Process) -> list[int | None]:
    """Of each page, what it shares: within a domain a published page is known by its bytes."""
    return [
        value if shared else None
        for value, shared in zip(process.hashes, process.shared, strict=True)
    ]


def disagreements(world: World, maps: dict[str, list[int | None]]) -> dict[str, Any]:
    """What gksmd or the hardware counts, and what it should be, where the two differ."""
    status = world.rows("status")
    rows = {row["pid"]: row for row in status["instances"]}
    pairs: dict[str, tuple[int, int]] = {}
    for process in world.processes:
        row = rows[process.remote.pid]
        mine = sum(value is not None for value in maps[process.name])
        pairs[f"{process.name}: shared"] = row["shared_bytes"] // PAGE, mine
        # What is reported late is not reported at all by one that is frozen.
        if not process.frozen:
            virtual = row["virtual_bytes"] // PAGE
            pairs[f"{process.name}: virtual"] = virtual, len(process.hashes)
    mappings = [value for each in maps.values() for value in each if value is not None]
    published, zeros = len(set(mappings)), mappings.count(ZEROS.hash)
    (gpu,) = status["gpus"]
    pairs["pages_zero"] = gpu["pages_zero"], zeros
    pairs["pages_shared"] = gpu["pages_shared"], published - (zeros > 0)
    shared = gpu["pages_shared"] + gpu["pages_sharing"] + zeros
    pairs["mappings"] = shared, len(mappings)
    pairs["saved"] = gpu["saved_bytes"] // PAGE, len(mappings) - published
    # A forked child keeps the driver's descriptors of what its parent had.
    if not any(process.frozen or process.children for process in world.processes):
        own = [process.remote.statistics(0) for process in world.processes]
        used = published + sum(each["private_pages"] + each["spare_pages"] for each in own)
        pairs["used pages"] = world.used_pages(), used
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


# The end


def all_leave(world: World) -> None:
    """Half are killed, half leave; then nothing that was counted is left."""
    for number, process in enumerate(world.processes):
        if number % 2 or process.frozen:
            process.remote.kill()
        else:
            assert process.remote.finish() == 0, f"{process.name} did not end well"
        world.remove(process)
    world.processes.clear()
    eventually_empty(lambda: left(world), "something is left once everybody has gone")


def left(world: World) -> dict[str, float]:
    """What is counted and not zero."""
    status = world.rows("status")
    metrics = read_metrics(world.port)
    counts: dict[str, float] = {
        "used pages": world.used_pages(),
        "instances": len(status["instances"]),
        "pages": sum(
            gpu["pages_shared"] + gpu["pages_sharing"] + gpu["pages_zero"] for gpu in status["gpus"]
        ),
        "warm bytes": sum(gpu["warm_bytes"] for gpu in status["gpus"]),
        "leases": metrics.get("gksm_leases_held", 0),
        "host copies": metrics.get("gksm_host_copy_bytes", 0),
        "promises": metrics.get("gksm_gpu_promised_bytes", 0),
        "descriptors": sum(world.daemon_fds()) - sum(world.idle_fds),
    }
    return {name: count for name, count in counts.items() if count}
