# SPDX-License-Identifier: Apache-2.0
"""Runs one client program."""

import importlib
import sys

module, function = sys.argv[1:]
getattr(importlib.import_module(f"tests.sim.driver_api.{module}"), function)()
