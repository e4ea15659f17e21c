"""Deals jobs out to devices in blocks, so that all devices are busy until the end and few baselines are measured twice.

The jobs of a definition form a matrix of workloads and solutions. A block holds whole columns of it (a workload with
all its solutions), so a baseline is measured once and speed-ups are compared on one device; a column is split only when
there are fewer columns than devices. Blocks shrink as the work runs out. Who runs a block, and where, is the runner's.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from flashinfer_bench.bench.plan import Job

BLOCKS_PER_DEVICE: Final = 2
"""A block is the remaining work over twice the devices: large at first, small where it evens out the end."""
MAX_WORKLOADS: Final = 64
"""Most workloads in a block where there is one device, whose session keeps the baselines of a block in memory."""


@dataclass(frozen=True)
class Block:
    """Jobs of one definition for one device, all workloads of a solution together: a worker lives for one solution."""

    definition: str
    jobs: tuple[Job, ...]


Column = deque[Job]
"""The jobs of one workload, by solution."""


@dataclass
class _Matrix:
    """The jobs of one definition that nobody has taken."""

    definition: str
    columns: deque[Column]


class BlockQueue:
    """The jobs that are still to be dealt out."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._remaining = 0
        self._taken: set[int] = set()
        self._matrices: deque[_Matrix] = deque()
        self._fill(jobs)

    @property
    def remaining(self) -> int:
        """Return how many jobs nobody has taken."""
        return self._remaining

    def take(self, device_count: int) -> Block | None:
        """Take the next block for one of `device_count` devices that share the work; None when nothing is left."""
        if device_count < 1:
            raise ValueError(f"there must be a device to take a block for, not {device_count}")
        if not self._matrices:
            return None
        matrix = self._matrices[0]
        jobs = self._take_columns(matrix, device_count)
        if not matrix.columns:
            self._matrices.popleft()
        self._remaining -= len(jobs)
        self._taken.update(job.index for job in jobs)
        return Block(matrix.definition, _by_solution(jobs))

    def give_back(self, jobs: Iterable[Job]) -> None:
        """Put taken jobs that were not finished, those of a lost device, in front of all others."""
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
        self._matrices = deque(
            _Matrix(name, deque(deque(sorted(column, key=lambda job: job.index)) for column in columns.values()))
            for name, columns in matrices.items()
        )
        self._remaining = sum(len(column) for matrix in self._matrices for column in matrix.columns)

    def _take_columns(self, matrix: _Matrix, device_count: int) -> list[Job]:
        columns = matrix.columns
        if device_count == 1:
            return [job for _ in range(min(MAX_WORKLOADS, len(columns))) for job in columns.popleft()]
        target = math.ceil(self._remaining / (BLOCKS_PER_DEVICE * device_count))
        enough_columns = sum(len(other.columns) for other in self._matrices) >= device_count
        jobs: list[Job] = []
        while columns and len(jobs) + len(columns[0]) <= target:
            jobs.extend(columns.popleft())
        if jobs:
            return jobs
        if enough_columns:
            return list(columns.popleft())
        return [columns[0].popleft() for _ in range(target)]


def _by_solution(jobs: Iterable[Job]) -> tuple[Job, ...]:
    order: dict[str, int] = {}
    listed = sorted(jobs, key=lambda job: job.index)
    for job in listed:
        order.setdefault(job.solution.name, len(order))
    return tuple(sorted(listed, key=lambda job: order[job.solution.name]))
