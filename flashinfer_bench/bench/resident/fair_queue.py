"""Which open job is next where many submit: the highest priority first, and within it fair turns by cost.

Each submitter has a queue of its own for each priority. The one that has had the least time goes next. One that comes
later, or comes again, starts level with the others and has no claim on the past. So a flood of one submitter waits
behind single jobs of the others. A turn is one solution, or as many of its jobs as fit into `TURN_S`. A device gets no
solution that another device is at, unless there is nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.schedule import Block, Estimate, IsReady

TURN_S: Final = 1.0
"""Seconds of work in a block, by estimate. A job that is urgent waits for at most one block of each device, and a
device is told of that much work ahead, for which it prepares workers."""


class Precedence(NamedTuple):
    """What decides when a job is next."""

    priority: int = 0
    """Higher numbers go first."""
    submitter: str = ""
    """Submitters of one priority get equal shares."""


@dataclass
class SubmitterQueue:
    """The open jobs of one submitter at one priority."""

    used_s: float
    """The seconds that it has had, counted from a start that it shares with the others of its priority."""
    solutions: dict[str, list[Job]] = field(default_factory=dict)
    """Solution's key → its open jobs, in the order in which they came; none is empty."""
    served: int = 0
    """The number of its last turn; of those who had equally much, the one that waits longest goes first."""

    def put_back(self, jobs: Iterable[Job]) -> None:
        """Put jobs in front."""
        grouped: dict[str, list[Job]] = {}
        for job in jobs:
            grouped.setdefault(job.solution_key, []).append(job)
        for key, listed in grouped.items():
            listed += self.solutions.pop(key, [])
        self.solutions = {**grouped, **self.solutions}

    def cut(self, key: str, most: int) -> list[Job]:
        """Take the first jobs of a solution."""
        jobs = self.solutions[key]
        if len(jobs) <= most:
            return self.solutions.pop(key)
        self.solutions[key] = jobs[most:]
        return jobs[:most]


@dataclass
class Hold:
    """A solution that a device is at."""

    device: str
    jobs: int = 0
    """Its jobs that the device has."""


class FairQueue:
    """The open jobs of all submitters; in place of a `BlockQueue` in the loop over the devices.

    Args:
        estimate: seconds that a job takes; it may learn while the queue is in use.
        precedence_of: says what decides when a job is next.
    """

    def __init__(self, estimate: Estimate, precedence_of: Callable[[Job], Precedence]) -> None:
        self._estimate = estimate
        self._precedence_of = precedence_of
        self._queues: dict[Precedence, SubmitterQueue] = {}
        self._remaining = 0
        self._turns = 0
        self._taken: dict[int, tuple[Precedence, str]] = {}
        """Index of a job that a device has → whose queue it comes from, and its solution's key."""
        self._holds: dict[str, Hold] = {}
        """By solution's key."""
        self._level: dict[int, float] = {}
        """Priority → what the submitter had had who was served last: a new one begins with these seconds."""

    @property
    def remaining(self) -> int:
        """Return how many jobs nobody has taken."""
        return self._remaining

    def add(self, jobs: Iterable[Job]) -> None:
        """Take further jobs."""
        for job in jobs:
            whose = self._precedence_of(job)
            level = self._level.get(whose.priority, 0.0)
            queue = self._queues.setdefault(whose, SubmitterQueue(level))
            if not queue.solutions:
                queue.used_s = max(queue.used_s, level)
            queue.solutions.setdefault(job.solution_key, []).append(job)
            self._remaining += 1

    def remove(self, indices: Iterable[int]) -> list[Job]:
        """Take out those of these jobs that nobody has taken, and return them."""
        wanted, removed = set(indices), []
        for queue in self._queues.values() if wanted else ():
            for key, jobs in list(queue.solutions.items()):
                found = [job for job in jobs if job.index in wanted]
                if len(found) == len(jobs):
                    del queue.solutions[key]
                elif found:
                    queue.solutions[key] = [job for job in jobs if job.index not in wanted]
                removed += found
        self._remaining -= len(removed)
        self._tidy()
        return removed

    def has_ready(self, is_ready: IsReady | None) -> bool:
        """Tell whether any open job's solution is built."""
        firsts = (jobs[0] for queue in self._queues.values() for jobs in queue.solutions.values())
        return any(is_ready is None or is_ready(job.solution) for job in firsts)

    def take(
        self, device_count: int, is_ready: IsReady | None = None, device: str = "", *, splits: bool = True
    ) -> Block | None:
        """Take the next block for a device, about `TURN_S` of work of one definition; None when there is none to take.

        Args:
            device_count: how many devices there are.
            is_ready: whether a solution is built; jobs of others are left. None: all are.
            device: the device that asks, by any name that stays the same.
            splits: may take jobs of a solution that another device is at, where there is nothing else.
        """
        if device_count < 1:
            raise ValueError(f"there must be a device to take a block for, not {device_count}")
        jobs = self._take(is_ready, device, shares=False)
        if not jobs and splits:
            jobs = self._take(is_ready, device, shares=True)
        return Block(jobs[0].definition.name, tuple(jobs)) if jobs else None

    def give_back(self, jobs: Iterable[Job]) -> None:
        """Put jobs back in front of their submitter's."""
        grouped: dict[Precedence, list[Job]] = {}
        for job in jobs:
            if job.index not in self._taken:
                raise ValueError(f"job {job.index} was not taken, or was given back already")
            grouped.setdefault(self._let_go(job.index), []).append(job)
        for whose, listed in grouped.items():
            queue = self._queues[whose]
            queue.used_s -= self._cost(listed)
            queue.put_back(listed)
            self._level[whose.priority] = min(self._level[whose.priority], queue.used_s)
            self._remaining += len(listed)

    def forget(self, indices: Iterable[int]) -> None:
        """Forget jobs that were taken and have ended: they are not given back any more."""
        for index in indices:
            if index in self._taken:
                self._let_go(index)
        self._tidy()

    def _take(self, is_ready: IsReady | None, device: str, *, shares: bool) -> list[Job]:
        """Take turns of submitters until there is enough, or the next turn is of another definition."""
        jobs: list[Job] = []
        passed_over: set[Precedence] = set()
        while self._cost(jobs) < TURN_S and (whose := self._next_submitter(passed_over)) is not None:
            definition = jobs[0].definition.name if jobs else None
            is_other = False
            for job in self._list_ready(whose, is_ready, device, shares=shares):
                if definition in (None, job.definition.name):
                    jobs += self._take_turn(whose, job, device)
                    break
                is_other = True
            else:
                if is_other:
                    break
                passed_over.add(whose)
        return jobs

    def _list_ready(self, whose: Precedence, is_ready: IsReady | None, device: str, *, shares: bool) -> Iterator[Job]:
        """Yield the first job of each solution that may be taken."""
        for key, jobs in self._queues[whose].solutions.items():
            hold = self._holds.get(key)
            is_free = shares or hold is None or hold.device == device
            if is_free and (is_ready is None or is_ready(jobs[0].solution)):
                yield jobs[0]

    def _next_submitter(self, passed_over: set[Precedence]) -> Precedence | None:
        waiting = [key for key, queue in self._queues.items() if queue.solutions and key not in passed_over]
        return min(waiting, key=self._rank, default=None)

    def _rank(self, whose: Precedence) -> tuple[float, ...]:
        queue = self._queues[whose]
        return -whose.priority, queue.used_s, queue.served

    def _take_turn(self, whose: Precedence, first: Job, device: str) -> list[Job]:
        """Take a solution, or as many of its jobs as a turn may have."""
        queue = self._queues[whose]
        jobs = queue.cut(first.solution_key, max(1, math.ceil(TURN_S / self._estimate(first))))
        self._remaining -= len(jobs)
        self._taken |= {job.index: (whose, job.solution_key) for job in jobs}
        self._holds.setdefault(first.solution_key, Hold(device)).jobs += len(jobs)
        self._level[whose.priority] = max(self._level.get(whose.priority, 0.0), queue.used_s)
        queue.used_s += self._cost(jobs)
        self._turns += 1
        queue.served = self._turns
        return jobs

    def _let_go(self, index: int) -> Precedence:
        """Take note that no device has a job any more; return whose it is."""
        whose, key = self._taken.pop(index)
        hold = self._holds[key]
        hold.jobs -= 1
        if not hold.jobs:
            del self._holds[key]
        return whose

    def _cost(self, jobs: list[Job]) -> float:
        return sum(map(self._estimate, jobs))

    def _tidy(self) -> None:
        """Drop the queues of those who have no job, and would begin level with the others if they came again."""
        idle = [key for key, queue in self._queues.items() if not queue.solutions]
        if not idle:
            return
        busy = {whose for whose, _ in self._taken.values()}
        waiting = {key.priority for key, queue in self._queues.items() if queue.solutions}
        for key in idle:
            level = self._level.get(key.priority, 0.0)
            if key not in busy and (key.priority not in waiting or self._queues[key].used_s <= level):
                del self._queues[key]
