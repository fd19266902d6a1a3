# SPDX-License-Identifier: Apache-2.0
"""What the demo found out, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gksm_bench.demo.realgpu import RealGpu
from gksm_bench.simgpu import SimulatedGpu

MIB = 1 << 20


@dataclass(frozen=True)
class Row:
    """One process; sizes in bytes as gksmd counts them."""

    name: str
    pid: int
    virtual_bytes: int
    private_bytes: int
    shared_bytes: int
    proportional_bytes: int
    load_seconds: float
    pages_written: int
    written_by: str
    corrupt_pages: int


@dataclass
class Result:
    """The demo's figures. Bytes are used bytes of the device, read, not computed."""

    instances: int
    simulated: bool
    per_tensor_alloc: bool
    model_bytes: int
    bytes_without: int
    bytes_with: int
    pages_written: int
    cow_events: int
    cow_mean_us: float | None
    cow_max_us: float | None
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def saved_fraction(self) -> float:
        """Of what separate copies need."""
        return 1 - self.bytes_with / self.bytes_without

    @property
    def corrupt_pages(self) -> int:
        """In all processes together, over all checks."""
        return sum(row.corrupt_pages for row in self.rows)

    @property
    def good(self) -> bool:
        """Whether every byte was right."""
        return self.corrupt_pages == 0 and len(self.rows) == self.instances

    def as_json(self) -> dict[str, Any]:
        """The object that --json prints."""
        values = asdict(self)
        values["processes"] = values.pop("rows")
        return values | {
            "saved_fraction": round(self.saved_fraction, 4),
            "corrupt_pages": self.corrupt_pages,
        }


def headline(gpu: SimulatedGpu | RealGpu) -> Text:
    """What the reader must know before any figure."""
    if isinstance(gpu, SimulatedGpu):
        return Text("SIMULATED GPU: sizes are real, times are not", style="bold yellow")
    if gpu.guard:
        return Text("Real GPU, gksm.ko is loaded: kernel writes are copied on write", style="bold")
    return Text(
        "Real GPU without gksm.ko: copy on write is shown by API writes only, because a kernel "
        "that wrote to a shared page would end its process",
        style="bold yellow",
    )


def mib(count: int) -> str:
    """Bytes as MiB."""
    return f"{count / MIB:,.1f}"


def show(result: Result, console: Console) -> None:
    """Print the table and the totals."""
    table = Table(
        title="MiB of GPU memory for each process",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
    )
    table.add_column("process", no_wrap=True)
    for heading in ("virtual", "private", "shared", "proportional", "load s", "wrong"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("wrote", no_wrap=True)
    for row in result.rows:
        table.add_row(
            str(row.pid),
            mib(row.virtual_bytes),
            mib(row.private_bytes),
            mib(row.shared_bytes),
            mib(row.proportional_bytes),
            f"{row.load_seconds:.2f}",
            Text(str(row.corrupt_pages), style="green" if row.corrupt_pages == 0 else "bold red"),
            f"{row.pages_written}, {row.written_by}" if row.pages_written else "",
        )
    console.print(table)
    totals = Table(show_header=False, box=None)
    totals.add_column(style="bold")
    totals.add_column()
    n = result.instances
    totals.add_row("memory of the GPU in use", f"{mib(result.bytes_with)} MiB for {n} processes")
    totals.add_row(f"{n} separate copies need", f"{mib(result.bytes_without)} MiB")
    totals.add_row("saved", f"{result.saved_fraction:.1%}")
    latency = (
        ""
        if result.cow_mean_us is None or result.cow_max_us is None
        else f"; a held fault took {result.cow_mean_us:,.0f} us, at most {result.cow_max_us:,.0f}"
    )
    totals.add_row(
        "copy on write", f"{result.cow_events} for {result.pages_written} pages written{latency}"
    )
    wrong = result.corrupt_pages
    totals.add_row("every byte checked", "all right" if wrong == 0 else f"{wrong} pages WRONG")
    console.print(totals)
    for note in result.notes:
        console.print(note)
