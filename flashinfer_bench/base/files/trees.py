"""Walks and removes trees of folders that somebody else may have made: thousands deep, with links that lead round.

A walk has limits, and tells what it leaves out. Removing has none but time: it goes down by descriptors and does not
recurse, so that neither depth nor the length of a path matters. Imports nothing of ours.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

DEEPEST: Final = 32
"""A walk goes down this many folders; what lies deeper is left out."""
MOST_ENTRIES: Final = 1_000_000
"""A walk looks at this many files and folders; the rest is left out."""
SYSTEM_FOLDERS: Final = ("/proc", "/sys", "/dev")
"""A walk that follows links does not go into these, whose folders may have no end."""
LOOK_EVERY: Final = 1000
"""Look at the clock after this many entries of one folder that is being emptied."""
_TO_FOLDER: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Tell = Callable[[Path, str], None]
"""Takes a path that is left out, and why."""
Identity = tuple[int, int]


def walk_files(
    folder: Path, tell: Tell, *, follows_links: bool = False, passes_over: Callable[[str], bool] = lambda _: False
) -> Iterator[Path]:
    """Yield everything below a folder that is no folder, in a fixed order: what lies in it before what lies deeper.

    Args:
        folder: the top. If it is missing, that is told.
        tell: takes what is left out.
        follows_links: go into folders that links lead to, into each folder once.
        passes_over: takes a name, and says whether it is left out in silence.
    """
    seen = {_identity(folder)}
    above = {_identity(parent) for parent in folder.absolute().resolve().parents}
    system = {found[0] for found in map(_identity, SYSTEM_FOLDERS) if found}

    def goes_into(path: Path) -> bool:
        own = _identity(path)
        if own is None or own in seen:  # a link that leads back
            return False
        seen.add(own)
        if own in above or own[0] in system:
            tell(path, "leads out to folders of the system, or to one that holds this one; it is left out")
            return False
        return True

    def tell_error(error: OSError) -> None:
        tell(Path(error.filename), f"cannot be read: {error.strerror}")

    left = MOST_ENTRIES
    for current, folders, files in os.walk(folder, onerror=tell_error, followlinks=follows_links):
        here, below = Path(current), []
        left -= len(folders) + len(files)
        if left < 0:
            tell(folder, f"holds more than {MOST_ENTRIES:,} files and folders; the rest is left out")
            return
        for name in sorted(folders):
            path = here / name
            if passes_over(name):
                continue
            if not follows_links and path.is_symlink():
                files.append(name)
            elif len(path.relative_to(folder).parts) > DEEPEST:
                tell(path, f"lies more than {DEEPEST} folders deep; it is left out")
            elif not follows_links or goes_into(path):
                below.append(name)
        folders[:] = below
        yield from (here / name for name in sorted(files) if not passes_over(name))


def _identity(path: Path | str | int) -> Identity | None:
    with suppress(OSError):
        found = os.stat(path)  # noqa: PTH116 - a descriptor, too
        return found.st_dev, found.st_ino
    return None


def remove_tree(folder: Path, limit_s: float = math.inf) -> bool:
    """Remove a folder with all that is in it, or a file or link of this name; tell whether it is gone.

    Never raises OSError. Links are not followed. Only the folder that is being emptied is open, so depth costs nothing.
    """
    with suppress(OSError):  # it is not there, or is a file or a link
        _empty(_open_folder(str(folder), None), time.monotonic() + limit_s)
    for remove in (os.unlink, os.rmdir):
        with suppress(OSError):
            remove(folder)
    return not os.path.lexists(folder)


def _empty(current: int, deadline: float) -> None:
    """Remove what is in an open folder, as far as time and rights allow, and close it."""
    path = [_remove_files(current, deadline)]
    try:
        while time.monotonic() < deadline:
            _, folders = path[-1]
            if folders:
                try:
                    below = _open_folder(folders[-1], current)
                except OSError:
                    folders.pop()  # it cannot be removed
                    continue
                os.close(current)
                current = below
                path.append(_remove_files(current, deadline))
            elif len(path) == 1:
                return
            else:
                above = os.open("..", os.O_RDONLY | _TO_FOLDER, dir_fd=current)
                os.close(current)
                current = above
                path.pop()
                identity, folders = path[-1]
                if _identity(current) != identity:  # somebody has moved the folder below to another place
                    return
                with suppress(OSError):
                    os.rmdir(folders.pop(), dir_fd=current)
    finally:
        os.close(current)


def _remove_files(fd: int, deadline: float) -> tuple[Identity | None, list[str]]:
    """Remove the files of an open folder before a deadline; return its identity, and the folders in it."""
    folders: list[str] = []
    with suppress(OSError), os.scandir(fd) as entries:
        for count, entry in enumerate(entries, 1):
            if count % LOOK_EVERY == 0 and time.monotonic() >= deadline:
                break
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                with suppress(OSError):
                    os.unlink(entry.name, dir_fd=fd)
    return _identity(fd), folders


def _open_folder(name: str, parent: int | None) -> int:
    """Open a folder with every right for its owner, which whoever filled it may have taken away."""
    try:
        fd = os.open(name, os.O_RDONLY | _TO_FOLDER, dir_fd=parent)
    except PermissionError:
        closed = os.open(name, os.O_PATH | _TO_FOLDER, dir_fd=parent)
        try:
            Path(f"/proc/self/fd/{closed}").chmod(0o700)
        finally:
            os.close(closed)
        fd = os.open(name, os.O_RDONLY | _TO_FOLDER, dir_fd=parent)
    with suppress(OSError):
        os.fchmod(fd, 0o700)
    return fd
