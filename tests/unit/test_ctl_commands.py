# SPDX-License-Identifier: Apache-2.0
"""gksmctl against a real gksmd: what it shows, and what it does."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gksm_bench.stack import Stack, wait_until

from tests.support.control import alone, ask, ctl, daemon, gksmctl, must
from tests.support.member import member

PAGE = 2 << 20
SELF = f"uid={os.getuid()}"

# The contract of `status --json`, written down apart from the code that makes it.
STATUS = {
    "daemon": {"version": str, "uptime_s": float},
    "gpus": [
        {
            "uuid": str, "name": str, "guard": str, "total_bytes": int, "used_bytes": int,
            "pages_shared": int, "pages_sharing": int, "saved_bytes": int, "warm_bytes": int,
            "cow_events": int, "pages_zero": int, "draining": bool,
            "free_bytes": int, "promised_bytes": int,
            "reserve_bytes": int, "debt_bytes": int, "memory_short": bool,
        }
    ],
    "instances": [
        {
            "pid": int, "domain": str, "gpu": str, "framework": str, "virtual_bytes": int,
            "private_bytes": int, "shared_bytes": int, "proportional_bytes": int,
        }
    ],
    "domains": [
        {
            "name": str, "instances": int, "pages_shared": int, "saved_bytes": int,
            "warm_bytes": int,
        }
    ],
    "accounts": [
        {
            "gpu": str, "domain": str, "commit_bytes": int, "covered_bytes": int,
            "debt_bytes": int,
        }
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def running() -> Iterator[Stack]:
    with daemon(rules=[["team", "--match", SELF]]) as stack:
        yield stack


@pytest.fixture
def stack(running: Stack) -> Iterator[Stack]:
    """Where every process of our uid is in one domain; left as it was found."""
    yield running
    wait_until(lambda: alone(running), "the end of the processes")


def conforms(value: Any, schema: Any) -> None:
    if isinstance(schema, dict):
        assert list(value) == list(schema)
        for key, inner in schema.items():
            conforms(value[key], inner)
    elif isinstance(schema, list):
        assert value, "an empty list says nothing about its rows"
        for row in value:
            conforms(row, schema[0])
    else:
        assert type(value) is schema


def test_status_json_is_the_contract_and_counts_as_ksm_does(stack: Stack) -> None:
    client = stack.run_dir / "gksm.sock"
    with member(client, 1, 2, 3, "--private", 5) as one, member(client, 1, 2, 3) as two:
        found = json.loads(must(stack, "status", "--json"))
        conforms(found, STATUS)
        (gpu,) = found["gpus"]
        assert (gpu["pages_shared"], gpu["pages_sharing"]) == (3, 3)
        assert gpu["saved_bytes"] == 3 * PAGE
        assert gpu["used_bytes"] == (5 + 3) * PAGE
        assert gpu["debt_bytes"] == found["accounts"][0]["debt_bytes"] == 3 * PAGE
        rows = {row["pid"]: row for row in found["instances"]}
        assert rows[one.pid]["private_bytes"] == 5 * PAGE
        assert rows[one.pid]["shared_bytes"] == 3 * PAGE
        assert rows[one.pid]["proportional_bytes"] == 5 * PAGE + 3 * PAGE // 2
        assert rows[two.pid]["proportional_bytes"] == 3 * PAGE // 2
        (team,) = found["domains"]
        assert team == {
            "name": "team", "instances": 2, "pages_shared": 3, "saved_bytes": 3 * PAGE,
            "warm_bytes": 0,
        }  # fmt: skip


def test_every_table_fits_100_columns_whatever_the_names(stack: Stack) -> None:
    long = "x" * 63
    wide = "é" * 400
    container = "f" * 64
    selectors = [f"--match=image={'y' * 40}{i}" for i in range(12)]
    must(stack, "trust-domain", "add", long, *selectors, "--share", "weights,kv,other")
    facts = {"id": container, "engine": "docker", "name": wide, "image": wide}
    prepared = ask(stack.run_dir / "runtime.sock", op="prepare", container=facts)["result"]
    seeds = range(1, 40)
    huge = 1 << 40
    with (
        member(Path(prepared["socket"]), *seeds, "--private", huge, "--unshared", huge,
               "--framework", "f" * 31, name="n" * 200) as process,
        member(stack.run_dir / "gksm.sock", 1, name="a name\twith \x1b[2J controls"),
    ):  # fmt: skip
        for command in (
            ["status"], ["ps"], ["pages"], ["trust-domain", "list"],
            ["trust-domain", "show", long], ["explain", str(process.pid)],
            ["explain", container], ["doctor"],
        ):  # fmt: skip
            shown = ctl(stack, *command).stdout
            assert shown, command
            assert max(map(len, shown.splitlines())) <= 100, (command, shown)
            assert "\x1b" not in shown
        rows = json.loads(must(stack, "ps", "--json"))
        assert {"n" * 200, container} & {rows[0]["name"], rows[0]["container"]}


def test_every_listing_has_json(stack: Stack) -> None:
    with member(stack.run_dir / "gksm.sock", 1, 2) as process:
        for command in (
            ["status"], ["ps"], ["pages"], ["trust-domain", "list"],
            ["trust-domain", "show", "team"], ["explain", str(process.pid)],
            ["logs", str(process.pid)], ["doctor"],
        ):  # fmt: skip
            assert json.loads(ctl(stack, *command, "--json").stdout), command


def test_pages_are_shown_by_their_holders_and_never_with_their_hash(stack: Stack) -> None:
    client = stack.run_dir / "gksm.sock"
    with member(client, 1, 2, 3) as one, member(client, 1, 2) as two:
        text = must(stack, "pages", "--json")
        rows = [(row["pages"], row["mappings"], row["pids"]) for row in json.loads(text)]
        assert sorted(rows) == sorted([(2, 4, sorted([one.pid, two.pid])), (1, 1, [one.pid])])
        assert "hash" not in text


def test_explain_names_the_rule_and_why_pages_are_private(stack: Stack) -> None:
    with member(stack.run_dir / "gksm.sock", 1, "--unshared", 4) as process:
        shown = must(stack, "explain", str(process.pid))
        assert f"rule {SELF} in" in shown
        assert "4 pages were first touched or written by a kernel" in shown
        assert "the only one of its domain" in shown


def test_explain_says_why_somebody_without_a_rule_shares_nothing() -> None:
    with daemon() as stack, member(stack.run_dir / "gksm.sock", 1) as process:
        shown = " ".join(must(stack, "explain", str(process.pid)).split())
        assert f"in domain pid:{process.pid}." in shown
        assert "trust-domain add NAME" in shown


def test_off_and_on_reach_running_processes_and_are_explained(stack: Stack) -> None:
    with member(stack.run_dir / "gksm.sock", 1) as process:
        pid = str(process.pid)
        assert "1 running" in must(stack, "off", "--domain", "team", "--reason", "maintenance")
        assert json.loads(must(stack, "ps", "--json"))[0]["sharing"] == "off"
        assert "maintenance" in must(stack, "explain", pid)
        must(stack, "on", "--domain", "team")
        assert json.loads(must(stack, "ps", "--json"))[0]["sharing"] == "on"
        must(stack, "off", "--unshare")
        assert json.loads(must(stack, "ps", "--json"))[0]["sharing"] == "unshared"
        assert "by the operator" in must(stack, "explain", pid)
        must(stack, "on")


def test_off_for_somebody_unknown_is_refused(stack: Stack) -> None:
    for option in ("--domain", "--container"):
        done = ctl(stack, "off", option, "nobody")
        assert done.status == 1
        assert "nobody" in done.stderr


def test_logs_show_a_process_also_after_its_end_and_nothing_that_moves_the_cursor(
    stack: Stack,
) -> None:
    with member(stack.run_dir / "gksm.sock") as process:
        pid = str(process.pid)
        assert "written by a kernel" in must(stack, "logs", pid)
    wait_until(lambda: alone(stack), "the end of the process")
    shown = must(stack, "logs", pid)
    assert "warning" in shown
    assert "written by a kernel" in shown
    assert "\x1b" not in shown


def test_who_is_unknown_is_refused_in_one_sentence(stack: Stack) -> None:
    for command in (["explain", "999999999"], ["explain", "../x"], ["logs", "999999999"]):
        done = ctl(stack, *command)
        assert done.status == 1
        assert done.stderr.count("\n") == 1
        assert "gksmctl ps" in done.stderr


@pytest.mark.parametrize(
    "command",
    [["status"], ["ps"], ["pages"], ["off"], ["on"], ["explain", "1"], ["logs", "1"],
     ["trust-domain", "list"]],
)  # fmt: skip
def test_without_a_daemon_every_command_says_so_and_ends_with_status_3(
    tmp_path: Path, command: list[str]
) -> None:
    done = gksmctl("--run-dir", str(tmp_path), *command)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "is not running" in done.stderr
    assert str(tmp_path) in done.stderr


def test_a_socket_that_speaks_something_else_is_told_from_none(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "status.sock"))
    listener.listen()

    def answer() -> None:
        peer, _ = listener.accept()
        peer.recv(1000)
        peer.sendall(b"HTTP/1.1 200 OK\r\n")
        peer.close()

    thread = threading.Thread(target=answer)
    thread.start()
    done = gksmctl("--run-dir", str(tmp_path), "status")
    thread.join()
    listener.close()
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1


def test_the_daemon_is_found_by_the_environment(stack: Stack) -> None:
    done = gksmctl("status", "--json", env={**os.environ, "GKSM_RUN_DIR": str(stack.run_dir)})
    assert done.returncode == 0
    assert json.loads(done.stdout)["daemon"]["version"]
