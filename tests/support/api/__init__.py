# SPDX-License-Identifier: Apache-2.0
"""Every entry point that writes or reads device memory, called by the name of its symbol.

A writer puts something at an address of device memory and says which bytes now stand there:
{offset: bytes}. A reader brings SIZE bytes from an address to the host.
"""
