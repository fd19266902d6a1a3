# SPDX-License-Identifier: Apache-2.0
"""A small CUDA program with output that depends on what the driver does for it."""

from __future__ import annotations

from tests.support.actor import Actor
from tests.support.pages import PAGE


def main() -> None:
    """Allocate, load, launch, copy, free; print what came back."""
    actor = Actor()
    actor.init()
    at = actor.alloc(6)
    actor.load(at, [1, 2, 3, 1])
    actor.write_kernel(at, [0, 4], 4096, 99)
    actor.memset(at + 5 * PAGE, 7, 16)
    actor.copy_device(at + PAGE, at + 2 * PAGE, PAGE // 2)
    actor.sync()
    print(actor.digests(at, 6))
    print(actor.hashes(at, 6))
    actor.free(at)
    small = actor.alloc_bytes(100)
    actor.write_words(small, 5, 25)
    print(actor.read_words(small, 25))
    actor.free(small)
    status = actor.fork_and("1 + 1")
    print(status)


if __name__ == "__main__":
    main()
