# SPDX-License-Identifier: Apache-2.0
"""Generate libgksm's tables: ``python -m libgksm.gen --headers build/cuda --into build/gen``."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from .emit import entry_points_header, exports_assembly
from .headers import all_names


def main() -> int:
    """Write gksm_entry_points.h and exports.S, each only if it changes."""
    parser = argparse.ArgumentParser(prog="libgksm.gen", description=main.__doc__)
    parser.add_argument("--headers", type=Path, required=True, help="folder with 12.4, 12.9, 13")
    parser.add_argument("--into", type=Path, required=True, help="where to write")
    parser.add_argument("--cc", default="cc", help="the C compiler to preprocess with")
    args = parser.parse_args()
    try:
        typed, others = all_names(args.headers, args.cc)
    except (OSError, subprocess.CalledProcessError) as error:
        print(
            f"cannot read the CUDA headers below {args.headers}: {error}; make setup fetches them",
            file=sys.stderr,
        )
        return 1
    args.into.mkdir(parents=True, exist_ok=True)
    names = [*typed, *others]
    write_if_changed(args.into / "gksm_entry_points.h", entry_points_header(typed, len(names)))
    write_if_changed(args.into / "exports.S", exports_assembly(names))
    return 0


def write_if_changed(path: Path, text: str) -> None:
    """Leave an unchanged file's time alone, so that nothing is rebuilt for it."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
