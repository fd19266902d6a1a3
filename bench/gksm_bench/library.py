# SPDX-License-Identifier: Apache-2.0
"""What gksm.h offers to a program that libgksm was put into."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from gksmd.protocol import lib

PAGE = 2 << 20
KIND_KV: int = lib.GKSM_KIND_KV
KIND_OTHER: int = lib.GKSM_KIND_OTHER


class Statistics(ctypes.Structure):
    """struct gksm_statistics, as far as it is read here."""

    _fields_ = [
        ("bytes", ctypes.c_uint32),
        ("guard", ctypes.c_uint32),
        *[
            (name, ctypes.c_uint64)
            for name in (
                "virtual_pages",
                "unbacked_pages",
                "private_pages",
                "shared_pages",
                "spare_pages",
                "cow_events",
                "cow_ns_total",
                "cow_ns_max",
                "api_detaches",
                "first_touches",
                "loaded_pages",
                "attached_pages",
                "zero_pages",
                "stable_pages",
                "full_scans",
                "merged_pages",
                "dropped_merges",
                "churned_merges",
            )
        ],
    ]


class Library:
    """The functions, with errors as OSError."""

    def __init__(self) -> None:
        self._library: Any = ctypes.CDLL(None)

    def is_shared(self, address: int) -> bool:
        """Whether the page at `address` is mapped by others, too, or could be."""
        shared = ctypes.c_size_t()
        self._check(
            self._library.gksm_is_shared(ctypes.c_uint64(address), PAGE, ctypes.byref(shared))
        )
        return shared.value == PAGE

    def statistics(self, address: int) -> Statistics:
        """Counts of this process on the GPU that `address` lies on."""
        found = Statistics(bytes=ctypes.sizeof(Statistics))
        self._check(
            self._library.gksm_get_statistics(ctypes.c_uint64(address), ctypes.byref(found))
        )
        return found

    def set_kind(self, address: int, nbytes: int, kind: int) -> None:
        """Say what a range holds: one of KIND_*."""
        self._check(
            self._library.gksm_set_kind(ctypes.c_uint64(address), ctypes.c_size_t(nbytes), kind)
        )

    @staticmethod
    def _check(status: int) -> None:
        if status:
            raise OSError(-status, os.strerror(-status))
