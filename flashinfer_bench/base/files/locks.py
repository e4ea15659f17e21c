"""Locks on files and folders that several processes use: flock(2), with a deadline.

The kernel releases a lock when its holder ends, even if the holder is killed. A wait that reaches its limit raises
TimeoutError, an OSError that names the path. Only regular files and folders can be locked.

Some file systems have no flock: Lustre without `-o flock`, some NFS. There, `locked_file` and `locked_folder` hold a
file `.<name>.lock` instead. A killed holder leaves this file behind; the TimeoutError then says that it may be removed.
All other functions of this module raise an OSError that says that flock is missing.

The package filelock cannot replace this module: it takes a path and no open file, and locks no folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.writing import OpenFolder, open_folder

USUAL_LIMIT_S: Final = 60.0
"""Seconds to wait for a lock whose holder needs it for one short write."""
POLL_S: Final = 0.005
TRIES: Final = 100
"""Maximum attempts to open and lock a path. An attempt fails if another process replaces the file before it is locked.
"""
NO_FLOCK: Final = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""Error numbers of flock(2) on a file system without locks."""


class NoFlock(OSError):
    """The file system does not have flock."""


def try_lock(fd: int, *, is_shared: bool = False) -> bool:
    """Lock an open file. Return False if another process holds its lock. Shared locks do not exclude one another."""
    try:
        fcntl.flock(fd, fcntl.LOCK_NB | (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in NO_FLOCK:
            raise NoFlock(error.errno, "its file system has no file locks (flock); use another one") from None
        raise
    return True


def wait_for_lock(fd: int, path: Path, limit_s: float, *, is_shared: bool = False) -> None:
    """Lock an open file, or an open folder, that has this path.

    Raises:
        TimeoutError: another process held the lock all the time.
    """
    deadline = time.monotonic() + limit_s
    while not try_lock(fd, is_shared=is_shared):
        if time.monotonic() >= deadline:
            raise TimeoutError(errno.ETIMEDOUT, "its lock is held by another process", str(path))
        time.sleep(POLL_S)


@contextlib.contextmanager
def locked_file(folder: OpenFolder, name: str, limit_s: float) -> Iterator[int]:
    """Open a file for appending and hold its lock for a block; yield its descriptor. A missing file is made.

    Another process may move or remove the file while this one waits. Then the new file of that name is locked.

    Raises:
        TimeoutError: another process held the lock all the time.
    """
    path, deadline = folder.path / name, time.monotonic() + limit_s
    for _ in range(TRIES):
        fd = folder.open(name, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            with _locked(fd, path, folder, deadline - time.monotonic()):
                if folder.is_file(name, fd):
                    yield fd
                    return
        finally:
            os.close(fd)
    raise OSError(f"{path} cannot be locked: its file is another one each time")


@contextlib.contextmanager
def locked_folder(folder: Path, limit_s: float) -> Iterator[None]:
    """Hold the lock of a folder for a block."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with open_folder(folder, folder, makes=False) as inside, _locked(fd, folder, inside, limit_s):
            yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def _locked(fd: int, path: Path, folder: OpenFolder, limit_s: float) -> Iterator[None]:
    """Hold the lock of an open file or folder; without flock, hold a lock file in `folder` instead."""
    try:
        wait_for_lock(fd, path, limit_s)
    except NoFlock:
        with _held_beside(f".{path.name}.lock", folder, limit_s):
            yield
    else:
        yield


@contextlib.contextmanager
def _held_beside(name: str, folder: OpenFolder, limit_s: float) -> Iterator[None]:
    path, deadline = folder.path / name, time.monotonic() + limit_s
    while True:
        try:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder.fd))
            break
        except FileExistsError:
            if time.monotonic() >= deadline:
                said = f"another process holds {path}; remove that file if no process writes there"
                raise TimeoutError(errno.ETIMEDOUT, said, str(path)) from None
        time.sleep(POLL_S)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder.fd)
