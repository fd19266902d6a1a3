# SPDX-License-Identifier: Apache-2.0
"""What readelf says about a shared library."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Symbol:
    name: str
    version: str
    """Empty where it has none."""
    bind: str
    """GLOBAL or WEAK."""
    defined: bool


def _readelf(option: str, library: Path) -> str:
    command = ["readelf", "-W", option, str(library)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def dynamic_section(library: Path) -> list[tuple[str, str]]:
    """Tag and value of each entry, such as ("NEEDED", "libc.so.6")."""
    found = re.findall(r"^ 0x[0-9a-f]+ \((\w+)\)\s+(.*?)\s*$", _readelf("--dynamic", library), re.M)
    return [(tag, re.sub(r"^.*\[(.*)\]$", r"\1", value)) for tag, value in found]


def dynamic_symbols(library: Path) -> list[Symbol]:
    """The symbols that other libraries see, and those wanted of them."""
    symbols = []
    for line in _readelf("--dyn-syms", library).splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[0].rstrip(":").isdigit() and fields[4] in {"GLOBAL", "WEAK"}:
            name, _, version = fields[7].partition("@")
            defined = fields[6] != "UND"
            symbols.append(Symbol(name, version.lstrip("@"), fields[4], defined))
    return symbols


def program_headers(library: Path) -> list[tuple[str, str]]:
    """Type and flags of each segment, such as ("GNU_STACK", "RW")."""
    segment = r"^\s+([A-Z_]+)\s+0x\w+ 0x\w+ 0x\w+ 0x\w+ 0x\w+ ([RWE ]{3})"
    found = re.findall(segment, _readelf("--segments", library), re.M)
    return [(kind, flags.replace(" ", "")) for kind, flags in found]
