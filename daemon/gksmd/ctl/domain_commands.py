# SPDX-License-Identifier: Apache-2.0
"""gksmctl trust-domain: add, remove, list, show."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click
import msgspec

from gksmd.config import Config, ConfigError, GuardName, KindName, Size
from gksmd.ctl.client import EXIT_UNREACHABLE, EXIT_USAGE, Daemon, die, to_json
from gksmd.ctl.tables import console, size, table
from gksmd.domain_files import (
    Entry,
    Located,
    OverlapError,
    arrange,
    is_ours,
    read_entries,
    remove_entry,
    render,
    write_entry,
)
from gksmd.domains import KINDS, DomainError, Rule, Selector, check_name
from gksmd.jsonlines import VERSION
from gksmd.ops import (
    Check,
    CheckAnswer,
    DomainUsers,
    GetDomains,
    InfoAnswer,
    Reload,
    ReloadAnswer,
    UsersAnswer,
)
from gksmd.snapshot import DomainDetail

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")


@click.group(name="trust-domain")
def trust_domain() -> None:
    """Which tenants may share memory with each other.

    Any member of a domain can read every page published in it, and change it if it is
    hostile. Put together only what you would let share a file both can write.
    """


@trust_domain.command()
@click.argument("name")
@click.option(
    "--match",
    "selectors",
    multiple=True,
    metavar="SOURCE=VALUE",
    help="Who belongs to it: uid, cgroup, k8s-namespace, k8s-serviceaccount (NAMESPACE/NAME), "
    "container-name, image, image-digest, label.KEY. * and ? are wildcards. Several of one "
    "source are alternatives; different sources must all match.",
)
@click.option("--before", multiple=True, metavar="NAME", help="Try its rule before this domain's.")
@click.option("--after", multiple=True, metavar="NAME", help="Try its rule after this domain's.")
@click.option(
    "--share",
    default="weights",
    show_default=True,
    metavar="KINDS",
    help="What it shares: of weights, kv and other, with commas.",
)
@click.option(
    "--guard",
    type=click.Choice(["fault", "seal", "optimistic", "off", "auto"]),
    help="What keeps kernel writes safe (default: guard.default of gksm.toml).",
)
@click.option(
    "--budget",
    metavar="SIZE",
    default="0",
    help="GPU memory that its published pages may take on each GPU, like 16G.",
)
@click.option("--i-trust-all", is_flag=True, help="Allow a match that takes everybody.")
@click.option("--dry-run", is_flag=True, help="Check and show the file; change nothing.")
@click.pass_obj
def add(
    daemon: Daemon,
    *,
    name: str,
    selectors: tuple[str, ...],
    before: tuple[str, ...],
    after: tuple[str, ...],
    share: str,
    guard: GuardName | None,
    budget: str,
    i_trust_all: bool,
    dry_run: bool,
) -> None:
    """Write domains.d/NAME.toml and put it in force."""
    entry = _entry(
        name=name,
        selectors=selectors,
        before=before,
        after=after,
        share=share,
        guard=guard,
        budget=budget,
        trust_all=i_trust_all,
    )
    info, config_dir = _where(daemon)
    path = config_dir / "domains.d" / f"{name}.toml"
    _check_file(path, entry)
    _check_others(daemon.config(), config_dir, path, entry)
    moved = daemon.ask(Check(v=VERSION, domain=entry), CheckAnswer) if info else None
    if dry_run:
        click.echo(f"# {path} would be:\n{render(entry)}", nl=False)
    else:
        _write(daemon, config_dir, entry, running=info is not None)
        click.echo(f'Domain "{name}" is in {path}.')
    if moved is None:
        click.echo("gksmd is not running; the domain holds from its next start.")
        return
    click.echo(
        f"{_count(len(moved.containers), 'running container')} and "
        f"{_count(len(moved.pids), 'process', 'processes')} outside containers match it but keep "
        "their old domain until restarted."
    )


def _where(daemon: Daemon) -> tuple[InfoAnswer | None, Path]:
    """The running daemon, if one is, and the configuration; ends the program if they differ."""
    info = daemon.info()
    config_dir = daemon.config_dir()
    if info is not None and config_dir.resolve() != Path(info.config_dir).resolve():
        die(
            f"gksmd at {daemon.run_dir} reads {info.config_dir}, not {config_dir}; name that "
            "with --config-dir, or leave it out.",
            EXIT_USAGE,
        )
    return info, config_dir


def _entry(
    *,
    name: str,
    selectors: tuple[str, ...],
    before: tuple[str, ...],
    after: tuple[str, ...],
    share: str,
    guard: GuardName | None,
    budget: str,
    trust_all: bool,
) -> Entry:
    """Check the options by themselves; ends the program where they are wrong."""
    kinds: list[KindName] = []
    for word in filter(None, (part.strip() for part in share.split(","))):
        known = next((kind for kind in KINDS if kind == word), None)
        if known is None:
            die(f'--share cannot be "{word}"; choose of {", ".join(KINDS)}.', EXIT_USAGE)
        kinds.append(known)
    if not kinds:
        die("--share is empty; name what is shared, or use --guard off.", EXIT_USAGE)
    try:
        check_name(name)
        rule = Rule(tuple(Selector.parse(text) for text in selectors))
        amount = Size.parse(budget)
    except DomainError as error:
        die(f"{error}.", EXIT_USAGE)
    except ValueError:
        die(f'--budget cannot be "{budget}"; write a size such as 16G.', EXIT_USAGE)
    if rule.trusts_all and not trust_all:
        die(
            f'domain "{name}" would match everybody, and any member can read and write its '
            "pages; narrow it with --match, or add --i-trust-all.",
            EXIT_USAGE,
        )
    return Entry(
        name=name,
        match=selectors,
        share=tuple(dict.fromkeys(kinds)),
        guard=guard,
        budget=amount,
        before=before,
        after=after,
        trust_all=rule.trusts_all,
    )


def _check_file(path: Path, entry: Entry) -> None:
    if not path.exists():
        return
    if not is_ours(path):
        die(f"{path} was written by hand and is left alone; choose another name, or edit it.")
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if path.read_text(encoding="utf-8") == render(entry):
            return
    die(
        f'domain "{entry.name}" exists already; '
        f"delete it first with gksmctl trust-domain remove {entry.name}."
    )


def _check_others(config: Config, config_dir: Path, path: Path, entry: Entry) -> None:
    """Check it beside the other domains; ends the program where it does not fit."""
    try:
        others = [other for other in read_entries(config_dir) if other.path != path]
        names = [other.entry.name for other in others]
        for name in entry.before + entry.after:
            if name not in names:
                die(f'there is no domain "{name}"; list them with gksmctl trust-domain list.')
        arrange([*others, Located(entry, path, False)], config.identity.trusted_sources)
    except OverlapError as error:
        die(
            f'"{entry.name}" and "{error.other(entry.name)}" can match one container; say whose '
            f"rule is tried first with --before {error.other(entry.name)} or --after "
            f"{error.other(entry.name)}, or narrow --match."
        )
    except ConfigError as error:
        die(str(error), EXIT_USAGE)


def _write(daemon: Daemon, config_dir: Path, entry: Entry, *, running: bool) -> None:
    try:
        write_entry(config_dir, entry)
    except ConfigError as error:
        die(str(error))
    if running:
        try:
            daemon.ask(Reload(v=VERSION), ReloadAnswer)
        except SystemExit:
            # Not in force, so not on disk either: the next start would trip over it.
            with contextlib.suppress(ConfigError):
                remove_entry(config_dir, entry.name)
            raise


@trust_domain.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Also while gksmd is not running to say who lives.")
@click.pass_obj
def remove(daemon: Daemon, name: str, force: bool) -> None:
    """Delete a domain that `add` made. Refused while instances live in it."""
    try:
        check_name(name)
    except DomainError as error:
        die(f"{error}.", EXIT_USAGE)
    info, config_dir = _where(daemon)
    config = daemon.config()
    try:
        entries = read_entries(config_dir)
        # What it settles between two others must stay settled without it.
        arrange([e for e in entries if e.entry.name != name], config.identity.trusted_sources)
    except ConfigError as error:
        die(str(error), EXIT_USAGE)
    if name not in {located.entry.name for located in entries}:
        die(f'there is no domain "{name}"; list them with gksmctl trust-domain list.')
    if info is not None:
        users = daemon.ask(DomainUsers(v=VERSION, name=name), UsersAnswer)
        if users.pids or users.containers:
            die(
                f'domain "{name}" is in use by {_count(len(users.containers), "container")} and '
                f"{_count(len(users.pids), 'process', 'processes')}; stop them first "
                "(gksmctl ps lists them)."
            )
    elif not force:
        die(
            f'whether instances live in "{name}" cannot be known while gksmd is not running; '
            "start it, or add --force.",
            EXIT_UNREACHABLE,
        )
    try:
        path = remove_entry(config_dir, name)
    except ConfigError as error:
        die(str(error))
    if info is not None:
        daemon.ask(Reload(v=VERSION), ReloadAnswer)
    click.echo(f'Domain "{name}" is gone ({path}).')


@trust_domain.command(name="list")
@json_option
@click.pass_obj
def list_command(daemon: Daemon, as_json: bool) -> None:
    """The configured domains, in the order in which their rules are tried."""
    rows = daemon.ask(GetDomains(v=VERSION), list[DomainDetail])
    if as_json:
        click.echo(to_json(rows))
        return
    out = console()
    if not rows:
        out.print("No trust domain is configured, so nobody shares with anybody.")
        return
    out.print(
        table(
            ["#>", "domain", "match", "shares", "guard", "budget>", "instances>", "saved>"],
            [
                (
                    place,
                    row.name,
                    ", ".join(row.match) or "everything",
                    ",".join(row.share),
                    row.guard,
                    size(row.budget_bytes) if row.budget_bytes else "none",
                    row.instances,
                    size(row.saved_bytes),
                )
                for place, row in enumerate(rows, 1)
            ],
        )
    )


@trust_domain.command()
@click.argument("name")
@json_option
@click.pass_obj
def show(daemon: Daemon, name: str, as_json: bool) -> None:
    """One domain, whole."""
    rows = daemon.ask(GetDomains(v=VERSION), list[DomainDetail])
    row = next((row for row in rows if row.name == name), None)
    if row is None:
        die(f'there is no domain "{name}" in force; list them with gksmctl trust-domain list.')
    if as_json:
        click.echo(to_json(row))
        return
    values = msgspec.structs.asdict(row)
    values["match"] = ", ".join(row.match) or "everything"
    values["share"] = ", ".join(row.share)
    values["budget"] = size(values.pop("budget_bytes")) if row.budget_bytes else "none"
    values["saved"] = size(values.pop("saved_bytes"))
    console().print(table(["what", "value"], [(k, str(v)) for k, v in values.items()]))


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
