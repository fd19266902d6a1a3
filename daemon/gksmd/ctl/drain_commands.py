# SPDX-License-Identifier: Apache-2.0
"""gksmctl drain and undrain: let go of GPUs, for a driver upgrade or another owner."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

import click

from gksmd.ctl import tables
from gksmd.ctl.client import EXIT_REFUSED, Daemon, die, to_json
from gksmd.ctl.holders import ANY, Holder, Proc
from gksmd.ctl.tables import console, table
from gksmd.jsonlines import VERSION
from gksmd.ops import BeginDrain, DrainAnswer, EndDrain, GetDrain

POLL_S = 0.25
VAULT = "gksm-vault"

gpu_option = click.option("--gpu", metavar="UUID", help="Only this GPU (default: all).")


@dataclass
class Found:
    """Who held the GPU at one look."""

    answer: DrainAnswer
    ours: list[Holder] = field(default_factory=list)
    others: list[Holder] = field(default_factory=list)
    unreadable: list[int] = field(default_factory=list)

    @property
    def clear(self) -> bool:
        """Whether nothing of gKSM's holds it."""
        return not self.ours and not self.hidden

    @property
    def hidden(self) -> list[int]:
        """Processes that may hold it and could not be looked at.

        To root of a host all are open; to root of a container its host's may not be.
        """
        own = {process.pid for process in self.answer.processes}
        return [pid for pid in self.unreadable if os.geteuid() != 0 or pid in own]

    def container(self, holder: Holder) -> str:
        """The container of a process, or its cgroup where gksmd knows of none."""
        known = (p.container for p in self.answer.processes if p.pid == holder.pid)
        return next(known, "") or holder.cgroup

    def name(self, holder: Holder) -> str:
        """The name of a process; our own run under the interpreter's."""
        known = (p.name for p in self.answer.processes if p.pid == holder.pid)
        return next(known, "") or holder.name


@click.command()
@gpu_option
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for those who hold it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.pass_obj
def drain(daemon: Daemon, gpu: str | None, wait: float, as_json: bool) -> None:
    """Stop sharing on a GPU and let go of it: before a driver upgrade, for example.

    Nothing new is shared there until `undrain`, gksmd's restarts included; warm pages,
    pinned ones too, and spare pages are given up. Ends with 0 only when no process of
    gKSM's (gksmd, gksm-vault, programs with libgksm) has the GPU open; else it names
    those that do. Running programs are not ended: that is yours to do.
    """
    answer = daemon.ask(BeginDrain(v=VERSION, gpu=gpu), DrainAnswer)
    if answer.not_remembered:
        click.echo(
            f"gksmctl: a restart of gksmd would end this ({answer.not_remembered}); make its "
            "state_dir writable for it.",
            err=True,
        )
    deadline = time.monotonic() + wait
    found = _look(answer)
    while not found.clear and time.monotonic() < deadline:
        time.sleep(min(POLL_S, max(deadline - time.monotonic(), 0)))
        found = _look(daemon.ask(GetDrain(v=VERSION, gpu=gpu), DrainAnswer))
    if as_json:
        click.echo(to_json(_record(found)))
        if not found.clear:
            raise SystemExit(EXIT_REFUSED)
        return
    _show(found)


@click.command()
@gpu_option
@click.pass_obj
def undrain(daemon: Daemon, gpu: str | None) -> None:
    """Share again on a GPU that was drained, also in the programs that run."""
    answer = daemon.ask(EndDrain(v=VERSION, gpu=gpu), DrainAnswer)
    if answer.not_remembered:
        die(
            f"sharing is on again, but a restart of gksmd would end that "
            f"({answer.not_remembered}); make its state_dir writable for it."
        )
    click.echo(f"Sharing is on again on {answer.gpu or 'all GPUs'}.")


def _look(answer: DrainAnswer) -> Found:
    """Who holds it now. The tables of gksmd only say which processes are gKSM's."""
    proc = Proc()
    found = Found(answer)
    own = {process.pid for process in answer.processes}
    for holder in proc.holders():
        if _concerned(holder, answer):
            (found.ours if holder.ours or holder.pid in own else found.others).append(holder)
    found.unreadable = proc.unreadable
    return found


def _concerned(holder: Holder, answer: DrainAnswer) -> bool:
    """Whether it holds the GPU that is asked about, or may do so."""
    if not answer.gpu or answer.gpu in holder.devices:
        return True
    if set(holder.devices) != {ANY}:
        return False
    # Exported memory does not say of which GPU it is; gksmd knows what the vault has.
    in_vault = answer.vault_pages or not answer.vault_up
    names = {process.pid: process.name for process in answer.processes}
    return names.get(holder.pid) != VAULT or bool(in_vault)


def _record(found: Found) -> dict[str, Any]:
    return {
        "gpu": found.answer.gpu,
        "draining": found.answer.draining,
        "clear": found.clear,
        "holders": [
            {
                "pid": holder.pid,
                "name": found.name(holder),
                "container": found.container(holder),
                "gksm": gksm,
                "descriptors": holder.devices.total(),
            }
            for gksm, holders in ((True, found.ours), (False, found.others))
            for holder in holders
        ],
        "hidden": found.hidden,
    }


def _show(found: Found) -> None:
    """Say who holds it; ends the program with 1 if that is anybody of ours."""
    what = found.answer.gpu or "every GPU"
    if found.ours or found.others:
        console().print(
            table(
                ["PID>", "name", "container", "gKSM's", "descriptors>"],
                [
                    (
                        holder.pid,
                        found.name(holder),
                        found.container(holder) or "-",
                        gksm,
                        holder.devices.total(),
                    )
                    for gksm, holders in (("yes", found.ours), ("no", found.others))
                    for holder in holders
                ],
            )
        )
    if found.ours:
        who = ", ".join(f"{tables.printable(found.name(h))} ({h.pid})" for h in found.ours)
        die(
            f"{what} drains, but {who} still "
            f"{'holds' if len(found.ours) == 1 else 'hold'} it; end them, or give them longer "
            "with --wait (gksmctl undrain ends the drain)."
        )
    if found.hidden:
        die(
            f"{what} drains, but {len(found.hidden)} processes could not be looked at; "
            "run gksmctl with sudo."
        )
    click.echo(f"{what[0].upper()}{what[1:]} drains, and nothing of gKSM's holds it.")
