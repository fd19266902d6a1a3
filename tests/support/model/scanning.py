# SPDX-License-Identifier: Apache-2.0
"""How equal pages are looked for in a run: when a step says so, and completely."""

from __future__ import annotations

import os

from gksm_bench.stack import DOMAIN, Stack

from tests.support.control import ctl, must

# gksm.toml: nothing scans but the step.
CONFIG = """
[scan]
run = false
stable_hashes = 2
zero_pages = true
"""
RULES = [[DOMAIN, "--match", f"uid={os.getuid()}", "--share", "weights,kv,other"]]


def scan(stack: Stack) -> None:
    """Every page that stays the same is merged in every process, one after another."""
    must(stack, "scan", "now")


def scan_beside_frozen(stack: Stack, pid: int) -> None:
    """The same where one process cannot take part; it is waited for in vain, and named."""
    # Long enough for all others on a busy machine: who is late misses the rest.
    done = ctl(stack, "scan", "now", "--wait", "6")
    assert done.status == 1, done.stdout
    assert f"process {pid} did not finish" in done.stderr, done.stderr
