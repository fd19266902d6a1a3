# SPDX-License-Identifier: Apache-2.0
"""What each kind of step does, to the process and to the truth about it.

Each is done when it returns, so that nothing depends on who was faster.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import psutil
from gksm_bench.stack import wait_until

from tests.support.model import scanning
from tests.support.model.checks import compare, compare_range
from tests.support.model.ops import Op
from tests.support.model.truth import (
    OFFSETS,
    PATTERNS,
    WORDS,
    ZEROS,
    Allocation,
    filled,
    pattern,
)
from tests.support.model.world import PAGES_MAX, Process, World
from tests.support.pages import PAGE

Step = Callable[[World, Process, Op], str]

STREAMS = ("legacy", "per-thread", "nb-work")
# Offset in a page, bytes: the last two go into the next page, and may make a whole one.
PARTS = ((4096, 64), (65536, 1 << 20), (PAGE - 4096, 8192), (PAGE // 2, PAGE // 2), (0, PAGE // 2))
SOME = 4096  # bytes of the smaller writes
GRAPHS_MAX = 2


# Where


def allocation_of(process: Process, number: int, pages: int) -> Allocation:
    """The allocation of that number; if there is none, one is made."""
    if not process.allocations:
        allocate(process, pages)
    return process.allocations[number % len(process.allocations)]


def target(process: Process, op: Op) -> tuple[Allocation, int, int]:
    """Allocation, first page, pages."""
    allocation = allocation_of(process, op.where, op.count)
    first = op.page % len(allocation.pages)
    return allocation, first, min(op.count, len(allocation.pages) - first)


def other(process: Process, op: Op) -> tuple[Allocation, int]:
    """Another page of the process, often in another allocation."""
    allocation = allocation_of(process, op.where + op.value, op.count)
    return allocation, (op.page + op.count) % len(allocation.pages)


def told(allocation: Allocation, first: int, count: int = 1) -> str:
    """For the trace."""
    pages = f"{first}" if count == 1 else f"{first}-{first + count - 1}"
    return f"{allocation.address:#x}[{pages}]"


def patterns(op: Op, count: int) -> list[int]:
    """Of `count` pages: all alike, or one after another."""
    step = op.value // PATTERNS
    return [(op.value + step * page) % PATTERNS for page in range(count)]


def stream(op: Op) -> str:
    """One of the kinds of streams."""
    return STREAMS[op.value % len(STREAMS)]


# Memory


def allocate(process: Process, pages: int) -> Allocation:
    """New memory; old memory goes first if there is too much."""
    while sum(count for _, count in process.ranges) + pages > PAGES_MAX:
        give_back(process, process.allocations[0])
    allocation = Allocation(process.remote.alloc(pages), [ZEROS] * pages)
    process.allocations.append(allocation)
    return allocation


def give_back(process: Process, allocation: Allocation) -> None:
    """Graphs that write to it go before it does."""
    for number, *_ in allocation.graphs:
        process.remote.drop_graph(number)
    process.remote.free(allocation.address)
    process.allocations.remove(allocation)


def alloc(_: World, process: Process, op: Op) -> str:
    allocation = allocate(process, op.count)
    return told(allocation, 0, op.count)


def set_kind(_: World, process: Process, op: Op) -> str:
    """The domain shares all kinds: it must make no difference."""
    allocation, first, count = target(process, op)
    kind = op.value % 3
    assert process.remote.set_kind(allocation.at(first), count, kind) == 0
    return f"{told(allocation, first, count)} = {kind}"


def free(_: World, process: Process, op: Op) -> str:
    allocation = allocation_of(process, op.where, op.count)
    give_back(process, allocation)
    return told(allocation, 0, len(allocation.pages))


# Loads


def load(_: World, process: Process, op: Op) -> str:
    allocation, first, count = target(process, op)
    chosen = patterns(op, count)
    process.remote.load_patterns(allocation.at(first), chosen)
    allocation.put(first, [pattern(each) for each in chosen])
    return f"{told(allocation, first, count)} = {chosen}"


def load_stream(_: World, process: Process, op: Op) -> str:
    allocation, first, count = target(process, op)
    chosen = patterns(op, count)
    process.remote.load_patterns(allocation.at(first), chosen, stream(op))
    allocation.put(first, [pattern(each) for each in chosen])
    return f"{told(allocation, first, count)} = {chosen} in {stream(op)}"


def load_pinned(_: World, process: Process, op: Op) -> str:
    allocation, first, count = target(process, op)
    chosen = patterns(op, count)
    process.remote.load_pinned_in(allocation.at(first), chosen, stream(op))
    allocation.put(first, [pattern(each) for each in chosen])
    return f"{told(allocation, first, count)} = {chosen} in {stream(op)}"


def load_bytes(
    process: Process, allocation: Allocation, page: int, number: int, part: tuple[int, int]
) -> None:
    """Part of a pattern, as far as the allocation reaches."""
    offset, nbytes = part
    nbytes = min(nbytes, (len(allocation.pages) - page) * PAGE - offset)
    process.remote.load_part(allocation.at(page) + offset, number, offset, nbytes)
    data = (pattern(number).data * 2)[offset : offset + nbytes]
    allocation.write(page * PAGE + offset, data)


def load_part(_: World, process: Process, op: Op) -> str:
    allocation, first, _count = target(process, op)
    part = PARTS[op.count % len(PARTS)]
    load_bytes(process, allocation, first, op.value, part)
    return f"{told(allocation, first)} at {part} = part of {op.value % PATTERNS}"


def load_halves(_: World, process: Process, op: Op) -> str:
    allocation, first, _count = target(process, op)
    halves = PARTS[-2:] if op.count % 2 else PARTS[:-3:-1]
    for half in halves:
        load_bytes(process, allocation, first, op.value, half)
    return f"{told(allocation, first)} = {op.value % PATTERNS} in halves"


# Sets and copies by the API


def memset(_: World, process: Process, op: Op) -> str:
    allocation, first, count = target(process, op)
    word = WORDS[op.value % len(WORDS)]
    process.remote.memset_and_wait(allocation.at(first), word, count * PAGE // 4, stream(op))
    allocation.put(first, [filled(word)] * count)
    return f"{told(allocation, first, count)} = {word:#x} in {stream(op)}"


def memset_part(_: World, process: Process, op: Op) -> str:
    allocation, first, _count = target(process, op)
    word = WORDS[op.value % len(WORDS)]
    offset = OFFSETS[op.count % len(OFFSETS)]
    process.remote.memset_and_wait(allocation.at(first) + offset, word, SOME // 4, stream(op))
    allocation.write(first * PAGE + offset, word.to_bytes(4, "little") * (SOME // 4))
    return f"{told(allocation, first)} at {offset} = {word:#x} in {stream(op)}"


def copy_device(_: World, process: Process, op: Op) -> str:
    allocation, first, _count = target(process, op)
    source, page = other(process, op)
    if source.at(page) == allocation.at(first):
        return "nothing: onto itself"
    process.remote.copy_device(allocation.at(first), source.at(page), PAGE)
    process.remote.sync()
    allocation.put(first, [source.pages[page]])
    return f"{told(allocation, first)} = {told(source, page)}"


def copy_part(_: World, process: Process, op: Op) -> str:
    allocation, first, _count = target(process, op)
    source, page = other(process, op)
    process.remote.copy_device(allocation.at(first) + PAGE // 2, source.at(page), SOME)
    process.remote.sync()
    allocation.write(first * PAGE + PAGE // 2, source.read(page * PAGE, SOME))
    return f"{told(allocation, first)} at {PAGE // 2} = start of {told(source, page)}"


# Kernels


def kernel_fill(_: World, process: Process, op: Op) -> str:
    allocation, first, count = target(process, op)
    word = WORDS[op.value % len(WORDS)]
    values = [allocation.at(first), count * PAGE // 4, word]
    process.remote.launch_and_wait("fill", values, "QQI", stream(op))
    allocation.put(first, [filled(word)] * count)
    return f"{told(allocation, first, count)} = {word:#x} in {stream(op)}"


def kernel_fill_part(_: World, process: Process, op: Op) -> str:
    allocation, first, _count = target(process, op)
    word = WORDS[op.value % len(WORDS)]
    offset = OFFSETS[op.count % len(OFFSETS)]
    values = [allocation.at(first) + offset, SOME // 4, word]
    process.remote.launch_and_wait("fill", values, "QQI", stream(op))
    allocation.write(first * PAGE + offset, word.to_bytes(4, "little") * (SOME // 4))
    return f"{told(allocation, first)} at {offset} = {word:#x} in {stream(op)}"


def kernel_add(_: World, process: Process, op: Op) -> str:
    allocation, first, _count = target(process, op)
    source, page = other(process, op)
    offset = OFFSETS[op.value % len(OFFSETS)]
    out = allocation.at(first) + offset
    values = [out, source.at(page), allocation.at(first), SOME // 4]
    process.remote.launch_and_wait("add", values, "QQQQ", stream(op))
    a = words(source.read(page * PAGE, SOME))
    b = words(allocation.read(first * PAGE, SOME))
    sums = [(x + y) & 0xFFFF_FFFF for x, y in zip(a, b, strict=True)]
    data = b"".join(each.to_bytes(4, "little") for each in sums)
    allocation.write(first * PAGE + offset, data)
    return f"{told(allocation, first)} at {offset} += {told(source, page)} in {stream(op)}"


def words(data: bytes) -> list[int]:
    """As 32-bit numbers."""
    return [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]


def kernel_write(_: World, process: Process, op: Op) -> str:
    allocation, first, count = target(process, op)
    offset = OFFSETS[op.value % len(OFFSETS)]
    values = [allocation.address, first, count, 1, offset, op.value]
    process.remote.launch_and_wait("write_pages", values, "QQQQQI", stream(op))
    for page in range(first, first + count):
        allocation.write(page * PAGE + offset, op.value.to_bytes(4, "little"))
    return f"{told(allocation, first, count)} at {offset} = {op.value} in {stream(op)}"


def kernel_copy(_: World, process: Process, op: Op) -> str:
    allocation, first, _count = target(process, op)
    source, page = other(process, op)
    if source.at(page) == allocation.at(first):
        return "nothing: onto itself"
    values = [allocation.at(first), source.at(page), PAGE]
    process.remote.launch_and_wait("copy", values, "QQQ", stream(op))
    allocation.put(first, [source.pages[page]])
    return f"{told(allocation, first)} = {told(source, page)} in {stream(op)}"


# Reads


def read(_: World, process: Process, op: Op) -> str:
    allocation, first, count = target(process, op)
    found = process.remote.hashes_of([[allocation.at(first), count]])
    compare_range(process, allocation, first, found)
    return told(allocation, first, count)


def read_behind(_: World, process: Process, op: Op) -> str:
    """A read that is enqueued while earlier work of its stream, or of another, is pending."""
    allocation, first, count = target(process, op)
    at = allocation.at(first)
    if op.value % 4 == 3:
        found = process.remote.beside(at, count)
        compare_range(process, allocation, first, found)
        return f"{told(allocation, first, count)} beside a busy stream"
    work, page = ("nothing", "kernel", "copy")[op.value % 4], op.where % count
    offset = OFFSETS[op.page % len(OFFSETS)]
    found = process.remote.behind(at, count, work, [page, offset, op.value])
    if work == "kernel":
        allocation.write((first + page) * PAGE + offset, op.value.to_bytes(4, "little"))
    elif work == "copy":
        allocation.put(first + page, [pattern(op.value)])
    compare_range(process, allocation, first, found)
    return f"{told(allocation, first, count)} behind {work}"


def overtake(_: World, process: Process, op: Op) -> str:
    """A whole page is written by the API while a kernel has yet to read what it held."""
    allocation, first, _count = target(process, op)
    into, page = other(process, op)
    if into.at(page) == allocation.at(first):
        return "nothing: onto itself"
    work, word = ("copy", "set")[op.value % 2], WORDS[op.value % len(WORDS)]
    value = op.value if work == "copy" else word
    process.remote.overtake(allocation.at(first), into.at(page), work, value)
    into.put(page, [allocation.pages[first]])
    allocation.put(first, [pattern(value) if work == "copy" else filled(word)])
    return f"{told(into, page)} = {told(allocation, first)} = {work} of {value:#x}"


# Graphs


def graph(_: World, process: Process, op: Op) -> str:
    """Make one that sets bytes of a page, launch it, or drop it."""
    allocation, first, _count = target(process, op)
    if len(allocation.graphs) < GRAPHS_MAX and op.value % 3 == 0:
        offset, nbytes = (0, PAGE) if op.count % 2 else (OFFSETS[op.page % len(OFFSETS)], SOME)
        word = WORDS[op.value % len(WORDS)]
        at = allocation.at(first) + offset
        number = process.remote.make_graph(at, word, nbytes // 4)
        allocation.graphs.append((number, first * PAGE + offset, word, nbytes))
        return f"{number} made: {told(allocation, first)} at {offset} = {word:#x}"
    if not allocation.graphs:
        return "nothing: there is none"
    number, offset, word, nbytes = allocation.graphs[op.count % len(allocation.graphs)]
    if op.value == 1:
        process.remote.drop_graph(number)
        allocation.graphs = [each for each in allocation.graphs if each[0] != number]
        return f"{number} dropped"
    process.remote.launch_graph(number)
    allocation.write(offset, word.to_bytes(4, "little") * (nbytes // 4))
    return f"{number} launched"


# Processes


def fork(_: World, process: Process, op: Op) -> str:
    """A child that stays, whatever becomes of its parent."""
    process.children.append(process.remote.fork())
    return str(len(process.children))


def fork_and_try(_: World, process: Process, op: Op) -> str:
    """A child that tries to write to its parent's memory."""
    allocation, first, _count = target(process, op)
    code = f"int(driver.cuMemcpyHtoD({allocation.at(first)}, b'child' * 100, 500)[0])"
    status, result = process.remote.fork_and(code)
    assert status == 0, f"the child of {process.name} failed: {result}"
    assert result != 0, f"the child of {process.name} wrote to its parent's memory"
    return told(allocation, first)


def reap(_: World, process: Process, op: Op) -> str:
    """End a child."""
    if not process.children:
        return "nothing: it has no child"
    os.kill(process.children.pop(), signal.SIGKILL)
    return str(len(process.children))


def freeze(world: World, process: Process, op: Op) -> str:
    """One process stands still until it is thawed or killed."""
    if any(each.frozen for each in world.processes):
        return "nothing: one is frozen"
    process.remote.settle()
    process.ask_shared()
    process.passes = passes(process)
    os.kill(process.remote.pid, signal.SIGSTOP)
    stopped = psutil.Process(process.remote.pid)
    wait_until(lambda: stopped.status() == psutil.STATUS_STOPPED, "the process stopping")
    process.frozen = True
    return ""


def thaw(world: World, _process: Process, op: Op) -> str:
    """It goes on, and nothing has happened to its memory."""
    for process in world.processes:
        if process.frozen:
            os.kill(process.remote.pid, signal.SIGCONT)
            process.frozen = False
            if world.missed_scan:
                catch_up(process)
            compare(process)
            if world.missed_scan:
                scan_all(world)
            return process.name
    return "nothing: none is frozen"


def kill(world: World, _process: Process, op: Op) -> str:
    """One ends, with work pending or without, or leaves by itself; another one comes."""
    process = world.turned(op.who)[0]
    how = "killed frozen" if process.frozen else ("killed", "killed busy", "left")[op.value % 3]
    if how == "killed busy":
        allocation, first, count = target(process, op)
        process.remote.leave_pending(allocation.at(first), count, OFFSETS[1], op.value)
    if how == "left":
        assert process.remote.finish() == 0, f"{process.name} did not end well"
    else:
        process.remote.kill()
    world.remove(process)
    if process.frozen:
        world.missed_scan = False
    newcomer = world.newcomer()
    world.processes[world.processes.index(process)] = newcomer
    return f"{process.name} {how}, {newcomer.name} came"


def scan(world: World, _process: Process, op: Op) -> str:
    frozen = [each for each in world.processes if each.frozen]
    if not frozen:
        scan_all(world)
        return ""
    if op.value % 4 or world.missed_scan:
        return "nothing: one is frozen"  # which takes seconds
    scanning.scan_beside_frozen(world.stack, frozen[0].remote.pid)
    world.missed_scan = True
    return f"without {frozen[0].name}"


def passes(process: Process) -> int:
    """How many its scanner has made."""
    return int(process.remote.statistics(0)["full_scans"])


def catch_up(process: Process) -> None:
    """The pass that it missed is made now. Beside it a read may keep a page from merging."""
    wait_until(lambda: passes(process) > process.passes, f"the pass that {process.name} missed")


def scan_all(world: World) -> None:
    """Nobody is frozen. All have told gksmd what became of it afterwards."""
    scanning.scan(world.stack)
    for process in world.processes:
        process.remote.settle()
    world.missed_scan = False


STEPS: dict[str, Step] = {
    "alloc": alloc,
    "free": free,
    "set_kind": set_kind,
    "load": load,
    "load_stream": load_stream,
    "load_part": load_part,
    "load_halves": load_halves,
    "load_pinned": load_pinned,
    "memset": memset,
    "memset_part": memset_part,
    "copy_device": copy_device,
    "copy_part": copy_part,
    "kernel_fill": kernel_fill,
    "kernel_fill_part": kernel_fill_part,
    "kernel_add": kernel_add,
    "kernel_write": kernel_write,
    "kernel_copy": kernel_copy,
    "read": read,
    "read_behind": read_behind,
    "overtake": overtake,
    "graph": graph,
    "fork": fork,
    "fork_and_try": fork_and_try,
    "reap": reap,
    "freeze": freeze,
    "thaw": thaw,
    "kill": kill,
    "scan": scan,
}
