# SPDX-License-Identifier: Apache-2.0
"""Run a Python text in a fresh process with libgksm preloaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PRELUDE = """
import ctypes, os, sys, threading
cuda = ctypes.CDLL("libcuda.so.1")

def records():
    text = ctypes.create_string_buffer(16384)
    cuda.gksm_records(text, ctypes.c_size_t(len(text)))
    return text.value.decode()

def proc_address(name, version=12040, flags=0):
    pointer, status = ctypes.c_void_p(), ctypes.c_int(-1)
    result = cuda.cuGetProcAddress_v2(
        name.encode(), ctypes.byref(pointer), version, ctypes.c_uint64(flags), ctypes.byref(status))
    return result, pointer.value, status.value

def address(name):
    return ctypes.cast(getattr(cuda, name), ctypes.c_void_p).value
"""

# What the surroundings may have set must not decide a test.
CLEARED = ("GKSM_DISABLE", "GKSM_DRIVER", "GKSM_SOCKET", "GKSM_HELLO_WAIT_MS", "LD_PRELOAD",
           "LD_LIBRARY_PATH")  # fmt: skip


def run_preloaded(text: str, preload: Path | str, timeout: float = 30, **environment: str) -> str:
    """Standard output of the text; it must end well, in time, and say nothing on stderr."""
    variables = {k: v for k, v in os.environ.items() if k not in CLEARED}
    variables |= {"LD_PRELOAD": str(preload), "GKSM_SOCKET": "/nonexistent/gksm.sock"}
    run = subprocess.run(
        [sys.executable, "-c", PRELUDE + text],
        env=variables | environment,
        timeout=timeout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, ""), run
    return run.stdout
