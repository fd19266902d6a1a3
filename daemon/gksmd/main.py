# SPDX-License-Identifier: Apache-2.0
"""gksmd: reads the configuration, starts the core and its sockets, stops on SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gksmd.config import CONFIG_DIR, EXIT_CONFIG, Config, ConfigError, load_config
from gksmd.control import Control
from gksmd.policy import Policy
from gksmd.server import Server
from gksmd.wire import raise_descriptor_limit

LOG = logging.getLogger("gksmd")


class AlreadyRunningError(Exception):
    """Another gksmd has this run directory."""


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Hold the run directory: the sockets in it are ours alone to replace."""
    run_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
    lock = os.open(run_dir / "gksmd.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunningError from None
        yield
    finally:
        os.close(lock)


async def serve(config: Config, policy: Policy) -> None:
    """Run until SIGTERM or SIGINT; SIGHUP reads the domains again."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = Server(config, policy.decide, lambda: policy.domains.by_name)
    control = Control(config, policy, server)
    loop.add_signal_handler(signal.SIGHUP, control.reload)
    try:
        await server.start()
        await control.start()
        LOG.info("ready in %s", config.run_dir)
        notify_ready()
        await stop.wait()
        LOG.info("ending; published pages stay with the vault")
    finally:
        await control.close()
        await server.stop()


def notify_ready() -> None:
    """Tell systemd, if it started us, that the sockets are open."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.sendto(b"READY=1", "\0" + address[1:] if address[0] == "@" else address)
        except OSError as error:
            LOG.warning("systemd cannot be told that gksmd is ready: %s", error)


def main(arguments: list[str] | None = None) -> int:
    """Run gksmd; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="gksmd", description="Decides which GPU pages are shared, and with whom."
    )
    parser.add_argument("--config-dir", type=Path, default=CONFIG_DIR, metavar="DIR")
    parser.add_argument(
        "--run-dir", type=Path, default=None, metavar="DIR", help="overrides run_dir of gksm.toml"
    )
    parser.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"]
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(), format="%(name)s: %(message)s", stream=sys.stderr
    )
    try:
        config = load_config(options.config_dir, options.run_dir)
        policy = Policy(config, options.config_dir)
    except ConfigError as error:
        print(f"gksmd: {error}", file=sys.stderr)
        return EXIT_CONFIG
    raise_descriptor_limit()
    try:
        with locked(config.run_dir):
            asyncio.run(serve(config, policy))
    except AlreadyRunningError:
        print(f"gksmd: another gksmd serves {config.run_dir}; stop it first.", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"gksmd: cannot work in {config.run_dir}: {error}; make it writable for this user, "
            "or choose another with --run-dir.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
