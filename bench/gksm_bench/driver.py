# SPDX-License-Identifier: Apache-2.0
"""cuda-python's binding of the driver, with errors as exceptions. Nothing of gKSM."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver as _driver  # type: ignore[import-untyped, unused-ignore]

driver: Any = _driver


class CudaError(RuntimeError):
    """A driver call failed; `code` is its CUresult."""

    def __init__(self, code: int, name: str) -> None:
        super().__init__(f"the CUDA driver answered {name} ({code})")
        self.code = code


def check(answer: Any) -> Any:
    """What the call returned besides its status: nothing, one value or a tuple."""
    status, *values = answer
    if int(status) != 0:
        raise CudaError(int(status), getattr(status, "name", str(status)))
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)
