# SPDX-License-Identifier: Apache-2.0
"""Clients of the simulated driver: each function is one program that checks itself.

They use cuda-python, which loads the driver once for a process, so each runs in a
process of its own: ``python -m tests.sim.driver_api MODULE FUNCTION``.
"""
