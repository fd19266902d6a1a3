# SPDX-License-Identifier: Apache-2.0
"""Runs cuda-python's public tests of the driver bindings on simcuda.

``python tests/conformance/run.py --tests DIR [--with-libgksm]``; see README.md for what
DIR is. Exits 0 only if every test of passes.txt passes and at least nine in ten of
all tests that are not excluded do.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gksm_bench.processes import ChildError
from gksm_bench.simgpu import simulated_gpu
from gksm_bench.stack import Stack

Environment = dict[str, str]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WANTED = 0.9
MODULES = ("test_cuda.py", "test_interoperability.py", "test_kernelParams.py")
VRAM = 4 << 30


class ConformanceError(Exception):
    """The tests could not be run; the text says why and what to do."""


@dataclass(frozen=True)
class Lists:
    """Test ids as the repository keeps them."""

    passes: frozenset[str]
    fails: frozenset[str]
    excluded: frozenset[str]

    @classmethod
    def read(cls, folder: Path) -> Lists:
        """Read passes.txt, fails.txt and excluded.txt."""
        return cls(*(ids(folder / f"{name}.txt") for name in ("passes", "fails", "excluded")))

    def is_excluded(self, test: str) -> bool:
        """A whole module can be excluded by its name."""
        return test in self.excluded or test.split("::", maxsplit=1)[0] in self.excluded


@dataclass
class Results:
    """What a run found, by outcome."""

    outcomes: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read what the plugin wrote; the worst outcome of a test counts."""
        results = cls()
        for line in path.read_text().splitlines():
            outcome, test = line.split(" ", 1)
            if results.outcomes.get(test) != "failed":
                results.outcomes[test] = outcome
        return results

    def of(self, outcome: str) -> set[str]:
        """The tests that ended so."""
        return {test for test, found in self.outcomes.items() if found == outcome}


def ids(path: Path) -> frozenset[str]:
    """The first word of each line that is neither empty nor a comment."""
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return frozenset(line.split()[0] for line in lines if line)


@contextmanager
def environment(build: Path, folder: Path, tests: Path, *, libgksm: bool) -> Iterator[Environment]:
    """For the process that runs the tests; with libgksm, gksmd and the vault run beside it."""
    with ExitStack() as undo:
        try:
            gpu = undo.enter_context(simulated_gpu(build, vram=VRAM))
            variables = gpu.environment()
            if libgksm:
                variables = undo.enter_context(Stack(gpu)).environment()
        except ChildError as error:
            raise ConformanceError(str(error)) from None
        yield {
            **variables,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "bench"), str(ROOT / "daemon")]),
            "CONFORMANCE_TESTS": str(tests),
            "CONFORMANCE_RESULTS": str(folder / "results"),
        }


def run_tests(build: Path, tests: Path, lists: Lists, *, libgksm: bool, seconds: int) -> Results:
    """Run every module that is not excluded as a whole, in one process."""
    folder_of_tests = tests / "cuda_bindings" / "tests"
    modules = [
        name for name in MODULES if name not in lists.excluded and (folder_of_tests / name).exists()
    ]
    if "test_cuda.py" not in modules:
        raise ConformanceError(f"{folder_of_tests} has no test_cuda.py: see the README")
    with (
        tempfile.TemporaryDirectory(prefix="conformance-") as made,
        environment(build, Path(made), tests, libgksm=libgksm) as variables,
    ):
        folder = Path(made)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "tests.conformance.plugin"),
                *("-p", "no:cacheprovider", "--tb=line", "-rN", *modules),
            ],
            cwd=folder_of_tests,
            env=variables,
            timeout=seconds,
            check=False,
        )
        results = folder / "results"
        if not results.exists():
            raise ConformanceError(f"pytest ended with {done.returncode} before any test ran")
        if done.returncode not in (0, 1):
            print(f"pytest ended with {done.returncode}: tests behind the last one are missing")
        return Results.read(results)


def judge(results: Results, lists: Lists) -> int:
    """Print the sum, and what differs from the lists. The exit status."""
    counted = {test for test in results.outcomes if not lists.is_excluded(test)}
    passed = results.of("passed") & counted
    failed = results.of("failed") & counted
    broken = sorted(lists.passes - passed)
    ratio = len(passed) / max(len(passed) + len(failed), 1)
    for test in broken:
        print(f"{results.outcomes.get(test, 'missing')}, but listed as passing: {test}")
    for test in sorted(passed - lists.passes):
        print(f"passes, but is not listed: {test}")
    for test in sorted(failed - lists.fails):
        print(f"fails, but is not listed: {test}")
    print(
        f"{len(passed)} of {len(passed) + len(failed)} pass ({ratio:.1%}), "
        f"{len(counted) - len(passed) - len(failed)} skipped, "
        f"{len(results.outcomes) - len(counted)} excluded"
    )
    return 1 if broken or ratio < WANTED else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, run and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=Path, required=True, help="a checkout of cuda-python")
    parser.add_argument("--with-libgksm", action="store_true", help="with libgksm and its daemons")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--timeout", type=int, default=600, metavar="SECONDS")
    options = parser.parse_args(arguments)
    lists = Lists.read(HERE)
    try:
        results = run_tests(
            options.build,
            options.tests.absolute(),
            lists,
            libgksm=options.with_libgksm,
            seconds=options.timeout,
        )
    except (ConformanceError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return 1
    return judge(results, lists)


if __name__ == "__main__":
    sys.exit(main())
