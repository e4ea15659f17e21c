"""Which open job is next where many submit: the highest priority first, and within it fair turns by cost.

Each submitter has a queue of its own for each priority. The one that has had the least time goes next. One that comes
later, or comes again, starts level with the others and has no claim on the past. So a flood of one submitter waits
behind single jobs of the others. A turn is one solution, or as many of its jobs as fit into `TURN_S`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.schedule import Block, BlockQueue, Estimate, IsReady
from flashinfer_bench.data import Solution

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

    jobs: BlockQueue
    used_s: float
    """The seconds that it has had, counted from a start that it shares with the others of its priority."""


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
        self._taken: dict[int, Precedence] = {}
        """Index of a job that a device has → whose queue it comes from."""
        self._level: dict[int, float] = {}
        """Priority → what the submitter had had who was served last: a new one begins with these seconds."""

    @property
    def remaining(self) -> int:
        """Return how many jobs nobody has taken."""
        return sum(queue.jobs.remaining for queue in self._queues.values())

    def add(self, jobs: Iterable[Job]) -> None:
        """Take further jobs."""
        grouped: dict[Precedence, list[Job]] = {}
        for job in jobs:
            grouped.setdefault(self._precedence_of(job), []).append(job)
        for key, listed in grouped.items():
            level = self._level.get(key.priority, 0.0)
            queue = self._queues.setdefault(key, SubmitterQueue(BlockQueue((), self._estimate, most_cost=0.0), level))
            if not queue.jobs.remaining:
                queue.used_s = max(queue.used_s, level)
            queue.jobs.add(listed)

    def remove(self, indices: Iterable[int]) -> list[Job]:
        """Take out those of these jobs that nobody has taken, and return them."""
        wanted = set(indices)
        removed = [job for queue in self._queues.values() for job in queue.jobs.remove(wanted)] if wanted else []
        self._drop_idle()
        return removed

    def has_ready(self, is_ready: IsReady | None) -> bool:
        """Tell whether any open job's solution is built."""
        return any(queue.jobs.has_ready(is_ready) for queue in self._queues.values())

    def take(
        self, device_count: int, is_ready: IsReady | None = None, device: str = "", *, splits: bool = True
    ) -> Block | None:
        """Take the next block for a device; see `BlockQueue.take`. All its jobs are of one definition."""
        jobs: list[Job] = []
        cost_s = 0.0
        passed_over: set[Precedence] = set()
        few = sum(queue.jobs.open_solutions for queue in self._queues.values()) < device_count
        while cost_s < TURN_S and (key := self._next_submitter(passed_over)) is not None:
            queue = self._queues[key].jobs
            fits = partial(_fits, jobs[0].definition.name if jobs else None, is_ready)
            block = queue.take(device_count if few else 1, fits, device, splits=splits)
            if block is None:
                if jobs and queue.has_ready(is_ready):
                    break  # it is this submitter's turn, with work of another definition
                passed_over.add(key)
                continue
            part = self._cut(queue, block)
            self._charge(key, part)
            cost_s += self._cost(part)
            jobs += part
        return Block(jobs[0].definition.name, _together(jobs)) if jobs else None

    def give_back(self, jobs: Iterable[Job]) -> None:
        """Put jobs back in front of their submitter's."""
        grouped: dict[Precedence, list[Job]] = {}
        for job in jobs:
            if job.index not in self._taken:
                raise ValueError(f"job {job.index} was not taken, or was given back already")
            grouped.setdefault(self._taken.pop(job.index), []).append(job)
        for key, listed in grouped.items():
            self._queues[key].used_s -= self._cost(listed)
            self._queues[key].jobs.give_back(listed)

    def forget(self, indices: Iterable[int]) -> None:
        """Forget jobs that were taken and have ended: they are not given back any more."""
        for index in indices:
            key = self._taken.pop(index, None)
            if key is not None:
                self._queues[key].jobs.forget([index])
        self._drop_idle()

    def _next_submitter(self, passed_over: set[Precedence]) -> Precedence | None:
        waiting = [key for key, queue in self._queues.items() if queue.jobs.remaining and key not in passed_over]
        return min(waiting, key=lambda key: (-key.priority, self._queues[key].used_s), default=None)

    def _cut(self, queue: BlockQueue, block: Block) -> list[Job]:
        """Return as many jobs of a solution as a turn may have; the others go back."""
        most = max(1, math.ceil(TURN_S / self._estimate(block.jobs[0])))
        if len(block.jobs) > most:
            queue.give_back(block.jobs[most:])
        return list(block.jobs[:most])

    def _charge(self, key: Precedence, jobs: list[Job]) -> None:
        queue = self._queues[key]
        self._taken |= {job.index: key for job in jobs}
        self._level[key.priority] = max(self._level.get(key.priority, 0.0), queue.used_s)
        queue.used_s += self._cost(jobs)

    def _cost(self, jobs: list[Job]) -> float:
        return sum(map(self._estimate, jobs))

    def _drop_idle(self) -> None:
        """Drop the queues of those who have no job, and would begin level with the others if they came again."""
        busy = set(self._taken.values())
        waiting = {key.priority for key, queue in self._queues.items() if queue.jobs.remaining}
        for key in [key for key, queue in self._queues.items() if not queue.jobs.remaining and key not in busy]:
            if key.priority not in waiting or self._queues[key].used_s <= self._level.get(key.priority, 0.0):
                del self._queues[key]


def _fits(definition: str | None, is_ready: IsReady | None, solution: Solution) -> bool:
    return definition in (None, solution.definition) and (is_ready is None or is_ready(solution))


def _together(jobs: list[Job]) -> tuple[Job, ...]:
    """Return jobs with those of a solution together."""
    grouped: dict[str, list[Job]] = {}
    for job in jobs:
        grouped.setdefault(job.solution_key, []).append(job)
    return tuple(job for group in grouped.values() for job in group)
