# SPDX-License-Identifier: Apache-2.0
"""Reads entry points out of the CUDA headers, by way of the C preprocessor.

``cuda.h`` with ``__CUDA_API_VERSION_INTERNAL`` declares every name that a driver
exports, old ABI versions and ``_ptsz``/``_ptds`` variants included.
``cudaTypedefs.h`` says which CUDA version introduced each ABI version of a symbol.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

INTERNAL = "-D__CUDA_API_VERSION_INTERNAL"

# Their own headers need OpenGL, EGL and VDPAU to be installed, so these are read as text.
EXTRA = ("cudaProfiler.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h")
EXTRA_TYPEDEFS = (
    "cudaProfilerTypedefs.h",
    "cudaGLTypedefs.h",
    "cudaEGLTypedefs.h",
    "cudaVDPAUTypedefs.h",
)

PROTOTYPE = re.compile(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(([^)]*)\)\s*;")
TYPEDEF = re.compile(r"\*\s*PFN_(cu\w+?)_v(\d+)(_ptds|_ptsz)?\s*\)")
ERROR = re.compile(r"\b(CUDA_(?:SUCCESS|ERROR_\w+))\s*=\s*(\d+)")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


@dataclass(frozen=True, order=True)
class Lookup:
    """One answer of cuGetProcAddress: a symbol at a CUDA version."""

    symbol: str
    version: int
    suffix: str  # "", "_ptsz" or "_ptds"
    export: str


@dataclass
class Surface:
    """Everything the headers name. Merged over several CUDA versions."""

    prototypes: dict[str, str] = field(default_factory=dict)
    exports: set[str] = field(default_factory=set)
    lookups: set[Lookup] = field(default_factory=set)
    errors: dict[int, str] = field(default_factory=dict)

    def merge(self, newer: Surface) -> None:
        """Add a newer CUDA version; its prototypes and names win."""
        self.prototypes.update(newer.prototypes)
        self.exports |= newer.exports
        self.lookups |= newer.lookups
        self.errors.update(newer.errors)


def preprocess(include: Path, header: str, compiler: str) -> str:
    """The text of ``header`` after the preprocessor, with the internal names declared."""
    done = subprocess.run(
        [compiler, "-E", "-P", INTERNAL, f"-I{include}", str(include / header)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def export_name(symbol: str, version: int, suffix: str, plain: list[int]) -> str:
    """The exported name of a symbol's ABI version.

    The n-th version of a prototype is exported as ``symbol_vN``; a per-thread variant
    belongs to the newest plain version that is not newer than itself.
    """
    index = max((i for i, introduced in enumerate(plain) if introduced <= version), default=0)
    return symbol + (f"_v{index + 1}" if index else "") + suffix


def lookups(text: str) -> set[Lookup]:
    """Every (symbol, version) of the function pointer typedefs in ``text``."""
    found = {(name, int(version), suffix) for name, version, suffix in TYPEDEF.findall(text)}
    plain: dict[str, list[int]] = {}
    for name, version, suffix in sorted(found):
        if not suffix:
            plain.setdefault(name, []).append(version)
    return {
        Lookup(name, version, suffix, export_name(name, version, suffix, plain.get(name, [])))
        for name, version, suffix in found
    }


def read(include: Path, compiler: str) -> Surface:
    """Read the headers of one CUDA version from its include folder."""
    cuda = preprocess(include, "cuda.h", compiler)
    surface = Surface(
        prototypes={name: " ".join(args.split()) for name, args in PROTOTYPE.findall(cuda)},
        lookups=lookups(preprocess(include, "cudaTypedefs.h", compiler)),
        errors={int(code): name for name, code in ERROR.findall(cuda)},
    )
    surface.exports |= set(surface.prototypes)
    for header in EXTRA:
        if (include / header).exists():
            text = COMMENT.sub("", (include / header).read_text())
            surface.exports |= set(re.findall(r"CUDAAPI\s+(cu[A-Z]\w*)\s*\(", text))
    for header in EXTRA_TYPEDEFS:
        if (include / header).exists():
            text = COMMENT.sub("", (include / header).read_text())
            surface.lookups |= lookups(text)
    surface.exports |= {lookup.export for lookup in surface.lookups}
    return surface
