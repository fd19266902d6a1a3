# SPDX-License-Identifier: Apache-2.0
"""Repeats a run that went wrong: `python -m tests.support.model FILE [--reduce]`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.conftest import build_folder
from tests.support.model.run import DifferenceError, Plan, run


def fails(plan: Plan) -> str:
    """What is wrong; nothing if the run goes well."""
    with tempfile.TemporaryDirectory() as logs:
        try:
            run(build_folder(), Path(logs), plan)
        except DifferenceError as error:
            return str(error)
    return ""


def reduced(plan: Plan) -> Plan:
    """The plan without the steps that it fails without, as far as leaving out parts goes."""
    size = len(plan.ops) // 2
    while size:
        at = 0
        while at < len(plan.ops):
            shorter = Plan(plan.seed, plan.processes, plan.ops[:at] + plan.ops[at + size :])
            if fails(shorter):
                plan = shorter
                print(f"{len(plan.ops)} steps fail", file=sys.stderr, flush=True)
            else:
                at += size
        size //= 2
    return plan


def main() -> int:
    """1 if it goes wrong again."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.model", description=__doc__)
    parser.add_argument("file", type=Path, help="what a failing run left in build/model")
    parser.add_argument("--reduce", action="store_true", help="look for fewer steps that fail")
    options = parser.parse_args()
    plan = Plan.load(options.file)
    wrong = fails(plan)
    if wrong and options.reduce:
        plan = reduced(plan)
        wrong = fails(plan) or wrong
    print(wrong or f"{len(plan.ops)} steps went well")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
