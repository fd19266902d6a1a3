# SPDX-License-Identifier: Apache-2.0
"""The instances, as their starter has them: each does one thing after another."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass
from typing import Any

from gksm_bench.kv.requests import Request
from gksm_bench.processes import ChildError, kill, spawn, tail
from gksm_bench.stack import Stack


@dataclass(frozen=True)
class Sizes:
    """Pages of each instance."""

    weights: int
    pool: int
    other: int

    @property
    def pages(self) -> int:
        """Together."""
        return self.weights + self.pool + self.other


class Instance:
    """One engine's process."""

    def __init__(self, stack: Stack, number: int, sizes: Sizes) -> None:
        self.number = number
        self.log = stack.log(f"engine-{number}")
        command = [sys.executable, "-m", "gksm_bench.kv.engine", str(number)]
        command += [str(size) for size in astuple(sizes)]
        self.process: subprocess.Popen[str] = spawn(
            command, stack.environment(), self.log, piped=True
        )

    def send(self, command: str, *arguments: Any) -> None:
        """Give a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([command, arguments]) + "\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        """Its answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise ChildError(f"instance {self.number} ended: {tail(self.log)}")
        return json.loads(line)

    def close(self) -> None:
        """End it."""
        kill(self.process)
        if self.process.stdout is not None:
            self.process.stdout.close()


class Fleet:
    """All instances; they work at the same time, and are all done when a call returns."""

    def __init__(self, instances: list[Instance], sizes: Sizes) -> None:
        self.instances = instances
        self.sizes = sizes
        for instance in instances:
            instance.receive()

    def all(self, command: str) -> list[Any]:
        """The same for each; their answers."""
        for instance in self.instances:
            instance.send(command)
        return [instance.receive() for instance in self.instances]

    def load(self, part: int, parts: int) -> None:
        """Each loads one of so many parts of the model; instance n is n parts behind."""
        loading = [each for each in self.instances if 0 <= part - each.number < parts]
        for instance in loading:
            first, end = (
                self.sizes.weights * (part - instance.number + step) // parts for step in (0, 1)
            )
            instance.send("load", first, end - first)
        for instance in loading:
            instance.receive()

    def tick(self, arriving: list[Request]) -> None:
        """One step of every instance."""
        for instance in self.instances:
            mine = [astuple(each) for each in arriving if each.instance == instance.number]
            instance.send("tick", mine)
        for instance in self.instances:
            instance.receive()


@contextmanager
def fleet(stack: Stack, count: int, sizes: Sizes) -> Iterator[Fleet]:
    """`count` instances that end with the block."""
    with ExitStack() as undo:
        instances = []
        for number in range(count):
            instance = Instance(stack, number, sizes)
            undo.callback(instance.close)
            instances.append(instance)
        yield Fleet(instances, sizes)
