"""Tells a session of solutions whose first call compiles modules for minutes, long before these have their turn.

It compiles them beside its measurements. That is for runs on one device: with several, one session would compile, or
find a lock of another's, while another times a reference.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from flashinfer_bench.bench.planning.first_call import FirstCall
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.host.block_orders import describe_solution
from flashinfer_bench.bench.runner.places import Builds
from flashinfer_bench.bench.runner.protocol import Announced
from flashinfer_bench.bench.schedule import find_first_call

MOST_AT_ONCE: Final = 16
"""Solutions that are announced with one block, at the most."""
LONGEST_TEXT: Final = 1 << 20
"""A solution with more characters is not announced, so that no block becomes too large a message by others."""
MOST_WORKLOADS: Final = 8
"""Workloads that are told of a solution, at the most: others hardly need another module."""


class Announcer:
    """Knows the solutions of a run that are to be announced.

    Args:
        farm: has built the solutions.
    """

    def __init__(self, farm: Builds) -> None:
        self._farm = farm
        self._met: set[str] = set()
        self._waiting: dict[str, list[Job]] = {}
        """Solution's key → its jobs, in the order of the plan."""

    def add(self, jobs: Iterable[Job]) -> None:
        """Look at further jobs."""
        for job in jobs:
            key = job.solution_key
            if key not in self._met:
                self._met.add(key)
                size = sum(len(source.content) for source in job.solution.sources)
                if size <= LONGEST_TEXT and find_first_call(job.solution) is FirstCall.MODULES:
                    self._waiting[key] = []
            if key in self._waiting:
                self._waiting[key].append(job)

    def take(self) -> list[Announced]:
        """Return what is built and was not announced yet, some of it."""
        ready = [key for key, jobs in self._waiting.items() if self._farm.is_ready(jobs[0].solution)]
        return [self._announce(self._waiting.pop(key)) for key in ready[:MOST_AT_ONCE]]

    def _announce(self, jobs: list[Job]) -> Announced:
        return Announced(
            solution=describe_solution(self._farm.built(jobs[0].solution)),
            definition=jobs[0].definition.model_dump(mode="json"),
            workloads=[job.workload.model_dump(mode="json") for job in jobs[:MOST_WORKLOADS]],
        )
