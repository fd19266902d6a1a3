# SPDX-License-Identifier: Apache-2.0
"""Which block of an instance's KV pool holds which tokens, as a serving engine does it.

A block belongs to one request, or holds part of a system prompt for all requests that
begin with it. The latter stay when nobody uses them, until there is no free block: then
the one that was used longest ago goes. Freed blocks keep their bytes until they are
used again, the one that was freed first before others.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field

from gksm_bench.kv.requests import BLOCK_TOKENS, Request

PrefixBlock = tuple[int, int]  # system prompt, number of the block in it


@dataclass(frozen=True)
class Write:
    """One token to be written: which block, which place in it, and what text it is."""

    block: int
    slot: int
    text: tuple[int, int]  # content, position; a system prompt's content is negative


@dataclass(eq=False)
class Running:
    """A request that has its blocks."""

    request: Request
    blocks: list[int]
    position: int = 0  # tokens written

    @property
    def finished(self) -> bool:
        """Whether all is written."""
        return self.position >= self.request.tokens


@dataclass
class Pool:
    """The blocks of one instance."""

    size: int
    free: deque[int] = field(default_factory=deque)
    prefixes: OrderedDict[PrefixBlock, int] = field(default_factory=OrderedDict)
    users: Counter[int] = field(default_factory=Counter)  # of blocks of system prompts

    def __post_init__(self) -> None:
        self.free.extend(range(self.size))

    def admit(self, request: Request) -> tuple[Running, list[Write]] | None:
        """Its blocks, and the tokens of its prompt to be written; None: no room now."""
        found = self._cached(request)
        for block in found.values():
            self.users[block] += 1  # so that it does not go to make room for the others
        if not self._make_room(request.blocks - len(found)):
            for block in found.values():
                self.users[block] -= 1
            return None
        blocks, writes = [], []
        for number in range(request.blocks):
            if number in found:
                block = found[number]
            else:
                block = self.free.popleft()
                if number < request.prefix_tokens // BLOCK_TOKENS:
                    self.prefixes[request.prefix, number] = block
                    self.users[block] += 1
                    writes += self._tokens(request, number, block)
            blocks.append(block)
        running = Running(request, blocks, request.prefix_tokens)
        for _ in range(request.prompt_tokens):
            writes.append(self.next_token(running))
        return running, writes

    def next_token(self, running: Running) -> Write:
        """The request's next token."""
        number, slot = divmod(running.position, BLOCK_TOKENS)
        write = Write(running.blocks[number], slot, (running.request.content, running.position))
        running.position += 1
        return write

    def finish(self, running: Running) -> None:
        """Give the request's blocks back."""
        shared = running.request.prefix_tokens // BLOCK_TOKENS
        for block in running.blocks[:shared]:
            self.users[block] -= 1
        self.free.extend(running.blocks[shared:])

    def _cached(self, request: Request) -> dict[int, int]:
        """The blocks that hold its system prompt already, by number."""
        found = {}
        for number in range(request.prefix_tokens // BLOCK_TOKENS):
            block = self.prefixes.get((request.prefix, number))
            if block is not None:
                self.prefixes.move_to_end((request.prefix, number))
                found[number] = block
        return found

    def _make_room(self, wanted: int) -> bool:
        idle = [key for key, block in self.prefixes.items() if not self.users[block]]
        if len(self.free) + len(idle) < wanted:
            return False
        for key in idle[: max(wanted - len(self.free), 0)]:
            self.free.append(self.prefixes.pop(key))
        return True

    @staticmethod
    def _tokens(request: Request, number: int, block: int) -> list[Write]:
        start = number * BLOCK_TOKENS
        return [
            Write(block, slot, (-1 - request.prefix, start + slot)) for slot in range(BLOCK_TOKENS)
        ]
