# SPDX-License-Identifier: Apache-2.0
"""Which processes of this host use a GPU, and whether libgksm is in them.

A preload can be ignored without a word to anybody: another architecture, another libc, a
program that clears its environment. So it is looked at from outside.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# Every CUDA program has it open; nvidia-smi, the vault and display servers have not.
NVIDIA = r"/dev/nvidia-uvm"
NAMED = 5  # processes in one sentence

NOT_HOOKED = (
    "use a GPU without libgksm in them",
    "start containers with --runtime=gksm, and look in their logs for a preload that was ignored",
)
NO_SESSION = (
    "have libgksm in them, but gksmd does not know them",
    "see whether they were turned away (gksmctl explain PID) and can reach gksmd's socket",
)


@dataclass(frozen=True)
class GpuProcess:
    """A process that has a GPU open."""

    pid: int
    name: str
    hooked: bool  # libgksm is mapped in it


def gpu_processes(root: Path, environ: Mapping[str, str]) -> Iterator[GpuProcess]:
    """All that this user may look at; ``root``: where the kernel's files are.

    With SIMCUDA_DIR in ``environ`` users of that simulated GPU count too.
    """
    for entry in _folder(root / "proc"):
        if entry.name.isdigit():
            found = gpu_process(root, environ, int(entry.name))
            if found is not None:
                yield found


def gpu_process(root: Path, environ: Mapping[str, str], pid: int) -> GpuProcess | None:
    """This one; None if it uses no GPU, or has ended, or may not be looked at."""
    entry = root / "proc" / str(pid)
    pattern = NVIDIA
    if folder := environ.get("SIMCUDA_DIR"):
        pattern += rf"|{re.escape(os.path.realpath(folder))}/dev\d+/state"
    if not any(re.fullmatch(pattern, _link(fd)) for fd in _folder(entry / "fd")):
        return None
    try:
        maps = (entry / "maps").read_text(errors="replace")
        name = (entry / "comm").read_text(errors="replace").strip()
    except OSError:
        return None
    return GpuProcess(pid, name, hooked="libgksm.so" in maps)


def _folder(path: Path) -> list[Path]:
    try:
        return list(path.iterdir())
    except OSError:
        return []


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def complaints(found: Iterable[GpuProcess], known: Collection[int]) -> Iterator[tuple[str, str]]:
    """(what is wrong, the way out), for those who use a GPU past gKSM.

    ``known``: the pids that gksmd has.
    """
    strangers = [process for process in found if process.pid not in known]
    for hooked, (wrong, way_out) in ((False, NOT_HOOKED), (True, NO_SESSION)):
        who = [process for process in strangers if process.hooked == hooked]
        if who:
            names = ", ".join(f"{process.pid} ({process.name})" for process in who[:NAMED])
            more = f" and {len(who) - NAMED} more" if len(who) > NAMED else ""
            yield f"{names}{more} {wrong}", way_out
