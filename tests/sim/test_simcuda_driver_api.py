# SPDX-License-Identifier: Apache-2.0
"""The simulated driver as programs see it, with cuda-python as the client."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gksm_bench.simgpu import simulated_gpu

from tests.conftest import build_folder
from tests.sim.driver_api.__main__ import programs
from tests.support.elf import dynamic_section, dynamic_symbols

ROOT = Path(__file__).parents[2]
MODULES = ("lookup", "streams", "kernels", "graphs", "capture", "arrays")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)

Run = Callable[[str], dict[str, str | None]]


@pytest.fixture(scope="module")
def run_module() -> Iterator[Run]:
    """Runs the client programs of a module once, on two devices; what failed, by name."""
    results: dict[str, dict[str, str | None]] = {}
    with simulated_gpu(build_folder(), devices=2, vram=128 << 20, guard=False) as gpu:

        def run(module: str) -> dict[str, str | None]:
            if module not in results:
                done = subprocess.run(
                    [sys.executable, "-m", "tests.sim.driver_api", module],
                    cwd=ROOT,
                    env=gpu.environment(),
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                results[module] = json.loads(done.stdout)
            return results[module]

        yield run


@pytest.mark.parametrize(
    ("module", "program"), [(module, name) for module in MODULES for name in programs(module)]
)
@pytest.mark.timeout(600)  # the first of a module runs all of them
def test_simcuda(run_module: Run, module: str, program: str) -> None:
    failure = run_module(module)[program]
    assert failure is None, failure


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
