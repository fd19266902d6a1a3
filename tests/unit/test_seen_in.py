# SPDX-License-Identifier: Apache-2.0
"""What others have met in public has a test here, and says so (tests/seen_in.toml)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import tomli

TESTS = Path(__file__).parents[1]
REFERENCE = re.compile(r"[\w.-]+/[\w.-]+#\d+")
TESTED = {"here", "gpu"}


@dataclass(frozen=True)
class Row:
    number: int
    references: list[str]
    symptom: str
    tested: str


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [Row(**row) for row in tomli.loads((TESTS / "seen_in.toml").read_text())["row"]]


def references_of(function: ast.FunctionDef) -> Iterator[str]:
    """The arguments of @pytest.mark.seen_in."""
    for mark in function.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.seen_in":
            for argument in mark.args:
                assert isinstance(argument, ast.Constant), "a reference must be a plain text"
                yield argument.value


@pytest.fixture(scope="module")
def carried() -> dict[str, list[str]]:
    """Reference to the tests that carry it; without those that need a real GPU."""
    found: dict[str, list[str]] = {}
    for path in {*TESTS.rglob("test_*.py")} - {*(TESTS / "gpu").iterdir()}:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                for reference in references_of(node):
                    assert node.name.startswith("test_"), f"{node.name} is no test"
                    found.setdefault(reference, []).append(node.name)
    return found


def test_every_symptom_that_can_be_shown_here_has_a_test(
    rows: list[Row], carried: dict[str, list[str]]
) -> None:
    missing = [
        f"{row.number} {reference}: {row.symptom}"
        for row in rows
        for reference in row.references
        if row.tested == "here" and reference not in carried
    ]
    assert missing == []


def test_every_reference_that_a_test_carries_is_on_the_list(
    rows: list[Row], carried: dict[str, list[str]]
) -> None:
    assert set(carried) - {reference for row in rows for reference in row.references} == set()


def test_the_list_names_each_symptom_once_and_says_where_it_is_tested(rows: list[Row]) -> None:
    assert len(rows) == 40
    assert len({row.number for row in rows}) == len(rows)
    references = [reference for row in rows for reference in row.references]
    assert len(set(references)) == len(references)
    assert [r for r in references if not REFERENCE.fullmatch(r)] == []
    assert {row.tested for row in rows} <= TESTED
    assert all(row.symptom.endswith(".") for row in rows)
