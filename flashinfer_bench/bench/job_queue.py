"""The one queue of open jobs: which jobs a device takes next. It decides on jobs alone, and starts nothing.

Each submitter has a lane for each priority. The highest priority goes first; within it, the lane that has had the
fewest seconds. A lane that comes later, or comes again, starts level with the others and has no claim on the past.

A lane's jobs are grouped by solution, since a solution's jobs share a worker, which costs up to a second to start.
Which group is next depends on who may be waiting:

* A run serves one plan (`turn_s` is infinite), so it packs. A batch has whole solutions of one definition, the
  costliest first; a device stays with its definition, whose baselines it has. A solution is split only if fewer are
  left than devices. Batches shrink as the work runs out. A device that is alone keeps the plan's order, but takes
  solutions that compile for minutes at their first call last of all.
* A resident engine takes groups in the order in which they came, and a batch has about `turn_s` of work, so that an
  urgent job waits for one batch at most. A device gets no solution that another one is at, unless nothing else is left.
* A lane with `in_order` keeps the exact order of its jobs, for measurements that are interleaved.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from flashinfer_bench.bench.planning.first_call import find_first_call
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.data.solution import Solution

TURN_S: Final = 1.0
"""Seconds of work in a batch of a resident engine, by estimate."""
BATCHES_PER_DEVICE: Final = 2
"""A packed batch of several solutions has at most the remaining work, divided by the devices and by this."""
MOST_PACKED: Final = 4096
"""Jobs in a packed batch of several solutions, at most: its order is one message."""
MOST_IN_ORDER: Final = 16
"""Jobs in a batch of a lane with `in_order`, at most. A device prepares workers for two batches."""
UNKNOWN_S: Final = 1.0
"""Estimate of a job while none has ended."""
LEAST_S: Final = 0.001
"""Least estimate of a job."""

IsReady = Callable[[Solution], bool]


class Lane(NamedTuple):
    """Where a job waits."""

    priority: int = 0
    """Higher numbers go first."""
    submitter: str = ""
    """Submitters of one priority get equal shares of the devices."""
    in_order: bool = False


class JobTimes:
    """Mean seconds that jobs took, by solution, by definition and of all."""

    def __init__(self) -> None:
        self._sums: defaultdict[tuple[str, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])

    def add(self, job: Job, seconds: float) -> None:
        """Note the duration of a job."""
        for key in _keys(job):
            self._sums[key][0] += seconds
            self._sums[key][1] += 1

    def forget(self, job: Job) -> None:
        """Forget the jobs of a job's solution."""
        self._sums.pop(_keys(job)[0], None)

    def estimate(self, job: Job) -> float:
        """Return the seconds that a job may take: the mean of its solution, else of its definition, else of all."""
        known = next((self._sums[key] for key in _keys(job) if key in self._sums), (UNKNOWN_S, 1))
        return max(known[0] / known[1], LEAST_S)


@dataclass
class _Group:
    """Jobs of a lane without a device: of one solution, or a single one if the order is given; never empty."""

    jobs: list[Job]
    is_long: bool = False
    """The solution's first call may compile for minutes."""
    was_returned: bool = False

    @property
    def definition(self) -> str:
        return self.jobs[0].definition.name


@dataclass
class _Waiting:
    """The groups of one lane, the next first."""

    used_s: float
    """Seconds of devices that it has had, counted from a start that all lanes of its priority share."""
    groups: dict[object, _Group] = field(default_factory=dict)
    turn: int = 0
    """Number of its last turn."""
    out: int = 0
    """Jobs that devices have."""


class _Asked(NamedTuple):
    """A device's request for work."""

    device: str
    devices: int
    is_ready: IsReady
    is_whole: bool
    """Split no solution, and share none with another device."""


class JobQueue:
    """The open jobs of all submitters.

    Args:
        estimate: seconds that a job takes, alike for all jobs of a solution; it may learn while the queue is in use.
        turn_s: seconds of work in a batch; infinite for a run of one plan.
    """

    def __init__(self, estimate: Callable[[Job], float] = lambda _job: 1.0, turn_s: float = math.inf) -> None:
        self._estimate = estimate
        self._turn_s = turn_s
        self._lanes: dict[Lane, _Waiting] = {}
        self.remaining = 0
        """Jobs that no device has."""
        self._taken: dict[int, tuple[Lane, object, str]] = {}
        """Index of a job that a device has → its lane, its group's key, the device."""
        self._devices_at: defaultdict[object, Counter[str]] = defaultdict(Counter)
        """Group's key → device → how many of its jobs it has."""
        self._last: dict[str, tuple[str, object]] = {}
        """Device → definition and group's key of what it took last."""
        self._level: defaultdict[int, float] = defaultdict(float)
        """Priority → seconds that a new lane begins with."""
        self._turns = itertools.count(1)

    def add(self, jobs: Iterable[Job], lane: Lane = Lane()) -> None:  # noqa: B008 - a constant
        """Take further jobs."""
        level = self._level[lane.priority]
        waiting = self._lanes.setdefault(lane, _Waiting(level))
        if not waiting.groups:
            waiting.used_s = max(waiting.used_s, level)
        for job in jobs:
            self._put(waiting.groups, lane, job)

    def remove(self, indices: Iterable[int]) -> list[Job]:
        """Take out those of these jobs that no device has, and return them."""
        wanted, removed = set(indices), []
        for waiting in self._lanes.values() if wanted else ():
            for key, group in list(waiting.groups.items()):
                found = [job for job in group.jobs if job.index in wanted]
                if found:
                    self._cut(waiting, key, found)
                    removed += found
        self._tidy()
        return removed

    def has_ready(self, is_ready: IsReady) -> bool:
        """Return whether the solution of any open job is built."""
        groups = (group for waiting in self._lanes.values() for group in waiting.groups.values())
        return any(is_ready(group.jobs[0].solution) for group in groups)

    def take(
        self, device: str = "", *, devices: int = 1, is_ready: IsReady = lambda _solution: True, splits: bool = True
    ) -> list[Job]:
        """Take the next batch for a device: jobs of one definition, none if nothing can be taken.

        Args:
            device: the device's name.
            devices: devices that share the work.
            is_ready: whether a solution is built.
            splits: may take a part of a solution, or of one that another device is at, if nothing else is left.
        """
        jobs = self._fill(_Asked(device, devices, is_ready, True))
        return jobs or (self._fill(_Asked(device, devices, is_ready, False)) if splits else [])

    def give_back(self, jobs: Iterable[Job]) -> None:
        """Put jobs that were taken back in front of their lanes."""
        returned: dict[Lane, list[Job]] = {}
        for job in jobs:
            returned.setdefault(self._let_go(job.index), []).append(job)
        for lane, listed in returned.items():
            waiting, behind = self._lanes[lane], self._lanes[lane].groups
            waiting.used_s -= self._cost(listed)
            self._level[lane.priority] = min(self._level[lane.priority], waiting.used_s)
            waiting.groups = {}
            for job in listed:
                self._put(waiting.groups, lane, job).was_returned = True
            for key, group in waiting.groups.items():
                if (rest := behind.pop(key, None)) is not None:
                    group.jobs += rest.jobs
                group.jobs.sort(key=lambda job: job.index)
            waiting.groups |= behind

    def forget(self, indices: Iterable[int]) -> None:
        """Forget jobs that were taken and have ended."""
        for index in indices:
            if index in self._taken:
                self._let_go(index)
        self._tidy()

    def _put(self, groups: dict[object, _Group], lane: Lane, job: Job) -> _Group:
        key = _group_key(lane, job)
        if key not in groups:
            groups[key] = _Group([], self._packs(lane) and find_first_call(job.solution).is_long)
        groups[key].jobs.append(job)
        self.remaining += 1
        return groups[key]

    def _packs(self, lane: Lane) -> bool:
        return math.isinf(self._turn_s) and not lane.in_order

    def _fill(self, asked: _Asked) -> list[Job]:
        """Take turns of lanes until the batch is full, or the next turn is of another definition."""
        jobs: list[Job] = []
        passed: set[Lane] = set()
        while self._cost(jobs) < self._turn_s and (lane := self._next_lane(passed)) is not None:
            waiting = self._lanes[lane]
            if self._packs(lane):
                parts = self._pack(waiting, asked)
            else:
                parts = self._next_part(lane, jobs[0].definition.name if jobs else None, asked)
            if not parts:
                passed.add(lane)
                continue
            if jobs and parts[0][1][0].definition.name != jobs[0].definition.name:
                break
            self._level[lane.priority] = max(self._level[lane.priority], waiting.used_s)
            for key, part in parts:
                self._cut(waiting, key, part)
                self._taken |= {job.index: (lane, key, asked.device) for job in part}
                self._devices_at[key][asked.device] += len(part)
                self._last[asked.device] = part[0].definition.name, key
                waiting.used_s += self._cost(part)
                waiting.out += len(part)
                jobs += part
            waiting.turn = next(self._turns)
            if self._packs(lane) or (lane.in_order and len(jobs) >= MOST_IN_ORDER):
                break
        return jobs

    def _next_lane(self, passed: set[Lane]) -> Lane | None:
        waiting = [lane for lane, one in self._lanes.items() if one.groups and lane not in passed]
        rank = self._lanes
        return min(waiting, key=lambda lane: (-lane.priority, rank[lane].used_s, rank[lane].turn), default=None)

    def _next_part(self, lane: Lane, definition: str | None, asked: _Asked) -> list[tuple[object, list[Job]]]:
        """Return a turn's jobs of the first group that may be taken: of this definition, if there is one."""
        other: list[tuple[object, list[Job]]] = []
        for key, group in self._lanes[lane].groups.items():
            is_free = not asked.is_whole or not self._others_at(key, asked.device)
            if is_free and asked.is_ready(group.jobs[0].solution):
                most = 1 if lane.in_order else max(1, math.ceil(self._turn_s / self._estimate(group.jobs[0])))
                part = [(key, group.jobs[:most])]
                if definition in (None, group.definition):
                    return part
                other = other or part
            if lane.in_order:
                break
        return other

    def _pack(self, waiting: _Waiting, asked: _Asked) -> list[tuple[object, list[Job]]]:
        """Return whole solutions of one definition, or a part of one."""
        ready = {key: one for key, one in waiting.groups.items() if asked.is_ready(one.jobs[0].solution)}
        costs = {key: len(one.jobs) * self._estimate(one.jobs[0]) for key, one in ready.items()}
        left, is_alone = sum(costs.values()), asked.devices == 1
        if is_alone:  # of several devices one would be left with those that compile long
            ready = {key: one for key, one in ready.items() if not one.is_long} or ready
        if not ready:
            return []
        definition = self._choose_definition(ready, costs, asked)
        last = self._last.get(asked.device, ("", None))[1]

        def rank(key: object) -> tuple[float, ...]:
            place = () if is_alone else (key != last, -costs[key])
            return (not ready[key].was_returned, *place, ready[key].jobs[0].index)

        order = sorted((key for key, one in ready.items() if one.definition == definition), key=rank)
        first = order[0]
        parts = math.ceil(round(costs[first] * asked.devices / left, 3))
        if parts > 1:
            parts = max(1, parts - self._others_at(first, asked.device))
            return [] if asked.is_whole else [(first, ready[first].jobs[: math.ceil(len(ready[first].jobs) / parts)])]
        most = math.inf if is_alone else left / (BATCHES_PER_DEVICE * asked.devices)
        packed, cost, count = [first], costs[first], len(ready[first].jobs)
        for key in order[1:]:
            cost, count = cost + costs[key], count + len(ready[key].jobs)
            if cost > most or count > MOST_PACKED:
                break
            packed.append(key)
        return [(key, ready[key].jobs) for key in packed]

    def _choose_definition(self, ready: dict[object, _Group], costs: dict[object, float], asked: _Asked) -> str:
        """Return what was given back, else what the device is at, else where most is left for one device."""
        first = next(iter(ready.values()))
        last = self._last.get(asked.device, ("", None))[0]
        left: Counter[str] = Counter()
        for key, group in ready.items():
            left[group.definition] += costs[key]  # type: ignore[assignment]  # a Counter of seconds
        if first.was_returned:
            return first.definition
        if last in left:
            return last
        if asked.devices == 1:
            return first.definition
        there = Counter(definition for device, (definition, _) in self._last.items() if device != asked.device)
        return max(left, key=lambda name: left[name] / (1 + there[name]))

    def _others_at(self, key: object, device: str) -> int:
        """Count the other devices that have jobs of a group."""
        at = self._devices_at.get(key, Counter())
        return len(at) - (device in at)

    def _cut(self, waiting: _Waiting, key: object, jobs: list[Job]) -> None:
        group, indices = waiting.groups[key], {job.index for job in jobs}
        group.jobs = [job for job in group.jobs if job.index not in indices]
        group.was_returned = False
        self.remaining -= len(jobs)
        if not group.jobs:
            del waiting.groups[key]

    def _let_go(self, index: int) -> Lane:
        """Note that no device has a job any more; return its lane."""
        if index not in self._taken:
            raise ValueError(f"job {index} was not taken, or was given back already")
        lane, key, device = self._taken.pop(index)
        self._lanes[lane].out -= 1
        at = self._devices_at[key]
        at[device] -= 1
        if not at[device]:
            del at[device]
        if not at:
            del self._devices_at[key]
        return lane

    def _cost(self, jobs: Iterable[Job]) -> float:
        return sum(map(self._estimate, jobs))

    def _tidy(self) -> None:
        """Drop lanes without jobs that would begin level with the others if they came again."""
        waiting = {lane.priority for lane, one in self._lanes.items() if one.groups}
        for lane in [lane for lane, one in self._lanes.items() if not one.groups and not one.out]:
            if lane.priority not in waiting or self._lanes[lane].used_s <= self._level[lane.priority]:
                del self._lanes[lane]


def _group_key(lane: Lane, job: Job) -> object:
    return (job.solution_key, job.index) if lane.in_order else job.solution_key


def _keys(job: Job) -> tuple[tuple[str, ...], ...]:
    name = job.definition.name
    return (name, job.solution_key), (name,), ()
