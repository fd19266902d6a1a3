# SPDX-License-Identifier: Apache-2.0
"""Answer each line on standard input with `FREE TOTAL COPIED`, in bytes.

The first two are the device's memory; the third is what was ever copied to it from the
host, by any process, which only a simulated device counts (else 0).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

from gksm_bench.driver import check, driver


def copied_bytes(device_number: int) -> Callable[[], int]:
    """Asks the device for its count."""
    try:
        ask = ctypes.CDLL("libcuda.so.1").simcudaHostToDeviceBytes
    except AttributeError:  # a real driver
        return lambda: 0

    def count() -> int:
        found = ctypes.c_uint64()
        ask(device_number, ctypes.byref(found))
        return found.value

    return count


def main() -> None:
    """Run until standard input ends."""
    device_number = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    check(driver.cuInit(0))
    device = check(driver.cuDeviceGet(device_number))
    context = check(driver.cuDevicePrimaryCtxRetain(device))
    check(driver.cuCtxSetCurrent(context))
    copied = copied_bytes(device_number)
    for _ in sys.stdin:
        free, total = check(driver.cuMemGetInfo())
        print(int(free), int(total), copied(), flush=True)


if __name__ == "__main__":
    main()
