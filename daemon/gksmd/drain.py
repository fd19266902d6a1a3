# SPDX-License-Identifier: Apache-2.0
"""Letting go of a GPU: what is open for its pages would be in the way of a driver upgrade.

While a GPU drains nobody publishes or attaches on it, its instances keep no spare
pages, nothing stays warm, and the vault holds what living instances map, no more.
That is remembered in a file: a gksmd that is restarted meanwhile goes on draining.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gksmd.lookups import Lookups
from gksmd.model import Drains, Gpu, Instance, State, Uuid
from gksmd.protocol import CONTROL, encode, lib
from gksmd.warm import Warm

LOG = logging.getLogger("gksmd.drain")
REASON = b"this GPU drains (gksmctl drain)"


class _File(msgspec.Struct):
    """What is written down: the two members of ``model.Drains``."""

    everything: bool = False
    listed: list[str] = []


@dataclass(slots=True)
class Drain:
    """Begins and ends it."""

    state: State
    path: Path
    warm: Warm
    lookups: Lookups

    def restore(self) -> None:
        """What was begun before a restart goes on."""
        try:
            found = msgspec.json.decode(self.path.read_bytes(), type=_File)
            drains = Drains(found.everything, {bytes.fromhex(uuid) for uuid in found.listed})
        except FileNotFoundError:
            return
        except (OSError, ValueError, msgspec.DecodeError) as error:
            LOG.error("%s cannot be used (%s); no GPU drains: gksmctl drain", self.path, error)
            return
        self.state.drains = drains

    def begin(self, uuid: Uuid | None) -> None:
        """Drain a GPU, or all and any. OSError: it holds, but not beyond a restart."""
        if uuid is None:
            self._change(Drains(everything=True))
        elif not self.state.drains.covers(uuid):
            self._change(_toggled(self.state.drains, uuid))
        for gpu in list(self.state.gpus.values()):
            if self.state.drains.covers(gpu.uuid):
                self._empty(gpu)
        self._save()

    def end(self, uuid: Uuid | None) -> None:
        """Share again on a GPU, or on all. OSError as for ``begin``."""
        if uuid is None:
            self._change(Drains())
        elif self.state.drains.covers(uuid):
            self._change(_toggled(self.state.drains, uuid))
        self._save()

    def opened(self, instance: Instance) -> None:
        """An instance has opened a GPU: on this connection it knows of no drain yet."""
        if self.state.drains.covers(instance.table.gpu.uuid):
            _tell(instance, lib.GKSM_CONTROL_DRAIN)

    def _change(self, drains: Drains) -> None:
        before, self.state.drains = self.state.drains, drains
        for gpu in list(self.state.gpus.values()):
            if before.covers(gpu.uuid) == drains.covers(gpu.uuid):
                continue
            drain = drains.covers(gpu.uuid)
            for instance in gpu.instances:
                _tell(instance, lib.GKSM_CONTROL_DRAIN if drain else lib.GKSM_CONTROL_RESUME)
                connection = instance.process.connection
                if drain and connection is not None:
                    self.lookups.refuse_waits(connection, gpu)

    def _empty(self, gpu: Gpu) -> None:
        self.warm.drop([load for table in gpu.tables.values() for load in table.loads.values()])

    def _save(self) -> None:
        drains = self.state.drains
        content = _File(drains.everything, sorted(uuid.hex() for uuid in drains.listed))
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(content))
        temporary.replace(self.path)


def _toggled(drains: Drains, uuid: Uuid) -> Drains:
    return Drains(drains.everything, drains.listed ^ {uuid})


def _tell(instance: Instance, action: int) -> None:
    process = instance.process
    # An older libgksm would take a RESUME for one of everything.
    if process.connection is None or not process.features & lib.GKSM_FEATURE_RECLAIM:
        return
    if instance not in process.connection.gpus:
        return  # not opened on this connection yet
    control = CONTROL.build(action=action, gpu=instance.number + 1, reason=REASON)
    process.connection.endpoint.send(encode(lib.GKSM_CONTROL, head=control))
