# SPDX-License-Identifier: Apache-2.0
"""Read the names of the driver's entry points out of the CUDA headers.

Two kinds of header. ``cuda.h`` compiles anywhere, so the C preprocessor is asked: with
``__CUDA_API_VERSION_INTERNAL`` it takes its renaming macros back and declares every variant under
the name of its ELF symbol. The interoperability headers (EGL, OpenGL, VDPAU) include headers that
few machines have, so they and the ``PFN_`` typedefs are read as text.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

RELEASES = ("12.4", "12.9", "13")
INTEROP = ("cudaEGL.h", "cudaGL.h", "cudaVDPAU.h")

# Symbols of real drivers that no header declares as a function.
UNDECLARED = (
    "cuGetProcAddress_v2_ptsz",
    "cuProfilerInitialize",
    "cuProfilerStart",
    "cuProfilerStop",
)
# Windows only: declared in cudaGL.h, exported by no Linux driver.
FOREIGN = frozenset({"cuWGLGetDevice"})

_DECLARED = re.compile(r"\bCUresult\s+(?:CUDAAPI\s+)?(cu[A-Z]\w*)\s*\(")
_RENAMED = re.compile(
    r"^\s*#\s*define\s+(cu[A-Z]\w*)\s+(?:__CUDA_API_(PTDS|PTSZ)\()?(cu[A-Z]\w*)\)?\s*$", re.M
)
_TYPEDEF = re.compile(r"\(\s*CUDAAPI\s*\*\s*PFN_(cu[A-Z]\w*?)_v(\d+)(_ptds|_ptsz)?\s*\)")


@dataclass(frozen=True)
class PfnType:
    """One ``PFN_`` typedef: what a program asks cuGetProcAddress for."""

    name: str
    """Base name, as passed to cuGetProcAddress."""
    version: int
    """The CUDA version of this ABI, 12080 for 12.8."""
    per_thread: bool
    """Whether it is the per-thread default stream variant."""


def declared_in_cuda_h(include: Path, compiler: str = "cc") -> list[str]:
    """Every entry point that cuda.h of the release in `include` declares, sorted.

    Raises CalledProcessError when the preprocessor fails.
    """
    source = "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n"
    command = [compiler, "-E", "-P", "-x", "c", f"-I{include}", "-"]
    run = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
    return sorted(set(_DECLARED.findall(run.stdout)))


def declared_in_interop(include: Path) -> list[str]:
    """Every entry point of the EGL, OpenGL and VDPAU headers, under its ELF name, sorted."""
    names: set[str] = set()
    for header in INTEROP:
        text = (include / header).read_text()
        names.update(_DECLARED.findall(text))
        for base, per_thread, target in _RENAMED.findall(text):
            names.update({base, target})
            if per_thread:
                names.add(f"{target}_{per_thread.lower()}")
    return sorted(names - FOREIGN)


def pfn_types(include: Path) -> list[PfnType]:
    """Every ``PFN_`` typedef of cudaTypedefs.h, in the order of the header."""
    text = (include / "cudaTypedefs.h").read_text()
    return [
        PfnType(name, int(version), bool(suffix))
        for name, version, suffix in _TYPEDEF.findall(text)
    ]


def all_names(headers: Path, compiler: str = "cc") -> tuple[list[str], list[str]]:
    """Names of all releases below `headers`: those cuda.h of 13 declares, and the others."""
    typed = set(declared_in_cuda_h(headers / RELEASES[-1] / "include", compiler))
    others: set[str] = set(UNDECLARED)
    for release in RELEASES:
        include = headers / release / "include"
        others.update(declared_in_cuda_h(include, compiler))
        others.update(declared_in_interop(include))
    # Declared by us in cuda_abi.h, so it has a type.
    typed.add("cuGetProcAddress_v2_ptsz")
    return sorted(typed), sorted(others - typed)
