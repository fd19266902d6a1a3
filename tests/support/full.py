# SPDX-License-Identifier: Apache-2.0
"""A device without free memory."""

from __future__ import annotations

from contextlib import suppress

from tests.support.remote import Remote, RemoteError


def fill_the_rest(plain: Remote) -> None:
    """Take all free memory of the device with a program that has no libgksm."""
    pages = 64
    while pages:
        with suppress(RemoteError):
            while True:
                plain.write_words(plain.alloc(pages), 1, 1)
        pages //= 2
