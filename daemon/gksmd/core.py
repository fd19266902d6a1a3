# SPDX-License-Identifier: Apache-2.0
"""What the admin and runtime sockets may do to the daemon.

Everything they read is in ``model.State``; everything they change goes through here.
"""

from __future__ import annotations

from typing import Protocol

from gksmd.model import Assignment, Container, Identity, Sharing, State


class Rules(Protocol):
    """Who may share with whom; ``domains.py`` has it."""

    def assign(self, identity: Identity, container: Container | None) -> Assignment:
        """Give the peer its domain. Never raises: a peer that no rule matches is alone."""


class Core(Protocol):
    """The operations of a running daemon. All are called on the event loop."""

    state: State
    rules: Rules

    def prepare_container(self, container_id: str, facts: dict[str, str]) -> str:
        """Open the container's own socket; return its path. Idempotent.

        The caller has checked that the id is a plain file name. OSError if the socket
        cannot be made.
        """

    def bind_container(self, container_id: str, facts: dict[str, str]) -> None:
        """Add what is known once the container exists. KeyError: it was not prepared."""

    async def forget_container(self, container_id: str) -> None:
        """Close and remove its socket; its processes go when they die. Idempotent."""

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
