# SPDX-License-Identifier: Apache-2.0
"""What a process needs around it when libgksm and simcuda are built with a sanitizer."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gksm_bench.stack import add_preload

# simcuda turns faults of simulated kernels into held faults by a SIGSEGV handler of
# its own, and its arenas take the address space that the allocator would refuse.
OPTIONS = {
    "asan": {
        "ASAN_OPTIONS": "handle_segv=0:allow_user_segv_handler=1:detect_leaks=1:abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "LSAN_OPTIONS": "report_objects=1",
    },
    "tsan": {
        "TSAN_OPTIONS": "handle_segv=0:allow_user_segv_handler=1:halt_on_error=0:exitcode=66",
    },
}


def flavour(build: Path) -> str:
    """`asan`, `tsan`, or anything else for an ordinary build."""
    return build.name


def around(build: Path, environment: dict[str, str]) -> dict[str, str]:
    """The environment with the sanitizer's runtime in front; it must be loaded first."""
    name = flavour(build)
    if name not in OPTIONS:
        return environment
    runtime = subprocess.run(
        ["gcc", f"-print-file-name=lib{name}.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return {**add_preload(environment, Path(runtime)), **OPTIONS[name]}
