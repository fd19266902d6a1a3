# SPDX-License-Identifier: Apache-2.0
"""What the vault holds, and its answers to PUT, GET, DROP and LIST."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from gksmd.protocol import (
    VAULT_ITEM,
    VAULT_KEY,
    Message,
    ProtocolError,
    encode,
    lib,
)
from gksmd.wire import FDS_MAX, PACKET_MAX, close_all

# 32 bytes of header in front of the items.
_ITEMS_A_PACKET = (PACKET_MAX - 32) // VAULT_ITEM.size
_ID = slice(8, 16)

Reply = tuple[bytes, list[int]]  # a packet and the descriptors to send with it


@dataclass(slots=True)
class Store:
    """The descriptors, by class and id, each with its item as it came."""

    items: dict[int, dict[bytes, tuple[int, bytes]]] = field(
        default_factory=lambda: {
            lib.GKSM_VAULT_PAGE: {},
            lib.GKSM_VAULT_SEGMENT: {},
        }
    )

    def __len__(self) -> int:
        return sum(map(len, self.items.values()))

    def answer(self, message: Message) -> Iterator[Reply]:
        """Carry out one request. Takes over the descriptors of the message.

        The descriptors of a reply stay in the store. Raises ProtocolError.
        """
        if message.type == lib.GKSM_VAULT_PUT:
            yield self._put(message)
        elif message.type == lib.GKSM_VAULT_GET:
            yield self._get(message)
        elif message.type == lib.GKSM_VAULT_DROP:
            for item_class, key in self._keys(message):
                held = self.items[item_class].pop(key, None)
                if held is not None:
                    close_all([held[0]])
            yield encode(lib.GKSM_VAULT_OK, seq=message.seq), []
        elif message.type == lib.GKSM_VAULT_LIST:
            yield from self._list(message.seq)
        else:
            close_all(message.fds)
            raise ProtocolError(f"request {message.type}")

    def _put(self, message: Message) -> Reply:
        """Keep all of them or, with a full descriptor table, none."""
        fds = message.fds
        if message.fds_lost:
            close_all(fds)
            return encode(lib.GKSM_VAULT_OK, seq=message.seq, status=-errno.EMFILE), []
        if len(fds) != message.entry_count or (fds and message.entry_bytes != VAULT_ITEM.size):
            close_all(fds)
            raise ProtocolError("a PUT needs one descriptor an item")
        size = VAULT_ITEM.size
        for i, fd in enumerate(fds):
            item = message.entries[i * size : (i + 1) * size]
            shelf = self.items.get(int.from_bytes(item[:4], sys.byteorder))
            if shelf is None:
                close_all(fds[i:])
                raise ProtocolError("unknown class")
            before = shelf.pop(item[_ID], None)
            if before is not None:
                close_all([before[0]])
            shelf[item[_ID]] = (fd, item)
        return encode(lib.GKSM_VAULT_OK, seq=message.seq), []

    def _get(self, message: Message) -> Reply:
        """The descriptors it has, each with its key; -ENOENT if any is missing."""
        fds: list[int] = []
        found: list[bytes] = []
        if message.entry_count > FDS_MAX:
            raise ProtocolError("too many keys")
        for item_class, key in self._keys(message):
            held = self.items[item_class].get(key)
            if held is not None:
                fds.append(held[0])
                found.append(VAULT_KEY.pack(item_class, 0, int.from_bytes(key, sys.byteorder)))
        reply = encode(
            lib.GKSM_VAULT_FDS,
            seq=message.seq,
            status=0 if len(fds) == message.entry_count else -errno.ENOENT,
            entries=b"".join(found),
            entry_bytes=VAULT_KEY.size,
            fd_count=len(fds),
        )
        return reply, fds

    def _list(self, seq: int) -> Iterator[Reply]:
        every = [item for shelf in self.items.values() for _, item in shelf.values()]
        for i in range(0, max(len(every), 1), _ITEMS_A_PACKET):
            last = i + _ITEMS_A_PACKET >= len(every)
            yield (
                encode(
                    lib.GKSM_VAULT_ITEMS,
                    seq=seq,
                    flags=0 if last else lib.GKSM_FLAG_MORE,
                    entries=b"".join(every[i : i + _ITEMS_A_PACKET]),
                    entry_bytes=VAULT_ITEM.size,
                ),
                [],
            )

    def _keys(self, message: Message) -> Iterator[tuple[int, bytes]]:
        for item_class, _, number in VAULT_KEY.rows(message):
            if item_class not in self.items:
                raise ProtocolError("unknown class")
            yield item_class, number.to_bytes(8, sys.byteorder)
