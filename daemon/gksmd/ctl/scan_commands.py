# SPDX-License-Identifier: Apache-2.0
"""``gksmctl scan``: how equal pages are looked for, as /sys/kernel/mm/ksm is for KSM."""

from __future__ import annotations

import click
import msgspec

from gksmd.config import Scan
from gksmd.ctl import tables
from gksmd.ctl.client import Daemon, die, to_json
from gksmd.ctl.tables import console, table
from gksmd.jsonlines import VERSION
from gksmd.ops import GetProcesses, ScanAnswer, ScannedAnswer, ScanNow, SetScan
from gksmd.snapshot import ProcessRow


@click.group()
def scan() -> None:
    """See and steer the scanner, which finds equal pages that were not loaded as such."""


@scan.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.pass_obj
def show(daemon: Daemon, as_json: bool) -> None:
    """The settings in force, and what the scanner found in each process.

    "stable": unchanged pages without a look-alike; "volatile": changed since the look
    before; "dropped": merges that a write came before; "churned": pages written to soon
    after they were merged.
    """
    settings = daemon.ask(SetScan(v=VERSION), ScanAnswer).settings
    rows = daemon.ask(GetProcesses(v=VERSION), list[ProcessRow])
    if as_json:
        click.echo(to_json({"settings": settings, "processes": rows}))
        return
    out = console()
    for name in Scan.__struct_fields__:
        out.print(f"{name} = {to_json(getattr(settings, name))}")
    if not rows:
        return
    out.print()
    out.print(
        table(
            ["PID", "GPU", "passes>", "stable>", "volatile>", "merged>", "dropped>", "churned>"],
            [
                (
                    row.pid,
                    tables.short_gpu(row.gpu) or "-",
                    row.full_scans,
                    row.stable_pages,
                    row.volatile_pages,
                    row.merged_pages,
                    row.dropped_merges,
                    row.churned_merges,
                )
                for row in rows
            ],
        )
    )


@scan.command(name="set")
@click.argument("settings", nargs=-1, required=True, metavar="NAME=VALUE...")
@click.pass_obj
def set_(daemon: Daemon, settings: tuple[str, ...]) -> None:
    """Change settings until gksmd restarts; [scan] of gksm.toml has what holds then.

    Names: run, interval_ms, max_interval_ms, stable_hashes, max_percent, zero_pages.
    """
    changes: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise click.UsageError(f'"{setting}" is not NAME=VALUE; write for example run=off.')
        if name not in Scan.__struct_fields__:
            known = ", ".join(Scan.__struct_fields__)
            raise click.UsageError(f'"{name}" is no setting of the scanner; known are {known}.')
        changes[name] = _BOOLEANS.get(value, value) if name in ("run", "zero_pages") else value
    try:
        request = msgspec.convert(
            {"op": "set_scan", "v": VERSION, **changes}, SetScan, strict=False
        )
    except msgspec.ValidationError as error:
        raise click.UsageError(f"{error}; correct the value.") from None
    answer = daemon.ask(request, ScanAnswer)
    click.echo(f"The scanner's settings are in force; {answer.instances} instances were told.")


_BOOLEANS = {"on": "true", "off": "false", "yes": "true", "no": "false"}


@scan.command()
@click.option(
    "--passes",
    type=click.IntRange(min=1, max=1000),
    help="How many; default: until every page that does not change is merged.",
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0.1, max=3600),
    default=60.0,
    show_default=True,
    help="Seconds that one pass over one instance may take.",
)
@click.pass_obj
def now(daemon: Daemon, passes: int | None, wait_s: float) -> None:
    """Look over every instance at once, at full speed, and return when that is done."""
    answer = daemon.ask(
        ScanNow(v=VERSION, passes=passes or 0, wait_s=wait_s), ScannedAnswer, timeout_s=None
    )
    click.echo(f"{answer.merged} pages were merged.")
    if answer.late:
        die(
            f"process {', '.join(map(str, answer.late))} did not finish in {wait_s:g} s; "
            "it may be stopped or have very much memory: try --wait."
        )
