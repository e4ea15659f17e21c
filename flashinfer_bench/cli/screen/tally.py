"""Counts what a run has done so far from its events. The caller gives the time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from flashinfer_bench.bench.events import Event, JobFaulted, JobFinished, JobsAdded, JobStarted, Notice, RunStarted
from flashinfer_bench.bench.planning.plan import Job


@dataclass
class Tally:
    """Counts of one run."""

    jobs: int = 0
    """Number of jobs of the run."""
    faulted: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    """Verdicts by status."""
    running: dict[str, tuple[Job, float]] = field(default_factory=dict)
    """Device label to its current job, and the time in seconds when that began."""
    first_job_at: float | None = None

    @property
    def done(self) -> int:
        """Jobs that are over, with or without a verdict."""
        return self.statuses.total() + self.faulted

    @property
    def not_passed(self) -> int:
        """Jobs that are over and did not pass."""
        return self.done - self.statuses["PASSED"]

    def observe(self, event: Event, now: float) -> None:
        """Count one event."""
        match event:
            case RunStarted():
                self.jobs = event.jobs
            case JobsAdded():
                self.jobs += event.jobs
            case JobStarted():
                self.first_job_at = now if self.first_job_at is None else self.first_job_at
                self.running[event.device.label] = (event.job, now)
            case JobFinished():
                if event.trace.evaluation is not None:
                    self.statuses[event.trace.evaluation.status.value] += 1
                self._end(event.job)
            case JobFaulted():
                self.faulted += 1
                self._end(event.job)
            case Notice():
                pass

    def jobs_per_second(self, now: float) -> float | None:
        """Return the rate since the first job began; None before one is over."""
        if self.first_job_at is None or not self.done or now <= self.first_job_at:
            return None
        return self.done / (now - self.first_job_at)

    def seconds_left(self, now: float) -> float | None:
        """Return the time that the rest takes at the rate so far."""
        rate = self.jobs_per_second(now)
        return None if rate is None else (self.jobs - self.done) / rate

    def _end(self, job: Job) -> None:
        self.running = {label: item for label, item in self.running.items() if item[0].index != job.index}
