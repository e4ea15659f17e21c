"""The guard changes modes and times of a worker's own files in its place (`walled_calls.py` has it asked).

The kernel's walls do not cover these calls, and a guard that let one go on could be deceived: the path lies in the
worker's memory, which changes. So the guard opens the file itself, looks where it lies, and does what was asked.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

AT_FDCWD: Final = -100
AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH = 0x100, 0x1000
FLAGS_AT: Final = {"fchmodat2": 3, "utimensat": 3, "fchownat": 4}
"""Call → which of its arguments has flags."""
MOST_PATH_BYTES: Final = 4096
NOW, LEAVE = (1 << 30) - 1, (1 << 30) - 2
"""UTIME_NOW and UTIME_OMIT in place of nanoseconds."""
SECOND_NS: Final = 1_000_000_000
MODE_BITS: Final = 0o777

Times = tuple[int | None, int | None]
"""Of access and change, in nanoseconds; None where it stays."""


def change_file(name: str, arguments: Sequence[int], pid: int, folders: Sequence[str]) -> int:
    """Do one call of a process; return its error, 0 where it was done.

    Args:
        name: one of `walled_calls.BY_THE_GUARD`.
        arguments: the call's six.
        pid: the thread that asks.
        folders: files below these, by their real paths, are its own.
    """
    try:
        fd, rest = _open_target(name, arguments, pid)
    except OSError as error:
        return error.errno or errno.EIO
    try:
        if not _is_below(fd, folders):
            return errno.EPERM
        if "chmod" in name:
            return _set_mode(fd, rest[0])
        if "chown" in name:
            return _check_owner(fd, rest)
        return _set_times(fd, _read_times(name, rest[0], pid))
    except OSError as error:
        return error.errno or errno.EIO
    finally:
        os.close(fd)


def _open_target(name: str, arguments: Sequence[int], pid: int) -> tuple[int, Sequence[int]]:
    """Open what a call names, without opening its content; return it with the arguments after it."""
    if name in ("fchmod", "fchown"):
        return _open(pid, _signed(arguments[0]), "", AT_EMPTY_PATH), arguments[1:]
    if name in ("chmod", "chown", "lchown", "utime", "utimes"):
        flags = AT_SYMLINK_NOFOLLOW if name == "lchown" else 0
        return _open(pid, AT_FDCWD, _read_path(pid, arguments[0]), flags), arguments[1:]
    flags = arguments[FLAGS_AT[name]] if name in FLAGS_AT else 0
    path = _read_path(pid, arguments[1]) if arguments[1] else ""
    if not path and not arguments[1]:
        flags |= AT_EMPTY_PATH  # utimensat takes a descriptor alone so
    return _open(pid, _signed(arguments[0]), path, flags), arguments[2:]


def _open(pid: int, folder: int, path: str, flags: int) -> int:
    how = os.O_PATH | os.O_CLOEXEC
    if not path:
        if not flags & AT_EMPTY_PATH:
            raise FileNotFoundError(errno.ENOENT, "no path")
        return os.open(f"/proc/{pid}/fd/{folder}", how)  # of a worker's descriptor: the file itself
    if flags & AT_SYMLINK_NOFOLLOW:
        how |= os.O_NOFOLLOW
    if path.startswith("/"):
        return os.open(_of_its_own(path, pid), how)
    start = "cwd" if folder == AT_FDCWD else f"fd/{folder}"
    at = os.open(f"/proc/{pid}/{start}", os.O_PATH | os.O_CLOEXEC)
    try:
        return os.open(path, how, dir_fd=at)
    finally:
        os.close(at)


def _of_its_own(path: str, pid: int) -> str:
    """Let /proc/self mean the process that asked."""
    for own in ("/proc/self/", "/proc/thread-self/"):
        if path.startswith(own):
            return f"/proc/{pid}/{path.removeprefix(own)}"
    return path


def _is_below(fd: int, folders: Sequence[str]) -> bool:
    """Tell whether an open file lies in one of the folders, by the path that the kernel gives."""
    place = Path(f"/proc/self/fd/{fd}").readlink()
    return any(place.is_relative_to(folder) for folder in folders)


def _set_mode(fd: int, mode: int) -> int:
    if stat.S_ISLNK(os.fstat(fd).st_mode):
        return errno.EOPNOTSUPP
    Path(f"/proc/self/fd/{fd}").chmod(mode & MODE_BITS)
    return 0


def _check_owner(fd: int, wanted: Sequence[int]) -> int:
    """Give a file to nobody else; copying programs ask for the owner that a file has."""
    facts = os.fstat(fd)
    pairs = zip(map(_signed, wanted[:2]), (facts.st_uid, facts.st_gid), strict=True)
    return 0 if all(asked in (-1, has) for asked, has in pairs) else errno.EPERM


def _set_times(fd: int, times: Times | None) -> int:
    facts = os.fstat(fd)
    if stat.S_ISLNK(facts.st_mode):
        return 0  # nobody reads a link's times
    path = f"/proc/self/fd/{fd}"
    if times is None:
        os.utime(path)
        return 0
    was = (facts.st_atime_ns, facts.st_mtime_ns)
    new = [old if wanted is None else wanted for wanted, old in zip(times, was, strict=True)]
    os.utime(path, ns=(new[0], new[1]))
    return 0


def _read_times(name: str, address: int, pid: int) -> Times | None:
    """Read the two times of a call; None for now."""
    if address == 0:
        return None
    if name == "utime":
        access, change = struct.unpack("qq", read_memory(pid, address, 16))
        return access * SECOND_NS, change * SECOND_NS
    first, part, second, other = struct.unpack("qqqq", read_memory(pid, address, 32))
    if name != "utimensat":
        return first * SECOND_NS + part * 1000, second * SECOND_NS + other * 1000
    if part == other == NOW:
        return None
    return _one_time(first, part), _one_time(second, other)


def _one_time(seconds: int, part: int) -> int | None:
    return None if part in (LEAVE, NOW) else seconds * SECOND_NS + part


def _read_path(pid: int, address: int) -> str:
    """Read a path from a process's memory.

    Raises:
        OSError: there is none, or one that is too long.
    """
    found = b""
    while b"\0" not in found:
        if len(found) >= MOST_PATH_BYTES:
            raise OSError(errno.ENAMETOOLONG, "path")
        # A page at a time: the next one may not be there.
        here = address + len(found)
        found += read_memory(pid, here, 4096 - here % 4096)
    return os.fsdecode(found[: found.index(b"\0")])


def read_memory(pid: int, address: int, size: int) -> bytes:
    """Read a process's memory.

    Raises:
        OSError: there is none.
    """
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory, suppress(OverflowError):
        memory.seek(address)
        data = memory.read(size)
        if data:
            return data  # less, where the memory ends before
    raise OSError(errno.EFAULT, "memory")


def _signed(value: int) -> int:
    number: int = struct.unpack("i", struct.pack("I", value & 0xFFFFFFFF))[0]
    return number
