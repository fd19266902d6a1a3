# SPDX-License-Identifier: Apache-2.0
"""A wall clock that jumps, for the processes that are started with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.compile import compile_c

DAY = 86400


class WallClock:
    """Moves CLOCK_REALTIME of whoever has `environment`, also while they run."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "ahead"
        self.file.write_bytes(bytes(8))
        source = Path(__file__).parent / "clock.c"
        self.library = compile_c(folder / "clock.so", [source], "-shared")

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "WALL_CLOCK": str(self.file)}

    def set_ahead(self, seconds: int) -> None:
        """From now on it is so much ahead of the true one, or behind it."""
        with self.file.open("r+b") as file:
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))

    def told(self) -> float:
        """What a Python program is told that the time is."""
        command = [sys.executable, "-c", "import time; print(time.time())"]
        run = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=True
        )
        return float(run.stdout)
