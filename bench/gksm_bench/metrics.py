# SPDX-License-Identifier: Apache-2.0
"""Reads gksmd's Prometheus metrics."""

from __future__ import annotations

import socket
import urllib.request


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def read_metrics(port: int) -> dict[str, float]:
    """The sum of each metric over its labels."""
    totals: dict[str, float] = {}
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                key = name.partition("{")[0]
                totals[key] = totals.get(key, 0.0) + float(value)
    return totals
