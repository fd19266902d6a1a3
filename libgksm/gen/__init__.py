# SPDX-License-Identifier: Apache-2.0
"""Generates libgksm's export and jump tables from the CUDA headers."""
