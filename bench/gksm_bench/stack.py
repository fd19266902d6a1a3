# SPDX-License-Identifier: Apache-2.0
"""A whole gKSM of one's own: gksmd and gksm-vault as real commands, in a folder that goes.

Any program started with Stack.environment() has libgksm in it and shares.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from gksm_bench.processes import ChildError, kill, spawn, stop, tail
from gksm_bench.simgpu import SimulatedGpu, clean_environment

START_SECONDS = 30.0
POLL_SECONDS = 0.02
DOMAIN = "bench"

# Guard times are meant for a GPU; a simulated one, on a machine with other things to do,
# stands still for longer without anybody being at fault.
PATIENT = """
[guard]
hold_deadline_ms = 10000
stall_budget_ms = 1000
"""


class Gpu(Protocol):
    """What a stack must know about the GPU its processes use."""

    @property
    def build(self) -> Path:
        """What make built: libgksm.so and simcuda."""

    @property
    def guard(self) -> bool:
        """Whether it holds the faults of kernels that write to shared pages."""

    @property
    def driver(self) -> Path:
        """The driver library that libgksm is to open."""

    def environment(self) -> dict[str, str]:
        """For a process that uses the GPU without gKSM."""


def wait_until(condition: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
    """Poll until `condition` holds; ChildError says `what` did not happen in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ChildError(f"{what} did not happen within {seconds:.0f} s")
        time.sleep(POLL_SECONDS)


def answers(path: Path) -> bool:
    """Whether somebody accepts connections on the Unix socket `path`."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        with socket.socket(socket.AF_UNIX, kind) as client:
            try:
                client.connect(str(path))
            except OSError:
                continue
            return True
    return False


class Stack:
    """gksm-vault and gksmd with sockets, state and configuration in one folder.

    Every process of our uid is in one trust domain, unless `domain_rules` says
    otherwise: a list of argument lists for `gksmctl trust-domain add`.
    `config` is the text of gksm.toml, after what the stack needs itself; by default a
    simulated GPU gets PATIENT, a real one nothing.
    """

    def __init__(
        self,
        gpu: Gpu,
        *,
        folder: Path | None = None,
        config: str | None = None,
        domain_rules: list[list[str]] | None = None,
        guard_options: Sequence[str] = (),
    ) -> None:
        self.gpu = gpu
        self.given_folder = folder
        simulated = isinstance(gpu, SimulatedGpu)
        self.config = config if config is not None else PATIENT if simulated else ""
        self.domain_rules = (
            [[DOMAIN, "--match", f"uid={os.getuid()}", *guard_options]]
            if domain_rules is None
            else domain_rules
        )
        self.folder = Path()
        self.vault: subprocess.Popen[str] | None = None
        self.gksmd: subprocess.Popen[str] | None = None

    # Life

    def __enter__(self) -> Stack:
        if not self.libgksm.exists():
            raise ChildError(f"{self.libgksm} does not exist; `make all` builds it")
        # Short: the path of a Unix socket has 108 bytes.
        self.folder = self.given_folder or Path(tempfile.mkdtemp(prefix="gksm-run-", dir="/tmp"))
        try:
            self.config_dir.mkdir(exist_ok=True)
            self.run_dir.mkdir(exist_ok=True)
            (self.config_dir / "gksm.toml").write_text(
                'vault.mode = "service"\n' + self.config + "\n"
            )
            self.start_vault()
            self.start_gksmd()
            for rule in self.domain_rules:
                self.gksmctl("trust-domain", "add", *rule)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End both processes and remove the folder."""
        for child in (self.gksmd, self.vault):
            if child is not None:
                stop(child)
        self.gksmd = self.vault = None
        if self.given_folder is None:
            shutil.rmtree(self.folder, ignore_errors=True)

    # Places

    @property
    def libgksm(self) -> Path:
        """The library to preload."""
        return (self.gpu.build / "libgksm.so").absolute()

    @property
    def run_dir(self) -> Path:
        """Sockets and state."""
        return self.folder / "run"

    @property
    def config_dir(self) -> Path:
        """gksm.toml and domains.d."""
        return self.folder / "etc"

    def log(self, name: str) -> Path:
        """Where the standard error of the process called `name` goes."""
        return self.folder / f"{name}.log"

    # Processes

    def start_vault(self) -> None:
        """Start gksm-vault and wait until it answers."""
        path = self.run_dir / "vault.sock"
        self.vault = self._start("gksm-vault", "gksmd.vault.main", path, ["--socket", str(path)])

    def start_gksmd(self) -> None:
        """Start gksmd and wait until it answers."""
        path = self.run_dir / "status.sock"
        self.gksmd = self._start("gksmd", "gksmd.main", path, self.where_arguments)

    def _start(
        self, name: str, module: str, path: Path, arguments: list[str]
    ) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", module, *arguments]
        child = spawn(command, clean_environment(), self.log(name))
        wait_until(lambda: child.poll() is not None or answers(path), f"the start of {name}")
        if child.poll() is not None:
            raise ChildError(f"{name} ended at once: {tail(self.log(name))}")
        return child

    @property
    def where_arguments(self) -> list[str]:
        """Options of every command that point it at this stack."""
        return ["--config-dir", str(self.config_dir), "--run-dir", str(self.run_dir)]

    def kill_gksmd(self) -> None:
        """kill -9."""
        assert self.gksmd is not None
        kill(self.gksmd)

    def kill_vault(self) -> None:
        """kill -9."""
        assert self.vault is not None
        kill(self.vault)

    def restart_dead(self) -> None:
        """Start again whichever of the two has died."""
        if self.vault is None or self.vault.poll() is not None:
            self.start_vault()
        if self.gksmd is None or self.gksmd.poll() is not None:
            self.start_gksmd()

    # Use

    def environment(self, *, shared: bool = True) -> dict[str, str]:
        """For a process that uses the GPU, with libgksm put into it or without."""
        environment = self.gpu.environment()
        if shared:
            environment |= {
                "LD_PRELOAD": str(self.libgksm),
                "GKSM_DRIVER": str(self.gpu.driver),
                "GKSM_SOCKET": str(self.run_dir / "gksm.sock"),
            }
        return environment

    def gksmctl(self, *arguments: str) -> str:
        """Run gksmctl on this stack; its standard output. ChildError if it fails."""
        command = [sys.executable, "-m", "gksmd.ctl.main", *self.where_arguments, *arguments]
        done = subprocess.run(
            command, env=clean_environment(), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ChildError(
                f"gksmctl {' '.join(arguments)} failed ({done.returncode}): "
                f"{done.stderr.strip()}\n{tail(self.log('gksmd'))}"
            )
        return done.stdout

    def status(self) -> dict[str, Any]:
        """What `gksmctl status --json` prints."""
        answer: dict[str, Any] = json.loads(self.gksmctl("status", "--json"))
        return answer


def add_preload(environment: Mapping[str, str], library: Path) -> dict[str, str]:
    """The environment with one more library in front of those preloaded."""
    before = environment.get("LD_PRELOAD", "")
    return {**environment, "LD_PRELOAD": f"{library}:{before}" if before else str(library)}
