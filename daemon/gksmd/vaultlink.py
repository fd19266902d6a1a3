# SPDX-License-Identifier: Apache-2.0
"""gksmd's connection to gksm-vault: requests in order, replies as futures.

The vault may be killed at any moment. What was asked then fails with VaultLostError:
whether a PUT was carried out is not known. The link connects again, or starts a new
vault where it is told to, and reports what the vault holds before anything else is
asked of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gksmd.endpoint import Endpoint
from gksmd.protocol import VAULT_ITEM, VAULT_KEY, VAULT_REF, Message, encode, lib
from gksmd.wire import close_all, seqpacket

LOG = logging.getLogger("gksmd.vault")
PAGE: int = lib.GKSM_VAULT_PAGE
SEGMENT: int = lib.GKSM_VAULT_SEGMENT
_REF = VAULT_REF.build()
_LINGER_S = 60
_OWN_END = "gksmd ends"
FIRST_PAUSE_S = 0.02
LAST_PAUSE_S = 1.0
ANSWER_S = 3.0
CHECK_S = 0.5
_DROP_BATCH = 512


class VaultLostError(Exception):
    """The vault went away; whether the request was carried out is not known."""


class VaultRefusedError(Exception):
    """The vault did not carry out the request; ``status`` is its negative errno."""

    def __init__(self, status: int) -> None:
        super().__init__(os.strerror(-status))
        self.status = status


@dataclass(frozen=True, slots=True)
class Item:
    """What the vault knows about a descriptor that it holds."""

    item_class: int
    id: int
    kind: int
    domain: str
    gpu_uuid: bytes
    hash: bytes
    segment_id: int
    segment_offset: int
    size: int

    def pack(self) -> bytes:
        """As the protocol has it."""
        packed: bytes = VAULT_ITEM.pack(
            self.item_class,
            self.kind,
            self.id,
            self.domain.encode(),
            self.gpu_uuid,
            self.hash,
            self.segment_id,
            self.segment_offset,
            self.size,
        )
        return packed

    @classmethod
    def unpack(cls, row: tuple[Any, ...]) -> Item:
        """From one entry of VAULT_ITEMS."""
        item_class, kind, number, domain, uuid, digest, segment, offset, size, *_ = row
        name = domain.partition(b"\0")[0].decode(errors="replace")
        return cls(item_class, number, kind, name, uuid, digest, segment, offset, size)


class VaultLink:
    """One connection, made again when it breaks."""

    def __init__(self, path: Path, spawn: bool) -> None:
        """``spawn``: start a vault where none answers."""
        self._path = path
        self._spawn = spawn
        self._on_up: Callable[[list[Item]], None] = _nothing
        self._on_down: Callable[[], None] = _nothing
        self._endpoint: Endpoint | None = None
        self._seq = 0
        # By seq, oldest first: the vault answers in order.
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._answers = 0
        self._listing: list[Item] = []
        self._listed = asyncio.Event()
        self._ended = asyncio.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self.up = False
        self.pid = 0  # of the vault; 0: not connected

    async def run(self, on_up: Callable[[list[Item]], None], on_down: Callable[[], None]) -> None:
        """Keep the connection until cancelled.

        ``on_up`` gets all that the vault holds, before any other request is made.
        """
        self._on_up, self._on_down = on_up, on_down
        pause = FIRST_PAUSE_S
        try:
            while True:
                if self._connect():
                    await self._watch()
                    if self._listed.is_set():
                        pause = FIRST_PAUSE_S
                elif self._spawn:
                    self._start_vault()
                await asyncio.sleep(pause)
                pause = min(pause * 2, LAST_PAUSE_S)
        finally:
            if self._endpoint is not None:
                self._endpoint.end(_OWN_END)

    async def wait_up(self, timeout_s: float) -> bool:
        """Wait for the first listing; False if it does not come in time."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._listed.wait(), timeout_s)
        return self.up

    async def put(self, items: Sequence[Item], fds: list[int]) -> None:
        """Hand over descriptors, at most FDS_MAX, one an item; all are kept or none.

        Takes over the descriptors. Raises VaultLostError, VaultRefusedError.
        """
        if not self.up:
            close_all(fds)
            raise VaultRefusedError(-errno.EAGAIN)
        reply = await self._ask(
            lib.GKSM_VAULT_PUT, b"".join(i.pack() for i in items), VAULT_ITEM.size, fds
        )
        if reply.status:
            raise VaultRefusedError(reply.status)

    def get(self, item_class: int, ids: Sequence[int]) -> asyncio.Future[Message]:
        """Ask for descriptors, at most FDS_MAX; ``received`` takes the reply apart."""
        entries = b"".join(VAULT_KEY.pack(item_class, 0, i) for i in ids)
        return self._ask(lib.GKSM_VAULT_GET, entries, VAULT_KEY.size)

    def drop(self, item_class: int, ids: Iterable[int]) -> asyncio.Future[Message] | None:
        """Let go of descriptors; done when they are gone, or the vault is.

        None: there is no vault, and nothing need be done.
        """
        if not self.up:
            return None
        every = list(ids)
        future = None
        for i in range(0, len(every), _DROP_BATCH):
            keys = [VAULT_KEY.pack(item_class, 0, n) for n in every[i : i + _DROP_BATCH]]
            future = self._ask(lib.GKSM_VAULT_DROP, b"".join(keys), VAULT_KEY.size)
            future.add_done_callback(_ignore)
        return future  # the vault answers in order

    async def settled(self, seconds: float) -> bool:
        """Wait until the vault has done what it was asked until now; False: it has not."""
        asked = list(self._waiting.values())
        if not asked:
            return True
        _, open_ = await asyncio.wait(asked, timeout=seconds)
        return not open_ and self.up

    def _ask(
        self, kind: int, entries: bytes, entry_bytes: int, fds: list[int] | None = None
    ) -> asyncio.Future[Message]:
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        if self._endpoint is None:
            close_all(fds or [])
            future.set_exception(VaultLostError())
            return future
        self._seq = self._seq % 0xFFFFFFFF + 1
        self._waiting[self._seq] = future
        packet = encode(
            kind,
            seq=self._seq,
            head=_REF,
            entries=entries,
            entry_bytes=entry_bytes,
            fd_count=len(fds or []),
        )
        self._endpoint.send(packet, fds)
        return future

    def _connect(self) -> bool:
        sock = seqpacket()
        sock.setblocking(False)
        try:
            sock.connect(str(self._path))
        except OSError:
            sock.close()
            return False
        ucred = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.pid = struct.unpack("3i", ucred)[0]
        self._ended.clear()
        self._listed.clear()
        self._listing = []
        self._endpoint = Endpoint(sock, None, self._received, self._lost)
        self._ask(lib.GKSM_VAULT_LIST, b"", 0).add_done_callback(_ignore)
        return True

    async def _watch(self) -> None:
        """Wait for the end of the connection; end it if the vault no longer answers."""
        quiet = 0
        while not self._ended.is_set():
            waiting, answers = bool(self._waiting), self._answers
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ended.wait(), CHECK_S)
            # Counted in checks and not in time: we may have been frozen ourselves.
            quiet = quiet + 1 if waiting and answers == self._answers else 0
            if quiet * CHECK_S >= ANSWER_S and self._endpoint is not None:
                self._endpoint.end(f"no answer in {ANSWER_S:.0f} s")

    def _received(self, message: Message) -> None:
        self._answers += 1
        if message.type == lib.GKSM_VAULT_ITEMS:
            self._listing.extend(map(Item.unpack, VAULT_ITEM.rows(message)))
            if message.flags & lib.GKSM_FLAG_MORE:
                return
            self._waiting.pop(message.seq).set_result(message)
            self.up = True
            listing, self._listing = self._listing, []
            self._on_up(listing)
            self._listed.set()
            return
        future = self._waiting.pop(message.seq, None)
        if future is None or future.cancelled():
            close_all(message.fds)
        else:
            future.set_result(message)

    def _lost(self, reason: str) -> None:
        self._endpoint = None
        self.pid = 0
        waiting, self._waiting = self._waiting, {}
        was_up, self.up = self.up, False
        for future in waiting.values():
            if not future.done():
                future.set_exception(VaultLostError())
        if was_up and reason != _OWN_END:
            LOG.warning("the vault went away (%s); sharing goes on when it is back", reason)
        if was_up:
            self._on_down()
        self._ended.set()

    def _start_vault(self) -> None:
        """Start a vault of its own session, so that what ends gksmd does not end it too."""
        if self._child is not None and self._child.poll() is None:
            return  # it is still starting
        self._child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "gksmd.vault.main",
                f"--socket={self._path}",
                f"--linger={_LINGER_S}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )


def received(reply: Message, ids: Sequence[int]) -> list[int]:
    """The descriptor of each id, the caller's from now on; -1 where the vault has none."""
    if len(reply.fds) == len(ids) and not reply.status:
        return reply.fds
    fds = dict(zip((number for _, _, number, *_ in VAULT_KEY.rows(reply)), reply.fds, strict=False))
    if reply.fds_lost:  # which ones did not fit cannot be told
        close_all(reply.fds)
        return [-1] * len(ids)
    return [fds.get(i, -1) for i in ids]


def _nothing(*_: object) -> None:
    pass


def _ignore(future: asyncio.Future[Message]) -> None:
    if not future.cancelled():
        future.exception()
