# SPDX-License-Identifier: Apache-2.0
"""How fast the host hashes, snapshots, compares and copies pages, on 1 .. n threads.

    python -m gksm_bench.host_hash [--build build/release] [--threads N] [--json]

The xxhash package (XXH3-128 on one thread) is measured on pages of the same size in the
same run: the ratio to it is what counts. GB/s of pages, each page counted once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import xxhash
from rich.console import Console
from rich.table import Table

PAGE = 2 << 20
KINDS = ("copy", "snapshot", "hash", "compare")


@dataclass(frozen=True)
class Speed:
    """One line of the program's output."""

    threads: int
    path: str
    what: str
    gb_per_s: float


def reference_speed(pages: int, rounds: int) -> float:
    """GB/s of the xxhash package on one thread, best of the rounds."""
    content = [random.randbytes(PAGE) for _ in range(pages)]
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for page in content:
            xxhash.xxh3_128_digest(page)
        best = min(best, time.perf_counter() - start)
    return pages * PAGE / best / 1e9


def measure(build: Path, threads: int, pages: int, rounds: int) -> list[Speed]:
    """What `hash_speed` prints."""
    command = [str(build / "tests" / "hash_speed"), str(threads), str(pages), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    return [Speed(**json.loads(line)) for line in done.stdout.splitlines()]


def show(speeds: list[Speed], reference: float) -> None:
    """Print the table."""
    table = Table(title=f"GB/s of 2 MiB pages, host, {speeds[0].path}")
    table.add_column("threads", justify="right")
    for what in KINDS:
        table.add_column(what, justify="right")
    table.add_column("hash / xxhash package", justify="right")
    for threads in sorted({speed.threads for speed in speeds}):
        row = {speed.what: speed.gb_per_s for speed in speeds if speed.threads == threads}
        cells = [f"{row[what]:.1f}" for what in KINDS]
        table.add_row(str(threads), *cells, f"{row['hash'] / reference:.2f}")
    console = Console()
    console.print(table)
    console.print(f"xxhash package, one thread: {reference:.1f} GB/s")


def main() -> int:
    """Run the command; 0, or 1 when its program has not been built."""
    cpus = min(len(os.sched_getaffinity(0)), 16)
    parser = argparse.ArgumentParser(description="Speed of the host's page hash and compare.")
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--threads", type=int, default=cpus, help="at most (default: %(default)s)")
    parser.add_argument("--pages", type=int, default=128, help="2 MiB each (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="the best counts")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    if not (options.build / "tests" / "hash_speed").exists():
        print(
            f"{options.build}/tests/hash_speed is not built: run `make libgksm-tests`.",
            file=sys.stderr,
        )
        return 1
    reference = reference_speed(options.pages, options.rounds)
    speeds = measure(options.build, options.threads, options.pages, options.rounds)
    if options.json:
        result = {"xxhash_gb_per_s": round(reference, 2), "speeds": [asdict(s) for s in speeds]}
        print(json.dumps(result))
    else:
        show(speeds, reference)
    return 0


if __name__ == "__main__":
    sys.exit(main())
