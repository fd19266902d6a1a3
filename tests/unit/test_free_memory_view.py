# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of cuMemGetInfo's answer, over all that can happen to a GPU meanwhile."""

from __future__ import annotations

import ctypes
from ctypes import c_bool, c_uint32, c_uint64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.compile import ROOT, compile_c

SECOND = 1_000_000_000
QUIET = 60 * SECOND
LONGEST = 600 * SECOND
TOTAL = 1000


class View(ctypes.Structure):
    _fields_ = (
        ("lock", c_uint32),
        ("known", c_bool),
        ("others", c_uint64),
        ("since", c_uint64),
        ("active", c_uint64),
    )


class Figures(ctypes.Structure):
    _fields_ = tuple(
        (name, c_uint64)
        for name in ("total", "free", "held", "warm", "virtual", "backed", "foreign", "now")
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("view")
    include = [f"-I{ROOT / path}" for path in ("libgksm/include", "libgksm/src", "build/gen")]
    path = compile_c(folder / "view.so", [ROOT / "libgksm/src/view.c"], "-shared", *include)
    code = ctypes.CDLL(str(path))
    code.gksm_view_free.restype = c_uint64
    return code


class Program:
    """One program's view of a GPU of TOTAL units that others use too."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.view = View()
        self.now = SECOND
        self.free, self.held = TOTAL, 0
        self.virtual = self.backed = self.foreign = 0

    def figures(self) -> Figures:
        return Figures(
            TOTAL, self.free, self.held, 0, self.virtual, self.backed, self.foreign, self.now
        )

    def ask(self) -> int:
        figures = self.figures()
        return int(self.library.gksm_view_free(ctypes.byref(self.view), ctypes.byref(figures)))

    def work(self) -> None:
        self.view.active = self.now


@pytest.fixture
def program(library: ctypes.CDLL) -> Program:
    return Program(library)


def test_own_pages_count_in_full_whatever_backs_them(program: Program) -> None:
    assert program.ask() == TOTAL
    program.virtual = 100
    assert program.ask() == TOTAL - 100
    program.backed, program.free = 60, TOTAL - 60
    assert program.ask() == TOTAL - 100
    program.backed = 100  # the last 40 were attached: nothing was taken
    assert program.ask() == TOTAL - 100
    program.virtual = program.backed = 0
    assert program.ask() == TOTAL - 0 - 60  # the others hold what it had in common with them


def test_what_others_take_shows_at_once(program: Program) -> None:
    program.ask()
    program.free -= 300
    program.held = 50
    assert program.ask() == TOTAL - 350


@pytest.mark.parametrize(
    ("quiet", "started", "shows"),
    [(QUIET - 1, QUIET + 1, False), (QUIET + 1, QUIET + 1, True), (QUIET + 1, QUIET - 1, False)],
)
def test_what_others_give_back_shows_when_the_program_has_been_quiet(
    program: Program, quiet: int, started: int, shows: bool
) -> None:
    program.now = start = 10 * LONGEST
    program.free = 400
    assert program.ask() == 400
    program.free = 700
    program.now = start + started
    program.view.active = program.now - quiet
    assert program.ask() == (700 if shows else 400)


def test_a_program_that_never_rests_sees_it_after_ten_minutes(program: Program) -> None:
    program.free = 400
    program.ask()
    program.free = 700
    for _ in range(11):
        program.now += LONGEST // 10 - 1
        program.work()
        before = program.ask()
    assert before == 700


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["alloc", "back", "attach", "release", "others take", "others give", "promise", "keep",
             "foreign", "foreign back"]
        ),
        st.integers(1, 300),
    ),
    max_size=60,
)  # fmt: skip


@given(steps=STEPS)
def test_while_it_starts_free_memory_rises_only_by_what_it_gives_back(
    library: ctypes.CDLL, steps: list[tuple[str, int]]
) -> None:
    program = Program(library)
    last = program.ask()
    others = 0
    for step, asked in steps:
        gave, count = 0, asked
        match step:
            case "alloc":
                program.virtual += count
            case "back":  # private memory of its own
                count = min(count, program.virtual - program.backed, program.free)
                program.backed, program.free = program.backed + count, program.free - count
            case "attach":  # mapped, and nothing taken
                program.backed += min(count, program.virtual - program.backed)
            case "release":
                gave = min(count, program.virtual)
                program.virtual -= gave
                freed = min(gave, program.backed)
                program.backed -= freed
                program.free = min(program.free + freed, TOTAL - others - program.foreign)
            case "others take":
                count = min(count, program.free)
                others, program.free = others + count, program.free - count
            case "others give":  # freed, merged or ended
                count = min(count, others)
                others, program.free = others - count, program.free + count
            case "promise":
                program.held += count
            case "keep":
                program.held -= min(count, program.held)
            case "foreign":
                count = min(count, program.free)
                program.foreign, program.free = program.foreign + count, program.free - count
            case "foreign back":
                gave = min(count, program.foreign)
                program.foreign, program.free = program.foreign - gave, program.free + gave
        program.work()
        program.now += SECOND
        told = program.ask()
        assert told <= last + gave
        # Nor is more told than could be allocated.
        unbacked = program.virtual - program.backed
        assert told <= max(program.free - program.held - unbacked, 0)
        last = told


@given(st.lists(st.integers(0, 2**64 - 1), min_size=7, max_size=7))
def test_no_figures_make_it_wrap_around(library: ctypes.CDLL, numbers: list[int]) -> None:
    view, figures = View(), Figures(*(n >> 2 for n in numbers))
    told = library.gksm_view_free(ctypes.byref(view), ctypes.byref(figures))
    assert told <= figures.total
