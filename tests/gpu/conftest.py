# SPDX-License-Identifier: Apache-2.0
"""The real GPU in place of the simulated one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gksm_bench.demo.realgpu import RealGpu, open_real_gpu
from gksm_bench.stack import Stack

from tests.conftest import MakeRemote
from tests.support.remote import Remote

AUTO = '[guard]\ndefault = "auto"\n'


@pytest.fixture
def real_gpu(build: Path) -> RealGpu:
    return open_real_gpu(build)


@pytest.fixture
def sharers(real_gpu: RealGpu, make_stack: Callable[..., Stack], make_remote: MakeRemote):
    """Makes two processes of one domain under the guard that is named."""

    def make(guard: str) -> tuple[Remote, Remote]:
        stack = make_stack(real_gpu, config=AUTO, guard_options=["--guard", guard])
        return make_remote(stack.environment()), make_remote(stack.environment())

    return make
