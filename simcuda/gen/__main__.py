# SPDX-License-Identifier: Apache-2.0
"""``python -m simcuda.gen --headers DIR --into DIR``: generate simcuda's surface.

DIR of the headers holds one folder for each CUDA version, each with ``include/``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from simcuda.gen import emit
from simcuda.gen.headers import Surface, read


def main() -> None:
    """Read every CUDA version below --headers and write the C files into --into."""
    parser = argparse.ArgumentParser(prog="simcuda.gen", description=__doc__)
    parser.add_argument("--headers", type=Path, required=True)
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--cc", default="gcc", help="the C compiler whose preprocessor is used")
    options = parser.parse_args()

    surface = Surface()
    folders = [folder for folder in options.headers.iterdir() if (folder / "include").is_dir()]
    for folder in sorted(folders, key=lambda path: [int(part) for part in path.name.split(".")]):
        surface.merge(read(folder / "include", options.cc))
    if not surface.exports:
        raise SystemExit(f"no CUDA headers below {options.headers}: run 'make setup' first")

    options.into.mkdir(parents=True, exist_ok=True)
    for name, generate in emit.FILES.items():
        (options.into / name).write_text("\n".join(generate(surface)) + "\n")


if __name__ == "__main__":
    main()
