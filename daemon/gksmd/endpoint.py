# SPDX-License-Identifier: Apache-2.0
"""One connected socket on the event loop: packets in one at a time, packets out in order.

Nothing here ever waits for the peer. What the socket does not take at once is queued
with its descriptors; a peer that lets the queue grow past its bound, or that takes
nothing for a while, is given up.

Reading is fair by construction: a turn of the loop takes one packet from each socket
that has one.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gksmd.protocol import Message, ProtocolError
from gksmd.wire import close_all, hang_up, receive, send

RETRY_S = 0.05
BROKEN = "protocol error"
SLOW = "it does not read its replies"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a peer may leave unread."""

    bytes: int = 1 << 20
    fds: int = 2048
    stall_s: float = 5.0


class Endpoint:
    """Owns the socket and the descriptors that are queued on it."""

    def __init__(
        self,
        sock: socket.socket,
        bounds: Bounds | None,
        on_message: Callable[[Message], None],
        on_end: Callable[[str], None],
    ) -> None:
        """``on_end`` is called once, with the reason; ``bounds`` None: trust the peer."""
        sock.setblocking(False)
        self._sock = sock
        self._fd = sock.fileno()
        self._loop = asyncio.get_running_loop()
        self._bounds = bounds
        self._on_message = on_message
        self._on_end = on_end
        self._queue: deque[tuple[bytes, list[int]]] = deque()
        self._queued_bytes = 0
        self._queued_fds = 0
        self._paused = False
        self._stall: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self.closed = False
        self._loop.add_reader(self._fd, self._readable)

    @property
    def backlog(self) -> bool:
        """Whether something is queued that the peer has not taken."""
        return bool(self._queue)

    def pause(self) -> None:
        """Stop reading."""
        if not self._paused and not self.closed:
            self._paused = True
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        """Go on reading."""
        if self._paused and not self.closed:
            self._paused = False
            self._loop.add_reader(self._fd, self._readable)

    def send(self, data: bytes, fds: list[int] | None = None) -> None:
        """Send or queue a packet. Takes over the descriptors, whatever happens."""
        fds = fds or []
        if self.closed:
            close_all(fds)
            return
        if not self._queue and self._send_now(data, fds):
            return
        if self.closed:
            return
        self._queue.append((data, fds))
        self._queued_bytes += len(data)
        self._queued_fds += len(fds)
        bounds = self._bounds
        if bounds is not None and (
            self._queued_bytes > bounds.bytes or self._queued_fds > bounds.fds
        ):
            self.end(SLOW)
        elif self._stall is None:
            self._watch_stall()

    def end(self, reason: str) -> None:
        """Close the socket and whatever is queued; tells ``on_end``. Idempotent."""
        if self.closed:
            return
        self.closed = True
        if not self._paused:
            self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        for timer in (self._stall, self._retry):
            if timer is not None:
                timer.cancel()
        for _, fds in self._queue:
            close_all(fds)
        self._queue.clear()
        hang_up(self._sock)
        self._on_end(reason)

    def _readable(self) -> None:
        try:
            message = receive(self._sock)
        except (BlockingIOError, InterruptedError):
            return
        except ProtocolError as error:
            self.end(f"{BROKEN}: {error}")
            return
        except OSError as error:
            self.end(str(error))
            return
        if message is None:
            self.end("closed")
        else:
            self._on_message(message)

    def _send_now(self, data: bytes, fds: list[int]) -> bool:
        """True if the packet is gone, or the connection is; False: to be queued."""
        try:
            send(self._sock, data, fds)
        except (BlockingIOError, InterruptedError):
            self._loop.add_writer(self._fd, self._flush)
            return False
        except OSError as error:
            if error.errno in (errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM):
                # Too many descriptors under way in the whole system: nothing to poll for.
                if self._retry is None:
                    self._retry = self._loop.call_later(RETRY_S, self._try_again)
                return False
            close_all(fds)
            self.end(str(error))
            return True
        close_all(fds)
        return True

    def _try_again(self) -> None:
        self._retry = None
        self._flush()

    def _flush(self) -> None:
        self._loop.remove_writer(self._fd)
        while self._queue:
            # Off the queue first: an end of the connection closes what is on it.
            data, fds = self._queue.popleft()
            if not self._send_now(data, fds):
                self._queue.appendleft((data, fds))
                return
            if self.closed:
                return
            self._queued_bytes -= len(data)
            self._queued_fds -= len(fds)
            self._watch_stall()

    def _watch_stall(self) -> None:
        """Count anew: the peer has just taken something, or just begun to leave it."""
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if self._bounds is not None and self._queue:
            self._stall = self._loop.call_later(self._bounds.stall_s, self._stalled)

    def _stalled(self) -> None:
        self._stall = None
        self.end(SLOW)
