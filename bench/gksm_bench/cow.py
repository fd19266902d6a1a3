# SPDX-License-Identifier: Apache-2.0
"""How long a copy on write takes through the simulator.

    python -m gksm_bench.cow [--pages 64] [--processes 1 2] [--json]

Each process shares its pages with another and writes one word to each of them, one
kernel a page, and waits for it. The same kernels on the pages that are private by then
show what the launch itself costs. Besides that: what libgksm measured from the fault
held to its answer.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gksm_bench.demo import kernels
from gksm_bench.demo.layout import PAGE
from gksm_bench.demo.story import copies_made
from gksm_bench.driver import check, driver
from gksm_bench.places import NoRoomError
from gksm_bench.processes import ChildError, kill, spawn, tail, termination_as_exit
from gksm_bench.simgpu import simulated_gpu
from gksm_bench.stack import Stack, wait_until


@dataclass(frozen=True)
class Latency:
    """Microseconds, but for the rate."""

    processes: int
    shared_median: float
    shared_p99: float
    private_median: float
    held_mean: float
    held_max: float
    copies_per_second: float


def child(pages: int) -> None:
    """Load; then at each line of input write to all pages and print the seconds of each."""
    check(driver.cuInit(0))
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(0))))
    module = kernels.load(ptx=False)
    address = int(check(driver.cuMemAlloc(pages * PAGE)))
    data = random.Random(pages).randbytes(pages * PAGE)
    check(driver.cuMemcpyHtoD(address, data, len(data)))
    print("ready", flush=True)
    for _ in sys.stdin:
        seconds = []
        for page in range(pages):
            started = time.monotonic()
            module.write([address + page * PAGE])
            check(driver.cuCtxSynchronize())
            seconds.append(time.monotonic() - started)
        print(json.dumps(seconds), flush=True)


class Writer:
    """A child that has loaded."""

    def __init__(self, stack: Stack, number: int, pages: int) -> None:
        self.log = stack.log(f"writer-{number}")
        command = [sys.executable, "-m", "gksm_bench.cow", "--child", str(pages)]
        self.process: subprocess.Popen[str] = spawn(
            command, stack.environment(), self.log, piped=True
        )

    def line(self) -> str:
        """What it prints next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise ChildError(f"a writer failed: {tail(self.log)}")
        return line

    def go(self) -> None:
        """Have it write to all its pages."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def close(self) -> None:
        """End it."""
        kill(self.process)
        if self.process.stdout is not None:
            self.process.stdout.close()


def measure(build: Path, pages: int, processes: int) -> Latency:
    """One fresh stack; one process more than write keeps every page shared."""
    need = (processes + 2) * pages * PAGE + (256 << 20)
    with ExitStack() as undo:
        gpu = undo.enter_context(simulated_gpu(build, vram=need))
        stack = undo.enter_context(Stack(gpu))
        writers = []
        for number in range(processes + 1):
            writer = Writer(stack, number, pages)
            undo.callback(writer.close)
            writer.line()
            writers.append(writer)
        writers.pop()
        rounds = []
        for _ in ("shared", "private"):
            started = time.monotonic()
            for writer in writers:
                writer.go()
            rounds.append([second for writer in writers for second in json.loads(writer.line())])
            if len(rounds) == 1:
                elapsed = time.monotonic() - started
        wanted = pages * processes
        wait_until(lambda: copies_made(stack).by_kernels >= wanted, "all copies being reported")
        copies = copies_made(stack)
    shared, private = (sorted(second * 1e6 for second in each) for each in rounds)
    return Latency(
        processes=processes,
        shared_median=statistics.median(shared),
        shared_p99=shared[min(len(shared) - 1, len(shared) * 99 // 100)],
        private_median=statistics.median(private),
        held_mean=copies.mean_us or 0.0,
        held_max=copies.max_us or 0.0,
        copies_per_second=wanted / elapsed,
    )


def show(found: list[Latency], pages: int, console: Console) -> None:
    """Print the table."""
    console.print("SIMULATED GPU: sizes are real, times are not", style="bold yellow")
    table = Table(title=f"kernel writes to {pages} pages, microseconds")
    for heading in (
        "processes",
        "shared, median",
        "p99",
        "private, median",
        "held, mean",
        "held, max",
        "copies/s",
    ):
        table.add_column(heading, justify="right")
    for each in found:
        table.add_row(
            str(each.processes),
            f"{each.shared_median:,.0f}",
            f"{each.shared_p99:,.0f}",
            f"{each.private_median:,.0f}",
            f"{each.held_mean:,.0f}",
            f"{each.held_max:,.0f}",
            f"{each.copies_per_second:,.0f}",
        )
    console.print(table)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--pages", type=int, default=64)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        child(options.child)
        return 0
    try:
        with termination_as_exit():
            found = [measure(options.build, options.pages, n) for n in options.processes]
    except (ChildError, NoRoomError) as error:
        print(f"cow: {error}", file=sys.stderr)
        return 1
    show(found, options.pages, Console(stderr=options.json))
    if options.json:
        print(json.dumps([asdict(each) for each in found]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
