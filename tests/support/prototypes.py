# SPDX-License-Identifier: Apache-2.0
"""Prototypes of the driver API, and programs generated from them."""

from __future__ import annotations

import re
import subprocess
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
    def arguments(self) -> str:
        return ", ".join(f"a{i}" for i in range(len(self.types)))


def prototypes(include: Path) -> list[Prototype]:
    """Every prototype of the cuda.h in `include`, all ABI variants."""
    source = "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n"
    run = subprocess.run(
        ["cc", "-E", "-P", "-x", "c", f"-I{include}", "-"],
        input=source, capture_output=True, text=True, check=True,
    )
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


RECORDER_HEAD = """
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <string.h>
struct recorded { const char *name; unsigned bytes; unsigned char arguments[256]; };
struct recorded recorded;
static void begin(const char *name)
{ memset(&recorded, 0, sizeof(recorded)); recorded.name = name; }
static void put(const void *argument, unsigned bytes)
{ memcpy(recorded.arguments + recorded.bytes, argument, bytes); recorded.bytes += bytes; }
"""

CALLER_HEAD = """
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
struct recorded { const char *name; unsigned bytes; unsigned char arguments[256]; };
static const char *current = "";
static void looked_into_arguments(int number)
{ (void)number; printf("%s: follows its pointers\\n", current); fflush(stdout); _Exit(1); }
static struct recorded *seen;
static unsigned char expected[256];
static unsigned used, checked, wrong;
static void begin(void) { used = 0; seen->name = ""; }
static void fill(void *argument, unsigned bytes, unsigned index)
{
    /* Never a NaN, which might not survive a move; every byte tells its place. */
    for (unsigned i = 0; i < bytes; i++)
        ((unsigned char *)argument)[i] = (unsigned char)(0x11 + 7 * index + i);
    memcpy(expected + used, argument, bytes);
    used += bytes;
}
static void end(const char *name, CUresult result, CUresult wanted)
{
    checked++;
    if (result == wanted && strcmp(seen->name, name) == 0 && seen->bytes == used &&
        memcmp(seen->arguments, expected, used) == 0)
        return;
    wrong++;
    printf("%s: returned %d, the driver saw %s\\n", name, (int)result, seen->name);
}
"""


def recorder(functions: list[Prototype]) -> str:
    """A driver whose every function notes its name and arguments and returns its own number."""
    lines = [RECORDER_HEAD]
    for number, function in enumerate(functions):
        puts = " ".join(f"put(&a{i}, sizeof(a{i}));" for i in range(len(function.types)))
        lines.append(
            f"CUresult {function.name}({function.parameters}) "
            f'{{ begin("{function.name}"); {puts} return (CUresult){1000 + number}; }}'
        )
    return "\n".join(lines)


def caller(functions: list[Prototype], skipped: set[str]) -> str:
    """A program that calls each of the recorder's functions with arguments it can tell apart."""
    lines = [CALLER_HEAD]
    calls = []
    for number, function in enumerate(functions):
        if function.name in skipped:
            continue
        variables = " ".join(f"{kind} a{i};" for i, kind in enumerate(function.types))
        fills = " ".join(f"fill(&a{i}, sizeof(a{i}), {i});" for i in range(len(function.types)))
        lines.append(
            f"static void call_{number}(void *library)\n{{ __typeof__({function.name}) *call = "
            f'dlsym(library, "{function.name}"); {variables}\n'
            f'if (!call) {{ wrong++; printf("{function.name}: not exported\\n"); return; }}\n'
            f'current = "{function.name}"; begin(); {fills}\n'
            f'end("{function.name}", call({function.arguments}), (CUresult){1000 + number}); }}'
        )
        calls.append(f"call_{number}(library);")
    lines.append(
        "int main(int argc, char **argv)\n{\n"
        'void *library = dlopen("libcuda.so.1", RTLD_NOW), *driver;\n'
        "(void)argc;\n"
        "signal(SIGSEGV, looked_into_arguments);\n"
        "driver = dlopen(argv[1], RTLD_NOW);\n"
        'seen = dlsym(driver, "recorded");\n' + "\n".join(calls) + "\n"
        'printf("%u checked, %u wrong\\n", checked, wrong);\nreturn wrong != 0;\n}\n'
    )
    return "\n".join(lines)
