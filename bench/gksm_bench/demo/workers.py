# SPDX-License-Identifier: Apache-2.0
"""Workers as their starter sees them: child processes that report and obey."""

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

from gksm_bench.processes import ChildError, kill, spawn, stop, tail

READY_SECONDS = 240.0
ANSWER_SECONDS = 120.0


class Worker:
    """One running worker. `on_progress` is called with bytes and total, on a thread."""

    def __init__(
        self,
        name: str,
        model: Path,
        environment: Mapping[str, str],
        log: Path,
        *,
        options: list[str] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self.on_progress = on_progress
        self.ready: dict[str, Any] = {}
        command = [sys.executable, "-m", "gksm_bench.demo.worker", "--model", str(model)]
        self.process: subprocess.Popen[str] = spawn(
            [*command, *(options or [])], environment, log, piped=True
        )
        self.events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, name=f"read-{name}", daemon=True).start()

    @property
    def pid(self) -> int:
        """Of the worker's process."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                try:
                    event = json.loads(line)
                except ValueError:
                    continue  # cut off by kill -9
                if event["event"] != "progress":
                    self.events.put(event)
                elif self.on_progress is not None:
                    self.on_progress(event["bytes"], event["total"])
        self.events.put(None)

    def _next(self, wanted: str, seconds: float) -> dict[str, Any]:
        try:
            event = self.events.get(timeout=seconds)
        except queue.Empty:
            raise ChildError(f"{self.name} did not answer within {seconds:.0f} s") from None
        if event is None:
            self.events.put(None)
            status = self.process.wait()
            raise ChildError(f"{self.name} ended with status {status}: {tail(self.log)}")
        if event["event"] != wanted:
            raise ChildError(f"{self.name} answered {event} where {wanted} was due")
        return event

    def wait_ready(self, seconds: float = READY_SECONDS) -> list[int]:
        """Wait until the model is loaded and checked; numbers of the corrupt pages."""
        self.ready = self._next("ready", seconds)
        return list(self.ready["corrupt"])

    def send(self, command: str) -> None:
        """Give a command without waiting for its answer."""
        assert self.process.stdin is not None
        with suppress(OSError):  # it died: waiting for the answer says so
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()

    def wait_checked(self, seconds: float = ANSWER_SECONDS) -> list[int]:
        """The answer to `check`: numbers of the corrupt pages."""
        return list(self._next("checked", seconds)["corrupt"])

    def check(self) -> list[int]:
        """Have every byte read back; numbers of the corrupt pages."""
        self.send("check")
        return self.wait_checked()

    def write(self, way: str, pages: list[int]) -> float:
        """Write to the pages by `kernel` or `memcpy`; seconds it took."""
        self.send(f"write-{way} {','.join(map(str, pages))}")
        return self.wait_written()

    def wait_written(self) -> float:
        """The answer to a write: seconds it took."""
        return float(self._next("written", ANSWER_SECONDS)["seconds"])

    def finish(self) -> None:
        """Let it free its memory and end; ChildError if it ends badly."""
        self.send("exit")
        try:
            status = self.process.wait(ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            raise ChildError(f"{self.name} did not end when asked to") from None
        if status != 0:
            raise ChildError(f"{self.name} ended with status {status}: {tail(self.log)}")

    def kill(self) -> None:
        """kill -9."""
        kill(self.process)

    def stop(self) -> None:
        """End it one way or the other."""
        stop(self.process)
