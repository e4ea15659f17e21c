"""Holds a worker and all that it started still, while the session asks nothing of it.

A thread of a solution could otherwise see the inputs of a row of calls as the session writes them, and have the results
ready when the first of the calls is due; or go on computing after the answer, until the session looks at the outputs.
Such work would be done outside every reading and every burst.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Final

from flashinfer_bench.worker.linux import tree_below

MOST_ROUNDS: Final = 8
"""Look for processes that were started meanwhile at most this many times."""


class Stillness:
    """Stops what is below a guard, and lets it go on. The guard itself always goes on.

    Args:
        guard_pid: the guard.
        worker_pid: the worker below it.
    """

    def __init__(self, guard_pid: int, worker_pid: int) -> None:
        self._guard_pid = guard_pid
        self._known = [worker_pid]

    def rest(self) -> None:
        """Stop at once what is known to be there: it takes a microsecond or two."""
        for pid in self._known:
            _signal(pid, signal.SIGSTOP)

    def rest_all(self) -> None:
        """Stop every process below the guard, those too that were started meanwhile; they are known from now on."""
        known: list[int] = []
        for _ in range(MOST_ROUNDS):
            found = [pid for pid in tree_below(self._guard_pid) if pid not in known]
            if not found:
                break
            known += found
            for pid in known:  # the earlier ones again: one that ran until now may have woken them
                _signal(pid, signal.SIGSTOP)
        self._known = known

    def wake(self) -> None:
        """Let all of them go on."""
        for pid in self._known:
            _signal(pid, signal.SIGCONT)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
