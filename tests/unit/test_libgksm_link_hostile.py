# SPDX-License-Identifier: Apache-2.0
"""A peer that is no honest gksmd costs libgksm one connection and nothing else."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gksmd import protocol
from gksmd.protocol import Message, encode, lib

from tests.support.scripted import (
    LinkClient,
    ScriptedDaemon,
    Session,
    page_fd,
    program,
    result,
    welcome_head,
)

HIT, LEASE = lib.GKSM_LOOKUP_HIT, lib.GKSM_LOOKUP_LEASE
ENOTCONN = -107
RESULT = protocol.LOOKUP_RESULT.size


# What the peer does instead of answering a LOOKUP of two pages.
Case = Callable[[Session, Message], None]


def header(kind: int, seq: int, **fields: int) -> bytes:
    """A header by hand, whatever it claims."""
    return bytes(
        protocol.HEADER.pack(
            fields.get("magic", lib.GKSM_MAGIC),
            kind,
            fields.get("flags", 0),
            seq,
            fields.get("status", 0),
            fields.get("head_bytes", 0),
            fields.get("entry_bytes", 0),
            fields.get("entry_count", 0),
            fields.get("fd_count", 0),
        )
    )


def _looked_up(*entries: bytes, fds: int = 0, announced: int | None = None) -> Case:
    def act(session: Session, asked: Message) -> None:
        session.raw(
            encode(
                lib.GKSM_LOOKED_UP,
                seq=asked.seq,
                entries=b"".join(entries),
                entry_bytes=len(entries[0]) if entries else 0,
                fd_count=fds if announced is None else announced,
            ),
            [page_fd(i) for i in range(fds)],
        )

    return act


def _raw(make: Callable[[int], bytes], fds: int = 0) -> Case:
    def act(session: Session, asked: Message) -> None:
        session.raw(make(asked.seq), [page_fd(i) for i in range(fds)])

    return act


LOOKED_UP = lib.GKSM_LOOKED_UP
CASES = {
    "nothing but noise": _raw(lambda _: b"\xa5" * 4000),
    "noise with descriptors": _raw(lambda _: b"\xa5" * 4000, fds=5),
    "half a header": _raw(lambda seq: header(LOOKED_UP, seq)[:17]),
    "half a message": _raw(
        lambda seq: header(LOOKED_UP, seq, entry_bytes=RESULT, entry_count=2) + bytes(RESULT)
    ),
    "more than it announces": _raw(lambda seq: header(LOOKED_UP, seq) + bytes(100)),
    "another magic": _raw(lambda seq: header(LOOKED_UP, seq, magic=1)),
    "a type that is none": _raw(lambda seq: header(999, seq)),
    "a message of clients": _raw(lambda seq: header(lib.GKSM_LOOKUP, seq)),
    "a message of the vault": _raw(lambda seq: header(lib.GKSM_VAULT_OK, seq)),
    "a huge head": _raw(lambda seq: header(LOOKED_UP, seq, head_bytes=0xFFFFFFFF)),
    "a huge entry count": _raw(
        lambda seq: header(LOOKED_UP, seq, entry_bytes=1 << 16, entry_count=1 << 16)
    ),
    "lengths that overflow": _raw(
        lambda seq: header(
            LOOKED_UP, seq, head_bytes=0xFFFFFFE0, entry_bytes=0xFFFFFFFF, entry_count=0xFFFFFFFF
        )
    ),
    "empty entries without end": _raw(lambda seq: header(LOOKED_UP, seq, entry_count=0xFFFFFFFF)),
    "a packet over the limit": _raw(lambda seq: header(LOOKED_UP, seq) + bytes(1 << 17)),
    "a status that is no errno": _raw(lambda seq: header(LOOKED_UP, seq, status=5)),
    "a seq never used": _raw(lambda seq: header(LOOKED_UP, seq + 1000)),
    "seq 0": _raw(lambda _: header(LOOKED_UP, 0)),
    "an answer to something else": _raw(lambda seq: header(lib.GKSM_COMMITTED, seq)),
    "a second WELCOME": _raw(lambda seq: encode(lib.GKSM_WELCOME, seq=seq, head=welcome_head())),
    "an order with a seq": _raw(
        lambda seq: encode(lib.GKSM_CONTROL, seq=seq, head=protocol.CONTROL.build(action=1))
    ),
    "half an order": _raw(lambda _: encode(lib.GKSM_CONTROL, head=bytes(8))),
    "announced results nobody asked for": _raw(lambda seq: header(lib.GKSM_ANNOUNCED, seq)),
    "a page that was not asked for": _looked_up(result(0, LEASE), result(2, LEASE)),
    "one page twice": _looked_up(result(0, HIT, 5), result(0, HIT, 6), fds=2),
    "only one of two pages": _looked_up(result(0, LEASE)),
    "no page at all": _looked_up(),
    "an outcome that is none": _looked_up(result(0, LEASE), result(1, 77)),
    "entries too short": _looked_up(bytes(8), bytes(8)),
    "a hit without its descriptor": _looked_up(result(0, HIT, 5), result(1, LEASE)),
    "a descriptor without a hit": _looked_up(result(0, LEASE), result(1, LEASE), fds=1),
    "more descriptors than hits": _looked_up(result(0, HIT, 5), result(1, LEASE), fds=3),
    "descriptors it did not announce": _looked_up(
        result(0, HIT, 5), result(1, HIT, 6), fds=2, announced=0
    ),
    "fewer descriptors than announced": _looked_up(
        result(0, HIT, 5), result(1, HIT, 6), fds=1, announced=2
    ),
    "as many descriptors as the kernel passes": _looked_up(
        result(0, HIT, 5), result(1, HIT, 6), fds=253
    ),
}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[ScriptedDaemon]:
    with ScriptedDaemon(tmp_path / "gksm.sock") as listening:
        yield listening


@pytest.fixture
def client(build: Path, tmp_path: Path, daemon: ScriptedDaemon) -> Iterator[LinkClient]:
    made = LinkClient(build, daemon.path, tmp_path / "client.log")
    try:
        yield made
        made.finish()
    finally:
        made.kill()


@pytest.mark.parametrize("name", CASES)
def test_nonsense_costs_one_connection(
    daemon: ScriptedDaemon, client: LinkClient, name: str
) -> None:
    session = daemon.up()
    client.until("wait 10", "0 tenant")
    client.start("open 0")
    session.opened()
    client.answer()
    before = client.ask("fds")
    client.start("lookup 0 1 2")
    CASES[name](session, session.next())
    assert client.answer() == str(ENOTCONN)
    session.rest()
    back = daemon.up(0)
    client.until("up", "1")
    client.start("lookup 0 1 1")
    back.hits(back.next().seq, [9])
    assert client.answer() == f"0 {HIT}:9:9"
    assert client.ask("fds") == before


@pytest.mark.parametrize("seed", range(4))
def test_random_packets_neither_crash_the_process_nor_leak(build: Path, seed: int) -> None:
    rounds = os.environ.get("GKSM_FUZZ_ROUNDS", "20000")
    command = [str(program(build, "link_fuzz")), str(seed), rounds]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
