# SPDX-License-Identifier: Apache-2.0
"""The demo on real hardware."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from gksm_bench.processes import ChildError
from gksm_bench.simgpu import clean_environment

MODULE = Path("/sys/module/gksm")


@dataclass(frozen=True)
class RealGpu:
    """The first GPU of the host's own driver."""

    build: Path
    driver: Path
    guard: bool  # gksm.ko is loaded: kernel writes to shared pages are held

    def environment(self) -> dict[str, str]:
        """For a process that uses the GPU without gKSM."""
        return clean_environment()


def open_real_gpu(build: Path) -> RealGpu:
    """Find the driver as the dynamic loader does. ChildError if there is none."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise ChildError(
            f"this host has no CUDA driver ({error}); leave out --gpu to simulate one"
        ) from None
    mapped = (line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines())
    path = next(name for name in mapped if "/libcuda.so" in name)
    return RealGpu(build, Path(path), MODULE.is_dir())
