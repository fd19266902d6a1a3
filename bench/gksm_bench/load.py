# SPDX-License-Identifier: Apache-2.0
"""How long it takes to load 1 GiB: without gKSM, as the first, and as a duplicate.

    python -m gksm_bench.load [--mib 1024] [--repeat 3] [--gpu] [--json]

All three are measured side by side in one run; the ratios are what counts. On a
simulated GPU they compare the host's work (hash, copies, compare) with one plain copy.
--gpu measures on a real one, under the guard `optimistic` unless gksm.ko is there.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gksm_bench.demo.realgpu import open_real_gpu
from gksm_bench.driver import check, driver
from gksm_bench.places import NoRoomError
from gksm_bench.processes import ChildError, kill, spawn, tail, termination_as_exit
from gksm_bench.simgpu import simulated_gpu
from gksm_bench.stack import Stack

COPY_BYTES = 64 << 20
WAYS = ("without gKSM", "first", "duplicate")


@dataclass(frozen=True)
class Loads:
    """Seconds of each repetition, by way."""

    nbytes: int
    seconds: dict[str, list[float]]

    def median(self, way: str) -> float:
        """Seconds."""
        return statistics.median(self.seconds[way])

    def ratio(self, way: str) -> float:
        """How many times as long as without gKSM."""
        return self.median(way) / self.median(WAYS[0])

    def as_json(self) -> dict[str, object]:
        """For --json."""
        return {
            "bytes": self.nbytes,
            "seconds": self.seconds,
            "ratio_first": round(self.ratio("first"), 3),
            "ratio_duplicate": round(self.ratio("duplicate"), 3),
        }


def child(seed: int, nbytes: int) -> None:
    """Load `nbytes` that belong to `seed`, say how long it took, stay until input ends."""
    dice = random.Random(seed)
    chunks = [dice.randbytes(min(COPY_BYTES, nbytes - at)) for at in range(0, nbytes, COPY_BYTES)]
    check(driver.cuInit(0))
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(0))))
    address = int(check(driver.cuMemAlloc(nbytes)))
    started = time.monotonic()
    at = address
    for chunk in chunks:
        check(driver.cuMemcpyHtoD(at, chunk, len(chunk)))
        at += len(chunk)
    check(driver.cuCtxSynchronize())
    print(time.monotonic() - started, flush=True)
    sys.stdin.read()


class Loader:
    """A child that has loaded and keeps what it loaded until it is closed."""

    def __init__(self, environment: dict[str, str], log: Path, seed: int, nbytes: int) -> None:
        command = [sys.executable, "-m", "gksm_bench.load", "--child", str(seed), str(nbytes)]
        self.process: subprocess.Popen[str] = spawn(command, environment, log, piped=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.close()
            raise ChildError(f"a loader failed: {tail(log)}")
        self.seconds = float(line)

    def close(self) -> None:
        """End it."""
        kill(self.process)
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def running_stack(build: Path, nbytes: int, *, real: bool) -> Iterator[Stack]:
    """The daemons on a GPU with room for two loads."""
    if real:
        gpu = open_real_gpu(build)
        guard = [] if gpu.guard else ["--guard", "optimistic"]
        with Stack(gpu, config='[guard]\ndefault = "auto"\n', guard_options=guard) as stack:
            yield stack
        return
    with (
        simulated_gpu(build, vram=3 * nbytes + (512 << 20), room=2 * nbytes) as simulated,
        Stack(simulated) as stack,
    ):
        yield stack


def measure(build: Path, nbytes: int, repeat: int, *, real: bool) -> Loads:
    """Run all ways `repeat` times, each time with other bytes."""
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    with running_stack(build, nbytes, real=real) as stack:
        log = stack.log("loader")
        for seed in range(1, repeat + 1):
            plain = Loader(stack.environment(shared=False), log, seed, nbytes)
            plain.close()
            first = Loader(stack.environment(), log, seed, nbytes)
            duplicate = Loader(stack.environment(), log, seed, nbytes)
            duplicate.close()
            first.close()
            for way, loader in zip(WAYS, (plain, first, duplicate), strict=True):
                seconds[way].append(loader.seconds)
    return Loads(nbytes, seconds)


def show(loads: Loads, console: Console, *, real: bool) -> None:
    """Print the table."""
    if not real:
        console.print("SIMULATED GPU: sizes are real, times are not", style="bold yellow")
    table = Table(title=f"loading {loads.nbytes >> 20} MiB of pageable memory, median")
    table.add_column("how")
    for heading in ("seconds", "GB/s", "of without gKSM"):
        table.add_column(heading, justify="right")
    for way in WAYS:
        median = loads.median(way)
        rate = loads.nbytes / median / 1e9
        table.add_row(way, f"{median:.3f}", f"{rate:.2f}", f"{loads.ratio(way):.2f} x")
    console.print(table)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--gpu", action="store_true", help="on a real GPU")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        child(*options.child)
        return 0
    try:
        with termination_as_exit():
            loads = measure(options.build, options.mib << 20, options.repeat, real=options.gpu)
    except (ChildError, NoRoomError) as error:
        print(f"load: {error}", file=sys.stderr)
        return 1
    show(loads, Console(stderr=options.json), real=options.gpu)
    if options.json:
        print(json.dumps(loads.as_json()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
