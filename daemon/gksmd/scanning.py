# SPDX-License-Identifier: Apache-2.0
"""How the scanners of all instances look for equal pages, and passes made on demand."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass, field

from gksmd.candidates import Candidates
from gksmd.config import Scan
from gksmd.model import Instance, State
from gksmd.protocol import SCAN_TERMS, encode, lib

DUE_ROUNDS = 3


@dataclass(slots=True)
class Scanning:
    """Holds the settings in force; tells them to every instance that can scan."""

    state: State
    settings: Scan
    candidates: Candidates
    # A random start: instances remember a number from before a restart of gksmd.
    _pass: int = field(default_factory=lambda: secrets.randbits(31) | 1)
    _asked: dict[Instance, int] = field(default_factory=dict)  # -> number of a pass
    _progress: asyncio.Event = field(default_factory=asyncio.Event)
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.candidates.unasked = self.settings.run

    def change(self, settings: Scan) -> int:
        """Put other settings in force; returns how many instances were told."""
        self.settings = settings
        self.candidates.unasked = settings.run
        return sum(map(self.tell, self.state.instances))

    def tell(self, instance: Instance) -> bool:
        """Send an instance what holds for it; False if it does not scan."""
        process = instance.process
        if process.connection is None or not process.features & lib.GKSM_FEATURE_SCAN:
            return False
        settings = self.settings
        terms = SCAN_TERMS.build(
            gpu=instance.number,
            run=settings.run,
            interval_ms=settings.interval_ms,
            max_interval_ms=max(settings.interval_ms, settings.max_interval_ms),
            stable_hashes=settings.stable_hashes,
            max_percent=settings.max_percent,
            zero_pages=settings.zero_pages,
            **{"pass": self._asked.get(instance, 0)},
        )
        process.connection.endpoint.send(encode(lib.GKSM_SCAN_TERMS, head=terms))
        return True

    def reported(self, instance: Instance) -> None:
        """An instance has sent its counts."""
        if self._asked.get(instance) == instance.usage.scan_pass:
            self._progress.set()

    async def now(self, passes: int, wait_s: float) -> list[Instance]:
        """Make passes over every instance, one instance after the other.

        So many that each unchanged page becomes stable and is merged, if ``passes`` is 0:
        the last one is for those whose look-alike was published after they had offered.
        Whoever is due after that, because a page it was noted for was published meanwhile,
        gets one more: nobody has anything left to merge when this returns.
        Returns the instances that did not finish a pass in ``wait_s`` seconds.
        """
        late: list[Instance] = []
        async with self._one_at_a_time:
            with self.candidates.held():
                self.candidates.start_anew({i.table for i in self._in_order()})
                for _ in range(passes or self.settings.stable_hashes + 1):
                    for instance in self._in_order():
                        self.candidates.take_due(instance)
                        if instance not in late and not await self._one(instance, wait_s):
                            late.append(instance)
                # Loads beside it may publish for ever.
                for instance in self._in_order() * DUE_ROUNDS:
                    if not self.candidates.take_due(instance) or instance in late:
                        continue
                    if not await self._one(instance, wait_s):
                        late.append(instance)
        return late

    def _in_order(self) -> list[Instance]:
        instances = (i for i in self.state.instances if i.process.connection is not None)
        return sorted(
            instances,
            key=lambda i: (
                i.table.gpu.uuid,
                i.process.identity.start_ticks,
                i.process.identity.pid,
            ),
        )

    async def _one(self, instance: Instance, wait_s: float) -> bool:
        self._pass += 1
        self._asked[instance] = number = self._pass
        deadline = asyncio.get_running_loop().time() + wait_s
        try:
            if not self.tell(instance):
                return True
            while instance.usage.scan_pass != number and not instance.process.ended:
                if asyncio.get_running_loop().time() > deadline:
                    return False
                self._progress.clear()
                # One that has ended reports no more: look now and then.
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._progress.wait(), 0.2)
        finally:
            del self._asked[instance]
        return True
