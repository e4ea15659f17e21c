"""What a job will take, as far as this run has seen: the costliest work is dealt out first (`bench/schedule.py`)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from flashinfer_bench.bench.planning.plan import Job

UNKNOWN_S: Final = 1.0
"""Seconds of a job while none has ended."""
LEAST_S: Final = 0.001
"""No job is expected to take fewer seconds: a share of the work cannot be nothing."""


@dataclass
class Mean:
    """A mean that grows."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """Add a value."""
        self.total += value
        self.count += 1


@dataclass
class JobTimes:
    """Seconds that jobs took, by solution and by definition."""

    _of_solution: defaultdict[tuple[str, str], Mean] = field(default_factory=lambda: defaultdict(Mean))
    _of_definition: defaultdict[str, Mean] = field(default_factory=lambda: defaultdict(Mean))
    _of_all: Mean = field(default_factory=Mean)

    def add(self, job: Job, seconds: float) -> None:
        """Note what a job took."""
        name = job.definition.name
        for mean in (self._of_solution[name, job.solution_key], self._of_definition[name], self._of_all):
            mean.add(seconds)

    def forget(self, job: Job) -> None:
        """Forget what the jobs of a job's solution took."""
        self._of_solution.pop((job.definition.name, job.solution_key), None)

    def estimate(self, job: Job) -> float:
        """Return the seconds of a job: of those of its solution, else of its definition, else of all."""
        name = job.definition.name
        known = self._of_solution.get((name, job.solution_key)), self._of_definition.get(name), self._of_all
        return next(
            (max(mean.total / mean.count, LEAST_S) for mean in known if mean is not None and mean.count), UNKNOWN_S
        )
