# SPDX-License-Identifier: Apache-2.0
"""Memory getting short on a GPU: seen early, and told to those who can do something.

Below the low-water mark warm pages go first, unless they cover a promise: then the memory
would be needed in their stead. If that is not enough, every instance is
told: it backs what it was promised strictly while there is something to back it with,
so that nobody else's copies on write eat it, and keeps few spares. A quarter above the
mark it is over.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gksmd.accounts import Accounts, Gone
from gksmd.commits import lacking_bytes
from gksmd.counts import Counters
from gksmd.model import Gpu, GpuTable, Instance, Load
from gksmd.protocol import CONTROL, clip, encode, lib
from gksmd.snapshot import format_uuid
from gksmd.warm import Warm

LOG = logging.getLogger("gksmd.pressure")


@dataclass(slots=True)
class Pressure:
    """Watches headroom; called whenever it may have changed."""

    accounts: Accounts
    counters: Counters
    warm: Warm

    def look(self, gpu: Gpu) -> None:
        """Tell the GPU's instances if memory has become short, or is not any more."""
        headroom = self.accounts.headroom(gpu)
        if headroom is None:
            return
        low = self.accounts.low_water_bytes(gpu)
        enough = low + low // 4
        if gpu.short and (headroom >= enough or not gpu.instances):
            gpu.short = False
            LOG.info("GPU %s: memory is not short any more", format_uuid(gpu.uuid))
            for instance in gpu.instances:
                self._tell(instance, 0)
        elif gpu.short:
            for instance in gpu.instances:
                self._keep_told(instance)
        elif headroom < low and gpu.instances:
            self._evict_until(gpu, enough)
            if (self.accounts.headroom(gpu) or 0) >= low:
                return
            gpu.short = True
            self.counters.pressures += 1
            LOG.info("GPU %s: memory is short", format_uuid(gpu.uuid))
            for instance in gpu.instances:
                self.joined(instance)

    def reclaim(self, instance: Instance, wanted_bytes: int) -> int:
        """An allocation of the instance's has failed: evict so much, or all there is; bytes.

        Those of its own domain go last: they may be what it is about to load.
        """
        freed = 0
        for load in self.warm.victims(instance.table.gpu, instance.table):
            if freed >= wanted_bytes:
                break
            freed += self.warm.drop([load])
        return freed

    def make_room(self, instance: Instance, pages: int, free_bytes: int) -> int:
        """Evict what lets ``pages`` more be promised, nothing if that cannot be; bytes."""
        victims = self.warm.victims(instance.table.gpu, instance.table)
        if not victims:
            return 0

        def lacking(gone: Gone) -> int:
            return lacking_bytes(instance, pages, free_bytes, self.accounts, gone)

        chosen, left = choose(victims, lacking)
        return 0 if left else self.warm.drop(chosen)

    def _evict_until(self, gpu: Gpu, enough: int) -> None:
        def lacking(gone: Gone) -> int:
            return max(enough - (self.accounts.headroom(gpu, gone) or 0), 0)

        chosen, _ = choose(self.warm.victims(gpu), lacking)
        self.warm.drop(chosen)

    def joined(self, instance: Instance) -> None:
        """Memory has become short, or an instance has (again) opened the GPU meanwhile."""
        if instance.table.gpu.short:
            instance.strict_told = self.accounts.strict_pages(instance)
            instance.told_usage = instance.usage
            self._tell(instance, instance.strict_told)

    def _keep_told(self, instance: Instance) -> None:
        """More may be promised, and what covered a promise may go, while memory is short.

        What it takes early covers less of the rest: its pages are filled, not attached.
        """
        strict, usage, before = (
            self.accounts.strict_pages(instance),
            instance.usage,
            instance.told_usage,
        )
        taken = min(
            usage.private_pages - before.private_pages,
            before.unbacked_pages - usage.unbacked_pages,
        )
        more = strict - max(instance.strict_told - max(taken, 0), 0)
        instance.strict_told, instance.told_usage = strict, usage
        if more > 0:
            self._tell(instance, more)

    def _tell(self, instance: Instance, pages: int) -> None:
        connection = instance.process.connection
        if connection is None or not instance.guard or instance not in connection.gpus:
            return
        short = instance.table.gpu.short
        control = CONTROL.build(
            action=lib.GKSM_CONTROL_PRESSURE,
            level=lib.GKSM_PRESSURE_LOW if short else lib.GKSM_PRESSURE_NONE,
            reason=clip("GPU memory is short" if short else "", 128),
            gpu=instance.number + 1,
            pages=pages if short else 0,
        )
        connection.endpoint.send(encode(lib.GKSM_CONTROL, head=control))


def choose(victims: Iterable[Load], lacking: Callable[[Gone], int]) -> tuple[list[Load], int]:
    """The first of them without which nothing is lacking, or as little as can be; and that.

    Those that do not help are left out: what covers a promise is not free when it goes.
    """
    chosen: list[Load] = []
    gone: Counter[GpuTable] = Counter()
    left = lacking(gone)
    for load in victims:
        if not left:
            break
        chosen.append(load)
        gone[load.table] += len(load.warm)
        left = lacking(gone)
    for load in reversed(list(chosen)):
        gone[load.table] -= len(load.warm)
        if lacking(gone) <= left:
            chosen.remove(load)
        else:
            gone[load.table] += len(load.warm)
    return chosen, left
