"""Counts the cores and the memory of this process, by its affinity and by the limits of its container. Also counts the
processes that the kernel killed because memory ran out.

`collector_paused` pauses the garbage collector.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final

SYSTEM: Final = Path("/")
CORES_SHARE: Final = 4
"""One of every CORES_SHARE cores is for work alongside measurements."""


def usable_cores(root: Path = SYSTEM) -> int:
    """Return the number of cores that this process may use, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [int(quota) // int(period) for quota, period in _read_limits(root, "cpu.max")]
    return max(1, min([cores, *quotas]))


def spare_cores() -> list[int]:
    """Return the cores for work alongside measurements: the last quarter; none if the process has fewer than
    CORES_SHARE."""
    cores = usable_cores()
    return sorted(os.sched_getaffinity(0))[-(cores // CORES_SHARE) :] if cores >= CORES_SHARE else []


def cores_for_compilers() -> list[int]:
    """Return the cores for long compilations alongside measurements: the last three quarters; all if the process has
    fewer than CORES_SHARE."""
    cores = usable_cores()
    return sorted(os.sched_getaffinity(0))[-(cores - cores // CORES_SHARE) :]


def usable_memory(root: Path = SYSTEM) -> int:
    """Return the bytes of memory that this process may use, free or not."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [int(limit) for limit, *_ in _read_limits(root, "memory.max", "memory.limit_in_bytes")]
    return min([physical, *limits])


def count_memory_kills(root: Path = SYSTEM) -> int:
    """Return the number of processes that the kernel killed because memory ran out. Only the growth of this number has
    a meaning."""
    with suppress(OSError):
        result = re.search(r"^oom_kill (\d+)$", (root / "proc/vmstat").read_text(encoding="utf-8"), re.MULTILINE)
        return int(result[1]) if result else 0
    return 0


@contextmanager
def collector_paused() -> Iterator[None]:
    """Stop the garbage collector for a step that makes many objects and no reference cycles.

    The collector would walk all objects again and again, which may triple the duration of a step.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _groups(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's control groups and of their parents (cgroups(7), both versions)."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    mounted = root / "sys/fs/cgroup"
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        top = mounted / controllers if controllers else mounted
        group = Path(path.lstrip("/"))
        for part in (group, *group.parents):
            yield top / part


@cache
def _read_limits(root: Path, *names: str) -> list[list[str]]:
    """Return the words of each control-group file with one of these names that sets a limit. A process reads the files
    once."""
    return list(_find_limits(root, names))


def _find_limits(root: Path, names: Iterable[str]) -> Iterator[list[str]]:
    for folder in _groups(root):
        for name in names:
            with suppress(OSError):
                words = (folder / name).read_text(encoding="utf-8").split()
                if words and words[0].isdigit():
                    yield words
