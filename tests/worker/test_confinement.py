"""What a worker cannot do to the processes that judge it, with nothing but its user's rights."""

import errno
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.base.files.trees import remove_tree
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner import client as session_client
from flashinfer_bench.bench.runner import launcher as session_start
from flashinfer_bench.bench.runner.protocol import Hello
from flashinfer_bench.bench.runner.workers import process as worker_process
from flashinfer_bench.bench.runner.workers.arena import SharedArena
from flashinfer_bench.bench.runner.workers.process import WorkerGone, WorkerProcess
from flashinfer_bench.bench.runner.workers.timed.along import Along
from flashinfer_bench.errors import DeviceFault
from flashinfer_bench.worker import confine, guard
from flashinfer_bench.worker.arena import Slot
from flashinfer_bench.worker.filter.asked_calls import AskedCalls
from flashinfer_bench.worker.filter.call_filter import CALLS, MOST_ANCESTORS, can_ask, make_program
from flashinfer_bench.worker.filter.filter_steps import ALLOW, RETURN, Step
from flashinfer_bench.worker.linux import count_own_tasks, descendants, is_alive, parent_of, resident_memory
from flashinfer_bench.worker.protocol import Bound, Called, LaidOut, Loaded
from tests.kit.processes import wait_until_gone
from tests.kit.workers import ROOT, running_template, worker_order

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(sys.platform != "linux", reason="confinement is Linux's")]
HELLO = Hello(
    device="cpu",
    hardware="",
    isolated=False,
    timeout_seconds=1.0,
    profile_baseline=False,
    time_budget_s=1.0,
    baseline_budget_s=1.0,
    worker_memory_bytes=None,
    needs_triton=False,
    cache_root="",
)
HELD = """
def parent(pid): return int(open(f"/proc/{pid}/stat").read().rpartition(") ")[2].split()[1])
guard = __import__("os").getppid(); template = parent(guard); session = parent(template)
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    with running_template(tmp_path_factory.mktemp("session") / "run") as socket:
        yield socket


@pytest.fixture
def start(template, tmp_path):
    """Return a context manager that gives a worker which has loaded some source."""

    @contextmanager
    def started(source, **order):
        (tmp_path / "main.py").write_text(HELD + "def run(x): return x\n" + source)
        with WorkerProcess(template, worker_order(**order), tmp_path / "home") as worker:
            started.worker = worker
            worker.wait_ready()
            place = {"directory": str(tmp_path), "entry": "main.py", "symbol": "run", "kind": "python"}
            answer = worker.ask("load", Loaded, 20.0, environment={}, **place)
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


READ = """
for name, pid in (("template", template), ("guard", guard)):
    try:
        open(f"/proc/{pid}/mem", "r+b")
        print(name, "opened", flush=True)
    except PermissionError:
        print(name, "refused", flush=True)
"""


def test_a_worker_cannot_open_the_memory_of_those_above_it(load):
    assert load(READ).split() == ["template", "refused", "guard", "refused"]


def test_a_worker_of_root_has_no_capability_that_opens_anything_but_files(load):
    held = load("print(open('/proc/self/status').read().split('CapEff:')[1].split()[0], flush=True)")
    assert int(held, 16) & ~2 == 0


READ_PARENT = "import os; open(f'/proc/{os.getppid()}/mem', 'rb')"
HIDE = f"""
import subprocess, sys
from flashinfer_bench.worker.linux import hide_memory, show_memory
from flashinfer_bench.worker.privileges import drop_capabilities
drop_capabilities()
for change in (show_memory, hide_memory):
    change()
    ended = subprocess.run([sys.executable, "-S", "-c", {READ_PARENT!r}], stderr=subprocess.PIPE, text=True)
    print(ended.returncode, "PermissionError" in ended.stderr)
"""


def test_hidden_memory_cannot_be_read_with_the_users_rights():
    said = subprocess.run([sys.executable, "-c", HIDE], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[1] == "1 True"


def test_host_and_session_hide_their_memory(monkeypatch):
    hidden = []
    monkeypatch.setattr(session_start, "hide_memory", lambda: hidden.append("session"))
    opening = SimpleNamespace(serve_host=hidden.append, import_judge=hidden.append)
    monkeypatch.setattr(session_start.importlib, "import_module", lambda _name: opening)
    monkeypatch.setattr(session_start, "die_with_parent", lambda _signal: None)
    monkeypatch.setattr(session_start.signal, "signal", lambda *_: None)
    ours, theirs = socket.socketpair()
    ours.close()  # no order comes
    session_start.main(theirs.detach(), os.getppid())
    assert hidden == ["session"]

    def hide():
        raise KeyError("hidden first")

    monkeypatch.setattr(session_client, "hide_memory", hide)
    with pytest.raises(KeyError, match="hidden first"):
        session_client.SessionClient(Device("cpu", 0, "cpu", "cpu"), HELLO)


DOMAIN = """
import os, subprocess, sys
from pathlib import Path
from flashinfer_bench.worker import linux, privileges
from flashinfer_bench.worker.walls import landlock
linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
landlock.SCOPE_VERSION = int(sys.argv[1])
privileges.drop_capabilities()
other = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
open(f"/proc/{other.pid}/environ", "rb").close()
os.mkdir("a"); os.mkdir("b"); Path("a/x").touch()
version = privileges.enter_own_domain()
os.rename("a/x", "b/x")
try:
    open(f"/proc/{other.pid}/environ", "rb")
    print(version, "opened")
except PermissionError:
    print(version, "refused")
own = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
own.kill()
"""


@pytest.mark.parametrize("scopes_from", [6, 1000], ids=["scopes", "as on an older kernel"])
def test_a_domain_hides_all_processes_outside_it_and_lets_files_move(tmp_path, scopes_from):
    command = [sys.executable, "-c", DOMAIN, str(scopes_from)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    version, found = said.split()
    if version == "0":
        pytest.skip("the kernel has no Landlock of the second version")
    assert found == "refused"


SIGNALS = """
import os, resource, signal, socket, fcntl
def tried(name, act):
    try:
        act()
        print(name, "done", flush=True)
    except PermissionError:
        print(name, "refused", flush=True)
thread = max(map(int, os.listdir(f"/proc/{session}/task")))
for name, act in {
    "guard": lambda: os.kill(guard, signal.SIGSTOP),
    "template": lambda: os.kill(template, signal.SIGSTOP),
    "thread": lambda: os.kill(thread, signal.SIGCONT),
    "group": lambda: os.killpg(os.getpgid(session), signal.SIGCONT),
    "all": lambda: os.kill(-1, signal.SIGCONT),
    "pidfd": lambda: signal.pidfd_send_signal(os.open(f"/proc/{session}", os.O_RDONLY), signal.SIGCONT),
    "pidfd_open": lambda: os.pidfd_open(session),
    "owner": lambda: fcntl.fcntl(socket.socketpair()[0].fileno(), fcntl.F_SETOWN, session),
    "affinity": lambda: os.sched_setaffinity(session, {0}),
    "priority": lambda: os.setpriority(os.PRIO_PROCESS, session, 19),
    "users": lambda: os.setpriority(os.PRIO_USER, 0, 19),
    "limit": lambda: resource.prlimit(session, resource.RLIMIT_CORE, (0, 0)),
}.items():
    tried(name, act)
"""
AIMS = [
    "guard",
    "template",
    "thread",
    "group",
    "all",
    "pidfd",
    "pidfd_open",
    "owner",
    "affinity",
    "priority",
    "users",
    "limit",
]


def test_a_worker_reaches_no_process_above_it(load):
    assert load(SIGNALS).split() == [word for aim in AIMS for word in (aim, "refused")]


OWN = """
import ctypes, os, resource, signal, subprocess, sys, threading, time
os.sched_setaffinity(0, os.sched_getaffinity(0))
os.sched_setaffinity(os.getpid(), os.sched_getaffinity(0))
thread = threading.Thread(target=time.sleep, args=(5,), daemon=True); thread.start()
os.sched_setaffinity(thread.native_id, os.sched_getaffinity(0))
resource.prlimit(os.getpid(), resource.RLIMIT_CORE, (0, 0))
signal.signal(signal.SIGUSR1, lambda *_: print("got", flush=True))
signal.raise_signal(signal.SIGUSR1); os.kill(os.getpid(), signal.SIGUSR1); os.killpg(0, signal.SIGCONT)
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


def test_a_worker_may_signal_itself_and_all_that_it_started(load):
    assert load(OWN).split() == ["got", "got", "-15", "-15"]


MEMORY_CALLS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number in ({"x86_64": 278, "aarch64": 75}[__import__("os").uname().machine], 444, 445, 446):
    print(libc.syscall(number, 0, 0, 0, 0), ctypes.get_errno(), flush=True)
"""


def test_calls_by_which_the_kernel_holds_memory_for_a_process_are_refused(load):
    assert load(MEMORY_CALLS).split() == ["-1", str(errno.EPERM)] * 4


def test_the_kernel_ends_a_worker_before_its_judge(load):
    source = "print(open('/proc/self/oom_score_adj').read(), flush=True)"
    assert int(load(source)) > int(Path("/proc/self/oom_score_adj").read_text())


WITHOUT_ASKING = """
import os, signal, subprocess, sys
from flashinfer_bench.worker.filter import call_filter
from flashinfer_bench.worker.linux import PR_SET_NO_NEW_PRIVS, ancestors, prctl
prctl(PR_SET_NO_NEW_PRIVS, 1)
call_filter.can_ask = lambda release: False
assert call_filter.install_filter(ancestors(os.getpid())) is None
for aim in (os.getppid(), -os.getppid(), -1):
    try:
        os.kill(aim, signal.SIGCONT)
        print("done")
    except PermissionError:
        print("refused")
child = subprocess.Popen(["sleep", "60"])
child.kill()
print(child.wait())
"""


@pytest.mark.skipif(platform.machine() not in CALLS, reason="the filter does not know this machine")
def test_where_the_kernel_cannot_ask_those_above_are_out_of_reach():
    command = [sys.executable, "-c", WITHOUT_ASKING]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["refused", "refused", "refused", "-9"]


@pytest.mark.parametrize(
    ("release", "asks"), [("6.12.1-generic", True), ("5.5", True), ("5.4.0", False), ("4.18.0-553.el8", False)]
)
def test_older_kernels_cannot_ask(release, asks):
    assert can_ask(release) is asks


@pytest.mark.parametrize("machine", CALLS)
@pytest.mark.parametrize("ancestors", [None, list(range(1, MOST_ANCESTORS + 1))])
def test_no_jump_of_the_filter_leaves_it(machine, ancestors):
    program = make_program(machine, own=77, ancestors=ancestors)
    for place, step in enumerate(program):
        assert max(step.if_true, step.if_false) <= 255
        assert step.code == RETURN or place + 1 + max(step.if_true, step.if_false) < len(program)
    assert program[-1] == Step(RETURN, ALLOW)


LEAVES_A_CHILD = """
import os, time
if os.fork() == 0:
    os.setsid(); os.closerange(0, 256)
    if os.fork() == 0:
        time.sleep(60)
    os._exit(0)
"""


def test_a_worker_whose_guard_is_stopped_is_ended_with_all_that_it_started(start, monkeypatch):
    monkeypatch.setattr(worker_process, "END_LIMIT_S", 0.2)
    with start(LEAVES_A_CHILD) as worker:
        watcher = parent_of(worker.pid)
        template = parent_of(watcher)
        below = descendants(watcher)
        os.kill(watcher, signal.SIGSTOP)
        assert worker.end().signal == signal.SIGKILL
        assert len(below) >= 2
        assert not any(is_alive(pid) for pid in [watcher, *below])
        assert not descendants(template)


def test_a_worker_that_does_not_end_is_a_fault(start, monkeypatch):
    monkeypatch.setattr(worker_process, "END_LIMIT_S", 0.0)
    monkeypatch.setattr(worker_process, "end_tree", lambda _root, _limit_s: False)
    with start("") as worker, pytest.raises(DeviceFault, match="does not end"):
        worker.end()


def test_a_worker_that_has_lost_its_guard_is_a_fault(start):
    """What it has started is below no guard: only the end of the session and its template reaches that."""
    with start(LEAVES_A_CHILD) as worker:
        below = descendants(worker.guard_pid)
        os.kill(worker.guard_pid, signal.SIGKILL)
        while is_alive(worker.guard_pid):
            time.sleep(0.001)
        try:
            with pytest.raises(DeviceFault, match="guard"):
                worker.end()
        finally:
            for pid in below:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_what_a_solution_prints_is_there_with_the_answer(load):
    assert load("import sys\nsys.stdout.write('out ')\nsys.stderr.write('err ')").split() == ["out", "err"]


def test_a_solution_that_broke_its_streams_is_answered_for(load):
    assert load("import sys\nprint('out', flush=True)\nsys.stdout = None\nsys.stderr.close()") == "out\n"


def test_what_a_solution_prints_before_a_crash_is_there(start):
    with pytest.raises(WorkerGone), start("import os\nprint('last words')\nos.kill(os.getpid(), 9)"):
        pass
    assert start.worker.log.take() == "last words\n"


ORPHANS = """
import os, time
for _ in range(20):
    if (child := os.fork()) == 0:
        if os.fork() == 0:
            time.sleep(0.05)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_the_guard_reaps_orphans_while_its_worker_lives(start):
    with start(ORPHANS) as worker:
        watcher = parent_of(worker.pid)
        assert not wait_until_gone(lambda: set(descendants(watcher)) - {worker.pid})
        assert is_alive(worker.pid)


LIMITS = """
import resource
limits = (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE)
print(*(resource.getrlimit(limit)[1] for limit in limits))
try:
    open("large", "wb").truncate((16 << 30) + 1)
except OSError as error:
    print(error.errno)
"""


def test_a_worker_has_limits_that_it_cannot_raise(load):
    core, file_bytes, tasks, descriptors, error = map(int, load(LIMITS).split())
    assert descriptors <= 4096
    assert (core, file_bytes, error) == (0, 16 << 30, errno.EFBIG)
    if (own := count_own_tasks()) is not None:
        assert 0 < tasks < own + 4096 + 1024 * os.cpu_count()


def test_limits_are_lowered_only(monkeypatch):
    was = {resource.RLIMIT_CORE: (0, 0), resource.RLIMIT_FSIZE: (5, 7), resource.RLIMIT_NPROC: (-1, -1)}
    was[resource.RLIMIT_NOFILE] = (1 << 20, 1 << 20)
    is_now = {}
    monkeypatch.setattr(confine.resource, "getrlimit", was.get)
    monkeypatch.setattr(confine.resource, "setrlimit", is_now.__setitem__)
    confine.set_limits(100)
    assert is_now == {
        **was,
        resource.RLIMIT_FSIZE: (5, 5),
        resource.RLIMIT_NPROC: (100, 100),
        resource.RLIMIT_NOFILE: (4096, 4096),
    }


FILLS = """
import mmap, os, time
fd = os.memfd_create("own"); os.ftruncate(fd, 600 << 20); memory = mmap.mmap(fd, 600 << 20)
for at in range(0, 600 << 20, 1 << 20):
    memory[at : at + (1 << 20)] = b"a" * (1 << 20)
time.sleep(5)
"""


def test_memory_that_a_worker_could_share_counts(start):
    with pytest.raises(WorkerGone, match="worker_memory_gb"), start(FILLS, memory_limit_bytes=512 << 20):
        pass


ZAPPED = """
import ctypes, mmap, os
libc = ctypes.CDLL(None)
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
kept = []
for _ in range(15):
    kept.append(mmap.mmap(-1, 100 << 20))
    at = ctypes.addressof(ctypes.c_char.from_buffer(kept[-1]))
    ctypes.memset(at, 1, 100 << 20)
    libc.madvise(at, 100 << 20, 4)  # MADV_DONTNEED: the kernel keeps it, and no process shows it
"""
HIDDEN = {
    "file": 'import os\nfor _ in range(3):\n    os.posix_fallocate(os.memfd_create("own"), 0, 500 << 20)\n',
    "zapped": ZAPPED,
}


@pytest.mark.parametrize("kind", HIDDEN)
def test_memory_that_no_process_shows_ends_a_worker_by_no_fault_of_its_solution(start, kind):
    source = f"{HIDDEN[kind]}\nimport os\nos.read(os.pipe()[0], 1)"
    with pytest.raises(WorkerGone, match="no process shows") as gone:
        with start(source, memory_limit_bytes=512 << 20):
            pass
    assert gone.value.ended.over_machine


def test_a_home_with_deep_and_closed_folders_is_removed(start, tmp_path):
    source = """
import os
os.chdir(os.environ["HOME"])
for _ in range(1100):
    os.mkdir("d" * 50)
    os.chdir("d" * 50)
os.chmod(".", 0)
os.mkfifo(os.environ["HOME"] + "/pipe")
os.chmod(os.environ["HOME"], 0)
"""
    order = worker_order()
    environment = {**order["environment"], "HOME": str(tmp_path / "home")}
    try:
        with start(source, environment=environment):
            assert (tmp_path / "home").exists()
        assert not (tmp_path / "home").exists()
    finally:
        remove_tree(tmp_path / "home")  # pytest cannot


def test_the_sessions_arena_does_not_count(start):
    source = "def run(x):\n    x.max()"
    with SharedArena(torch.device("cpu")) as arena, start(source, memory_limit_bytes=512 << 20) as worker:
        arena.reserve(600 << 20)
        arena.block.fill_(1)
        description, fds = arena.describe()
        worker.ask("bind", Bound, 20.0, along=Along(fds), arena=description)
        slot = Slot(0, (600 << 20,), torch.uint8).to_json()
        where = {"arguments": {"x": slot}, "slots": [], "count": 1, "stride": 600 << 20}
        worker.ask("lay_out", LaidOut, 20.0, style="dps", may_return_inputs=False, outputs=[], **where)
        worker.ask("calls", Called, 20.0, indices=[0], part="run", lead=None, replay=False)
        worker._turn(0.5)
        assert resident_memory(worker.pid).shared > 512 << 20
        assert worker.exit is None


def test_a_guard_that_cannot_see_the_session_watches_all_the_same(monkeypatch):
    monkeypatch.setattr(guard, "ancestors", lambda pid: [pid - 1])
    with socket.socket() as channel:
        watch = guard.Watch(os.getpid(), 1 << 50, AskedCalls(channel))
        assert not watch._is_over_memory()
        watch.memory_limit_bytes = 1
        assert watch._is_over_memory()
