# SPDX-License-Identifier: Apache-2.0
"""Runs every client program of one module, each in a forked child.

Importing cuda-python takes longer than most programs run, and is done once; CUDA itself
is initialised in the children. Prints a JSON object: the name of each program, and what
it wrote if it failed.
"""

from __future__ import annotations

import faulthandler
import importlib
import inspect
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable

SECONDS = 30


def programs(module: str) -> dict[str, Callable[[], None]]:
    """The functions of a module that are programs: its own, without a leading `_`."""
    found = importlib.import_module(f"tests.sim.driver_api.{module}")
    return {
        name: function
        for name, function in inspect.getmembers(found, inspect.isfunction)
        if function.__module__ == found.__name__ and not name.startswith("_")
    }


def run(program: Callable[[], None]) -> str | None:
    """What the program wrote on its standard error, if it failed."""
    with tempfile.TemporaryFile() as log:
        child = os.fork()
        if child == 0:
            os.dup2(log.fileno(), 2)
            faulthandler.enable()
            signal.alarm(SECONDS)
            try:
                program()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            return None
        log.seek(0)
        return f"ended with {status}\n{log.read().decode(errors='replace')}"


if __name__ == "__main__":
    print(json.dumps({name: run(program) for name, program in programs(sys.argv[1]).items()}))
