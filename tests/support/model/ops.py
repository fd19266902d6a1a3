# SPDX-License-Identifier: Apache-2.0
"""The steps of a run, as data.

A step names its process, allocation and pages by small numbers that are taken modulo
what there is when it is its turn. So any list of steps can be carried out, and a part of
a list that fails can be tried by itself.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

# How often, of all steps. The first is what hypothesis thinks the simplest.
WEIGHTS = {
    "load": 14,
    "load_stream": 5,
    "load_part": 7,
    "load_halves": 4,
    "load_pinned": 5,
    "alloc": 8,
    "free": 5,
    "memset": 6,
    "memset_part": 3,
    "copy_device": 7,
    "copy_part": 3,
    "kernel_fill": 7,
    "kernel_fill_part": 3,
    "kernel_add": 4,
    "kernel_write": 10,
    "kernel_copy": 4,
    "read": 6,
    "read_behind": 7,
    "overtake": 4,
    "graph": 4,
    "fork": 1,
    "fork_and_try": 1,
    "reap": 1,
    "set_kind": 2,
    "freeze": 1,
    "thaw": 2,
    "kill": 1,
    "scan": 3,
}


class Op(NamedTuple):
    """One step. What the numbers mean is up to the kind."""

    kind: str
    who: int
    where: int
    page: int
    count: int
    value: int


def operations(steps: int) -> st.SearchStrategy[list[Op]]:
    """Lists of exactly so many steps."""
    kinds = [kind for kind, weight in WEIGHTS.items() for _ in range(weight)]
    number = st.integers(0, 15)
    op = st.builds(
        Op,
        kind=st.sampled_from(kinds),
        who=st.integers(0, 3),
        where=number,
        page=st.integers(0, 7),
        count=st.integers(1, 8),
        value=number,
    )
    return st.lists(op, min_size=steps, max_size=steps)
