# SPDX-License-Identifier: Apache-2.0
"""gksmctl warm: list, drop, pin, unpin."""

from __future__ import annotations

from typing import Any

import click

from gksmd.ctl import tables
from gksmd.ctl.client import Daemon, to_json
from gksmd.ctl.tables import console, size, table
from gksmd.jsonlines import VERSION
from gksmd.ops import DropWarm, DropWarmAnswer, GetWarm, PinWarm
from gksmd.snapshot import LoadRow


@click.group()
def warm() -> None:
    """Models that stay in GPU memory after their last process.

    Pages are kept by load: what one process loaded in one go. memory.warm_bytes of
    gksm.toml says how much may stay; a program that needs memory gets it from here.
    """


@warm.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.pass_obj
def list_command(daemon: Daemon, as_json: bool) -> None:
    """What was loaded, the last used first; "warm" is memory that no process maps."""
    rows = daemon.ask(GetWarm(v=VERSION), list[LoadRow])
    if as_json:
        click.echo(to_json(rows))
        return
    out = console()
    if not rows:
        out.print("Nothing shared is loaded, and nothing is warm.")
        return
    out.print(
        table(
            ["load>", "GPU", "domain", "loaded by", "warm>", "in use>", "idle>", "pinned"],
            [
                (
                    row.load,
                    tables.short_gpu(row.gpu),
                    tables.short_domain(row.domain),
                    row.program or "(before gksmd's start)",
                    size(row.warm_bytes),
                    size(row.in_use_bytes),
                    tables.duration(row.idle_s),
                    "yes" if row.pinned else "",
                )
                for row in rows
            ],
        )
    )


@warm.command()
@click.argument("load", type=click.IntRange(min=1), required=False)
@click.option("--all", "everything", is_flag=True, help="Every load, pinned ones too.")
@click.option("--gpu", metavar="UUID", help="With --all: only on this GPU.")
@click.option("--domain", help="With --all: only of this trust domain.")
@click.pass_obj
def drop(
    daemon: Daemon, load: int | None, everything: bool, gpu: str | None, domain: str | None
) -> None:
    """Give up what is warm of a load. What is in use stays."""
    if (load is None) is not everything:
        raise click.UsageError("Give a LOAD of `gksmctl warm list`, or --all.")
    if load is not None and (gpu or domain):
        raise click.UsageError("--gpu and --domain go with --all.")
    answer = daemon.ask(
        DropWarm(v=VERSION, load=load, gpu=gpu, domain=domain),
        DropWarmAnswer,
    )
    what = "1 load" if answer.loads == 1 else f"{answer.loads} loads"
    click.echo(f"{size(answer.dropped_bytes)} of {what} are free again.")


@warm.command()
@click.argument("load", type=click.IntRange(min=1))
@click.pass_obj
def pin(daemon: Daemon, load: int) -> None:
    """Keep a load whatever memory.warm_bytes is, until it is unpinned or dropped.

    Nobody's need for memory evicts it. gksmd forgets pins when it is restarted.
    """
    daemon.ask(PinWarm(v=VERSION, load=load, pinned=True), dict[str, Any])
    click.echo(f"Load {load} stays in GPU memory until it is unpinned or dropped.")


@warm.command()
@click.argument("load", type=click.IntRange(min=1))
@click.pass_obj
def unpin(daemon: Daemon, load: int) -> None:
    """Keep a load only as long as memory.warm_bytes allows."""
    daemon.ask(PinWarm(v=VERSION, load=load, pinned=False), dict[str, Any])
    click.echo(f"Load {load} may be evicted again.")
