"""Decides whether workers that root starts can have their own users, and which users. Files are only read here.

The user has no name and no other process. Its number is derived from the solution's digest. So a solution keeps its
folder of run-time compilation from run to run.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from flashinfer_bench.sandbox.confine import drop_capabilities
from flashinfer_bench.sandbox.process_tree import in_child

PACKAGE: Final = Path(__file__).parents[1]
FIRST_USER, USERS = 1_300_000_000, 1 << 24
"""First number and count of workers' users. They are far from named users and from the ranges of containers."""
FIRST_SMALL_USER, SMALL_USERS = 40_000, 20_000
"""First number and count for a process whose user namespace has only 65,536 users."""
OLD_WHOLE_MAP: Final = 1 << 31
NEEDED: Final = {"CHOWN": 0, "KILL": 5, "SETGID": 6, "SETUID": 7}
"""Capabilities that root needs to start and end another user's process, and to clean up after it. A container may lack
some."""


def find_own_user(cache_root: Path) -> str | None:
    """Return why root cannot give its workers their own user; None if it can."""
    lacking = [name for name, number in NEEDED.items() if not _held_rights() >> number & 1]
    problem = f"root lacks CAP_{' and CAP_'.join(lacking)} here" if lacking else None
    devices = [*Path("/dev").glob("nvidia[0-9]*"), *Path("/dev").glob("nvidiactl")]
    for path in (*environment_files(), *devices, Path(tempfile.gettempdir())):
        barrier = find_barrier(path)
        if barrier is not None:
            problem = problem or f"other users cannot read {barrier}"
    above = (cache_root.absolute(), *cache_root.absolute().parents)
    barrier = find_barrier(next(path for path in above if path.exists()), enters_only=True)
    if barrier is not None:
        problem = problem or f"other users cannot enter {barrier}; set FIB_CACHE_PATH to a folder that they can"
    return problem and f"workers stay root, without its rights: {problem}"


def choose_user(digest: str) -> int:
    """Return the number of the user and group for a solution's workers."""
    first, count = (FIRST_USER, USERS) if _sees_all_users() else (FIRST_SMALL_USER, SMALL_USERS)
    number = first + int(digest[:12], 16) % count
    while _has_name(number):
        number += 1
    return number


def environment_files() -> Iterator[Path]:
    """Yield files of the environment that every worker must be able to read."""
    yield Path(os.path.realpath(sys.executable))
    yield from (Path(sys.prefix), Path(sys.base_prefix), PACKAGE, PACKAGE / "__init__.py")
    yield Path(os.__file__)
    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.origin:
        yield Path(torch.origin)


def find_barrier(path: Path, *, enters_only: bool = False) -> Path | None:
    """Return the first part of a path that other users cannot access; None if they can access the path.

    Args:
        path: an existing path.
        enters_only: if the path is a folder, it is enough that other users can enter it, without listing it.
    """
    for folder in reversed(path.absolute().parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            return folder
    mode = path.stat().st_mode
    needed = stat.S_IROTH
    if stat.S_ISDIR(mode):
        needed = stat.S_IXOTH if enters_only else stat.S_IXOTH | stat.S_IROTH
    if stat.S_ISCHR(mode):
        needed |= stat.S_IWOTH
    return path if mode & needed != needed else None


def reads_without_rights() -> bool:
    """Return whether root can read the environment without capabilities: as its owner, or as any user can."""
    files = list(environment_files())
    return in_child(lambda: drop_capabilities(kept=None) and all(os.access(path, os.R_OK) for path in files))


def _held_rights() -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.partition("CapEff:")[2].split(None, 1)[0], 16)


def _sees_all_users() -> bool:
    table = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return any(int(count) >= OLD_WHOLE_MAP for _, _, count in table)


def _has_name(number: int) -> bool:
    try:
        pwd.getpwuid(number)
    except KeyError:
        return False
    return True
