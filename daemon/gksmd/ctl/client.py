# SPDX-License-Identifier: Apache-2.0
"""How gksmctl talks to gksmd, and how it says that it cannot."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from gksmd.config import CONFIG_DIR, Config, ConfigError, encode_hook, load_config
from gksmd.jsonlines import VERSION, Request
from gksmd.ops import AdminRequest, Info, InfoAnswer

EXIT_REFUSED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
TIMEOUT_SECONDS = 30.0

T = TypeVar("T")


class UnreachableError(Exception):
    """No daemon answers; the text is one sentence with the way out."""


class _Answer(msgspec.Struct, frozen=True):
    v: int
    ok: bool
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""


def die(sentence: str, code: int = EXIT_REFUSED) -> NoReturn:
    """End the program with one sentence that names the thing, the reason, the way out."""
    print(f"gksmctl: {sentence}", file=sys.stderr)
    raise SystemExit(code)


@dataclass(frozen=True)
class Daemon:
    """Where gksmd is expected; connects anew for each request."""

    run_dir: Path
    config_dir_given: Path | None = None

    def ask(self, request: Request, kind: type[T], timeout_s: float | None = TIMEOUT_SECONDS) -> T:
        """One request, its answer as ``kind``. Ends the program where there is none.

        ``timeout_s``: None for a request that takes as long as it takes.
        """
        try:
            return msgspec.json.decode(self.ask_raw(request, timeout_s), type=kind)
        except UnreachableError as error:
            die(str(error), EXIT_UNREACHABLE)
        except msgspec.DecodeError as error:
            die(
                f"gksmd's answer is not understood ({error}); install gksmctl and gksmd of "
                "one release.",
                EXIT_UNREACHABLE,
            )

    def ask_raw(self, request: Request, timeout_s: float | None = TIMEOUT_SECONDS) -> bytes:
        """The result as JSON. UnreachableError if nobody answers; a refusal ends the program."""
        answer = self._exchange(self.run_dir / self._socket_of(request), request, timeout_s)
        if not answer.ok:
            die(answer.error)
        return bytes(answer.result)

    def info(self) -> InfoAnswer | None:
        """What the admin socket says of the daemon; None if it is not running.

        Ends the program where it runs and one may not ask.
        """
        try:
            return msgspec.json.decode(self.ask_raw(Info(v=VERSION)), type=InfoAnswer)
        except UnreachableError as error:
            if isinstance(error.__cause__, PermissionError):
                die(str(error), EXIT_UNREACHABLE)
            return None

    def config_dir(self) -> Path:
        """Where the configuration is: given, the running daemon's, or the default."""
        if self.config_dir_given is not None:
            return self.config_dir_given
        info = self.info()
        return Path(info.config_dir) if info else CONFIG_DIR

    def config_dir_if_known(self) -> Path:
        """The same without ending the program: the default where one may not ask."""
        if self.config_dir_given is not None:
            return self.config_dir_given
        try:
            return Path(
                msgspec.json.decode(self.ask_raw(Info(v=VERSION)), type=InfoAnswer).config_dir
            )
        except (UnreachableError, msgspec.DecodeError):
            return CONFIG_DIR

    def config(self) -> Config:
        """The configuration there; ends the program if it cannot be used."""
        try:
            return load_config(self.config_dir())
        except ConfigError as error:
            die(str(error), EXIT_USAGE)

    @staticmethod
    def _socket_of(request: Request) -> str:
        return "admin.sock" if isinstance(request, AdminRequest) else "status.sock"

    def _exchange(self, path: Path, request: Request, timeout_s: float | None) -> _Answer:
        line = msgspec.json.encode(request, enc_hook=encode_hook) + b"\n"
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.settimeout(timeout_s)
                sock.connect(os.fspath(path))
                # Somebody who is turned away has an answer waiting, and cannot send.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    sock.sendall(line)
                with sock.makefile("rb") as stream:
                    return msgspec.json.decode(stream.readline(), type=_Answer)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
            raise UnreachableError(
                f"gksmd is not running at {self.run_dir}; start it (systemctl start gksmd), or "
                "name its folder with --run-dir."
            ) from error
        except PermissionError as error:
            raise UnreachableError(f"{path} is not yours to use; run gksmctl with sudo.") from error
        except TimeoutError as error:
            raise UnreachableError(
                f"gksmd at {self.run_dir} did not answer in {timeout_s:.0f} s; "
                "look at its log (journalctl -u gksmd)."
            ) from error
        except (OSError, msgspec.DecodeError) as error:
            raise UnreachableError(
                f"gksmd at {self.run_dir} broke off ({error}); try again, or look at its log "
                "(journalctl -u gksmd)."
            ) from error


def is_socket(path: Path) -> bool:
    """Whether there is a socket file; it need not be served."""
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False


def to_json(value: Any) -> str:
    """For ``--json``: indented, in the order of the contract."""
    raw = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return msgspec.json.format(raw, indent=2).decode()
