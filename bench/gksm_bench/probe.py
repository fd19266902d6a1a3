# SPDX-License-Identifier: Apache-2.0
"""Answer each line on standard input with `FREE TOTAL`, the device's memory in bytes."""

from __future__ import annotations

import sys

from gksm_bench.driver import check, driver


def main() -> None:
    """Run until standard input ends."""
    device_number = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    check(driver.cuInit(0))
    device = check(driver.cuDeviceGet(device_number))
    context = check(driver.cuDevicePrimaryCtxRetain(device))
    check(driver.cuCtxSetCurrent(context))
    for _ in sys.stdin:
        free, total = check(driver.cuMemGetInfo())
        print(int(free), int(total), flush=True)


if __name__ == "__main__":
    main()
