# SPDX-License-Identifier: Apache-2.0
"""One instance: `python -m gksm_bench.kv.engine`, told what to do on its standard input.

One JSON list a line, `[command, arguments]`, and one JSON value in answer. A block of the
pool is one page: one token of all layers takes a sixteenth of it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import sys
import zlib
from collections import deque
from typing import Any

from gksm_bench.demo.kernels import BUILTIN_IMAGE
from gksm_bench.driver import check, driver
from gksm_bench.kv.blocks import Pool, Running, Write
from gksm_bench.kv.requests import BLOCK_TOKENS, Request
from gksm_bench.library import KIND_KV, KIND_OTHER, PAGE, Library

TOKEN_BYTES = PAGE // BLOCK_TOKENS
HEAD = 8
# Of struct gksm_statistics, what is looked at.
EVENTS = ("cow_events", "api_detaches", "merged_pages", "dropped_merges", "churned_merges")
SECTION = 64 << 10


def weight_page(number: int) -> bytes:
    """2 MiB of the model, the same in every instance."""
    section = random.Random(f"weights {number}").randbytes(SECTION - HEAD)
    return b"".join(at.to_bytes(HEAD, "little") + section for at in range(0, PAGE, SECTION))


def token_word(text: tuple[int, int]) -> int:
    """What the kernel fills the token's place with."""
    return zlib.crc32(repr(text).encode()) | 1


class Engine:
    """Its memory, and the requests that it works on."""

    def __init__(self, number: int, weights: int, pool: int, other: int) -> None:
        self.number = number
        self.pool = Pool(pool)
        self.waiting: deque[Request] = deque()
        self.running: list[Running] = []
        self.written: set[int] = set()
        self.words: dict[tuple[int, int], int] = {}  # of each block's slots
        check(driver.cuInit(0))
        check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(0))))
        module = check(driver.cuModuleLoadData(BUILTIN_IMAGE))
        self.fill_function = check(driver.cuModuleGetFunction(module, b"fill"))
        self.library = Library()
        self.weights, self.kv, self.other = (
            int(check(driver.cuMemAlloc(pages * PAGE))) for pages in (weights, pool, other)
        )
        self.pages = {"weights": weights, "kv": pool, "other": other}

    # Commands

    def load(self, first: int, count: int) -> None:
        """Some pages of the model, from pageable memory."""
        for page in range(first, first + count):
            check(driver.cuMemcpyHtoD(self.weights + page * PAGE, weight_page(page), PAGE))

    def begin(self) -> None:
        """Fill the rest, as an engine does before it serves."""
        self.library.set_kind(self.kv, self.pages["kv"] * PAGE, KIND_KV)
        self.library.set_kind(self.other, self.pages["other"] * PAGE, KIND_OTHER)
        check(driver.cuMemsetD32(self.kv, 0, self.pages["kv"] * PAGE // 4))
        for page in range(self.pages["other"]):
            # Half of it is the same in all instances: tables, masks, captured graphs' pools.
            mine = 0 if page % 2 else self.number
            self._fill(self.other + page * PAGE, PAGE, token_word((page, mine)))
        check(driver.cuCtxSynchronize())

    def tick(self, arriving: list[list[int]]) -> None:
        """One step: take in what there is room for, write a token of each request."""
        self.waiting.extend(Request(*each) for each in arriving)
        while self.waiting:
            admitted = self.pool.admit(self.waiting[0])
            if admitted is None:
                break
            self.waiting.popleft()
            running, writes = admitted
            self.running.append(running)
            for write in writes:
                self._write(write)
        for running in self.running:
            if not running.finished:
                self._write(self.pool.next_token(running))
        check(driver.cuCtxSynchronize())
        for running in [each for each in self.running if each.finished]:
            self.running.remove(running)
            self.pool.finish(running)

    def look(self) -> dict[str, Any]:
        """What happened since the last look, and what is shared now."""
        counts = self.library.statistics(self.kv)
        written, self.written = sorted(self.written), set()
        return {
            "written": written,
            "shared": [
                page
                for page in range(self.pages["kv"])
                if self.library.is_shared(self.kv + page * PAGE)
            ],
            **{name: int(getattr(counts, name)) for name in EVENTS},
            "running": len(self.running),
            "waiting": len(self.waiting),
            "free_blocks": len(self.pool.free),
        }

    def verify(self) -> int:
        """Read the pool back; how many tokens are not what was written last."""
        wrong = 0
        page = (ctypes.c_char * PAGE)()
        for block in range(self.pool.size):
            check(driver.cuMemcpyDtoH(ctypes.addressof(page), self.kv + block * PAGE, PAGE))
            data = page.raw
            for slot in range(BLOCK_TOKENS):
                word = self.words.get((block, slot), 0).to_bytes(4, "little")
                at = slot * TOKEN_BYTES
                wrong += data[at : at + TOKEN_BYTES] != word * (TOKEN_BYTES // 4)
        return wrong

    # Writes

    def _write(self, write: Write) -> None:
        word = token_word(write.text)
        self.words[write.block, write.slot] = word
        self.written.add(write.block)
        address = self.kv + write.block * PAGE + write.slot * TOKEN_BYTES
        self._fill(address, TOKEN_BYTES, word)

    def _fill(self, address: int, nbytes: int, word: int) -> None:
        """By a kernel, enqueued."""
        kinds = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32)
        values = (address, nbytes // 4, word)
        one = (1, 1, 1, 1, 1, 1, 0)
        check(driver.cuLaunchKernel(self.fill_function, *one, 0, (values, kinds), 0))


def main() -> None:
    """Obey until standard input ends."""
    parser = argparse.ArgumentParser()
    for name in ("number", "weights", "pool", "other"):
        parser.add_argument(name, type=int)
    options = parser.parse_args()
    engine = Engine(options.number, options.weights, options.pool, options.other)
    print("null", flush=True)
    for line in sys.stdin:
        command, arguments = json.loads(line)
        print(json.dumps(getattr(engine, command)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
