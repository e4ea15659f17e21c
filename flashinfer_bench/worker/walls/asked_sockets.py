"""The guard connects a socket in a tool's place (`walled_calls.py` has it asked), to what is inside the walls alone.

The programs of a tool speak over sockets with abstract names, which belong to a network: where that is their own, no
other program has such a name in it. A path leads to every service of the machine, and the address lies in memory that
changes while the guard looks. So the guard copies the address, looks at it, and connects the same socket to the copy.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from flashinfer_bench.worker.linux import system_call
from flashinfer_bench.worker.walls.asked_files import read_memory

PIDFD_OPEN, PIDFD_GETFD = 434, 438
MOST_ADDRESS_BYTES: Final = 128
"""The kernel takes no longer address."""
ABSTRACT: Final = 0
"""The first byte of a name that is no path."""


def connect_socket(arguments: Sequence[int], pid: int) -> int:
    """Connect a process's socket as its call asks; return the call's error, 0 where it is connected.

    This takes as long as the call would: without end where the other side never accepts.

    Args:
        arguments: the call's: a descriptor, an address in memory, its length.
        pid: the thread that asks.
    """
    try:
        if not has_network_apart(pid):
            return errno.EACCES
        size = arguments[2] & 0xFFFFFFFF
        if not 2 <= size <= MOST_ADDRESS_BYTES:
            return errno.EINVAL
        address = read_memory(pid, arguments[1], size)
        if len(address) != size:
            return errno.EFAULT
        fd = _take_descriptor(pid, arguments[0] & 0xFFFFFFFF)
    except OSError as error:
        return error.errno or errno.EIO
    with socket.socket(fileno=fd) as taken:
        if not leads_inside(taken.family, address):
            return errno.EACCES
        libc = ctypes.CDLL(None, use_errno=True)
        return 0 if libc.connect(taken.fileno(), address, ctypes.c_uint(size)) == 0 else ctypes.get_errno()


def leads_inside(family: int, address: bytes) -> bool:
    """Tell whether an address, for a socket of this family, stays in the socket's network."""
    if struct.unpack_from("=H", address)[0] != family:
        return False
    if family == socket.AF_UNIX:
        return len(address) > 2 and address[2] == ABSTRACT
    return family in (socket.AF_INET, socket.AF_INET6)


def has_network_apart(pid: int) -> bool:
    """Tell whether a thread has another network than this process."""
    return Path(f"/proc/{pid}/ns/net").stat().st_ino != Path("/proc/self/ns/net").stat().st_ino


def _take_descriptor(pid: int, number: int) -> int:
    """Return a descriptor of this process's own for the socket that a thread's descriptor stands for.

    Raises:
        OSError: there is none, or it is no socket.
    """
    pidfd = system_call(PIDFD_OPEN, _process_of(pid), 0)
    if pidfd < 0:
        raise OSError(errno.ESRCH, "the process that asks")
    try:
        fd = system_call(PIDFD_GETFD, pidfd, ctypes.c_uint(number), 0)
        if fd < 0:
            raise OSError(ctypes.get_errno() or errno.EBADF, "the descriptor of the process that asks")
    finally:
        os.close(pidfd)
    with suppress(OSError):
        socket.socket(fileno=os.dup(fd)).close()
        return fd
    os.close(fd)
    raise OSError(errno.ENOTSOCK, "no socket")


def _process_of(thread: int) -> int:
    for line in Path(f"/proc/{thread}/status").read_bytes().split(b"\n"):  # the name in it may be any other bytes
        if line.startswith(b"Tgid:"):
            return int(line.split()[1])
    raise OSError(errno.ESRCH, "the thread that asks")
