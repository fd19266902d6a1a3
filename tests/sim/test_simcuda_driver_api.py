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

# They compare addresses of entry points with the driver's own, and libgksm has its own.
OF_THE_DRIVER_ALONE = {
    "version_argument_selects_the_abi_version",
    "an_older_driver_does_not_know_newer_symbols",
}

Run = Callable[[str, bool], dict[str, str | None]]


@pytest.fixture(scope="module")
def run_module() -> Iterator[Run]:
    """Runs the client programs of a module once, on two devices; what failed, by name."""
    results: dict[tuple[str, bool], dict[str, str | None]] = {}
    with simulated_gpu(build_folder(), devices=2, vram=128 << 20, guard=False) as gpu:

        def run(module: str, libgksm: bool) -> dict[str, str | None]:
            environment = gpu.environment()
            if libgksm:
                environment["LD_PRELOAD"] = str((build_folder() / "libgksm.so").absolute())
                environment["GKSM_DRIVER"] = str(gpu.driver)
            if (module, libgksm) not in results:
                done = subprocess.run(
                    [sys.executable, "-m", "tests.sim.driver_api", module],
                    cwd=ROOT,
                    env=environment,
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                results[module, libgksm] = json.loads(done.stdout)
            return results[module, libgksm]

        yield run


PROGRAMS = [(module, name) for module in MODULES for name in programs(module)]
# The first program of a module runs all of them.
LONGER = pytest.mark.timeout(600)


@pytest.mark.parametrize(("module", "program"), PROGRAMS)
@LONGER
def test_simcuda(run_module: Run, module: str, program: str) -> None:
    failure = run_module(module, False)[program]
    assert failure is None, failure


@pytest.mark.parametrize(
    ("module", "program"), [each for each in PROGRAMS if each[1] not in OF_THE_DRIVER_ALONE]
)
@LONGER
def test_invariant_7_a_program_runs_as_well_with_libgksm(
    run_module: Run, module: str, program: str
) -> None:
    failure = run_module(module, True)[program]
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
