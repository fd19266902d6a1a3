# SPDX-License-Identifier: Apache-2.0
"""Tables of at most 100 columns, whatever the names in them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 100


def console() -> Console:
    """Standard output, no wider than the terminal and never wider than 100 columns."""
    width = shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH
    return Console(width=min(width, WIDTH), highlight=False, soft_wrap=False, markup=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[str | int]]) -> Table:
    """A table. A column whose name ends in ``>`` holds numbers: right-aligned, never cut.

    Other columns give way: too long a word ends in an ellipsis (--json has it whole).
    """
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for name in columns:
        if name.endswith(">"):
            made.add_column(name[:-1], justify="right", no_wrap=True)
        else:
            made.add_column(name, overflow="ellipsis", min_width=len(name))
    for row in rows:
        made.add_row(*(Text(printable(str(cell))) for cell in row))
    return made


def printable(text: str) -> str:
    """What peers named themselves must not move the operator's cursor."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def size(count: int) -> str:
    """Bytes for people: three digits and a binary unit."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = 0
    value = float(count)
    while abs(value) >= 1000 and power < len(units) - 1:
        value /= 1024
        power += 1
    if not power or value >= 100 or value == int(value):
        return f"{value:.0f} {units[power]}"
    return f"{value:.1f} {units[power]}" if value >= 10 else f"{value:.2f} {units[power]}"


def duration(seconds: float) -> str:
    """Seconds for people, by their two largest units."""
    rest = int(seconds)
    parts = []
    for name, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts[:2]) or "0 s"


def short_gpu(uuid: str) -> str:
    """Enough of a GPU's UUID to tell the GPUs of a host apart."""
    return uuid[:12]


def short_domain(name: str) -> str:
    """A default domain's container id as engines shorten it."""
    head, colon, rest = name.partition(":")
    return f"container:{rest[:12]}" if colon and head == "container" else name
