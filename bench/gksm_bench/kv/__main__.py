# SPDX-License-Identifier: Apache-2.0
"""What instances that serve requests share over time.

    python -m gksm_bench.kv [--instances 4] [--intervals 60] [--json] [--png kv.png]

Each instance loads the same model, zeroes a KV pool and serves: requests arrive, some
with a system prompt that others have too, blocks fill token by token through kernels,
finished requests leave their blocks to others. After each interval every process is
scanned once, and what is shared is counted by kind. On a simulated GPU: what is shared
is real, and how long it took is not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.progress import track

from gksm_bench.kv.fleet import Fleet, Sizes, fleet
from gksm_bench.kv.plot import NoPlotError, draw
from gksm_bench.kv.requests import Load, Request
from gksm_bench.kv.sampling import Result, Sampler
from gksm_bench.kv.show import show
from gksm_bench.library import PAGE
from gksm_bench.places import NoRoomError
from gksm_bench.processes import ChildError, termination_as_exit
from gksm_bench.simgpu import memory_probe, simulated_gpu
from gksm_bench.stack import DOMAIN, PATIENT, Stack

LOAD_PARTS = 4
ROOM = 128 << 20
# Nothing looks but the one pass after each interval.
QUIET = "[scan]\nrun = false\nzero_pages = {zero_pages}\n"


def work(fleet_: Fleet, interval: int, ticks: int, arrivals: Iterator[list[Request]]) -> None:
    """One interval: load first, then serve."""
    begins = LOAD_PARTS + len(fleet_.instances) - 1
    if interval < begins:
        fleet_.load(interval, LOAD_PARTS)
    elif interval == begins:
        fleet_.all("begin")
    else:
        for _ in range(ticks):
            fleet_.tick(next(arrivals))


def measure(options: argparse.Namespace, console: Console) -> Result:
    """Run all intervals on a stack of their own."""
    sizes = Sizes(options.weights, options.pool, options.other)
    size = options.instances * sizes.pages * PAGE
    load = Load(options.instances, options.seed, per_tick=options.per_tick)
    rule = [DOMAIN, "--match", f"uid={os.getuid()}", "--share", "weights,kv,other"]
    config = PATIENT + QUIET.format(zero_pages=str(options.zero_pages).lower())
    with ExitStack() as undo:
        gpu = undo.enter_context(simulated_gpu(options.build, vram=size + ROOM, room=size))
        stack = undo.enter_context(Stack(gpu, config=config, domain_rules=[rule]))
        probe = undo.enter_context(memory_probe(gpu.environment(), stack.log("probe")))
        fleet_ = undo.enter_context(fleet(stack, options.instances, sizes))
        sampler = Sampler(stack, fleet_, probe, options.within)
        arrivals = load.arrivals()
        for interval in track(range(options.intervals), "serving", console=console):
            work(fleet_, interval, options.ticks, arrivals)
            sampler.scan()
            sampler.sample()
        wrong = sum(fleet_.all("verify"))
    return Result(
        instances=options.instances,
        seed=options.seed,
        samples=sampler.samples,
        merged=sum(len(churn.merges) for churn in sampler.churn),
        written_soon=sum(churn.written_soon for churn in sampler.churn),
        churning=sum(churn.churning for churn in sampler.churn),
        wrong_tokens=wrong,
    )


def main(arguments: list[str] | None = None) -> int:
    """0: few copies on write, no page merged while it was being written, no byte wrong."""
    parser = argparse.ArgumentParser(prog="python -m gksm_bench.kv", description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--instances", type=int, default=4)
    parser.add_argument("--intervals", type=int, default=60, help="scans, loading included (60)")
    parser.add_argument("--ticks", type=int, default=4, help="decoding steps an interval (4)")
    parser.add_argument(
        "--per-tick", type=float, default=0.25, help="requests a tick, of all (0.25)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the requests")
    parser.add_argument("--weights", type=int, default=192, help="pages of the model (192)")
    parser.add_argument("--pool", type=int, default=64, help="KV blocks, each a page (64)")
    parser.add_argument("--other", type=int, default=16, help="pages of other data (16)")
    parser.add_argument("--zero-pages", action="store_true", help="merge pages of zeros, too")
    parser.add_argument(
        "--within",
        type=int,
        default=2,
        help="intervals around a merge in which a written page counts as churning (2)",
    )
    parser.add_argument("--png", type=Path, default=Path("kv.png"), help="the picture (kv.png)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    try:
        with termination_as_exit():
            result = measure(options, console)
    except KeyboardInterrupt:
        return 130
    except (ChildError, NoRoomError) as error:
        print(f"kv: {error}", file=sys.stderr)
        return 1
    show(result, Console(stderr=options.json))
    try:
        draw(result, options.png)
    except NoPlotError as error:
        print(f"kv: {error}", file=sys.stderr)
    if options.json:
        print(json.dumps(result.as_json()))
    return 0 if result.good else 1


if __name__ == "__main__":
    sys.exit(main())
