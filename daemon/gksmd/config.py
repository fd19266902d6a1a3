# SPDX-License-Identifier: Apache-2.0
"""What the operator may set: ``gksm.toml``, read once at start.

Every key has a default that is right for most hosts, so the file may be missing.
A key we do not know or a value of the wrong type is an error, never a guess: a
misspelt quota that silently means "none" would be worse than a daemon that does not
start. ``configs/gksm.toml`` shows all keys with their defaults; a test compares the
two.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import tomli

T = TypeVar("T")

CONFIG_DIR = Path("/etc/gksm")
EXIT_CONFIG = 2

GuardName = Literal["auto", "fault", "seal", "optimistic", "off"]
KindName = Literal["weights", "kv", "other"]
SourceName = Literal[
    "uid",
    "container-name",
    "image",
    "image-digest",
    "label",
    "k8s-namespace",
    "k8s-serviceaccount",
    "cgroup",
]
Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]

_SIZE = re.compile(r"(\d+)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class ConfigError(Exception):
    """The configuration cannot be used; the text is one sentence for the operator."""


class Size(int):
    """A number of bytes; in TOML an integer, or text with K, M, G or T (1024-based)."""

    @classmethod
    def parse(cls, value: object) -> Size:
        """Turn 4096, "64M" or "8 GiB" into bytes; ValueError says what is expected."""
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return cls(value)
        if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
            return cls(int(match[1]) * _FACTORS[match[2].upper()])
        raise ValueError('Expected a size such as 67108864 or "64M"')


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One table of ``gksm.toml``."""


class Bare(Section, frozen=True):
    """Processes that are in no container."""

    # Whose bare processes may connect to gksm.sock; empty: the daemon's own uid alone.
    uids: tuple[Count, ...] = ()
    # The domain of one that no rule matches: itself alone, or one domain for each uid.
    default_domain: Literal["process", "uid"] = "process"


class Identity(Section, frozen=True):
    """How a peer is identified, and what of that may choose its domain."""

    # auto: SO_PEERPIDFD where the kernel has it; proc forces the path of older kernels.
    mode: Literal["auto", "pidfd", "proc"] = "auto"
    # "label" is not among them because an image can carry labels its author chose.
    trusted_sources: tuple[SourceName, ...] = (
        "uid",
        "container-name",
        "image",
        "image-digest",
        "k8s-namespace",
        "k8s-serviceaccount",
        "cgroup",
    )


class Vault(Section, frozen=True):
    """The process that holds the descriptors of published pages."""

    # spawn: gksmd starts one if none answers; service: systemd runs gksm-vault.service.
    mode: Literal["spawn", "service"] = "spawn"
    connect_ms: Milliseconds = 10_000


class Load(Section, frozen=True):
    """Bounds of the load path, all in milliseconds."""

    lease_deadline_ms: Milliseconds = 10_000
    load_wait_ms: Milliseconds = 20_000
    order_wait_ms: Milliseconds = 100


class Guard(Section, frozen=True):
    """What makes a read-only mapping safe, and its bounds in milliseconds."""

    # auto: fault where the process offers it, else seal. A domain may ask for another.
    default: GuardName = "auto"
    hold_deadline_ms: Milliseconds = 500
    # How long the GPU may stand still for one instance in any one second.
    stall_budget_ms: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50
    drain_ms: Milliseconds = 20


class Memory(Section, frozen=True):
    """GPU and host memory that gKSM may hold itself."""

    # Of each GPU, never promised: what copies on write are served from at the worst.
    reserve_bytes: Size = Size(64 << 20)
    # Prepared private pages of each instance, at most.
    spare_pages: Count = 16
    # Host copies of published pages, for each domain.
    host_copy_bytes: Size = Size(8 << 30)


class Scan(Section, frozen=True):
    """How equal pages are looked for that did not come by the load path.

    ``gksmctl scan set`` changes these while gksmd runs; a restart reads the file again.
    """

    # false: only `gksmctl scan now` looks.
    run: bool = True
    # Between two passes over an instance's pages; doubles up to the maximum while they
    # find nothing.
    interval_ms: Milliseconds = 1000
    max_interval_ms: Milliseconds = 16_000
    # Equal hashes in a row that make a page stable.
    stable_hashes: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    # Of an instance's time that looking may take.
    max_percent: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10
    # Merge pages of zeros, too: each is a debt of one page, due at the first write.
    zero_pages: bool = False


class Quota(Section, frozen=True):
    """What may be used; 0: no limit."""

    connections: Count = 0
    # Requests received and not yet answered.
    bytes_in_flight: Size = Size(0)
    lookups_per_second: Count = 0
    published_pages: Count = 0
    host_copy_bytes: Size = Size(0)


class ContainerQuota(Quota, frozen=True):
    """What one container may use; a bare process counts as one."""

    connections: Count = 64
    bytes_in_flight: Size = Size(8 << 20)
    lookups_per_second: Count = 200_000
    published_pages: Count = 131_072
    host_copy_bytes: Size = Size(8 << 30)


class DomainQuota(Quota, frozen=True):
    """What one domain may use; its host copies are memory.host_copy_bytes, too."""

    connections: Count = 1024
    bytes_in_flight: Size = Size(64 << 20)
    lookups_per_second: Count = 1_000_000
    published_pages: Count = 262_144


class Quotas(Section, frozen=True):
    """The two levels at which use is counted."""

    container: ContainerQuota = ContainerQuota()
    domain: DomainQuota = DomainQuota()


class Grace(Section, frozen=True):
    """How long something that may come back is waited for, in milliseconds."""

    # After a start, for the instances that were connected before to announce their pages.
    announce_ms: Milliseconds = 10_000
    # For a container that was prepared to be bound.
    prepare_ms: Milliseconds = 300_000


class Metrics(Section, frozen=True):
    """Prometheus."""

    # "127.0.0.1:9838", "[::1]:9838"; empty: off.
    listen: str = ""


class Logs(Section, frozen=True):
    """Records that instances send, shown by ``gksmctl logs``."""

    records_per_instance: Positive = 256
    records_per_second: Positive = 50


class Sockets(Section, frozen=True):
    """Bounds of the admin, runtime and status sockets."""

    clients: Positive = 64
    line_bytes: Annotated[int, msgspec.Meta(ge=1024)] = 65_536


class Config(Section, frozen=True):
    """All of ``gksm.toml``."""

    # Sockets; cleared by a reboot. --run-dir of gksmd and gksmctl overrides it.
    run_dir: Path = Path("/run/gksm")
    # What must outlive a reboot or a crash of gksmd; with --run-dir it lies below that.
    state_dir: Path = Path("/var/lib/gksm")
    bare: Bare = Bare()
    identity: Identity = Identity()
    vault: Vault = Vault()
    load: Load = Load()
    guard: Guard = Guard()
    memory: Memory = Memory()
    scan: Scan = Scan()
    quota: Quotas = Quotas()
    grace: Grace = Grace()
    metrics: Metrics = Metrics()
    logs: Logs = Logs()
    sockets: Sockets = Sockets()

    @property
    def client_socket(self) -> Path:
        """Where bare processes connect."""
        return self.run_dir / "gksm.sock"

    @property
    def containers_dir(self) -> Path:
        """Parent of one directory for each container, each with a socket of its own."""
        return self.run_dir / "c"

    @property
    def admin_socket(self) -> Path:
        """For root and the daemon's own uid."""
        return self.run_dir / "admin.sock"

    @property
    def runtime_socket(self) -> Path:
        """For the container runtime's hook: root and the daemon's own uid."""
        return self.run_dir / "runtime.sock"

    @property
    def status_socket(self) -> Path:
        """For everybody, read-only."""
        return self.run_dir / "status.sock"

    @property
    def vault_socket(self) -> Path:
        """Between gksmd and gksm-vault."""
        return self.run_dir / "vault.sock"

    @property
    def bare_uids(self) -> frozenset[int]:
        """The uids whose bare processes may connect."""
        return frozenset(self.bare.uids or (os.getuid(),))


def load_config(config_dir: Path = CONFIG_DIR, run_dir: Path | None = None) -> Config:
    """Read ``gksm.toml`` of ``config_dir``; ``run_dir`` overrides the file's.

    A missing file means the defaults. Raises ConfigError.
    """
    path = config_dir / "gksm.toml"
    table = read_toml(path, missing_ok=True)
    config = convert(table, Config, path)
    if run_dir is not None:
        run_dir = run_dir.absolute()
        config = msgspec.structs.replace(config, run_dir=run_dir, state_dir=run_dir / "state")
    for key, value in (("run_dir", config.run_dir), ("state_dir", config.state_dir)):
        if not value.is_absolute():
            raise ConfigError(f"{path}: {key} is {value}; make it an absolute path.")
    # sun_path is 108 bytes; the longest of our sockets is that of a container.
    if len(os.fsencode(config.run_dir)) > 85:
        raise ConfigError(
            f"{config.run_dir}: too long for the sockets below it; choose a run_dir of "
            "at most 85 bytes."
        )
    if config.metrics.listen:
        try:
            listen_address(config.metrics.listen)
        except ValueError:
            raise ConfigError(
                f'{path}: metrics.listen is "{config.metrics.listen}", which is not '
                'HOST:PORT; write for example "127.0.0.1:9838", or "" to turn it off.'
            ) from None
    return config


def listen_address(text: str) -> tuple[str, int]:
    """Split ``HOST:PORT`` or ``[IPV6]:PORT``; ValueError if it is neither."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or (":" in host and not bracketed):
        raise ValueError(text)
    number = int(port)
    if not 0 <= number <= 65535:
        raise ValueError(text)
    return (host[1:-1] if bracketed else host), number


def read_toml(path: Path, *, missing_ok: bool = False) -> dict[str, Any]:
    """Parse one file; ConfigError names the file, the place and the reason.

    A file that somebody else could change is refused: it says who is trusted.
    """
    try:
        with path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            if status.st_mode & stat.S_IWOTH or status.st_uid not in (0, os.geteuid()):
                raise ConfigError(
                    f"{path}: others could change whom gKSM trusts; make it yours or root's, "
                    "and not writable by others (chmod o-w)."
                )
            return tomli.load(stream)
    except FileNotFoundError:
        if missing_ok:
            return {}
        raise ConfigError(f"{path}: there is no such file; create it.") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); make it readable.") from None
    except tomli.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}; correct it there.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not valid TOML: not UTF-8; save it as UTF-8.") from None


def convert(table: dict[str, Any], kind: type[T], path: Path) -> T:
    """Check ``table`` against ``kind`` and build it; ConfigError names file and key."""
    try:
        return msgspec.convert(table, kind, dec_hook=decode_hook)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_explain(str(error), kind)}") from None


def decode_hook(kind: type[Any], value: object) -> object:
    """For msgspec: how the types of this module are read."""
    if kind is Size:
        return Size.parse(value)
    if kind is Path:
        if not isinstance(value, str) or not value or "\0" in value:
            raise ValueError("Expected a path")
        return Path(value)
    raise NotImplementedError(kind)


def encode_hook(value: object) -> object:
    """For msgspec: how the types of this module are written."""
    if isinstance(value, Size):
        return int(value)
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value))


def _explain(message: str, kind: type[Any]) -> str:
    """Turn msgspec's message into a sentence with the key and a way out."""
    reason, _, place = message.partition(" - at `$")
    place = re.sub(r"\[(\d*|\.\.\.)\]", "", place.rstrip("`").lstrip("."))
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", reason, re.DOTALL):
        key = ".".join(filter(None, (place, unknown[1])))
        known = _fields(kind, place)
        near = difflib.get_close_matches(unknown[1], known, 1)
        hint = f'did you mean "{near[0]}"' if near else f"known here: {', '.join(known)}"
        return f"{key} is not a key that gKSM knows; {hint}."
    if missing := re.fullmatch(r"Object missing required field `(.*)`", reason):
        key = ".".join(filter(None, (place, missing[1])))
        return f"{key} is missing; add it."
    reason = reason.replace("`", "").removeprefix("Expected ")
    if reason.startswith("Invalid enum value "):
        value = reason.removeprefix("Invalid enum value ")
        return f"{place} cannot be {value}; {_choices(kind, place)}."
    return f"{place or 'the file'} must be {reason}; correct it, or delete it to get the default."


def _resolve(kind: Any, place: str) -> Any:
    """The type that stands at the dotted ``place`` below ``kind``."""
    for name in filter(None, place.split(".")):
        while not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            arguments = [a for a in getattr(kind, "__args__", ()) if a is not Ellipsis]
            if not arguments:
                return None
            kind = arguments[0]
        kind = next(
            (field.type for field in msgspec.structs.fields(kind) if field.encode_name == name),
            None,
        )
    return kind


def _fields(kind: Any, place: str) -> list[str]:
    kind = _resolve(kind, place)
    while kind is not None and not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        arguments = getattr(kind, "__args__", ())
        kind = arguments[0] if arguments else None
    return [field.encode_name for field in msgspec.structs.fields(kind)] if kind else []


def _choices(kind: Any, place: str) -> str:
    kind = _resolve(kind, place)
    while getattr(kind, "__args__", ()) and not isinstance(kind.__args__[0], str):
        kind = kind.__args__[0]
    names = [str(name) for name in getattr(kind, "__args__", ())]
    return f"choose one of {', '.join(names)}" if names else "choose another value"
