# SPDX-License-Identifier: Apache-2.0
"""What is counted after each interval, and what it adds up to."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from gksmd.ctl.client import Daemon
from gksmd.domains import KINDS
from gksmd.jsonlines import VERSION
from gksmd.ops import GetPages, ScannedAnswer, ScanNow
from gksmd.snapshot import PageRow

from gksm_bench.kv.engine import EVENTS
from gksm_bench.kv.fleet import Fleet
from gksm_bench.library import PAGE
from gksm_bench.processes import ChildError
from gksm_bench.simgpu import Probe
from gksm_bench.stack import Stack

ZERO = "zero"
SHOWN = (*KINDS, ZERO)
COW_PERCENT_ALLOWED = 1.0


@dataclass(frozen=True)
class Sample:
    """The state after an interval's scan; counts of events are of the interval alone.

    Sizes in bytes, by kind. `shared`: physical pages that are published and mapped;
    `saved`: what their further mappings would take.
    """

    interval: int
    shared: dict[str, int]
    saved: dict[str, int]
    used_bytes: int  # of the device, as the hardware says
    shared_mappings: int  # pages that processes map read-only
    cow_events: int
    api_detaches: int
    merged_pages: int  # as libgksm counts them, and the next two
    dropped_merges: int
    churned_merges: int  # written to soon after they were merged
    running: int
    waiting: int
    free_blocks: int

    @property
    def cow_percent(self) -> float:
        """Of the shared pages, how many were copied because somebody wrote."""
        return 100 * self.cow_events / self.shared_mappings if self.shared_mappings else 0.0


@dataclass
class Churn:
    """Follows each pool page of one instance: when it was written, and when merged."""

    within: int  # intervals
    writes: dict[int, list[int]] = field(default_factory=dict)
    merges: list[tuple[int, int]] = field(default_factory=list)  # page, interval
    shared: set[int] = field(default_factory=set)

    def add(self, interval: int, written: list[int], shared: list[int]) -> None:
        """What one look found. Writes come before the scan of their interval."""
        for page in written:
            self.writes.setdefault(page, []).append(interval)
        self.merges += [(page, interval) for page in set(shared) - self.shared]
        self.shared = set(shared)

    @property
    def written_soon(self) -> int:
        """Merged pages that were written within so many intervals afterwards."""
        return sum(self._after(page, merged) for page, merged in self.merges)

    @property
    def churning(self) -> int:
        """Those of them that had been written within as many intervals before, too."""
        return sum(
            self._after(page, merged)
            and any(merged - self.within < at <= merged for at in self.writes.get(page, ()))
            for page, merged in self.merges
        )

    def _after(self, page: int, merged: int) -> bool:
        return any(merged < at <= merged + self.within for at in self.writes.get(page, ()))


class Sampler:
    """Asks gksmd, the hardware and the instances."""

    def __init__(self, stack: Stack, fleet: Fleet, probe: Probe, within: int) -> None:
        self.daemon = Daemon(stack.run_dir)
        self.fleet = fleet
        self.probe = probe
        self.churn = [Churn(within) for _ in fleet.instances]
        self.samples: list[Sample] = []
        self._events = [0] * len(EVENTS)

    def scan(self) -> None:
        """One pass in every instance, one after another."""
        answer = self.daemon.ask(ScanNow(v=VERSION, passes=1), ScannedAnswer, timeout_s=None)
        if answer.late:
            raise ChildError(f"processes {answer.late} did not finish a pass of the scanner")

    def sample(self) -> Sample:
        """Take the next one."""
        interval = len(self.samples)
        looks = self.fleet.all("look")
        for churn, look in zip(self.churn, looks, strict=True):
            churn.add(interval, look["written"], look["shared"])
        rows = self.daemon.ask(GetPages(v=VERSION), list[PageRow])
        shared, saved = (dict.fromkeys(SHOWN, 0) for _ in range(2))
        for row in rows:
            shared[row.kind] += row.pages * PAGE if row.mappings else 0
            saved[row.kind] += row.saved_bytes
        events = [sum(look[name] for look in looks) for name in EVENTS]
        cow_events, api_detaches, merged, dropped, soon = (
            now - before for now, before in zip(events, self._events, strict=True)
        )
        self._events = events
        sample = Sample(
            interval=interval,
            shared=shared,
            saved=saved,
            used_bytes=self.probe.used_bytes(),
            shared_mappings=sum(row.mappings for row in rows),
            cow_events=cow_events,
            api_detaches=api_detaches,
            merged_pages=merged,
            dropped_merges=dropped,
            churned_merges=soon,
            **{
                name: sum(look[name] for look in looks)
                for name in ("running", "waiting", "free_blocks")
            },
        )
        self.samples.append(sample)
        return sample


@dataclass
class Result:
    """The whole run."""

    instances: int
    seed: int
    samples: list[Sample]
    merged: int  # pool pages, over the whole run
    written_soon: int
    churning: int
    wrong_tokens: int

    @property
    def cow_percent(self) -> float:
        """Of the worst interval."""
        return max((sample.cow_percent for sample in self.samples), default=0.0)

    @property
    def cow_percent_mean(self) -> float:
        """Of all intervals."""
        return sum(sample.cow_percent for sample in self.samples) / max(len(self.samples), 1)

    @property
    def good(self) -> bool:
        """Whether sharing cost what it may cost, and every token was found again."""
        return (
            self.cow_percent < COW_PERCENT_ALLOWED and self.churning == 0 and self.wrong_tokens == 0
        )

    def as_json(self) -> dict[str, Any]:
        """For --json."""
        samples = [asdict(each) | {"cow_percent": each.cow_percent} for each in self.samples]
        return asdict(self) | {
            "samples": samples,
            "cow_percent_max": self.cow_percent,
            "cow_percent_mean": self.cow_percent_mean,
            "good": self.good,
        }
