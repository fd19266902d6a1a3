# SPDX-License-Identifier: Apache-2.0
"""Every way a program finds the driver's functions ends in libgksm, and finds what it would
without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gksm_bench.simgpu import SimulatedGpu
from gksm_bench.stack import Stack

from libgksm.gen.headers import RELEASES, pfn_types
from tests.support.compile import CUDA_HEADERS, compile_c
from tests.support.elf import dynamic_symbols
from tests.support.preload import run_preloaded

PROGRAMS = Path(__file__).parent / "resolving"

COMPARE = """
import json, re
asked, wrapped, names = json.load(open(os.environ["ASKED"]))
real = ctypes.CDLL(os.environ["GKSM_DRIVER"])
wrapped = set(wrapped)

def ask(library, symbol, version, flags):
    pointer, status = ctypes.c_void_p(), ctypes.c_int(-1)
    result = library.cuGetProcAddress_v2(symbol, ctypes.byref(pointer), version,
                                         ctypes.c_uint64(flags), ctypes.byref(status))
    return result, status.value, pointer.value

def where(library, name):
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    except AttributeError:
        return None

at = {}
for name in names:
    at.setdefault(where(real, name), []).append(name)
resolved = exchanged = 0
for symbol, version, flags in asked:
    theirs = ask(real, symbol.encode(), version, flags)
    ours = ask(cuda, symbol.encode(), version, flags)
    assert theirs[:2] == ours[:2], (symbol, version, flags, theirs, ours)
    variant = re.compile(re.escape(symbol) + r"(_v\\d+)?(_pt[sd][sz])?")
    entry = [n for n in at.get(theirs[2], []) if variant.fullmatch(n)]
    if theirs[2] is None:
        assert ours[2] is None, (symbol, version, flags)
        continue
    resolved += 1
    assert entry, f"the driver gave an address for {symbol} that is no symbol of it"
    if set(entry) & wrapped:
        exchanged += 1
        assert ours[2] in [where(cuda, n) for n in entry], (symbol, version, flags, entry)
        assert ours[2] != theirs[2]
    else:
        assert ours[2] == theirs[2], (symbol, version, flags, entry)
print(json.dumps([resolved, exchanged]))
"""


@pytest.fixture
def libgksm(build: Path) -> Path:
    return build / "libgksm.so"


@pytest.mark.seen_in("tkestack/gpu-manager#68")
@pytest.mark.parametrize("release", RELEASES)
def test_every_function_type_of_the_headers_resolves_as_the_driver_resolves_it(
    release: str, libgksm: Path, build: Path, tmp_path: Path
) -> None:
    asked = []
    for pfn in pfn_types(CUDA_HEADERS / release / "include"):
        # Also a version that is too early for it, and one that is later than it needs.
        for version in (pfn.version, pfn.version - 10, pfn.version + 10, 12000):
            asked += [(pfn.name, version, flags) for flags in (0, 1, 2)]
    asked += [("", 0, 0), ("cuNothing", 12000, 0), ("cuInit", 99999, 0), ("cudnnCreate", 12000, 0)]
    symbols = [s for s in dynamic_symbols(libgksm) if s.defined and s.name.startswith("cu")]
    wrapped = [s.name for s in symbols if s.bind == "GLOBAL"]
    table = tmp_path / "asked.json"
    table.write_text(json.dumps([asked, wrapped, [s.name for s in symbols]]))
    printed = run_preloaded(
        COMPARE, libgksm, timeout=60, GKSM_DRIVER=str(driver(build)), ASKED=str(table)
    )
    resolved, exchanged = json.loads(printed)
    assert resolved > 1500, "the driver knew nearly nothing: the test shows nothing"
    assert exchanged > 500


def driver(build: Path) -> Path:
    return (build / "simcuda" / "libcuda.so.1").absolute()


def test_the_drivers_own_per_thread_lookup_hands_out_wrappers_too(
    libgksm: Path, build: Path
) -> None:
    text = """
pointer, status = ctypes.c_void_p(), ctypes.c_int(-1)
def ask(flags):
    assert cuda.cuGetProcAddress_v2_ptsz(b"cuMemcpyHtoDAsync", ctypes.byref(pointer), 12000,
                                         ctypes.c_uint64(flags), ctypes.byref(status)) == 0
    return pointer.value
assert ask(0) == ask(2) == address("cuMemcpyHtoDAsync_v2_ptsz")
assert ask(1) == address("cuMemcpyHtoDAsync_v2")
"""
    run_preloaded(text, libgksm, GKSM_DRIVER=str(driver(build)))


@pytest.mark.seen_in("grgalex/nvshare#11", "tkestack/vcuda-controller#30")
@pytest.mark.parametrize("how", ["linked", "-DLOOKUP=0", "-DLOOKUP=1", "-DLOOKUP=2"])
def test_a_program_that_allocates_is_seen_however_it_found_the_driver(
    how: str, stack: Stack, gpu: SimulatedGpu, tmp_path: Path
) -> None:
    flags = [str(gpu.driver)] if how == "linked" else [how]
    program = compile_c(tmp_path / "program", [PROGRAMS / "allocate.c"], *flags, "-ldl")
    run = subprocess.run(
        [program], env=stack.environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert (run.returncode, run.stderr) == (0, ""), run
    assert run.stdout == "3 pages of an arena\n"


@pytest.mark.seen_in("grgalex/nvshare#27")
def test_no_allocation_slips_by_while_another_thread_starts_libgksm(
    stack: Stack, gpu: SimulatedGpu, tmp_path: Path
) -> None:
    flags = (str(gpu.driver), "-ldl", "-pthread")
    program = compile_c(tmp_path / "threads", [PROGRAMS / "threads.c"], *flags)
    for _ in range(10):
        run = subprocess.run(
            [program], env=stack.environment(), capture_output=True, text=True, check=False,
            timeout=60,
        )  # fmt: skip
        assert (run.returncode, run.stderr, run.stdout) == (0, "", "16 pages\n")


def runtime_library(name: str) -> Path:
    found = sorted(Path(sys.prefix).glob(f"lib/python*/site-packages/nvidia/*/lib/{name}"))
    if not found:
        pytest.skip(f"the package nvidia-cuda-runtime with {name} is not installed")
    return found[0]


@pytest.fixture(params=["libcudart_static.a", "libcudart.so.13"])
def runtime_program(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A program of the real CUDA runtime."""
    library = runtime_library(request.param)
    flags = (str(library), f"-Wl,-rpath,{library.parent}", "-ldl", "-lrt", "-lpthread")
    return compile_c(tmp_path / "runtime", [PROGRAMS / "runtime.c"], *flags)


def run_runtime(program: Path, **environment: str) -> str:
    variables = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "LD_LIBRARY_PATH")}
    run = subprocess.run(
        [program],
        env=variables | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return run.stdout


@pytest.mark.seen_in("NVlabs/NVBit#134")
def test_whatever_the_cuda_runtime_looks_up_it_gets_from_libgksm(
    runtime_program: Path, libgksm: Path, gpu: SimulatedGpu, tmp_path: Path
) -> None:
    """Also one that is linked into the program: the dynamic linker tells of each look-up."""
    audit = compile_c(tmp_path / "audit.so", [PROGRAMS / "audit.c"], "-shared")
    seen = tmp_path / "seen"
    run_runtime(
        runtime_program,
        **gpu.environment(),
        LD_PRELOAD=str(libgksm.absolute()),
        GKSM_SOCKET="/nonexistent",
        LD_AUDIT=str(audit),
        AUDIT=str(seen),
    )
    found = [line.split() for line in seen.read_text().splitlines()]
    by_runtime = [(name, file) for who, name, file in found if "libgksm.so" not in who]
    assert {"cuDriverGetVersion", "cuGetProcAddress_v2"} <= {name for name, _ in by_runtime}
    assert {Path(file).name for _, file in by_runtime} == {"libgksm.so"}


def test_the_cuda_runtime_says_without_a_driver_what_it_says_without_libgksm(
    runtime_program: Path, libgksm: Path
) -> None:
    hooked = run_runtime(runtime_program, LD_PRELOAD=str(libgksm), GKSM_DRIVER="/nonexistent")
    assert "insufficient" in hooked
    try:
        plain = run_runtime(runtime_program)
    except subprocess.CalledProcessError:
        pytest.skip("this machine has a driver")
    if "insufficient" in plain:
        assert hooked == plain


@pytest.mark.seen_in("beclab/Olares#2687")
def test_the_cuda_runtime_comes_as_far_with_libgksm_as_without(
    runtime_program: Path, libgksm: Path, gpu: SimulatedGpu
) -> None:
    """simcuda has none of the driver's private tables, so the runtime stops there; until then it
    has looked up several hundred functions."""
    environment = gpu.environment()
    plain = run_runtime(runtime_program, **environment)
    hooked = run_runtime(
        runtime_program, **environment, LD_PRELOAD=str(libgksm), GKSM_SOCKET="/nonexistent"
    )
    assert plain == hooked
    assert "driver version 0" not in plain
