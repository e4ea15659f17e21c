"""Holds a worker and all that it started still, while the session writes the inputs of calls into their shared memory.

A thread of the solution could otherwise see the inputs of a row of calls as they come, and have the results ready when
the first of the calls is due: that work would be done outside every reading and every burst.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from flashinfer_bench.worker.linux import tree_below

MOST_ROUNDS: Final = 8
"""Look for processes that were started meanwhile at most this many times."""


@contextmanager
def held_still(guard_pid: int | None) -> Iterator[None]:
    """Stop everything below a guard, and let it go on at the end. The guard itself goes on."""
    stopped = stop_below(guard_pid) if guard_pid is not None and sys.platform == "linux" else []
    try:
        yield
    finally:
        for pid in stopped:
            _signal(pid, signal.SIGCONT)


def stop_below(guard_pid: int) -> list[int]:
    """Stop every process below a guard, those too that are started meanwhile; return them."""
    stopped: list[int] = []
    for _ in range(MOST_ROUNDS):
        found = [pid for pid in tree_below(guard_pid) if pid not in stopped]
        if not found:
            break
        stopped += found
        for pid in stopped:  # the earlier ones again: one that ran until now may have woken them
            _signal(pid, signal.SIGSTOP)
    return stopped


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
