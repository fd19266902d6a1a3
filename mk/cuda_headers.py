# SPDX-License-Identifier: Apache-2.0
"""Fetch the CUDA headers that NVIDIA ships on the package index, several releases side by side."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# release -> the wheels that together hold cuda.h and what it includes
RELEASES = {
    "12.4": ["nvidia-cuda-runtime-cu12==12.4.127"],
    "12.9": ["nvidia-cuda-runtime-cu12==12.9.79"],
    "13": ["nvidia-cuda-runtime==13.5.37", "nvidia-cuda-crt==13.5.37"],
}


def main() -> int:
    """Unpack the headers of each release into INTO/RELEASE/include, or only fetch the wheels."""
    parser = argparse.ArgumentParser(description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--into", type=Path, help="unpack the headers here")
    where.add_argument("--wheels-into", type=Path, help="keep the wheels here, unpack nothing")
    parser.add_argument("--wheelhouse", type=Path)
    args = parser.parse_args()
    for release, requirements in RELEASES.items():
        with tempfile.TemporaryDirectory() as temporary:
            folder = args.wheels_into or Path(temporary)
            if not download(requirements, folder, args.wheelhouse):
                wanted = ", ".join(requirements)
                print(
                    f"cannot get {wanted}: the CUDA {release} headers are needed to build; "
                    "give WHEELHOUSE=dir with those wheels if there is no network",
                    file=sys.stderr,
                )
                return 1
            if args.into:
                for wheel in folder.glob("*.whl"):
                    unpack_headers(wheel, args.into / release / "include")
    return 0


def download(requirements: list[str], folder: Path, wheelhouse: Path | None) -> bool:
    """Put the wheels into the folder, from the package index or a folder of wheels."""
    source = ["--no-index", "--find-links", str(wheelhouse)] if wheelhouse else []
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
    command += ["--disable-pip-version-check", *source, "-d", str(folder), *requirements]
    return subprocess.run(command, check=False).returncode == 0


def unpack_headers(wheel: Path, into: Path) -> None:
    """Write every file below an include/ folder of the wheel into `into`."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            head, found, tail = name.partition("/include/")
            if found and head.startswith("nvidia") and not name.endswith("/"):
                target = into / tail
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))


if __name__ == "__main__":
    sys.exit(main())
