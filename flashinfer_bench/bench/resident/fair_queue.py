"""Which open job is next where many submit: the highest priority first, and within it fair turns by cost.

Each submitter has a lane of its own for each priority. The lane whose submitter has had the least time goes next; one
that comes later, or comes again, starts level with the others and has no claim on the past. So a flood of one submitter
waits behind single jobs of the others. A turn is one solution, or as many of its jobs as fit into `TURN_S`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.schedule import Block, BlockQueue, Estimate, IsReady

TURN_S: Final = 1.0
"""Seconds of work in a block, by estimate. A job that is urgent waits for at most one block of each device, and a
device is told of that much work ahead, for which it prepares workers."""


class LaneKey(NamedTuple):
    """Where a job waits."""

    priority: int = 0
    """Higher numbers go first."""
    submitter: str = ""


@dataclass
class Lane:
    """The open jobs of one submitter at one priority."""

    queue: BlockQueue
    used_s: float
    """The seconds that it has had, counted from a start that it shares with the other lanes of its priority."""


class FairQueue:
    """The open jobs of all submitters; in place of a `BlockQueue` in the loop over the devices.

    Args:
        estimate: seconds that a job takes; it may learn while the queue is in use.
        lane_of: says where a job waits.
    """

    def __init__(self, estimate: Estimate, lane_of: Callable[[Job], LaneKey]) -> None:
        self._estimate = estimate
        self._lane_of = lane_of
        self._lanes: dict[LaneKey, Lane] = {}
        self._taken: dict[int, LaneKey] = {}
        """Index of a job that a device has → its lane."""
        self._level: dict[int, float] = {}
        """Priority → the seconds that its last served lane had had before: a new lane begins with these."""

    @property
    def remaining(self) -> int:
        """Return how many jobs nobody has taken."""
        return sum(lane.queue.remaining for lane in self._lanes.values())

    def add(self, jobs: Iterable[Job]) -> None:
        """Take further jobs."""
        grouped: dict[LaneKey, list[Job]] = {}
        for job in jobs:
            grouped.setdefault(self._lane_of(job), []).append(job)
        for key, listed in grouped.items():
            lane = self._lane(key)
            if not lane.queue.remaining:
                lane.used_s = max(lane.used_s, self._level.get(key.priority, 0.0))
            lane.queue.add(listed)

    def remove(self, indices: Iterable[int]) -> list[Job]:
        """Take out those of these jobs that nobody has taken, and return them."""
        wanted = set(indices)
        return [job for lane in self._lanes.values() for job in lane.queue.remove(wanted)]

    def take(
        self, device_count: int, is_ready: IsReady | None = None, device: str = "", *, splits: bool = True
    ) -> Block | None:
        """Take the next block for a device; see `BlockQueue.take`. All its jobs are of one definition."""
        jobs: list[Job] = []
        cost_s = 0.0
        passed_over: set[LaneKey] = set()
        while cost_s < TURN_S and (key := self._next_lane(passed_over)) is not None:
            definition = jobs[0].definition.name if jobs else None
            part = self._take_turn(key, self._devices_for(device_count), _of(definition, is_ready), device, splits)
            if not part and definition is not None and self._has_other(key, is_ready):
                break  # it is this lane's turn, and it has work of another definition
            if not part:
                passed_over.add(key)
                continue
            cost_s += self._cost(part)
            jobs += part
        return Block(jobs[0].definition.name, _together(jobs)) if jobs else None

    def give_back(self, jobs: Iterable[Job]) -> None:
        """Put jobs back in front of their lanes."""
        for job in jobs:
            lane = self._lanes[self._taken.pop(job.index)]
            lane.used_s -= self._cost([job])
            lane.queue.give_back([job])

    def forget(self, indices: Iterable[int]) -> None:
        """Forget jobs that were taken and have ended: they are not given back any more."""
        for index in indices:
            key = self._taken.pop(index, None)
            if key is not None:
                self._lanes[key].queue.forget([index])
        self._drop_idle_lanes()

    def _lane(self, key: LaneKey) -> Lane:
        if key not in self._lanes:
            queue = BlockQueue((), self._estimate, most_cost=0.0)
            self._lanes[key] = Lane(queue, self._level.get(key.priority, 0.0))
        return self._lanes[key]

    def _next_lane(self, passed_over: set[LaneKey]) -> LaneKey | None:
        waiting = [key for key, lane in self._lanes.items() if lane.queue.remaining and key not in passed_over]
        return min(waiting, key=lambda key: (-key.priority, self._lanes[key].used_s), default=None)

    def _take_turn(self, key: LaneKey, device_count: int, is_ready: IsReady, device: str, splits: bool) -> list[Job]:
        """Take one solution of a lane, or the first of its jobs."""
        lane = self._lanes[key]
        block = lane.queue.take(device_count, is_ready, device, splits=splits)
        if block is None:
            return []
        most = max(1, math.ceil(TURN_S / self._estimate(block.jobs[0])))
        lane.queue.give_back(block.jobs[most:])
        jobs = list(block.jobs[:most])
        self._taken |= {job.index: key for job in jobs}
        self._level[key.priority] = max(self._level.get(key.priority, 0.0), lane.used_s)
        lane.used_s += self._cost(jobs)
        return jobs

    def _has_other(self, key: LaneKey, is_ready: IsReady | None) -> bool:
        return self._lanes[key].queue.has_ready(is_ready)

    def _devices_for(self, device_count: int) -> int:
        """Return among how many devices a solution is dealt out: one, unless there are fewer solutions than devices."""
        solutions = sum(lane.queue.open_solutions for lane in self._lanes.values())
        return device_count if solutions < device_count else 1

    def _cost(self, jobs: list[Job]) -> float:
        return sum(map(self._estimate, jobs))

    def _drop_idle_lanes(self) -> None:
        """Drop lanes without a job that would begin level with the others if they came again."""
        busy = set(self._taken.values())
        for key in [key for key, lane in self._lanes.items() if not lane.queue.remaining and key not in busy]:
            priority_is_idle = not any(
                other.queue.remaining for place, other in self._lanes.items() if place.priority == key.priority
            )
            if priority_is_idle or self._lanes[key].used_s <= self._level.get(key.priority, 0.0):
                del self._lanes[key]


def _of(definition: str | None, is_ready: IsReady | None) -> IsReady:
    return lambda solution: definition in (None, solution.definition) and (is_ready is None or is_ready(solution))


def _together(jobs: list[Job]) -> tuple[Job, ...]:
    """Return jobs with those of a solution together."""
    grouped: dict[str, list[Job]] = {}
    for job in jobs:
        grouped.setdefault(job.solution_key, []).append(job)
    return tuple(job for group in grouped.values() for job in group)
