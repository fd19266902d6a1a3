# SPDX-License-Identifier: Apache-2.0
"""Warm pages at gksmd: what stays when the last one has left, and what goes for whom."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import pytest
from gksmd.model import PAGE_BYTES
from gksmd.protocol import lib
from gksmd.sizes import GpuSize

from tests.support.agents import (
    LEASE,
    OTHER_GPU,
    Agent,
    Daemon,
    agents,
    connect,
    digests,
    eventually,
    load,
    page_fd,
    publish,
    settled,
    take,
)
from tests.support.control import Outcome, gksmctl

GIB = 1 << 30
SHORT_GRACE = "grace.announce_ms = 700"
UID = os.getuid()


def warm(amount: int | str) -> str:
    """gksm.toml for so many pages, or a share of the GPU."""
    value = amount * PAGE_BYTES if isinstance(amount, int) else f'"{amount}"'
    return f"memory.warm_bytes = {value}"


def warm_pages(daemon: Daemon) -> int:
    gpus = daemon.ask("status", op="status")["gpus"]
    return sum(gpu["warm_bytes"] for gpu in gpus) // PAGE_BYTES


def loads(daemon: Daemon) -> list[tuple[int, int]]:
    """Id and warm pages of each load that has some, the last used first."""
    rows = daemon.ask("status", op="warm")
    return [(row["load"], row["warm_bytes"] // PAGE_BYTES) for row in rows if row["warm_bytes"]]


def run_once(daemon: Daemon, numbers: Sequence[int], **options: Any) -> None:
    """Somebody loads these pages, and ends."""
    with Agent(daemon.socket, **options) as one:
        one.run(load, numbers)
    eventually(lambda: not daemon.ask("status", op="ps"), "the end of the process")


def attached(daemon: Daemon, numbers: Sequence[int]) -> list[int]:
    """Which of the pages a newcomer finds; the others stay unpublished."""
    with agents(daemon.socket, 1) as (one,):
        found: list[int] = one.run(look_and_leave, numbers)
    eventually(lambda: not daemon.ask("status", op="ps"), "the end of the process")
    return found


def look_and_leave(state: Any, numbers: Sequence[int]) -> list[int]:
    found = state.client.lookup(digests(numbers))
    hits = [f for f in found if f.outcome == lib.GKSM_LOOKUP_HIT]
    return [int(name) for name in take(hits)]


def ctl(daemon: Daemon, *arguments: str) -> Outcome:
    done = gksmctl("--run-dir", str(daemon.run_dir), *arguments)
    return Outcome(done.returncode, done.stdout, done.stderr)


def test_pages_of_the_last_one_to_leave_stay_and_are_attached_by_the_next() -> None:
    with Daemon(config=warm(16)) as daemon:
        run_once(daemon, [1, 2, 3])
        assert warm_pages(daemon) == daemon.pages() == 3
        with agents(daemon.socket, 1) as (one,):
            assert one.run(load, [1, 2, 3])["attached"] == [1, 2, 3]
            assert warm_pages(daemon) == 0
        eventually(lambda: warm_pages(daemon) == 3, "their staying again")


def test_nothing_stays_by_default() -> None:
    with Daemon() as daemon:
        run_once(daemon, [1, 2, 3])
        eventually(lambda: daemon.pages() == 0, "the end of the pages")
        eventually(lambda: not daemon.ask("status", op="status")["gpus"], "the end of the counts")


def test_pages_that_are_freed_stay_and_those_that_are_written_to_do_not() -> None:
    """Copies of what a process goes on using would take the memory of its next writes."""
    with Daemon(config=warm(16)) as daemon, agents(daemon.socket, 1) as (one,):
        one.run(load, [1, 2, 3, 4])
        ids = {page.page_id: page for page in one.run(hold, [1, 2, 3, 4])}
        freed, cow, api, kept = ids
        one.run(give_back, list(ids))
        one.detached([freed], reason=lib.GKSM_DETACH_FREE)
        one.detached([cow], reason=lib.GKSM_DETACH_COW)
        one.detached([api], reason=lib.GKSM_DETACH_API_WRITE)
        eventually(lambda: daemon.pages() == 2, "the end of two pages")
        assert warm_pages(daemon) == 1
        one.detached([kept], reason=lib.GKSM_DETACH_UNSHARE)
        eventually(lambda: daemon.pages() == 1, "the end of the third")


def test_only_weights_stay() -> None:
    rule = f'[[domain]]\nname = "team"\nmatch = ["uid={UID}"]\nshare = ["weights", "kv"]\n'
    with Daemon(config=warm(16), domains={"team": rule}) as daemon:
        with agents(daemon.socket, 1) as (one,):
            one.run(load, [1])
            one.run(publish_kv, [2, 3])
            assert daemon.pages() == 3
        eventually(lambda: daemon.pages() == 1, "the end of the others")
        assert warm_pages(daemon) == 1


def publish_kv(state: Any, numbers: Sequence[int]) -> None:
    kind = lib.GKSM_KIND_KV
    found = state.client.lookup(digests(numbers), kind=kind)
    fds = [page_fd(number) for number in numbers]
    pages = [(f.token, d, fd) for f, d, fd in zip(found, digests(numbers), fds, strict=True)]
    assert [status for _, status in state.client.publish(pages, kind=kind)] == [0, 0]


def hold(state: Any, numbers: Sequence[int]) -> list[Any]:
    found = state.client.lookup(digests(numbers))
    take(found)
    return list(found)


def give_back(state: Any, ids: Sequence[int]) -> None:
    state.client.detached(ids, reason=lib.GKSM_DETACH_DECLINED)


def test_a_budget_evicts_whole_loads_the_least_recently_used_first() -> None:
    with Daemon(config=warm(8)) as daemon:
        run_once(daemon, [1, 2, 3])
        run_once(daemon, [11, 12, 13])
        assert attached(daemon, [1]) == [1]
        # Looking alone is no use: the first one is still the oldest.
        run_once(daemon, [1, 2, 3])
        run_once(daemon, [21, 22, 23])
        assert [pages for _, pages in loads(daemon)] == [3, 3]
        assert attached(daemon, [1, 2, 3, 11, 12, 13, 21, 22, 23]) == [1, 2, 3, 21, 22, 23]


def test_of_a_load_that_is_larger_than_the_budget_a_part_stays() -> None:
    with Daemon(config=warm(4)) as daemon:
        run_once(daemon, [1, 2])
        run_once(daemon, range(11, 17))
        assert warm_pages(daemon) == 4
        assert len(attached(daemon, range(11, 17))) == 4


def test_a_page_goes_with_the_model_that_used_it_last() -> None:
    """A fine-tune has most pages of its base: evicting the base must not take them."""
    with Daemon(config=warm(6)) as daemon:
        run_once(daemon, [1, 2, 3, 4])
        run_once(daemon, [1, 2, 3, 5])
        assert [pages for _, pages in loads(daemon)] == [4, 1]
        run_once(daemon, [6, 7])
        assert attached(daemon, [1, 2, 3, 4, 5, 6, 7]) == [1, 2, 3, 5, 6, 7]


def test_a_share_of_the_gpu_is_a_budget() -> None:
    """The agents' GPU has 80 GiB."""
    with Daemon(config=warm("0.01%")) as daemon:
        run_once(daemon, range(1, 9))
        assert warm_pages(daemon) == (80 << 30) // 10000 // PAGE_BYTES == 4


@pytest.mark.parametrize(
    ("text", "total", "amount"),
    [(4096, 0, 4096), ("8G", 0, 8 << 30), ("20%", 1000, 200), ("2.5 %", 1000, 25), ("9%", 0, None)],
)
def test_a_gpu_size_is_bytes_or_a_share(text: object, total: int, amount: int | None) -> None:
    assert GpuSize.parse(text).of(total) == amount


@pytest.mark.parametrize("text", ["101%", "-1%", "%", "much", -1, True, 1.5])
def test_a_gpu_size_that_makes_no_sense_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="share of the GPU"):
        GpuSize.parse(text)


def test_a_pinned_load_stays_beyond_the_budget_and_reclaim_until_it_is_dropped() -> None:
    with Daemon(config=warm(4)) as daemon:
        run_once(daemon, [1, 2, 3])
        [(load_id, _)] = loads(daemon)
        assert ctl(daemon, "warm", "pin", str(load_id)).status == 0
        run_once(daemon, [11, 12])
        # The pinned load takes its part of the budget; the other gets the rest.
        assert dict(loads(daemon))[load_id] == 3
        assert warm_pages(daemon) == 4
        with agents(daemon.socket, 1) as (one,):
            assert one.reclaim(10 * PAGE_BYTES) == PAGE_BYTES
            # Using it takes nothing out of it.
            assert one.run(load, [1, 2])["attached"] == [1, 2]
        eventually(lambda: loads(daemon) == [(load_id, 3)], "all of it being warm again")
        done = ctl(daemon, "warm", "drop", str(load_id))
        assert (done.status, done.stdout) == (0, "6 MiB of 1 load are free again.\n")
        assert daemon.pages() == 0


def test_a_load_may_be_pinned_while_it_is_in_use_and_where_nothing_else_stays() -> None:
    with Daemon() as daemon:
        with agents(daemon.socket, 1) as (one,):
            one.run(load, [1, 2])
            [row] = daemon.ask("status", op="warm")
            assert (row["warm_bytes"], row["in_use_bytes"]) == (0, 2 * PAGE_BYTES)
            assert ctl(daemon, "warm", "pin", str(row["load"])).status == 0
        eventually(lambda: warm_pages(daemon) == 2, "its staying")
        assert ctl(daemon, "warm", "unpin", str(row["load"])).status == 0
        eventually(lambda: daemon.pages() == 0, "its end")


def test_reclaimed_memory_is_free_when_the_answer_comes() -> None:
    with Daemon(config=warm(16)) as daemon:
        run_once(daemon, [1, 2, 3])
        run_once(daemon, [11, 12])
        with agents(daemon.socket, 1) as (one,):
            # Whole loads, the oldest first, no more than it takes.
            assert one.reclaim(1) == 3 * PAGE_BYTES
            assert daemon.pages() == 2
            assert one.reclaim(100 * PAGE_BYTES) == 2 * PAGE_BYTES
            assert one.reclaim(1) == 0


def test_memory_in_use_is_never_reclaimed() -> None:
    with Daemon(config=warm(16)) as daemon, agents(daemon.socket, 2) as (one, other):
        one.run(load, [1, 2])
        assert other.reclaim(GIB) == 0
        assert daemon.pages() == 2


def test_a_promise_that_lacks_memory_gets_that_of_warm_pages() -> None:
    terms = 'memory.reserve = 0\nmemory.low_water = 0\nmemory.admission = "strict"'
    with Daemon(config=f"{warm(16)}\n{terms}") as daemon:
        run_once(daemon, [1, 2, 3])
        with agents(daemon.socket, 1) as (one,):
            free = 10 * PAGE_BYTES
            assert one.commit(14, free) == -12
            assert daemon.pages() == 3, "evicted for a promise that was not given"
            assert one.commit(12, free) == 0
            assert daemon.pages() == 0


def test_one_domains_models_make_way_for_anothers() -> None:
    domains = {
        "rules": "".join(
            f'[[domain]]\nname = "{name}"\nmatch = ["container-name={name}"]\n'
            for name in ("red", "blue")
        )
    }
    with Daemon(config=warm(4), domains=domains) as daemon:
        red, blue = (box(daemon, name) for name in ("red", "blue"))
        with Agent(red) as one:
            one.run(load, [1, 2, 3])
        eventually(lambda: warm_pages(daemon) == 3, "red's model staying")
        with Agent(blue) as one:
            # It is not to be found by another domain.
            assert one.run(load, [1, 2, 3])["published"] == [1, 2, 3]
        eventually(lambda: daemon.pages() == 3, "red's model being evicted")
        assert by_domain(daemon) == {"red": 0, "blue": 3}


def box(daemon: Daemon, name: str) -> Any:
    facts = {"id": f"id-{name}", "engine": "docker", "name": name}
    answer = daemon.ask("runtime", op="prepare", container=facts)
    return daemon.run_dir / answer["socket"]


def by_domain(daemon: Daemon) -> dict[str, int]:
    rows = daemon.ask("status", op="status")["domains"]
    return {row["name"]: row["warm_bytes"] // PAGE_BYTES for row in rows}


def test_a_domain_may_have_a_budget_of_its_own() -> None:
    domains = {"own": f'[[domain]]\nname = "own"\nmatch = ["uid={UID}"]\nwarm = "4M"\n'}
    with Daemon(domains=domains) as daemon:
        run_once(daemon, [1, 2, 3])
        assert by_domain(daemon) == {"own": 2}


def test_pages_of_a_domain_that_cannot_come_back_do_not_stay() -> None:
    """A process that no rule matches is a domain by itself: nobody else ever gets its pages."""
    with Daemon(config=warm(16), domains={}) as daemon:
        run_once(daemon, [1, 2])
        eventually(lambda: daemon.pages() == 0, "the end of the pages")
        path = daemon.prepare("one-box")
        for _ in range(2):
            with Agent(path) as one:
                done = one.run(load, [1, 2])
            eventually(lambda: warm_pages(daemon) == 2, "the pages staying with their container")
        assert done["attached"] == [1, 2]
        daemon.ask("runtime", op="forget", id="one-box")
        eventually(lambda: daemon.pages() == 0, "the end of the pages")


def test_pages_of_a_domain_that_is_deleted_are_not_found_by_the_next_of_its_name() -> None:
    rule = f'[[domain]]\nname = "team"\nmatch = ["uid={UID}"]\n'
    with Daemon(config=warm(16), domains={"team": rule}) as daemon:
        run_once(daemon, [1, 2])
        assert by_domain(daemon) == {"team": 2}
        path = daemon.config_dir / "domains.d" / "team.toml"
        path.unlink()
        daemon.ask("admin", op="reload")
        eventually(lambda: daemon.pages() == 0, "the end of the pages")
        path.write_text(rule)
        daemon.ask("admin", op="reload")
        assert attached(daemon, [1, 2]) == []


def test_a_domains_own_warm_pages_make_way_for_what_it_publishes() -> None:
    rule = f'[[domain]]\nname = "team"\nmatch = ["uid={UID}"]\nbudget = "8M"\n'
    with Daemon(config=warm(16), domains={"team": rule}) as daemon:
        run_once(daemon, [1, 2, 3])
        with agents(daemon.socket, 1) as (one,):
            assert one.run(load, [11, 12, 13, 14])["published"] == [11, 12, 13, 14]
            assert daemon.pages() == 4


def test_warm_pages_count_against_no_containers_quota() -> None:
    config = f"{warm(16)}\nquota.container.published_pages = 3"
    with Daemon(config=config, domains={}) as daemon:
        path = daemon.prepare("one-box")
        for numbers in ([1, 2, 3], [11, 12, 13]):
            with Agent(path) as one:
                assert one.run(load, numbers)["published"] == numbers
            eventually(lambda: not daemon.ask("status", op="ps"), "the end of the process")


def test_invariant_4_warm_pages_survive_gksmd() -> None:
    with Daemon(config=f"{warm(16)}\n{SHORT_GRACE}") as daemon:
        run_once(daemon, [1, 2, 3])
        with agents(daemon.socket, 1) as (one,):
            pages = one.run(publish_new, [11])
            daemon.kill_gksmd()
            daemon.start()
            one.run(connect, daemon.socket)
            assert one.announce(pages) == [0]
            eventually(lambda: [p for _, p in loads(daemon)] == [3], "the others being warm")
        eventually(lambda: warm_pages(daemon) == 4, "the last one being warm")
        [row] = [r for r in daemon.ask("status", op="warm") if not r["program"]]
        assert row["warm_bytes"] == 3 * PAGE_BYTES
        with agents(daemon.socket, 1) as (one,):
            assert one.run(load, [1, 2, 3, 11])["attached"] == [1, 2, 3, 11]


def publish_new(state: Any, numbers: Sequence[int]) -> list[tuple[int, bytes, int]]:
    found = state.client.lookup(digests(numbers))
    assert {f.outcome for f in found} == {LEASE}
    results = publish(state, found, numbers)
    return [(page_id, d, 1) for (page_id, _), d in zip(results, digests(numbers), strict=True)]


def test_what_a_smaller_budget_does_not_allow_goes_when_gksmd_is_back() -> None:
    with Daemon(config=f"{warm(16)}\n{SHORT_GRACE}") as daemon:
        run_once(daemon, [1, 2, 3])
        daemon.kill_gksmd()
        path = daemon.config_dir / "gksm.toml"
        path.write_text(path.read_text().replace(warm(16), warm(1)))
        daemon.start()
        eventually(lambda: daemon.pages() == 1, "the surplus being dropped")
        assert warm_pages(daemon) == 1


def test_invariant_4_a_killed_vault_takes_the_warm_pages_along_and_nothing_else() -> None:
    with Daemon(config=warm(16)) as daemon:
        run_once(daemon, [1, 2, 3])
        with agents(daemon.socket, 1) as (one,):
            one.run(load, [11])
            daemon.kill_vault()
            eventually(lambda: warm_pages(daemon) == 0, "the loss of the warm pages")
            daemon.start_vault()
            eventually(lambda: daemon.ask("admin", op="info")["vault_up"], "the vault's return")
            assert one.run(load, [1, 2])["published"] == [1, 2]
        # The page that the vault lost cannot stay.
        eventually(lambda: warm_pages(daemon) == daemon.pages() == 2, "the new ones staying")


def test_invariant_6_nothing_is_left_once_the_warm_pages_are_dropped() -> None:
    with Daemon(config=warm(16)) as daemon:
        before = settled(daemon.vault_fds)
        for number in range(3):
            run_once(daemon, [number, number + 100])
        done = ctl(daemon, "warm", "drop", "--all")
        assert done.stdout == "12 MiB of 3 loads are free again.\n"
        assert daemon.vault_fds() == before
        assert daemon.ask("status", op="warm") == []
        assert daemon.ask("status", op="status")["gpus"] == []


def test_warm_drop_takes_no_more_than_it_is_told_to() -> None:
    with Daemon(config=warm(16)) as daemon:
        run_once(daemon, [1, 2])
        run_once(daemon, [1, 2], gpu=OTHER_GPU)
        first, _ = (row["gpu"] for row in daemon.ask("status", op="warm"))
        assert ctl(daemon, "warm", "drop").status == 2
        assert ctl(daemon, "warm", "drop", "99").status == 1
        assert ctl(daemon, "warm", "drop", "--all", "--domain", "nobody").status == 1
        assert ctl(daemon, "warm", "drop", "--all", "--gpu", first[:9]).status == 0
        [row] = daemon.ask("status", op="warm")
        assert row["gpu"] != first


def test_warm_list_shows_who_loaded_what() -> None:
    with Daemon(config=warm(16)) as daemon:
        assert "nothing is warm" in ctl(daemon, "warm", "list").stdout
        run_once(daemon, [1, 2], framework=b"vllm")
        [row] = json.loads(ctl(daemon, "warm", "list", "--json").stdout)
        assert (row["program"], row["warm_bytes"], row["pinned"]) == ("vllm", 2 * PAGE_BYTES, False)
        assert row["domain"] == f"uid:{UID}"
        shown = ctl(daemon, "warm", "list").stdout
        assert "vllm" in shown
        assert max(map(len, shown.splitlines())) <= 100
