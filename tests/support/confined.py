# SPDX-License-Identifier: Apache-2.0
"""Children without the right to look into other processes, as in most containers."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from collections.abc import Callable

PR_SET_DUMPABLE, PR_CAPBSET_DROP = 4, 24
CAP_SYS_PTRACE = 19
# Takes a copy of descriptor 0 out of another process: prints the errno, 0 if it could.
STEAL = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
pidfd = os.pidfd_open(int(sys.argv[1]))
print(ctypes.get_errno() if libc.syscall(438, pidfd, 0, 0) < 0 else 0)
"""


def without_ptrace(work: Callable[[], None]) -> None:
    """Run `work` on a thread whose children cannot gain CAP_SYS_PTRACE."""
    failed: list[BaseException] = []

    def confined() -> None:
        # Refused to whoever is not root, and who has it not to give.
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0)
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=confined)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def hide() -> None:
    """Let nobody without that right look into this process from now on."""
    if ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError("PR_SET_DUMPABLE")


def steal(pid: int) -> int:
    """The errno with which a child of this thread is refused a descriptor of the process."""
    command = [sys.executable, "-c", STEAL, str(pid)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def has_ptrace(pid: int) -> bool:
    """Whether the process has CAP_SYS_PTRACE."""
    with open(f"/proc/{pid}/status") as lines:
        effective = next(line.split()[1] for line in lines if line.startswith("CapEff"))
    return bool(int(effective, 16) >> CAP_SYS_PTRACE & 1)
