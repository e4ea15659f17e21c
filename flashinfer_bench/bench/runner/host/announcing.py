"""Tells sessions of solutions whose first call compiles modules for minutes, long before these have their turn.

Each solution is announced to one session, which compiles it beside its measurements. Whichever device runs it then
finds it compiled, since what is compiled lies in a folder of the solution's own. Where that session is lost, the first
call compiles, as without an announcement.
"""

from __future__ import annotations

import math
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
MOST_WORKLOADS: Final = 8
"""Workloads that are told of a solution, at the most: others hardly need another module."""


class Announcer:
    """Deals such solutions out to sessions.

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
                if find_first_call(job.solution) is FirstCall.MODULES:
                    self._waiting[key] = []
            if key in self._waiting:
                self._waiting[key].append(job)

    def take(self, device_count: int) -> list[Announced]:
        """Return one device's share of what is built and was announced to nobody."""
        ready = [key for key, jobs in self._waiting.items() if self._farm.is_ready(jobs[0].solution)]
        share = ready[: min(MOST_AT_ONCE, math.ceil(len(ready) / device_count))]
        return [self._announce(self._waiting.pop(key)) for key in share]

    def _announce(self, jobs: list[Job]) -> Announced:
        return Announced(
            solution=describe_solution(self._farm.built(jobs[0].solution)),
            definition=jobs[0].definition.model_dump(mode="json"),
            workloads=[job.workload.model_dump(mode="json") for job in jobs[:MOST_WORKLOADS]],
        )
