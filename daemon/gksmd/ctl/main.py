# SPDX-License-Identifier: Apache-2.0
"""gksmctl's commands. EXIT_STATUS says how they end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

import gksmd
from gksmd.config import CONFIG_DIR, ConfigError, load_config
from gksmd.ctl import doctor, domain_commands, gpu_processes, scan_commands, tables
from gksmd.ctl.client import Daemon, die, to_json
from gksmd.ctl.tables import console, size, table
from gksmd.explain import Explanation, OnGpu
from gksmd.jsonlines import VERSION
from gksmd.ops import (
    Explain,
    GetPages,
    GetProcesses,
    GetStatus,
    Logs,
    LogsAnswer,
    SetSharing,
    SharingAnswer,
)
from gksmd.snapshot import PageRow, ProcessRow, Status

EXIT_STATUS = (
    "Exit status: 0 done; 1 refused, or doctor found what stops gKSM; 2 wrong usage or "
    "configuration; 3 gksmd is not running or cannot be reached."
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EXIT_STATUS,
)
@click.version_option(gksmd.__version__, prog_name="gksmctl")
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    envvar="GKSM_RUN_DIR",
    help="Where gksmd has its sockets (GKSM_RUN_DIR; default: run_dir of gksm.toml).",
)
@click.option(
    "--config-dir",
    type=click.Path(path_type=Path),
    envvar="GKSM_CONFIG_DIR",
    help="Where gksm.toml and domains.d are (GKSM_CONFIG_DIR; default: gksmd's, /etc/gksm).",
)
@click.pass_context
def main(context: click.Context, run_dir: Path | None, config_dir: Path | None) -> None:
    """See and steer how processes share GPU memory."""
    if run_dir is None:
        try:
            run_dir = load_config(config_dir or CONFIG_DIR).run_dir
        except ConfigError:
            # doctor says so at length; the other commands still find a default daemon.
            run_dir = Path("/run/gksm")
    context.obj = Daemon(run_dir.absolute(), config_dir.absolute() if config_dir else None)


@main.command()
@json_option
@click.pass_obj
def status(daemon: Daemon, as_json: bool) -> None:
    """GPUs, processes and domains, with what sharing saves.

    "shared" counts physical pages in use, "sharing" the further mappings of them, as
    /sys/kernel/mm/ksm does. --json is a stable contract.
    """
    found = daemon.ask(GetStatus(v=VERSION), Status)
    if as_json:
        click.echo(to_json(found))
        return
    out = console()
    out.print(f"gksmd {found.daemon.version}, up {tables.duration(found.daemon.uptime_s)}")
    if not found.gpus:
        out.print("No process has used a GPU through gKSM yet.")
    else:
        out.print()
        out.print(
            table(
                [
                    "GPU",
                    "name",
                    "guard",
                    "total>",
                    "used>",
                    "shared>",
                    "sharing>",
                    "saved>",
                    "warm>",
                    "COW>",
                ],
                [
                    (
                        tables.short_gpu(g.uuid),
                        g.name,
                        g.guard,
                        size(g.total_bytes),
                        size(g.used_bytes),
                        g.pages_shared,
                        g.pages_sharing,
                        size(g.saved_bytes),
                        size(g.warm_bytes),
                        g.cow_events,
                    )
                    for g in found.gpus
                ],
            )
        )
    if found.instances:
        out.print()
        out.print(
            table(
                [
                    "PID",
                    "domain",
                    "GPU",
                    "framework",
                    "virtual>",
                    "private>",
                    "shared>",
                    "proportional>",
                ],
                [
                    (
                        i.pid,
                        tables.short_domain(i.domain),
                        tables.short_gpu(i.gpu),
                        i.framework,
                        size(i.virtual_bytes),
                        size(i.private_bytes),
                        size(i.shared_bytes),
                        size(i.proportional_bytes),
                    )
                    for i in found.instances
                ],
            )
        )
    if found.domains:
        out.print()
        out.print(
            table(
                ["domain", "instances>", "shared>", "saved>"],
                [
                    (tables.short_domain(d.name), d.instances, d.pages_shared, size(d.saved_bytes))
                    for d in found.domains
                ],
            )
        )


@main.command()
@json_option
@click.pass_obj
def ps(daemon: Daemon, as_json: bool) -> None:
    """The processes that have libgksm in them, and if they share."""
    rows = daemon.ask(GetProcesses(v=VERSION), list[ProcessRow])
    if as_json:
        click.echo(to_json(rows))
        return
    out = console()
    if not rows:
        out.print("No process with libgksm is running.")
        return
    out.print(
        table(
            [
                "PID",
                "name",
                "container",
                "domain",
                "GPU",
                "guard",
                "sharing",
                "virtual>",
                "private>",
                "shared>",
                "COW>",
            ],
            [
                (
                    r.pid,
                    r.name,
                    r.container[:12] or "-",
                    tables.short_domain(r.domain),
                    tables.short_gpu(r.gpu) or "-",
                    r.guard or "-",
                    r.sharing if r.connected else "away",
                    size(r.virtual_bytes),
                    size(r.private_bytes),
                    size(r.shared_bytes),
                    r.cow_events,
                )
                for r in rows
            ],
        )
    )


@main.command()
@json_option
@click.pass_obj
def pages(daemon: Daemon, as_json: bool) -> None:
    """Published pages, one row for those of the same holders."""
    rows = daemon.ask(GetPages(v=VERSION), list[PageRow])
    if as_json:
        click.echo(to_json(rows))
        return
    out = console()
    if not rows:
        out.print("No page is published.")
        return
    out.print(
        table(
            ["GPU", "domain", "kind", "pages>", "mappings>", "saved>", "host copies>", "mapped by"],
            [
                (
                    tables.short_gpu(r.gpu),
                    tables.short_domain(r.domain),
                    r.kind,
                    r.pages,
                    r.mappings,
                    size(r.saved_bytes),
                    r.host_copies,
                    " ".join(map(str, r.pids)) or "nobody (warm)",
                )
                for r in rows
            ],
        )
    )


@main.command()
@click.argument("target", metavar="PID|CONTAINER")
@json_option
@click.pass_obj
def explain(daemon: Daemon, target: str, as_json: bool) -> None:
    """Why its pages are or are not shared, and which rule chose its domain.

    A container is named by its id, the beginning of its id, or its name.
    """
    _explain_stranger(target)
    found = daemon.ask(Explain(v=VERSION, target=target), Explanation)
    if as_json:
        click.echo(to_json(found))
        return
    out = console()
    what = f"Container {found.container}" if found.container else f"Process {target}"
    out.print(tables.printable(f"{what} is in domain {found.domain}: {found.rule}."))
    reason = f" ({found.sharing_reason})" if found.sharing_reason else ""
    out.print(
        tables.printable(
            f"The domain shares {', '.join(found.shares)}; guard wanted: {found.guard_wanted}; "
            f"sharing is {found.sharing}{reason}."
        )
    )
    for name, count in found.quotas_refused.items():
        out.print(f"The quota {name} refused {count} requests; see quota in gksm.toml.")
    for process in found.processes:
        out.print()
        out.print(
            tables.printable(
                f"Process {process.pid} ({process.name}), identified by "
                f"{process.identified_by}, could use: {', '.join(process.guards_offered)}"
            )
        )
        for gpu in process.gpus:
            _explain_gpu(out.print, gpu)
    if found.notes:
        out.print()
        for note in found.notes:
            out.print(tables.printable(f"* {note}"))


def _explain_stranger(target: str) -> None:
    """Ends the program for a process that gksmd cannot know of."""
    if not target.isdigit():
        return
    process = gpu_processes.gpu_process(Path("/"), os.environ, int(target))
    if process is not None and not process.hooked:
        die(
            f"Process {target} ({tables.printable(process.name)}) uses a GPU without libgksm in "
            "it, so it shares nothing; start its container with --runtime=gksm, and look in its "
            "log for a preload that was ignored."
        )


def _explain_gpu(write: Callable[[Any], None], gpu: OnGpu) -> None:
    write(f"on {gpu.gpu}, guard {gpu.guard}:")
    write(
        f"  {size(gpu.virtual_bytes)} allocated: {size(gpu.shared_bytes)} shared, "
        f"{size(gpu.private_bytes)} private, {size(gpu.unbacked_bytes)} not backed yet"
    )
    write(
        f"  {gpu.loaded_pages} pages loaded from the host, {gpu.attached_pages} of them by "
        f"attaching; {gpu.cow_events} copied on write; {gpu.alone_pages} that nobody else maps"
    )
    for reason in gpu.unshared:
        way_out = f" ({reason.way_out})" if reason.way_out else ""
        write(f"  {reason.pages} pages {reason.text}{way_out}")


@main.command()
@click.option("--domain", help="Only this trust domain.")
@click.option("--container", help="Only this container.")
@click.option("--unshare", is_flag=True, help="Detach shared pages, as far as memory allows.")
@click.option("--reason", default="by the operator", help="Shown by explain.")
@click.pass_obj
def off(
    daemon: Daemon, domain: str | None, container: str | None, unshare: bool, reason: str
) -> None:
    """Stop new sharing at once, for all, a domain or a container.

    What is shared already stays so unless --unshare is given.
    """
    _set_sharing(daemon, "unshared" if unshare else "off", reason, domain, container)


@main.command()
@click.option("--domain", help="Only this trust domain.")
@click.option("--container", help="Only this container.")
@click.pass_obj
def on(daemon: Daemon, domain: str | None, container: str | None) -> None:
    """Allow sharing again where `off` stopped it."""
    _set_sharing(daemon, "on", "", domain, container)


def _set_sharing(
    daemon: Daemon, sharing: Any, reason: str, domain: str | None, container: str | None
) -> None:
    if domain is not None and container is not None:
        raise click.UsageError("Give --domain or --container, not both.")
    answer = daemon.ask(
        SetSharing(v=VERSION, sharing=sharing, reason=reason, domain=domain, container=container),
        SharingAnswer,
    )
    where = f"domain {domain}" if domain else f"container {container}" if container else "all"
    state = {"on": "on", "off": "off", "unshared": "off, and pages are being detached"}[sharing]
    click.echo(f"Sharing is {state} for {where}; {answer.processes} running processes were told.")


@main.command()
@click.argument("pid", type=click.IntRange(min=1))
@json_option
@click.pass_obj
def logs(daemon: Daemon, pid: int, as_json: bool) -> None:
    """The records that libgksm in a process sent last."""
    found = daemon.ask(Logs(v=VERSION, pid=pid), LogsAnswer)
    if as_json:
        click.echo(to_json(found))
        return
    for record in found.records:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.time_ns // 10**9))
        click.echo(f"{stamp} {record.severity:7} {tables.printable(record.text)}")
    if found.dropped:
        click.echo(f"({found.dropped} records were dropped as too many)")
    if not found.records:
        click.echo(f"Process {pid} has sent no record.")


@main.command(name="doctor")
@json_option
@click.pass_obj
def doctor_command(daemon: Daemon, as_json: bool) -> None:
    """What on this host would stop gKSM, and how to mend it."""
    findings = doctor.examine(doctor.Host(daemon))
    if as_json:
        click.echo(to_json(findings))
    else:
        doctor.show(console(), findings)
    failed = [f.name for f in findings if f.verdict == "fail"]
    if failed:
        die(f"gKSM cannot work on this host: {', '.join(failed)}; mend what is marked fail.")


main.add_command(domain_commands.trust_domain)
main.add_command(scan_commands.scan)


if __name__ == "__main__":
    main()
