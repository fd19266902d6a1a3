# SPDX-License-Identifier: Apache-2.0
"""What the operator asks about memory without a process: warm loads, and GPUs to let go of."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable

from gksmd.core import Core
from gksmd.jsonlines import RefusedError
from gksmd.model import Gpu, Load, Uuid
from gksmd.ops import (
    BeginDrain,
    DrainAnswer,
    DropWarm,
    DropWarmAnswer,
    EndDrain,
    GetDrain,
    OwnProcess,
    PinWarm,
)
from gksmd.snapshot import format_uuid


class Upkeep:
    """Answers those ops of the admin socket."""

    def __init__(self, core: Core, domains: Callable[[], set[str]]) -> None:
        """``domains``: the names of the configured ones."""
        self._core = core
        self._domains = domains

    async def answer(self, request: object) -> object:
        """The answer to one request; None: it is not one of ours. Raises RefusedError."""
        if isinstance(request, DropWarm):
            return await self._drop(request)
        if isinstance(request, PinWarm):
            self._core.pin(self._load(request.load), request.pinned)
            return {}
        if isinstance(request, BeginDrain):
            gpu = self._gpu(request.gpu)
            try:
                await self._core.drain(gpu)
            except OSError as error:
                return self._drain_answer(gpu, str(error))
            return self._drain_answer(gpu)
        if isinstance(request, EndDrain):
            gpu = self._gpu(request.gpu)
            try:
                self._core.undrain(gpu)
            except OSError as error:
                return self._drain_answer(gpu, str(error))
            return self._drain_answer(gpu)
        if isinstance(request, GetDrain):
            return self._drain_answer(self._gpu(request.gpu))
        return None

    async def _drop(self, request: DropWarm) -> DropWarmAnswer:
        if request.load is not None:
            loads = [self._load(request.load)]
        else:
            gpu = self._gpu(request.gpu)
            known = {*self._core.state.domains, *self._domains()}
            if request.domain is not None and request.domain not in known:
                raise RefusedError(
                    f'"{request.domain}" is no domain that gksmd knows; '
                    "list them with gksmctl trust-domain list."
                )
            loads = [
                load
                for load in self._loads()
                if load.warm
                and gpu in (None, load.table.gpu.uuid)
                and request.domain in (None, load.table.domain.name)
            ]
        return DropWarmAnswer(
            loads=sum(bool(load.warm) for load in loads),
            dropped_bytes=await self._core.drop_warm(loads),
        )

    def _loads(self) -> list[Load]:
        gpus = self._core.state.gpus.values()
        return [load for g in gpus for table in g.tables.values() for load in table.loads.values()]

    def _load(self, number: int) -> Load:
        for load in self._loads():
            if load.id == number:
                return load
        raise RefusedError(f"there is no load {number}; list them with gksmctl warm list.")

    def _gpu(self, text: str | None) -> Uuid | None:
        """The GPU of a UUID, or of the beginning of one that is known."""
        if text is None:
            return None
        wanted = text.lower()
        known = [
            raw
            for raw in self._core.state.gpus
            if format_uuid(raw).lower().startswith(wanted) and len(wanted) > len("gpu-")
        ]
        if len(known) == 1:
            return known[0]
        try:
            return uuid.UUID(text.partition("-")[2]).bytes
        except ValueError:
            raise RefusedError(
                f'"{text[:64]}" is the UUID of no GPU that gksmd knows, or of several; give it '
                "whole, as nvidia-smi -L prints it."
            ) from None

    def _drain_answer(self, wanted: Uuid | None, not_remembered: str = "") -> DrainAnswer:
        state = self._core.state
        gpus = [gpu for raw, gpu in state.gpus.items() if wanted in (None, raw)]
        drains = state.drains
        covered = drains.covers(wanted) if wanted else drains.everything and not drains.listed
        return DrainAnswer(
            gpu=format_uuid(wanted) if wanted else "",
            draining=covered,
            not_remembered=not_remembered,
            vault_pages=sum(map(_in_vault, gpus)),
            vault_up=state.vault_up,
            processes=[
                OwnProcess(pid=os.getpid(), name="gksmd", container=""),
                *(
                    OwnProcess(pid=pid, name="gksm-vault", container="")
                    for pid in [self._core.vault_pid()]
                    if pid
                ),
                *(
                    OwnProcess(
                        pid=process.identity.pid,
                        name=process.identity.name,
                        container=process.identity.container or "",
                    )
                    for process in state.processes.values()
                ),
            ],
        )


def _in_vault(gpu: Gpu) -> int:
    tables = gpu.tables.values()
    return sum(t.arriving + sum(page.attachable for page in t.by_id.values()) for t in tables)
