# SPDX-License-Identifier: Apache-2.0
"""Libraries beside libgksm, and programs that use no GPU, work as without it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.compile import compile_c
from tests.support.preload import CLEARED

HERE = Path(__file__).parent / "neighbours"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that finds the other libraries by its own run path, and they each other."""
    folder = tmp_path_factory.mktemp("neighbours")
    near = folder / "near"
    near.mkdir()
    worker = [HERE / "worker.c"]
    compile_c(near / "libcudnn_ops.so.9", worker, "-shared")
    compile_c(near / "libnvidia-ml.so.1", worker, "-shared")
    rpath = "-Wl,-rpath,$ORIGIN"
    compile_c(near / "libcudnn.so.9", [HERE / "front.c"], "-shared", "-ldl", rpath)
    return compile_c(folder / "program", [HERE / "program.c"], "-ldl", f"{rpath}/near")


def both(command: list[str | Path], libgksm: Path) -> list[str]:
    """What the command prints without libgksm, and with it. It must end well."""
    plain = {k: v for k, v in os.environ.items() if k not in CLEARED}
    hooked = plain | {"LD_PRELOAD": str(libgksm), "GKSM_SOCKET": "/nonexistent/gksm.sock"}
    outputs = []
    for environment in (plain, hooked):
        run = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=30
        )
        assert (run.returncode, run.stderr) == (0, ""), run
        outputs.append(run.stdout)
    return outputs


@pytest.fixture
def libgksm(build: Path) -> Path:
    return (build / "libgksm.so").absolute()


@pytest.mark.seen_in("sgl-project/sglang#36643")
def test_a_program_starts_on_a_machine_that_has_nothing_of_cuda(libgksm: Path) -> None:
    plain, hooked = both(["/bin/sh", "-c", "echo started; exec /bin/echo again"], libgksm)
    assert plain == hooked == "started\nagain\n"


@pytest.mark.seen_in("Project-HAMi/HAMi-core#215")
def test_a_function_whose_name_begins_with_cu_is_not_sent_back_to_itself(
    program: Path, libgksm: Path
) -> None:
    plain, hooked = both([program, "cudnn"], libgksm)
    assert plain == hooked == "cudnnCreate 11 cublasCreate_v2 12\n"


@pytest.mark.seen_in("SX-Aurora/Vftrace#44")
def test_libraries_are_found_and_not_found_as_without_libgksm(program: Path, libgksm: Path) -> None:
    """By the run path of whoever loads them, with the same errors and flags."""
    plain, hooked = both([program, "loading"], libgksm)
    assert plain == hooked
    assert "libthereisnone.so: cannot open shared object file" in plain
    assert "local: not seen" in plain
    assert "near/libcudnn.so.9" in plain
    assert "twice the same: 1" in plain


@pytest.mark.seen_in("tkestack/gpu-manager#159")
def test_the_functions_of_nvml_are_found_as_without_libgksm(program: Path, libgksm: Path) -> None:
    plain, hooked = both([program, "nvml"], libgksm)
    assert plain == hooked
    assert "nvmlDeviceGetCount_v2: 0, 8\n" in plain
    assert "nvmlDeviceGetCount: Function Not Found\n" in plain, "the stand-in has it, too"
