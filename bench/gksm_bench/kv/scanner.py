# SPDX-License-Identifier: Apache-2.0
"""The scanner, as far as gksmctl offers one."""

from __future__ import annotations

from gksmd.ctl.main import main

from gksm_bench.stack import Stack

# gksm.toml: nothing scans but `scan_now`.
CONFIG = ""


def offered() -> bool:
    """Whether this gksmctl has `scan now`."""
    command = main.commands.get("scan")
    return command is not None and "now" in getattr(command, "commands", {})


def scan_now(stack: Stack) -> None:
    """One pass in every process of the stack; returns when all are done."""
    stack.gksmctl("scan", "now")
