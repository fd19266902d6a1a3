# SPDX-License-Identifier: Apache-2.0
"""What the admin and runtime sockets may do to the daemon.

Everything they read is in ``model.State``; everything they change goes through here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from gksmd.config import Scan
from gksmd.domains import Decision, Subject
from gksmd.model import Instance, Sharing, State

# Gives a bare process its domain. Never raises: one that no rule matches is alone.
Decide = Callable[[Subject], Decision]


class Core(Protocol):
    """The operations of a running daemon. All are called on the event loop."""

    state: State

    @property
    def scan(self) -> Scan:
        """The scanner's settings in force."""

    def open_container(self, container_id: str, decision: Decision) -> Path:
        """Make the container's own directory and socket; return the socket's path.

        The caller has checked that the id is a plain file name. Idempotent; a second
        call does not change the decision. OSError if the socket cannot be made.
        """

    def bind_container(self, container_id: str, cgroup: str) -> None:
        """Its processes are in ``cgroup`` or below; no other may use its socket from now on.

        "" or "/": that cannot be told apart on this host.
        """

    def close_container(self, container_id: str) -> None:
        """Close and remove its socket; its processes go when they die. Idempotent."""

    def set_scan(self, settings: Scan) -> int:
        """Put the scanner's settings in force; returns how many instances were told."""

    async def scan_now(self, passes: int, wait_s: float) -> list[Instance]:
        """Have passes made over all instances; see ``Scanning.now``."""

    def set_sharing(
        self,
        sharing: Sharing,
        reason: str,
        *,
        domain: str | None = None,
        container: str | None = None,
    ) -> int:
        """Tell all processes of the domain or container (neither: all) what to do.

        It also holds for those that connect later. Returns how many were told.
        """
