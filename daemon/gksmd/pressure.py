# SPDX-License-Identifier: Apache-2.0
"""Memory getting short on a GPU: seen early, and told to those who can do something.

Below the low-water mark warm pages go first. If that is not enough, every instance is
told: it backs what it was promised strictly while there is something to back it with,
so that nobody else's copies on write eat it, and keeps few spares. A quarter above the
mark it is over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from gksmd.accounts import Accounts
from gksmd.model import Counters, Gpu, Instance
from gksmd.protocol import CONTROL, clip, encode, lib
from gksmd.snapshot import format_uuid

LOG = logging.getLogger("gksmd.pressure")

# Gives back so many bytes of warm pages of a GPU if it can; returns how many it did.
Reclaim = Callable[[Gpu, int], int]


@dataclass(slots=True)
class Pressure:
    """Watches headroom; called whenever it may have changed."""

    accounts: Accounts
    counters: Counters
    reclaim: Reclaim

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
            if headroom + self.reclaim(gpu, enough - headroom) >= low:
                return
            gpu.short = True
            self.counters.pressures += 1
            LOG.info("GPU %s: memory is short", format_uuid(gpu.uuid))
            for instance in gpu.instances:
                self.joined(instance)

    def joined(self, instance: Instance) -> None:
        """Memory has become short, or an instance has (again) opened the GPU meanwhile."""
        if instance.table.gpu.short:
            instance.strict_told = self.accounts.strict_pages(instance)
            self._tell(instance, instance.strict_told)

    def _keep_told(self, instance: Instance) -> None:
        """More may be promised, and what covered a promise may go, while memory is short."""
        strict = self.accounts.strict_pages(instance)
        more, instance.strict_told = strict - instance.strict_told, strict
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
