# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics, read from the state at each scrape.

Names begin with ``gksm_``, units are base units, labels are ``gpu`` and ``domain``
only: processes and containers come and go and would never leave a time series. Shared
and sharing mean what they mean for KSM (see ``snapshot.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from gksmd.accounts import Accounts, commit_bytes, debt_bytes, free_bytes
from gksmd.config import listen_address
from gksmd.counts import Counters
from gksmd.model import PAGE_BYTES, GpuTable, State
from gksmd.snapshot import Paced, format_uuid, table_counts

log = logging.getLogger(__name__)

REQUEST_BYTES = 8192
REQUEST_SECONDS = 5.0
SCRAPERS = 8

_COUNTERS = {
    "connections": "Connections accepted from instances",
    "connections_refused": "Connections refused",
    "protocol_errors": "Connections closed for what they sent",
    "slow_peers": "Connections closed for not reading",
    "lookups": "Pages looked up",
    "hits": "Look-ups answered with a published page",
    "leases": "Leases given to load a page",
    "leases_lapsed": "Leases that ended without a publication",
    "pending": "Look-ups that found another loader at work",
    "refused": "Look-ups refused",
    "published": "Pages published",
    "publish_stale": "Publications refused because their lease had lapsed",
    "pages_dropped": "Published pages given up",
    "commits_refused": "Promises of memory refused",
    "pressures": "Times that memory became short on a GPU",
    "fds_exhausted": "Requests refused for want of a file descriptor",
    "vault_reconnects": "Connections made to gksm-vault",
}

_SCANS = {  # model.SCANS
    "full_scans": "Passes over an instance's pages",
    "merged_pages": "Pages that the scanner merged",
    "dropped_merges": "Merges dropped: written to meanwhile, or different",
    "churned_merges": "Merged pages that were written to soon after",
}


class StateCollector(Collector):
    """Turns the state into metric families. Used on the event loop only."""

    def __init__(self, state: State, accounts: Accounts) -> None:
        """Keeps the state, copies nothing."""
        self._state = state
        self._accounts = accounts

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are not checked against the state when registering."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families, consistent with each other."""
        yield from self._daemon()
        yield from self._gpus()
        yield from self._tables()
        yield from self._memory()
        yield from self._counters(self._state.counters)

    def _daemon(self) -> Iterator[Metric]:
        state = self._state
        yield GaugeMetricFamily(
            "gksm_start_time_seconds", "When gksmd started, Unix time", value=state.started_at
        )
        yield GaugeMetricFamily(
            "gksm_vault_up", "1 while gksm-vault answers", value=int(state.vault_up)
        )
        yield GaugeMetricFamily(
            "gksm_processes", "Processes with libgksm", value=len(state.processes)
        )
        yield GaugeMetricFamily(
            "gksm_containers", "Containers prepared", value=len(state.containers)
        )
        family = GaugeMetricFamily(
            "gksm_host_copy_bytes", "Host memory for copies of published pages", labels=["domain"]
        )
        for name, domain in state.domains.items():
            family.add_metric([name], sum(s.bytes for s in domain.segments.values()))
        yield family

    def _gpus(self) -> Iterator[Metric]:
        total = GaugeMetricFamily("gksm_gpu_memory_bytes", "Memory of the GPU", labels=["gpu"])
        used = GaugeMetricFamily(
            "gksm_gpu_used_bytes", "Memory in use as instances report it", labels=["gpu"]
        )
        promised = GaugeMetricFamily(
            "gksm_gpu_promised_bytes", "Memory promised to instances and not taken", labels=["gpu"]
        )
        cow = CounterMetricFamily(
            "gksm_cow_events", "Private copies made for writing kernels", labels=["gpu"]
        )
        api = CounterMetricFamily(
            "gksm_api_detaches", "Private copies made for copies, sets and graphs", labels=["gpu"]
        )
        scans = {
            name: CounterMetricFamily(f"gksm_scan_{name}", text, labels=["gpu"])
            for name, text in _SCANS.items()
        }
        unshared = GaugeMetricFamily(
            "gksm_pages_unshared", "Private pages, unchanged, with no look-alike", labels=["gpu"]
        )
        changing = GaugeMetricFamily(
            "gksm_pages_volatile", "Private pages changed between two looks", labels=["gpu"]
        )
        for raw, gpu in self._state.gpus.items():
            label = [format_uuid(raw)]
            unshared.add_metric(label, sum(i.usage.stable_pages for i in gpu.instances))
            changing.add_metric(label, sum(i.usage.volatile_pages for i in gpu.instances))
            for name, family in scans.items():
                family.add_metric(label, gpu.scans(name))
            total.add_metric(label, gpu.total_bytes)
            used.add_metric(label, gpu.used_bytes)
            promised.add_metric(label, gpu.promised_pages * PAGE_BYTES)
            cow.add_metric(label, gpu.cow_events)
            api.add_metric(
                label, gpu.past_api_detaches + sum(i.usage.api_detaches for i in gpu.instances)
            )
        yield from (total, used, promised, cow, api, unshared, changing, *scans.values())

    def _tables(self) -> Iterator[Metric]:
        labels = ["gpu", "domain"]
        instances = GaugeMetricFamily("gksm_instances", "Processes on a GPU", labels=labels)
        shared = GaugeMetricFamily(
            "gksm_pages_shared", "Physical 2 MiB pages in use by sharers", labels=labels
        )
        sharing = GaugeMetricFamily(
            "gksm_pages_sharing", "Further mappings of those: how many are saved", labels=labels
        )
        zero = GaugeMetricFamily(
            "gksm_pages_zero", "Mappings of pages of zeros, in neither of those", labels=labels
        )
        saved = GaugeMetricFamily("gksm_saved_bytes", "Memory that sharing saves", labels=labels)
        warm = GaugeMetricFamily(
            "gksm_warm_bytes", "Published pages that nobody maps now", labels=labels
        )
        leases = GaugeMetricFamily(
            "gksm_leases_held", "Pages that a process is loading for all", labels=labels
        )
        for raw, gpu in self._state.gpus.items():
            for name, table in gpu.tables.items():
                label = [format_uuid(raw), name]
                _add_table(table, label, (instances, shared, sharing, zero, saved, warm))
                leases.add_metric(label, len(table.leases))
        yield from (instances, shared, sharing, zero, saved, warm, leases)

    def _memory(self) -> Iterator[Metric]:
        free = GaugeMetricFamily(
            "gksm_gpu_free_bytes", "Free memory, as drivers tell instances", labels=["gpu"]
        )
        reserve = GaugeMetricFamily(
            "gksm_gpu_reserve_bytes", "Memory never promised, for copies on write", labels=["gpu"]
        )
        short = GaugeMetricFamily(
            "gksm_gpu_memory_short", "1 below the low-water mark", labels=["gpu"]
        )
        labels = ["gpu", "domain"]
        commit = GaugeMetricFamily(
            "gksm_commit_bytes", "Memory promised to a domain and not taken", labels=labels
        )
        covered = GaugeMetricFamily(
            "gksm_commit_covered_bytes", "Of that, what published pages may cover", labels=labels
        )
        debt = GaugeMetricFamily(
            "gksm_debt_bytes", "Memory needed if every shared page were written", labels=labels
        )
        for raw, gpu in self._state.gpus.items():
            name = format_uuid(raw)
            known = free_bytes(gpu)
            if known is not None:
                free.add_metric([name], known)
            reserve.add_metric([name], self._accounts.reserve_bytes(gpu))
            short.add_metric([name], int(gpu.short))
            for domain, table in gpu.tables.items():
                commit.add_metric([name, domain], commit_bytes(table))
                covered.add_metric([name, domain], self._accounts.covered_bytes(table))
                debt.add_metric([name, domain], debt_bytes(table))
        yield from (free, reserve, short, commit, covered, debt)

    def _counters(self, counters: Counters) -> Iterator[Metric]:
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"gksm_{name}", text, value=getattr(counters, name))


def _add_table(table: GpuTable, label: list[str], families: tuple[GaugeMetricFamily, ...]) -> None:
    counts = table_counts(table)
    values = (
        len(table.instances),
        counts.shared,
        counts.sharing,
        counts.zero,
        counts.saved * PAGE_BYTES,
        counts.warm * PAGE_BYTES,
    )
    for family, value in zip(families, values, strict=True):
        family.add_metric(label, value)


class Exporter:
    """Serves /metrics over HTTP on the daemon's own event loop; off without an address.

    prometheus_client's own server reads the state from another thread, while it changes.
    """

    def __init__(self, listen: str, state: State, accounts: Accounts) -> None:
        """``listen`` is HOST:PORT, or empty."""
        self._listen = listen
        registry = CollectorRegistry()
        registry.register(StateCollector(state, accounts))
        self._text = Paced(lambda: generate_latest(registry))
        self._server: asyncio.AbstractServer | None = None
        self._clients = 0

    @property
    def port(self) -> int:
        """The port listened on, for port 0; 0 while not listening."""
        sockets = self._server.sockets if isinstance(self._server, asyncio.Server) else ()
        return int(sockets[0].getsockname()[1]) if sockets else 0

    async def start(self) -> None:
        """Listen, if it is to. An address that cannot be used is logged and stops nothing."""
        if not self._listen:
            return
        host, port = listen_address(self._listen)
        try:
            self._server = await asyncio.start_server(
                self._serve, host or None, port, limit=REQUEST_BYTES
            )
        except OSError as error:
            log.error(
                "no metrics: metrics.listen %s of gksm.toml cannot be used (%s); choose another",
                self._listen,
                error.strerror,
            )

    async def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            if self._clients <= SCRAPERS:
                with contextlib.suppress(
                    OSError,
                    asyncio.TimeoutError,
                    asyncio.IncompleteReadError,
                    asyncio.LimitOverrunError,
                ):
                    await asyncio.wait_for(self._answer(reader, writer), REQUEST_SECONDS)
        finally:
            self._clients -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        words = head.split(b"\r\n", 1)[0].split(b" ")
        path = words[1].split(b"?")[0] if len(words) == 3 else b""
        if words[0] in (b"GET", b"HEAD") and path == b"/metrics":
            status, kind, body = "200 OK", CONTENT_TYPE_LATEST, self._text.get()
        else:
            status, kind, body = "404 Not Found", "text/plain", b"gksmd serves GET /metrics\n"
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        if words[0] != b"HEAD":
            writer.write(body)
        await writer.drain()
