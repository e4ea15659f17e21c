"""Deals jobs out to devices in blocks of whole solutions, so that few workers are made and all devices stay busy.

A solution's jobs share a worker, and a worker costs up to a second to start. So a device gets all jobs of a solution,
the costliest solution first; it stays with its definition, whose baselines it has. A solution is split only where there
are fewer solutions left than devices. Blocks shrink as the work runs out. A device that is alone takes solutions that
compile for minutes at their first call last of all. Who runs a block, and where, is the runner's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from flashinfer_bench.bench.planning.first_call import FirstCall, look_at_first_call
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.data.solution import Solution

BLOCKS_PER_DEVICE: Final = 2
"""A block of several solutions is at most the remaining work, divided by the devices and by this. So all devices end at
about the same time."""
MOST_JOBS: Final = 4096
"""Most jobs in a block of several solutions: its order is one message."""
IsReady = Callable[[Solution], bool]
Estimate = Callable[[Job], float]
"""Tells about how many seconds a job takes, or any number in proportion to it; alike for all jobs of a solution."""


@dataclass(frozen=True)
class Block:
    """Jobs of one definition for one device. All workloads of a solution stand together, since they share a worker."""

    definition: str
    jobs: tuple[Job, ...]


@dataclass
class _Open:
    """The jobs of one solution that nobody has taken."""

    solution: Solution
    jobs: list[Job] = field(default_factory=list)
    first_call: FirstCall = FirstCall.NOTHING
    """Where it compiles for minutes, others could have their verdicts meanwhile."""
    parts: int = 0
    """In how many parts it is dealt out from here on; 0 while nobody has looked."""

    @property
    def key(self) -> str:
        """Its solution's key."""
        return self.jobs[0].solution_key

    def cost(self, estimate: Estimate) -> float:
        """Return what its jobs cost together."""
        return len(self.jobs) * estimate(self.jobs[0])


class BlockQueue:
    """The jobs that are still to be dealt out.

    Args:
        jobs: all of them.
        estimate: what a job costs; it may learn while the queue is in use. None: all cost the same.
    """

    def __init__(self, jobs: Iterable[Job], estimate: Estimate | None = None) -> None:
        self._estimate = estimate or _alike
        self._taken: set[int] = set()
        self._open: dict[str, dict[str, _Open]] = {}
        """Definition → solution's key → its open jobs; none of them is empty."""
        self._last: dict[str, tuple[str, str]] = {}
        """Device → definition and solution's key of the last job that it took."""
        self._first: list[Job] = []
        """Jobs of lost devices: they go before all others."""
        self._remaining = 0
        self.add(jobs)

    @property
    def remaining(self) -> int:
        """Return how many jobs nobody has taken."""
        return self._remaining

    def has_ready(self, is_ready: IsReady | None) -> bool:
        """Tell whether any open job's solution is built."""
        waiting = (one for solutions in self._open.values() for one in solutions.values())
        return any(is_ready is None or is_ready(one.solution) for one in waiting)

    def take(
        self, device_count: int, is_ready: IsReady | None = None, device: str = "", *, splits: bool = True
    ) -> Block | None:
        """Take the next block for one of `device_count` devices that share the work; None when there is none to take.

        Args:
            device_count: how many devices there are.
            is_ready: whether a solution is built; jobs of others are left. None: all are.
            device: the device that asks, by any name that stays the same.
            splits: may take a part of a solution. A device that has work and asks ahead gets nothing where a solution
                would have to be split.
        """
        if device_count < 1:
            raise ValueError(f"there must be a device to take a block for, not {device_count}")
        ready = {
            definition: waiting
            for definition, solutions in self._open.items()
            if (waiting := [one for one in solutions.values() if is_ready is None or is_ready(one.solution)])
        }
        if not ready:
            return None
        left = sum(one.cost(self._estimate) for waiting in ready.values() for one in waiting)
        if device_count == 1:  # of several devices one would be left with those that compile long
            ready = _without_long(ready)
        definition = self._choose_definition(ready, device_count, device)
        jobs = self._choose_jobs(ready[definition], left, device_count, device, splits=splits)
        if not jobs:
            return None
        self._remove(definition, jobs)
        self._taken.update(job.index for job in jobs)
        self._last[device] = definition, jobs[-1].solution_key
        return Block(definition, _by_solution(jobs))

    def give_back(self, jobs: Iterable[Job]) -> None:
        """Put the unfinished jobs of a lost device in front of all others that may run now."""
        returned = list(jobs)
        for job in returned:
            if job.index not in self._taken:
                raise ValueError(f"job {job.index} was not taken, or was given back already")
            self._taken.remove(job.index)
        self._first = [*returned, *self._first]
        self.add(returned)

    def add(self, jobs: Iterable[Job]) -> None:
        """Take further jobs."""
        for job in jobs:
            solutions = self._open.setdefault(job.definition.name, {})
            if job.solution_key not in solutions:
                solutions[job.solution_key] = _Open(job.solution, first_call=find_first_call(job.solution))
            solutions[job.solution_key].jobs.append(job)
            solutions[job.solution_key].parts = 0  # it is looked at anew
            self._remaining += 1

    def remove(self, indices: Iterable[int]) -> list[Job]:
        """Take out those of these jobs that nobody has taken, and return them."""
        wanted = set(indices)
        found = [
            job
            for solutions in self._open.values()
            for one in solutions.values()
            for job in one.jobs
            if job.index in wanted
        ]
        for definition in {job.definition.name for job in found}:
            self._remove(definition, [job for job in found if job.definition.name == definition])
        return found

    def forget(self, indices: Iterable[int]) -> None:
        """Forget jobs that were taken and have ended: they are not given back any more."""
        self._taken.difference_update(indices)

    def _remove(self, definition: str, jobs: list[Job]) -> None:
        indices = {job.index for job in jobs}
        solutions = self._open[definition]
        for key in {job.solution_key for job in jobs}:
            solutions[key].jobs = [job for job in solutions[key].jobs if job.index not in indices]
            if not solutions[key].jobs:
                del solutions[key]
        if not solutions:
            del self._open[definition]
        self._first = [job for job in self._first if job.index not in indices]
        self._remaining -= len(jobs)

    def _choose_definition(self, ready: dict[str, list[_Open]], device_count: int, device: str) -> str:
        """Return where a device works next: jobs given back, then where it is, then where most is left for a device."""
        for job in self._first:
            if any(one.key == job.solution_key for one in ready.get(job.definition.name, [])):
                return job.definition.name
        definition = self._last.get(device, ("", ""))[0]
        if definition in ready:
            return definition
        if device_count == 1:
            return next(iter(ready))
        there = Counter(last[0] for other, last in self._last.items() if other != device)
        return max(ready, key=lambda name: sum(one.cost(self._estimate) for one in ready[name]) / (1 + there[name]))

    def _choose_jobs(
        self, waiting: list[_Open], left: float, device_count: int, device: str, *, splits: bool
    ) -> list[Job]:
        """Return the jobs of a block; none where a solution would have to be split that must not be.

        Args:
            waiting: the built solutions of a definition.
            left: what all built solutions cost.
            device_count, device, splits: see `take`.
        """
        costs = {id(one): one.cost(self._estimate) for one in waiting}
        first = {job.solution_key for job in self._first}
        last = self._last.get(device, ("", ""))[1]

        def rank(one: _Open) -> tuple[float, ...]:
            is_same = device_count > 1 and last == one.key
            cost = costs[id(one)] if device_count > 1 else 0.0
            return one.key not in first, not is_same, -cost, min(job.index for job in one.jobs)

        order = sorted(waiting, key=rank)
        chosen = order[0]
        parts = chosen.parts or math.ceil(round(costs[id(chosen)] * device_count / left, 3))
        if parts > 1 and not splits:
            return []
        chosen.parts = parts
        if chosen.parts > 1:
            chosen.parts -= 1
            return chosen.jobs[: math.ceil(len(chosen.jobs) / (chosen.parts + 1))]
        jobs, cost = list(chosen.jobs), costs[id(chosen)]
        most = math.inf if device_count == 1 else left / (BLOCKS_PER_DEVICE * device_count)
        for one in order[1:]:
            cost += costs[id(one)]
            if cost > most or len(jobs) + len(one.jobs) > MOST_JOBS:
                break
            jobs += one.jobs
        return jobs


def _without_long(ready: dict[str, list[_Open]]) -> dict[str, list[_Open]]:
    """Return the solutions without those that compile for minutes; where no others are left, all."""
    others = {name: [one for one in waiting if not one.first_call.is_long] for name, waiting in ready.items()}
    return {name: waiting for name, waiting in others.items() if waiting} or ready


def find_first_call(solution: Solution) -> FirstCall:
    """Return what a solution compiles at its first call, by its language and its texts."""
    return look_at_first_call(solution.spec.language, (source.content for source in solution.sources))


def _alike(_job: Job) -> float:
    return 1.0


def _by_solution(jobs: Iterable[Job]) -> tuple[Job, ...]:
    """Return jobs with those of a solution together, the solutions in the order in which they were chosen."""
    grouped: dict[str, list[Job]] = {}
    for job in jobs:
        grouped.setdefault(job.solution_key, []).append(job)
    return tuple(job for group in grouped.values() for job in sorted(group, key=lambda job: job.index))
