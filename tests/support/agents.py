# SPDX-License-Identifier: Apache-2.0
"""gksmd and gksm-vault as real processes, and agents: processes that speak to them by hand.

No GPU, no libgksm. A page's descriptor is a memfd with the page's number in it, so
that a test can tell which one came back.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gksmd.client import Client, Found, connected
from gksmd.protocol import lib
from gksmd.wire import close_all

GPU = bytes(range(1, 17))
OTHER_GPU = bytes(range(17, 33))
WAIT_S = 30.0

HIT: int = lib.GKSM_LOOKUP_HIT
LEASE: int = lib.GKSM_LOOKUP_LEASE
PENDING: int = lib.GKSM_LOOKUP_PENDING
REFUSED: int = lib.GKSM_LOOKUP_REFUSED
EXPIRED: int = lib.GKSM_LOOKUP_EXPIRED


def digest(number: int) -> bytes:
    """The hash of page `number`."""
    return number.to_bytes(16, "little")


def digests(numbers: Sequence[int]) -> list[bytes]:
    return [digest(n) for n in numbers]


def eventually(condition: Callable[[], Any], what: str, seconds: float = WAIT_S) -> Any:
    """Wait for something that other processes bring about; its value."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.01)


def settled(count: Callable[[], int]) -> int:
    """A number once it has stood still: what was asked a moment ago is closed by then."""
    seen = [-1]
    while len(seen) < 15 or len(set(seen[-15:])) > 1:
        seen.append(count())
        time.sleep(0.02)
    return seen[-1]


class Daemon:
    """One gksmd and one vault in a folder of their own."""

    def __init__(
        self,
        *,
        config: str = "",
        domains: dict[str, str] | None = None,
        vault: str = "service",
        fd_limit: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`config` is gksm.toml's text; `domains` are files of domains.d by name.

        Without `domains` every process of our uid is in one domain. `environment`: what
        gksmd and the vault have in theirs beside ours.
        """
        self.environment = {**os.environ, **(environment or {})}
        self.folder = Path(tempfile.mkdtemp(prefix="gksm-", dir="/tmp"))
        self.run_dir = self.folder / "run"
        self.config_dir = self.folder / "etc"
        (self.config_dir / "domains.d").mkdir(parents=True)
        self.run_dir.mkdir()
        text = "" if domains is not None else 'bare.default_domain = "uid"\n'
        (self.config_dir / "gksm.toml").write_text(f'vault.mode = "{vault}"\n{text}{config}\n')
        for name, rules in (domains or {}).items():
            (self.config_dir / "domains.d" / f"{name}.toml").write_text(rules)
        self.spawns_vault = vault == "spawn"
        self.fd_limit = fd_limit
        self.vault: subprocess.Popen[bytes] | None = None
        self.gksmd: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Daemon:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def socket(self) -> Path:
        return self.run_dir / "gksm.sock"

    @property
    def vault_socket(self) -> Path:
        return self.run_dir / "vault.sock"

    @property
    def gksmd_pid(self) -> int:
        assert self.gksmd is not None
        return self.gksmd.pid

    @property
    def vault_pid(self) -> int:
        """Whoever holds the vault's lock, if gksmd has started it."""
        if self.vault is not None:
            return self.vault.pid
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(str(self.vault_socket))
            raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            return int.from_bytes(raw[:4], sys.byteorder)

    def start(self) -> None:
        """Start whichever of the two does not run."""
        self.start_vault()
        if self.gksmd is None or self.gksmd.poll() is not None:
            self.gksmd = self._run(
                "gksmd.main",
                "--config-dir",
                str(self.config_dir),
                "--run-dir",
                str(self.run_dir),
                "--log-level",
                "debug",
            )
            eventually(self._answers, "gksmd's start")

    def start_vault(self) -> None:
        """Start a vault, unless one runs or gksmd starts it."""
        if self.spawns_vault or (self.vault is not None and self.vault.poll() is None):
            return
        self.vault_socket.unlink(missing_ok=True)
        self.vault = self._run("gksmd.vault.main", "--socket", str(self.vault_socket))
        eventually(self.vault_socket.exists, "the vault's start")

    def close(self) -> None:
        for child in (self.gksmd, self.vault):
            if child is not None and child.poll() is None:
                child.terminate()
                child.wait(WAIT_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill_gksmd(self) -> None:
        """kill -9."""
        assert self.gksmd is not None
        self.gksmd.kill()
        self.gksmd.wait(WAIT_S)

    def kill_vault(self) -> None:
        """kill -9."""
        assert self.vault is not None
        self.vault.kill()
        self.vault.wait(WAIT_S)

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def ask(self, sock: str, **request: Any) -> Any:
        """One request on the admin, runtime or status socket."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(WAIT_S)
            client.connect(str(self.run_dir / f"{sock}.sock"))
            client.sendall(json.dumps({"v": 1, **request}).encode() + b"\n")
            with client.makefile() as lines:
                answer = json.loads(lines.readline())
        assert answer["ok"], answer
        return answer["result"]

    def prepare(self, name: str) -> Path:
        """Announce a container; its socket."""
        box = {"id": name, "engine": "docker"}
        return Path(self.ask("runtime", op="prepare", container=box)["socket"])

    def vault_fds(self) -> int:
        """How many descriptors the vault has open, whatever they are."""
        return len(os.listdir(f"/proc/{self.vault_pid}/fd"))

    def gksmd_fds(self, of: str = "") -> int:
        """How many descriptors gksmd has open whose target has `of` in it."""
        return sum(of in target for target in _targets(self.gksmd_pid))

    def pages(self) -> int:
        """How many pages the vault holds."""
        return sum("memfd:page" in target for target in _targets(self.vault_pid))

    def _answers(self) -> bool:
        assert self.gksmd is not None
        assert self.gksmd.poll() is None, self.log()
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(self.run_dir / "status.sock"))
            except OSError:
                return False
        return True

    def _run(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", module, *arguments]
        if self.fd_limit is not None and module == "gksmd.main":
            command = ["prlimit", f"--nofile={self.fd_limit}:{self.fd_limit}", *command]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )


def _targets(pid: int) -> Iterator[str]:
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            yield os.readlink(f"/proc/{pid}/fd/{fd}")


class Agent:
    """A process of its own that speaks the protocol; an instance to gksmd.

    `agent.run(f, x)` runs `f(state, x)` in it; `agent.lookup(hashes)` and the like run
    the method of that name of its client.
    """

    def __init__(self, path: Path | None = None, gpu: bytes = GPU, **hello: Any) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.pipe), daemon=True)
        self.process.start()
        theirs.close()
        self.pid: int = self.process.pid or 0
        if path is not None:
            self.run(connect, path, gpu, hello)

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.pipe.close()

    def start(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        """Begin `function(state, ...)` in the agent; `answer` has its result."""
        self.pipe.send((function, arguments, options))

    def answer(self, seconds: float = WAIT_S) -> Any:
        """The result of the oldest `start` without one."""
        assert self.pipe.poll(seconds), "the agent does not answer"
        good, value = self.pipe.recv()
        assert good, value
        return value

    def run(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Run `function(state, ...)` in the agent."""
        self.start(function, *arguments, **options)
        return self.answer()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *arguments, **options: self.run(_method, name, arguments, options)

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.join()  # a timeout would wait for its forked children too

    def stop(self) -> None:
        """Freeze it."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


@contextmanager
def agents(path: Path, count: int, **options: Any) -> Iterator[list[Agent]]:
    """Several connected agents, killed at the end."""
    with ExitStack() as undo:
        yield [undo.enter_context(Agent(path, **options)) for _ in range(count)]


def _serve(pipe: Pipe, other_end: Pipe) -> None:
    other_end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    state = SimpleNamespace(client=None)
    while True:
        try:
            function, arguments, options = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            pipe.send((True, function(state, *arguments, **options)))
        except Exception:
            pipe.send((False, traceback.format_exc()))


def _method(state: Any, name: str, arguments: Any, options: Any) -> Any:
    return getattr(state.client, name)(*arguments, **options)


# What runs in an agent.


def connect(state: Any, path: Path, gpu: bytes = GPU, hello: dict[str, Any] | None = None) -> None:
    """(Re)connect: HELLO and one GPU."""
    if state.client is not None:
        state.client.close()
    state.client = connected(path, gpu, **(hello or {}))


def page_fd(name: object) -> int:
    """A descriptor that says which page it is."""
    fd = os.memfd_create(f"page-{name}", os.MFD_CLOEXEC)
    os.write(fd, str(name).encode())
    return fd


def publish(state: Any, found: Sequence[Found], numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Publish the pages of these leases; page id and status of each."""
    fds = [page_fd(number) for number in numbers]
    client: Client = state.client
    try:
        return client.publish(
            [(f.token, digest(n), fd) for f, n, fd in zip(found, numbers, fds, strict=True)]
        )
    finally:
        close_all(fds)


def take(found: Sequence[Found]) -> list[str]:
    """Which pages these hits are; closes their descriptors."""
    names = []
    for result in found:
        names.append(os.pread(result.fd, 64, 0).decode())
        os.close(result.fd)
    return names


def load(state: Any, numbers: Sequence[int]) -> dict[str, list[int]]:
    """Load pages as libgksm does: attach hits, publish misses, then wait for the others.

    Returns the numbers of the pages that were attached, published, and left private.
    """
    client: Client = state.client
    done: dict[str, list[int]] = {"attached": [], "published": [], "private": []}
    todo = list(numbers)
    found = []
    for i in range(0, len(todo), 512):
        found += client.lookup(digests(todo[i : i + 512]))
    while True:
        by_outcome: dict[int, list[tuple[int, Found]]] = {}
        for number, result in zip(todo, found, strict=True):
            by_outcome.setdefault(result.outcome, []).append((number, result))
        hits = by_outcome.get(HIT, [])
        assert take([f for _, f in hits]) == [str(n) for n, _ in hits], "another page came back"
        client.attached(f.page_id for _, f in hits)
        done["attached"] += [n for n, _ in hits]
        leases = by_outcome.get(LEASE, [])
        for i in range(0, len(leases), 240):
            part = leases[i : i + 240]
            results = publish(state, [f for _, f in part], [n for n, _ in part])
            for (number, _), (_, status) in zip(part, results, strict=True):
                done["private" if status else "published"].append(number)
        done["private"] += [n for o in (REFUSED, EXPIRED) for n, _ in by_outcome.get(o, [])]
        pending = by_outcome.get(PENDING, [])[:512]
        if not pending:
            return done
        todo = [n for n, _ in pending]
        found = client.wait([f.token for _, f in pending], 20_000)
