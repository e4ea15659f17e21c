"""Answers the kernel's questions about a worker's system calls (seccomp user notification).

A call that names a process is allowed for processes below the supervisor, and refused otherwise. The supervisor
itself sets modes and times of the worker's own files: it opens the file, checks its location, and changes it. If the
call continued instead, the worker could replace the path in its memory after the check. A time is always set to the
present. The supervisor also connects a tool's socket itself, but only to abstract names and addresses of the tool's own
network. A socket's path could lead to any service of the machine.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import re
import socket
import stat
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from flashinfer_bench.sandbox.process_tree import ancestors, checked, process_table, system_call
from flashinfer_bench.sandbox.seccomp import MACHINES, read_calls

QUESTION: Final = struct.Struct("=QIIiIQ6Q")
"""The kernel's question: id, pid, flags; then the call's number, architecture, instruction and arguments."""
ANSWER: Final = struct.Struct("=QqiI")
"""The answer: id, value, error, flags."""
RECEIVE, SEND, GO_ON = 0xC0502100, 0xC0182101, 1
PIDFD_OPEN, PIDFD_GETFD = 434, 438
AT_FDCWD, AT_SYMLINK_NOFOLLOW = -100, 0x100
MOST_PATH_BYTES, MOST_ADDRESS_BYTES = 4096, 128
MODE_BITS: Final = 0o777


class Notifications:
    """Answers the questions of one worker's filter.

    Args:
        channel: the worker sends the kernel's descriptor over it, once, and keeps no copy.
        folders: the worker's own folders.
    """

    def __init__(self, channel: socket.socket, folders: Sequence[str] = ()) -> None:
        self._channel: socket.socket | None = channel
        self._listener = -1
        self._folders = [os.path.realpath(folder) for folder in folders]
        calls = read_calls(platform.machine()) if platform.machine() in MACHINES else {}
        self._calls = {number: (name, verdict) for name, (number, verdict) in calls.items()}

    def descriptors(self) -> list[int]:
        """Return the descriptors to wait on. Call `handle` when one is readable."""
        if self._channel is not None:
            return [self._channel.fileno()]
        return [self._listener] if self._listener >= 0 else []

    def handle(self) -> None:
        """Receive the kernel's descriptor, or answer one question."""
        if self._channel is None:
            with suppress(OSError):  # the asking process has ended
                self._answer()
            return
        _, fds, _, _ = socket.recv_fds(self._channel, 1, 1)
        self._listener = fds[0] if fds else -1
        self._channel.close()
        self._channel = None

    def _answer(self) -> None:
        question = bytearray(QUESTION.size)
        fcntl.ioctl(self._listener, RECEIVE, question)
        number, pid, _, call, _, _, *arguments = QUESTION.unpack(question)
        name, verdict = self._calls[call]
        flags = 0
        if name == "connect":
            error = _error_of(connect_socket, arguments, pid)
        elif verdict == "own-file":
            error = _error_of(change_file, name, arguments, pid, self._folders)
        else:
            aim = ctypes.c_int(arguments[int(verdict.rpartition(":")[2])] & 0xFFFFFFFF).value
            error, flags = _error_of(judge_aim, aim, os.getpid()), GO_ON
        fcntl.ioctl(self._listener, SEND, bytearray(ANSWER.pack(number, 0, -error, 0 if error else flags)))


def _error_of(act: Callable[..., None], *arguments: object) -> int:
    """Do or judge a call; return its error number, 0 for no error. No question may end the supervisor."""
    try:
        act(*arguments)
    except OSError as error:
        return error.errno or errno.EIO
    except Exception:
        return errno.EINVAL
    return 0


def judge_aim(aim: int, supervisor: int) -> None:
    """Judge a call that aims at a process id or, if `aim` is negative, at a process group.

    Raises:
        PermissionError: one of these processes is not a descendant of the supervisor.
    """
    aimed = [aim] if aim > 0 else []
    if aim < -1:
        aimed = [pid for pid, process in process_table().items() if process.group == -aim]
    if not aimed or not all(supervisor in ancestors(pid) for pid in aimed):
        raise PermissionError(errno.EPERM, "a process of others")


def change_file(name: str, arguments: Sequence[int], pid: int, folders: Sequence[str]) -> None:
    """Set the mode of a file to the mode in a call, or its times to the present. The file must be in one of `folders`.

    Args:
        name: chmod, fchmod, fchmodat or utimensat.
        arguments: arguments of the call.
        pid: the asking thread.
        folders: real paths.

    Raises:
        OSError: there is no such file, or it is outside `folders`.
    """
    folder, path_at, mode = arguments[0], arguments[1], arguments[2]
    if name == "chmod":
        folder, path_at, mode = AT_FDCWD, *arguments[:2]
    elif name == "fchmod":
        path_at, mode = 0, arguments[1]
    elif name == "utimensat" and arguments[3] & AT_SYMLINK_NOFOLLOW:
        return  # the times of a link are irrelevant
    number = ctypes.c_int(folder & 0xFFFFFFFF).value
    start = Path(f"/proc/{pid}", "cwd" if number == AT_FDCWD else f"fd/{number}")
    if path_at or name not in ("fchmod", "utimensat"):
        path, end, _ = os.fsdecode(read_memory(pid, path_at, MOST_PATH_BYTES)).partition("\0")
        if not path or not end:
            raise OSError(errno.ENAMETOOLONG if path else errno.ENOENT, "path")
        start /= re.sub("^/proc/(thread-)?self/", f"/proc/{pid}/", path)
    fd = os.open(start, os.O_PATH | os.O_CLOEXEC)  # opens no content
    try:
        opened = Path(f"/proc/self/fd/{fd}")
        if not any(opened.readlink().is_relative_to(own) for own in folders):
            raise PermissionError(errno.EPERM, "a file of others")
        if name == "utimensat":
            os.utime(opened)
        else:
            opened.chmod(mode & MODE_BITS)
    finally:
        os.close(fd)


def connect_socket(arguments: Sequence[int], pid: int) -> None:
    """Connect a socket of a process, as the process requested. The process has its own network. Connecting can take as
    long as the process's call would.

    Args:
        arguments: arguments of the call: a descriptor, an address in memory, its length.
        pid: the asking thread.

    Raises:
        OSError: the call fails, or the address leads outside.
    """
    size = arguments[2] & 0xFFFFFFFF
    if not 2 <= size <= MOST_ADDRESS_BYTES:
        raise OSError(errno.EINVAL, "address")
    address = read_memory(pid, arguments[1], size)
    if len(address) < size:
        raise OSError(errno.EFAULT, "memory")
    status = Path(f"/proc/{pid}/status").read_bytes()  # the process name in it can have any bytes except a line feed
    process = int(status.partition(b"\nTgid:")[2].split(None, 1)[0])
    pidfd = checked(system_call(PIDFD_OPEN, process, 0), "pidfd_open")
    try:
        fd = checked(system_call(PIDFD_GETFD, pidfd, ctypes.c_uint(arguments[0] & 0xFFFFFFFF), 0), "pidfd_getfd")
    finally:
        os.close(pidfd)
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            raise OSError(errno.ENOTSOCK, "no socket")
        with socket.socket(fileno=os.dup(fd)) as taken:
            family = taken.family
        is_inside = family in (socket.AF_INET, socket.AF_INET6)
        if family == socket.AF_UNIX:
            is_inside = address[2:3] == b"\0"  # abstract names begin with a zero byte
        if not is_inside or struct.unpack_from("=H", address)[0] != family:
            raise PermissionError(errno.EACCES, "the machine's services")
        checked(ctypes.CDLL(None, use_errno=True).connect(fd, address, ctypes.c_uint(size)), "connect")
    finally:
        os.close(fd)


def read_memory(pid: int, address: int, size: int) -> bytes:
    """Read a process's memory. If the memory ends earlier, fewer bytes are returned.

    Raises:
        OSError: there is no memory at the address.
    """
    with suppress(OverflowError, OSError), Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        data = os.pread(memory.fileno(), size, address)
        if data:
            return data
    raise OSError(errno.EFAULT, "memory")
