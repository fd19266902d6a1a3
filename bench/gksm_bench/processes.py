# SPDX-License-Identifier: Apache-2.0
"""Child processes that never outlive the program that started them."""

from __future__ import annotations

import ctypes
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

PR_SET_PDEATHSIG = 1
STOP_SECONDS = 10.0


class ChildError(RuntimeError):
    """A child process did not do what it was asked to."""


def die_with_parent() -> Callable[[], None]:
    """A `preexec_fn`: the kernel kills the child when the thread that started it ends."""
    prctl = ctypes.CDLL(None).prctl

    def ask_kernel() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    return ask_kernel


def spawn(
    command: Sequence[str],
    env: Mapping[str, str],
    log: Path,
    *,
    piped: bool = False,
) -> subprocess.Popen[str]:
    """Start `command`; its standard error (and output, unless `piped`) is appended to `log`.

    With `piped` its standard input and output are text pipes of the caller.
    """
    with log.open("a") as output:
        return subprocess.Popen(
            list(command),
            env=dict(env),
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE if piped else output,
            stderr=output,
            text=True,
            start_new_session=True,  # Ctrl-C is the parent's to handle
            preexec_fn=die_with_parent(),  # noqa: PLW1509 -- one system call, no lock
        )


def stop(child: subprocess.Popen[str]) -> None:
    """Ask the child to end, then insist; returns once it is gone."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            kill(child)
    close_pipes(child)


def kill(child: subprocess.Popen[str]) -> None:
    """Kill with -9, and wait until the kernel has taken the process apart."""
    child.kill()
    child.wait()
    close_pipes(child)


def close_pipes(child: subprocess.Popen[str]) -> None:
    """Close our ends; a reader thread may still be draining the output, so leave that."""
    if child.stdin is not None:
        with suppress(OSError):
            child.stdin.close()


def tail(log: Path, lines: int = 15) -> str:
    """The end of a log, for an error message."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


@contextmanager
def termination_as_exit() -> Iterator[None]:
    """SIGTERM and SIGHUP leave by exception, so that everything started is undone."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, leave) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
