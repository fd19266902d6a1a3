# SPDX-License-Identifier: Apache-2.0
"""The host's page hash is XXH3-128, whichever instructions compute it."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
import xxhash

from tests.support.scripted import program

PAGE = 2 << 20
NOT_HERE = 77  # exit status: this processor lacks the instructions


def _pages() -> list[bytes]:
    chance = random.Random(1)
    pages = [chance.randbytes(PAGE) for _ in range(6)]
    pages += [bytes(PAGE), b"\xff" * PAGE]
    # Where the blocks, the stripes and the last stripe's own secret meet.
    for at in (0, 63, 64, 1023, 1024, PAGE - 1025, PAGE - 1024, PAGE - 65, PAGE - 64, PAGE - 1):
        page = bytearray(PAGE)
        page[at] = 1
        pages.append(bytes(page))
    pages.append(b"".join(i.to_bytes(4, "little") for i in range(PAGE // 4)))
    pages.append((b"weights " * (PAGE // 8))[:PAGE])
    return pages


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A file of pages, and what the xxhash package makes of each."""
    path = tmp_path_factory.mktemp("pages") / "pages"
    content = _pages()
    path.write_bytes(b"".join(content))
    return path, [xxhash.xxh3_128_hexdigest(page) for page in content]


def _run(build: Path, *arguments: object) -> tuple[int, list[str], str]:
    command = [str(program(build, "hash_pages")), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    return done.returncode, done.stdout.split(), done.stderr


@pytest.mark.parametrize("path", ["scalar", "avx2", "avx512"])
def test_hash_and_snapshot_equal_the_xxhash_package(
    build: Path, pages: tuple[Path, list[str]], path: str
) -> None:
    code, hashes, complaints = _run(build, path, pages[0])
    if code == NOT_HERE:
        pytest.skip(f"this processor has no {path}")
    assert (code, complaints) == (0, "")
    assert hashes == pages[1]


@pytest.mark.parametrize(("threads", "callers"), [(1, 1), (2, 1), (4, 3), (0, 2)])
def test_pool_hashes_copies_and_compares_for_several_callers_at_once(
    build: Path, pages: tuple[Path, list[str]], threads: int, callers: int
) -> None:
    code, hashes, complaints = _run(build, "pool", threads, callers, pages[0])
    assert (code, complaints) == (0, "")
    assert hashes == pages[1]


def test_a_source_that_changes_meanwhile_cannot_part_hash_and_snapshot(build: Path) -> None:
    code, torn, complaints = _run(build, "changing", 100)
    assert (code, torn, complaints) == (0, ["0"], "")
