# SPDX-License-Identifier: Apache-2.0
"""The containers that the runtime's hook announced: prepared, bound, forgotten.

``prepare`` comes before a container exists and decides its domain for its life;
``bind`` names its first process, whose end forgets it even if the hook never says so.
Each is kept in a file of ``state_dir``, so that a restarted daemon opens the same
sockets with the same domains. A container keeps its domain when the rules change.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from gksmd.config import decode_hook, encode_hook
from gksmd.core import Core
from gksmd.domains import Container, Decision, Domain, Subject
from gksmd.identity import ended
from gksmd.jsonlines import RefusedError

log = logging.getLogger(__name__)

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class Record(msgspec.Struct, kw_only=True):
    """What is known of one container; also the content of its file."""

    facts: Container
    cgroup: str
    domain: Domain
    reason: str
    prepared_at: float  # CLOCK_BOOTTIME: the wall clock may jump
    pid: int = 0  # 0: not bound yet
    start_ticks: int = 0

    @property
    def subject(self) -> Subject:
        """The container as the rules see it."""
        return Subject(uid=0, cgroup=self.cgroup, container=self.facts)


class Registry:
    """All containers. Used on the event loop only."""

    def __init__(
        self, core: Core, decide: Callable[[Subject], Decision], state_dir: Path, prepare_ms: int
    ) -> None:
        """``decide`` gives new containers their domain; ``prepare_ms`` is how long one
        that was prepared may stay unbound."""
        self._core = core
        self._decide = decide
        self._folder = state_dir / "containers"
        self._prepare_seconds = prepare_ms / 1000
        self.records: dict[str, Record] = {}
        self._pidfds: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def restore(self) -> None:
        """Open again what the files say lives. OSError if the folder cannot be made."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted(self._folder.glob("*.json")):
            self._restore_one(path)

    def _restore_one(self, path: Path) -> None:
        try:
            self._adopt(msgspec.json.decode(path.read_bytes(), type=Record, dec_hook=decode_hook))
        except (OSError, msgspec.DecodeError, RefusedError) as error:
            log.info("container %s is not restored: %s", path.stem, error)
            self.forget(path.stem)

    def _adopt(self, record: Record) -> None:
        name = record.facts.id
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - record.prepared_at
        if not _ID.fullmatch(name):
            raise RefusedError("its file names no container")
        if not record.pid and not 0 <= age < self._prepare_seconds:
            raise RefusedError("it was prepared and never started")
        self.records[name] = record
        self._core.open_container(name, Decision(record.domain, record.reason))
        if record.pid:
            self._watch(name, record.pid, record.start_ticks)
            self._core.bind_container(name, record.cgroup)
        else:
            self._expect_bind(name, self._prepare_seconds - age)

    def prepare(self, facts: Container, cgroup: str) -> tuple[Path, Decision]:
        """Decide the domain and open the socket; returns its path. Idempotent.

        A container that is known keeps the domain it has. Raises RefusedError.
        """
        name = facts.id
        if not _ID.fullmatch(name):
            raise RefusedError(
                f'"{name[:64]}" cannot be a container id; give the id of the engine.'
            )
        record = self.records.get(name)
        if record is None:
            decision = self._decide(Subject(uid=0, cgroup=cgroup, container=facts))
            record = Record(
                facts=facts,
                cgroup=cgroup,
                domain=decision.domain,
                reason=decision.reason,
                prepared_at=time.clock_gettime(time.CLOCK_BOOTTIME),
            )
        decision = Decision(record.domain, record.reason)
        try:
            socket = self._core.open_container(name, decision)
            self._save(record)
        except OSError as error:
            self._core.close_container(name)
            raise RefusedError(f"{name}: no socket can be made for it: {error}.") from error
        if name not in self.records:
            self.records[name] = record
            self._expect_bind(name, self._prepare_seconds)
        return socket, decision

    def bind(self, name: str, pid: int) -> None:
        """``pid`` is the container's first process. Raises RefusedError."""
        record = self.records.get(name)
        if record is None:
            raise RefusedError(f'"{name[:64]}" was not prepared; call prepare first.')
        start_ticks = _start_ticks(pid)
        self._watch(name, pid, start_ticks)
        if timer := self._timers.pop(name, None):
            timer.cancel()
        record.pid = pid
        record.start_ticks = start_ticks
        record.cgroup = _cgroup(pid)
        self._core.bind_container(name, record.cgroup)
        try:
            self._save(record)
        except OSError as error:
            raise RefusedError(f"{name}: cannot be remembered: {error}.") from error

    def by_name(self, text: str) -> str:
        """The id of the one container whose name is ``text``; else ``text`` itself."""
        named = [i for i, record in self.records.items() if record.facts.name.strip("/") == text]
        return named[0] if len(named) == 1 and text not in self.records else text

    def forget(self, name: str) -> None:
        """The container is gone. Idempotent."""
        if timer := self._timers.pop(name, None):
            timer.cancel()
        pidfd = self._pidfds.pop(name, -1)
        if pidfd >= 0:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)
        if self.records.pop(name, None) is not None:
            self._core.close_container(name)
        if _ID.fullmatch(name):
            with contextlib.suppress(OSError):
                self._path(name).unlink()

    def close(self) -> None:
        """Stop watching; the files stay, for the next start."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for pidfd in self._pidfds.values():
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)
        self._pidfds.clear()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _save(self, record: Record) -> None:
        path = self._path(record.facts.id)
        temporary = path.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(record, enc_hook=encode_hook))
        temporary.replace(path)

    def _expect_bind(self, name: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timers[name] = loop.call_later(seconds, self.forget, name)

    def _watch(self, name: str, pid: int, start_ticks: int) -> None:
        """Forget the container when the process ends. Raises RefusedError if it has ended."""
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            raise RefusedError(f"process {pid} is not there ({error.strerror}).") from error
        # The pidfd is of whoever has the pid now: only the same start time makes it ours.
        try:
            if ended(pidfd) or _start_ticks(pid) != start_ticks:
                raise RefusedError(f"process {pid} has ended.")
        except RefusedError:
            os.close(pidfd)
            raise
        loop = asyncio.get_running_loop()
        if (old := self._pidfds.pop(name, -1)) >= 0:
            loop.remove_reader(old)
            os.close(old)
        self._pidfds[name] = pidfd
        loop.add_reader(pidfd, self.forget, name)


def _start_ticks(pid: int) -> int:
    """Field 22 of /proc/PID/stat. Raises RefusedError if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise RefusedError(f"process {pid} is not there ({error.strerror}).") from error
    return int(stat.rpartition(")")[2].split()[19])


def _cgroup(pid: int) -> str:
    """Its path in the unified hierarchy; "" where there is none."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return next((line[3:] for line in lines.splitlines() if line.startswith("0::")), "")
