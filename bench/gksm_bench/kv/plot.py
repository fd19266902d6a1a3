# SPDX-License-Identifier: Apache-2.0
"""The picture: saved memory by kind over time, and below it what writes cost."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from gksm_bench.kv.sampling import COW_PERCENT_ALLOWED, SHOWN, Result

COLOURS = {"weights": "#4c72b0", "kv": "#dd8452", "other": "#55a868", "zero": "#b0b0b0"}
LABELS = {"weights": "model weights", "kv": "KV cache", "other": "other data", "zero": "zero pages"}
MIB = 1 << 20


class NoPlotError(RuntimeError):
    """matplotlib is not installed; the text says how to get it."""


def draw(result: Result, path: Path) -> None:
    """Write a PNG. NoPlotError without matplotlib."""
    try:
        matplotlib: Any = import_module("matplotlib.figure")
    except ImportError:
        raise NoPlotError(
            f"{path} is not drawn: matplotlib is not installed; pip install 'gksm[bench]'"
        ) from None
    figure = matplotlib.Figure(figsize=(7, 5), layout="constrained")
    upper, lower = figure.subplots(2, sharex=True, height_ratios=(3, 1))
    intervals = [sample.interval for sample in result.samples]
    upper.stackplot(
        intervals,
        [[sample.saved[kind] / MIB for sample in result.samples] for kind in SHOWN],
        labels=[LABELS[kind] for kind in SHOWN],
        colors=[COLOURS[kind] for kind in SHOWN],
        step="post",
    )
    upper.set_ylabel("deduplicated memory (MiB)")
    upper.set_title(f"{result.instances} instances on one simulated GPU")
    lower.step(intervals, [sample.cow_percent for sample in result.samples], where="post")
    lower.axhline(COW_PERCENT_ALLOWED, color="#c44e52", linestyle="--", linewidth=1)
    lower.set_ylabel("copies on write\n(% of shared)")
    lower.set_ylim(bottom=0)
    lower.set_xlabel("scan interval")
    figure.legend(loc="outside lower center", ncols=len(SHOWN), frameon=False)
    figure.savefig(path, dpi=150)
