"""Jobs that are dealt out in the order in which they were given; in place of a `BlockQueue` in the loop over devices.

For whoever measures in turns: solutions that are compared, and solutions that are timed in several workers.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import Final

from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.schedule import Block, IsReady

MOST_JOBS: Final = 16
"""Most jobs in a block. A device prepares workers for the block that runs and for the next one."""


class GivenOrder:
    """The open jobs, the next one first."""

    def __init__(self) -> None:
        self._waiting: list[Job] = []

    @property
    def remaining(self) -> int:
        """Return how many jobs nobody has taken."""
        return len(self._waiting)

    def add(self, jobs: Iterable[Job]) -> None:
        """Take further jobs, behind the others."""
        self._waiting += jobs

    def remove(self, indices: Iterable[int]) -> list[Job]:
        """Take out those of these jobs that nobody has taken, and return them."""
        wanted = set(indices)
        removed = [job for job in self._waiting if job.index in wanted]
        self._waiting = [job for job in self._waiting if job.index not in wanted]
        return removed

    def has_ready(self, is_ready: IsReady | None) -> bool:
        """Tell whether any open job's solution is built."""
        return any(is_ready is None or is_ready(job.solution) for job in self._waiting)

    def take(
        self, _device_count: int, is_ready: IsReady | None = None, _device: str = "", *, splits: bool = True
    ) -> Block | None:
        """Take the next jobs that are of one definition and built; None where the first one is not built yet."""
        del splits  # nothing is kept together
        if not self._waiting:
            return None
        definition = self._waiting[0].definition.name
        ready = takewhile(
            lambda job: job.definition.name == definition and (is_ready is None or is_ready(job.solution)),
            self._waiting[:MOST_JOBS],
        )
        jobs = tuple(ready)
        if not jobs:
            return None
        del self._waiting[: len(jobs)]
        return Block(definition, jobs)

    def give_back(self, jobs: Iterable[Job]) -> None:
        """Put jobs back in front that were taken."""
        self._waiting = [*jobs, *self._waiting]

    def forget(self, indices: Iterable[int]) -> None:
        """Do nothing: nothing is kept of jobs that were taken."""
