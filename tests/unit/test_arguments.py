# SPDX-License-Identifier: Apache-2.0
"""Every entry point hands its arguments on unchanged while libgksm passes through."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.compile import NEWEST, compile_c
from tests.support.prototypes import caller, prototypes, recorder

# They look into what the pointers point at; test_loading.py has them.
NOT_CALLED = {"cuGetProcAddress", "cuGetProcAddress_v2", "cuGetProcAddress_v2_ptsz"}


def test_before_cu_init_every_argument_of_every_function_reaches_the_driver_unchanged(
    build: Path, tmp_path: Path
) -> None:
    functions = prototypes(NEWEST)
    (tmp_path / "driver.c").write_text(recorder(functions))
    (tmp_path / "caller.c").write_text(caller(functions, NOT_CALLED))
    driver = compile_c(tmp_path / "driver.so", [tmp_path / "driver.c"], "-shared", "-w")
    program = compile_c(tmp_path / "caller", [tmp_path / "caller.c"], "-ldl", "-w")
    environment = os.environ | {
        "LD_PRELOAD": str(build / "libgksm.so"),
        "GKSM_DRIVER": str(driver),
    }
    run = subprocess.run(
        [program, driver], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    checked = len(functions) - len(NOT_CALLED & {function.name for function in functions})
    assert run.stdout.splitlines()[-1:] == [f"{checked} checked, 0 wrong"], run.stdout
    assert run.returncode == 0
