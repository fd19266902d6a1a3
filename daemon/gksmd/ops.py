# SPDX-License-Identifier: Apache-2.0
"""The ops of the admin, runtime and status sockets, and their answers.

gksmd decodes what gksmctl and the runtime's hook encode; both use these. ``explain``,
``status``, ``ps``, ``pages`` and ``domains`` are answered with records of
``snapshot.py`` and ``explain.py``.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from gksmd.config import Milliseconds, Scan
from gksmd.domain_files import Entry
from gksmd.domains import Container
from gksmd.jsonlines import Request
from gksmd.snapshot import Record

SEVERITIES = ("debug", "info", "warning", "error")  # enum gksm_severity, in order


class Info(Request, frozen=True, tag="info"):
    """Where the daemon has its things."""


class Reload(Request, frozen=True, tag="reload"):
    """Read the domains again."""


class Check(Request, frozen=True, tag="check"):
    """Would this domain be valid beside the others; whom that runs would it match."""

    domain: Entry


class DomainUsers(Request, frozen=True, tag="domain_users"):
    """Who lives in a domain."""

    name: str


class SetSharing(Request, frozen=True, tag="set_sharing"):
    """``gksmctl on`` and ``off``; neither domain nor container: everybody."""

    sharing: Literal["on", "off", "unshared"]
    reason: str = ""
    domain: str | None = None
    container: str | None = None


class SetScan(Request, frozen=True, tag="set_scan"):
    """Change some of the scanner's settings; none: only read them."""

    run: bool | None = None
    interval_ms: Milliseconds | None = None
    max_interval_ms: Milliseconds | None = None
    stable_hashes: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None
    max_percent: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None
    zero_pages: bool | None = None


class ScanNow(Request, frozen=True, tag="scan_now"):
    """Have passes made over all instances."""

    passes: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    wait_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 60.0


class Prepare(Request, frozen=True, tag="prepare"):
    """A container is about to be created."""

    container: Container
    cgroup: str = ""


class Bind(Request, frozen=True, tag="bind"):
    """A container's first process exists."""

    id: str
    pid: int


class Forget(Request, frozen=True, tag="forget"):
    """A container is gone."""

    id: str


class GetStatus(Request, frozen=True, tag="status"):
    """The stable contract."""


class GetProcesses(Request, frozen=True, tag="ps"):
    """Processes with what decides about their sharing."""


class GetPages(Request, frozen=True, tag="pages"):
    """Published pages by their holders."""


class GetDomains(Request, frozen=True, tag="domains"):
    """Configured domains in order."""


class Explain(Request, frozen=True, tag="explain"):
    """Why is it shared or not."""

    target: str


class Logs(Request, frozen=True, tag="logs"):
    """The records a process sent."""

    pid: int


class InfoAnswer(Record, frozen=True):
    """Answer to ``info``."""

    version: str
    pid: int
    run_dir: str
    state_dir: str
    config_dir: str
    vault_up: bool
    processes: int


class CheckAnswer(Record, frozen=True):
    """Answer to ``check``: whom the domain would take that now lives in another."""

    containers: list[str]
    pids: list[int]


class UsersAnswer(Record, frozen=True):
    """Answer to ``domain_users``."""

    pids: list[int]
    containers: list[str]


class SharingAnswer(Record, frozen=True):
    """Answer to ``set_sharing``."""

    processes: int


class ScanAnswer(Record, frozen=True):
    """Answer to ``set_scan``: what is in force now, and how many instances were told."""

    settings: Scan
    instances: int


class ScannedAnswer(Record, frozen=True):
    """Answer to ``scan_now``; ``late``: the pids that did not finish in time."""

    merged: int
    late: list[int]


class ReloadAnswer(Record, frozen=True):
    """Answer to ``reload``."""

    domains: int


class PrepareAnswer(Record, frozen=True):
    """Answer to ``prepare``: what to mount, and the domain with its reason."""

    directory: str
    socket: str
    domain: str
    reason: str


class LogRecord(Record, frozen=True):
    """One record of ``logs``."""

    time_ns: int
    severity: str
    text: str


class LogsAnswer(Record, frozen=True):
    """Answer to ``logs``."""

    pid: int
    dropped: int
    records: list[LogRecord]


AdminRequest = Info | Reload | Check | DomainUsers | SetSharing | SetScan | ScanNow
RuntimeRequest = Prepare | Bind | Forget
StatusRequest = GetStatus | GetProcesses | GetPages | GetDomains | Explain | Logs
