"""A network of a process's own: a loopback that no other process reaches, and no way out.

A tool and the program that it looks at speak over it. Root makes such a network; another user has it in a user
namespace of its own, where the system lets users make these. Root has none there: it could become no other user then.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

from flashinfer_bench.worker.linux import show_memory, system_call

UNSHARE: Final = {"x86_64": 272, "aarch64": 97}
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
GET_FLAGS, SET_FLAGS, IS_UP = 0x8913, 0x8914, 1
REQUEST: Final = struct.Struct("16sh22x")
"""The kernel's `ifreq`: the name of an interface, and its flags."""


def enter_own_network() -> bool:
    """Leave the machine's network for one of this process's own, with loopback alone; say whether it was done."""
    number = UNSHARE.get(os.uname().machine)
    if number is None:
        return False
    user, group = os.getuid(), os.getgid()
    if system_call(number, CLONE_NEWNET) != 0:
        if user == 0 or system_call(number, CLONE_NEWUSER | CLONE_NEWNET) != 0:
            return False
        show_memory()  # else the files below belong to root
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        flags = REQUEST.unpack(fcntl.ioctl(any_socket, GET_FLAGS, REQUEST.pack(b"lo", 0)))[1]
        fcntl.ioctl(any_socket, SET_FLAGS, REQUEST.pack(b"lo", flags | IS_UP))
        return True
    return False


def has_own_network() -> bool:
    """Tell whether a process could have a network of its own here: a child tries it."""
    pid = os.fork()
    if pid == 0:
        is_done = False
        with suppress(BaseException):
            is_done = enter_own_network()
        os._exit(0 if is_done else 1)
    return os.waitpid(pid, 0)[1] == 0
