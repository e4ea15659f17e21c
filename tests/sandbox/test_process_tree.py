"""What the kernel tells of processes: memory under any name, without a first thread."""

import signal
import subprocess
import sys

import pytest

from flashinfer_bench.sandbox.process_tree import hidden_memory, proportional_memory, resident_memory

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(sys.platform != "linux", reason="the files are Linux's")]
MEGABYTE = 1 << 20
HOLDS = """
import ctypes, os, sys, threading, time
libc = ctypes.CDLL(None)
held = bytearray(64 << 20)
held[::4096] = b"x" * len(held[::4096])
libc.prctl(15, NAME, 0, 0, 0)
def tell():
    while ENDS and "State:\\tZ" not in open("/proc/self/status").read():
        time.sleep(0.01)
    os.write(1, b"ready\\n")
    time.sleep(60)
threading.Thread(target=tell).start()
if ENDS:
    libc.syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""


@pytest.mark.parametrize(
    ("name", "ends"),
    [(b"\x0bRssAnon:1 kB", False), (b"\rRssAnon: z", True)],
)
def test_memory_is_known_under_any_name_and_without_a_first_thread(name, ends):
    source = HOLDS.replace("NAME", repr(name)).replace("ENDS", str(ends))
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE) as program:
        assert program.stdout.readline() == b"ready\n"
        found = [resident_memory(program.pid).private, proportional_memory(program.pid).private]
        program.send_signal(signal.SIGKILL)
    assert all(64 * MEGABYTE < one < 256 * MEGABYTE for one in found)


MACHINE = "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 300 kB\nAnonPages:   400 kB\nShmem: 7 kB\n"


@pytest.mark.parametrize(
    ("told", "hidden"),
    [
        (MACHINE, (300 * 1024, 7 * 1024)),
        ("", (0, 0)),
    ],
)
def test_memory_that_no_process_shows_is_what_is_left_of_the_machines(tmp_path, told, hidden):
    (tmp_path / "meminfo").write_text(told)
    assert hidden_memory(tmp_path / "meminfo") == hidden
    assert hidden_memory(tmp_path / "none") == (0, 0)
