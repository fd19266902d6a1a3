# SPDX-License-Identifier: Apache-2.0
"""Trust domains on disk: ``domains.toml`` and ``domains.d/*.toml``, and their order.

The rules of ``domains.toml`` are tried in the order in which they stand there. Where
any two other rules could match one container, their files must say which is tried
first (``before``, ``after``): an order that follows from file names alone would be an
accident, and here an accident means the wrong tenants share memory.

gksmctl writes only files that it can recognise as its own by their first line, and
never changes another.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit

from gksmd.config import (
    ConfigError,
    GpuSize,
    GuardName,
    KindName,
    Section,
    Size,
    SourceName,
    convert,
    read_toml,
)
from gksmd.domains import Domain, DomainError, DomainSet, Rule, Selector, check_name

MARKER = "# Written by gksmctl trust-domain add"


class Entry(Section, frozen=True):
    """One ``[[domain]]``."""

    name: str
    match: tuple[str, ...] = ()
    share: tuple[KindName, ...] = ("weights",)
    guard: GuardName | None = None
    budget: Size = Size(0)
    host_copies: Size | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    trust_all: bool = False
    warm: GpuSize | None = None


class DomainFile(Section, frozen=True):
    """One file of domains."""

    domain: tuple[Entry, ...] = ()


class OverlapError(ConfigError):
    """Two rules can match one container, and nothing says which is tried first."""

    def __init__(self, sentence: str, names: tuple[str, str]) -> None:
        """``names`` are those of the two domains."""
        super().__init__(sentence)
        self.names = names

    def other(self, name: str) -> str:
        """The domain that is not ``name``."""
        return self.names[1] if self.names[0] == name else self.names[0]


@dataclass(frozen=True)
class Located:
    """An entry, the file it stands in, and whether that file orders its entries."""

    entry: Entry
    path: Path
    ordered: bool


def load_domains(config_dir: Path, trusted: tuple[SourceName, ...]) -> DomainSet:
    """Read all domains of ``config_dir``; ``trusted`` is identity.trusted_sources.

    No file at all is no domain at all. Raises ConfigError.
    """
    return arrange(read_entries(config_dir), trusted)


def read_entries(config_dir: Path) -> list[Located]:
    """The entries as they stand in the files, checked by themselves only."""
    main = config_dir / "domains.toml"
    found = [Located(entry, main, True) for entry in _read(main, missing_ok=True)]
    folder = config_dir / "domains.d"
    try:
        paths = sorted(p for p in folder.iterdir() if p.suffix == ".toml" and p.name[0] != ".")
    except FileNotFoundError:
        paths = []
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be read ({error.strerror}); make it readable."
        ) from None
    for path in paths:
        found += [Located(entry, path, False) for entry in _read(path)]
    return found


def arrange(entries: list[Located], trusted: tuple[SourceName, ...]) -> DomainSet:
    """Check the entries against each other and put them in order. Raises ConfigError."""
    domains: list[Domain] = []
    for located in entries:
        domain = _domain(located, trusted)
        for other in domains:
            if other.name == domain.name:
                raise ConfigError(
                    f'{located.path}: domain "{domain.name}" stands in {other.source} too; '
                    "rename or delete one."
                )
        domains.append(domain)
    order = _Order(entries, [d.rule or Rule(()) for d in domains])
    return DomainSet(tuple(domains[i] for i in order.sequence()))


def _read(path: Path, *, missing_ok: bool = False) -> tuple[Entry, ...]:
    return convert(read_toml(path, missing_ok=missing_ok), DomainFile, path).domain


def _domain(located: Located, trusted: tuple[SourceName, ...]) -> Domain:
    entry, path = located.entry, located.path
    try:
        check_name(entry.name)
        rule = Rule(tuple(Selector.parse(text) for text in entry.match))
        check_trusted(rule, trusted)
    except DomainError as error:
        raise ConfigError(f'{path}: domain "{entry.name}": {error}.') from None
    if not entry.share:
        raise ConfigError(
            f'{path}: domain "{entry.name}": share is empty; name what it shares, or write '
            'guard = "off" if it is to share nothing.'
        )
    if rule.trusts_all and not entry.trust_all:
        raise ConfigError(
            f'{path}: domain "{entry.name}" matches everybody; narrow its match, or write '
            "trust_all = true if every tenant of this host may read and write the others' pages."
        )
    return Domain(
        name=entry.name,
        kinds=frozenset(entry.share),
        guard=None if entry.guard == "auto" else entry.guard,
        budget_bytes=int(entry.budget),
        host_copy_bytes=None if entry.host_copies is None else int(entry.host_copies),
        rule=rule,
        source=path,
        warm=entry.warm,
    )


def check_trusted(rule: Rule, trusted: tuple[SourceName, ...]) -> None:
    """Raise DomainError where the rule uses a source that the operator does not trust."""
    for selector in rule.selectors:
        if selector.source not in trusted:
            why = (
                ", because the author of an image can choose its labels"
                if selector.source == "label"
                else ""
            )
            raise DomainError(
                f"{selector.source} is not trusted here{why}; add it to "
                "identity.trusted_sources of gksm.toml if only you choose it"
            )


class _Order:
    """The order of rules: what the files say, checked to settle every overlap."""

    def __init__(self, entries: list[Located], rules: list[Rule]) -> None:
        self._entries = entries
        self._rules = rules
        index = {located.entry.name: i for i, located in enumerate(entries)}
        # _after[i]: the rules tried after i. A name that is no domain orders nothing;
        # were it a misspelling that matters, the overlap check would say so.
        self._after: list[set[int]] = [set() for _ in entries]
        previous: int | None = None
        for i, located in enumerate(entries):
            self._after[i].update(index[n] for n in located.entry.before if n in index)
            for name in located.entry.after:
                if name in index:
                    self._after[index[name]].add(i)
            if located.ordered:
                if previous is not None:
                    self._after[previous].add(i)
                previous = i

    def sequence(self) -> list[int]:
        """Indices in the order in which to try them. Raises ConfigError."""
        waiting = {i: sum(i in after for after in self._after) for i in range(len(self._entries))}
        done: list[int] = []
        while waiting:
            ready = [i for i, count in waiting.items() if not count]
            if not ready:
                names = ", ".join(f'"{self._entries[i].entry.name}"' for i in waiting)
                raise ConfigError(
                    f"{self._entries[min(waiting)].path}: before and after of {names} go in a "
                    "circle; delete one of them."
                )
            done.append(min(ready))
            del waiting[done[-1]]
            for i in self._after[done[-1]] & waiting.keys():
                waiting[i] -= 1
        self._check_overlaps(done)
        return done

    def _check_overlaps(self, order: list[int]) -> None:
        later: dict[int, set[int]] = {}
        for i in reversed(order):
            later[i] = self._after[i].union(*(later[j] for j in self._after[i]))
        for place, i in enumerate(order):
            for j in order[place + 1 :]:
                if j not in later[i] and self._rules[i].overlaps(self._rules[j]):
                    new, old = max(i, j), min(i, j)
                    name, other = self._entries[new].entry.name, self._entries[old].entry.name
                    raise OverlapError(
                        f'{self._entries[new].path}: rules of "{name}" ({self._rules[new]}) and '
                        f'"{other}" ({self._rules[old]}) can match one container; say which is '
                        f'tried first with before = ["{other}"] or after = ["{other}"].',
                        (name, other),
                    )


def render(entry: Entry) -> str:
    """The text of the file that gksmctl writes for ``entry``."""
    document = tomlkit.document()
    document.add(tomlkit.comment(MARKER.removeprefix("# ")))
    document.add(tomlkit.comment(f"Delete with: gksmctl trust-domain remove {entry.name}"))
    document.add(tomlkit.nl())
    table = tomlkit.table()
    values: dict[str, Any] = {"name": entry.name, "match": list(entry.match)}
    values["share"] = list(entry.share)
    if entry.guard is not None:
        values["guard"] = entry.guard
    if entry.budget:
        values["budget"] = int(entry.budget)
    if entry.host_copies is not None:
        values["host_copies"] = int(entry.host_copies)
    if entry.warm is not None:
        values["warm"] = entry.warm.written()
    if entry.before:
        values["before"] = list(entry.before)
    if entry.after:
        values["after"] = list(entry.after)
    if entry.trust_all:
        values["trust_all"] = True
    for key, value in values.items():
        table.add(key, value)
    tables = tomlkit.aot()
    tables.append(table)
    document.add("domain", tables)
    return tomlkit.dumps(document)


def is_ours(path: Path) -> bool:
    """Whether gksmctl wrote the file."""
    try:
        with path.open("rb") as stream:
            return stream.readline(256).decode(errors="replace").startswith(MARKER)
    except OSError:
        return False


def write_entry(config_dir: Path, entry: Entry) -> Path:
    """Write ``domains.d/NAME.toml``, whole or not at all. Raises ConfigError."""
    path = config_dir / "domains.d" / f"{entry.name}.toml"
    temporary = path.with_name(f".{path.name}.new")
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
            path.parent.chmod(0o755)  # whatever the umask: gksmd is another user
        with temporary.open("w", encoding="utf-8") as stream:
            os.fchmod(stream.fileno(), 0o644)
            stream.write(render(entry))
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise ConfigError(
            f"{path}: cannot be written ({error.strerror}); run gksmctl as the owner of "
            f"{config_dir}."
        ) from None
    return path


def remove_entry(config_dir: Path, name: str) -> Path:
    """Delete the file that ``write_entry`` wrote for ``name``. Raises ConfigError."""
    path = config_dir / "domains.d" / f"{name}.toml"
    if not is_ours(path):
        raise ConfigError(
            f'domain "{name}" was not added by gksmctl; delete it from the file where you wrote it.'
        )
    try:
        path.unlink()
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be deleted ({error.strerror}); run gksmctl as the owner of "
            f"{config_dir}."
        ) from None
    return path
