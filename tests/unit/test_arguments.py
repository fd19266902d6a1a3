# SPDX-License-Identifier: Apache-2.0
"""What an application passes reaches the driver, and what the driver says reaches the
application, for each of the 685 entry points of cuda.h."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.compile import NEWEST, compile_c
from tests.support.prototypes import Prototype, caller, prototypes, recorder

HERE = Path(__file__).parent / "arguments"
# They hand out functions; test_loading.py and test_resolving.py have them.
LOOKUPS = {"cuGetProcAddress", "cuGetProcAddress_v2"}


@pytest.fixture(scope="module")
def functions() -> list[Prototype]:
    return [function for function in prototypes(NEWEST) if function.name not in LOOKUPS]


@pytest.fixture(scope="module")
def programs(
    functions: list[Prototype], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """The calling program and the recording driver."""
    folder = tmp_path_factory.mktemp("arguments")
    (folder / "recorder.c").write_text(recorder(functions))
    (folder / "caller.c").write_text(caller(functions, ()))
    flags = ("-w", "-I", str(HERE))
    driver = compile_c(
        folder / "driver.so", [folder / "recorder.c"], "-shared", "-Wl,-Bsymbolic", *flags
    )
    return compile_c(folder / "caller", [folder / "caller.c"], "-ldl", *flags), driver


def run(build: Path, programs: tuple[Path, Path], mode: str) -> list[str]:
    program, driver = programs
    environment = os.environ | {
        "LD_PRELOAD": str(build / "libgksm.so"),
        "GKSM_DRIVER": str(driver),
        "GKSM_SOCKET": "/nonexistent/gksm.sock",
    }
    result = subprocess.run(
        [program, driver, mode], env=environment, capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert result.stderr == ""
    return result.stdout.splitlines()


def test_before_cu_init_arguments_and_results_pass_unchanged_and_unread(
    build: Path, programs: tuple[Path, Path], functions: list[Prototype]
) -> None:
    assert run(build, programs, "off") == [f"{len(functions)} checked, 0 wrong"]


def test_after_cu_init_calls_on_other_memory_pass_unchanged_once(
    build: Path, programs: tuple[Path, Path], functions: list[Prototype]
) -> None:
    """Each with an error and with success."""
    assert run(build, programs, "on") == [f"{2 * len(functions)} checked, 0 wrong"]
