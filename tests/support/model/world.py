# SPDX-License-Identifier: Apache-2.0
"""Processes that share, the truth about each, and one step after another."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
from gksm_bench.metrics import free_port
from gksm_bench.simgpu import memory_probe, simulated_gpu
from gksm_bench.stack import PATIENT, Stack, wait_until

from tests.support.control import ask
from tests.support.model import scanning
from tests.support.model.truth import Allocation
from tests.support.pages import PAGE
from tests.support.remote import Remote

PROGRAM = "tests.support.model.actor"
VRAM = 512 << 20
# Of one process: 4 of them never fill the device.
PAGES_MAX = 24


@dataclass(eq=False)
class Process:
    """One process at work, and what it must find in its memory."""

    name: str
    remote: Remote
    allocations: list[Allocation] = field(default_factory=list)
    children: list[int] = field(default_factory=list)
    frozen: bool = False
    shared: list[bool] = field(default_factory=list)  # by page, as last asked
    passes: int = 0  # of its scanner, when it was frozen

    @property
    def ranges(self) -> list[list[int]]:
        """[address, pages] of its allocations."""
        return [[each.address, len(each.pages)] for each in self.allocations]

    @property
    def hashes(self) -> list[int]:
        """Of what must be in all its pages."""
        return [page.hash for each in self.allocations for page in each.pages]

    def ask_shared(self) -> list[bool]:
        """Of each page, whether it is a published one now; remembered."""
        self.shared = self.remote.shared_map(self.ranges)
        return self.shared


class World:
    """A stack with `count` processes, for as long as the block lasts."""

    def __init__(self, build: Path, logs: Path, count: int) -> None:
        self.build = build
        self.logs = logs
        self.count = count
        self.processes: list[Process] = []
        self.made = 0
        self.port = free_port()
        self.undo = ExitStack()
        self.missed_scan = False  # by the one that is frozen

    def __enter__(self) -> World:
        self.logs.mkdir(parents=True, exist_ok=True)
        metrics = f'[metrics]\nlisten = "127.0.0.1:{self.port}"\n'
        with ExitStack() as undo:
            gpu = undo.enter_context(simulated_gpu(self.build, vram=VRAM))
            config = PATIENT + metrics + scanning.CONFIG
            self.stack = undo.enter_context(Stack(gpu, config=config, domain_rules=scanning.RULES))
            self.probe = undo.enter_context(
                memory_probe(gpu.environment(), self.logs / "probe.log")
            )
            self.idle_fds = self.daemon_fds()
            undo.callback(self.kill_all)
            self.spare = self.start()
            for _ in range(self.count):
                self.processes.append(self.newcomer())
            self.undo = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.undo.close()

    # Processes

    def start(self) -> Remote:
        """A process that has not used the GPU yet: to start one takes long, so the next is
        made while others work."""
        self.made += 1
        log = self.logs / f"process-{self.made}.log"
        return Remote(self.stack.environment(), log, program=PROGRAM, init=False)

    def newcomer(self) -> Process:
        """The process that was made ahead."""
        remote, self.spare = self.spare, self.start()
        remote.init(0)
        remote.settle()  # its first allocation is what tells libgksm of the GPU
        return Process(f"p{self.made - 1}", remote)

    def awake(self, number: int) -> Process:
        """Process `number`, or the next one that is not frozen."""
        able = [each for each in self.turned(number) if not each.frozen]
        return able[0]

    def turned(self, number: int) -> list[Process]:
        """All processes, from `number` on."""
        start = number % len(self.processes)
        return self.processes[start:] + self.processes[:start]

    def remove(self, process: Process) -> None:
        """It has ended: wait until that is known, and end its children."""
        for child in process.children:
            os.kill(child, signal.SIGKILL)
        pid = process.remote.pid
        wait_until(
            lambda: pid not in {row["pid"] for row in self.rows("ps")},
            f"{process.name} being forgotten",
        )

    def kill_all(self) -> None:
        """Whatever happened, none is left."""
        for process in self.processes:
            for child in process.children:
                if psutil.pid_exists(child):
                    os.kill(child, signal.SIGKILL)
            process.remote.kill()
        self.spare.kill()

    # The daemon

    def rows(self, op: str) -> Any:
        """gksmd's answer to a question that needs no rights."""
        return ask(self.stack.run_dir / "status.sock", op=op)["result"]

    def daemon_fds(self) -> list[int]:
        """How many descriptors gksmd and the vault have open."""
        children = (self.stack.gksmd, self.stack.vault)
        return [len(os.listdir(f"/proc/{child.pid}/fd")) for child in children if child]

    def used_pages(self) -> int:
        """Of the device, as the hardware would say."""
        return self.probe.used_bytes() // PAGE
