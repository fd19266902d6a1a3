# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics as a scraper sees them."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from gksm_bench.stack import Stack
from prometheus_client.parser import text_string_to_metric_families

from tests.support.control import daemon, must
from tests.support.member import member

PAGE = 2 << 20


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def stack(port: int) -> Iterator[Stack]:
    config = f'[bare]\ndefault_domain = "uid"\n[metrics]\nlisten = "127.0.0.1:{port}"'
    with daemon(config=config) as running:
        yield running


def scrape(port: int) -> dict[str, dict[tuple[str, ...], float]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    return {
        family.name: {tuple(sorted(s.labels.values())): s.value for s in family.samples}
        for family in text_string_to_metric_families(text)
    }


def test_a_scrape_counts_shared_and_sharing_as_ksm_does(stack: Stack, port: int) -> None:
    client = stack.run_dir / "gksm.sock"
    with member(client, 1, 2, 3), member(client, 1, 2):
        found = scrape(port)
        assert list(found["gksm_pages_shared"].values()) == [3]
        assert list(found["gksm_pages_sharing"].values()) == [2]
        assert list(found["gksm_saved_bytes"].values()) == [2 * PAGE]
        assert list(found["gksm_instances"].values()) == [2]
        assert found["gksm_published"][()] == 3
        assert found["gksm_vault_up"][()] == 1


def test_names_units_and_labels_are_those_promised(stack: Stack, port: int) -> None:
    with member(stack.run_dir / "gksm.sock", 1):
        url = f"http://127.0.0.1:{port}/metrics"
        text = urllib.request.urlopen(url, timeout=20).read().decode()
    families = list(text_string_to_metric_families(text))
    assert families
    for family in families:
        assert family.name.startswith("gksm_")
        assert family.documentation
        assert not re.search(r"_(ms|kib|mib|mb|pct|percent)$", family.name)
        for sample in family.samples:
            assert set(sample.labels) <= {"gpu", "domain"}


def test_what_is_no_scrape_is_answered_with_an_error_or_closed(stack: Stack, port: int) -> None:
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20)
    for data in (b"garbage\r\n\r\n", b"x" * 100_000, b"POST /metrics HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
            try:
                sock.sendall(data)
                received = sock.recv(1000)
            except ConnectionResetError:
                continue
            assert received == b"" or b" 404 " in received
    assert scrape(port)


def test_metrics_are_off_unless_asked_for() -> None:
    with daemon() as stack:
        assert stack.gksmd is not None
        with open(f"/proc/{stack.gksmd.pid}/net/tcp", encoding="ascii") as table:
            inodes = {line.split()[9] for line in table.readlines()[1:] if line.split()[3] == "0A"}
        own = {re.sub(r"socket:\[(\d+)\]", r"\1", link) for link in sockets_of(stack.gksmd.pid)}
        assert not inodes & own


def sockets_of(pid: int) -> list[str]:
    return [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]


def test_an_address_that_is_taken_stops_only_the_metrics() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with daemon(config=f'[metrics]\nlisten = "127.0.0.1:{port}"') as stack:
            assert must(stack, "status")
            assert "metrics.listen" in stack.log("gksmd").read_text()
