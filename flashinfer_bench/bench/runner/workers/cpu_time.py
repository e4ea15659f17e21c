"""CPU time that processes have used so far, by the kernel's account. Time spent waiting for a core does not count."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from flashinfer_bench.worker.linux import reaped_cpu_ticks, tree_below

ALL_THREADS: Final = 2
"""CPUCLOCK_SCHED of Linux. The id of a process's clock is ~pid shifted left by three bits, plus this."""


def cpu_time_ns(pid: int | None) -> int | None:
    """Return the processor time of all threads of another process; None where the system does not tell."""
    if pid is None or sys.platform != "linux":
        return None
    try:
        return time.clock_gettime_ns((~pid << 3) | ALL_THREADS)
    except OSError:
        return None


def tree_cpu_time_ns(guard_pid: int | None) -> int | None:
    """Return the processor time of all processes below a guard, those too that have ended.

    A guard adopts what its worker leaves behind, so its account of ended children holds all of them. The kernel tells
    that account in ticks, of 10 ms as a rule; that of processes that run in nanoseconds.
    """
    if guard_pid is None or sys.platform != "linux":
        return None
    ended = reaped_cpu_ticks(guard_pid)
    if ended is None:
        return None
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    below = tree_below(guard_pid)
    return ended * tick_ns + sum((cpu_time_ns(pid) or 0) + (reaped_cpu_ticks(pid) or 0) * tick_ns for pid in below)


def tree_waiting_ns(guard_pid: int | None) -> int:
    """Return how long the threads below a guard were ready to run and had no processor; 0 where nobody tells."""
    if guard_pid is None or sys.platform != "linux":
        return 0
    waited = 0
    for pid in tree_below(guard_pid):
        with suppress(OSError, ValueError, IndexError):  # a process that has ended
            for task in os.scandir(f"/proc/{pid}/task"):
                waited += int(Path(task.path, "schedstat").read_text().split()[1])
    return waited
