# SPDX-License-Identifier: Apache-2.0
"""`make demo`: N processes load one real model; one copy of it is kept."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from gksm_bench.demo.convert import ensure_model
from gksm_bench.demo.model import ModelError, open_model
from gksm_bench.demo.realgpu import RealGpu, open_real_gpu
from gksm_bench.demo.show import Result, headline, show
from gksm_bench.demo.story import tell
from gksm_bench.places import NoRoomError
from gksm_bench.processes import ChildError, termination_as_exit
from gksm_bench.simgpu import SimulatedGpu, simulated_gpu
from gksm_bench.stack import Stack

SLACK_BYTES = 256 << 20
WRITERS = 2


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    build: Path
    instances: int
    per_tensor_alloc: bool
    gpu: bool
    json: bool


def parse(arguments: list[str] | None = None) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"), help="what make built")
    parser.add_argument("--instances", type=int, default=4, metavar="N", help="how many (4)")
    parser.add_argument(
        "--per-tensor-alloc", action="store_true", help="every tensor allocated on its own"
    )
    parser.add_argument("--gpu", action="store_true", help="on a real GPU")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")
    args = parser.parse_args(arguments)
    if args.instances < WRITERS:
        parser.error(f"--instances {args.instances}: it takes {WRITERS} processes to share")
    return Options(args.build, args.instances, args.per_tensor_alloc, args.gpu, args.json)


def run(options: Options, console: Console) -> Result:
    """The whole demo; everything it starts is gone when it returns."""
    model = ensure_model(options.build.parent / "model")
    opened = open_model(model)
    model_bytes = opened.nbytes
    del opened
    with ExitStack() as undo:
        gpu: SimulatedGpu | RealGpu
        if options.gpu:
            gpu = open_real_gpu(options.build)
        else:
            room = (options.instances + 1) * model_bytes + SLACK_BYTES
            gpu = undo.enter_context(simulated_gpu(options.build, room=room))
        console.print(headline(gpu))
        config = None if not options.gpu else '[guard]\ndefault = "auto"\n'
        guard = [] if not options.gpu or gpu.guard else ["--guard", "optimistic"]
        stack = undo.enter_context(Stack(gpu, config=config, guard_options=guard))
        return tell(
            stack,
            model,
            console,
            instances=options.instances,
            per_tensor_alloc=options.per_tensor_alloc,
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; 0 only if every byte was right."""
    options = parse(arguments)
    console = Console(stderr=options.json, highlight=False)
    try:
        with termination_as_exit():
            result = run(options, console)
    except KeyboardInterrupt:
        console.print("interrupted; everything that was started is gone")
        return 130
    except (ChildError, ModelError, NoRoomError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    show(result, console)
    if options.json:
        print(json.dumps(result.as_json()))
    return 0 if result.good else 1


if __name__ == "__main__":
    sys.exit(main())
