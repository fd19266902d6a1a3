# SPDX-License-Identifier: Apache-2.0
"""Say what this machine lacks before anything is built. Standard library only."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

NEEDED_RAM_GIB = 3.0
NEEDED_DISK_GIB = 3.0
NEEDED_PYTHON = (3, 10)


def shortages(build: Path, wheelhouse: Path | None) -> list[str]:
    """One sentence for each thing that is missing; empty when all is well."""
    found = []
    if sys.version_info < NEEDED_PYTHON:
        version = sys.version.split()[0]
        found.append(f"python3 is {version}; 3.10 or newer is needed (PYTHON=python3.11)")
    found += [
        f"{tool} is not installed (Debian, Ubuntu: apt install build-essential)"
        for tool in ("gcc", "make")
        if shutil.which(tool) is None
    ]
    if importlib.util.find_spec("ensurepip") is None:
        found.append("python3 has no venv (Debian, Ubuntu: apt install python3-venv)")
    available = available_gib()
    if available < NEEDED_RAM_GIB:
        found.append(f"{available:.1f} GiB of memory are free; {NEEDED_RAM_GIB:.0f} are needed")
    place = build if build.exists() else Path.cwd()
    free = shutil.disk_usage(place).free / 2**30
    if free < NEEDED_DISK_GIB and not (build / "venv/.done").exists():
        found.append(
            f"{free:.1f} GiB of disk are free at {place}; {NEEDED_DISK_GIB:.0f} are needed"
        )
    if wheelhouse is not None:
        if not wheelhouse.is_dir():
            found.append(f"WHEELHOUSE={wheelhouse} is not a folder")
    elif not (build / "venv/.done").exists() and not index_reachable():
        found.append(
            "the Python package index cannot be reached; give WHEELHOUSE=dir with the wheels"
        )
    return found


def available_gib() -> float:
    """Memory that can be had without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, amount = line.split()[:2]
        if name == "MemAvailable:":
            return int(amount) / 2**20
    return NEEDED_RAM_GIB


def index_reachable() -> bool:
    """Whether pip, as it is configured here, gets an answer from its index."""
    command = [sys.executable, "-m", "pip", "index", "versions", "pip"]
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def main() -> int:
    """Print the shortages; exit 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--wheelhouse", type=Path)
    args = parser.parse_args()
    found = shortages(args.build, args.wheelhouse)
    for sentence in found:
        print(f"cannot build here: {sentence}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
