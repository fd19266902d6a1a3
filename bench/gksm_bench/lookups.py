# SPDX-License-Identifier: Apache-2.0
"""How many page look-ups gksmd answers in a second, and what a published page costs it.

    python -m gksm_bench.lookups [--pages 100000] [--json]

One client publishes the pages (descriptors of one small file: the daemon never looks
into them), then looks all of them up, and as many that nobody has. No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from gksmd import protocol
from gksmd.protocol import lib
from gksmd.wire import close_all, raise_descriptor_limit
from rich.console import Console
from rich.table import Table

from gksm_bench.peer import Peer
from gksm_bench.processes import ChildError, termination_as_exit
from gksm_bench.simgpu import SimulatedGpu
from gksm_bench.stack import Stack

BATCH: int = lib.GKSM_BATCH_MAX
FDS: int = lib.GKSM_FDS_MAX
UUID = bytes(range(16))
SPARE_FDS = 512
NO_QUOTA = """[quota.container]
lookups_per_second = 0
published_pages = 0
bytes_in_flight = 0
[quota.domain]
lookups_per_second = 0
published_pages = 0
bytes_in_flight = 0
"""


@dataclass(frozen=True)
class Found:
    """Rates in pages a second, sizes in bytes of resident memory for each page."""

    pages: int
    published_per_second: float
    misses_per_second: float
    hits_per_second: float
    gksmd_bytes_per_page: float
    vault_bytes_per_page: float


def hashes(first: int, count: int) -> bytes:
    """`count` values that look like hashes."""
    return b"".join(
        (n * 0x9E3779B97F4A7C15F39CC0605CEDC835).to_bytes(24, "little")[:16]
        for n in range(first, first + count)
    )


def batches(first: int, count: int, size: int) -> Iterator[tuple[int, int]]:
    """Start and length of each batch."""
    for at in range(first, first + count, size):
        yield at, min(size, first + count - at)


class Client:
    """One connection with one GPU open."""

    def __init__(self, path: Path) -> None:
        self.peer = Peer(path)
        self.peer.hello()
        self.gpu = self.peer.open_gpu(UUID).gpu
        self.lookup_head = protocol.LOOKUP.build(gpu=self.gpu)
        self.ref_head = protocol.GPU_REF.build(gpu=self.gpu)

    def lookup(self, first: int, count: int) -> list[tuple[int, ...]]:
        """The results of one LOOKUP; descriptors that come along are closed."""
        self.peer.tell(
            lib.GKSM_LOOKUP,
            head=self.lookup_head,
            entries=hashes(first, count),
            entry_bytes=protocol.LOOKUP_ENTRY.size,
        )
        rows: list[tuple[int, ...]] = []
        while True:
            message = self.peer.next()
            close_all(message.fds)
            rows += protocol.LOOKUP_RESULT.rows(message)
            if not message.flags & lib.GKSM_FLAG_MORE:
                return rows

    def publish(self, first: int, rows: list[tuple[int, ...]], fd: int) -> None:
        """Publish what was leased."""
        head = protocol.PUBLISH.build(gpu=self.gpu)
        name = hashes(first, len(rows))
        for at, count in batches(0, len(rows), FDS):
            entries = b"".join(
                rows[n][3].to_bytes(8, "little") + name[16 * n : 16 * n + 16] + bytes(16)
                for n in range(at, at + count)
            )
            message = self.peer.ask(
                lib.GKSM_PUBLISH,
                [fd] * count,
                head=head,
                entries=entries,
                entry_bytes=protocol.PUBLISH_ENTRY.size,
            )
            statuses = {row[1] for row in protocol.PUBLISH_RESULT.rows(message)}
            if statuses != {0}:
                raise ChildError(f"gksmd refused to publish: {statuses}")

    def drop(self, tokens: list[int]) -> None:
        """Give leases back."""
        self.peer.tell(
            lib.GKSM_LEASE_DROP,
            head=self.ref_head,
            entries=b"".join(token.to_bytes(8, "little") for token in tokens),
            entry_bytes=protocol.LEASE_ENTRY.size,
        )

    def decline(self, pages: list[int]) -> None:
        """Give grants back."""
        self.peer.tell(
            lib.GKSM_DETACHED,
            head=protocol.GPU_REF.build(gpu=self.gpu, reason=lib.GKSM_DETACH_DECLINED),
            entries=b"".join(protocol.PAGE_ENTRY.build(page_id=page, mappings=1) for page in pages),
            entry_bytes=protocol.PAGE_ENTRY.size,
        )


def rss(child: subprocess.Popen[str] | None) -> int:
    """Resident bytes of the process."""
    assert child is not None
    return int(psutil.Process(child.pid).memory_info().rss)


def measure(build: Path, pages: int) -> Found:
    """Publish, look up what nobody has, look up what all have."""
    nowhere = SimulatedGpu(build, Path("/nonexistent"), vram=0)
    fd = os.memfd_create("page", os.MFD_CLOEXEC)
    with Stack(nowhere, config=NO_QUOTA) as stack:
        client = Client(stack.run_dir / "gksm.sock")
        before = (rss(stack.gksmd), rss(stack.vault))
        started = time.monotonic()
        for first, count in batches(1, pages, BATCH):
            client.publish(first, client.lookup(first, count), fd)
        published = time.monotonic()
        after = (rss(stack.gksmd), rss(stack.vault))
        misses = 0.0
        for first, count in batches(1 + 2 * pages, pages, BATCH):
            begun = time.monotonic()
            rows = client.lookup(first, count)
            misses += time.monotonic() - begun
            client.drop([row[3] for row in rows])
        hits = 0.0
        for first, count in batches(1, pages, BATCH):
            begun = time.monotonic()
            rows = client.lookup(first, count)
            hits += time.monotonic() - begun
            if {row[1] for row in rows} != {lib.GKSM_LOOKUP_HIT}:
                raise ChildError("gksmd does not find what was published")
            client.decline([row[2] for row in rows])
    return Found(
        pages=pages,
        published_per_second=pages / (published - started),
        misses_per_second=pages / misses,
        hits_per_second=pages / hits,
        gksmd_bytes_per_page=(after[0] - before[0]) / pages,
        vault_bytes_per_page=(after[1] - before[1]) / pages,
    )


def possible(pages: int) -> int:
    """As many pages as gksm-vault may hold descriptors here."""
    return min(pages, raise_descriptor_limit() - SPARE_FDS)


def show(found: Found, console: Console) -> None:
    """Print the table."""
    table = Table(title=f"gksmd with {found.pages:,} published pages")
    table.add_column("what")
    table.add_column("", justify="right")
    table.add_row("look-ups of unknown pages", f"{found.misses_per_second:,.0f} /s")
    table.add_row("look-ups with a descriptor in answer", f"{found.hits_per_second:,.0f} /s")
    table.add_row("publications, look-up included", f"{found.published_per_second:,.0f} /s")
    table.add_row("RAM of gksmd", f"{found.gksmd_bytes_per_page:,.0f} bytes a page")
    table.add_row("RAM of gksm-vault", f"{found.vault_bytes_per_page:,.0f} bytes a page")
    console.print(table)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--pages", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    console = Console(stderr=options.json)
    pages = possible(options.pages)
    if pages < options.pages:
        console.print(f"this user may hold {pages:,} descriptors, so that many pages")
    try:
        with termination_as_exit():
            found = measure(options.build, pages)
    except (ChildError, OSError) as error:
        print(f"lookups: {error}", file=sys.stderr)
        return 1
    show(found, console)
    if options.json:
        print(json.dumps(asdict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
