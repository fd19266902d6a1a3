# SPDX-License-Identifier: Apache-2.0
"""The table of page states that libgksm/src/page.h opens with is what the code does.

The table in the comment is read as a person reads it, and every cell of it becomes a test
against the compiled rule.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
from support.compile import ROOT, compile_c

PAGE_H = ROOT / "libgksm/src/page.h"
WAIT = "wait"


class Rule(ctypes.Structure):
    """struct gksm_page_rule of page.h."""

    _fields_ = (
        ("verdict", ctypes.c_uint8),
        ("next", ctypes.c_uint8),
        ("guard_state", ctypes.c_uint8),
    )


def names(macro: str) -> list[str]:
    """The X-macro list in page.h, in its order."""
    text = PAGE_H.read_text()
    body = re.search(rf"#define {macro}\(X\)(.*?)\n\n", text, re.S)
    assert body is not None
    return re.findall(r"X\((\w+)\)", body.group(1))


def table() -> dict[tuple[str, str], str]:
    """(state, event) -> cell, from the opening comment."""
    lines = [line[2:].strip() for line in PAGE_H.read_text().splitlines() if line.startswith(" *")]
    start = next(i for i, line in enumerate(lines) if line.startswith("UNBACKED  FILLING"))
    states = lines[start].split()
    cells = {}
    for line in lines[start + 1 :]:
        if not line:
            break
        event, *row = line.split()
        assert len(row) == len(states), f"row {event} has {len(row)} cells"
        cells |= {(state, event): cell for state, cell in zip(states, row, strict=True)}
    return cells


def guard_states() -> dict[str, str]:
    """state -> state byte, from the first table of the opening comment."""
    found = {}
    for line in PAGE_H.read_text().splitlines():
        match = re.match(r" \*   ([A-Z]+) +\S.* (PASS|HOLD_ALL|HOLD_WRITES)$", line)
        if match:
            found[match.group(1)] = match.group(2)
    return found


STATES = names("GKSM_PAGE_STATES")
EVENTS = names("GKSM_PAGE_EVENTS")
BYTES = {"PASS": 0, "HOLD_WRITES": 1, "HOLD_ALL": 2}
VERDICTS = {"go": 0, "=": 1, WAIT: 2, "-": 3}


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = compile_c(
        tmp_path_factory.mktemp("rules") / "page.so",
        [ROOT / "libgksm/src/page.c"],
        "-shared",
        f"-I{ROOT}/libgksm/include",
        f"-I{ROOT}/libgksm/src",
    )
    loaded = ctypes.CDLL(str(library))
    loaded.gksm_page_rule.restype = Rule
    loaded.gksm_page_rule.argtypes = [ctypes.c_int, ctypes.c_int]
    loaded.gksm_page_guard_state.restype = ctypes.c_uint8
    return loaded


def test_the_table_names_every_event_and_every_state_but_the_two_ends():
    cells = table()
    assert {event for _, event in cells} == set(EVENTS)
    assert {state for state, _ in cells} == set(STATES) - {"FREE", "LOST"}


@pytest.mark.parametrize(("state", "event"), sorted(table()))
def test_what_the_table_says_of_a_page_happens(rules: ctypes.CDLL, state: str, event: str):
    cell = table()[state, event].removesuffix("/c")
    rule = rules.gksm_page_rule(STATES.index(state), EVENTS.index(event))
    verdict = cell if cell in VERDICTS else "go"
    assert rule.verdict == VERDICTS[verdict]
    if verdict == "go":
        assert STATES[rule.next] == cell
        assert rule.guard_state == BYTES[guard_states()[cell]]


@pytest.mark.parametrize("event", EVENTS)
def test_a_free_page_takes_no_event_and_a_lost_one_only_its_release(rules: ctypes.CDLL, event: str):
    free = rules.gksm_page_rule(STATES.index("FREE"), EVENTS.index(event))
    lost = rules.gksm_page_rule(STATES.index("LOST"), EVENTS.index(event))
    assert free.verdict == VERDICTS["-"]
    if event == "RELEASE":
        assert (lost.verdict, STATES[lost.next]) == (VERDICTS["go"], "FREE")
    else:
        assert lost.verdict == VERDICTS["="]


def test_the_guard_holds_what_the_mapping_does_not_allow(rules: ctypes.CDLL):
    said = guard_states()
    assert set(said) == set(STATES)
    for state, name in said.items():
        assert rules.gksm_page_guard_state(STATES.index(state)) == BYTES[name], state


def test_nothing_outside_the_table_moves_a_page(rules: ctypes.CDLL):
    for state, event in ((len(STATES), 0), (0, len(EVENTS)), (-1, 0), (0, -1)):
        assert rules.gksm_page_rule(state, event).verdict == VERDICTS["-"]


def test_the_table_stands_in_no_other_place():
    sources = [*Path(ROOT, "libgksm").rglob("*.[ch]"), *Path(ROOT, "docs").rglob("*.md")]
    holders = [path for path in sources if "UNBACKED  FILLING   LOADING" in path.read_text()]
    assert holders == [PAGE_H]
