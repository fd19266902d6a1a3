# SPDX-License-Identifier: Apache-2.0
"""Every way to start a kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint64, c_void_p

from tests.support.api.base import WORD, Api, both
from tests.support.api.graphs import instantiate, run
from tests.support.cuda_structs import LaunchConfig
from tests.support.pages import PAGE

# Launches


class Arguments:
    """The parameters of write_pages (one word at the address), in the driver's two forms."""

    def __init__(self, at: int) -> None:
        offset = at % PAGE
        self.values = [c_uint64(v) for v in (at - offset, 0, 1, 1, offset)]
        self.word = ctypes.c_uint32(WORD & 0xFFFF_FFFF)
        each = [*self.values, self.word]
        self.pointers = (c_void_p * len(each))(*map(ctypes.addressof, each))
        self.packed = b"".join(map(bytes, each))
        self.size = c_size_t(len(self.packed))
        end, pointer, size = 0, 1, 2
        self.extra = (c_void_p * 5)(
            pointer,
            ctypes.cast(self.packed, c_void_p).value,
            size,
            ctypes.addressof(self.size),
            end,
        )


Launcher = Callable[[Api, int, Arguments], None]


def launch(name: str, *, packed: bool = False) -> Launcher:
    one = (1, 1, 1, 1, 1, 1, 0)

    def use(api: Api, function: int, arguments: Arguments) -> None:
        parameters = (None, arguments.extra) if packed else (arguments.pointers, None)
        if "Ex" in name:
            config = LaunchConfig(grid=(1, 1, 1), block=(1, 1, 1))
            api.call(name, byref(config), function, *parameters)
        elif "Cooperative" in name:
            api.call(name, function, *one, 0, arguments.pointers)
        else:
            api.call(name, function, *one, 0, *parameters)
        api.sync()

    return use


def launch_captured(api: Api, function: int, arguments: Arguments) -> None:
    relaxed = 2
    api.call("cuStreamBeginCapture_v2", api.stream, relaxed)
    api.call(
        "cuLaunchKernel", function, *(1, 1, 1, 1, 1, 1, 0), api.stream, arguments.pointers, None
    )
    handle = c_void_p()
    api.call("cuStreamEndCapture", api.stream, byref(handle))
    run(api, instantiate(api, int(handle.value or 0)))
    api.call("cuGraphDestroy", handle)


def launchers() -> dict[str, Launcher]:
    """Every way to start a kernel, by name."""
    found: dict[str, Launcher] = {"a graph": launch_captured}
    for name in both("cuLaunchKernel", "_ptsz") + both("cuLaunchKernelEx", "_ptsz"):
        found[name] = launch(name)
        found[f"{name}, packed parameters"] = launch(name, packed=True)
    for name in both("cuLaunchCooperativeKernel", "_ptsz"):
        found[name] = launch(name)
    return found
