# SPDX-License-Identifier: Apache-2.0
"""What pytest needs to run cuda-python's tests without its source tree installed.

Loaded with ``-p``, in the process that runs the tests. CONFORMANCE_TESTS is the
``--tests`` of the runner, CONFORMANCE_RESULTS the file to write one result a line to.
"""

from __future__ import annotations

import os
from pathlib import Path

import cuda.bindings
import pytest
from cuda.bindings import driver, runtime

TESTS = Path(os.environ["CONFORMANCE_TESTS"])
RESULTS = Path(os.environ["CONFORMANCE_RESULTS"])

# The tests' own helpers are a subpackage that the wheel does not carry.
cuda.bindings.__path__.append(str(TESTS / "cuda_bindings" / "cuda" / "bindings"))


def device_attribute(attribute: int, device: int) -> tuple[runtime.cudaError_t, int | None]:
    """Answers whether a test is to be skipped.

    The tests ask the runtime bindings for that, also where they test the driver
    bindings alone. The driver's own answer is the same, and does not need the runtime.
    """
    driver.cuInit(0)
    error, value = driver.cuDeviceGetAttribute(driver.CUdevice_attribute(int(attribute)), device)
    return runtime.cudaError_t(int(error)), value


runtime.cudaDeviceGetAttribute = device_attribute


def pytest_configure(config: pytest.Config) -> None:
    """Know the marks that the tests' own configuration would declare."""
    config.addinivalue_line("markers", "thread_unsafe: not for several threads at once")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    """Write down each test's outcome as it is known; a crash loses nothing before it."""
    outcome = yield
    report = outcome.get_result()
    if report.when == "call" or report.outcome != "passed":
        with RESULTS.open("a") as results:
            results.write(f"{report.outcome} {item.nodeid}\n")
