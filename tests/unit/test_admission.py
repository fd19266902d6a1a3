# SPDX-License-Identifier: Apache-2.0
"""What is promised to whom: free memory, what is published, and the strict promises of others."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from gksmd.accounts import Accounts, cover_pages, debt_bytes, note_free, unreported_bytes
from gksmd.client import Client
from gksmd.commits import lacking_bytes, promise, report
from gksmd.config import GpuSize, Memory
from gksmd.counts import Counters, QuotaUse, Usage
from gksmd.domains import Decision, Domain
from gksmd.model import (
    PAGE_BYTES,
    DomainState,
    Gpu,
    GpuTable,
    Identity,
    Instance,
    Load,
    Page,
    Process,
    State,
)
from gksmd.pressure import Pressure
from gksmd.protocol import lib
from gksmd.warm import Warm

from tests.support.agents import GPU, Agent, Daemon, agents, eventually, load

GIB = 1 << 30
TOTAL = 80 * GIB


def terms(admission: Any = "share-aware", reserve: str = "0", low: str = "0") -> Accounts:
    return Accounts(
        Memory(admission=admission, reserve=GpuSize.parse(reserve), low_water=GpuSize.parse(low))
    )


STRICT = terms("strict")
SHARE_AWARE = terms()


def instance(gpu: Gpu, total_bytes: int = TOTAL, domain: str = "d") -> Instance:
    table = gpu.tables.get(domain)
    if table is None:
        table = gpu.tables[domain] = GpuTable(DomainState(domain), gpu)
    identity = Identity(1, 1, 0, 0, None, "", "test", "pidfd")
    decision = Decision(Domain(domain), "")
    process = Process(identity, -1, table.domain, decision, QuotaUse(), 0.0)
    made = Instance(process, table, 0, 3, total_bytes)
    gpu.instances.add(made)
    table.instances.add(made)
    return made


def publish(table: GpuTable, count: int) -> list[Page]:
    made = []
    for number in range(len(table.by_id) + 1, len(table.by_id) + count + 1):
        page = Page(number, number.to_bytes(16, "little"), table, 0)
        table.by_id[page.id] = table.by_hash[page.hash] = page
        made.append(page)
    return made


def test_memory_is_promised_only_once() -> None:
    gpu = Gpu(GPU)
    one, other = instance(gpu), instance(gpu)
    assert promise(one, 300, GIB, STRICT, 0.0)
    assert not promise(other, 300, GIB, STRICT, 0.0)
    assert promise(other, 212, GIB, STRICT, 0.0)


def test_the_reserve_is_not_promised() -> None:
    one = instance(Gpu(GPU))
    reserving = terms(reserve="2M")
    assert not promise(one, 512, GIB, reserving, 0.0)
    assert promise(one, 511, GIB, reserving, 0.0)


def test_a_promise_counts_until_usage_includes_it() -> None:
    gpu = Gpu(GPU)
    one = instance(gpu)
    assert promise(one, 100, GIB, STRICT, 10.0)
    report(one, Usage(), 10.01)  # written before the promise arrived
    assert gpu.promised_pages == 100
    report(one, Usage(virtual_pages=100, unbacked_pages=100), 10.02)
    assert gpu.promised_pages == 100
    report(one, Usage(virtual_pages=100, unbacked_pages=40, private_pages=60), 10.2)
    assert gpu.promised_pages == 40


def test_what_was_mapped_since_the_last_report_is_not_promised_any_more() -> None:
    """Else memory looks short whenever a load is faster than the report of it."""
    gpu = Gpu(GPU)
    one = instance(gpu)
    report(one, Usage(virtual_pages=100, unbacked_pages=100), 0.0)
    for number in range(60):
        one.mapped[Page(number, bytes(16), one.table, 0)] = 1
    assert gpu.promised_pages == 40
    report(one, Usage(virtual_pages=100, unbacked_pages=40, shared_pages=60), 0.1)
    assert gpu.promised_pages == 40


def test_a_promise_that_was_not_used_is_given_back_in_time() -> None:
    gpu = Gpu(GPU)
    one = instance(gpu)
    assert promise(one, 100, GIB, STRICT, 10.0)
    report(one, Usage(), 11.0)
    assert gpu.promised_pages == 0


def test_a_liar_can_have_no_more_promised_than_the_gpu_has() -> None:
    gpu = Gpu(GPU)
    liar = instance(gpu, total_bytes=1 << 60)
    honest = [instance(gpu, total_bytes=GIB) for _ in range(2)]
    report(liar, Usage(virtual_pages=1 << 50, unbacked_pages=1 << 50), 0.0)
    assert gpu.total_bytes == GIB
    assert gpu.promised_pages == 512
    assert not promise(honest[0], 1, GIB, STRICT, 0.0)
    gpu.instances.discard(liar)
    assert promise(honest[0], 1, GIB, STRICT, 0.0)


def test_what_is_published_may_be_promised_on_top_of_what_is_free() -> None:
    gpu = Gpu(GPU)
    one = instance(gpu)
    publish(one.table, 100)
    assert not promise(one, 110, 8 * PAGE_BYTES, SHARE_AWARE, 0.0)
    assert not promise(one, 100, 8 * PAGE_BYTES, STRICT, 0.0)
    assert promise(one, 108, 8 * PAGE_BYTES, SHARE_AWARE, 0.0)
    assert not promise(one, 1, 8 * PAGE_BYTES, SHARE_AWARE, 0.0)


def test_a_published_page_covers_one_page_of_each_instance() -> None:
    gpu = Gpu(GPU)
    one, two = instance(gpu), instance(gpu)
    pages = publish(one.table, 100)
    for each in (one, two):
        assert promise(each, 100, 0, SHARE_AWARE, 0.0)
        assert not promise(each, 1, 0, SHARE_AWARE, 0.0)
    one.mapped = dict.fromkeys(pages, 1)
    report(one, Usage(virtual_pages=100, shared_pages=100), 1.0)
    assert cover_pages(one) == 0
    assert not promise(one, 1, 0, SHARE_AWARE, 1.0)


def test_who_has_filled_pages_itself_has_no_other_covered() -> None:
    """A program that loads another model, or none, is not promised memory twice over."""
    gpu = Gpu(GPU)
    trainer, loader = instance(gpu), instance(gpu)
    pages = publish(trainer.table, 100)
    report(trainer, Usage(virtual_pages=60, private_pages=60), 0.0)
    assert cover_pages(trainer) == 40
    loader.mapped, loader.published_pages = dict.fromkeys(pages[:70], 1), 70
    assert cover_pages(loader) == 0
    loader.mapped = {}  # it has freed all that: the next model may be there already
    assert cover_pages(loader) == 100


def test_what_another_domain_has_published_covers_nothing() -> None:
    gpu = Gpu(GPU)
    one, foreign = instance(gpu), instance(gpu, domain="other")
    publish(one.table, 100)
    assert not promise(foreign, 1, 0, SHARE_AWARE, 0.0)


def test_strict_promises_and_the_reserve_come_before_covered_ones() -> None:
    """However much one domain is promised on what it has published, the other keeps its own."""
    gpu = Gpu(GPU)
    careful, bold = instance(gpu, domain="careful"), instance(gpu, domain="bold")
    publish(bold.table, 1000)
    accounts = terms(reserve="20M")
    free = 100 * PAGE_BYTES
    assert promise(careful, 60, free, accounts, 0.0)
    assert promise(bold, 1000, free, accounts, 0.0)
    assert promise(careful, 30, free, accounts, 0.0)
    assert not promise(careful, 1, free, accounts, 0.0)
    assert not promise(bold, 1, free, accounts, 0.0)


def test_a_page_that_goes_uncovers_the_promises_of_its_own_domain() -> None:
    gpu = Gpu(GPU)
    careful, bold = instance(gpu, domain="careful"), instance(gpu, domain="bold")
    pages = publish(bold.table, 50)
    assert promise(bold, 50, 10 * PAGE_BYTES, SHARE_AWARE, 0.0)
    for page in pages:
        del bold.table.by_hash[page.hash]
    assert SHARE_AWARE.strict_pages(bold) == 50
    assert not promise(bold, 1, 10 * PAGE_BYTES, SHARE_AWARE, 0.0)
    assert lacking_bytes(careful, 1, 70 * PAGE_BYTES, SHARE_AWARE) == 0


def test_asking_for_nothing_is_never_refused() -> None:
    gpu = Gpu(GPU)
    one = instance(gpu)
    report(one, Usage(virtual_pages=100, unbacked_pages=100), 0.0)
    assert promise(one, 0, 0, STRICT, 0.0)
    assert one.pending_commits == []


def test_memory_that_others_are_backing_right_now_is_not_held_twice() -> None:
    gpu = Gpu(GPU)
    one, other = instance(gpu), instance(gpu)
    free = 100 * PAGE_BYTES
    note_free(gpu, free, 0.0)
    assert promise(other, 30, free, STRICT, 0.0)
    assert STRICT.held_bytes(one, free) == 30 * PAGE_BYTES
    # It has taken 20 of them, and its report is still on its way.
    assert unreported_bytes(gpu, 80 * PAGE_BYTES) == 20 * PAGE_BYTES
    assert STRICT.held_bytes(one, 80 * PAGE_BYTES) == 10 * PAGE_BYTES
    report(other, Usage(virtual_pages=30, unbacked_pages=10, private_pages=20), 0.1)
    assert STRICT.held_bytes(one, 80 * PAGE_BYTES) == 10 * PAGE_BYTES


def test_debt_is_what_all_sharers_would_need_if_all_was_written() -> None:
    gpu = Gpu(GPU)
    one = instance(gpu)
    for page, mappings in zip(publish(one.table, 3), (1, 2, 5), strict=True):
        page.mappings = mappings
    assert debt_bytes(one.table) == (0 + 1 + 4) * PAGE_BYTES


def test_a_model_that_covers_its_own_start_is_not_given_up_for_it() -> None:
    """Neither when it is promised memory, nor because memory is short then."""
    gpu, warm = Gpu(GPU), keeper()
    one, other = instance(gpu), instance(gpu, domain="e")
    own, others = stays(warm, one.table, 100), stays(warm, other.table, 50)
    terms_now = terms(low="40M")
    watch = Pressure(terms_now, Counters(), warm)
    free = 10 * PAGE_BYTES
    note_free(gpu, free, 0.0)
    # No more than its own pages, what is free and what another domain's model makes room for.
    assert watch.make_room(one, 161, free) == 0
    assert (len(own.warm), len(others.warm)) == (100, 50)
    assert watch.make_room(one, 110, free) == 0
    assert promise(one, 110, free, terms_now, 0.0)
    assert watch.make_room(one, 40, free) == 50 * PAGE_BYTES
    assert promise(one, 40, free + 50 * PAGE_BYTES, terms_now, 0.0)
    watch.look(gpu)
    assert gpu.short
    assert len(own.warm) == 100


def test_a_failed_allocation_gets_other_domains_warm_pages_before_its_own() -> None:
    gpu, warm = Gpu(GPU), keeper()
    one, other = instance(gpu), instance(gpu, domain="e")
    own, others = stays(warm, one.table, 3), stays(warm, other.table, 3)
    watch = Pressure(terms(), Counters(), warm)
    assert watch.reclaim(one, PAGE_BYTES) == 3 * PAGE_BYTES
    assert (len(own.warm), len(others.warm)) == (3, 0)
    own.pinned = True
    assert watch.reclaim(one, PAGE_BYTES) == 0


@pytest.mark.parametrize(("covered", "mine"), [(0, 100), (60, 47), (200, 0)])
def test_warm_memory_is_anybodys_unless_it_covers_a_promise(covered: int, mine: int) -> None:
    gpu, warm = Gpu(GPU), keeper()
    one, other = instance(gpu), instance(gpu, domain="e")
    stays(warm, other.table, 100)
    stays(warm, other.table, 7).pinned = True
    assert promise(other, covered, TOTAL, SHARE_AWARE, 0.0)
    assert SHARE_AWARE.warm_bytes_for(one) == mine * PAGE_BYTES
    assert STRICT.warm_bytes_for(one) == 100 * PAGE_BYTES


class Told:
    """A connection that keeps what it is sent."""

    def __init__(self, each: Instance) -> None:
        self.gpus, self.endpoint, self.packets = [each], self, 0
        each.process.connection = self  # type: ignore[assignment]

    def send(self, _packet: bytes) -> None:
        self.packets += 1


def keeper() -> Warm:
    """What is forgotten is gone from its table."""

    def forget(pages: Iterable[Page]) -> None:
        for page in pages:
            warm.leave(page)
            page.table.by_id.pop(page.id)
            page.table.by_hash.pop(page.hash)

    warm = Warm(State(epoch=1), GpuSize(), "uid", dict)
    warm.forget = forget
    return warm


def stays(warm: Warm, table: GpuTable, count: int) -> Load:
    """A model of so many pages that nobody runs."""
    made = Load(warm.next_id, table, "model", float(warm.next_id))
    warm.next_id += 1
    table.loads[made.id] = made
    made.warm = set(publish(table, count))
    made.pages = count
    for page in made.warm:
        page.load = made
    return made


def test_warm_pages_go_before_anybody_is_told_that_memory_is_short() -> None:
    gpu, warm = Gpu(GPU), keeper()
    told = Told(instance(gpu))
    old = stays(warm, told.gpus[0].table, 400)
    new = stays(warm, told.gpus[0].table, 400)
    watch = Pressure(terms(low="1G"), Counters(), warm)
    note_free(gpu, GIB // 2, 0.0)
    watch.look(gpu)
    assert (len(old.warm), len(new.warm)) == (0, 400)
    assert (gpu.short, told.packets) == (False, 0)
    note_free(gpu, GIB // 8, 1.0)
    watch.look(gpu)
    assert not new.warm
    assert (gpu.short, told.packets) == (True, 1)
    note_free(gpu, GIB + GIB // 8, 2.0)
    watch.look(gpu)
    assert (gpu.short, told.packets) == (True, 1)  # it does not flap around the mark
    note_free(gpu, 2 * GIB, 2.0)
    watch.look(gpu)
    assert (gpu.short, told.packets) == (False, 2)


# With a real gksmd.

CONFIG = '[memory]\nreserve = "10G"\nlow_water = "8G"'


@pytest.fixture(scope="module")
def small() -> Iterator[Daemon]:
    with Daemon(config=CONFIG) as daemon:
        yield daemon


@pytest.fixture
def clean(small: Daemon) -> Daemon:
    eventually(
        lambda: not small.pages() and not small.ask("status", op="ps"),
        "the end of what an earlier test left",
    )
    return small


def pages(count: int) -> int:
    """GiB as pages."""
    return count * GIB // PAGE_BYTES


def pressure(state: Any) -> tuple[int, int, int]:
    """Level, GPU's number and pages of the next CONTROL."""
    client: Client = state.client
    order = client.control()
    assert order.action == lib.GKSM_CONTROL_PRESSURE
    return order.level, order.gpu - 1, order.pages


def test_a_second_loader_is_admitted_where_only_its_model_is_free_of_charge(clean: Daemon) -> None:
    with agents(clean.socket, 2) as (one, two):
        one.run(load, range(64))
        assert two.commit(65, 10 * GIB) == -errno.ENOMEM
        assert two.commit(64, 10 * GIB) == 0
        (account,) = clean.ask("status", op="status")["accounts"]
        assert account["commit_bytes"] == account["covered_bytes"] == 64 * PAGE_BYTES
        two.run(load, range(64))
        two.usage(virtual_pages=64, shared_pages=64)
        two.commit(0, 10 * GIB)
        (account,) = clean.ask("status", op="status")["accounts"]
        assert account["commit_bytes"] == account["covered_bytes"] == 0
        assert account["debt_bytes"] == 64 * PAGE_BYTES


def test_who_asks_is_told_what_is_kept_for_others(clean: Daemon) -> None:
    with agents(clean.socket, 2) as (one, two):
        assert one.held(70 * GIB) == 10 * GIB
        assert two.commit(pages(20), 70 * GIB) == 0
        assert one.held(70 * GIB) == 30 * GIB
        assert two.held(70 * GIB) == 10 * GIB


def test_short_memory_is_told_with_how_much_of_the_promises_to_take_now(clean: Daemon) -> None:
    with agents(clean.socket, 3) as (promised, taker, idle):
        assert promised.commit(pages(20), 70 * GIB) == 0
        taker.usage(virtual_pages=pages(34), private_pages=pages(34))
        assert promised.run(pressure) == (lib.GKSM_PRESSURE_LOW, 0, pages(20))
        assert idle.run(pressure) == (lib.GKSM_PRESSURE_LOW, 0, 0)
        gpu = clean.ask("status", op="status")["gpus"][0]
        assert gpu["memory_short"]
        assert gpu["free_bytes"] == 36 * GIB
        assert gpu["reserve_bytes"] == 10 * GIB
        # What is promised from now on is to be taken at once.
        assert idle.commit(pages(1), 38 * GIB) == 0
        assert idle.run(pressure) == (lib.GKSM_PRESSURE_LOW, 0, pages(1))
        # And so it is for who comes only now.
        with Agent(clean.socket) as late:
            assert late.run(pressure)[0] == lib.GKSM_PRESSURE_LOW
        taker.kill()
        assert promised.run(pressure) == (lib.GKSM_PRESSURE_NONE, 0, 0)


def test_a_lie_about_free_memory_gets_nobody_else_refused(clean: Daemon) -> None:
    with agents(clean.socket, 2) as (liar, honest):
        liar.commit(0, 1)
        assert honest.commit(pages(20), 70 * GIB) == 0
        liar.commit(0, 1 << 60)
        assert honest.commit(pages(45), 70 * GIB) == -errno.ENOMEM


def test_nothing_warm_is_given_up_where_there_is_none(clean: Daemon) -> None:
    with Agent(clean.socket) as one:
        assert one.reclaim(GIB) == 0
