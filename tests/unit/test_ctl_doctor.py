# SPDX-License-Identifier: Apache-2.0
"""gksmctl doctor on hosts of every kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from gksmd.ctl.client import Daemon
from gksmd.ctl.doctor import Finding, Host, examine

from tests.support.control import daemon, gksmctl

VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build\n"


@dataclass
class Machine:
    """A folder that looks like a host's root."""

    root: Path
    environ: dict[str, str] = field(default_factory=dict)
    file_limit: int = 1 << 20

    def put(self, path: str, text: str = "") -> Machine:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        return self

    def findings(self) -> dict[str, Finding]:
        config_dir = self.root / "etc" / "gksm"
        host = Host(
            Daemon(self.root / "run", config_dir),
            root=self.root,
            environ=self.environ,
            file_limit=self.file_limit,
        )
        return {finding.name: finding for finding in examine(host)}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """One that has all that gKSM needs, but no daemon."""
    made = Machine(tmp_path)
    made.put("proc/driver/nvidia/version", VERSION.format("580.159.04"))
    made.put("sys/module/gksm/version")
    made.put("sys/fs/cgroup/cgroup.controllers")
    made.put("proc/sys/user/max_user_namespaces", "15000\n")
    made.put("proc/filesystems", "nodev\toverlay\n")
    (tmp_path / "dev" / "shm").mkdir(parents=True)
    (tmp_path / "run").mkdir(mode=0o755)
    return made


def test_a_host_that_has_everything_lacks_only_the_daemon(machine: Machine) -> None:
    failed = [f.name for f in machine.findings().values() if f.verdict == "fail"]
    assert failed == [
        "gksm.sock",
        "status.sock",
        "admin.sock",
        "runtime.sock",
        "gksmd",
        "gksm-vault",
    ]


CASES: dict[str, tuple[Callable[[Machine], object], str, str]] = {
    "no driver": (
        lambda m: (m.root / "proc/driver/nvidia/version").unlink(), "driver", "fail"),
    "a branch that was not tested": (
        lambda m: m.put("proc/driver/nvidia/version", VERSION.format("999.1")), "driver", "warn"),
    "a driver of which nothing is known": (
        lambda m: m.put("proc/driver/nvidia/version", "?"), "driver", "warn"),
    "no gksm.ko": (
        lambda m: (m.root / "sys/module/gksm/version").unlink()
        or (m.root / "sys/module/gksm").rmdir(), "gksm.ko", "warn"),
    "MPS": (lambda m: m.put("proc/7/comm", "nvidia-cuda-mps\n"), "MPS", "fail"),
    "vGPU": (
        lambda m: m.put("proc/driver/nvidia/gpus/0/information", "Model: \t NVIDIA A100-40C\n"),
        "vGPU", "fail"),
    "a confidential guest": (
        lambda m: m.put("dev/tdx_guest"), "confidential computing", "fail"),
    "WSL": (lambda m: m.put("dev/dxg"), "WSL", "fail"),
    "Tegra": (lambda m: m.put("etc/nv_tegra_release"), "Tegra", "fail"),
    "few files": (lambda m: setattr(m, "file_limit", 4096), "RLIMIT_NOFILE", "warn"),
    "too few files": (lambda m: setattr(m, "file_limit", 256), "RLIMIT_NOFILE", "fail"),
    "cgroup v1": (
        lambda m: (m.root / "sys/fs/cgroup/cgroup.controllers").unlink(), "cgroup v2", "warn"),
    "no user namespaces": (
        lambda m: m.put("proc/sys/user/max_user_namespaces", "0\n"), "user namespaces", "warn"),
    "user namespaces for root only": (
        lambda m: m.put("proc/sys/kernel/unprivileged_userns_clone", "0\n"),
        "user namespaces", "warn"),
    "no overlayfs": (lambda m: m.put("proc/filesystems", "ext4\n"), "overlayfs", "warn"),
    "a run_dir that others can write": (
        lambda m: (m.root / "run").chmod(0o777), "run_dir", "fail"),
    "no run_dir": (lambda m: (m.root / "run").rmdir(), "run_dir", "fail"),
    "a configuration that is wrong": (
        lambda m: m.put("etc/gksm/gksm.toml", "colour = 1"), "configuration", "fail"),
    "domains that are wrong": (
        lambda m: m.put("etc/gksm/domains.toml", "[[domian]]"), "configuration", "fail"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_would_stop_gksm_is_found_with_a_way_out(machine: Machine, case: str) -> None:
    change, name, verdict = CASES[case]
    before = machine.findings()[name]
    assert before.verdict == "ok", before
    change(machine)
    found = machine.findings()[name]
    assert found.verdict == verdict
    assert found.reason
    assert found.way_out


def test_the_simulator_needs_no_driver(machine: Machine) -> None:
    (machine.root / "proc/driver/nvidia/version").unlink()
    machine.environ["SIMCUDA_DIR"] = "/somewhere"
    assert machine.findings()["driver"].verdict == "warn"


@pytest.fixture(scope="module")
def where() -> Iterator[list[str]]:
    with daemon() as stack:
        yield ["--run-dir", str(stack.run_dir)]


def test_a_running_daemon_and_vault_are_found(where: list[str]) -> None:
    done = gksmctl(*where, "doctor", "--json")
    found = {row["name"]: row for row in json.loads(done.stdout)}
    assert found["gksmd"]["verdict"] == found["gksm-vault"]["verdict"] == "ok"
    failed = [name for name, row in found.items() if row["verdict"] == "fail"]
    assert done.returncode == (1 if failed else 0)
    assert all(name in done.stderr for name in failed)


def test_doctor_ends_with_status_1_when_gksmd_does_not_run(tmp_path: Path) -> None:
    done = gksmctl("--run-dir", str(tmp_path / "nowhere"), "doctor")
    assert done.returncode == 1
    assert "run_dir" in done.stderr
