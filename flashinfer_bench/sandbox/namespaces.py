"""Namespaces: a private network, and for root a read-only part of /proc.

A tool of `inspect` and its target communicate over the loopback of a private network. Other processes cannot reach this
network, and it has no way out. Compilers have a private network, too. Root can make such networks. Other users make
them in a user namespace, if the system allows user namespaces.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

from flashinfer_bench.sandbox.process_tree import checked, in_child, show_memory

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
GET_FLAGS, SET_FLAGS, IS_UP = 0x8913, 0x8914, 1
REQUEST: Final = struct.Struct("16sh22x")
"""The kernel's `ifreq`: the name of an interface, and its flags."""
READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 32, 4096, 16384, 1 << 18
STEERS_THE_SYSTEM: Final = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi")
"""Entries of /proc through which root controls the system."""


def enter_own_network() -> bool:
    """Leave the machine's network for a private network with loopback only; return whether it worked."""
    user, group = os.getuid(), os.getgid()
    if not _unshare(CLONE_NEWNET):
        if user == 0 or not _unshare(CLONE_NEWUSER | CLONE_NEWNET):
            return False
        show_memory()  # while memory is hidden, these files of /proc belong to root
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        flags = REQUEST.unpack(fcntl.ioctl(any_socket, GET_FLAGS, REQUEST.pack(b"lo", 0)))[1]
        fcntl.ioctl(any_socket, SET_FLAGS, REQUEST.pack(b"lo", flags | IS_UP))
        return True
    return False


def has_own_network() -> bool:
    """Return whether a process can have a private network here: a child process tries it."""
    return in_child(enter_own_network)


def seal_proc() -> None:
    """Make the system controls of /proc read-only in a private mount namespace. Root calls it.

    Raises:
        OSError: this is not possible, and the system controls are writable.
    """
    paths = [path for path in (f"/proc/{name}" for name in STEERS_THE_SYSTEM) if Path(path).exists()]
    if not _unshare(CLONE_NEWNS):
        if all(os.statvfs(path).f_flag & os.ST_RDONLY for path in paths):
            return  # read-only already, as in a container
        raise OSError("root cannot have a view of files of its own here, and could steer the system through /proc")
    _mount(None, "/", RECURSIVE | PRIVATE)
    for path in paths:
        _mount(path, path, BIND | RECURSIVE)
        _mount(path, path, BIND | REMOUNT | READ_ONLY)


def _unshare(flags: int) -> bool:
    return bool(ctypes.CDLL(None).unshare(flags) == 0)


def _mount(source: str | None, target: str, flags: int) -> None:
    libc, origin = ctypes.CDLL(None, use_errno=True), None if source is None else source.encode()
    checked(libc.mount(origin, target.encode(), None, ctypes.c_ulong(flags), None), f"mount of {target}")
