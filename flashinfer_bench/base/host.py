"""What this process may use of its machine: cores and memory, by its affinity and by the limits of its container.

And a pause for its garbage collector.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SYSTEM: Final = Path("/")
CORES_SHARE: Final = 4
"""Work beside measurements gets this machine's cores divided by this."""


def usable_cores(root: Path = SYSTEM) -> int:
    """Return how many cores this process may use, at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [_read_quota(folder / "cpu.max") for folder in _groups(root)]
    return max(1, min([cores, *(int(quota) for quota in quotas if quota is not None)]))


def spare_cores() -> list[int]:
    """Return the cores that work beside measurements may use: the last ones, a quarter of them; of few cores none."""
    cores = usable_cores()
    return sorted(os.sched_getaffinity(0))[-(cores // CORES_SHARE) :] if cores >= CORES_SHARE else []


def cores_for_compilers() -> list[int]:
    """Return the cores that compilers which take minutes may use beside measurements: all but a quarter."""
    cores = usable_cores()
    return sorted(os.sched_getaffinity(0))[-(cores - cores // CORES_SHARE) :]


def usable_memory(root: Path = SYSTEM) -> int:
    """Return how many bytes of memory this process may use, whether or not they are free now."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    names = ("memory.max", "memory.limit_in_bytes")
    limits = [_read_number(folder / name) for folder in _groups(root) for name in names]
    return min([physical, *(limit for limit in limits if limit is not None)])


def count_memory_kills(root: Path = SYSTEM) -> int:
    """Return how many processes the kernel has killed for want of memory since it started; 0 if it does not say."""
    try:
        words = (root / "proc/vmstat").read_text(encoding="ascii").split()
    except OSError:
        return 0
    return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0


@contextmanager
def collector_paused() -> Iterator[None]:
    """Stop the garbage collector for a step that makes many objects and no cycles of them.

    It would walk all objects again and again: that may triple the time of the step.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _groups(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's control groups and of those around them (cgroups(7), both versions)."""
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


def _read_number(file: Path) -> int | None:
    """Return the number in a file; None where there is none: no such file, or "max"."""
    try:
        return int(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _read_quota(file: Path) -> float | None:
    """Return a quota of CPU time in cores; None where there is none."""
    try:
        quota, period = file.read_text(encoding="utf-8").split()
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
