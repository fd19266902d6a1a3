# SPDX-License-Identifier: Apache-2.0
"""What a network card does with a dma-buf of simcuda: read and write the pages behind it,
whatever is mapped at their addresses by now."""

from __future__ import annotations

import os
import socket
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

RUN = struct.Struct("QQ")
RUNS_MAX = 253


@dataclass(frozen=True)
class Registration:
    """A range that was registered; owns the descriptor."""

    handle: int

    def _runs(self) -> Iterator[tuple[int, int, int]]:
        """(descriptor, offset in it, bytes) of each piece of memory, in order."""
        fds = array("i")
        with socket.socket(fileno=os.dup(self.handle)) as channel:
            room = socket.CMSG_SPACE(RUNS_MAX * fds.itemsize)
            data, control, _, _ = channel.recvmsg(RUNS_MAX * RUN.size, room, socket.MSG_PEEK)
        for level, kind, raw in control:
            assert (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
        try:
            for fd, (offset, nbytes) in zip(fds, RUN.iter_unpack(data), strict=True):
                yield fd, offset, nbytes
        finally:
            for fd in fds:
                os.close(fd)

    def read(self) -> bytes:
        """All of it."""
        return b"".join(os.pread(fd, nbytes, offset) for fd, offset, nbytes in self._runs())

    def write(self, at: int, data: bytes) -> None:
        """Within one piece."""
        for fd, offset, nbytes in self._runs():
            if 0 <= at < nbytes:
                assert os.pwrite(fd, data, offset + at) == len(data) <= nbytes - at
            at -= nbytes

    def close(self) -> None:
        os.close(self.handle)
