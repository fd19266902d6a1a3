# SPDX-License-Identifier: Apache-2.0
"""The switch of the scanner's step.

A test fails as long as SCANS does not say whether `gksmctl scan now` exists.
"""

from __future__ import annotations

from gksm_bench.stack import Stack

from tests.support.control import must

SCANS = False
# gksm.toml: nothing scans but the step, and one look makes a page stable.
CONFIG = ""


def scan(stack: Stack) -> None:
    """One pass in every process of the stack, one after another; returns when all are done."""
    must(stack, "scan", "now")
