# SPDX-License-Identifier: Apache-2.0
"""`make soak`: kill -9 of one random process of the demo, many times.

Part one kills workers, gksmd and gksm-vault alike, at random moments while all workers
write to their pages, and starts again whatever died. No survivor may read a wrong byte.
At the end everybody leaves, and handles, descriptors, leases and pages must be at
exactly zero.

Part two looks for leaks in gksmd. A gksmd that was killed itself starts small again, so
here only the others are killed, and the same gksmd is measured after a tenth of the
kills and after all of them. 0 if everything held; the summary is the last line.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
from rich.console import Console
from rich.progress import Progress, TaskID

from gksm_bench.demo.convert import ensure_model
from gksm_bench.demo.workers import Worker
from gksm_bench.metrics import free_port, read_metrics
from gksm_bench.processes import ChildError, termination_as_exit
from gksm_bench.simgpu import Probe, memory_probe, simulated_gpu
from gksm_bench.stack import PATIENT, Stack, wait_until

VRAM = 1 << 30
MODEL_BYTES = 64 << 20  # the embedding and a few layers
LEAK_ALLOWED = 0.05
GONE_SECONDS = 60.0
LOAD = "[load]\nlease_deadline_ms = 1000\nload_wait_ms = 5000\n"
WORDS_OF_WRITING = ("write-kernel", "write-memcpy")


@dataclass
class Tally:
    """What the soak found. Bytes unless a name says otherwise."""

    kills: dict[str, int] = field(default_factory=dict)
    checks: int = 0
    corrupt_pages: int = 0
    unexpected_deaths: int = 0
    handles_left: int = -1
    fds_left: int = -1
    leases_left: int = -1
    pages_left: int = -1
    rss_early: int = 0
    rss_late: int = 0
    seconds: float = 0.0

    @property
    def rss_growth(self) -> float:
        """Of gksmd from the early to the late measurement, as a fraction."""
        return self.rss_late / self.rss_early - 1 if self.rss_early else 0.0

    @property
    def good(self) -> bool:
        """Whether everything held."""
        left = (self.handles_left, self.fds_left, self.leases_left, self.pages_left)
        return (
            self.corrupt_pages == 0
            and self.unexpected_deaths == 0
            and left == (0, 0, 0, 0)
            and self.rss_growth <= LEAK_ALLOWED
        )

    def line(self) -> str:
        """The summary."""
        kills = ", ".join(f"{count} {name}" for name, count in sorted(self.kills.items()))
        return (
            f"soak {'passed' if self.good else 'FAILED'}: kill -9 of {kills}; "
            f"{self.checks} checks, {self.corrupt_pages} corrupt pages, "
            f"{self.unexpected_deaths} unexpected deaths; left: "
            f"{self.handles_left} handles, {self.fds_left} fds, {self.leases_left} leases, "
            f"{self.pages_left} pages; gksmd RSS {self.rss_early >> 10} -> {self.rss_late >> 10} "
            f"KiB ({self.rss_growth:+.1%}); {self.seconds:.0f} s"
        )


class Soak:
    """Workers on a stack, some of which are always dying."""

    def __init__(
        self,
        stack: Stack,
        probe: Probe,
        model: Path,
        *,
        instances: int,
        seed: int,
        limit: int,
    ) -> None:
        self.stack = stack
        self.probe = probe
        self.model = model
        self.limit = limit
        self.dice = random.Random(seed)
        self.tally = Tally()
        self.workers: list[Worker] = []
        self.loading: set[Worker] = set()
        self.started = 0
        self.instances = instances

    def start_worker(self) -> Worker:
        """Start one; it is counted as loading until `settle`."""
        self.started += 1
        worker = Worker(
            f"worker {self.started}",
            self.model,
            self.stack.environment(),
            self.stack.log(f"worker-{self.started}"),
            options=["--limit", str(self.limit)],
        )
        self.loading.add(worker)
        return worker

    def fill_up(self) -> None:
        """Start as many workers as are missing."""
        while len(self.workers) < self.instances:
            self.workers.append(self.start_worker())

    def settle(self, worker: Worker) -> None:
        """Wait for the end of its load and count what it read."""
        if worker in self.loading:
            self.loading.discard(worker)
            self.count(worker.wait_ready())

    def count(self, corrupt: list[int]) -> None:
        """One complete check of a worker's memory."""
        self.tally.checks += 1
        self.tally.corrupt_pages += len(corrupt)

    def kill_one(self, *, spare_gksmd: bool) -> None:
        """One round: all write, one dies at a random moment, the others check all bytes."""
        victims: list[Worker | str] = [*self.workers, "gksm-vault"]
        if not spare_gksmd:
            victims.append("gksmd")
        victim = self.dice.choice(victims)
        busy = [worker for worker in self.workers if worker not in self.loading]
        for worker in busy:
            page = self.dice.choice(worker.ready["full_pages"])
            worker.send(f"{self.dice.choice(WORDS_OF_WRITING)} {page}")
            worker.send("check")
        time.sleep(self.dice.uniform(0, 0.15))
        name = victim if isinstance(victim, str) else "worker"
        self.tally.kills[name] = self.tally.kills.get(name, 0) + 1
        if isinstance(victim, Worker):
            victim.kill()
            self.workers.remove(victim)
            self.loading.discard(victim)
            victim.log.unlink(missing_ok=True)
            self.fill_up()
        elif victim == "gksmd":
            self.stack.kill_gksmd()
        else:
            self.stack.kill_vault()
        self.stack.restart_dead()
        self.collect([worker for worker in busy if worker is not victim])

    def collect(self, survivors: list[Worker]) -> None:
        """Take the answers of those that were told to write and check."""
        for worker in survivors:
            with self.living(worker):
                worker.wait_written()
                self.count(worker.wait_checked())
        # Half of the newcomers are still loading when the next one dies.
        for worker in [each for each in self.workers if each in self.loading]:
            if self.dice.random() < 0.5:
                with self.living(worker):
                    self.settle(worker)
        self.fill_up()

    @contextmanager
    def living(self, worker: Worker) -> Iterator[None]:
        """The worker is to survive the block; if it does not, that is counted."""
        try:
            yield
        except ChildError as error:
            self.lose(worker, error)

    def lose(self, worker: Worker, error: ChildError) -> None:
        """A survivor did not survive."""
        print(f"soak: {error}", file=sys.stderr)
        self.tally.unexpected_deaths += 1
        worker.stop()
        self.workers.remove(worker)
        self.loading.discard(worker)

    def check_all(self) -> None:
        """Every worker reads every byte once more."""
        for worker in self.workers:
            self.settle(worker)
            self.count(worker.check())

    def stop(self) -> None:
        """Whatever happened, no worker is left."""
        for worker in self.workers:
            worker.stop()

    def leave(self) -> None:
        """All workers end by themselves."""
        for worker in self.workers:
            worker.finish()
        self.workers.clear()


def fds(child: subprocess.Popen[str] | None) -> int:
    """How many descriptors the process has open."""
    assert child is not None
    return len(os.listdir(f"/proc/{child.pid}/fd"))


def rss(child: subprocess.Popen[str] | None) -> int:
    """Resident bytes of the process."""
    assert child is not None
    return int(psutil.Process(child.pid).memory_info().rss)


def part_one(soak: Soak, kills: int, port: int, progress: Progress, task: TaskID) -> None:
    """Kill anybody; then see that nothing is left."""
    stack, tally = soak.stack, soak.tally
    idle_fds = fds(stack.vault) + fds(stack.gksmd)
    soak.fill_up()
    for worker in soak.workers:
        soak.settle(worker)
    for _ in range(kills):
        soak.kill_one(spare_gksmd=False)
        progress.advance(task)
    soak.check_all()
    soak.leave()

    def nothing_left() -> bool:
        status = stack.status()
        tally.handles_left = soak.probe.used_bytes() // (2 << 20)
        tally.pages_left = sum(
            gpu["pages_shared"] + gpu["warm_bytes"] // (2 << 20) for gpu in status["gpus"]
        )
        tally.leases_left = int(read_metrics(port).get("gksm_leases_held", 0))
        tally.fds_left = fds(stack.vault) + fds(stack.gksmd) - idle_fds
        left = (tally.handles_left, tally.pages_left, tally.leases_left, tally.fds_left)
        return left == (0, 0, 0, 0) and not status["instances"]

    try:
        wait_until(nothing_left, "everything returning to zero", GONE_SECONDS)
    except ChildError as error:
        print(f"soak: {error}", file=sys.stderr)


def part_two(soak: Soak, kills: int, progress: Progress, task: TaskID) -> None:
    """Kill anybody but gksmd; compare its memory early and late."""
    soak.fill_up()
    for worker in soak.workers:
        soak.settle(worker)
    early = max(1, kills // 10)
    for number in range(1, kills + 1):
        soak.kill_one(spare_gksmd=True)
        progress.advance(task)
        if number in (early, kills):
            for worker in soak.workers:
                soak.settle(worker)
            time.sleep(1.0)  # what the dead had is given back within this
            if number == early:
                soak.tally.rss_early = rss(soak.stack.gksmd)
            if number == kills:
                soak.tally.rss_late = rss(soak.stack.gksmd)
    soak.check_all()
    soak.leave()


def run(options: argparse.Namespace, console: Console) -> Tally:
    """Both parts, each on a stack of its own."""
    model = ensure_model(options.build.parent / "model")
    limit = options.model_mib << 20
    tally = Tally()
    started = time.monotonic()
    with Progress(console=console) as progress:
        for spare_gksmd in (False, True):
            title = "killing all but gksmd" if spare_gksmd else "killing anybody"
            task = progress.add_task(title, total=options.kills)
            port = free_port()
            config = f'{PATIENT}{LOAD}[metrics]\nlisten = "127.0.0.1:{port}"\n'
            with ExitStack() as undo:
                gpu = undo.enter_context(
                    simulated_gpu(options.build, vram=VRAM, room=limit * (options.instances + 2))
                )
                stack = undo.enter_context(Stack(gpu, config=config))
                probe = undo.enter_context(memory_probe(gpu.environment(), stack.log("probe")))
                soak = Soak(
                    stack,
                    probe,
                    model,
                    instances=options.instances,
                    seed=options.seed,
                    limit=limit,
                )
                soak.tally = tally
                undo.callback(soak.stop)
                if spare_gksmd:
                    part_two(soak, options.kills, progress, task)
                else:
                    part_one(soak, options.kills, port, progress, task)
    tally.seconds = time.monotonic() - started
    return tally


def main(arguments: list[str] | None = None) -> int:
    """Run the soak; 0 if everything held."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"), help="what make built")
    parser.add_argument("--kills", type=int, default=200, metavar="N", help="in each part (200)")
    parser.add_argument("--instances", type=int, default=4, metavar="N", help="workers (4)")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of who dies when")
    parser.add_argument(
        "--model-mib", type=int, default=MODEL_BYTES >> 20, help="how much of the model is loaded"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON, too")
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    try:
        with termination_as_exit():
            tally = run(options, console)
    except KeyboardInterrupt:
        return 130
    except ChildError as error:
        print(f"soak FAILED: {error}")
        return 1
    if options.json:
        print(json.dumps(asdict(tally) | {"good": tally.good}))
    print(tally.line())
    return 0 if tally.good else 1


if __name__ == "__main__":
    sys.exit(main())
