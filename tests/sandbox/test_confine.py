"""A worker in a sandbox writes to its own folders, reads only necessary files, and cannot connect.

Tested as the tests' user, as an ordinary user, and as the worker's own user.
"""

import errno
import os
import platform
import socket
import sys
from pathlib import Path

import pytest

from flashinfer_bench.bench.runner.workers.worker_handle import WorkerGone
from flashinfer_bench.sandbox import landlock
from flashinfer_bench.sandbox.namespaces import has_own_network
from flashinfer_bench.sandbox.seccomp import can_filter, read_calls
from tests.kit.sandboxes import ORDINARY, OWN, running_cell
from tests.kit.workers import running_template

IS_ROOT = sys.platform == "linux" and os.geteuid() == 0
HAS_SANDBOX = sys.platform == "linux" and landlock.version() >= 3 and can_filter()
pytestmark = [pytest.mark.cpu, pytest.mark.skipif(not HAS_SANDBOX, reason="this kernel has no sandbox")]
as_root = pytest.mark.skipif(not IS_ROOT, reason="only root can be another user")
TESTS_USER, ORDINARY_USER = pytest.param({}, id="tests"), pytest.param({"user": ORDINARY}, id="other", marks=as_root)
OWN_USER = pytest.param({"own": OWN}, id="own", marks=as_root)
TRY = """
import ctypes, errno, os, shutil, socket, subprocess, tempfile, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, act):
    try:
        print(name, "|", act(), flush=True)
    except OSError as error:
        print(name, "|", errno.errorcode[error.errno], flush=True)
def call(*arguments):
    if libc.syscall(*map(ctypes.c_long, arguments), *[ctypes.c_long(0)] * (7 - len(arguments))) < 0:
        raise OSError(ctypes.get_errno(), "")
def local(address):
    client = socket.socket(socket.AF_UNIX)
    client.connect(address)
    return client
"""
REFUSED = {"EPERM", "EACCES"}
MODE = read_calls(platform.machine())["fchmodat"][0] if HAS_SANDBOX else 0


def outcomes(cell, acts, before="", **changes):
    """Return the result of each expression that a solution tries at its import."""
    tries = "".join(f"attempt({name!r}, lambda: {act})\n" for name, act in acts.items())
    said = cell.run(TRY + before + tries, **changes)
    return dict(line.split(" | ", 1) for line in said.splitlines() if " | " in line)


OTHERS = {
    "write": "open({file!r}, 'w')",
    "truncate": "os.truncate({file!r}, 0)",
    "read": "open({file!r}).read()",
    "list": "os.listdir({folder!r})",
    "remove": "os.unlink({file!r})",
    "make": "os.mkdir({file!r} + '.d')",
    "mode": "os.chmod({file!r}, 0)",
    "times": "os.utime({file!r}, (0, 0))",
    "hard link": "os.link({file!r}, 'mine')",
    "move": "os.rename({file!r}, 'mine')",
    "through a link": "(os.symlink({file!r}, {name!r}), open({name!r}).read())",
    "mode through a link": "(os.symlink({file!r}, {name!r} + '2'), os.chmod({name!r} + '2', 0))",
    "times of what a link leads to": "(os.symlink({file!r}, {name!r} + '3'), os.utime({name!r} + '3', (0, 0)))",
    "attribute": "os.setxattr({file!r}, 'user.x', b'')",
    "owner": "os.chown({file!r}, 12345, -1)",
}


SYSTEM = {
    "shared memory": "open('/dev/shm/fib-left', 'w')",
    "semaphore": "__import__('multiprocessing.synchronize').Lock()",
    "temporary": "open('/tmp/fib-left', 'w')",
    "core_pattern": "open('/proc/sys/kernel/core_pattern', 'w')",
    "oom score": "open('/proc/self/oom_score_adj', 'w')",
    "cgroup": "open('/sys/fs/cgroup/cgroup.procs', 'a')",
    "root's home": "os.listdir('/root')",
    "shadow": "open('/etc/shadow')",
    "running programs": "os.listdir('/run')",
    "interpreter": "open(os.__file__, 'a')",
    "engine": "open(__import__('flashinfer_bench').__file__, 'a')",
    "engine's mode": "os.chmod(__import__('flashinfer_bench').__file__, 0)",
    "artifact": "open(__file__, 'a')",
    "artifact's mode": "os.fchmod(os.open(__file__, os.O_RDONLY), 0)",
    "lease": "__import__('fcntl').fcntl(os.open(__file__, os.O_RDONLY), 1024, 0)",
    "flags": "__import__('fcntl').ioctl(os.open(__file__, os.O_RDONLY), 0x40086602, bytes(8))",
    "kernel's memory": "open('/dev/mem', 'rb')",
    "terminal": "open('/dev/tty')",
    "supervisor's environment": "open(f'/proc/{os.getppid()}/environ', 'rb').read()",
    "supervisor's name": "open(f'/proc/{os.getppid()}/comm', 'w')",
}


CONNECTIONS = {
    "TCP": "socket.create_connection(('127.0.0.1', PORT), 2)",
    "TCP over IPv6": "socket.socket(socket.AF_INET6)",
    "listening": "socket.create_server(('127.0.0.1', 0))",
    "UDP": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "a socket's path": "local(PATH)",
    "an abstract socket": "local('\\0fib-abstract')",
    "datagrams": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "a pair for datagrams": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "sending to an address": "socket.socketpair()[0].sendto(b'x', PATH)",
    "sending to an address first": "socket.socket(socket.AF_UNIX).sendto(b'x', PATH)",
    "packets to an address": "socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).sendto(b'x', PATH)",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
}


OWN_FILES = {
    "mode": ("(os.chmod('kept', 0o751), mode('kept'))[1]", "0o751"),
    "mode, no special bits": ("(os.chmod('kept', 0o4640), mode('kept') in ('0o640', '0o4640'))[1]", "True"),
    "mode by descriptor": ("(os.fchmod(os.open('kept', os.O_RDONLY), 0o600), mode('kept'))[1]", "0o600"),
    "mode below a folder": ("(os.chmod('kept', 0o644, dir_fd=os.open('.', os.O_PATH)), mode('kept'))[1]", "0o644"),
    "mode by /proc": ("(os.chmod(f'/proc/self/fd/{os.open(\"kept\", 0)}', 0o600), mode('kept'))[1]", "0o600"),
    "times": ("(os.utime('kept', (1, 2)), os.utime(os.open('kept', 0)), os.stat('kept').st_mtime > 1e9)[2]", "True"),
    "times of a link": ("(os.symlink('/none', 'to'), os.utime('to', (1, 2), follow_symlinks=False))[1]", "None"),
    "a copy with its times": ("(shutil.copy2('kept', 'copied'), open('copied').read())[1]", "x"),
    "owner": ("os.chown('kept', os.getuid(), -1)", "None"),
    "a file that is not there": ("os.chmod('nothing', 0o600)", "ENOENT"),
    "a path that is nowhere": (f"call({MODE}, -100, 8, 0o600)", "EFAULT"),
    "moves": ("(os.makedirs('a/b'), os.rename('kept', 'a/b/kept'), os.replace('a/b/kept', f'{jit}/moved'))[2]", "None"),
    "links": ("os.link(f'{jit}/moved', 'linked')", "None"),
    "temporary folder": ("tempfile.mkdtemp().startswith(os.environ['HOME'])", "True"),
    "no variable of the session": ("'FIB_TEST_MARK' in os.environ", "False"),
    "pairs": ("(pair := socket.socketpair(), pair[0].sendall(b'over'), pair[1].recv(4))[2]", "b'over'"),
    "devices": ("(open('/dev/null', 'w').write('x'), len(os.urandom(3)))", "(1, 3)"),
    "programs": ("subprocess.run(['sh', '-c', 'exit 7']).returncode", "7"),
    "event loop": ("__import__('asyncio').run(__import__('asyncio').to_thread(lambda: 'looped'))", "looped"),
    "thread's name": ("(lambda own: (open(own, 'w').write('named'), open(own).read())[1])(named())", "named\n"),
}
HELPERS = """
jit = os.environ["FIB_JIT"]
open("kept", "w").write("x")
def mode(path): return oct(os.stat(path).st_mode & 0o7777)
def named():
    ready = []
    threading.Thread(target=lambda: (ready.append(threading.get_native_id()), time.sleep(5)), daemon=True).start()
    while not ready: time.sleep(0.01)
    return f"/proc/self/task/{ready[0]}/comm"
"""


RIGHTS = "[line for line in open('/proc/self/status') if line.startswith(('CapEff', 'CapPrm', 'Uid', 'NoNewPrivs'))]"


def calls_that_lead_out():
    calls = read_calls(platform.machine())
    acts = {name: f"call({number})" for name, (number, verdict) in calls.items() if verdict in ("sealed", "refuse")}
    flags = {"user": 0x10000000, "mount": 0x20000, "net": 0x40000000, "pid": 0x20000000, "time": 0x80}
    acts |= {f"unshare {name}": f"call({calls['unshare'][0]}, {flag})" for name, flag in flags.items()}
    acts |= {"clone": f"call({calls['clone'][0]}, {0x10000000 | 17})"}
    return acts | {"personality": f"call({calls['personality'][0]}, 0x400000)", "clone3": f"call({calls['clone3'][0]})"}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """The template of the tests' user."""
    with running_template(tmp_path_factory.mktemp("session") / "run") as running:
        yield running


@pytest.fixture(scope="module", params=[TESTS_USER, ORDINARY_USER, OWN_USER])
def cell(request, template):
    with running_cell(None if "user" in request.param else template, **request.param) as found:
        yield found


@pytest.fixture(scope="module")
def found(cell):
    """Results of all tries of one worker, by kind; foreign files before and after."""
    files = [cell.make(name) / "file" for name in ("dataset", "others-jit")]  # as a data set, and another's folder
    for file in files:
        file.write_text("kept")
        if IS_ROOT:
            os.chown(file, cell.user, cell.user)
    kinds = {}
    for file in files:
        place = {"file": str(file), "folder": str(file.parent), "name": file.parent.name}
        kinds[str(file)] = {name: act.format(**place) for name, act in OTHERS.items()}
    kinds |= {"system": SYSTEM, "connections": CONNECTIONS, "calls": calls_that_lead_out()}
    kinds |= {"own": {name: act for name, (act, _) in OWN_FILES.items()}, "rights": {"rights": RIGHTS}}
    acts = {f"{kind}: {name}": act for kind, one in kinds.items() for name, act in one.items()}
    state = [[file.read_text(), *file.stat()[:6], file.stat().st_mtime_ns] for file in files]
    path = str(cell.root / "listens")
    with socket.socket(socket.AF_UNIX) as local, socket.create_server(("127.0.0.1", 0)) as tcp:
        local.bind(path)
        Path(path).chmod(0o777)
        local.listen()
        local.settimeout(0)
        reported = outcomes(cell, acts, f"PORT, PATH = {tcp.getsockname()[1]}, {path!r}\n" + HELPERS)
        with pytest.raises(BlockingIOError):
            local.accept()
    assert set(reported) == set(acts)
    assert state == [[file.read_text(), *file.stat()[:6], file.stat().st_mtime_ns] for file in files]
    return {kind: {name: reported[f"{kind}: {name}"] for name in one} for kind, one in kinds.items()}


def test_nothing_of_others_can_be_read_or_changed(found):
    codes = {one[name] for kind, one in found.items() if kind.startswith("/") for name in one if name != "owner"}
    assert codes <= {*REFUSED, "EXDEV", "ENOTSUP", "EOPNOTSUPP"}


def test_the_system_is_out_of_reach(cell, found):
    absent = {"ENOENT", "ENXIO"}  # not on this machine
    assert {name: code for name, code in found["system"].items() if code not in REFUSED | absent} == {}
    for name in ("shared memory", "core_pattern", "oom score", "engine", "artifact", "engine's mode", "flags"):
        assert found["system"][name] in REFUSED
    assert (cell.artifact / "main.py").stat().st_mode & 0o600 == 0o600


def test_no_connection_can_be_made(found):
    unconnected = {"EISCONN", "ENOTSUP", "ENOTCONN"}  # a stream goes to no address
    assert set(found["connections"].values()) <= REFUSED | unconnected


def test_calls_that_lead_out_are_refused(found):
    wanted = {**dict.fromkeys(found["calls"], "EPERM"), "clone3": "ENOSYS"}
    assert found["calls"] == wanted


def test_a_worker_holds_no_right_of_roots(cell, found):
    fields = dict(line.split(":\t", 1) for line in eval(found["rights"]["rights"]))
    assert [int(fields[name], 16) for name in ("CapEff", "CapPrm", "NoNewPrivs")] == [0, 0, 1]
    assert set(fields["Uid"].split()) == {str(cell.worker or os.geteuid())}


def test_a_worker_works_in_its_own_folders(found):
    assert found["own"] == {name: reported.strip() for name, (_, reported) in OWN_FILES.items()}


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


def test_a_worker_that_cannot_have_its_sandbox_does_not_start(cell):
    with pytest.raises(WorkerGone):
        cell.run("", readable=("no\0path",))


# A tool that looks at a solution, and the program that it looks at.

SPEAKS = """
libc.prctl(15, b"\\xff\\xfe")  # a name that is no text
server = socket.socket(socket.AF_UNIX); server.bind("\\0tool"); server.listen()
full = socket.socket(socket.AF_UNIX); full.bind("\\0full"); full.listen(0); first = local("\\0full")
inet = socket.socket(); inet.bind(("127.0.0.1", 0)); inet.listen()
closed = socket.socket(); closed.bind(("127.0.0.1", 0))
def without_waiting():
    one = socket.socket(socket.AF_UNIX); one.setblocking(False); one.connect("\\0full")
"""
NAMES = """
def name_of_child():
    if (child := os.fork()) == 0:
        try:
            os._exit(open(f"/proc/{os.getpid()}/task/{os.getpid()}/comm", "w").write("name"))
        except OSError as error:
            os._exit(100 + error.errno)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
TOOL = {
    "abstract": ("(client := local('\\0tool'), client.sendall(b'hi'), server.accept()[0].recv(9))[2]", "b'hi'"),
    "loopback": ("socket.create_connection(inet.getsockname()).getpeername() == inet.getsockname()", "True"),
    "nobody listens": ("socket.socket().connect(closed.getsockname())", "ECONNREFUSED"),
    "way out": ("socket.socket().connect(('192.0.2.1', 80))", "ENETUNREACH"),
    "a service's path": ("local(PATH)", "EACCES"),
    "a name of another network": ("local(OUTSIDE)", "ECONNREFUSED"),
    "no socket": ("call(CONNECT, os.open('/dev/null', 0), id(PATH), 16)", "ENOTSOCK"),
    "no address": ("call(CONNECT, first.fileno(), 8, 16)", "EFAULT"),
    "one that does not wait": ("without_waiting()", "EAGAIN"),
    "thread of a child": ("name_of_child()", "4"),
}


@pytest.mark.skipif(not (HAS_SANDBOX and has_own_network()), reason="no process can have a network of its own")
@pytest.mark.parametrize("users", [TESTS_USER, OWN_USER])
def test_programs_of_a_tool_speak_with_each_other_and_with_nothing_else(template, users):
    outside = f"\0outside-{os.getpid()}"
    sockets = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    with running_cell(template, **users) as cell, sockets[0] as local, sockets[1] as other:
        path = cell.root / "service"
        local.bind(str(path))
        path.chmod(0o777)
        local.listen()
        other.bind(outside)
        other.listen()
        connect = read_calls(platform.machine())["connect"][0]
        before = f"PATH, OUTSIDE, CONNECT = {str(path)!r}, {outside!r}, {connect}\n" + SPEAKS + NAMES
        acts = {name: act for name, (act, _) in TOOL.items()}
        found = outcomes(cell, acts | {"system": SYSTEM["core_pattern"]}, before, for_tool=True)
        assert found.pop("system") in ("EACCES", "EROFS", "ENOENT")
        assert found == {name: reported for name, (_, reported) in TOOL.items()}
        alone = outcomes(cell, {"child": TOOL["thread of a child"][0], "name": "local('\\0nobody')"}, NAMES)
        assert alone == {"child": str(100 + errno.EACCES), "name": "EACCES"}
