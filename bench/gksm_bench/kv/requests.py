# SPDX-License-Identifier: Apache-2.0
"""Requests as they arrive at the instances, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

BLOCK_TOKENS = 16


@dataclass(frozen=True)
class Request:
    """Lengths in tokens. Requests of one `content` and `prefix` have the same text."""

    instance: int
    content: int
    prefix: int  # number of the system prompt; -1: none
    prefix_tokens: int  # whole blocks
    prompt_tokens: int  # behind the prefix
    output_tokens: int

    @property
    def tokens(self) -> int:
        """All of them, once it is finished."""
        return self.prefix_tokens + self.prompt_tokens + self.output_tokens

    @property
    def blocks(self) -> int:
        """Of the pool, once it is finished."""
        return -(-self.tokens // BLOCK_TOKENS)


@dataclass(frozen=True)
class Load:
    """How much arrives. Rates are per tick, of all instances together."""

    instances: int
    seed: int
    per_tick: float = 0.25
    prefixes: int = 4
    prefix_blocks: int = 4
    with_prefix: float = 0.7
    # Of the requests, that arrive at two instances at once: what those write is the same,
    # token by token, and must not be merged while it is being written.
    twins: float = 0.2
    prompt_tokens: tuple[int, int] = (4, 40)
    output_tokens: tuple[int, int] = (8, 60)

    def arrivals(self) -> Iterator[list[Request]]:
        """The requests of one tick after another, without end."""
        dice = random.Random(self.seed)
        content = 0
        while True:
            arriving: list[Request] = []
            # At most a few: the sum of many rare chances.
            for _ in range(4):
                if dice.random() >= self.per_tick / 4:
                    continue
                content += 1
                arriving += self._draw(dice, content)
            yield arriving

    def _draw(self, dice: random.Random, content: int) -> list[Request]:
        prefix = dice.randrange(self.prefixes) if dice.random() < self.with_prefix else -1
        places = dice.sample(range(self.instances), min(2, self.instances))
        prompt, output = dice.randint(*self.prompt_tokens), dice.randint(*self.output_tokens)
        return [
            Request(
                instance=place,
                content=content,
                prefix=prefix,
                prefix_tokens=self.prefix_blocks * BLOCK_TOKENS if prefix >= 0 else 0,
                prompt_tokens=prompt,
                output_tokens=output,
            )
            for place in (places if dice.random() < self.twins else places[:1])
        ]
