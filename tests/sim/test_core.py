# SPDX-License-Identifier: Apache-2.0
"""What the core must not do to a program's bytes, seen from the program."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.pages import PAGE, content, digest
from tests.support.remote import Remote

Sharer = Callable[..., Remote]
WORD = 0x12345678


def test_a_kernel_s_write_to_a_page_that_is_just_complete_is_not_lost(sharer: Sharer) -> None:
    """The page's last piece comes with many full pages; the kernel writes to an older piece."""
    a = sharer()
    seeds = list(range(36))
    for number in range(8):
        at = a.alloc(len(seeds))
        source = a.source([seed + 100 * number for seed in seeds])
        a.copy_in(at, source, PAGE // 2)
        flag = a.hold("nb")
        a.write_kernel(at, [0], 4096, WORD, "nb")
        thread = a.begin("let_go_after", flag, number * 0.003)
        a.copy_in(at + PAGE // 2, source + PAGE // 2, len(seeds) * PAGE - PAGE // 2)
        assert a.end(thread)
        a.sync()
        page = bytearray(content(100 * number))
        page[4096:4100] = WORD.to_bytes(4, "little")
        assert a.digests(at, 1) == [digest(bytes(page))], number
        a.free(at)
