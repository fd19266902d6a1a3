# SPDX-License-Identifier: Apache-2.0
"""What happens in the demo, in its order."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from gksm_bench.demo.show import Result, Row
from gksm_bench.demo.workers import Worker
from gksm_bench.processes import ChildError
from gksm_bench.simgpu import Probe, SimulatedGpu, memory_probe
from gksm_bench.stack import Stack

PAGES_WRITTEN = 3
SETTLE_SECONDS = 10.0


def tell(
    stack: Stack,
    model: Path,
    console: Console,
    *,
    instances: int,
    per_tensor_alloc: bool,
) -> Result:
    """Load, share, write, check; nothing of it runs any more at the end."""
    simulated = isinstance(stack.gpu, SimulatedGpu)
    options = [
        *(["--per-tensor-alloc"] if per_tensor_alloc else []),
        *([] if simulated else ["--ptx"]),
    ]
    with ExitStack() as undo:
        probe = undo.enter_context(memory_probe(stack.gpu.environment(), stack.log("probe")))
        idle = probe.used_bytes()
        with Progress(
            TextColumn("{task.description}"), BarColumn(), DownloadColumn(), console=console
        ) as progress:
            alone = measure_alone(stack, model, options, probe, progress) - idle
            workers = start(
                stack, model, options, instances=instances, progress=progress, undo=undo
            )
            wrong = [worker.wait_ready() for worker in workers]
        console.print("All loaded, every byte checked. Now two of them are fine-tuned in place.")
        pages = pages_to_write(workers[0])
        ways = ["kernel" if simulated or stack.gpu.guard else "memcpy", "memcpy"]
        for worker, way in zip(workers, ways, strict=False):
            worker.write(way, pages)
        for worker in workers:
            worker.send("check")
        for found, worker in zip(wrong, workers, strict=True):
            found.extend(worker.wait_checked())
        written = PAGES_WRITTEN * len(ways)
        copies, status = settled(stack, written)
        used = probe.used_bytes() - idle
        by_pid = {entry["pid"]: entry for entry in status["instances"]}
        rows = []
        for number, worker in enumerate(workers):
            entry = by_pid.get(worker.pid)
            if entry is None:
                raise ChildError(f"gksmd does not know {worker.name} (process {worker.pid})")
            rows.append(
                Row(
                    name=worker.name,
                    pid=worker.pid,
                    virtual_bytes=entry["virtual_bytes"],
                    private_bytes=entry["private_bytes"],
                    shared_bytes=entry["shared_bytes"],
                    proportional_bytes=entry["proportional_bytes"],
                    load_seconds=worker.ready["load_seconds"],
                    pages_written=PAGES_WRITTEN if number < len(ways) else 0,
                    written_by=ways[number] if number < len(ways) else "",
                    corrupt_pages=len(set(wrong[number])),
                )
            )
        for worker in workers:
            worker.finish()
    return Result(
        instances=instances,
        simulated=simulated,
        per_tensor_alloc=per_tensor_alloc,
        model_bytes=model.stat().st_size,
        bytes_without=alone * instances,
        bytes_with=used,
        pages_written=written,
        cow_events=copies.total,
        cow_mean_us=copies.mean_us,
        cow_max_us=copies.max_us,
        rows=rows,
    )


def measure_alone(
    stack: Stack, model: Path, options: list[str], probe: Probe, progress: Progress
) -> int:
    """Used bytes of the device while one worker runs without gKSM."""
    task = progress.add_task("one without gKSM", total=None)
    worker = Worker(
        "the worker without gKSM",
        model,
        stack.environment(shared=False),
        stack.log("alone"),
        options=options,
        on_progress=updater(progress, task),
    )
    try:
        if worker.wait_ready():
            raise ChildError("without gKSM the worker already reads wrong bytes")
        used = probe.used_bytes()
        worker.finish()
    finally:
        worker.stop()
    return used


def start(
    stack: Stack,
    model: Path,
    options: list[str],
    *,
    instances: int,
    progress: Progress,
    undo: ExitStack,
) -> list[Worker]:
    """Start all workers at once, each with a bar."""
    workers = []
    for number in range(1, instances + 1):
        task = progress.add_task(f"worker {number}", total=None)
        worker = Worker(
            f"worker {number}",
            model,
            stack.environment(),
            stack.log(f"worker-{number}"),
            options=options,
            on_progress=updater(progress, task),
        )
        undo.callback(worker.stop)
        workers.append(worker)
    return workers


def updater(progress: Progress, task: TaskID) -> Callable[[int, int], None]:
    """Moves one bar."""

    def update(done: int, total: int) -> None:
        progress.update(task, completed=done, total=total)

    return update


def pages_to_write(worker: Worker) -> list[int]:
    """Full pages at equal distances, so that one kernel can write to all of them."""
    full = set(worker.ready["full_pages"])
    pages = int(worker.ready["pages"])
    for stride in range(pages // PAGES_WRITTEN, 0, -1):
        for first in range(pages - stride * (PAGES_WRITTEN - 1)):
            found = [first + stride * i for i in range(PAGES_WRITTEN)]
            if full.issuperset(found):
                return found
    raise ChildError("the model fills no three pages at equal distances")


@dataclass(frozen=True)
class Copies:
    """Private copies that were made because somebody wrote."""

    by_kernels: int
    by_the_api: int
    nanoseconds: int  # of all held faults together
    longest: int

    @property
    def total(self) -> int:
        """Of both kinds."""
        return self.by_kernels + self.by_the_api

    @property
    def mean_us(self) -> float | None:
        """Of a held fault; None if there was none."""
        return self.nanoseconds / self.by_kernels / 1000 if self.by_kernels else None

    @property
    def max_us(self) -> float | None:
        """Of a held fault; None if there was none."""
        return self.longest / 1000 if self.by_kernels else None


def copies_made(stack: Stack) -> Copies:
    """Over all processes that gksmd knows now."""
    rows = json.loads(stack.gksmctl("ps", "--json"))
    return Copies(
        by_kernels=sum(row["cow_events"] for row in rows),
        by_the_api=sum(row["api_detaches"] for row in rows),
        nanoseconds=sum(row["cow_ns_total"] for row in rows),
        longest=max((row["cow_ns_max"] for row in rows), default=0),
    )


def settled(stack: Stack, written: int) -> tuple[Copies, dict[str, Any]]:
    """The counts once processes have reported them: all writes seen, nothing moves."""
    deadline = time.monotonic() + SETTLE_SECONDS
    before: list[Any] = []
    while True:
        copies, status = copies_made(stack), stack.status()
        now = [copies, status["gpus"], status["instances"]]
        if (copies.total >= written and now == before) or time.monotonic() > deadline:
            return copies, status
        before = now
        time.sleep(0.2)
