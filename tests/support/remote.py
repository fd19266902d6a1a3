# SPDX-License-Identifier: Apache-2.0
"""A test's hold on an actor: `remote.alloc(4)` runs `alloc(4)` in a process of its own."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gksm_bench.processes import kill, spawn, tail

ANSWER_SECONDS = 60.0
ROOT = Path(__file__).parents[2]


class RemoteError(AssertionError):
    """The actor answered with an error; `code` is a CUresult, or -1."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class RemoteDiedError(AssertionError):
    """The actor's process ended before it answered."""


class Remote:
    """Starts an actor in `environment` and, unless told not to, initialises CUDA in it."""

    def __init__(
        self,
        environment: Mapping[str, str],
        log: Path,
        *,
        device: int = 0,
        init: bool = True,
        program: str = "tests.support.actor",
    ) -> None:
        self.log = log
        self.process: subprocess.Popen[str] = spawn(
            [sys.executable, "-m", program],
            {**environment, "PYTHONPATH": str(ROOT)},
            log,
            piped=True,
        )
        self.answers: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.pid = self.process.pid
        if init:
            self.call("init", device)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.answers.put(line)
        self.answers.put(None)

    def send(self, method: str, *arguments: Any) -> None:
        """Give a command without waiting."""
        assert self.process.stdin is not None
        with suppress(OSError):  # `receive` says that it died
            self.process.stdin.write(json.dumps([method, arguments]) + "\n")
            self.process.stdin.flush()

    def receive(self, seconds: float = ANSWER_SECONDS) -> Any:
        """The answer to the oldest command without one."""
        try:
            line = self.answers.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError(f"process {self.pid} did not answer: {tail(self.log)}") from None
        if line is None:
            self.answers.put(None)
            status = self.process.wait()
            raise RemoteDiedError(
                f"process {self.pid} ended with status {status}: {tail(self.log)}"
            )
        answer = json.loads(line)
        if "error" in answer:
            raise RemoteError(answer["error"], answer["code"])
        return answer["value"]

    def call(self, method: str, *arguments: Any) -> Any:
        """Give a command and wait for its answer."""
        self.send(method, *arguments)
        return self.receive()

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)
        return lambda *arguments: self.call(method, *arguments)

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.process.poll() is None

    def kill(self) -> None:
        """kill -9."""
        kill(self.process)

    def finish(self) -> int:
        """Let it end by itself; its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(ANSWER_SECONDS)
