# SPDX-License-Identifier: Apache-2.0
"""Which guard an instance uses: the strongest that it offers and its domain allows."""

from __future__ import annotations

from gksmd.config import GuardName
from gksmd.protocol import lib

OFF: int = lib.GKSM_GUARD_OFF
SEAL: int = lib.GKSM_GUARD_SEAL
OPTIMISTIC: int = lib.GKSM_GUARD_OPTIMISTIC
FAULT: int = lib.GKSM_GUARD_FAULT

# Strongest first. optimistic is never chosen unless the operator asked for it.
_ALLOWED: dict[GuardName, tuple[int, ...]] = {
    "auto": (FAULT, SEAL),
    "fault": (FAULT,),
    "optimistic": (FAULT, OPTIMISTIC, SEAL),
    "seal": (SEAL,),
    "off": (),
}


def choose_guard(offered: int, wanted: GuardName) -> int:
    """An ``enum gksm_guard``; ``offered`` has bit (1 << guard) for each it could use."""
    return next((guard for guard in _ALLOWED[wanted] if offered >> guard & 1), OFF)


def why_no_guard(wanted: GuardName) -> str:
    """A clause for people, where ``choose_guard`` finds none."""
    if wanted == "off":
        return "the guard of its domain is off"
    names = {FAULT: "fault", SEAL: "seal", OPTIMISTIC: "optimistic"}
    allowed = " or ".join(names[guard] for guard in _ALLOWED[wanted])
    return f"its domain needs the guard {allowed}, which the process does not offer"
