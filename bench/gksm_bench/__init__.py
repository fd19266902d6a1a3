# SPDX-License-Identifier: Apache-2.0
"""Demo, benchmarks and soak: the public commands of gKSM, run as a user would run them."""
