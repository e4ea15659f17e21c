"""Deals jobs out to devices in blocks, so that all devices are busy until the end and few baselines are measured twice.

The jobs of a definition form a matrix of workloads and solutions. A block holds whole columns of it (a workload with
all its solutions), so a baseline is measured once and speed-ups are compared on one device; a column is split only when
there are fewer columns than devices, or while some of its solutions are still being built. Blocks shrink as the work
runs out. Who runs a block, and where, is the runner's.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from flashinfer_bench.bench.plan import Job
from flashinfer_bench.data.solution import Solution

BLOCKS_PER_DEVICE: Final = 2
"""A block is the remaining work, divided by the devices and by this. So the first blocks are large and the last ones
small, and all devices end at about the same time."""
MAX_WORKLOADS: Final = 64
"""Most workloads in a block where there is one device: its session keeps the baselines of a block in memory."""


@dataclass(frozen=True)
class Block:
    """Jobs of one definition for one device. All workloads of a solution stand together, since they share a worker."""

    definition: str
    jobs: tuple[Job, ...]


IsReady = Callable[[Solution], bool]
Column = deque[Job]
"""The jobs of one workload, by solution."""


class _Matrix:
    """The jobs of one definition that nobody has taken."""

    def __init__(self, definition: str, columns: Iterable[Iterable[Job]]) -> None:
        self.definition = definition
        self.columns: deque[Column] = deque(deque(sorted(column, key=lambda job: job.index)) for column in columns)
        jobs = [job for column in self.columns for job in column]
        self.solutions = {job.solution.name: job.solution for job in jobs}
        self.open_jobs = Counter(job.solution.name for job in jobs)
        """Solution → how many of its jobs are left; a solution with no jobs left is not in it."""

    def count_out(self, jobs: Iterable[Job]) -> None:
        """Note that jobs were taken."""
        self.open_jobs -= Counter(job.solution.name for job in jobs)


class BlockQueue:
    """The jobs that are still to be dealt out."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._remaining = 0
        self._taken: set[int] = set()
        self._matrices: list[_Matrix] = []
        self._fill(jobs)

    @property
    def remaining(self) -> int:
        """Return how many jobs nobody has taken."""
        return self._remaining

    def take(self, device_count: int, is_ready: IsReady | None = None) -> Block | None:
        """Take the next block for one of `device_count` devices that share the work; None when there is none to take.

        Args:
            device_count: how many devices there are.
            is_ready: whether a solution is built; jobs of others are left. None: all are. A definition whose
                solutions are all built goes before one of which only some are: its baselines stay on one device.
        """
        if device_count < 1:
            raise ValueError(f"there must be a device to take a block for, not {device_count}")
        matrix, waiting = self._choose(is_ready)
        if matrix is None:
            return None
        jobs = self._take_jobs(matrix, device_count, waiting)
        matrix.count_out(jobs)
        if not matrix.columns:
            self._matrices.remove(matrix)
        self._remaining -= len(jobs)
        self._taken.update(job.index for job in jobs)
        return Block(matrix.definition, _by_solution(jobs))

    def give_back(self, jobs: Iterable[Job]) -> None:
        """Put the unfinished jobs of a lost device in front of all others."""
        returned = list(jobs)
        for job in returned:
            if job.index not in self._taken:
                raise ValueError(f"job {job.index} was not taken, or was given back already")
            self._taken.remove(job.index)
        waiting = [job for matrix in self._matrices for column in matrix.columns for job in column]
        self._fill([*returned, *waiting])

    def _fill(self, jobs: Iterable[Job]) -> None:
        matrices: dict[str, dict[str, list[Job]]] = {}
        for job in jobs:
            matrices.setdefault(job.definition.name, {}).setdefault(job.workload.uuid, []).append(job)
        self._matrices = [_Matrix(name, columns.values()) for name, columns in matrices.items()]
        self._remaining = sum(len(column) for matrix in self._matrices for column in matrix.columns)

    def _choose(self, is_ready: IsReady | None) -> tuple[_Matrix | None, set[str]]:
        """Return the matrix to take from, and its solutions that are not built yet and have to wait."""
        partly: tuple[_Matrix | None, set[str]] = None, set()
        for matrix in self._matrices:
            open_solutions = [matrix.solutions[name] for name in matrix.open_jobs]
            waiting = set() if is_ready is None else {one.name for one in open_solutions if not is_ready(one)}
            if not waiting:
                return matrix, waiting
            if partly[0] is None and len(waiting) < len(open_solutions):
                partly = matrix, waiting
        return partly

    def _take_jobs(self, matrix: _Matrix, device_count: int, waiting: set[str]) -> list[Job]:
        if not waiting:
            columns = sum(len(other.columns) for other in self._matrices)
            return _take_columns(matrix.columns, device_count, open_jobs=self._remaining, open_columns=columns)
        parts = (deque(job for job in column if job.solution.name not in waiting) for column in matrix.columns)
        ready = deque(part for part in parts if part)
        open_jobs = sum(len(part) for part in ready)
        jobs = _take_columns(ready, device_count, open_jobs=open_jobs, open_columns=len(ready))
        taken = {job.index for job in jobs}
        left = (deque(job for job in column if job.index not in taken) for column in matrix.columns)
        matrix.columns = deque(column for column in left if column)
        return jobs


def _take_columns(columns: deque[Column], device_count: int, *, open_jobs: int, open_columns: int) -> list[Job]:
    """Take whole columns from the front up to a share; take a part of one where there are more devices than columns."""
    if device_count == 1:
        return [job for _ in range(min(MAX_WORKLOADS, len(columns))) for job in columns.popleft()]
    target = math.ceil(open_jobs / (BLOCKS_PER_DEVICE * device_count))
    jobs: list[Job] = []
    while columns and len(jobs) + len(columns[0]) <= target:
        jobs.extend(columns.popleft())
    if jobs:
        return jobs
    if open_columns >= device_count:
        return list(columns.popleft())
    return [columns[0].popleft() for _ in range(target)]


def _by_solution(jobs: Iterable[Job]) -> tuple[Job, ...]:
    order: dict[str, int] = {}
    listed = sorted(jobs, key=lambda job: job.index)
    for job in listed:
        order.setdefault(job.solution.name, len(order))
    return tuple(sorted(listed, key=lambda job: order[job.solution.name]))
