"""CPU time that processes have used so far, by the kernel's account. Time spent waiting for a core does not count."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from flashinfer_bench.worker.linux import reaped_cpu_ticks, tree_below
from flashinfer_bench.worker.processor_counter import read_counter

STOPPING_NS: Final = 50_000
"""What an honest worker takes after its answer until it stands still, and when it goes on, does not count: 0 to 50 us
were seen, and now and then more, on two busy cores."""
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


class TreeAccount:
    """The processor time of all that a guard has below it, by a counter that the guard opened before its worker.

    The counter holds processes that have ended, whether or not somebody waited for them. What it counts no further (see
    `worker/processor_counter.py`) is seen as long as it lives.

    Args:
        counter: its descriptor, which this object closes.
        guard_pid: the guard.
    """

    def __init__(self, counter: int, guard_pid: int) -> None:
        self._counter = counter
        self._guard_pid = guard_pid
        self._total_ns = 0
        self._seen = (0, 0)

    def read(self) -> int:
        """Return the nanoseconds so far: since the last look, the larger of what the two accounts have grown by."""
        living = sum(cpu_time_ns(pid) or 0 for pid in tree_below(self._guard_pid))
        now = (read_counter(self._counter) - self._own_ns(), living)
        self._total_ns += max(0, *(new - old for new, old in zip(now, self._seen, strict=True)))
        self._seen = now
        return self._total_ns

    def _own_ns(self) -> int:
        """Return what the guard itself took, which looks at memory and at the table of processes now and then."""
        return cpu_time_ns(self._guard_pid) or 0

    def close(self) -> None:
        """Close the counter."""
        os.close(self._counter)


_ACCOUNTS: Final[dict[int, TreeAccount]] = {}
"""Guard → its account, of the guards that live and sent a counter."""


def keep_account(guard_pid: int, counter: int) -> None:
    """Count the time below a guard by the counter that it sent, until `end_account`."""
    _ACCOUNTS[guard_pid] = TreeAccount(counter, guard_pid)


def end_account(guard_pid: int | None) -> None:
    """Forget a guard that has ended."""
    account = None if guard_pid is None else _ACCOUNTS.pop(guard_pid, None)
    if account is not None:
        account.close()


def tree_cpu_time_ns(guard_pid: int | None) -> int | None:
    """Return the processor time of all processes below a guard, those too that have ended.

    Where the guard sent no counter: a guard adopts what its worker leaves behind, so its account of ended children
    holds all of them that were waited for. The kernel tells that account in ticks, of 10 ms as a rule; that of
    processes that run in nanoseconds.
    """
    if guard_pid is None or sys.platform != "linux":
        return None
    if guard_pid in _ACCOUNTS:
        return _ACCOUNTS[guard_pid].read()
    ended = reaped_cpu_ticks(guard_pid)
    if ended is None:
        return None
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    below = tree_below(guard_pid)
    return ended * tick_ns + sum((cpu_time_ns(pid) or 0) + (reaped_cpu_ticks(pid) or 0) * tick_ns for pid in below)


class BetweenRequests:
    """What a tree takes of the processors while nothing is asked of it. It should stand still then.

    The kernel wakes a stopped process by a signal that nobody sends, a timer's for one. Work that is done so would be
    in no time from a request to its answer, so it is added to that of the next request.

    Args:
        guard_pid: the guard; None where nothing is held still.
    """

    def __init__(self, guard_pid: int | None) -> None:
        self._guard_pid = guard_pid
        self._since = tree_cpu_time_ns(guard_pid)

    def end(self) -> tuple[int | None, int]:
        """Return the processor time so far, and how much of it counts as the request's that begins now."""
        now = tree_cpu_time_ns(self._guard_pid)
        return now, 0 if now is None or self._since is None else max(0, now - self._since - STOPPING_NS)

    def begin(self) -> int | None:
        """Return the processor time so far; a request is over."""
        self._since = tree_cpu_time_ns(self._guard_pid)
        return self._since


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
