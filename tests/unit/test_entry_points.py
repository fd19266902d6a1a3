# SPDX-License-Identifier: Apache-2.0
"""The tables of entry points against the headers of CUDA 12.4, 12.9 and 13."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from libgksm.gen.headers import (
    RELEASES,
    UNDECLARED,
    all_names,
    declared_in_cuda_h,
    declared_in_interop,
    pfn_types,
)
from tests.support.compile import CUDA_HEADERS, NEWEST, ROOT
from tests.support.elf import dynamic_symbols
from tests.support.prototypes import Prototype, prototypes

PASSTHROUGH = ROOT / "libgksm" / "gen" / "passthrough.txt"
# Parameters that are, hold or lead to device addresses, allocations or launches.
MEMORY_TYPES = re.compile(
    r"\b(CUdeviceptr\w*|CUDA_MEMCPY\w*|CUDA_MEMSET\w*|CUDA_BATCH_MEM_OP\w*|CUDA_KERNEL_NODE\w*"
    r"|CUDA_FABRIC_COPY\w*|CUDA_RESOURCE_DESC|CUstreamBatchMemOpParams|CUgraphNodeParams"
    r"|CUmemGenericAllocationHandle|CUmemDecompressParams|CUipcMemHandle|CUlaunchConfig)\b"
)
# Families whose new members must be looked at whatever their types are.
MEMORY_NAMES = re.compile(
    r"cu(Mem(?!Host|PoolGet|PoolSet)|Launch(?!Host)|Pointer|Multicast|Ipc.*Mem"
    r"|Graph(Launch|Instantiate|Upload|Exec)|Ctx(Create|Destroy|Detach|SetLimit|\w+PeerAccess)"
    r"|DevicePrimaryCtx(Release|Reset)|Module(Load|Unload)|Library(Load|Unload)"
    r"|Stream(Create|Destroy|BeginCapture|EndCapture)|GreenCtx(Create|Destroy))"
)


def base_name(name: str) -> str:
    return re.sub(r"(_v\d+)?(_pt[sd][sz])?$", "", name)


def touches_memory(function: Prototype) -> bool:
    return bool(MEMORY_NAMES.match(function.name)) or any(map(MEMORY_TYPES.search, function.types))


def read_passthrough() -> dict[str, str]:
    """Name to reason."""
    names: dict[str, str] = {}
    reason = ""
    for line in PASSTHROUGH.read_text().splitlines():
        if line.startswith("["):
            reason = line.strip("[]")
        elif line and not line.startswith("#"):
            assert reason, f"{line} has no reason"
            assert line not in names, f"{line} is listed twice"
            names[line] = reason
    return names


@pytest.fixture(scope="module")
def functions() -> list[Prototype]:
    return prototypes(NEWEST)


@pytest.fixture
def exported(build: Path) -> set[str]:
    return {symbol.name for symbol in dynamic_symbols(build / "libgksm.so") if symbol.defined}


@pytest.fixture
def wrapped(build: Path) -> set[str]:
    """A wrapper's symbol is strong, a jump stub's is weak."""
    symbols = dynamic_symbols(build / "libgksm.so")
    return {s.name for s in symbols if s.defined and s.bind == "GLOBAL" and s.name[:2] == "cu"}


@pytest.mark.seen_in("tkestack/gpu-manager#68")
@pytest.mark.parametrize("release", RELEASES)
def test_every_name_of_the_headers_is_exported(release: str, exported: set[str]) -> None:
    include = CUDA_HEADERS / release / "include"
    declared = set(declared_in_cuda_h(include)) | set(declared_in_interop(include))
    assert len(declared) > 600
    assert declared - exported == set()


@pytest.mark.parametrize("release", RELEASES)
def test_every_name_a_program_can_ask_for_is_exported(release: str, exported: set[str]) -> None:
    asked = pfn_types(CUDA_HEADERS / release / "include")
    assert len(asked) > 500
    bases = {base_name(name) for name in exported}
    assert {pfn.name for pfn in asked} - bases == set()


@pytest.mark.parametrize("release", RELEASES)
def test_the_newest_header_knows_every_older_name(release: str) -> None:
    older = set(declared_in_cuda_h(CUDA_HEADERS / release / "include"))
    assert older - set(declared_in_cuda_h(NEWEST)) == set()


@pytest.mark.parametrize("release", RELEASES)
def test_no_entry_point_changed_its_arguments_under_the_same_name(
    release: str, functions: list[Prototype]
) -> None:
    newest = {function.name: len(function.types) for function in functions}
    older = prototypes(CUDA_HEADERS / release / "include")
    changed = [f.name for f in older if newest[f.name] != len(f.types)]
    assert changed == []


def test_every_wrapper_is_of_a_name_that_a_header_declares(wrapped: set[str]) -> None:
    typed, _ = all_names(CUDA_HEADERS)
    assert wrapped - set(typed) == set()


def test_names_that_no_header_declares_are_exported(exported: set[str]) -> None:
    assert set(UNDECLARED) <= exported


def test_what_touches_memory_is_wrapped_or_passed_through_for_a_reason(
    functions: list[Prototype], wrapped: set[str]
) -> None:
    family = {function.name for function in functions if touches_memory(function)}
    assert len(family) > 300
    assert family - wrapped - set(read_passthrough()) == set(), "wrap them or say why not"


def test_nothing_is_both_wrapped_and_listed_as_passed_through(wrapped: set[str]) -> None:
    assert wrapped & set(read_passthrough()) == set()


def test_what_is_listed_as_passed_through_exists(functions: list[Prototype]) -> None:
    assert set(read_passthrough()) - {function.name for function in functions} == set()


def test_variants_of_a_wrapped_name_are_wrapped_too(
    functions: list[Prototype], wrapped: set[str]
) -> None:
    """A forgotten _ptsz or _v2 is how writes slip by."""
    known = wrapped | set(read_passthrough())
    bases = {base_name(name) for name in wrapped}
    variants = {f.name for f in functions if base_name(f.name) in bases}
    assert variants - known == set()


def test_what_libgksm_calls_without_asking_is_what_it_demands_of_a_driver() -> None:
    source = ROOT / "libgksm" / "src"
    needed = set(re.findall(r"X\((cu\w+)\)", (source / "needed.c").read_text()))
    called, asked = set(), {"cuInit"}
    for path in source.rglob("*.c"):
        for name, then in re.findall(r"\bdriver(?:\.|->)(cu\w+)(\s*\(?)", path.read_text()):
            (called if "(" in then else asked).add(name)
    assert len(called) > 20
    assert called - asked - needed == set(), "add them to needed.c, or ask before the call"
