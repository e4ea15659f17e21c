"""The one queue of open jobs: which jobs a device takes next. It decides on jobs alone, and starts nothing.

Each submitter has a lane for each priority. The highest priority goes first; within it, the lane that has had the
fewest seconds. A lane that comes later, or comes again, starts level with the others and has no claim on the past.

A lane holds groups in the order of submission. A group is the jobs of one solution, which share a worker. A batch is
of one lane and one definition. It takes groups until it is full:

* A run serves one plan (`turn_s` is infinite). A batch has at most a share of the remaining seconds, so batches shrink
  as the work runs out. A device stays with its definition, whose baselines it has. A solution is split if it costs more
  than one device's share of what is left.
* A resident engine's batch has about `turn_s` of work, so an urgent job waits for one batch at most.
* A lane with `in_order` has groups of one job, and keeps their exact order: its measurements are interleaved.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.data.solution import Solution

TURN_S: Final = 1.0
"""Seconds of work in a batch of a resident engine, by estimate."""
BATCHES_PER_DEVICE: Final = 2
"""A batch of several solutions has at most the remaining seconds, divided by the devices and by this."""
MOST_PACKED: Final = 4096
"""Jobs in a batch of several solutions, at most: its order is one message."""
MOST_IN_ORDER: Final = 16
"""Jobs in a batch of a lane with `in_order`, at most. A device prepares workers for two batches."""
UNKNOWN_S: Final = 1.0
"""Estimate of a job while none has ended."""
LEAST_S: Final = 0.001
"""Least estimate of a job."""


class Lane(NamedTuple):
    """Where a job waits."""

    priority: int = 0
    """Higher numbers go first."""
    submitter: str = ""
    """Submitters of one priority get equal shares of the devices."""
    in_order: bool = False


class Taken(NamedTuple):
    """Where a job is that a device has."""

    lane: Lane
    key: object
    """Its group's key."""
    device: str


Group = tuple[object, list[Job]]
"""Key and jobs, at least one."""


@dataclass
class Waiting:
    """What waits in one lane."""

    used_s: float
    """Seconds of devices that the lane has had, from a start that all lanes of its priority share."""
    groups: dict[object, list[Job]] = field(default_factory=dict)
    """The next first."""
    out: int = 0
    """Jobs that devices have."""


class JobQueue:
    """The open jobs of all submitters.

    Args:
        turn_s: seconds of work in a batch; infinite for a run of one plan.
    """

    def __init__(self, turn_s: float = math.inf) -> None:
        self._turn_s = turn_s
        self._lanes: dict[Lane, Waiting] = {}
        self.remaining = 0
        """Jobs that no device has."""
        self._taken: dict[int, Taken] = {}
        """Index of each job that a device has."""
        self._at: dict[str, str] = {}
        """Device → definition of what it took last."""
        self._level: defaultdict[int, float] = defaultdict(float)
        """Priority → seconds that a new lane begins with."""
        self._seconds: dict[str, tuple[float, int]] = {}
        """Solution's key or name of a definition → total seconds and number of the jobs that have ended."""

    def add(self, jobs: Iterable[Job], lane: Lane = Lane()) -> None:  # noqa: B008 - a constant
        """Take further jobs."""
        waiting = self._lanes.setdefault(lane, Waiting(0.0))
        if not waiting.groups:
            waiting.used_s = max(waiting.used_s, self._level[lane.priority])
        self._put(lane, waiting.groups, jobs)

    def remove(self, indices: Iterable[int]) -> list[Job]:
        """Take out those of these jobs that no device has, and return them."""
        wanted, removed = set(indices), list[Job]()
        for waiting in self._lanes.values():
            for key, group in list(waiting.groups.items()):
                removed += self._cut(waiting, key, [job for job in group if job.index in wanted])
        return removed

    def take(
        self,
        device: str = "",
        *,
        devices: int = 1,
        is_ready: Callable[[Solution], bool] = lambda _solution: True,
        splits: bool = True,
    ) -> list[Job]:
        """Take the next batch for a device: jobs of one definition, none if nothing can be taken.

        Args:
            device: the device's name.
            devices: devices that share the work.
            is_ready: whether a solution is built.
            splits: may take a part of a solution, or of one that another device has, if nothing else is left.
        """
        held = defaultdict[object, set[str]](set)
        for taken in self._taken.values():
            if taken.device != device:
                held[taken.key].add(taken.device)
        lanes = [lane for lane, one in self._lanes.items() if one.groups]
        for lane in sorted(lanes, key=lambda lane: (-lane.priority, self._lanes[lane].used_s)):
            groups: Iterator[Group] = iter(self._lanes[lane].groups.items())
            if lane.in_order:
                ready = itertools.takewhile(lambda group: is_ready(group[1][0].solution), groups)
                batch = self._fill(ready, math.inf, MOST_IN_ORDER)
            else:
                ready = (group for group in groups if is_ready(group[1][0].solution))
                if math.isinf(self._turn_s):
                    batch = self._pack(list(ready), device, devices, held, splits=splits)
                else:
                    batch = self._next_turn(ready, held, splits=splits)
            if batch:
                return self._hand_out(lane, device, batch)
        return []

    def give_back(self, jobs: Iterable[Job]) -> None:
        """Put jobs that were taken back in front of their lanes, which are not charged for them."""
        returned: defaultdict[Lane, list[Job]] = defaultdict(list)
        for job in jobs:
            returned[self._taken.pop(job.index).lane].append(job)
        for lane, listed in returned.items():
            waiting, behind = self._lanes[lane], self._lanes[lane].groups
            waiting.out -= len(listed)
            waiting.used_s -= sum(map(self.estimate, listed))
            self._level[lane.priority] = min(self._level[lane.priority], waiting.used_s)
            waiting.groups = {}
            self._put(lane, waiting.groups, listed)
            for key, group in waiting.groups.items():
                group += behind.pop(key, [])
                group.sort(key=lambda job: job.index)
            waiting.groups |= behind

    def end(self, job: Job, seconds: float | None = None) -> None:
        """Forget a job that has ended.

        Args:
            job: the job.
            seconds: its duration, from which others are estimated; None if it was not judged.
        """
        if seconds is not None:
            for key in (job.solution_key, job.definition.name):
                total, count = self._seconds.get(key, (0.0, 0))
                self._seconds[key] = total + seconds, count + 1
        if job.index in self._taken:
            self._lanes[self._taken.pop(job.index).lane].out -= 1
        waiting = {lane.priority for lane, one in self._lanes.items() if one.groups}
        for lane, one in list(self._lanes.items()):
            is_level = lane.priority not in waiting or one.used_s <= self._level[lane.priority]
            if not one.groups and not one.out and is_level:  # it would begin level with the others if it came again
                del self._lanes[lane]

    def forget_solution(self, job: Job) -> None:
        """Forget how long a job's solution takes."""
        self._seconds.pop(job.solution_key, None)

    def estimate(self, job: Job) -> float:
        """Return the seconds that a job may take: the mean of its solution, else of its definition."""
        total, count = self._seconds.get(job.solution_key) or self._seconds.get(job.definition.name) or (UNKNOWN_S, 1)
        return max(total / count, LEAST_S)

    def _pack(
        self, groups: list[Group], device: str, devices: int, held: Mapping[object, set[str]], *, splits: bool
    ) -> list[Group]:
        """Return a run's batch: whole solutions of one definition, or a part of one solution."""
        if devices == 1 or not groups:
            return self._fill(groups, math.inf, MOST_PACKED)
        there = Counter(name for other, name in self._at.items() if other != device)
        last = self._at.get(device)
        names = {key: jobs[0].definition.name for key, jobs in groups}
        groups.sort(key=lambda group: (names[group[0]] != last, there[names[group[0]]]))
        left_s = sum(map(self._cost, groups))
        key, jobs = groups[0]
        parts = math.ceil(round(self._cost(groups[0]) * devices / left_s, 3))
        if parts > 1:
            size = math.ceil(len(jobs) / max(1, parts - len(held.get(key, ()))))
            return [(key, jobs[:size])] if splits else []
        return self._fill(groups, left_s / (BATCHES_PER_DEVICE * devices), MOST_PACKED)

    def _next_turn(self, groups: Iterator[Group], held: Mapping[object, set[str]], *, splits: bool) -> list[Group]:
        """Return a resident engine's batch; a solution that another device has comes last."""
        shared: list[Group] = []
        free = (group for group in groups if group[0] not in held or shared.append(group))
        batch = self._fill(((key, jobs[: self._most(jobs)]) for key, jobs in free), self._turn_s, MOST_PACKED)
        return batch or [(key, jobs[: self._most(jobs)]) for key, jobs in shared[:splits]]

    def _fill(self, groups: Iterable[Group], limit_s: float, most: int) -> list[Group]:
        """Return groups from the front, of one definition, up to a limit of seconds and of jobs; at least one group."""
        batch: list[Group] = []
        cost_s, count = 0.0, 0
        for group in groups:
            cost_s, count = cost_s + self._cost(group), count + len(group[1])
            is_other = batch and group[1][0].definition.name != batch[0][1][0].definition.name
            if batch and (is_other or cost_s > limit_s or count > most):
                break
            batch.append(group)
        return batch

    def _hand_out(self, lane: Lane, device: str, batch: Iterable[Group]) -> list[Job]:
        """Note that a device has these jobs of a lane, and charge the lane; return the jobs."""
        waiting, found = self._lanes[lane], list[Job]()
        self._level[lane.priority] = max(self._level[lane.priority], waiting.used_s)
        for key, jobs in batch:
            found += self._cut(waiting, key, jobs)
            self._taken |= {job.index: Taken(lane, key, device) for job in jobs}
        waiting.used_s += sum(map(self.estimate, found))
        waiting.out += len(found)
        self._at[device] = found[0].definition.name
        return found

    def _put(self, lane: Lane, groups: dict[object, list[Job]], jobs: Iterable[Job]) -> None:
        for job in jobs:
            groups.setdefault((job.solution_key, job.index) if lane.in_order else job.solution_key, []).append(job)
            self.remaining += 1

    def _cut(self, waiting: Waiting, key: object, jobs: list[Job]) -> list[Job]:
        indices = {job.index for job in jobs}
        waiting.groups[key] = [job for job in waiting.groups[key] if job.index not in indices]
        self.remaining -= len(jobs)
        if not waiting.groups[key]:
            del waiting.groups[key]
        return jobs

    def _cost(self, group: Group) -> float:
        return len(group[1]) * self.estimate(group[1][0])

    def _most(self, jobs: list[Job]) -> int:
        """Return how many jobs of a solution one turn has."""
        return max(1, math.ceil(self._turn_s / self.estimate(jobs[0])))
