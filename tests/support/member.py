# SPDX-License-Identifier: Apache-2.0
"""A process that shares pages through gksmd as libgksm would, without a GPU.

It publishes or attaches one page for each seed, reports counts and one record, prints
`ready` and stays until its input ends.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gksmd.client import Client, connected
from gksmd.protocol import lib

ROOT = Path(__file__).parents[2]
GPU = bytes(range(1, 17))
RECORD = "kept 3 pages private: \x1b[31mwritten by a kernel"


def share(client: Client, seeds: list[int]) -> None:
    """Have one published page for each seed, whoever publishes it."""
    for seed in seeds:
        digest = seed.to_bytes(16, "big")
        (found,) = client.lookup([digest])
        if found.outcome == lib.GKSM_LOOKUP_HIT:
            os.close(found.fd)
            client.attached([found.page_id])
        elif found.outcome == lib.GKSM_LOOKUP_LEASE:
            fd = os.memfd_create("page")
            client.publish([(found.token, digest, fd)])
            os.close(fd)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("socket", type=Path)
    parser.add_argument("--framework", default="test")
    parser.add_argument("--private", type=int, default=0)
    parser.add_argument("--unshared", type=int, default=0)
    parser.add_argument("seeds", type=int, nargs="*")
    options = parser.parse_args()
    client = connected(options.socket, GPU, framework=options.framework.encode()[:31])
    share(client, options.seeds)
    client.usage(
        virtual_pages=options.private + len(options.seeds),
        private_pages=options.private,
        shared_pages=len(options.seeds),
        unshared=[options.unshared] * 8 + [0] * 8,
    )
    client.report(RECORD.encode(), severity=2)
    # An answer behind them: all of the above is done when it comes.
    client.lookup([b"\xff" * 16])
    print("ready", flush=True)
    sys.stdin.read()


@contextmanager
def member(
    socket: Path, *arguments: str | int, name: str = "member"
) -> Iterator[subprocess.Popen[str]]:
    """Such a process, ready, under the given name; killed at the end."""
    process = subprocess.Popen(
        [name, "-m", "tests.support.member", str(socket), *map(str, arguments)],
        executable=sys.executable,
        # Under another name it does not find its environment by itself.
        env={"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "daemon"), *sys.path])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


if __name__ == "__main__":
    main()
