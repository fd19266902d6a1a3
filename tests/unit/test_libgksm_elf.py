# SPDX-License-Identifier: Apache-2.0
"""libgksm.so loads into any process of the last ten years, and shows nothing it should not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.elf import dynamic_section, dynamic_symbols, program_headers

OLDEST_GLIBC = (2, 17)
# With glibc 2.38 headers these become __isoc23_ symbols of that version, so a library that is
# clean here would not be when it is built there.
RENAMED_LATER = {
    *("strtol", "strtoul", "strtoll", "strtoull", "strtoimax", "strtoumax", "atoi", "atol"),
    *("scanf", "sscanf", "fscanf", "vsscanf", "vfscanf", "vscanf"),
    *("__isoc99_sscanf", "__isoc99_fscanf", "__isoc99_scanf", "__isoc99_vsscanf"),
}
# Nothing of these is ever right inside somebody else's process.
FORBIDDEN = {
    *("abort", "exit", "_exit", "_Exit", "quick_exit", "raise", "kill", "__assert_fail"),
    *("printf", "puts", "putchar", "perror", "stdout", "stderr", "vprintf", "dprintf", "syslog"),
    *("signal", "sigaction", "system", "err", "errx", "error"),
}


@pytest.fixture
def libgksm(build: Path) -> Path:
    return build / "libgksm.so"


@pytest.mark.seen_in("sgl-project/sglang#36643")
def test_it_bears_the_drivers_name_and_needs_libc_only(libgksm: Path) -> None:
    dynamic = dynamic_section(libgksm)
    assert [value for tag, value in dynamic if tag == "SONAME"] == ["libcuda.so.1"]
    assert [value for tag, value in dynamic if tag == "NEEDED"] == ["libc.so.6"]
    assert not [tag for tag, _ in dynamic if tag in {"RPATH", "RUNPATH", "TEXTREL"}]


def test_it_wants_no_symbol_newer_than_glibc_2_17(libgksm: Path) -> None:
    wanted = [symbol for symbol in dynamic_symbols(libgksm) if not symbol.defined]
    assert "GLIBC_2.2.5" in {symbol.version.split(" ")[0] for symbol in wanted}
    newer = [s for s in wanted if s.version and _version(s.version) > OLDEST_GLIBC]
    unversioned = [s for s in wanted if not s.version and s.bind != "WEAK"]
    assert (newer, unversioned) == ([], [])
    assert not {symbol.name for symbol in wanted} & RENAMED_LATER


@pytest.mark.seen_in("fzyzcjy/torch_memory_saver#87")
def test_it_cannot_end_or_print_into_the_process(libgksm: Path) -> None:
    wanted = {symbol.name for symbol in dynamic_symbols(libgksm) if not symbol.defined}
    assert "calloc" in wanted
    assert not wanted & FORBIDDEN


def test_it_exports_entry_points_and_its_own_functions_only(libgksm: Path) -> None:
    exported = {symbol.name for symbol in dynamic_symbols(libgksm) if symbol.defined}
    assert {"cuInit", "cuMemAlloc_v2", "gksm_records"} <= exported
    strange = {name for name in exported if not re.match("cu[A-Z]|gksm_", name)}
    assert strange == set()


def test_its_stack_is_not_executable_and_no_segment_is_writable_code(libgksm: Path) -> None:
    headers = program_headers(libgksm)
    assert ("GNU_STACK", "RW") in headers
    assert not [flags for kind, flags in headers if kind == "LOAD" and {"W", "E"} <= set(flags)]


def _version(name: str) -> tuple[int, ...]:
    """GLIBC_2.3.2 as (2, 3, 2); what is no glibc version counts as newest."""
    library, _, number = name.split(" ", maxsplit=1)[0].rpartition("_")
    if library != "GLIBC" or not number.replace(".", "").isdigit():
        return (99,)
    return tuple(map(int, number.split(".")))
