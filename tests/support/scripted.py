# SPDX-License-Identifier: Apache-2.0
"""Both ends of the daemon link, under a test's thumb.

`ScriptedDaemon` listens as gksmd would and says exactly what a test tells it to.
`LinkClient` is the program libgksm/tests/link_client.c: a process with libgksm's link
and nothing else, driven by lines of text.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from gksmd import protocol
from gksmd.protocol import Message, encode, lib
from gksmd.wire import close_all, receive, send, seqpacket

ROOT = Path(__file__).parents[2]
SECONDS = 40.0  # nothing that is asked for here takes longer, or the test fails
WIRE = 7  # the number the scripted daemon gives GPU 0; GPU n gets WIRE + n


def program(build: Path, name: str) -> Path:
    """A program of libgksm/tests, made if it is missing."""
    path = build / "tests" / name
    if not path.exists():
        command = ["make", "-s", "libgksm-tests", f"FLAVOUR={build.name}"]
        subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    return path


def page_fd(page: int) -> int:
    """A descriptor by which the client can tell which page it was given."""
    fd = os.memfd_create(f"page-{page}")
    os.write(fd, page.to_bytes(8, "little"))
    return fd


def page_of(fd: int) -> int:
    """What `page_fd` put in."""
    return int.from_bytes(os.pread(fd, 8, 0), "little")


def result(index: int, outcome: int, page: int = 0, token: int = 0) -> bytes:
    """One entry of LOOKED_UP."""
    return protocol.LOOKUP_RESULT.build(index=index, outcome=outcome, page_id=page, token=token)


class Session:
    """One connection of the client."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.socket.settimeout(SECONDS)

    def next(self, kind: int | None = None) -> Message:
        """The next packet that is no USAGE and no REPORT, or the next of that kind."""
        while True:
            message = receive(self.socket)
            assert message is not None, "the client hung up"
            if kind is None and message.type in (lib.GKSM_USAGE, lib.GKSM_REPORT):
                continue
            if kind is not None and message.type != kind:
                close_all(message.fds)
                continue
            return message

    def say(self, kind: int, fds: Sequence[int] = (), **packet: Any) -> None:
        """Send one packet; the descriptors are closed here."""
        try:
            send(self.socket, encode(kind, **({"fd_count": len(fds)} | packet)), list(fds))
        finally:
            close_all(fds)

    def raw(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send bytes as they are."""
        try:
            send(self.socket, data, list(fds))
        finally:
            close_all(fds)

    def welcome(self, **fields: Any) -> None:
        """Answer HELLO."""
        hello = self.next(lib.GKSM_HELLO)
        self.say(lib.GKSM_WELCOME, seq=hello.seq, head=welcome_head(**fields))

    def opened(self) -> int:
        """Answer the next GPU_OPEN; the number given."""
        message = self.next(lib.GKSM_GPU_OPEN)
        gpu = WIRE + protocol.GPU_OPEN.read(message.head).uuid[0] - 1
        head = protocol.GPU_OPENED.build(gpu=gpu, guard=lib.GKSM_GUARD_FAULT, load_wait_ms=123)
        self.say(lib.GKSM_GPU_OPENED, seq=message.seq, head=head)
        return int(gpu)

    def looked_up(
        self, seq: int, entries: Iterable[bytes], fds: Sequence[int] = (), more: bool = False
    ) -> None:
        """Answer LOOKUP or WAIT."""
        self.say(
            lib.GKSM_LOOKED_UP,
            fds,
            seq=seq,
            flags=lib.GKSM_FLAG_MORE if more else 0,
            entries=b"".join(entries),
            entry_bytes=protocol.LOOKUP_RESULT.size,
        )

    def hits(self, seq: int, pages: Sequence[int], first: int = 0, more: bool = False) -> None:
        """Answer with these pages, each with its descriptor."""
        entries = [result(first + i, lib.GKSM_LOOKUP_HIT, page) for i, page in enumerate(pages)]
        self.looked_up(seq, entries, [page_fd(page) for page in pages], more)

    def rest(self) -> list[Message]:
        """What the client still says before it hangs up, without descriptors."""
        said: list[Message] = []
        try:
            while (message := receive(self.socket)) is not None:
                close_all(message.fds)
                said.append(message)
        except ConnectionResetError:
            pass
        return said

    def close(self) -> None:
        self.socket.close()


def welcome_head(**fields: Any) -> bytes:
    """A WELCOME that lets the client share."""
    features = (
        lib.GKSM_FEATURE_HOST_COPIES
        | lib.GKSM_FEATURE_COMMIT
        | lib.GKSM_FEATURE_RECLAIM
        | lib.GKSM_FEATURE_IPC
    )
    defaults: dict[str, Any] = {
        "protocol": 1,
        "sharing": 1,
        "features": features,
        "domain": b"tenant",
    }
    return protocol.WELCOME.build(**(defaults | fields))


def page_ids(message: Message) -> list[int]:
    """Of ATTACHED, DETACHED and ANNOUNCE."""
    return [row[0] for row in protocol.PAGE_ENTRY.rows(message)]


class ScriptedDaemon:
    """The listening end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listener = seqpacket()
        self.listener.settimeout(SECONDS)
        self.listener.bind(str(path))
        self.listener.listen(16)
        self.sessions: list[Session] = []

    def accept(self) -> Session:
        """The client's next connection."""
        sock, _ = self.listener.accept()
        self.sessions.append(Session(sock))
        return self.sessions[-1]

    def up(self, *gpus: int) -> Session:
        """The client's next connection, welcomed, its GPUs open again."""
        session = self.accept()
        session.welcome()
        for _ in gpus:
            session.opened()
        return session

    def close(self) -> None:
        """As if gksmd had died."""
        for session in self.sessions:
            session.close()
        self.listener.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> ScriptedDaemon:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Echo(threading.Thread):
    """Serves a daemon's connections: every LOOKUP is a hit on the page its hash names.

    drop_every: hangs up after that many packets; 0: never. Ends when told to stop.
    """

    def __init__(self, daemon: ScriptedDaemon, drop_every: int = 0) -> None:
        super().__init__(daemon=True)
        self.source = daemon
        self.drop_every = drop_every
        self.stopping = threading.Event()
        self.connections = 0

    def run(self) -> None:
        self.source.listener.settimeout(0.2)
        while not self.stopping.is_set():
            try:
                session = self.source.accept()
            except TimeoutError:
                continue
            self.connections += 1
            session.socket.settimeout(0.2)
            try:
                self._serve(session)
            except OSError:
                pass
            finally:
                session.close()

    def _serve(self, session: Session) -> None:
        packets = 0
        while not self.stopping.is_set():
            try:
                message = receive(session.socket)
            except TimeoutError:
                continue
            if message is None:
                return
            packets += 1
            if message.type == lib.GKSM_HELLO:
                session.say(lib.GKSM_WELCOME, seq=message.seq, head=welcome_head())
            elif message.type == lib.GKSM_GPU_OPEN:
                head = protocol.GPU_OPENED.build(gpu=WIRE)
                session.say(lib.GKSM_GPU_OPENED, seq=message.seq, head=head)
            elif message.type == lib.GKSM_LOOKUP:
                session.hits(message.seq, [int.from_bytes(message.entries[:8], "little")])
            if self.drop_every and packets % self.drop_every == 0:
                return

    def stop(self) -> None:
        self.stopping.set()
        self.join(SECONDS)


class LinkClient:
    """The program at the other end. Its own complaints are the test's failure."""

    def __init__(self, build: Path, path: Path, log: Path) -> None:
        self.log = log
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [program(build, "link_client"), path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        self._pending = b""

    def start(self, command: str) -> None:
        """Give a command; `answer` has its line."""
        assert self.process.stdin
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        """The line that answers the oldest command."""
        assert self.process.stdout
        deadline = time.monotonic() + SECONDS
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self.process.stdout], [], [], max(left, 0))
            assert ready, f"no answer within {SECONDS} s"
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            assert data, f"the client died: {self.log.read_text()}"
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode().strip()

    def ask(self, command: str) -> str:
        """Give a command and wait for its answer."""
        self.start(command)
        return self.answer()

    def until(self, command: str, wanted: str) -> None:
        """Ask until the answer is the wanted one."""
        deadline = time.monotonic() + SECONDS
        while (answer := self.ask(command)) != wanted:
            assert time.monotonic() < deadline, f"{command}: {answer}, not {wanted}"
            time.sleep(0.01)

    def events(self, *wanted: str) -> list[str]:
        """The events so far; waits until all that are wanted have happened."""
        seen: list[str] = []
        deadline = time.monotonic() + SECONDS
        while not set(wanted) <= set(seen):
            assert time.monotonic() < deadline, f"{seen}, not {wanted}"
            seen += self.ask("events").split()
            time.sleep(0.01)
        return seen

    def finish(self) -> None:
        """Let it end; raises if it or a sanitizer in it found fault."""
        assert self.process.stdin
        self.process.stdin.close()
        code = self.process.wait(SECONDS)
        complaints = self.log.read_text()
        assert code == 0, f"exit status {code}: {complaints}"
        assert not complaints

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
