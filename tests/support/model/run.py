# SPDX-License-Identifier: Apache-2.0
"""One run: a list of steps on a stack of its own, checked as it goes and at its end."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.model.checks import account, all_leave, compare
from tests.support.model.ops import Op
from tests.support.model.steps import STEPS
from tests.support.model.world import World

CHECK_EVERY = 40


class DifferenceError(AssertionError):
    """The processes and the model do not agree; says how to see it again."""


@dataclass
class Plan:
    """All that a run depends on."""

    seed: int
    processes: int
    ops: list[Op]

    def save(self, path: Path, trace: list[str]) -> None:
        """Keep it, with what its steps came to."""
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {
            "seed": self.seed,
            "processes": self.processes,
            "ops": [list(op) for op in self.ops],
            "trace": trace,
        }
        path.write_text(json.dumps(kept, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Plan:
        """What `save` kept."""
        kept = json.loads(path.read_text())
        return cls(kept["seed"], kept["processes"], [Op(*op) for op in kept["ops"]])


@dataclass
class Outcome:
    """What a run came to: one account for each check, and what each step did."""

    accounts: list[dict[str, Any]] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)


def run(build: Path, logs: Path, plan: Plan) -> Outcome:
    """Carry out the plan. DifferenceError says what differed, and after which steps."""
    outcome = Outcome()
    try:
        with World(build, logs, plan.processes) as world:
            for number, op in enumerate(plan.ops, 1):
                outcome.trace.append(f"{number}: {op.kind} …")
                outcome.trace[-1] = f"{number}: {apply(world, op)}"
                if number % CHECK_EVERY == 0 or number == len(plan.ops):
                    outcome.accounts.append(check(world, kernels=number % (2 * CHECK_EVERY) == 0))
            outcome.trace.append("everybody leaves")
            all_leave(world)
    except Exception as error:
        path = Path("build") / "model" / f"seed-{plan.seed}-{os.getpid()}-{len(outcome.trace)}.json"
        plan.save(path, outcome.trace)
        steps = "\n  ".join(outcome.trace[-CHECK_EVERY:])
        raise DifferenceError(
            f"{error}\nseed {plan.seed}, {plan.processes} processes, step {len(outcome.trace)} "
            f"of {len(plan.ops)}; the last steps:\n  {steps}\n"
            f"again: build/venv/bin/python -m tests.support.model {path}"
        ) from error
    return outcome


def difference(first: Outcome, second: Outcome) -> str:
    """Where two runs of one plan came to different accounts first; empty if they did not."""
    for number, (one, two) in enumerate(zip(first.accounts, second.accounts, strict=True)):
        if one == two:
            continue
        counts = {
            f"{name} {key}": (count, two["counts"][name][key])
            for name, counted in one["counts"].items()
            for key, count in counted.items()
            if count != two["counts"][name][key]
        }
        steps = "\n  ".join(first.trace[number * CHECK_EVERY : (number + 1) * CHECK_EVERY])
        same = "the same" if one["maps"] == two["maps"] else "different"
        return f"{counts}, {same} pages shared, after the steps\n  {steps}"
    return ""


def apply(world: World, op: Op) -> str:
    """Carry out one step; whoever did something has told gksmd all of it afterwards."""
    process = world.awake(op.who)
    done = STEPS[op.kind](world, process, op)
    if process in world.processes and not process.frozen:
        process.remote.settle()
    return f"{process.name} {op.kind} {done}".rstrip()


def check(world: World, *, kernels: bool) -> dict[str, Any]:
    """The bytes of all, then the accounts."""
    for process in world.processes:
        if not process.frozen:
            compare(process, kernels=kernels)
    return account(world)
