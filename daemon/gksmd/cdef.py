# SPDX-License-Identifier: Apache-2.0
"""Turns protocol.h into what cffi's cdef reads. Standard library only: the build runs it."""

from __future__ import annotations

import re


def preprocess(header: str) -> str:
    """Reduce the header to what cffi's cdef takes: declarations and numeric defines."""
    text = re.sub(r"/\*.*?\*/", " ", header, flags=re.DOTALL)
    lines = []
    for raw in text.splitlines():
        line = raw.rstrip()
        if line.startswith("#"):
            define = re.fullmatch(r"#define (\w+) (0x[0-9a-fA-F]+|\d+)u?\s*", line)
            if define is None:
                continue
            line = f"#define {define[1]} {int(define[2], 0)}"
        if line.strip():
            lines.append(line)
    return "\n".join(lines) + "\n"
