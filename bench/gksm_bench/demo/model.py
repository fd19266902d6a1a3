# SPDX-License-Identifier: Apache-2.0
"""Safetensors files, mapped into memory as an engine's loader maps them."""

from __future__ import annotations

import ctypes
import json
import mmap
from dataclasses import dataclass
from pathlib import Path


class ModelError(RuntimeError):
    """The model cannot be made or read."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of a safetensors file; offsets in bytes from the start of the file."""

    name: str
    start: int
    nbytes: int


@dataclass(frozen=True)
class Model:
    """A safetensors file mapped into memory.

    `address` is where the mapping starts. It is private and pageable; nobody writes to it.
    """

    mapping: mmap.mmap
    address: int
    tensors: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)


def open_model(path: Path, limit: int | None = None) -> Model:
    """Map a safetensors file; with `limit`, only tensors that end within that many bytes."""
    with path.open("rb") as file:
        # A copy-on-write mapping: its address can be had, and the file stays as it is.
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    header_bytes = int.from_bytes(mapping[:8], "little")
    data = 8 + header_bytes
    if data > len(mapping):
        raise ModelError(f"{path} is no safetensors file, or only a part of one")
    header = json.loads(mapping[8:data])
    tensors = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        if data + end > len(mapping):
            raise ModelError(f"{path} ends before its tensor {name}; delete it to renew it")
        if limit is None or end <= limit:
            tensors.append(Tensor(name, data + start, end - start))
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    return Model(mapping, address, tuple(tensors))
