# SPDX-License-Identifier: Apache-2.0
"""How libgksm finds the driver, starts, and stays out of the way. The driver is a small C file."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from tests.support.compile import compile_c
from tests.support.preload import CLEARED, run_preloaded

HERE = Path(__file__).parent / "loader"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("loader")


DRIVER_FLAGS = ("-shared", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic")


@pytest.fixture(scope="module")
def driver(folder: Path) -> Path:
    (folder / "new").mkdir()
    sources = [HERE / "driver.c", HERE / "refusing.c"]
    return compile_c(folder / "new" / "libcuda.so.1", sources, *DRIVER_FLAGS)


@pytest.fixture(scope="module")
def old_driver(folder: Path) -> Path:
    (folder / "old").mkdir()
    flags = (*DRIVER_FLAGS, "-DWITHOUT_V2")
    return compile_c(folder / "old" / "libcuda.so.1", [HERE / "driver.c"], *flags)


@pytest.fixture
def libgksm(build: Path) -> Path:
    return build / "libgksm.so"


@pytest.mark.seen_in("tkestack/vcuda-controller#30")
def test_the_first_call_may_be_cu_get_proc_address(libgksm: Path, driver: Path) -> None:
    text = """
assert proc_address("cuMemAlloc") == (0, address("cuMemAlloc_v2"), 0)
assert proc_address("cuInit") == (0, address("cuInit"), 0)
assert cuda.cuInit(0) == 0
"""
    run_preloaded(text, libgksm, GKSM_DRIVER=str(driver))


def test_a_name_the_driver_lacks_stays_unfound(libgksm: Path, driver: Path) -> None:
    text = """
assert proc_address("cuMemFree") == (500, None, 1)
assert cuda.cuMemFree_v2(ctypes.c_uint64(0)) == 36, "the driver has no such function"
assert cuda.cuLaunchKernelEx(None, None, None, None) == 36
"""
    run_preloaded(text, libgksm, GKSM_DRIVER=str(driver))


@pytest.mark.seen_in("grgalex/nvshare#27")
def test_two_threads_that_call_cu_init_first_both_return(libgksm: Path, driver: Path) -> None:
    text = """
results = []
start = threading.Barrier(8)
def init():
    start.wait()
    results.append(cuda.cuInit(0))
threads = [threading.Thread(target=init) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join(20) for thread in threads]
assert results == [0] * 8, results
driver = ctypes.CDLL(os.environ["GKSM_DRIVER"])
assert driver.test_most_inside() > 1, "the threads never met: the test shows nothing"
"""
    run_preloaded(text, libgksm, GKSM_DRIVER=str(driver))


@pytest.mark.seen_in("Project-HAMi/HAMi-core#36")
def test_a_driver_without_cu_get_proc_address_v2_serves_its_callers(
    libgksm: Path, old_driver: Path
) -> None:
    text = """
assert proc_address("cuMemAlloc") == (0, address("cuMemAlloc_v2"), 0)
assert proc_address("cuNothing") == (500, None, 1)
assert cuda.cuInit(0) == 0
"""
    run_preloaded(text, libgksm, GKSM_DRIVER=str(old_driver))


def test_on_a_driver_too_old_for_it_it_is_off_and_says_why(libgksm: Path, old_driver: Path) -> None:
    text = """
assert cuda.cuInit(0) == 0
address = ctypes.c_uint64()
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 22)) == 0
assert address.value == 0x7000000000 + (1 << 22)
assert "is too old: it has no cuCtxGetCurrent" in records(), records()
assert len(os.listdir("/proc/self/task")) == 1
"""
    run_preloaded(text, libgksm, GKSM_DRIVER=str(old_driver))


def test_a_driver_that_refuses_all_of_ours_still_serves_the_application(
    libgksm: Path, driver: Path
) -> None:
    text = """
assert cuda.cuInit(0) == 0
address = ctypes.c_uint64()
for _ in range(3):
    assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 22)) == 0
    assert address.value == 0x7000000000 + (1 << 22)
"""
    run_preloaded(text, libgksm, GKSM_DRIVER=str(driver))


@pytest.mark.seen_in("Project-HAMi/HAMi-core#52")
def test_asking_for_an_export_table_before_init_returns_with_the_drivers_own(
    libgksm: Path, driver: Path
) -> None:
    text = """
table, key = ctypes.c_void_p(), ctypes.create_string_buffer(16)
assert cuda.cuGetExportTable(ctypes.byref(table), key) == 0
assert table.value == ctypes.addressof(key)
"""
    run_preloaded(text, libgksm, GKSM_DRIVER=str(driver))


def test_nothing_is_started_before_cu_init_succeeds(libgksm: Path, driver: Path) -> None:
    text = """
version = ctypes.c_int()
assert cuda.cuDriverGetVersion(ctypes.byref(version)) == 0 and version.value == 12040
proc_address("cuMemAlloc")
assert cuda.cuInit(77) == 1, "refused by the driver"
sockets = [fd for fd in os.listdir("/proc/self/fd")
           if os.path.exists(f"/proc/self/fd/{fd}") and
           os.readlink(f"/proc/self/fd/{fd}").startswith("socket")]
assert (len(os.listdir("/proc/self/task")), sockets) == (1, [])
"""
    run_preloaded(text, libgksm, GKSM_DRIVER=str(driver))


def test_without_a_driver_it_answers_as_one_that_is_missing(libgksm: Path) -> None:
    text = """
version, name = ctypes.c_int(-1), ctypes.c_char_p()
assert cuda.cuDriverGetVersion(ctypes.byref(version)) == 0 and version.value == 0
assert cuda.cuInit(0) == 100
assert cuda.cuGetErrorName(100, ctypes.byref(name)) == 0 and name.value == b"CUDA_ERROR_NO_DEVICE"
assert cuda.cuGetErrorString(100, ctypes.byref(name)) == 0 and b"no CUDA" in name.value
assert cuda.cuGetErrorName(12345, ctypes.byref(name)) == 1 and name.value is None
assert proc_address("cuInit") == (500, None, 1)
assert cuda.cuDeviceGetCount(ctypes.byref(version)) == 3
assert cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(1 << 22)) == 3
assert "no libcuda.so.1 was found" in records(), records()
"""
    run_preloaded(text, libgksm, GKSM_DRIVER="/nonexistent/libcuda.so.1")


def test_switched_off_it_passes_everything_through(libgksm: Path, driver: Path) -> None:
    text = """
assert cuda.cuInit(0) == 0
address = ctypes.c_uint64()
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 22)) == 0
assert address.value == 0x7000000000 + (1 << 22)
assert "off: GKSM_DISABLE is set" in records(), records()
assert len(os.listdir("/proc/self/task")) == 1
"""
    run_preloaded(text, libgksm, GKSM_DRIVER=str(driver), GKSM_DISABLE="1")


@pytest.mark.parametrize("order", ["{rival} {libgksm}", "{libgksm}:{rival}"])
def test_beside_another_preloaded_interposer_it_is_off_and_says_why(
    libgksm: Path, driver: Path, folder: Path, order: str
) -> None:
    source = folder / "rival.c"
    source.write_text("int cuInit(unsigned flags);\nint cuInit(unsigned flags) { return flags; }\n")
    rival = compile_c(folder / "rival.so", [source], "-shared")
    text = """
own = ctypes.CDLL(os.environ["LIBGKSM"])
own.cuInit.argtypes = [ctypes.c_uint]
assert own.cuInit(0) == 0
assert "rival.so is preloaded and exports cuInit too" in records(), records()
address = ctypes.c_uint64()
assert own.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 22)) == 0
assert address.value == 0x7000000000 + (1 << 22)
"""
    preload = order.format(rival=rival, libgksm=libgksm)
    run_preloaded(text, preload, GKSM_DRIVER=str(driver), LIBGKSM=str(libgksm))


def test_a_library_that_the_program_loads_itself_is_no_rival(
    libgksm: Path, driver: Path, folder: Path
) -> None:
    source = folder / "stubs.c"
    source.write_text("int cuInit(unsigned flags);\nint cuInit(unsigned flags) { return flags; }\n")
    stubs = compile_c(folder / "stubs.so", [source], "-shared")
    text = f"""
ctypes.CDLL({str(stubs)!r}, mode=ctypes.RTLD_GLOBAL)
assert cuda.cuInit(0) == 0
assert "exports cuInit too" not in records(), records()
"""
    run_preloaded(text, libgksm, GKSM_DRIVER=str(driver))


def test_the_driver_is_found_on_the_library_path_past_copies_of_libgksm(
    libgksm: Path, driver: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "libcuda.so.1").symlink_to(libgksm.resolve())
    (tmp_path / "copy").mkdir()
    shutil.copy(libgksm, tmp_path / "copy" / "libcuda.so.1")
    (tmp_path / "garbage").mkdir()
    (tmp_path / "garbage" / "libcuda.so.1").write_text("no library")
    path = f"{tmp_path}/link:{tmp_path}/copy::{tmp_path}/nowhere:{tmp_path}/garbage:{driver.parent}"
    text = """
version = ctypes.c_int()
assert cuda.cuDriverGetVersion(ctypes.byref(version)) == 0 and version.value == 12040
assert "cannot load the driver" in records(), records()
"""
    run_preloaded(text, libgksm, LD_LIBRARY_PATH=path)


@pytest.mark.seen_in("Project-HAMi/HAMi#2903")
def test_other_libraries_names_are_found_as_without_libgksm_however_often_they_are_asked_for(
    libgksm: Path, driver: Path, folder: Path
) -> None:
    program = compile_c(folder / "lookups", [HERE / "lookups.c"], "-ldl")
    plain = {k: v for k, v in os.environ.items() if k not in CLEARED}
    hooked = plain | {"LD_PRELOAD": str(libgksm), "GKSM_DRIVER": str(driver)}
    outputs = [
        subprocess.run([program], env=env, capture_output=True, text=True, check=True, timeout=20)
        for env in (plain, hooked)
    ]
    assert outputs[0].stdout == outputs[1].stdout
    assert "libc.so.6" in outputs[0].stdout


def test_a_child_forked_before_cu_init_starts_on_its_own(libgksm: Path, driver: Path) -> None:
    text = """
proc_address("cuInit")
child = os.fork()
if child == 0:
    ok = cuda.cuInit(0) == 0 and cuda.gksm_is_shared(ctypes.c_uint64(1 << 21), ctypes.c_size_t(1),
                                                     ctypes.byref(ctypes.c_size_t())) == -2
    os._exit(0 if ok else 1)
assert os.waitpid(child, 0)[1] == 0, "the child"
assert cuda.cuInit(0) == 0
assert cuda.gksm_is_shared(ctypes.c_uint64(1 << 21), ctypes.c_size_t(1),
                           ctypes.byref(ctypes.c_size_t())) == -2, "-ENOENT: it is active"
"""
    run_preloaded(text, libgksm, GKSM_DRIVER=str(driver))


@pytest.mark.parametrize("how", ["os.fork()", "cuda.syscall(57)"])
def test_a_child_forked_after_cu_init_passes_through(libgksm: Path, driver: Path, how: str) -> None:
    text = f"""
assert cuda.cuInit(0) == 0
def shared():
    return cuda.gksm_is_shared(ctypes.c_uint64(1 << 21), ctypes.c_size_t(1),
                               ctypes.byref(ctypes.c_size_t()))
child = {how}
if child == 0:
    ok = cuda.cuInit(0) == 3 and shared() == -38
    os._exit(0 if ok else 1)
assert os.waitpid(child, 0)[1] == 0, "the child"
assert shared() == -2, "the parent is still active"
"""
    run_preloaded(text, libgksm, GKSM_DRIVER=str(driver))


def test_where_the_kernel_cannot_empty_pages_in_children_they_still_pass_through(
    libgksm: Path, driver: Path, folder: Path
) -> None:
    source = folder / "nowipe.c"
    source.write_text(
        "int refused;\nint madvise(void *a, unsigned long b, int c);\n"
        "int madvise(void *a, unsigned long b, int c) { refused++; return -1; }\n"
    )
    text = """
assert cuda.cuInit(0) == 0
assert ctypes.c_int.in_dll(ctypes.CDLL(os.environ["OLD_KERNEL"]), "refused").value > 0
def shared():
    return cuda.gksm_is_shared(ctypes.c_uint64(1 << 21), ctypes.c_size_t(1),
                               ctypes.byref(ctypes.c_size_t()))
child = cuda.syscall(57)
if child == 0:
    os._exit(0 if shared() == -38 else 1)
assert os.waitpid(child, 0)[1] == 0, "the child"
assert shared() == -2, "the parent is active"
"""
    old_kernel = compile_c(folder / "nowipe.so", [source], "-shared")
    run_preloaded(
        text, f"{old_kernel}:{libgksm}", GKSM_DRIVER=str(driver), OLD_KERNEL=str(old_kernel)
    )


def test_a_setting_that_makes_no_sense_is_reported_and_the_default_taken(
    libgksm: Path, driver: Path
) -> None:
    text = """
assert cuda.cuInit(0) == 0
assert "GKSM_HELLO_WAIT_MS is no number of milliseconds: using 1000" in records(), records()
assert "GKSM_SOCKET is longer than a socket's path may be (107)" in records(), records()
short = ctypes.create_string_buffer(100)
length = cuda.gksm_records(short, ctypes.c_size_t(len(short)))
assert length == len(short.value) and short.value.endswith(b"\\n"), "whole lines only"
assert records().startswith(short.value.decode())
"""
    run_preloaded(
        text,
        libgksm,
        GKSM_DRIVER=str(driver),
        GKSM_HELLO_WAIT_MS="soon",
        GKSM_SOCKET="/" + "long/" * 30,
    )


def test_a_forked_child_does_not_keep_the_parents_connection(
    libgksm: Path, driver: Path, tmp_path: Path
) -> None:
    path = tmp_path / "gksm.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(20)
        connections: list[socket.socket] = []
        thread = threading.Thread(
            target=lambda: connections.append(listener.accept()[0]), daemon=True
        )
        thread.start()
        text = """
import socket, time
assert cuda.cuInit(0) == 0
def sockets():
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return [link for link in links if os.path.lexists(link)
            and os.readlink(link).startswith("socket")]
while not sockets():
    time.sleep(0.01)
child = os.fork()
if child == 0:
    os._exit(0 if sockets() == [] else 1)
assert os.waitpid(child, 0)[1] == 0, "the child has a socket"
assert sockets()
"""
        try:
            run_preloaded(
                text,
                libgksm,
                GKSM_DRIVER=str(driver),
                GKSM_SOCKET=str(path),
                GKSM_HELLO_WAIT_MS="50",
            )
        finally:
            thread.join(5)
            for connection in connections:
                connection.close()
        assert len(connections) == 1
