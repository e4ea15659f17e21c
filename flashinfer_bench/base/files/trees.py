"""Walks and removes trees of folders that somebody else may have made: thousands deep, with links that lead round.

No function here recurses. A walk has limits, and tells what it leaves out. Removing has none but time: it goes down by
descriptors, so that neither depth nor the length of a path matters. Imports nothing of ours.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

DEEPEST: Final = 32
"""A walk goes down this many folders; what lies deeper is left out."""
MOST_ENTRIES: Final = 1_000_000
"""A walk looks at this many files and folders; the rest is left out."""
SYSTEM_FOLDERS: Final = ("/proc", "/sys", "/dev")
"""A walk that follows links does not go into these, whose folders may have no end."""
LOOK_EVERY: Final = 1000
"""Look at the clock after so many entries of one folder that is being emptied."""
_TO_FOLDER: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Tell = Callable[[Path, str], None]
"""Takes a path that is left out, and why."""
Identity = tuple[int, int]


def walk_files(
    folder: Path, tell: Tell, *, follows_links: bool = False, passes_over: Callable[[str], bool] = lambda _: False
) -> Iterator[Path]:
    """Yield everything below a folder that is no folder, in a fixed order: what lies in it before what lies deeper.

    Args:
        folder: the top. Where it is missing, that is told.
        tell: takes what is left out.
        follows_links: go into folders that links lead to, into each folder once.
        passes_over: takes a name, and says whether it is left out in silence.
    """
    seen = {_identity(folder)}
    above = {_identity(parent) for parent in folder.absolute().resolve().parents} if follows_links else set()
    system = {found[0] for found in map(_identity, SYSTEM_FOLDERS) if found} if follows_links else set()
    waiting, left = [(folder, 0)], MOST_ENTRIES
    while waiting:
        current, depth = waiting.pop()
        try:
            with os.scandir(current) as entries:
                found = sorted(islice(entries, left + 1), key=lambda entry: entry.name)
        except OSError as error:
            tell(current, f"cannot be read: {error.strerror}")
            continue
        if len(found) > left:
            tell(folder, f"holds more than {MOST_ENTRIES:,} files and folders; the rest is left out")
            return
        left -= len(found)
        below = []
        for entry in found:
            path = Path(entry.path)
            if passes_over(entry.name):
                continue
            if not _is_folder(entry, follows_links):
                yield path
            elif depth >= DEEPEST:
                tell(path, f"lies more than {DEEPEST} folders deep; it is left out")
            elif not follows_links or _is_new(path, seen, above, system, tell):
                below.append((path, depth + 1))
        waiting += reversed(below)


def _identity(path: Path | str) -> Identity | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_folder(entry: os.DirEntry[str], follows_links: bool) -> bool:
    try:
        return entry.is_dir(follow_symlinks=follows_links)
    except OSError:
        return False


def _is_new(path: Path, seen: set[Identity | None], above: set[Identity | None], system: set[int], tell: Tell) -> bool:
    """Tell whether a folder, maybe behind a link, is one to go into."""
    own = _identity(path)
    if own is None or own in seen:  # a link that leads back
        return False
    seen.add(own)
    if own in above or own[0] in system:
        tell(path, "leads out to folders of the system, or to one that holds this one; it is left out")
        return False
    return True


def remove_tree(folder: Path, limit_s: float = math.inf) -> bool:
    """Remove a folder with all that is in it, or a file or link of this name; tell whether it is gone.

    Never raises OSError. Links are not followed. Only the folder that is being emptied is open, so depth costs nothing.
    """
    deadline = time.monotonic() + limit_s
    try:
        current = _open_folder(str(folder), None)
    except OSError:  # it is not there, or is a file or a link
        _try(os.unlink, str(folder))
        return not os.path.lexists(folder)
    path = [_Level(current, deadline)]
    try:
        while time.monotonic() < deadline:
            level = path[-1]
            if level.folders:
                below = _try_open(level.folders[-1], current)
                if below is None:
                    level.folders.pop()  # it cannot be removed
                    continue
                os.close(current)
                current = below
                path.append(_Level(current, deadline))
            elif len(path) == 1 or (above := _climb(current, path[-2].identity)) is None:
                break
            else:
                os.close(current)
                current = above
                path.pop()
                _try(os.rmdir, path[-1].folders.pop(), dir_fd=current)
    finally:
        os.close(current)
    _try(os.rmdir, str(folder))
    return not os.path.lexists(folder)


class _Level:
    """An open folder on the way down. Its files are removed before a deadline, the folders in it still have to be."""

    def __init__(self, fd: int, deadline: float) -> None:
        found = os.fstat(fd)
        self.identity = found.st_dev, found.st_ino
        self.folders: list[str] = []
        with suppress(OSError), os.scandir(fd) as entries:
            for count, entry in enumerate(entries, 1):
                if count % LOOK_EVERY == 0 and time.monotonic() >= deadline:
                    return
                if _is_folder(entry, follows_links=False):
                    self.folders.append(entry.name)
                else:
                    _try(os.unlink, entry.name, dir_fd=fd)


def _climb(fd: int, expected: Identity) -> int | None:
    """Open the folder above; None where somebody has moved this one to another place."""
    above = _try_open("..", fd)
    if above is None:
        return None
    found = os.fstat(above)
    if (found.st_dev, found.st_ino) == expected:
        return above
    os.close(above)
    return None


def _try_open(name: str, parent: int) -> int | None:
    try:
        return _open_folder(name, parent)
    except OSError:
        return None


def _try(step: Callable[..., None], *names: str, **places: int) -> bool:
    try:
        step(*names, **places)
    except OSError:
        return False
    return True


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
