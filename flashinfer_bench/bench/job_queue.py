"""The queue of open jobs: the jobs that a device takes next. The queue only decides which jobs come next, and starts
nothing.

Each submitter has a queue class for each priority. The highest priority goes first. Within a priority, the class with
the fewest device seconds goes first. A new or returning class starts level with all other classes.

A class holds groups in the order of submission. A group has the jobs of one solution, which share a worker. A batch has
jobs of one class and one definition, from the front:

* A run serves one plan (`quantum_s` is infinite). A batch has whole solutions, up to a share of the remaining jobs, so
  batches shrink as the work runs out. A device stays with its definition, whose baselines it has. A solution is split
  only if fewer solutions than devices are left.
* A resident engine's batch has jobs for about `quantum_s`, so an urgent job waits for one batch at most.
* A class with `in_order` keeps the exact order of its jobs, for measurements that are interleaved.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from flashinfer_bench.bench.planning.plan import Job

QUANTUM_S: Final = 1.0
"""Seconds of work in a batch of a resident engine, by estimate."""
BATCHES_PER_DEVICE: Final = 2
"""A batch of several solutions has at most the remaining jobs, divided by this number and by the number of devices."""
MOST_PACKED: Final = 4096
"""Maximum number of jobs in a batch of several solutions. A batch is sent as one message."""
MOST_IN_ORDER: Final = 16
"""Maximum number of jobs in a batch of a class with `in_order`. A device prepares workers for two batches."""
UNKNOWN_S: Final = 1.0
"""Estimated seconds of a job while no job of its definition has ended."""
LEAST_S: Final = 0.001
"""Least estimate of a job's duration, in seconds."""


class QueueClass(NamedTuple):
    """The class of the queue in which a job waits: its priority and its submitter."""

    priority: int = 0
    """Higher numbers go first."""
    submitter: str = ""
    """Submitters of one priority get equal shares of the devices."""
    in_order: bool = False


@dataclass
class Waiting:
    """The waiting jobs of one queue class."""

    used_s: float
    """Device seconds charged to this class. A new class does not begin at 0, but level with the other classes of its
    priority."""
    groups: dict[object, list[Job]] = field(default_factory=dict)
    """The next group first; every group has jobs."""
    out: int = 0
    """Number of jobs that devices have."""


class JobQueue:
    """The open jobs of all submitters.

    Args:
        quantum_s: seconds of work in a batch; infinite for a run of one plan.
    """

    def __init__(self, quantum_s: float = math.inf) -> None:
        self._quantum_s = quantum_s
        self._queue_classes: dict[QueueClass, Waiting] = {}
        self.remaining = 0
        """Number of jobs that no device has."""
        self._taken: dict[int, tuple[QueueClass, float]] = {}
        """Index of each job on a device → its queue class, and the seconds charged to that class."""
        self._at: dict[str, str] = {}
        """Device → definition of its latest batch."""
        self._level: defaultdict[int, float] = defaultdict(float)
        """Priority → seconds that a new class begins with."""
        self._means: dict[str, tuple[float, int]] = {}
        """Definition → mean seconds and number of its jobs that have ended."""

    def add(self, jobs: Iterable[Job], queue_class: QueueClass = QueueClass()) -> None:  # noqa: B008 - a constant
        """Take further jobs."""
        waiting = self._queue_classes.setdefault(queue_class, Waiting(0.0))
        if not waiting.groups:
            waiting.used_s = max(waiting.used_s, self._level[queue_class.priority])
        self._put(queue_class, jobs)

    def remove(self, indices: Iterable[int]) -> list[Job]:
        """Remove the jobs with these indices, except jobs that a device has; return the removed jobs."""
        wanted = set(indices)
        return [
            job
            for waiting in self._queue_classes.values()
            for group in list(waiting.groups.values())
            for job in self._cut(waiting, [job for job in group if job.index in wanted])
        ]

    def take(
        self,
        device: str = "",
        *,
        devices: int = 1,
        is_ready: Callable[[Job], bool] = lambda _job: True,
        idle: int = 1,
    ) -> list[Job]:
        """Take the next batch for a device: jobs of one definition; empty if no job can be taken.

        Args:
            device: the device's name.
            devices: devices that share the work.
            is_ready: returns whether a job may be taken: its solution is built, and the device is of the job's
                hardware.
            idle: idle devices, including this one; 0 if the device asks ahead for its next batch. With 0, no solution
                is split.
        """
        queue_classes = [queue_class for queue_class, one in self._queue_classes.items() if one.groups]
        for queue_class in sorted(
            queue_classes, key=lambda queue_class: (-queue_class.priority, self._queue_classes[queue_class].used_s)
        ):
            waiting = self._queue_classes[queue_class]
            groups: Iterable[list[Job]] = waiting.groups.values()
            if queue_class.in_order:
                groups = itertools.takewhile(lambda group: is_ready(group[0]), groups)
                batch = _prefix([], groups, MOST_IN_ORDER)
            else:
                batch = self._pack([group for group in groups if is_ready(group[0])], device, devices, idle)
            if not batch:
                continue
            self._level[queue_class.priority] = max(self._level[queue_class.priority], waiting.used_s)
            cost_s = self._estimate(batch[0])
            waiting.used_s += cost_s * len(batch)
            waiting.out += len(batch)
            self._taken |= dict.fromkeys((job.index for job in batch), (queue_class, cost_s))
            self._at[device] = batch[0].definition.name
            return self._cut(waiting, batch)
        return []

    def give_back(self, jobs: Iterable[Job]) -> None:
        """Requeue jobs that a device had taken, in front of their queue classes. The classes are not charged for these
        jobs."""
        returned: defaultdict[QueueClass, list[Job]] = defaultdict(list)
        for job in jobs:
            queue_class, cost_s = self._taken.pop(job.index)
            self._queue_classes[queue_class].used_s -= cost_s
            returned[queue_class].append(job)
        for queue_class, listed in returned.items():
            waiting = self._queue_classes[queue_class]
            behind, waiting.groups = waiting.groups, {}
            waiting.out -= len(listed)
            self._level[queue_class.priority] = min(self._level[queue_class.priority], waiting.used_s)
            self._put(queue_class, listed)
            for key, group in waiting.groups.items():
                group += behind.pop(key, [])
                group.sort(key=lambda job: job.index)
            waiting.groups |= behind

    def end(self, job: Job, seconds: float | None = None) -> None:
        """Forget a job that has ended, and charge its duration to its queue class.

        Args:
            job: the job.
            seconds: its duration, for estimates of other jobs; None if the job was not judged.
        """
        if seconds is not None:
            mean_s, count = self._means.get(job.definition.name, (0.0, 0))
            self._means[job.definition.name] = mean_s + (seconds - mean_s) / (count + 1), count + 1
        if job.index in self._taken:
            queue_class, cost_s = self._taken.pop(job.index)
            self._queue_classes[queue_class].out -= 1
            self._queue_classes[queue_class].used_s += (seconds or 0.0) - cost_s
        waiting = {queue_class.priority for queue_class, one in self._queue_classes.items() if one.groups}
        for queue_class, one in list(self._queue_classes.items()):
            is_level = queue_class.priority not in waiting or one.used_s <= self._level[queue_class.priority]
            if not one.groups and not one.out and is_level:  # a class that returned would start level with the others
                del self._queue_classes[queue_class]

    def _pack(self, groups: list[list[Job]], device: str, devices: int, idle: int) -> list[Job]:
        """Return a batch of solutions of one definition."""
        if not groups:
            return []
        if not math.isinf(self._quantum_s):
            most = max(1, math.ceil(self._quantum_s / self._estimate(groups[0][0])))
            alike = (group for group in groups if group[0].definition.name == groups[0][0].definition.name)
            return list(itertools.islice(itertools.chain.from_iterable(alike), most))
        if devices > 1:
            there, last = Counter(name for other, name in self._at.items() if other != device), self._at.get(device)
            names = {id(group): group[0].definition.name for group in groups}
            groups.sort(key=lambda group: (names[id(group)] != last, there[names[id(group)]]))
        if len(groups) < devices:
            parts = math.ceil(idle / len(groups))
            return groups[0][: math.ceil(len(groups[0]) / parts)] if parts else []
        most = MOST_PACKED if devices == 1 else sum(map(len, groups)) // (BATCHES_PER_DEVICE * devices)
        return _prefix(groups[0], groups[1:], min(most, MOST_PACKED))

    def _estimate(self, job: Job) -> float:
        return max(self._means.get(job.definition.name, (UNKNOWN_S, 1))[0], LEAST_S)

    def _put(self, queue_class: QueueClass, jobs: Iterable[Job]) -> None:
        for job in jobs:
            key = job.index if queue_class.in_order else job.solution_key
            self._queue_classes[queue_class].groups.setdefault(key, []).append(job)
            self.remaining += 1

    def _cut(self, waiting: Waiting, jobs: list[Job]) -> list[Job]:
        """Take waiting jobs out of their groups; return them."""
        indices = {job.index for job in jobs}
        for key in {key for job in jobs for key in (job.index, job.solution_key)} & waiting.groups.keys():
            waiting.groups[key] = [job for job in waiting.groups[key] if job.index not in indices]
            if not waiting.groups[key]:
                del waiting.groups[key]
        self.remaining -= len(jobs)
        return jobs


def _prefix(batch: list[Job], groups: Iterable[list[Job]], most: int) -> list[Job]:
    """Return a batch with the next groups of the same definition, while there is room."""
    for group in groups:
        if len(batch) + len(group) > most or (batch and group[0].definition.name != batch[0].definition.name):
            break
        batch = batch + group
    return batch
