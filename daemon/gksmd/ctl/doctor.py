# SPDX-License-Identifier: Apache-2.0
"""gksmctl doctor: what on this host would stop gKSM, and how to mend it.

Each check looks at one thing and says ok, warn (gKSM works, with less) or fail (it
does not work). Checks change nothing and need no root; what they may not see they say.
"""

from __future__ import annotations

import os
import re
import resource
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
import psutil
from rich.console import Console

import gksmd
from gksmd.config import Config, ConfigError, load_config
from gksmd.ctl.client import Daemon, UnreachableError, is_socket
from gksmd.ctl.gpu_processes import complaints, gpu_processes
from gksmd.ctl.tables import printable, size, table
from gksmd.domain_files import load_domains
from gksmd.jsonlines import VERSION
from gksmd.model import PAGE_BYTES
from gksmd.ops import GetProcesses, GetStatus
from gksmd.snapshot import ProcessRow, Record, Status

# Driver branches on which the sequences that gKSM relies on have been measured.
TESTED_BRANCHES = (580,)
SO_PEERPIDFD = 77

Verdict = Literal["ok", "warn", "fail"]


class Finding(Record, frozen=True):
    """The outcome of one check."""

    name: str
    verdict: Verdict
    reason: str
    way_out: str = ""


@dataclass
class Host:
    """The host that is examined; another ``root`` for the files of the kernel in tests."""

    daemon: Daemon
    root: Path = Path("/")
    environ: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    config: Config = field(default_factory=Config)
    file_limit: int = field(default_factory=lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[1])

    def path(self, text: str) -> Path:
        """An absolute path, below the root."""
        return self.root / text.lstrip("/")

    def read(self, text: str) -> str | None:
        """The content of a file; None where it cannot be read."""
        try:
            return self.path(text).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def simulated(self) -> bool:
        """Whether simcuda is to be used here instead of a GPU."""
        return bool(self.environ.get("SIMCUDA_DIR"))


Check = Callable[[Host], Iterable[Finding]]


def examine(host: Host) -> list[Finding]:
    """Run all checks; those that need the configuration see the defaults if it is broken."""
    findings = list(configuration(host))
    for check in CHECKS:
        findings += check(host)
    return findings


def show(out: Console, findings: list[Finding]) -> None:
    """As a table, and below it what to do."""
    out.print(
        table(
            ["check", "verdict", "what was found"],
            [(f.name, f.verdict, f.reason) for f in findings],
        )
    )
    out.print()
    for finding in findings:
        if finding.way_out:
            out.print(printable(f"{finding.verdict}: {finding.name}: {finding.way_out}"))


def configuration(host: Host) -> Iterator[Finding]:
    """The files of the configuration, as gksmd would read them."""
    config_dir = host.daemon.config_dir_if_known()
    try:
        host.config = load_config(config_dir, host.daemon.run_dir)
        domains = load_domains(config_dir, host.config.identity.trusted_sources)
    except ConfigError as error:
        yield Finding(
            name="configuration",
            verdict="fail",
            reason=str(error),
            way_out="correct the file; gksmd does not start with it",
        )
        return
    count = len(domains.domains)
    yield Finding(
        name="configuration",
        verdict="ok",
        reason=f"{config_dir} is valid, with {count} trust domains"
        + ("" if count else ", so nobody shares with anybody"),
        way_out="" if count else "add one with gksmctl trust-domain add",
    )


def driver(host: Host) -> Iterator[Finding]:
    """The NVIDIA driver and its branch."""
    text = host.read("/proc/driver/nvidia/version")
    if text is None:
        if host.simulated():
            yield Finding(
                name="driver", verdict="warn", reason="no GPU; SIMCUDA_DIR is set, so simulated"
            )
        else:
            yield Finding(
                name="driver",
                verdict="fail",
                reason="the NVIDIA driver is not loaded (/proc/driver/nvidia/version is missing)",
                way_out="install the driver and load it (modprobe nvidia_uvm), or set SIMCUDA_DIR "
                "to use the simulator",
            )
        return
    match = re.search(r"\b(\d{3})\.\d+(?:\.\d+)?\b", text)
    branch = int(match[1]) if match else 0
    found = match[0] if match else "unknown"
    if branch in TESTED_BRANCHES:
        yield Finding(name="driver", verdict="ok", reason=f"driver {found}")
    else:
        yield Finding(
            name="driver",
            verdict="warn",
            reason=f"driver {found} is of a branch on which gKSM was not measured",
            way_out=f"use branch {', '.join(map(str, TESTED_BRANCHES))}",
        )


def module(host: Host) -> Iterator[Finding]:
    """gksm.ko, which makes the `fault` guard possible."""
    if host.path("/sys/module/gksm").is_dir():
        yield Finding(name="gksm.ko", verdict="ok", reason="loaded; guard fault is available")
    elif host.simulated():
        yield Finding(name="gksm.ko", verdict="ok", reason="not needed; simcuda has a fault guard")
    else:
        yield Finding(
            name="gksm.ko",
            verdict="warn",
            reason="not loaded; only sealed ranges and optimistic domains can share",
            way_out="load gksm.ko to share in unmodified programs",
        )


def _unless_used(present: bool, name: str, reason: str, way_out: str) -> Finding:
    if not present:
        return Finding(name=name, verdict="ok", reason="not in use")
    return Finding(
        name=name,
        verdict="fail",
        reason=f"{reason}, where gKSM is not proven",
        way_out=way_out,
    )


def mps(host: Host) -> Iterator[Finding]:
    """The Multi-Process Service, whose clients share one context."""
    names = ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
    running = any(
        (comm := host.read(f"/proc/{entry.name}/comm")) is not None
        and any(name.startswith(comm.strip()) for name in names if len(comm.strip()) >= 15)
        for entry in _processes(host)
    )
    yield _unless_used(
        running,
        "MPS",
        "an MPS daemon runs on this host",
        "stop it (echo quit | nvidia-cuda-mps-control) for GPUs that gKSM is to serve",
    )


def _processes(host: Host) -> Iterator[Path]:
    try:
        yield from (entry for entry in host.path("/proc").iterdir() if entry.name.isdigit())
    except OSError:
        return


def mig(host: Host) -> Iterator[Finding]:
    """MIG instances share with each other no more than GPUs do."""
    found = list(host.path("/proc/driver/nvidia/capabilities").glob("gpu*/mig/gi*"))
    yield Finding(
        name="MIG",
        verdict="ok",
        reason=f"{len(found)} GPU instances; pages are shared within each, never between them"
        if found
        else "not in use",
    )


def virtual(host: Host) -> Iterator[Finding]:
    """Where the memory belongs to somebody else: vGPU, confidential computing, WSL, Tegra."""
    models = [
        host.read(f"/proc/driver/nvidia/gpus/{path.name}/information") or ""
        for path in host.path("/proc/driver/nvidia/gpus").glob("*")
    ]
    vgpu = any(re.search(r"Model:\s.*(GRID|-\d+[ABCQ]\s*$)", text, re.MULTILINE) for text in models)
    yield _unless_used(vgpu, "vGPU", "a GPU here is a vGPU", "pass a whole GPU or MIG instance")
    yield _unless_used(
        any(host.path(f"/dev/{name}").exists() for name in ("tdx_guest", "sev-guest")),
        "confidential computing",
        "this is a confidential guest",
        "run gKSM on hosts without confidential computing",
    )
    wsl = "microsoft" in (host.read("/proc/sys/kernel/osrelease") or "")
    yield _unless_used(
        wsl or host.path("/dev/dxg").exists(), "WSL", "this is WSL", "run gKSM on Linux itself"
    )
    yield _unless_used(
        host.path("/etc/nv_tegra_release").exists(),
        "Tegra",
        "this is a Tegra",
        "run gKSM on a host with a discrete GPU",
    )


def memory(host: Host) -> Iterator[Finding]:
    """/dev/shm, and RAM for the host copies (which are memfds, outside of /dev/shm)."""
    try:
        shm = os.statvfs(host.path("/dev/shm"))
        free = shm.f_bavail * shm.f_frsize
    except OSError:
        free = 0
    small = free < 64 << 20
    yield Finding(
        name="/dev/shm",
        verdict="warn" if small else "ok",
        reason=f"{size(free)} free" + ("; engines need more for their workers" if small else ""),
        way_out="give the container --shm-size=1g; gKSM itself does not use it" if small else "",
    )
    available = psutil.virtual_memory().available
    wanted = host.config.memory.host_copy_bytes
    short = wanted > available
    yield Finding(
        name="RAM",
        verdict="warn" if short else "ok",
        reason=f"{size(available)} available; host copies may take {size(wanted)} in each domain",
        way_out="lower memory.host_copy_bytes in gksm.toml" if short else "",
    )


def descriptors(host: Host) -> Iterator[Finding]:
    """One descriptor in gksm-vault for each published page."""
    unlimited = host.file_limit == resource.RLIM_INFINITY
    limit = (1 << 31) if unlimited else host.file_limit
    pages = max(limit - 256, 0)
    if limit < 1024:
        verdict: Verdict = "fail"
    else:
        verdict = "ok" if limit >= 131072 else "warn"
    yield Finding(
        name="RLIMIT_NOFILE",
        verdict=verdict,
        reason=f"{limit} files at most, here; gksm-vault started so could hold "
        f"{size(pages * PAGE_BYTES)} of shared pages",
        way_out="" if verdict == "ok" else "raise it (LimitNOFILE= of gksm-vault.service)",
    )


def kernel(host: Host) -> Iterator[Finding]:
    """What identities rest on, and what containers and tests need."""
    left, right = socket.socketpair(socket.AF_UNIX)
    with left, right:
        try:
            raw = left.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4)
            os.close(int.from_bytes(raw, "little"))
            found = True
        except OSError:
            found = False
    yield Finding(
        name="SO_PEERPIDFD",
        verdict="ok" if found else "warn",
        reason="peers are identified by pidfd"
        if found
        else "this kernel has none; peers are identified by /proc and their start time",
        way_out="" if found else "use Linux 6.5 or later",
    )
    unified = host.path("/sys/fs/cgroup/cgroup.controllers").exists()
    yield Finding(
        name="cgroup v2",
        verdict="ok" if unified else "warn",
        reason="in use" if unified else "not the only hierarchy; cgroup selectors may see no path",
        way_out="" if unified else "boot with systemd.unified_cgroup_hierarchy=1",
    )
    spaces = (host.read("/proc/sys/user/max_user_namespaces") or "0").strip()
    allowed = (host.read("/proc/sys/kernel/unprivileged_userns_clone") or "1").strip()
    usable = spaces not in ("", "0") and allowed != "0"
    yield Finding(
        name="user namespaces",
        verdict="ok" if usable else "warn",
        reason="available" if usable else "turned off; rootless containers cannot be used",
        way_out="" if usable else "sysctl user.max_user_namespaces=15000",
    )
    overlay = "overlay" in (host.read("/proc/filesystems") or "").split()
    yield Finding(
        name="overlayfs",
        verdict="ok" if overlay else "warn",
        reason="available" if overlay else "not loaded; container engines need it",
        way_out="" if overlay else "modprobe overlay",
    )


def daemon(host: Host) -> Iterator[Finding]:
    """The folder of the sockets, gksmd and gksm-vault."""
    run_dir = host.daemon.run_dir
    try:
        status = run_dir.stat()
    except OSError as error:
        yield Finding(
            name="run_dir",
            verdict="fail",
            reason=f"{run_dir}: {error.strerror}",
            way_out="start gksmd (systemctl start gksmd), or name its folder with --run-dir",
        )
        return
    if status.st_mode & 0o022:
        yield Finding(
            name="run_dir",
            verdict="fail",
            reason=f"{run_dir} is writable by others, who could put sockets of their own there",
            way_out=f"chmod go-w {run_dir}",
        )
    else:
        yield Finding(name="run_dir", verdict="ok", reason=f"{run_dir} is its owner's alone")
    for name in ("gksm.sock", "status.sock", "admin.sock", "runtime.sock"):
        if not is_socket(run_dir / name):
            yield Finding(
                name=name,
                verdict="fail",
                reason=f"{run_dir / name} is not there",
                way_out="start gksmd (systemctl start gksmd)",
            )
    yield from _reachable(host)


def _reachable(host: Host) -> Iterator[Finding]:
    try:
        raw = host.daemon.ask_raw(GetStatus(v=VERSION))
        found = msgspec.json.decode(raw, type=Status)
    except (UnreachableError, msgspec.DecodeError) as error:
        yield Finding(
            name="gksmd",
            verdict="fail",
            reason=str(error),
            way_out="look at its log (journalctl -u gksmd)",
        )
    else:
        yield _version(found)
    yield _vault(host)


def past_gksm(host: Host) -> Iterator[Finding]:
    """Programs that use a GPU of this host and not gKSM, though nobody told them not to."""
    try:
        raw = host.daemon.ask_raw(GetProcesses(v=VERSION))
        known = {row.pid for row in msgspec.json.decode(raw, type=list[ProcessRow])}
    except (UnreachableError, msgspec.DecodeError):
        return  # `daemon` says so
    found = list(gpu_processes(host.root, host.environ))
    wrong = list(complaints(found, known))
    for reason, way_out in wrong:
        yield Finding(name="GPU processes", verdict="warn", reason=reason, way_out=way_out)
    if not wrong:
        reason = f"gksmd knows all {len(found)} that could be looked at"
        yield Finding(name="GPU processes", verdict="ok", reason=reason)


def _version(found: Status) -> Finding:
    same = found.daemon.version == gksmd.__version__
    return Finding(
        name="gksmd",
        verdict="ok" if same else "warn",
        reason=f"version {found.daemon.version} answers",
        way_out="" if same else f"gksmctl is {gksmd.__version__}; restart gksmd",
    )


def _vault(host: Host) -> Finding:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(5)
            sock.connect(os.fspath(host.daemon.run_dir / "vault.sock"))
    except PermissionError:
        return Finding(
            name="gksm-vault",
            verdict="warn",
            reason="only root can see whether it runs",
            way_out="run gksmctl doctor with sudo",
        )
    except OSError as error:
        return Finding(
            name="gksm-vault",
            verdict="fail",
            reason=f"it does not answer ({error.strerror}), so nobody new can attach",
            way_out="start it (systemctl start gksm-vault), or let gksmd do so with "
            'vault.mode = "spawn" in gksm.toml',
        )
    return Finding(name="gksm-vault", verdict="ok", reason="it answers")


CHECKS: tuple[Check, ...] = (
    driver,
    module,
    mps,
    mig,
    virtual,
    memory,
    descriptors,
    kernel,
    daemon,
    past_gksm,
)
