"""A worker with walls writes to its own folders, reads what it needs, and connects to nothing.

Tried as the tests' user, as an ordinary one, and as a user of its own.
"""

import os
import socket
import sys
from pathlib import Path

import pytest

from flashinfer_bench.bench.runner.workers.process import WorkerGone
from flashinfer_bench.worker.filter.call_filter import filters_calls
from flashinfer_bench.worker.walls import landlock
from tests.kit.walls import ORDINARY, OWN, running_cell

IS_ROOT = sys.platform == "linux" and os.geteuid() == 0
HAS_WALLS = sys.platform == "linux" and landlock.version() >= 3 and filters_calls()
pytestmark = [pytest.mark.cpu, pytest.mark.skipif(not HAS_WALLS, reason="this kernel has no walls")]
as_root = pytest.mark.skipif(not IS_ROOT, reason="only root can be another user")
USERS = [
    pytest.param({}, id="the tests' user"),
    pytest.param({"user": ORDINARY}, id="an ordinary user", marks=as_root),
    pytest.param({"own": OWN}, id="a user of its own", marks=as_root),
]
TRY = """
import os, socket
def attempt(name, act):
    try:
        act()
        print(name, "done", flush=True)
    except OSError as error:
        print(name, error.errno, flush=True)
"""
REFUSED = {"1", "13"}
"""EPERM and EACCES."""


@pytest.fixture(scope="module", params=USERS)
def cell(request):
    with running_cell(**request.param) as found:
        yield found


def outcomes(said):
    return dict(line.rsplit(" ", 1) for line in said.splitlines())


def attempts(acts):
    return TRY + "".join(f"attempt({name!r}, lambda: {act})\n" for name, act in acts.items())


@pytest.fixture
def neighbours(cell):
    """Files of others that this user owns, as a data set and another solution's folder are."""
    for name in ("dataset", "traces", "others-jit", "others-home", "package"):
        file = cell.make(name) / "file"
        file.write_text("kept")
        if IS_ROOT:
            os.chown(file, cell.user, cell.user)
    return cell.root


def test_nothing_of_others_can_be_written_read_or_listed(cell, neighbours):
    acts = {}
    for name in ("dataset", "traces", "others-jit", "others-home", "package"):
        file = str(neighbours / name / "file")
        acts |= {
            f"write {name}": f"open({file!r}, 'w')",
            f"append {name}": f"open({file!r}, 'a')",
            f"truncate {name}": f"os.truncate({file!r}, 0)",
            f"read {name}": f"open({file!r}).read()",
            f"list {name}": f"os.listdir({str(neighbours / name)!r})",
            f"remove {name}": f"os.unlink({file!r})",
            f"make in {name}": f"os.mkdir({file + '.d'!r})",
            f"mode of {name}": f"os.chmod({file!r}, 0)",
            f"times of {name}": f"os.utime({file!r}, (0, 0))",
            f"owner of {name}": f"os.chown({file!r}, 12345, -1)",
        }
    found = outcomes(cell.run(attempts(acts)))
    assert {name: found[name] for name in acts if found[name] not in REFUSED} == {}
    assert all((neighbours / name / "file").read_text() == "kept" for name in ("dataset", "traces", "package"))
    assert all((neighbours / name / "file").stat().st_mode & 0o600 for name in ("dataset", "traces", "package"))


def test_a_file_of_others_cannot_be_linked_or_moved_into_ones_own_folder(cell, neighbours):
    file = str(neighbours / "dataset" / "file")
    acts = {
        "hard link": f"os.link({file!r}, 'mine')",
        "move": f"os.rename({file!r}, 'mine')",
        "through a link": f"(os.symlink({file!r}, 'soft'), open('soft').read())",
        "mode through a link": f"(os.symlink({file!r}, 'soft2'), os.chmod('soft2', 0))",
    }
    found = outcomes(cell.run(attempts(acts)))
    assert {name: code for name, code in found.items() if code not in {*REFUSED, "18"}} == {}  # EXDEV
    assert (neighbours / "dataset" / "file").stat().st_mode & 0o600


SYSTEM = {
    "shared memory": "open('/dev/shm/fib-left', 'w')",
    "semaphore": "__import__('multiprocessing.synchronize').Lock()",
    "temporary": "open('/tmp/fib-left', 'w')",
    "listing /tmp": "os.listdir('/tmp')",
    "core_pattern": "open('/proc/sys/kernel/core_pattern', 'w')",
    "oom score": "open('/proc/self/oom_score_adj', 'w')",
    "cgroup": "open('/sys/fs/cgroup/cgroup.procs', 'a')",
    "new cgroup": "os.mkdir('/sys/fs/cgroup/fib')",
    "root's home": "os.listdir('/root')",
    "homes": "os.listdir('/home')",
    "shadow": "open('/etc/shadow')",
    "running programs": "os.listdir('/run')",
    "interpreter": "open(os.__file__, 'a')",
    "engine": "open(__import__('flashinfer_bench').__file__, 'a')",
    "engine's mode": "os.chmod(__import__('flashinfer_bench').__file__, 0)",
    "artifact": "open(__file__, 'a')",
    "artifact's mode": "os.fchmod(os.open(__file__, os.O_RDONLY), 0)",
    "lease": "__import__('fcntl').fcntl(os.open(__file__, os.O_RDONLY), 1024, 0)",
    "kernel's memory": "open('/dev/mem', 'rb')",
    "terminal": "open('/dev/tty')",
    "guard's environment": "open(f'/proc/{os.getppid()}/environ', 'rb').read()",
}


def test_the_system_is_out_of_reach(cell):
    found = outcomes(cell.run(attempts(SYSTEM)))
    absent = {"2", "6"}  # not on this machine: no such file, no such device
    assert {name: code for name, code in found.items() if code not in REFUSED | absent} == {}
    for name in ("shared memory", "core_pattern", "oom score", "engine", "artifact", "engine's mode"):
        assert found[name] in REFUSED
    assert (cell.artifact / "main.py").stat().st_mode & 0o600 == 0o600


CONNECTIONS = {
    "TCP": "socket.create_connection(('127.0.0.1', PORT), 2)",
    "TCP over IPv6": "socket.socket(socket.AF_INET6)",
    "listening": "socket.create_server(('127.0.0.1', 0))",
    "UDP": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "a socket's path": "socket.socket(socket.AF_UNIX).connect(PATH)",
    "an abstract socket": "socket.socket(socket.AF_UNIX).connect('\\0fib-abstract')",
    "datagrams": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "raw datagrams": "socket.socket(socket.AF_UNIX, socket.SOCK_RAW)",
    "a pair for datagrams": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "sending to an address": "socket.socketpair()[0].sendto(b'x', PATH)",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
}


def test_no_connection_can_be_made(cell):
    place = cell.root / "listens"
    path = str(place)
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as local:
        local.bind(path)
        place.chmod(0o777)
        local.listen()
        constants = f"PORT, PATH = {tcp.getsockname()[1]}, {path!r}\n"
        found = outcomes(cell.run(constants + attempts(CONNECTIONS)))
        local.settimeout(0)
        with pytest.raises(BlockingIOError):
            local.accept()
    place.unlink()
    assert {name: code for name, code in found.items() if code not in REFUSED} == {}
    assert len(found) == len(CONNECTIONS)


CALLS = """
import ctypes, platform
from flashinfer_bench.worker.walls.walled_calls import WALLED_CALLS
libc = ctypes.CDLL(None, use_errno=True)
numbers = WALLED_CALLS[platform.machine()]
for name in ("io_uring_setup", "bpf", "perf_event_open", "userfaultfd", "keyctl", "mount", "pivot_root", "chroot",
             "setns", "fsopen", "open_tree", "kexec_load", "init_module", "shmget", "semget", "msgget", "mq_open",
             "fanotify_init", "open_by_handle_at", "io_setup", "inotify_init1",
             "inotify_add_watch"):
    result = libc.syscall(numbers[name], 0, 0, 0, 0, 0, 0)
    print(name, ctypes.get_errno() if result < 0 else "done", flush=True)
for name, flag in (("user", 0x10000000), ("mount", 0x20000), ("net", 0x40000000), ("pid", 0x20000000), ("time", 0x80)):
    result = libc.syscall(numbers["unshare"], flag)
    print("unshare", name, ctypes.get_errno() if result < 0 else "done", flush=True)
result = libc.syscall(numbers["clone"], 0x10000000 | 17, 0, 0, 0, 0)
print("clone", ctypes.get_errno() if result < 0 else "done", flush=True)
result = libc.syscall(numbers["personality"], 0x0400000)
print("personality", ctypes.get_errno() if result < 0 else "done", flush=True)
libc.syscall(numbers["clone3"], 0, 0)
print("clone3", ctypes.get_errno() == 38 and 1, flush=True)
flags = ctypes.c_int(0x10)
import os
result = libc.ioctl(os.open(__file__, os.O_RDONLY), ctypes.c_ulong(0x40086602), ctypes.byref(flags))
print("immutable", ctypes.get_errno() if result < 0 else "done", flush=True)
"""


def test_calls_that_lead_out_are_refused(cell):
    found = outcomes(cell.run(CALLS))
    assert {name: code for name, code in found.items() if code != "1"} == {}
    assert len(found) == 31


def test_a_worker_holds_no_right_of_roots(cell):
    said = cell.run("print(open('/proc/self/status').read())")
    fields = dict(line.split(":", 1) for line in said.splitlines() if ":" in line)
    assert {name: int(fields[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb")}["CapEff"] == 0
    assert int(fields["CapPrm"], 16) == 0
    assert set(fields["Uid"].split()) == {str(cell.worker or os.geteuid())}
    assert fields["NoNewPrivs"].split() == ["1"]


NAMES = """
import threading
ready, end = threading.Event(), threading.Event()
def wait():
    print(threading.get_native_id(), flush=True); ready.set(); end.wait()
thread = threading.Thread(target=wait); thread.start(); ready.wait()
own = f"/proc/self/task/{thread.native_id}/comm"
open(own, "w").write("named"); print(open(own).read().strip()); end.set()
attempt("of others", lambda: open(f"/proc/{os.getppid()}/comm", "w"))
attempt("of the system", lambda: open("/proc/sys/kernel/core_pattern", "w"))
"""


def test_a_worker_names_its_own_threads_as_cuda_does(cell):
    said = cell.run(TRY + NAMES).split("\n")
    assert said[1] == "named"
    assert said[2].split()[-1] in REFUSED
    assert said[3].split()[-1] in REFUSED


OWN_FILES = """
import os, shutil, socket, subprocess, tempfile, threading
jit = os.environ["FIB_JIT"]
open("kept", "w").write("x"); open(f"{jit}/kept", "w").write("y")
os.chmod("kept", 0o751); print(oct(os.stat("kept").st_mode & 0o777))
os.chmod("kept", 0o640, follow_symlinks=True); os.fchmod(os.open("kept", os.O_RDONLY), 0o600)
print(oct(os.stat("kept").st_mode & 0o777))
os.utime("kept", (1, 2)); print(os.stat("kept").st_mtime)
os.utime(os.open("kept", os.O_RDONLY), ns=(5, 7)); print(os.stat("kept").st_mtime_ns)
os.utime("kept"); print(os.stat("kept").st_mtime > 1e9)
shutil.copy2("kept", "copied"); print(os.stat("copied").st_mtime == os.stat("kept").st_mtime)
os.makedirs("a/b"); os.rename("kept", "a/b/kept"); os.replace("a/b/kept", f"{jit}/moved")
os.link(f"{jit}/moved", "linked")
with tempfile.TemporaryDirectory() as folder:
    print(folder.startswith(os.environ["HOME"]))
left, right = socket.socketpair(); left.sendall(b"over"); print(right.recv(4))
threads = [threading.Thread(target=print, args=("thread",)) for _ in range(1)]
[one.start() for one in threads]; [one.join() for one in threads]
print(open("/dev/null", "w").write("x"), len(os.urandom(3)))
if (child := os.fork()) == 0:
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    os.chmod("no such file", 0o600)
except FileNotFoundError:
    print("not there")
"""


def test_a_worker_works_in_its_own_folders(cell):
    said = cell.run(OWN_FILES).split()
    assert said == [
        "0o751",
        "0o600",
        "2.0",
        "7",
        "True",
        "True",
        "True",
        "b'over'",
        "thread",
        "1",
        "3",
        "7",
        "not",
        "there",
    ]


LOOP = """
import asyncio
async def wait():
    await asyncio.sleep(0.01)
    return await asyncio.to_thread(lambda: "looped")
print(asyncio.run(wait()))
"""


def test_an_event_loop_runs(cell):
    assert cell.run(LOOP).split() == ["looped"]


COMPILES = r"""
import subprocess
subprocess.run(["sh", "-c", 'echo "#include <cstdio>\nint main() { std::puts(\\"compiled\\"); }" > a.cc'], check=True)
subprocess.run(["g++", "-O1", "a.cc", "-o", "a.out"], check=True)
print(subprocess.run(["./a.out"], capture_output=True, text=True).stdout, flush=True)
subprocess.run("cp -p a.cc b.cc && tar cf a.tar b.cc && mkdir t && tar xf a.tar -C t && touch t/b.cc", shell=True)
print(*__import__("os").listdir("t"))
"""


@pytest.mark.skipif(not Path("/usr/bin/g++").exists(), reason="there is no compiler")
def test_a_compiler_can_be_run(cell):
    assert cell.run(COMPILES).split() == ["compiled", "b.cc"]


def test_a_worker_that_cannot_have_its_walls_does_not_start(cell):
    with pytest.raises(WorkerGone):
        cell.run("", readable=("no\0path",))
