"""Locks on files and folders that several processes use: flock(2), with a deadline.

The kernel gives a lock back when its holder ends, however it ends. A wait that reaches its limit raises TimeoutError,
an OSError that names the path and the process that holds the lock. What is no regular file is refused.

Some file systems have no flock: Lustre without `-o flock`, some NFS. There, `locked_file` and `locked_folder` hold a
file `.<name>.lock` beside. A holder that is killed leaves it; the TimeoutError then says that it may be removed. The
other functions raise an OSError that says so.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.reading import refuse_strange
from flashinfer_bench.base.files.writing import OpenFolder, open_folder

USUAL_LIMIT_S: Final = 60.0
"""How many seconds to wait for a lock whose holder needs it for one short write."""
POLL_S: Final = 0.005
TRIES: Final = 100
"""Open a path this many times where its file is always another one by the time it is locked."""
LOCK_TABLE: Final = Path("/proc/locks")
NO_FLOCK: Final = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""What flock(2) says on a file system that does not have it."""


class NoFlock(OSError):
    """The file system does not have flock."""


def try_lock(fd: int) -> bool:
    """Lock an open file if nobody holds it; False where somebody does."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in NO_FLOCK:
            raise NoFlock(error.errno, "its file system has no file locks (flock); use another one") from None
        raise
    return True


def wait_for_lock(fd: int, path: Path, limit_s: float) -> None:
    """Lock an open file, or an open folder, that has this path.

    Raises:
        TimeoutError: another process held the lock all the time.
    """
    deadline = time.monotonic() + limit_s
    while not try_lock(fd):
        if time.monotonic() >= deadline:
            raise TimeoutError(errno.ETIMEDOUT, f"its lock is held by {_find_holder(fd)}", str(path))
        time.sleep(POLL_S)


def open_locked(path: Path, limit_s: float) -> int:
    """Open a file, made where it is missing, and lock it; return its descriptor.

    Another process may move or remove the file while this one waits. Then the file that has the path now is locked.

    Raises:
        TimeoutError: another process held the lock all the time.
    """
    deadline = time.monotonic() + limit_s
    for _ in range(TRIES):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o600)
        try:
            refuse_strange(os.fstat(fd), path)
            wait_for_lock(fd, path, deadline - time.monotonic())
        except BaseException:
            os.close(fd)
            raise
        if _is_same_file(fd, path):
            return fd
        os.close(fd)
    raise OSError(f"{path} cannot be locked; does its file system know locks?")


@contextlib.contextmanager
def locked_file(folder: OpenFolder, name: str, limit_s: float) -> Iterator[int]:
    """Open a file for appending, made where it is missing, and hold its lock for a block; yield its descriptor.

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
    """Hold the lock of an open file or folder; where there is no flock, hold a file in a folder in place of it."""
    try:
        wait_for_lock(fd, path, limit_s)
    except NoFlock:
        with _held_beside(f".{path.name}.lock", folder, limit_s):
            yield
    else:
        yield


@contextlib.contextmanager
def _held_beside(name: str, folder: OpenFolder, limit_s: float) -> Iterator[None]:
    deadline = time.monotonic() + limit_s
    while True:
        try:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder.fd))
            break
        except FileExistsError:
            if time.monotonic() >= deadline:
                said = f"another process holds {folder.path / name}; remove that file if no process writes there"
                raise TimeoutError(errno.ETIMEDOUT, said, str(folder.path / name)) from None
        time.sleep(POLL_S)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder.fd)


class FileLock:
    """A lock file, held from `take` or `wait` until `release`, which removes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def take(self) -> bool:
        """Take the lock if nobody holds it; False where somebody does."""
        try:
            self.wait(limit_s=0.0)
        except TimeoutError:
            return False
        return True

    def wait(self, limit_s: float = math.inf) -> None:
        """Take the lock once its holder gives it back.

        Raises:
            TimeoutError: another process held it all the time.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = open_locked(self.path, limit_s)

    def release(self) -> None:
        """Give the lock back and remove its file."""
        if self._fd is not None:
            self.path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = None


@contextlib.contextmanager
def locked(path: Path, limit_s: float = USUAL_LIMIT_S) -> Iterator[None]:
    """Hold a lock file for a block."""
    lock = FileLock(path)
    lock.wait(limit_s)
    try:
        yield
    finally:
        lock.release()


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _find_holder(fd: int) -> str:
    """Name the process that holds a file's lock, as proc(5)'s table of locks does."""
    file = os.fstat(fd)
    name = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    with contextlib.suppress(OSError):
        for line in LOCK_TABLE.read_text(encoding="ascii").splitlines():
            fields = line.split()  # "1: FLOCK ADVISORY WRITE 4046 fe:00:2245533 0 EOF"
            if fields[1] == "FLOCK" and fields[5] == name:
                return f"process {fields[4]}"
    return "another process"
