"""Temporary folders of a process. The process locks its folder, and removes it at the end.

Forks hold the lock, too. If a process is killed, its folder stays without a lock. The same user's next run removes that
folder when the run ends (`sweep_folders`).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.locks import try_lock
from flashinfer_bench.base.files.trees import remove_tree

PREFIX: Final = "flashinfer-bench."
"""Beginning of the names of these folders, and of no other names. Outside the system's folder of temporary files, a dot
comes before it."""
SWEEP_LIMIT_S: Final = 120.0
"""Seconds for removing leftovers. The next run removes the remaining folders."""


def hold_folder(name: str, parent: Path | None = None) -> tuple[Path, int]:
    """Make a folder; return it with the descriptor that holds its lock. Closing the descriptor, here and in all forks,
    releases the lock. Without a parent it is in the system's folder of temporary files."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{'.' if parent else ''}{PREFIX}{name}.", dir=parent))
        try:
            fd = _open(folder)
        except FileNotFoundError:  # another process swept it before it was locked
            continue
        with suppress(OSError):  # the file system has no locks, so no process sweeps it
            if not try_lock(fd) or not os.fstat(fd).st_nlink:
                os.close(fd)
                continue
        return folder, fd


@contextmanager
def temporary_folder(name: str, parent: Path | None = None) -> Iterator[Path]:
    """Make a folder for a block. At the block's end, remove the folder with its content."""
    folder, fd = hold_folder(name, parent)
    try:
        yield folder
    finally:
        remove_tree(folder)
        os.close(fd)


def sweep_folders(parent: Path | None = None) -> None:
    """Remove this user's folders that no process holds. `parent` is the same as for `hold_folder`."""
    deadline = time.monotonic() + SWEEP_LIMIT_S
    for folder in parent.glob(f".{PREFIX}*") if parent else Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # the folder is another user's, is being removed, or cannot be locked
            fd = _open(folder)
            try:
                if os.fstat(fd).st_uid == os.geteuid() and try_lock(fd):
                    remove_tree(folder, deadline - time.monotonic())
            finally:
                os.close(fd)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
