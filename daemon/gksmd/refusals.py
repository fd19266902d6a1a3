# SPDX-License-Identifier: Apache-2.0
"""Whom gksmd turned away at the greeting, and why: for ``explain``.

They ask again and again, so only the last word to each is kept, and of few of them: what
they ask for costs nobody memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gksmd.model import Identity, ProcessKey

KEPT = 64


@dataclass(slots=True)
class Refusals:
    """The last of them, oldest first."""

    _reasons: dict[ProcessKey, tuple[Identity, str]] = field(default_factory=dict)

    def note(self, identity: Identity, reason: str) -> None:
        """A process was turned away."""
        self.forget(identity)
        self._reasons[identity.key] = (identity, reason)
        if len(self._reasons) > KEPT:
            del self._reasons[next(iter(self._reasons))]

    def forget(self, identity: Identity) -> None:
        """A process is served, or has ended."""
        self._reasons.pop(identity.key, None)

    def why(self, pid: int, uid: int | None) -> str:
        """The reason, if it is a process of this user (None: of any); else ""."""
        for identity, reason in reversed(self._reasons.values()):
            if identity.pid == pid and uid in (None, identity.uid):
                return reason
        return ""
