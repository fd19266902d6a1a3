# SPDX-License-Identifier: Apache-2.0
"""Trust domains: which processes may have their pages compared with whose.

A domain is a boundary of read AND write trust: a hostile member can read any page
published in it and can map it writable. So membership is decided only by what the
workload cannot choose for itself:

``uid``                the kernel's uid of a process outside containers. It never
                       matches a container: their roots are all uid 0.
``cgroup``             the kernel's cgroup path, at or below VALUE.
``k8s-namespace``      from the CRI runtime, never from a pod's own annotations.
``k8s-serviceaccount`` likewise, always as NAMESPACE/NAME, because every namespace's
                       owner can create an account of any name.
``image-digest``       what the engine resolved the image to.
``image``              \\  whoever starts the container chooses these. With Docker that
``container-name``      > is root's equal; with Kubernetes it is any pod author, so
``label.KEY``          /  there they count only beside k8s-namespace,
                          k8s-serviceaccount, image-digest or cgroup in the same rule.

``label`` must also be listed in ``identity.trusted_sources`` of gksm.toml, because
Docker mixes the labels that an image's author wrote with those of ``docker run``.
Environment variables, annotations and CDI device names are no source at all.

Within a rule, several values of one source are alternatives, and different sources
must all match. In values ``*`` is any text and ``?`` any one character. The first
rule in order that matches decides; without one a container or process is a domain by
itself and shares with nobody. A domain is decided once, when a container is prepared
or a bare process connects, and kept for its life.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gksmd.config import GpuSize, GuardName, KindName

DOMAIN_NAME_MAX = 63  # char domain[64] of protocol.h, with its terminator
KINDS: tuple[KindName, ...] = ("weights", "kv", "other")  # enum gksm_kind, in order
BARE_SOURCES = frozenset({"uid"})
CONTAINER_SOURCES = frozenset(
    {"container-name", "image", "image-digest", "label", "k8s-namespace", "k8s-serviceaccount"}
)
SOURCES = BARE_SOURCES | CONTAINER_SOURCES | {"cgroup"}
# Whoever starts the container chooses them.
STARTER_SOURCES = frozenset({"container-name", "image", "label"})

_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")


class DomainError(ValueError):
    """A selector or a domain that cannot be; the text is a phrase for a sentence."""


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """What the container runtime's hook told about a container."""

    id: str
    engine: str  # docker, podman, containerd or cri
    name: str = ""
    image: str = ""
    image_digest: str = ""
    labels: dict[str, str] = {}
    k8s_namespace: str = ""
    k8s_serviceaccount: str = ""
    k8s_pod: str = ""


@dataclass(frozen=True)
class Subject:
    """Somebody whose domain is asked for: a container, or a process outside of any."""

    uid: int
    pid: int = 0
    start_time: int = 0  # field 22 of /proc/PID/stat
    cgroup: str = ""
    container: Container | None = None

    def value(self, source: str, key: str) -> str | None:
        """What ``source`` says about the subject; None where it says nothing."""
        if source == "cgroup":
            return self.cgroup or None
        if source == "uid":
            return str(self.uid) if self.container is None else None
        box = self.container
        if box is None:
            return None
        if source == "label":
            return box.labels.get(key)
        if source in ("k8s-namespace", "k8s-serviceaccount") and box.engine != "cri":
            return None
        if source == "k8s-serviceaccount" and box.k8s_serviceaccount:
            return f"{box.k8s_namespace}/{box.k8s_serviceaccount}"
        values = {
            "container-name": box.name,
            "image": box.image,
            "image-digest": box.image_digest,
            "k8s-namespace": box.k8s_namespace,
        }
        return values.get(source) or None


@dataclass(frozen=True)
class Selector:
    """One SOURCE=VALUE."""

    source: str
    key: str  # of a label; else ""
    pattern: str

    @classmethod
    def parse(cls, text: str) -> Selector:
        """Read SOURCE=VALUE. Raises DomainError."""
        name, equals, pattern = text.partition("=")
        source, dot, key = name.partition(".")
        if not equals:
            raise DomainError(f'"{text}" is not SOURCE=VALUE; write for example uid=1000')
        if source not in SOURCES or bool(dot) != (source == "label") or (dot and not key):
            known = ", ".join(sorted((SOURCES - {"label"}) | {"label.KEY"}))
            raise DomainError(f'"{name}" is not a source gKSM can trust; choose one of {known}')
        if len(text) > 512 or not text.isprintable():
            raise DomainError(f"a selector of {name} is too long or has control characters")
        if not pattern:
            pattern = "*"
        if source == "uid" and not re.fullmatch(r"[0-9*?]+", pattern):
            raise DomainError(f'uid must be a number, not "{pattern}"; look it up with id -u NAME')
        if source == "k8s-serviceaccount" and "/" not in pattern and not match_all(pattern):
            raise DomainError(
                f'k8s-serviceaccount must be NAMESPACE/NAME, not "{pattern}"; any namespace can '
                "have an account of that name"
            )
        if source == "cgroup":
            pattern = "/" + pattern.strip("/") if pattern.strip("/") not in ("", "*") else "*"
        return cls(source, key, pattern)

    @property
    def group(self) -> str:
        """Selectors of one group are alternatives."""
        return f"{self.source}.{self.key}" if self.key else self.source

    @property
    def patterns(self) -> tuple[str, ...]:
        """The globs that a value must match one of."""
        below = self.source == "cgroup" and self.pattern != "*"
        return (self.pattern, self.pattern + "/*") if below else (self.pattern,)

    def matches(self, subject: Subject) -> bool:
        """Whether the subject has this value."""
        value = subject.value(self.source, self.key)
        return value is not None and any(glob_match(p, value) for p in self.patterns)

    def __str__(self) -> str:
        return f"{self.group}={self.pattern}"


@dataclass(frozen=True)
class Rule:
    """Who belongs to a domain."""

    selectors: tuple[Selector, ...]

    @property
    def groups(self) -> dict[str, list[Selector]]:
        """The selectors by source (and label key)."""
        groups: dict[str, list[Selector]] = {}
        for selector in self.selectors:
            groups.setdefault(selector.group, []).append(selector)
        return groups

    @property
    def trusts_all(self) -> bool:
        """Whether nothing narrows it: no selector, or every source takes any value."""
        return all(any(match_all(s.pattern) for s in g) for g in self.groups.values())

    def matches(self, subject: Subject) -> bool:
        """Whether the subject belongs."""
        if not all(any(s.matches(subject) for s in g) for g in self.groups.values()):
            return False
        box = subject.container
        if box is None or box.engine != "cri" or self.trusts_all:
            return True
        return any(s.source not in STARTER_SOURCES for s in self.selectors)

    def overlaps(self, other: Rule) -> bool:
        """Whether one subject could match both; True where that cannot be excluded."""
        sources = {s.source for s in self.selectors + other.selectors}
        if sources & BARE_SOURCES and sources & CONTAINER_SOURCES:
            return False
        theirs = other.groups
        return all(
            any(
                glob_overlap(p, q)
                for s in group
                for t in theirs[name]
                for p in s.patterns
                for q in t.patterns
            )
            for name, group in self.groups.items()
            if name in theirs
        )

    def __str__(self) -> str:
        return ", ".join(str(s) for s in self.selectors) or "everything"


@dataclass(frozen=True)
class Domain:
    """One trust domain as it is configured. Domains of one name are one boundary."""

    name: str
    kinds: frozenset[KindName] = frozenset({"weights"})
    guard: GuardName | None = None  # None: guard.default of gksm.toml
    budget_bytes: int = 0  # of GPU memory its published pages may take, per GPU; 0: no limit
    host_copy_bytes: int | None = None  # None: memory.host_copy_bytes of gksm.toml
    rule: Rule | None = None  # None: a default domain, made for one subject
    source: Path | None = None  # the file it stands in
    warm: GpuSize | None = None  # of each GPU; None: memory.warm_bytes, with the others

    @property
    def kind_mask(self) -> int:
        """Bit (1 << enum gksm_kind) for each kind that it shares."""
        return sum(1 << KINDS.index(kind) for kind in self.kinds)


@dataclass(frozen=True)
class Decision:
    """The domain somebody was given, and why, as a clause for people."""

    domain: Domain
    reason: str


@dataclass(frozen=True)
class DomainSet:
    """All configured domains, in the order in which their rules are tried."""

    domains: tuple[Domain, ...] = ()
    by_name: Mapping[str, Domain] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {d.name: d for d in self.domains})

    def __iter__(self) -> Iterator[Domain]:
        return iter(self.domains)

    def decide(self, subject: Subject, *, bare_default: str = "process") -> Decision:
        """The domain of ``subject``; ``bare_default`` is bare.default_domain of gksm.toml."""
        for domain in self.domains:
            if domain.rule is not None and domain.rule.matches(subject):
                return Decision(domain, f"rule {domain.rule} in {domain.source}")
        name = default_name(subject, bare_default=bare_default)
        if name.startswith("uid:"):
            return Decision(
                Domain(name), 'no rule matches, and bare.default_domain of gksm.toml is "uid"'
            )
        return Decision(Domain(name), "no rule matches, so it is a domain by itself")

    def matching(self, subjects: Iterable[Subject], name: str) -> int:
        """How many of ``subjects`` would be in domain ``name`` if decided now."""
        return sum(1 for s in subjects if self.decide(s).domain.name == name)


def default_name(subject: Subject, *, bare_default: str = "process") -> str:
    """The name of a default domain: unique to the subject, and never a configured name.

    Configured names have no colon. A process's has its start time, so that one which
    gets a dead process's pid cannot meet its warm pages.
    """
    if subject.container is not None:
        name = f"container:{subject.container.id}"
        if len(name.encode()) <= DOMAIN_NAME_MAX and subject.container.id.isascii():
            return name
        digest = hashlib.sha256(subject.container.id.encode()).hexdigest()
        head = re.sub(r"[^A-Za-z0-9]", "", subject.container.id)[:20]
        return f"container:{head}-{digest[:32]}"
    if bare_default == "uid":
        return f"uid:{subject.uid}"
    return f"pid:{subject.pid}.{subject.start_time}"


def check_name(name: str) -> None:
    """Raise DomainError unless ``name`` can be a configured domain's."""
    if not _NAME.fullmatch(name):
        raise DomainError(
            f'"{name}" cannot be a domain\'s name; use at most {DOMAIN_NAME_MAX} of a-z, 0-9, '
            '".", "_" and "-", beginning and ending with a letter or digit'
        )


def match_all(pattern: str) -> bool:
    """Whether a glob matches every value that is not empty."""
    return "*" in pattern and pattern.strip("*") in ("", "?")


def glob_match(pattern: str, value: str) -> bool:
    """Match ``*`` and ``?``; every other character stands for itself.

    Takes time of at most length times length: a tenant chooses the values.
    """
    at = place = mark = 0
    star = -1
    while place < len(value):
        if at < len(pattern) and pattern[at] == "*":
            star, mark = at, place
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", value[place]):
            at += 1
            place += 1
        elif star >= 0:
            mark += 1
            at, place = star + 1, mark
        else:
            return False
    return not pattern[at:].strip("*")


def glob_overlap(left: str, right: str) -> bool:
    """Whether some text matches both globs."""
    # reach[j]: left[:i] and right[:j] have a common text.
    reach = [True] + [False] * len(right)
    for j, c in enumerate(right):
        reach[j + 1] = reach[j] and c == "*"
    for a in left:
        row = [reach[0] and a == "*"]
        for j, b in enumerate(right):
            one = reach[j] and (a == b or "?" in (a, b))
            row.append(one or ("*" in (a, b) and (reach[j + 1] or row[j])))
        reach = row
    return reach[-1]
