# SPDX-License-Identifier: Apache-2.0
"""A gksmd and vault that tests share which neither kill nor configure them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.agents import Daemon, eventually


@pytest.fixture(scope="session")
def one_daemon() -> Iterator[Daemon]:
    with Daemon() as daemon:
        yield daemon


@pytest.fixture
def daemon(one_daemon: Daemon) -> Daemon:
    """With one domain for all processes of our uid, and nothing left of earlier tests."""
    eventually(
        lambda: not one_daemon.pages() and not one_daemon.ask("status", op="ps"),
        "the end of what an earlier test left",
    )
    return one_daemon
