# SPDX-License-Identifier: Apache-2.0
"""The result as a table."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from gksm_bench.kv.sampling import SHOWN, Result

MIB = 1 << 20
ROWS = 12


def show(result: Result, console: Console) -> None:
    """Some intervals, and what the whole run came to."""
    console.print("SIMULATED GPU: sizes are real, times are not", style="bold yellow")
    table = Table(title=f"deduplicated memory of {result.instances} instances, MiB")
    table.add_column("interval", justify="right")
    for heading in (*SHOWN, "used", "COW", "COW %", "running", "waiting"):
        table.add_column(heading, justify="right")
    step = max(1, -(-len(result.samples) // ROWS))
    for sample in result.samples[step - 1 :: step]:
        table.add_row(
            str(sample.interval),
            *[str(sample.saved[kind] // MIB) for kind in SHOWN],
            str(sample.used_bytes // MIB),
            str(sample.cow_events),
            f"{sample.cow_percent:.2f}",
            str(sample.running),
            str(sample.waiting),
        )
    console.print(table)
    console.print(
        f"{result.merged} pool pages merged, {result.written_soon} of them written soon after, "
        f"{result.churning} churning; of the shared pages "
        f"{result.cow_percent_mean:.2f} % copied in an interval, at most "
        f"{result.cow_percent:.2f} %; {result.wrong_tokens} tokens wrong"
    )
