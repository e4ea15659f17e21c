"""Sockets of a tool and the program that it looks at: the guard connects them, to what is inside the walls alone."""

import ctypes
import errno
import os
import socket
import struct
import sys

import pytest

from flashinfer_bench.worker.filter.call_filter import filters_calls
from flashinfer_bench.worker.linux import hide_memory, show_memory
from flashinfer_bench.worker.walls import asked_sockets, landlock
from flashinfer_bench.worker.walls.asked_sockets import connect_socket, has_network_apart, leads_inside
from flashinfer_bench.worker.walls.own_view import has_own_network
from flashinfer_bench.worker.walls.walled_calls import ABSTRACT_SOCKETS, CHILDREN, LOOPBACK
from tests.kit.walls import OWN, running_cell

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(sys.platform != "linux", reason="the guard is Linux's")]
IS_ROOT = sys.platform == "linux" and os.geteuid() == 0
PR_GET_DUMPABLE = 3
OPENINGS = (LOOPBACK, CHILDREN, ABSTRACT_SOCKETS)
UNIX, INET, INET6 = struct.pack("=H", 1), struct.pack("=H", 2), struct.pack("=H", 10)
TRIAL = """
import ctypes, os, socket, threading, time
def attempt(name, act):
    try:
        print(name, act(), flush=True)
    except OSError as error:
        print(name, error.errno, flush=True)
def local(address):
    client = socket.socket(socket.AF_UNIX)
    client.connect(address)
    return client
"""
SPEAKS = """
ctypes.CDLL(None).prctl(15, b"\\xff\\xfe")  # a name that is no text
server = socket.socket(socket.AF_UNIX); server.bind("\\0tool"); server.listen()
def talk():
    client = local("\\0tool")
    client.sendall(b"hello")
    return server.accept()[0].recv(9)
attempt("abstract", talk)
inet = socket.socket(); inet.bind(("127.0.0.1", 0)); inet.listen()
def loopback():
    return socket.create_connection(inet.getsockname()).getpeername() == inet.getsockname()
attempt("loopback", loopback)
closed = socket.socket(); closed.bind(("127.0.0.1", 0))
attempt("nobody listens", lambda: socket.socket().connect(closed.getsockname()))
attempt("way out", lambda: socket.socket().connect(("192.0.2.1", 80)))
"""
NAMES = """
def name():
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/comm", "w") as file:
        return file.write("name")
child = os.fork()
if child == 0:
    attempt("thread of a child", name)
    os._exit(0)
os.waitpid(child, 0)
attempt("system", lambda: open("/proc/sys/kernel/core_pattern", "r+").close())
"""
STALLS = """
child = os.fork()
if child == 0:
    time.sleep(60)
server = socket.socket(socket.AF_UNIX); server.bind("\\0full"); server.listen(0)
first = local("\\0full")
others = [threading.Thread(target=lambda: attempt("late", lambda: local("\\0full")), daemon=True) for _ in range(3)]
for one in others: one.start()
time.sleep(0.1)
attempt("another question", lambda: os.kill(child, 9))
print("waiting", sum(one.is_alive() for one in others), flush=True)
"""


@pytest.mark.parametrize(
    ("family", "address", "leads"),
    [
        (socket.AF_UNIX, UNIX + b"\0name", True),
        (socket.AF_UNIX, UNIX + b"/run/service", False),
        (socket.AF_UNIX, UNIX, False),
        (socket.AF_UNIX, INET + bytes(14), False),
        (socket.AF_INET, INET + bytes(14), True),
        (socket.AF_INET, UNIX + b"/run/service", False),
        (socket.AF_INET6, INET6 + bytes(26), True),
        (socket.AF_NETLINK, struct.pack("=HHII", 16, 0, 0, 0), False),
    ],
)
def test_an_address_leads_inside_where_its_socket_s_network_has_it(family, address, leads):
    assert leads_inside(family, address) is leads


@pytest.fixture
def _as_if_apart(monkeypatch):
    """This process asks itself, so its network is its own, and its memory is read: a session's host has hidden it."""
    monkeypatch.setattr(asked_sockets, "has_network_apart", lambda pid: True)
    was_hidden = ctypes.CDLL(None).prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 0
    show_memory()
    yield
    if was_hidden:
        hide_memory()


def ask(fd, address, size=None):
    """Have the guard's part connect a socket of this process; return the error."""
    memory = ctypes.create_string_buffer(address, max(len(address), 1))
    where = ctypes.addressof(memory)
    return connect_socket([fd, where, len(address) if size is None else size, 0, 0, 0], os.getpid())


def test_a_thread_in_the_same_network_is_refused():
    assert not has_network_apart(os.getpid())
    with socket.socket(socket.AF_UNIX) as client:
        assert ask(client.fileno(), UNIX + b"\0name") == errno.EACCES


@pytest.mark.usefixtures("_as_if_apart")
def test_the_socket_that_asks_is_the_one_that_is_connected():
    name = f"\0fib-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(name)
        server.listen()
        assert ask(client.fileno(), UNIX + name.encode()) == 0
        client.sendall(b"hello")
        with server.accept()[0] as accepted:
            assert accepted.recv(9) == b"hello"


@pytest.mark.usefixtures("_as_if_apart")
def test_what_is_no_connectable_socket_or_address_is_an_error_as_the_kernel_s(tmp_path):
    name = UNIX + f"\0nobody-{os.getpid()}".encode()
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "service"))
        server.listen()
        assert ask(client.fileno(), UNIX + str(tmp_path / "service").encode()) == errno.EACCES
        assert ask(client.fileno(), name) == errno.ECONNREFUSED
        assert ask(client.fileno(), name, size=1) == errno.EINVAL
        assert ask(client.fileno(), name, size=129) == errno.EINVAL
        assert connect_socket([client.fileno(), 8, 20, 0, 0, 0], os.getpid()) in (errno.EFAULT, errno.EIO)
        server.close()
        assert ask(server.fileno() & 0xFFFFFFFF, name) == errno.EBADF
    with (tmp_path / "file").open("w") as file:
        assert ask(file.fileno(), name) == errno.ENOTSOCK


@pytest.mark.usefixtures("_as_if_apart")
def test_a_socket_that_does_not_wait_does_not_wait_here():
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(f"\0full-{os.getpid()}")
        server.listen(0)
        address = UNIX + f"\0full-{os.getpid()}".encode()
        assert ask(client.fileno(), address) == 0
        with socket.socket(socket.AF_UNIX) as late:
            late.setblocking(False)
            assert ask(late.fileno(), address) == errno.EAGAIN


USERS = [
    pytest.param({}, id="the tests' user"),
    pytest.param(
        {"own": OWN},
        id="a user of its own",
        marks=pytest.mark.skipif(not IS_ROOT, reason="only root can be another user"),
    ),
]


@pytest.fixture(scope="module", params=USERS)
def cell(request):
    if not (landlock.version() >= 3 and filters_calls()):
        pytest.skip("this kernel has no walls")
    if not has_own_network():
        pytest.skip("a process cannot have a network of its own here")
    with running_cell(**request.param) as found:
        yield found


def read(said):
    return dict(line.rsplit(" ", 1) for line in said.splitlines())


def test_programs_in_the_walls_speak_with_each_other_and_with_nothing_else(cell):
    path = cell.root / "service"
    outside = f"\0outside-{os.getpid()}"
    further = f"attempt('path', lambda: local({str(path)!r}))\nattempt('outside', lambda: local({outside!r}))\n"
    with socket.socket(socket.AF_UNIX) as service, socket.socket(socket.AF_UNIX) as other:
        service.bind(str(path))
        path.chmod(0o777)
        service.listen()
        other.bind(outside)
        other.listen()
        said = read(cell.run(TRIAL + SPEAKS + further, openings=OPENINGS))
    path.unlink()
    assert said == {
        "abstract": "b'hello'",
        "loopback": "True",
        "nobody listens": str(errno.ECONNREFUSED),
        "way out": str(errno.ENETUNREACH),
        "path": str(errno.EACCES),
        "outside": str(errno.ECONNREFUSED),
    }


def test_a_peer_that_never_accepts_holds_up_no_guard(cell):
    assert read(cell.run(TRIAL + STALLS, openings=OPENINGS)) == {"another question": "None", "waiting": "3"}


def test_children_name_their_threads_and_the_system_is_not_steered(cell):
    said = read(cell.run(TRIAL + NAMES, openings=OPENINGS))
    assert said["thread of a child"] == "4"
    assert int(said["system"]) in (errno.EACCES, errno.EROFS, errno.ENOENT)


def test_without_openings_nothing_of_that_is_open(cell):
    said = read(cell.run(TRIAL + NAMES + "attempt('local', lambda: local('\\0nobody'))\n"))
    assert said["thread of a child"] == said["system"] == said["local"] == str(errno.EACCES)
