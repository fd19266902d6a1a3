# SPDX-License-Identifier: Apache-2.0
"""The simulated driver behaves as the measured one: one C function for each fact.

The programs are in simcuda/tests/; each fact runs in a process and on a device of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "simcuda" / "tests"
VRAM = "256M"


def facts() -> list[tuple[str, str]]:
    """(program, fact) of every FACT(...) in the sources."""
    found = []
    for source in sorted(SOURCES.glob("*.c")):
        names = re.findall(r"^\t\tFACT\((\w+)\)", source.read_text(), re.MULTILINE)
        found += [(source.stem, name) for name in names]
    return found


@pytest.fixture
def device_folder() -> Iterator[Path]:
    """Where the device keeps its memory: in RAM if there is room, as users are told to."""
    ram = Path("/dev/shm")
    roomy = ram.is_dir() and shutil.disk_usage(ram).free > 1 << 30
    with tempfile.TemporaryDirectory(prefix="simcuda-", dir=ram if roomy else None) as folder:
        yield Path(folder)


@pytest.mark.parametrize(("program", "fact"), facts(), ids=str)
def test_simcuda(program: str, fact: str, build: Path, device_folder: Path) -> None:
    binary = build / "simcuda" / "tests" / program
    assert binary.exists(), f"{binary} is not built: run 'make workers'"
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(build / "simcuda"),
        "SIMCUDA_DIR": str(device_folder),
        "SIMCUDA_VRAM": VRAM,
        "SIMCUDA_SEED": "1",
    }
    run = subprocess.run(
        [binary, fact], env=environment, capture_output=True, text=True, check=False, timeout=100
    )
    assert run.returncode == 0, run.stderr
