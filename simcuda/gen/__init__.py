# SPDX-License-Identifier: Apache-2.0
"""Generates simcuda's export surface from the CUDA headers."""
