# SPDX-License-Identifier: Apache-2.0
"""The names that people see stand in the order of protocol.h's numbers."""

from __future__ import annotations

import pytest
from gksmd.domains import DOMAIN_NAME_MAX, KINDS
from gksmd.explain import UNSHARED
from gksmd.ops import SEVERITIES
from gksmd.protocol import ffi, lib
from gksmd.snapshot import GUARDS


@pytest.mark.parametrize(
    ("prefix", "names"),
    [
        ("GKSM_GUARD_", GUARDS),
        ("GKSM_KIND_", KINDS),
        ("GKSM_", SEVERITIES),
        ("GKSM_UNSHARED_", tuple(name for name, _, _ in UNSHARED)),
    ],
)
def test_names_are_those_of_the_protocol(prefix: str, names: tuple[str, ...]) -> None:
    assert [getattr(lib, prefix + name.upper()) for name in names] == list(range(len(names)))


def test_every_reason_for_a_private_page_can_be_explained() -> None:
    known = [name for name in dir(lib) if name.startswith("GKSM_UNSHARED_")]
    assert len(known) == len(UNSHARED)


def test_domain_names_fit_the_protocol() -> None:
    welcome = dict(ffi.typeof("struct gksm_welcome").fields)
    assert welcome["domain"].type.length == DOMAIN_NAME_MAX + 1
