# SPDX-License-Identifier: Apache-2.0
"""gksmctl trust-domain against a real gksmd."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from gksm_bench.stack import Stack, wait_until

from tests.support.control import alone, ask, ctl, daemon, gksmctl, must
from tests.support.member import member

SELF = f"uid={os.getuid()}"
OTHER = f"uid={os.getuid() + 1}"


@pytest.fixture(scope="module")
def running() -> Iterator[Stack]:
    with daemon() as stack:
        yield stack


@pytest.fixture
def stack(running: Stack) -> Iterator[Stack]:
    """Without a domain or a container; so is it left."""
    yield running
    for path in (running.config_dir / "domains.d").glob("*.toml"):
        path.unlink()
    for path in (running.run_dir / "state" / "containers").glob("*.json"):
        ask(running.run_dir / "runtime.sock", op="forget", id=path.stem)
    assert ask(running.run_dir / "admin.sock", op="reload")["result"] == {"domains": 0}
    wait_until(lambda: alone(running), "the end of the processes")


def add(stack: Stack, *arguments: str) -> tuple[int, str]:
    done = ctl(stack, "trust-domain", "add", *arguments)
    assert done.stderr.count("\n") <= 1, done.stderr
    return done.status, done.stdout + done.stderr


def order(stack: Stack) -> list[str]:
    return [row["name"] for row in json.loads(must(stack, "trust-domain", "list", "--json"))]


def file(stack: Stack, name: str) -> Path:
    return stack.config_dir / "domains.d" / f"{name}.toml"


def test_add_is_in_force_at_once_for_what_starts_afterwards(stack: Stack) -> None:
    client = stack.run_dir / "gksm.sock"
    with member(client) as old:
        status, text = add(stack, "team", "--match", SELF, "--share", "weights,kv")
        assert status == 0
        assert "1 process outside containers match it but keep their old domain" in text
        with member(client) as new:
            domains = {
                row["pid"]: row["domain"]
                for row in json.loads(must(stack, "status", "--json"))["instances"]
            }
            assert domains[new.pid] == "team"
            assert domains[old.pid].startswith("pid:")


def test_running_containers_that_match_keep_their_domain_and_are_counted(stack: Stack) -> None:
    runtime = stack.run_dir / "runtime.sock"
    for i in range(3):
        facts = {"id": f"box{i}", "engine": "docker", "image": "llm" if i else "web"}
        assert ask(runtime, op="prepare", container=facts)["ok"]
    status, text = add(stack, "team", "--match", "image=llm")
    assert status == 0
    assert "2 running containers and 0 processes" in text
    again = ask(runtime, op="prepare", container={"id": "box1", "engine": "docker", "image": "llm"})
    assert again["result"]["domain"] == "container:box1"
    fresh = ask(runtime, op="prepare", container={"id": "box9", "engine": "docker", "image": "llm"})
    assert fresh["result"]["domain"] == "team"


def test_dry_run_shows_the_file_and_changes_nothing(stack: Stack) -> None:
    status, text = add(stack, "team", "--match", SELF, "--budget", "16G", "--dry-run")
    assert status == 0
    assert 'name = "team"' in text
    assert not file(stack, "team").exists()
    assert order(stack) == []


@pytest.mark.parametrize("selectors", [[], ["--match", "uid=*"], ["--match", "image="]])
def test_a_match_for_everybody_needs_consent(stack: Stack, selectors: list[str]) -> None:
    status, text = add(stack, "all", *selectors)
    assert status == 2
    assert "--i-trust-all" in text
    assert not file(stack, "all").exists()
    status, _ = add(stack, "all", *selectors, "--i-trust-all")
    assert status == 0
    assert order(stack) == ["all"]


def test_overlapping_rules_need_an_explicit_order(stack: Stack) -> None:
    assert add(stack, "first", "--match", "uid=1*")[0] == 0
    status, text = add(stack, "second", "--match", "uid=1")
    assert status == 1
    assert "--before first" in text
    assert not file(stack, "second").exists()
    assert add(stack, "second", "--match", "uid=1", "--before", "first")[0] == 0
    assert order(stack) == ["second", "first"]
    assert add(stack, "third", "--match", "uid=1?", "--after", "first")[0] == 0
    assert order(stack) == ["second", "first", "third"]


def test_an_order_before_nobody_is_refused(stack: Stack) -> None:
    status, text = add(stack, "team", "--match", SELF, "--before", "ghost")
    assert (status, "ghost" in text) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["Team", "--match", SELF],
        ["../x", "--match", SELF],
        ["team", "--match", "env=1"],
        ["team", "--match", "uid"],
        ["team", "--match", SELF, "--share", "everything"],
        ["team", "--match", SELF, "--share", ""],
        ["team", "--match", SELF, "--budget", "much"],
        ["team", "--match", "label.team=a"],
    ],
)
def test_what_cannot_be_is_refused_with_status_2(stack: Stack, arguments: list[str]) -> None:
    status, text = add(stack, *arguments)
    assert status == 2
    assert text.startswith("gksmctl: ")
    assert order(stack) == []


def test_a_hand_written_file_is_never_touched(stack: Stack) -> None:
    path = file(stack, "team")
    path.parent.mkdir(exist_ok=True)
    text = f'# mine\n[[domain]]\nname = "team"\nmatch = ["{OTHER}"]\n'
    path.write_text(text, encoding="utf-8")
    assert add(stack, "team", "--match", SELF)[0] == 1
    done = ctl(stack, "trust-domain", "remove", "team")
    assert done.status == 1
    assert "not added by gksmctl" in done.stderr
    assert path.read_text(encoding="utf-8") == text


def test_adding_the_same_again_changes_nothing_and_another_is_refused(stack: Stack) -> None:
    assert add(stack, "team", "--match", SELF)[0] == 0
    assert add(stack, "team", "--match", SELF)[0] == 0
    status, text = add(stack, "team", "--match", OTHER)
    assert status == 1
    assert "remove team" in text


def test_remove_is_refused_while_instances_live(stack: Stack) -> None:
    add(stack, "team", "--match", SELF)
    with member(stack.run_dir / "gksm.sock"):
        done = ctl(stack, "trust-domain", "remove", "team")
        assert done.status == 1
        assert "1 process" in done.stderr
        assert file(stack, "team").exists()
    wait_until(lambda: alone(stack), "the end of the process")
    must(stack, "trust-domain", "remove", "team")
    assert not file(stack, "team").exists()
    assert order(stack) == []


def test_remove_is_refused_while_a_container_has_the_domain(stack: Stack) -> None:
    runtime = stack.run_dir / "runtime.sock"
    add(stack, "team", "--match", "image=llm")
    ask(runtime, op="prepare", container={"id": "box", "engine": "docker", "image": "llm"})
    assert "1 container" in ctl(stack, "trust-domain", "remove", "team").stderr
    ask(runtime, op="forget", id="box")
    assert ctl(stack, "trust-domain", "remove", "team").status == 0


def test_remove_is_refused_where_it_settles_the_order_of_two_others(stack: Stack) -> None:
    add(stack, "c", "--match", "uid=2?")
    add(stack, "b", "--match", "uid=3?", "--before", "c")
    add(stack, "a", "--match", "uid=?1", "--before", "b")
    assert order(stack) == ["a", "b", "c"]
    done = ctl(stack, "trust-domain", "remove", "b")
    assert done.status == 2
    assert order(stack) == ["a", "b", "c"]


def test_a_broken_file_beside_it_leaves_what_is_in_force(stack: Stack) -> None:
    add(stack, "team", "--match", SELF)
    broken = file(stack, "broken")
    broken.write_text("[[domain", encoding="utf-8")
    status, text = add(stack, "other", "--match", OTHER)
    assert status == 2
    assert str(broken) in text
    assert order(stack) == ["team"]
    assert not file(stack, "other").exists()


def test_without_a_daemon_a_domain_waits_for_its_start_and_remove_needs_force(
    tmp_path: Path,
) -> None:
    where = ["--run-dir", str(tmp_path), "--config-dir", str(tmp_path / "etc"), "trust-domain"]
    done = gksmctl(*where, "add", "team", "--match", SELF)
    assert done.returncode == 0
    assert "next start" in done.stdout
    assert gksmctl(*where, "remove", "team").returncode == 3
    assert gksmctl(*where, "remove", "team", "--force").returncode == 0
    assert not (tmp_path / "etc" / "domains.d" / "team.toml").exists()


def test_another_configuration_than_the_daemons_is_refused(stack: Stack, tmp_path: Path) -> None:
    where = ["--run-dir", str(stack.run_dir), "--config-dir", str(tmp_path)]
    done = gksmctl(*where, "trust-domain", "add", "team", "--match", SELF)
    assert done.returncode == 2
    assert str(stack.config_dir) in done.stderr
    assert list(tmp_path.iterdir()) == []
