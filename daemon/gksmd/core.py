# SPDX-License-Identifier: Apache-2.0
"""What the admin and runtime sockets may do to the daemon.

Everything they read is in ``model.State``; everything they change goes through here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from gksmd.config import Scan
from gksmd.domains import Decision, Domain, Subject
from gksmd.model import Instance, Load, Sharing, State, Uuid

# Gives a bare process its domain. Never raises: one that no rule matches is alone.
Decide = Callable[[Subject], Decision]
# The configured domains in force, by name.
Configured = Callable[[], Mapping[str, Domain]]


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

    def domains_changed(self) -> None:
        """The configured domains are others now: what is kept for one that is gone goes."""

    async def drop_warm(self, loads: list[Load]) -> int:
        """Drop the warm pages of these loads; the bytes, once the vault has let go of them."""

    def pin(self, load: Load, pinned: bool) -> None:
        """Keep a load whatever the budgets are, or no longer: then it may go at once."""

    async def drain(self, uuid: Uuid | None) -> None:
        """Let go of a GPU (None: all, unknown ones too) until ``undrain``, for good.

        Returns once the vault has let go of what nobody maps, or does not answer.
        OSError if it cannot be remembered for the next start; it holds all the same.
        """

    def undrain(self, uuid: Uuid | None) -> None:
        """Share again on a GPU (None: all). OSError as for ``drain``."""

    def vault_pid(self) -> int:
        """The process of gksm-vault; 0: it does not answer."""
