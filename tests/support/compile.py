# SPDX-License-Identifier: Apache-2.0
"""Compile small C programs for tests, once in a test session."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
CUDA_HEADERS = ROOT / "build" / "cuda"
NEWEST = CUDA_HEADERS / "13" / "include"


def compile_c(output: Path, sources: list[Path], *flags: str) -> Path:
    """A program, or with -shared a library; the compiler's complaint is the test's failure."""
    command = ["cc", "-std=gnu11", "-O1", "-g", "-fPIC", f"-I{NEWEST}"]
    command += ["-o", str(output), *map(str, sources), *flags]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stderr
    return output
