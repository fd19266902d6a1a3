# SPDX-License-Identifier: Apache-2.0
"""A program under test that does to the GPU what its standard input says.

It uses cuda-python alone; `remote.py` is the other end. One JSON list a line,
`[method, arguments]`, and one JSON object in answer: `{"value": ...}`, or
`{"error": ..., "code": CUresult}`.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import random
import resource
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from gksm_bench.demo.kernels import BUILTIN_IMAGE, PTX
from gksm_bench.driver import CudaError, check, driver

from tests.support.confined import hide
from tests.support.pages import PAGE, content, digest

LEGACY = 1
PER_THREAD = 2
MAP_FIXED, PRIVATE_ANONYMOUS = 0x10, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
U64, U32 = ctypes.c_uint64, ctypes.c_uint32
COUNTS = (
    "virtual_pages",
    "unbacked_pages",
    "private_pages",
    "shared_pages",
    "spare_pages",
    "cow_events",
    "cow_ns_total",
    "cow_ns_max",
    "api_detaches",
    "first_touches",
    "loaded_pages",
    "attached_pages",
    "zero_pages",
    "stable_pages",
    "full_scans",
    "merged_pages",
    "dropped_merges",
    "churned_merges",
)


class Statistics(ctypes.Structure):
    """struct gksm_statistics of gksm.h."""

    _fields_ = [("bytes", U32), ("guard", U32), *[(name, U64) for name in COUNTS]]


class Actor:
    """The methods are the commands."""

    def __init__(self) -> None:
        self.buffers: dict[int, Any] = {}
        self.streams: dict[str, Any] = {"legacy": LEGACY, "per-thread": PER_THREAD}
        self.threads: dict[int, tuple[threading.Thread, list[Any]]] = {}
        self.children: list[int] = []
        self.flags: dict[int, Any] = {}

    # Life

    def init(self, device: int = 0) -> int:
        check(driver.cuInit(0))
        self.context = check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(device))))
        check(driver.cuCtxSetCurrent(self.context))
        image = BUILTIN_IMAGE if "SIMCUDA_DIR" in os.environ else PTX
        self.module = check(driver.cuModuleLoadData(image))
        return os.getpid()

    def hide(self) -> None:
        hide()

    def function(self, name: str) -> Any:
        return check(driver.cuModuleGetFunction(self.module, name.encode()))

    def stream(self, name: str) -> Any:
        """`legacy`, `per-thread`, or a stream made at its first use (`nb…`: non-blocking)."""
        if name not in self.streams:
            self.streams[name] = check(driver.cuStreamCreate(1 if name.startswith("nb") else 0))
        return self.streams[name]

    # Memory

    def alloc(self, pages: int) -> int:
        return int(check(driver.cuMemAlloc(pages * PAGE)))

    def alloc_bytes(self, nbytes: int) -> int:
        return int(check(driver.cuMemAlloc(nbytes)))

    def free(self, address: int) -> None:
        check(driver.cuMemFree(address))

    def alloc_in_stream(self, nbytes: int, stream: str) -> int:
        return int(check(driver.cuMemAllocAsync(nbytes, self.stream(stream))))

    def alloc_from_pool(self, nbytes: int, stream: str) -> int:
        pool = check(driver.cuDeviceGetDefaultMemPool(check(driver.cuCtxGetDevice())))
        return int(check(driver.cuMemAllocFromPoolAsync(nbytes, pool, self.stream(stream))))

    def alloc_pitched(self, width: int, height: int) -> int:
        return int(check(driver.cuMemAllocPitch(width, height, 16))[0])

    def info(self) -> list[int]:
        return [int(value) for value in check(driver.cuMemGetInfo())]

    def source(self, seeds: list[int]) -> int:
        """Host address of pageable memory with those pages; it stays."""
        data = b"".join(content(seed) for seed in seeds)
        buffer = ctypes.create_string_buffer(data, len(data))
        address = ctypes.addressof(buffer)
        self.buffers[address] = buffer
        return address

    def load(self, address: int, seeds: list[int], stream: str = "") -> None:
        """One copy of all the pages, by the plain call or in a stream."""
        source = self.source(seeds)
        self.copy_in(address, source, len(seeds) * PAGE, stream)
        del self.buffers[source]  # pageable memory may go once the call is back

    def load_parts(self, address: int, seeds: list[int], part: int, order: list[int]) -> None:
        """The same in parts of `part` bytes, in the order given."""
        source = self.source(seeds)
        size = len(seeds) * PAGE
        for index in order:
            at = index * part
            check(driver.cuMemcpyHtoD(address + at, source + at, min(part, size - at)))

    def load_pinned(self, address: int, seeds: list[int]) -> None:
        data = b"".join(content(seed) for seed in seeds)
        pinned = check(driver.cuMemAllocHost(len(data)))
        ctypes.memmove(int(pinned), data, len(data))
        check(driver.cuMemcpyHtoD(address, int(pinned), len(data)))
        check(driver.cuMemFreeHost(pinned))

    def copy_in(self, address: int, source: int, nbytes: int, stream: str = "") -> None:
        if stream:
            check(driver.cuMemcpyHtoDAsync(address, source, nbytes, self.stream(stream)))
        else:
            check(driver.cuMemcpyHtoD(address, source, nbytes))

    def read(self, address: int, nbytes: int) -> bytes:
        buffer = (ctypes.c_char * nbytes)()
        check(driver.cuMemcpyDtoH(ctypes.addressof(buffer), address, nbytes))
        return buffer.raw

    def digests(self, address: int, pages: int) -> list[str]:
        """Names of the pages, read back."""
        data = self.read(address, pages * PAGE)
        return [digest(data[at : at + PAGE]) for at in range(0, len(data), PAGE)]

    def digest_of(self, address: int, nbytes: int) -> str:
        return digest(self.read(address, nbytes))

    def read_words(self, address: int, count: int) -> list[int]:
        data = self.read(address, 4 * count)
        return [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]

    def write_words(self, address: int, value: int, count: int) -> None:
        """By a copy from the host."""
        data = value.to_bytes(4, "little") * count
        buffer = ctypes.create_string_buffer(data, len(data))
        check(driver.cuMemcpyHtoD(address, ctypes.addressof(buffer), len(data)))

    def memset(self, address: int, value: int, words: int, stream: str = "") -> None:
        if stream:
            check(driver.cuMemsetD32Async(address, value, words, self.stream(stream)))
        else:
            check(driver.cuMemsetD32(address, value, words))

    def copy_device(self, to: int, source: int, nbytes: int) -> None:
        check(driver.cuMemcpyDtoD(to, source, nbytes))

    def source_of_one_page(self, seed: int, pages: int, pinned: bool = False) -> int:
        """Host address of so many pages that are all the same one: long, and no memory."""
        fd = os.memfd_create("one page")
        os.write(fd, content(seed))
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        base = libc.mmap(None, pages * PAGE, 0, PRIVATE_ANONYMOUS, -1, 0)
        for at in range(base, base + pages * PAGE, PAGE):
            flags = mmap.MAP_SHARED | MAP_FIXED
            assert libc.mmap(at, PAGE, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0) == at
        os.close(fd)
        if pinned:
            check(driver.cuMemHostRegister(base, pages * PAGE, 0))
        return int(base)

    def host_digest(self, address: int) -> str:
        """Of one page of host memory."""
        return digest(ctypes.string_at(address, PAGE))

    def copy_out(self, host: int, address: int, nbytes: int, stream: str = "") -> None:
        if stream:
            check(driver.cuMemcpyDtoHAsync(host, address, nbytes, self.stream(stream)))
            check(driver.cuStreamSynchronize(self.stream(stream)))
        else:
            check(driver.cuMemcpyDtoH(host, address, nbytes))

    def begin_read(self, address: int, nbytes: int, stream: str) -> int:
        """A DtoH into pinned memory, enqueued; the host address for `pinned_digests`."""
        pinned = int(check(driver.cuMemAllocHost(nbytes)))
        check(driver.cuMemcpyDtoHAsync(pinned, address, nbytes, self.stream(stream)))
        return pinned

    def pinned_digests(self, pinned: int, pages: int) -> list[str]:
        return [digest(ctypes.string_at(pinned + at * PAGE, PAGE)) for at in range(pages)]

    # Kernels

    def launch(self, name: str, values: list[int], types: str, stream: str = "legacy") -> None:
        """`types`: one letter a parameter, Q for 64 bits and I for 32."""
        kinds = tuple(U64 if letter == "Q" else U32 for letter in types)
        check(
            driver.cuLaunchKernel(
                self.function(name),
                *(1, 1, 1, 1, 1, 1, 0),
                self.stream(stream),
                (tuple(values), kinds),
                0,
            )
        )

    def write_kernel(
        self, address: int, pages: list[int], offset: int, value: int, stream: str = "legacy"
    ) -> None:
        """Enqueue one kernel for each page, which writes one word."""
        for page in pages:
            self.launch("write_pages", [address, page, 1, 1, offset, value], "QQQQQI", stream)

    def hashes(self, address: int, pages: int) -> list[int]:
        """XXH3-128 of the pages, made by a kernel: it reads through the mapping."""
        out = int(check(driver.cuMemAllocHost(pages * 16)))
        self.launch("hash", [out, address, pages], "QQQ")
        self.sync()
        words = ctypes.string_at(out, pages * 16)
        check(driver.cuMemFreeHost(out))
        return [int.from_bytes(words[at : at + 16], "little") for at in range(0, len(words), 16)]

    def hold(self, stream: str) -> int:
        """A kernel that keeps the stream busy until `let_go` of the number returned."""
        flag = int(check(driver.cuMemAllocHost(4096)))
        ctypes.c_uint32.from_address(flag).value = 0
        self.launch("spin_until", [flag, 1], "QI", stream)
        return flag

    def let_go(self, flag: int) -> None:
        ctypes.c_uint32.from_address(flag).value = 1

    def join(self, stream: str, other: str) -> None:
        """What is enqueued in `stream` from now on comes after what is in `other` now."""
        event = check(driver.cuEventCreate(2))
        check(driver.cuEventRecord(event, self.stream(other)))
        check(driver.cuStreamWaitEvent(self.stream(stream), event, 0))

    def sync(self, stream: str = "") -> None:
        if stream:
            check(driver.cuStreamSynchronize(self.stream(stream)))
        else:
            check(driver.cuCtxSynchronize())

    # Threads: a command that may take long

    def begin(self, method: str, *arguments: Any) -> int:
        """Run a command on a thread of its own; `end` gives its answer."""
        outcome: list[Any] = []

        def work() -> None:
            try:
                check(driver.cuCtxSetCurrent(self.context))
                outcome.append({"value": getattr(self, method)(*arguments)})
            except CudaError as error:
                outcome.append({"error": str(error), "code": error.code})

        thread = threading.Thread(target=work)
        thread.start()
        self.threads[len(self.threads)] = (thread, outcome)
        return len(self.threads) - 1

    def end(self, number: int, seconds: float = 60.0) -> Any:
        """What the command answered; None while it runs."""
        thread, outcome = self.threads[number]
        thread.join(seconds)
        return outcome[0] if outcome else None

    def let_go_after(self, flag: int, seconds: float) -> None:
        """For `begin`: whoever waits for the held stream goes on later."""
        time.sleep(seconds)
        self.let_go(flag)

    def dump(self, address: int, pages: int, path: str) -> None:
        """Write the device's bytes to a file."""
        Path(path).write_bytes(self.read(address, pages * PAGE))

    def load_file(self, address: int, path: str) -> None:
        """Load what `dump` wrote."""
        data = Path(path).read_bytes()
        buffer = ctypes.create_string_buffer(data, len(data))
        self.copy_in(address, ctypes.addressof(buffer), len(data))

    def storm(self, threads: int, seconds: float, seed: int) -> list[str]:
        """Threads that allocate, load, launch, copy and free at once; what went wrong."""
        wrong: list[str] = []
        end = time.monotonic() + seconds

        def work(number: int) -> None:
            dice = random.Random(f"{seed} {number}")
            check(driver.cuCtxSetCurrent(self.context))
            stream = check(driver.cuStreamCreate(1))
            while time.monotonic() < end and not wrong:
                pages = dice.randint(1, 4)
                seeds = [dice.randint(1, 6) for _ in range(pages)]
                expected = [bytearray(content(each)) for each in seeds]
                address = self.alloc(pages)
                self.load(address, seeds)
                target = dice.randrange(pages)
                word = dice.getrandbits(31)
                match dice.randrange(4):
                    case 0:
                        values = (address, target, 1, 1, 8192, word)
                        kinds = (U64, U64, U64, U64, U64, U32)
                        one = (1, 1, 1, 1, 1, 1, 0)
                        kernel = self.function("write_pages")
                        check(driver.cuLaunchKernel(kernel, *one, stream, (values, kinds), 0))
                        check(driver.cuStreamSynchronize(stream))
                        expected[target][8192:8196] = word.to_bytes(4, "little")
                    case 1:
                        self.write_words(address + target * PAGE + 4096, word, 16)
                        expected[target][4096:4160] = word.to_bytes(4, "little") * 16
                    case 2:
                        source = dice.randrange(pages)
                        if source != target:
                            self.copy_device(address + target * PAGE, address + source * PAGE, PAGE)
                            expected[target] = bytearray(expected[source])
                    case 3:
                        pass
                check(driver.cuCtxSynchronize())
                found = self.digests(address, pages)
                if found != [digest(bytes(page)) for page in expected]:
                    wrong.append(f"thread {number}: pages {seeds} read {found}")
                self.free(address)

        def guarded(number: int) -> None:
            try:
                work(number)
            except CudaError as error:
                wrong.append(f"thread {number}: {error}")

        workers = [threading.Thread(target=guarded, args=(n,)) for n in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return wrong

    def change_source(self, address: int, nbytes: int, seconds: float) -> int:
        """Keep rewriting host memory; how many times."""
        end = time.monotonic() + seconds
        count = 0
        while time.monotonic() < end:
            ctypes.memset(address, count & 0xFF, nbytes)
            count += 1
        return count

    # Processes

    def fork(self) -> int:
        """A child that does nothing until it is killed; its pid."""
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        self.children.append(child)
        return child

    def fork_and(self, code: str) -> list[Any]:
        """Run an expression in a forked child: [exit status, its value as JSON]."""
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                value = eval(code, {"actor": self, "driver": driver, "check": check, "os": os})
                os.write(writable, json.dumps(value).encode())
                os._exit(0)
            except BaseException as error:
                os.write(writable, json.dumps(repr(error)).encode())
                os._exit(1)
        os.close(writable)
        with os.fdopen(readable) as pipe:
            text = pipe.read()
        status = os.waitpid(child, 0)[1]
        return [status, json.loads(text) if text else None]

    def open_fds(self) -> int:
        return len(os.listdir("/proc/self/fd"))

    def limit_fds(self, more: int) -> int:
        """Use up descriptors until only `more` can still be opened; how many were taken."""
        taken: list[int] = []
        with suppress(OSError):  # EMFILE ends it
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        for fd in taken[len(taken) - more :]:
            os.close(fd)
        del taken[len(taken) - more :]
        self.taken = taken
        return len(taken)

    def set_fd_limit(self, soft: int) -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def give_fds_back(self) -> None:
        for fd in self.taken:
            os.close(fd)

    # gksm.h

    def gksm(self) -> ctypes.CDLL:
        return ctypes.CDLL(None)

    def shared_pages(self, address: int, pages: int) -> int:
        shared = ctypes.c_size_t()
        status = self.gksm().gksm_is_shared(U64(address), U64(pages * PAGE), ctypes.byref(shared))
        if status != 0:
            raise OSError(-status, os.strerror(-status))
        return shared.value // PAGE

    def statistics(self, address: int) -> dict[str, int]:
        statistics = Statistics(bytes=ctypes.sizeof(Statistics))
        status = self.gksm().gksm_get_statistics(U64(address), ctypes.byref(statistics))
        if status != 0:
            raise OSError(-status, os.strerror(-status))
        return {name: getattr(statistics, name) for name, _ in statistics._fields_}

    def seal(self, address: int, pages: int) -> int:
        return int(self.gksm().gksm_seal(U64(address), ctypes.c_size_t(pages * PAGE)))

    def set_kind(self, address: int, pages: int, kind: int) -> int:
        return int(self.gksm().gksm_set_kind(U64(address), ctypes.c_size_t(pages * PAGE), kind))

    def unseal(self, address: int, pages: int) -> int:
        return int(self.gksm().gksm_unseal(U64(address), ctypes.c_size_t(pages * PAGE)))


def main(actor: Actor | None = None) -> None:
    """Obey until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    actor = actor or Actor()
    for line in sys.stdin:
        method, arguments = json.loads(line)
        try:
            answer: dict[str, Any] = {"value": getattr(actor, method)(*arguments)}
        except CudaError as error:
            answer = {"error": str(error), "code": error.code}
        except Exception as error:
            answer = {"error": repr(error), "code": -1}
        print(json.dumps(answer), flush=True)
    for child in actor.children:
        os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main()
