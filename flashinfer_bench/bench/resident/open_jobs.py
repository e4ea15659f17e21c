"""The open jobs of the resident engine, and which tasks wait for each: equal jobs of several tasks are one job.

Jobs are equal where all that decides their verdict is: the definition, the workload, the sources, the settings
(`Job.fingerprint`). The name of a solution is not among it: each task gets a trace with its own solution's name.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.resident.fair_queue import Precedence
from flashinfer_bench.bench.resident.task import Task

JobMark = tuple[str, str, tuple[tuple[str, str], ...]]


@dataclass
class OpenJob:
    """A job without a verdict."""

    job: Job
    precedence: Precedence
    waiting: list[tuple[Task, Job]] = field(default_factory=list)
    """The tasks, each with the job as it would be if it were that task's alone: with its own solution."""


class OpenJobs:
    """All open jobs of an engine. It decides, and holds no lock: its owner does."""

    def __init__(self) -> None:
        self._next = 0
        self._by_index: dict[int, OpenJob] = {}
        self._by_mark: dict[JobMark, OpenJob] = {}
        self.tasks: dict[str, Task] = {}
        """Open tasks by their id."""
        self._of_solution: Counter[str] = Counter()
        """Solution's key → how many of its jobs are open."""
        self._ended: dict[str, Job] = {}
        """Solution's key → the last of its jobs, which has ended."""
        self._left: Counter[str] = Counter()
        """Id of a task → how many of its jobs are open."""

    def __len__(self) -> int:
        return len(self._by_index)

    def count_tasks(self) -> Counter[str]:
        """Return how many tasks each submitter has open."""
        return Counter(task.order.submitter for task in self.tasks.values())

    def count_new(self, jobs: list[Job]) -> int:
        """Return how many of these jobs no open one is equal to."""
        return sum(mark_job(job) not in self._by_mark for job in jobs)

    def add(self, task: Task, jobs: list[Job]) -> tuple[list[Job], list[Job]]:
        """Take a task's jobs.

        Returns:
            Those that have to be dealt out, numbered; and open ones that are more urgent now than they were.
        """
        precedence = Precedence(task.order.priority, task.order.submitter)
        new: list[Job] = []
        raised: list[Job] = []
        if jobs:
            self.tasks[task.id] = task
        for job in jobs:
            mark = mark_job(job)
            entry = self._by_mark.get(mark)
            if entry is None:
                entry = OpenJob(replace(job, index=self._next), precedence)
                self._next += 1
                self._by_index[entry.job.index] = self._by_mark[mark] = entry
                self._of_solution[entry.job.solution_key] += 1
                new.append(entry.job)
            elif precedence.priority > entry.precedence.priority:
                entry.precedence = precedence
                raised.append(entry.job)
            entry.waiting.append((task, replace(job, index=entry.job.index)))
            self._left[task.id] += 1
        return new, raised

    def precedence_of(self, job: Job) -> Precedence:
        """Return where a job waits."""
        entry = self._by_index.get(job.index)
        return entry.precedence if entry is not None else Precedence()

    def find(self, index: int) -> OpenJob | None:
        """Return an open job; None where nobody waits for it any more."""
        return self._by_index.get(index)

    def close(self, index: int) -> OpenJob | None:
        """Take out a job that has ended, or that nobody wants any more."""
        entry = self._by_index.pop(index, None)
        if entry is None:
            return None
        key = entry.job.solution_key
        self._of_solution[key] -= 1
        if not self._of_solution[key]:
            del self._of_solution[key]
            self._ended[key] = entry.job
        mark = mark_job(entry.job)
        if self._by_mark.get(mark) is entry:
            del self._by_mark[mark]
        for task, _ in entry.waiting:
            self._release(task)
        return entry

    def take_ended(self) -> list[Job]:
        """Return a job of each solution that had jobs since the last call, and has none any more."""
        ended, self._ended = self._ended, {}
        return [job for key, job in ended.items() if key not in self._of_solution]

    def close_all(self) -> list[OpenJob]:
        """Take out all jobs."""
        return [entry for index in list(self._by_index) if (entry := self.close(index)) is not None]

    def cancel(self, task: Task) -> list[int]:
        """Take a task out; return the indices of the jobs that nobody waits for any more. They stay until `close`."""
        unwanted: list[int] = []
        if self.tasks.pop(task.id, None) is None:
            return unwanted
        self._left.pop(task.id, None)
        for entry in list(self._by_index.values()):
            if any(waiting is task for waiting, _ in entry.waiting):
                entry.waiting = [pair for pair in entry.waiting if pair[0] is not task]
                if not entry.waiting:
                    unwanted.append(entry.job.index)
                    self._by_mark.pop(mark_job(entry.job), None)  # a new one that is equal begins anew
        return unwanted

    def _release(self, task: Task) -> None:
        self._left[task.id] -= 1
        if self._left[task.id] <= 0:
            del self._left[task.id]
            self.tasks.pop(task.id, None)


def mark_job(job: Job) -> JobMark:
    """Return what equal jobs have in common."""
    return job.definition.name, job.workload.uuid, tuple(sorted(job.fingerprint.items()))
