# SPDX-License-Identifier: Apache-2.0
"""The simulated driver as programs see it, with cuda-python as the client."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gksm_bench.simgpu import SimulatedGpu

from tests.sim.driver_api import arrays, capture, graphs, kernels, lookup, streams
from tests.support.elf import dynamic_section, dynamic_symbols

ROOT = Path(__file__).parents[2]
MODULES = (lookup, streams, kernels, graphs, capture, arrays)
SECONDS = 60
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


def programs() -> list[tuple[str, str]]:
    """Every client program, as module and function."""
    return [
        (module.__name__.rpartition(".")[2], name)
        for module in MODULES
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    ]


@pytest.mark.parametrize(("module", "program"), programs())
def test_simcuda(make_gpu: Callable[..., SimulatedGpu], module: str, program: str) -> None:
    gpu = make_gpu(devices=2, vram=128 << 20, guard=False)
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim.driver_api", module, program],
        cwd=ROOT,
        env=gpu.environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("version", ["12.4", "12.9", "13"])
def test_simcuda_exports_every_name_of_the_headers(build: Path, version: str) -> None:
    include = ROOT / "build" / "cuda" / version / "include"
    text = COMMENT.sub("", (include / "cuda.h").read_text())
    wanted = set(re.findall(r"CUDAAPI\s+(cu[A-Z]\w*)\s*\(", text))
    for name, suffix in (("PTSZ", "_ptsz"), ("PTDS", "_ptds")):
        made = re.findall(rf"#define\s+cu\w+\s+__CUDA_API_{name}\((cu\w+)\)", text)
        wanted |= {plain + suffix for plain in made} | set(made)
    wanted |= set(re.findall(r"#define\s+cu\w+\s+(cu[A-Z]\w*)\s*$", text, re.MULTILINE))
    assert len(wanted) > 550
    library = build / "simcuda" / "libcuda.so.1"
    exported = {symbol.name for symbol in dynamic_symbols(library) if symbol.defined}
    assert wanted <= exported, sorted(wanted - exported)


def test_simcuda_is_found_as_the_driver_is(build: Path) -> None:
    assert ("SONAME", "libcuda.so.1") in dynamic_section(build / "simcuda" / "libcuda.so.1")
