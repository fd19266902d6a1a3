# SPDX-License-Identifier: Apache-2.0
"""Temporary folders that have room, and that do not outlive the program that made them."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "gksm-bench-"
YOUNG_SECONDS = 30.0


class NoRoomError(RuntimeError):
    """No folder has the room that was asked for."""


def available_memory() -> int:
    """Bytes that can be used without swapping, as the kernel estimates them."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def candidates() -> list[Path]:
    """Folders for large short-lived files, fastest first."""
    named = [
        Path("/dev/shm"),
        Path(os.environ.get("XDG_RUNTIME_DIR", "/nonexistent")),
        Path(tempfile.gettempdir()),
        Path("/var/tmp"),
    ]
    return [path for path in named if path.is_dir() and os.access(path, os.W_OK | os.X_OK)]


def room(path: Path) -> int:
    """Bytes an ordinary user may still write below `path`.

    A tmpfs may be larger than the memory behind it, so that bounds it too.
    """
    stat = os.statvfs(path)
    free = stat.f_bavail * stat.f_frsize
    on_memory = any(
        line.split()[2] == "tmpfs" and line.split()[1] == str(mount_point(path))
        for line in Path("/proc/mounts").read_text().splitlines()
    )
    return min(free, available_memory()) if on_memory else free


def mount_point(path: Path) -> Path:
    """The mount that `path` lies on."""
    path = path.resolve()
    while not path.is_mount() and path != path.parent:
        path = path.parent
    return path


@contextmanager
def roomy_folder(needed: int) -> Iterator[Path]:
    """A new private folder with `needed` bytes of room, removed at the end.

    A program killed with -9 cannot remove its folder: the next one does, told by
    the lock that the dead one no longer holds.
    """
    found = {path: room(path) for path in candidates()}
    for parent in found:
        remove_abandoned(parent)
    place = next((path for path in found if room(path) >= needed), None)
    if place is None:
        listed = ", ".join(f"{path}: {free >> 20} MiB" for path, free in found.items())
        raise NoRoomError(
            f"no folder has {needed >> 20} MiB of room for the simulated GPU's memory ({listed}); "
            "free some, or name a folder with room in TMPDIR"
        )
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    lock = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(parent: Path) -> None:
    """Remove our folders in `parent` whose makers are gone."""
    for folder in parent.glob(PREFIX + "*"):
        with suppress(OSError):
            stat = folder.stat()
            # A new folder's maker has it for a moment before it holds the lock.
            if stat.st_uid != os.getuid() or time.time() - stat.st_mtime < YOUNG_SECONDS:
                continue
            lock = os.open(folder / ".lock", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
