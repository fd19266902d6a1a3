# SPDX-License-Identifier: Apache-2.0
"""Prototypes of the driver API, and programs generated from them.

`recorder` is a driver that notes how each of its functions was called. `caller` is a program that
calls them all through libgksm and compares.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

_PROTOTYPE = re.compile(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(([^;{}]*)\)\s*;")


@dataclass(frozen=True)
class Prototype:
    name: str
    types: tuple[str, ...]

    @property
    def parameters(self) -> str:
        return ", ".join(f"{kind} a{i}" for i, kind in enumerate(self.types)) or "void"

    @property
    def variables(self) -> str:
        return " ".join(f"{kind} a{i};" for i, kind in enumerate(self.types))

    @property
    def arguments(self) -> str:
        return ", ".join(f"a{i}" for i in range(len(self.types)))

    def each(self, macro: str) -> str:
        """The macro applied to each argument, its number and whether it is a device address."""
        addresses = [kind in {"CUdeviceptr", "CUdeviceptr_v1"} for kind in self.types]
        return " ".join(f"{macro}(a{i}, {i}, {int(is_one)});" for i, is_one in enumerate(addresses))


def prototypes(include: Path) -> list[Prototype]:
    """Every prototype of the cuda.h in `include`, all ABI variants."""
    source = "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n"
    run = subprocess.run(
        ["cc", "-E", "-P", "-x", "c", f"-I{include}", "-"],
        input=source, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = {}
    for name, parameters in _PROTOTYPE.findall(run.stdout):
        types = [] if parameters.strip() in {"", "void"} else parameters.split(",")
        found[name] = Prototype(name, tuple(_type(parameter) for parameter in types))
    return sorted(found.values(), key=lambda prototype: prototype.name)


def _type(parameter: str) -> str:
    """The parameter without its name."""
    match = re.fullmatch(r"\s*(.*?[\s*])\w+\s*", parameter, re.S)
    assert match, parameter
    return " ".join(match.group(1).split())


def recorder(functions: Sequence[Prototype]) -> str:
    """A driver of these functions. See tests/unit/arguments/recorder.h."""
    lines = [f"#define FUNCTIONS {len(functions)}", '#include "recorder.h"']
    for number, function in enumerate(functions):
        lines.append(
            f"CUresult {function.name}({function.parameters}) "
            f"{{ BEGIN({number}); {function.each('NOTE')} return END({number}); }}"
        )
    return "\n".join(lines)


def caller(functions: Sequence[Prototype], skipped: Collection[str]) -> str:
    """A program that calls the functions. See tests/unit/arguments/caller.h."""
    lines = [f"#define FUNCTIONS {len(functions)}", '#include "caller.h"']
    calls = []
    for number, function in enumerate(functions):
        if function.name in skipped:
            continue
        lines.append(
            f"static void call_{number}(CUresult result) {{ {function.variables} "
            f'__typeof__({function.name}) *call = begin({number}, "{function.name}", result); '
            f"if (!call) return; {function.each('FILL')} end(call({function.arguments})); }}"
        )
        calls.append(f"call_{number}(result);")
    lines.append("static void call_all(CUresult result) {\n" + "\n".join(calls) + "\n}")
    return "\n".join(lines)
