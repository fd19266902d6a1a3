# SPDX-License-Identifier: Apache-2.0
"""Host copies of published pages, in sealed memfds of up to 64 MiB.

A loader is lent a segment to write to. Nobody else gets it before it is sealed, and
the kernel seals it only when no writable mapping is left, so what is read from it
cannot change. A segment goes whole, when no page refers to it any more.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

from gksmd.model import PAGE_BYTES, DomainState, Page, Process, Segment
from gksmd.protocol import lib
from gksmd.quota import Quotas
from gksmd.vaultlink import (
    SEGMENT,
    Item,
    VaultLink,
    VaultLostError,
    VaultRefusedError,
    received,
)

LOG = logging.getLogger("gksmd.segments")
PAGES_MAX: int = lib.GKSM_SEGMENT_PAGES_MAX
_SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
DomainOf = Callable[[str], DomainState]


class NoSegmentError(Exception):
    """The request for a segment cannot be met; ``status`` is a negative errno."""

    def __init__(self, status: int) -> None:
        super().__init__(os.strerror(-status))
        self.status = status


@dataclass(slots=True)
class Segments:
    """All host copies. Their memory is allocated and charged here."""

    domains: dict[str, DomainState]
    quotas: Quotas
    vault: VaultLink

    async def lend(self, process: Process, pages: int) -> Segment:
        """A new segment for the process to fill. Raises NoSegmentError."""
        if not 1 <= pages <= PAGES_MAX:
            raise NoSegmentError(-errno.EINVAL)
        size = pages * PAGE_BYTES
        if not self.quotas.take_host_copy(process, size):
            raise NoSegmentError(-errno.EDQUOT)
        try:
            # Tens of milliseconds of zeroing: not on the event loop.
            fd = await asyncio.to_thread(_allocate, size)
        except OSError as error:
            self.quotas.return_host_copy(process.usage, process.domain, size)
            raise NoSegmentError(-(error.errno or errno.ENOMEM)) from None
        if process.ended:
            os.close(fd)
            self.quotas.return_host_copy(process.usage, process.domain, size)
            raise NoSegmentError(-errno.ESRCH)
        segment = Segment(
            id=int.from_bytes(os.urandom(8), "little") or 1,
            domain=process.domain,
            bytes=size,
            fd=fd,
            filler=process,
            charged=process.usage,
        )
        process.domain.segments[segment.id] = segment
        process.filling[segment.id] = segment
        return segment

    async def seal(self, process: Process, segment_id: int) -> None:
        """The process says that it writes no more. One that still could is not believed."""
        segment = process.filling.pop(segment_id, None)
        if segment is None:
            return
        try:
            # Waits for pinned pages, up to 150 ms: not on the event loop.
            await asyncio.to_thread(_seal, segment.fd)
        except OSError as error:
            LOG.warning(
                "process %d: a host copy cannot be sealed (%s) and is not used",
                process.identity.pid,
                error.strerror,
            )
            self.discard(segment)
            return
        segment.filler = None
        segment.sealed = True
        if not self._drop_if_unused(segment):
            await self._keep(segment)

    async def open(self, domain: DomainState, segment_id: int) -> Segment:
        """A sealed segment of the domain, with its fd at hand. Raises NoSegmentError."""
        segment = domain.segments.get(segment_id)
        if segment is None or not segment.sealed:
            raise NoSegmentError(-errno.ENOENT)
        if segment.fd < 0:
            try:
                reply = await self.vault.get(SEGMENT, [segment_id])
            except VaultLostError:
                raise NoSegmentError(-errno.EAGAIN) from None
            fd = received(reply, [segment_id])[0]
            if fd < 0:
                raise NoSegmentError(-errno.ENOENT)
            if segment.fd >= 0 or segment_id not in domain.segments:
                os.close(fd)  # somebody else was first, or it went meanwhile
            else:
                segment.fd = fd
            if segment.fd < 0:
                raise NoSegmentError(-errno.ENOENT)
        return segment

    def attach(self, process: Process, page: Page, segment_id: int, offset: int) -> None:
        """Note where the page's host copy is. One that is not the process's is ignored."""
        segment = process.domain.segments.get(segment_id)
        if segment is None or segment.filler is not process:
            return
        if offset % PAGE_BYTES or not 0 <= offset <= segment.bytes - PAGE_BYTES:
            return
        self._attach(page, segment, offset)

    def attach_adopted(self, page: Page, segment_id: int, offset: int) -> None:
        """As ``attach``, for a page that the vault had."""
        segment = page.table.domain.segments.get(segment_id)
        if segment is not None and segment.sealed:
            self._attach(page, segment, offset)

    def detach(self, page: Page) -> None:
        """The page is gone, or must do without its host copy."""
        segment, page.segment = page.segment, None
        if segment is not None:
            segment.pages.discard(page)
            self._drop_if_unused(segment)

    def discard(self, segment: Segment) -> None:
        """A segment that must not be used: its pages do without."""
        for page in segment.pages:
            page.segment = None
        segment.pages.clear()
        self._drop(segment)

    def leave(self, process: Process) -> None:
        """What the process had not sealed is discarded."""
        filling, process.filling = process.filling, {}
        for segment in filling.values():
            self.discard(segment)

    def vault_up(self, items: list[Item], domain_of: DomainOf, adopt: bool) -> None:
        """Adopt what the vault has (``adopt``), or make it drop what we no longer have."""
        if adopt:
            for item in items:
                domain = domain_of(item.domain)
                domain.usage.host_copy_bytes += item.size
                domain.segments[item.id] = Segment(
                    item.id, domain, item.size, -1, None, None, sealed=True, in_vault=True
                )
            return
        listed = {item.id for item in items}
        ours = {n: s for d in self.domains.values() for n, s in d.segments.items()}
        for number, segment in ours.items():
            segment.in_vault = number in listed
        self.vault.drop(SEGMENT, listed - ours.keys())

    def drop_unused(self) -> None:
        """Drop sealed segments that no page refers to."""
        for domain in self.domains.values():
            for segment in list(domain.segments.values()):
                self._drop_if_unused(segment)

    def _attach(self, page: Page, segment: Segment, offset: int) -> None:
        page.segment = segment
        page.segment_offset = offset
        segment.pages.add(page)

    def _drop_if_unused(self, segment: Segment) -> bool:
        if segment.sealed and not segment.pages:
            self._drop(segment)
            return True
        return False

    def _drop(self, segment: Segment) -> None:
        if segment.domain.segments.pop(segment.id, None) is None:
            return
        if segment.in_vault:
            self.vault.drop(SEGMENT, [segment.id])
        if segment.fd >= 0:
            os.close(segment.fd)
            segment.fd = -1
        self.quotas.return_host_copy(segment.charged, segment.domain, segment.bytes)

    async def _keep(self, segment: Segment) -> None:
        """Give the vault a descriptor too, for the time after our own restart."""
        item = Item(
            SEGMENT, segment.id, 0, segment.domain.name, bytes(16), bytes(16), 0, 0, segment.bytes
        )
        try:
            await self.vault.put([item], [os.dup(segment.fd)])
        except (VaultLostError, VaultRefusedError, OSError):
            return
        segment.in_vault = True
        if segment.id not in segment.domain.segments:
            self.vault.drop(SEGMENT, [segment.id])


def _allocate(size: int) -> int:
    fd = os.memfd_create("gksm-host-copies", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE_SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _seal(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
