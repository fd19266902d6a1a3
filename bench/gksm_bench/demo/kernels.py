# SPDX-License-Identifier: Apache-2.0
"""The kernel that "fine-tunes": it changes one word of each page it is given.

simcuda has it built in (simcuda/include/simcuda/kernels.h); a real GPU gets it as
PTX, with the same name and parameters.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from gksm_bench.demo.layout import PAGE
from gksm_bench.driver import check, driver

BUILTIN_IMAGE = b"simcuda builtin\0"
NAME = b"write_pages"
OFFSET = 4096 + 64
VALUE = 0x3F803F81

PTX = b"""
.version 6.4
.target sm_70
.address_size 64
.visible .entry write_pages(
    .param .u64 base, .param .u64 first, .param .u64 count, .param .u64 step,
    .param .u64 offset, .param .u32 value)
{
    .reg .u64 %address, %count, %step, %first, %offset;
    .reg .u32 %value;
    .reg .pred %end;
    ld.param.u64 %address, [base];
    ld.param.u64 %first, [first];
    ld.param.u64 %count, [count];
    ld.param.u64 %step, [step];
    ld.param.u64 %offset, [offset];
    ld.param.u32 %value, [value];
    cvta.to.global.u64 %address, %address;
    shl.b64 %first, %first, 21;
    shl.b64 %step, %step, 21;
    add.u64 %address, %address, %first;
    add.u64 %address, %address, %offset;
again:
    setp.eq.u64 %end, %count, 0;
    @%end bra done;
    st.global.u32 [%address], %value;
    add.u64 %address, %address, %step;
    sub.u64 %count, %count, 1;
    bra again;
done:
    ret;
}
\0"""

PARAMETER_TYPES = (
    ctypes.c_uint64,
    ctypes.c_uint64,
    ctypes.c_uint64,
    ctypes.c_uint64,
    ctypes.c_uint64,
    ctypes.c_uint32,
)


class Kernels:
    """The loaded kernel."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.function = check(driver.cuModuleGetFunction(module, NAME))

    def write(self, addresses: Sequence[int], stream: Any = 0) -> None:
        """Enqueue the writes: one launch if the pages are equally far apart."""
        steps = {b - a for a, b in pairwise(addresses)}
        if len(steps) <= 1:
            self._launch(addresses[0], len(addresses), next(iter(steps), PAGE) // PAGE, stream)
        else:
            for address in addresses:
                self._launch(address, 1, 1, stream)

    def _launch(self, base: int, count: int, step: int, stream: Any) -> None:
        values = (base, 0, count, step, OFFSET, VALUE)
        check(
            driver.cuLaunchKernel(
                self.function, 1, 1, 1, 1, 1, 1, 0, stream, (values, PARAMETER_TYPES), 0
            )
        )

    @staticmethod
    def expect(image: ctypes.Array[ctypes.c_char]) -> None:
        """Do to a page in host memory what the kernel does to one on the device."""
        ctypes.c_uint32.from_buffer(image, OFFSET).value = VALUE


def load(*, ptx: bool) -> Kernels:
    """Load the kernel into the current context."""
    return Kernels(check(driver.cuModuleLoadData(PTX if ptx else BUILTIN_IMAGE)))
