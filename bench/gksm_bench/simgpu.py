# SPDX-License-Identifier: Apache-2.0
"""A simulated GPU of one's own, and a way to read how much of it is used."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gksm_bench.places import roomy_folder
from gksm_bench.processes import ChildError, kill, spawn, tail

DRIVER = Path("simcuda") / "libcuda.so.1"
CLEARED = ("LD_PRELOAD", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
CLEARED_PREFIXES = ("GKSM_", "SIMCUDA_")


def clean_environment() -> dict[str, str]:
    """Our environment without whatever would redirect CUDA."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in CLEARED and not name.startswith(CLEARED_PREFIXES)
    }


@dataclass(frozen=True)
class SimulatedGpu:
    """Simulated devices whose memory lies in `folder`; sizes in bytes."""

    build: Path
    folder: Path
    vram: int
    devices: int = 1
    guard: bool = True
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def driver(self) -> Path:
        """The simulated libcuda.so.1."""
        return (self.build / DRIVER).absolute()

    def environment(self) -> dict[str, str]:
        """For a process that uses the simulated driver directly, without gKSM."""
        return {
            **clean_environment(),
            "LD_LIBRARY_PATH": str(self.driver.parent),
            "SIMCUDA_DIR": str(self.folder),
            "SIMCUDA_DEVICES": str(self.devices),
            "SIMCUDA_VRAM": str(self.vram),
            **({} if self.guard else {"SIMCUDA_GUARD": "0"}),
            **self.extra,
        }


@contextmanager
def simulated_gpu(
    build: Path,
    *,
    vram: int = 8 << 30,
    room: int | None = None,
    devices: int = 1,
    guard: bool = True,
    extra: Mapping[str, str] | None = None,
) -> Iterator[SimulatedGpu]:
    """A fresh simulated GPU, removed at the end.

    `room`: bytes of it that will really be written (default: all); the folder is
    chosen by that, because Docker's /dev/shm has 64 MiB.
    """
    driver = build / DRIVER
    if not driver.exists():
        raise ChildError(f"{driver} does not exist; `make all` builds it")
    with roomy_folder(vram * devices if room is None else room) as folder:
        memory = folder / "gpu"
        memory.mkdir()
        yield SimulatedGpu(build, memory, vram, devices, guard, dict(extra or {}))


class Probe:
    """A process of its own that asks the driver how much of a device is used.

    It runs without libgksm, so it sees what the hardware would say.
    """

    def __init__(self, environment: Mapping[str, str], log: Path, device: int = 0) -> None:
        self.log = log
        command = [sys.executable, "-m", "gksm_bench.probe", str(device)]
        self.process: subprocess.Popen[str] = spawn(command, environment, log, piped=True)

    def _ask(self) -> tuple[int, int, int]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
            free, total, copied = self.process.stdout.readline().split()
        except (OSError, ValueError):
            raise ChildError(f"the memory probe ended: {tail(self.log)}") from None
        return int(free), int(total), int(copied)

    def used_bytes(self) -> int:
        """Bytes of the device that some process or descriptor keeps allocated now."""
        free, total, _ = self._ask()
        return total - free

    def copied_bytes(self) -> int:
        """Bytes that were ever copied from the host to the (simulated) device."""
        return self._ask()[2]

    def close(self) -> None:
        """End the process."""
        kill(self.process)
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def memory_probe(environment: Mapping[str, str], log: Path, device: int = 0) -> Iterator[Probe]:
    """A Probe that ends with the block."""
    probe = Probe(environment, log, device)
    try:
        yield probe
    finally:
        probe.close()
