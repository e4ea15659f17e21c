"""A worker cannot harm the processes that judge it, and a supervisor watches and ends it."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from flashinfer_bench.bench.runner.workers import worker_handle as worker_process
from flashinfer_bench.bench.runner.workers.worker_handle import WorkerGone, WorkerProcess
from flashinfer_bench.errors import DeviceFault
from flashinfer_bench.sandbox import landlock
from flashinfer_bench.sandbox.process_tree import (
    count_tasks,
    descendants,
    hidden_memory,
    is_alive,
    read_process,
)
from flashinfer_bench.sandbox.seccomp import can_filter
from flashinfer_bench.worker.protocol import Loaded
from tests.kit.processes import wait_until_gone
from tests.kit.sandboxes import OWN, running_cell
from tests.kit.workers import ROOT, running_template, wait_ready, worker_order

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(sys.platform != "linux", reason="confinement is Linux's")]
IS_ROOT = sys.platform == "linux" and os.geteuid() == 0
as_root = pytest.mark.skipif(not IS_ROOT, reason="only root can be another user")
HELD = """
def parent(pid): return int(open(f"/proc/{pid}/stat").read().rpartition(") ")[2].split()[1])
supervisor = __import__("os").getppid(); server = parent(supervisor); session = parent(server)
def run(x): return x
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_template(tmp_path_factory.mktemp("session") / "run") as socket:
        yield socket


@pytest.fixture
def start(server, tmp_path):
    """Return a context manager that gives a worker, without a sandbox, which has loaded some source."""

    @contextmanager
    def started(source, **order):
        (tmp_path / "main.py").write_text(HELD + source)
        with WorkerProcess(server, worker_order(**order), tmp_path / "home") as worker:
            started.worker = worker
            wait_ready(worker)
            place = {"directory": str(tmp_path), "entry": "main.py", "symbol": "run", "kind": "python"}
            answer = worker.ask("load", Loaded, 20.0, **place)
            assert isinstance(answer, Loaded), answer
            yield worker

    return started


@pytest.fixture
def load(start):
    """Return a function that loads source in a worker and returns what it printed."""

    def loaded(source):
        with start(source) as worker:
            worker.drain()
            return worker.log.take()

    return loaded


AIMS = {
    "memory of the server": "open(f'/proc/{server}/mem', 'r+b')",
    "memory of the supervisor": "open(f'/proc/{supervisor}/mem', 'r+b')",
    "supervisor": "os.kill(supervisor, signal.SIGSTOP)",
    "server": "os.kill(server, signal.SIGSTOP)",
    "thread": "os.kill(max(map(int, os.listdir(f'/proc/{session}/task'))), signal.SIGCONT)",
    "group": "os.killpg(os.getpgid(session), signal.SIGCONT)",
    "all": "os.kill(-1, signal.SIGCONT)",
    "pidfd": "signal.pidfd_send_signal(os.open(f'/proc/{session}', os.O_RDONLY), signal.SIGCONT)",
    "pidfd_open": "os.pidfd_open(session)",
    "owner": "fcntl.fcntl(socket.socketpair()[0].fileno(), fcntl.F_SETOWN, session)",
    "affinity": "os.sched_setaffinity(session, {0})",
    "priority": "os.setpriority(os.PRIO_PROCESS, session, 19)",
    "users": "os.setpriority(os.PRIO_USER, 0, 19)",
    "limit": "resource.prlimit(session, resource.RLIMIT_CORE, (0, 0))",
}


def test_a_worker_reaches_no_process_above_it_and_no_right_of_roots(load):
    source = "import fcntl, os, resource, signal, socket\n"
    for name, act in AIMS.items():
        source += f"try: print({name!r}, {act})\nexcept PermissionError: pass\n"
    said = load(source + "print(open('/proc/self/status').read().split('CapEff:')[1].split()[0])")
    assert int(said.strip(), 16) & ~2 == 0  # files of all users


OWN_PROCESSES = """
import ctypes, os, resource, signal, subprocess, sys, threading, time
os.sched_setaffinity(0, os.sched_getaffinity(0))
os.sched_setaffinity(os.getpid(), os.sched_getaffinity(0))
thread = threading.Thread(target=time.sleep, args=(5,), daemon=True); thread.start()
os.sched_setaffinity(thread.native_id, os.sched_getaffinity(0))
resource.prlimit(os.getpid(), resource.RLIMIT_CORE, (0, 0))
signal.signal(signal.SIGUSR1, lambda *_: print("got", flush=True))
signal.raise_signal(signal.SIGUSR1); os.kill(os.getpid(), signal.SIGUSR1); os.killpg(0, signal.SIGWINCH)
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
os.setpriority(os.PRIO_PROCESS, child.pid, os.getpriority(os.PRIO_PROCESS, child.pid) + 1)
os.close(os.pidfd_open(child.pid))
os.killpg(child.pid, signal.SIGTERM)
print(child.wait(), flush=True)
far = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!"], stdout=subprocess.PIPE, text=True)
orphan = int(far.stdout.readline()); far.wait()
os.kill(orphan, 9)
print(subprocess.run(["sh", "-c", "kill -TERM $$"]).returncode, flush=True)
"""
LIMITS = """
import resource
limits = (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE)
print(*(resource.getrlimit(limit)[1] for limit in limits))
try:
    open("large", "wb").truncate((16 << 30) + 1)
except OSError as error:
    print(error.errno, open('/proc/self/oom_score_adj').read())
"""
HIDE = """
import os, subprocess, sys
from flashinfer_bench.sandbox import landlock, process_tree
from flashinfer_bench.sandbox.confine import drop_capabilities
process_tree.prctl(process_tree.PR_SET_NO_NEW_PRIVS, 1)
landlock.SCOPE_VERSION = int(sys.argv[1])
drop_capabilities()
def opens(pid):
    try:
        return bool(open(f"/proc/{pid}/environ", "rb"))
    except PermissionError:
        return False
other = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
process_tree.hide_memory()
print(subprocess.run([sys.executable, "-S", "-c", f"open('/proc/{os.getpid()}/mem')"], stderr=-3).returncode)
process_tree.show_memory()
os.makedirs("a"); os.makedirs("b"); open("a/x", "w").close()
print(opens(other.pid), landlock.keep_apart(), opens(other.pid))
os.rename("a/x", "b/x")
subprocess.Popen(["cat"], stdin=subprocess.PIPE).kill()
other.stdin.close()
"""


def test_a_worker_may_signal_itself_and_all_that_it_started(load):
    assert load(OWN_PROCESSES).split() == ["got", "got", "-15", "-15"]


def test_a_worker_has_limits_that_it_cannot_raise(load):
    core, file_bytes, tasks, descriptors, error, score = map(int, load(LIMITS).split())
    assert (core, file_bytes, error) == (0, 16 << 30, errno.EFBIG)
    assert descriptors <= 4096
    assert score > int(Path("/proc/self/oom_score_adj").read_text())
    assert 0 < tasks < count_tasks() + 4096 + 1024 * os.cpu_count()


@pytest.mark.parametrize("scopes_from", [6, 1000], ids=["scopes", "as on an older kernel"])
def test_memory_is_hidden_and_a_domain_hides_all_processes_outside_it(tmp_path, scopes_from):
    command = [sys.executable, "-c", HIDE, str(scopes_from)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    if landlock.version() < landlock.REFER_VERSION:
        pytest.skip("the kernel has no Landlock of the second version")
    assert said.split() == ["1", "True", "True", "False"]


LEAVES_A_CHILD = """
import os, time
if (child := os.fork()) == 0:
    os.setsid(); os.closerange(0, 256)
    if os.fork() == 0:
        time.sleep(60)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_worker_whose_supervisor_is_stopped_is_ended_with_all_that_it_started(start, monkeypatch):
    monkeypatch.setattr(worker_process, "END_LIMIT_S", 0.2)
    with start(LEAVES_A_CHILD) as worker:
        watcher = worker.supervisor_pid
        below = descendants(watcher)
        os.kill(watcher, signal.SIGSTOP)
        assert worker.end().signal == signal.SIGKILL
        assert len(below) >= 2
        assert not any(is_alive(pid) for pid in [watcher, *below])


def test_a_worker_that_does_not_end_or_has_lost_its_supervisor_is_a_fault(start, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(worker_process, "END_LIMIT_S", 0.0)
        patched.setattr(worker_process, "end_tree", lambda _root, _limit_s: False)
        with start("") as worker, pytest.raises(DeviceFault, match="does not end"):
            worker.end()
    with start(LEAVES_A_CHILD) as worker:
        below = descendants(worker.supervisor_pid)
        os.kill(worker.supervisor_pid, signal.SIGKILL)
        while is_alive(worker.supervisor_pid):
            time.sleep(0.001)
        with pytest.raises(DeviceFault, match="supervisor"):
            worker.end()
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


ORPHANS = """
import os, time
for _ in range(20):
    if (child := os.fork()) == 0:
        if os.fork() == 0:
            time.sleep(0.05)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_the_supervisor_reaps_orphans_while_its_worker_lives(start):
    with start(ORPHANS) as worker:
        assert not wait_until_gone(lambda: set(descendants(worker.supervisor_pid)) - {worker.pid})
        assert is_alive(worker.pid)


# Memory.

IN_CHILDREN = """
import os, time
if os.fork() == 0:
    held = bytearray(600 << 20); held[::4096] = b"x" * len(held[::4096]); time.sleep(60)
time.sleep(60)
"""


SHARED = """
import mmap, time
held = mmap.mmap(-1, 600 << 20); held[::4096] = b"x" * len(held[::4096]); time.sleep(60)
"""


@pytest.mark.parametrize("source", [IN_CHILDREN, SHARED], ids=["in children", "shared"])
def test_a_worker_that_takes_too_much_memory_is_ended(start, source, monkeypatch):
    monkeypatch.setattr(worker_process, "MACHINE_POLL_S", 60.0)  # else this process may find the shared memory first
    with pytest.raises(WorkerGone, match="more host memory"), start(source, memory_limit_bytes=512 << 20):
        pass


# Processes that only start the next one and end: gone by the time that somebody has seen them.

CHAIN = r"""
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>
int main(int count, char **words) {
    flock(open(words[1], O_RDWR | O_CREAT, 0666), LOCK_EX);  /* all that are forked hold it */
    time_t end = time(0) + 60;
    for (int i = 0; i < 8; i++)
        if (!fork()) {
            setsid();
            while (time(0) < end) {
                usleep(200);  /* else those that nobody has waited for yet could fill the table of a slow machine */
                if (fork() > 0) _exit(0);
                if (words[2][0] == 'n') setsid();
            }
            _exit(0);
        }
    return 0;
}
"""
BY_GROUPS = """
import os, subprocess, sys
from flashinfer_bench.sandbox.process_tree import adopt_orphans, kill_below
adopt_orphans()
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(kill_below(os.getpid(), 25.0))
"""


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """A program: it takes a file to lock, and "n" to put each process into a new group."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no compiler")
    folder = tmp_path_factory.mktemp("chain")
    (folder / "chain.c").write_text(CHAIN)
    subprocess.run(["gcc", "-O1", "-o", folder / "chain", folder / "chain.c"], check=True)
    return (folder / "chain").read_bytes()


def is_locked(path):
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.skipif(not (can_filter() and landlock.version() >= 6), reason="this kernel keeps no signals apart")
@pytest.mark.parametrize("users", [{}, pytest.param({"own": OWN}, marks=as_root)])
def test_a_supervisor_ends_processes_that_fork_and_end_in_groups_of_their_own(server, chain, users, monkeypatch):
    monkeypatch.setattr(worker_process, "end_tree", lambda *_: False)  # nobody else ends them
    with running_cell(server, **users) as cell:
        program = cell.artifact / "chain"
        program.write_bytes(chain)
        program.chmod(0o755)
        lock = cell.jit / "lock"
        with cell.loaded(f"import subprocess\nsubprocess.run([{str(program)!r}, {str(lock)!r}, 'n'])"):
            assert is_locked(lock)
        assert not is_locked(lock)


def test_groups_are_killed_if_signals_are_not_kept_apart(chain, tmp_path):
    (tmp_path / "chain").write_bytes(chain)
    (tmp_path / "chain").chmod(0o755)
    command = [sys.executable, "-c", BY_GROUPS, tmp_path / "chain", tmp_path / "lock", "one group"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["True"]
    assert not is_locked(tmp_path / "lock")


# The supervisor itself.


FAILS = """
import os, socket, sys, time
from flashinfer_bench.sandbox import supervisor
def fail(*_): raise ValueError("what no supervisor expects")
supervisor.Watch.until_end = fail
def run_worker(order, fds, channel):
    os.write(fds[1], b"%d" % os.getpid()); time.sleep(60); os._exit(0)
fds = [*socket.socketpair(), *socket.socketpair()]
ends = [fds[0].detach(), os.dup(1), fds[2].detach()]
supervisor.run_supervisor({"memory_limit_bytes": 0}, ends, run_worker)
"""


def test_a_supervisor_that_fails_ends_what_is_below_it_first():
    program = subprocess.run([sys.executable, "-c", FAILS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "what no supervisor expects" in program.stderr
    assert not program.stdout or read_process(int(program.stdout)) is None


MACHINE = "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 300 kB\nAnonPages:   400 kB\nShmem: 7 kB\n"


@pytest.mark.parametrize(
    ("reported", "hidden"),
    [
        (MACHINE, (300 * 1024, 7 * 1024)),
        ("", (0, 0)),
    ],
)
def test_hidden_memory_is_the_rest_of_the_machines_memory(tmp_path, reported, hidden):
    (tmp_path / "meminfo").write_text(reported)
    assert hidden_memory(tmp_path / "meminfo") == hidden
    assert hidden_memory(tmp_path / "none") == (0, 0)
