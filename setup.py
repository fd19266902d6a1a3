# SPDX-License-Identifier: Apache-2.0
"""Everything is in pyproject.toml but one step: protocol.h becomes gksmd/protocol.cdef."""

from __future__ import annotations

import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildWithProtocol(build_py):
    """Writes the definitions that the daemon reads where no header is installed."""

    def run(self) -> None:
        """Build as always, then add the generated file unless the build is editable."""
        super().run()
        if self.editable_mode:
            return
        header = (ROOT / "libgksm/include/gksm/protocol.h").read_text()
        preprocess = runpy.run_path(str(ROOT / "daemon/gksmd/cdef.py"))["preprocess"]
        target = Path(self.build_lib) / "gksmd/protocol.cdef"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(preprocess(header))


setup(cmdclass={"build_py": BuildWithProtocol})
