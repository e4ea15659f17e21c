"""Lock files that may be removed. The kernel gives a lock back when its holder ends, in whatever way it ends.

A lock counts only while its file still has its name. So the holder may remove the file.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

TRIES: Final = 100
"""Attempts to lock a file before giving up. Each fails where the former holder removed the file meanwhile."""


class FileLock:
    """An exclusive lock on a path, held from `take` or `wait` until `release`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def take(self) -> bool:
        """Take the lock; False where somebody holds it."""
        return self._acquire(fcntl.LOCK_EX | fcntl.LOCK_NB)

    def wait(self) -> None:
        """Wait until nobody holds the lock, then take it."""
        if not self._acquire(fcntl.LOCK_EX):
            raise OSError(f"{self.path} cannot be locked; does its file system know locks?")

    def release(self) -> None:
        """Give the lock back and remove its file."""
        if self._fd is not None:
            self.path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = None

    def _acquire(self, operation: int) -> bool:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(TRIES):
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, operation)
            except BlockingIOError:
                os.close(fd)
                return False
            except BaseException:
                os.close(fd)
                raise
            if is_same_file(fd, self.path):
                self._fd = fd
                return True
            os.close(fd)  # its holder removed the file while we waited; another file, or none, has the name now
        return False


def is_same_file(fd: int, path: Path) -> bool:
    """Tell whether an open file still has this name."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    ours = os.fstat(fd)
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)
