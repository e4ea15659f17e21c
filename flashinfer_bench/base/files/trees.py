"""Walks and removes folder trees that another user may have made: thousands deep, or with links in circles.

A walk has limits and reports what it skips. A removal has a time limit and no other limit. This module imports no other
module of the package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

DEEPEST: Final = 32
"""Maximum depth of a walk, in folders; deeper files are skipped."""
MOST_ENTRIES: Final = 1_000_000
"""Maximum number of files and folders of a walk; further entries are skipped."""
FEW_ENTRIES: Final = 64
"""Maximum number of files and folders of a small tree."""
SYSTEM_FOLDERS: Final = ("/proc", "/sys", "/dev")
"""A walk that follows links skips these folders, which may have no end."""

Tell = Callable[[Path, str], None]
"""Takes a skipped path, and the reason."""


def walk_files(
    folder: Path, tell: Tell, *, follows_links: bool = False, passes_over: Callable[[str], bool] = lambda _: False
) -> Iterator[Path]:
    """Yield every path below a folder, except paths of folders, in a fixed order. The files of a folder come before its
    subfolders.

    Args:
        folder: the top. A missing folder is reported.
        tell: takes the skipped paths.
        follows_links: walk linked folders, too; each folder is walked once.
        passes_over: takes a name; returns whether paths of this name are skipped without a report.
    """
    seen = {_identity(folder)}
    above = {_identity(parent) for parent in folder.absolute().resolve().parents}
    system = {result[0] for result in map(_identity, map(Path, SYSTEM_FOLDERS)) if result}

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


def _identity(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        result = path.stat()
        return result.st_dev, result.st_ino
    return None


def remove_tree(folder: Path, limit_s: float | None = None) -> bool:
    """Remove the folder with all its content, or the file or link at this path. Return whether the path is then free.

    Never raises OSError. Links are not followed. A tree that Python cannot remove is left to rm(1). If rm fails,
    chmod(1) gives the owner every right, and rm tries again. Depth and length of a path do not matter, since rm goes
    down by descriptors.

    Args:
        limit_s: seconds for each run of rm or chmod; None for no limit. With a limit, Python removes only small trees.
            Starting rm from a large process takes longer than removing a hundred files.
    """
    with suppress(OSError):
        folder.unlink()
    if limit_s is None or _has_few(folder):
        with suppress(OSError, RecursionError):
            shutil.rmtree(folder)
    for command in (("rm", "-rf"), ("chmod", "-R", "u+rwx"), ("rm", "-rf")):
        if os.path.lexists(folder):
            with suppress(OSError, subprocess.TimeoutExpired):
                quiet = subprocess.DEVNULL
                subprocess.run((*command, "--", folder), stdout=quiet, stderr=quiet, timeout=limit_s, check=False)
    return not os.path.lexists(folder)


def _has_few(folder: Path) -> bool:
    """Return whether a folder has at most FEW_ENTRIES files and folders, at all depths. Stop reading when there are
    more."""
    left, result = [os.fspath(folder)], 0
    with suppress(OSError):
        while left and result <= FEW_ENTRIES:
            with os.scandir(left.pop()) as entries:
                below = list(islice(entries, FEW_ENTRIES + 1))
            result += len(below)
            left += [entry.path for entry in below if entry.is_dir(follow_symlinks=False)]
        return result <= FEW_ENTRIES
    return False
