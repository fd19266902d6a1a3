# SPDX-License-Identifier: Apache-2.0
"""Who holds a GPU, by what /proc/PID/fd of every process says.

A descriptor of ``/dev/nvidiaN`` names its GPU. Those of ``/dev/nvidiactl`` (exported
memory among them), ``/dev/nvidia-uvm``, MIG capabilities and the driver's anonymous
inodes do not. A simulated GPU is a folder ``devN`` with its memory in ``bank`` files.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ANY = ""  # in the place of a UUID: a GPU, and the descriptor does not say which
NVIDIA_MAJOR = 195
NVIDIA_CONTROL = 254  # minors from here on are no GPU's
_NAMES = re.compile(r"/dmabuf:|anon_inode:\[?(nv|gksm)")
_SIMULATED = re.compile(r"(.*/dev\d+)(/bank\d+|/state)?")
_STATE = struct.Struct("=II16s")  # struct sim_shared: ready, version, uuid
_STATE_READY = 0x53494D31
_LIBRARY = "/libgksm.so"
_DAEMONS = re.compile(rb"(?:^|[\0/])(gksmd(?:\.main)?|gksm-vault|gksmd\.vault\.main)\0")


@dataclass(frozen=True)
class Holder:
    """A process with open descriptors of GPUs."""

    pid: int
    name: str
    cgroup: str
    ours: bool  # libgksm is in it, or it is gksmd or gksm-vault
    devices: Counter[str]  # descriptors by GPU UUID, or ANY


@dataclass
class Proc:
    """What was found; ``unreadable`` are processes that only root may look at."""

    root: Path = Path("/proc")
    unreadable: list[int] = field(default_factory=list)
    _minors: dict[int, str] = field(default_factory=dict)
    _majors: frozenset[int] = frozenset()
    _folders: dict[str, str | None] = field(default_factory=dict)

    def holders(self) -> list[Holder]:
        """Every process that has a descriptor of some GPU, as it is now."""
        self.unreadable.clear()
        self._folders.clear()
        self._minors = dict(_gpus_by_minor(self.root))
        self._majors = _driver_majors(self.root)
        found = []
        for pid in sorted(int(name) for name in os.listdir(self.root) if name.isdigit()):
            try:
                devices = self._devices(pid)
            except PermissionError:
                self.unreadable.append(pid)
                continue
            except OSError:
                continue  # it has ended
            if devices:
                found.append(self._describe(pid, devices))
        return found

    def _devices(self, pid: int) -> Counter[str]:
        devices: Counter[str] = Counter()
        for fd in os.listdir(self.root / str(pid) / "fd"):
            with suppress(FileNotFoundError):  # closed meanwhile
                device = self._device(pid, fd)
                if device is not None:
                    devices[device] += 1
        return devices

    def _device(self, pid: int, fd: str) -> str | None:
        """The GPU that a descriptor is of, ANY, or None: it is of none."""
        path = self.root / str(pid) / "fd" / fd
        target = os.readlink(path)
        if simulated := _SIMULATED.fullmatch(target):
            return self._simulated(pid, simulated[1])
        if _NAMES.match(target):
            return ANY
        if not target.startswith("/dev/"):
            return None
        # By number: a container may have given the device another name.
        status = path.stat()
        major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
        if not stat.S_ISCHR(status.st_mode) or major not in self._majors:
            return None
        if major == NVIDIA_MAJOR and minor < NVIDIA_CONTROL:
            return self._minors.get(minor, ANY)
        return ANY

    def _simulated(self, pid: int, folder: str) -> str | None:
        if folder not in self._folders:
            self._folders[folder] = None
            with (
                suppress(OSError, struct.error),
                open(f"{self.root}/{pid}/root{folder}/state", "rb") as state,
            ):
                ready, _, raw = _STATE.unpack(state.read(_STATE.size))
                if ready == _STATE_READY:
                    self._folders[folder] = f"GPU-{uuid.UUID(bytes=raw)}"
        return self._folders[folder]

    def _describe(self, pid: int, devices: Counter[str]) -> Holder:
        name = cgroup = ""
        ours = False
        folder = self.root / str(pid)
        with suppress(OSError):
            lines = (folder / "cgroup").read_text(errors="replace").splitlines()
            cgroup = next((line[3:] for line in lines if line.startswith("0::")), "")
        with suppress(OSError):
            arguments = (folder / "cmdline").read_bytes()
            if daemon := _DAEMONS.search(arguments):
                return Holder(pid, daemon[1].decode(), cgroup, True, devices)
            argv0 = arguments.partition(b"\0")[0] or (folder / "comm").read_bytes().strip()
            name = os.path.basename(argv0).decode(errors="replace")
        with suppress(OSError), (folder / "maps").open(errors="replace") as maps:
            ours = any(_LIBRARY in line for line in maps)
        return Holder(pid, name, cgroup, ours, devices)


def _gpus_by_minor(root: Path) -> Iterator[tuple[int, str]]:
    """What the driver says about /dev/nvidiaN."""
    for path in (root / "driver/nvidia/gpus").glob("*/information"):
        with suppress(OSError, KeyError, ValueError):
            lines = (line.partition(":") for line in path.read_text().splitlines())
            facts = {key.strip(): value.strip() for key, _, value in lines}
            yield int(facts["Device Minor"]), facts["GPU UUID"]


def _driver_majors(root: Path) -> frozenset[int]:
    majors = {NVIDIA_MAJOR}
    with suppress(OSError):
        for line in (root / "devices").read_text().splitlines():
            number, _, name = line.strip().partition(" ")
            if name.startswith("nvidia"):
                majors.add(int(number))
    return frozenset(majors)
