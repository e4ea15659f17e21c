"""The seed of each job, which decides all of its random inputs.

If the user gives no seed, each job has its own secret seed. No file contains that seed before the job is over. After
the job its trace records the seed, and `run --replay` makes the same inputs again. If the user gives a seed, every
job's seed is derived from it. Such a run can be repeated, but a solution that knows the seed can predict its inputs.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.planning.resume import JobKey
from flashinfer_bench.data import Trace
from flashinfer_bench.data.digest import seed_of
from flashinfer_bench.errors import UsageError

SECRET_BITS = 62


class JobSeeds:
    """Gives each job its seed. Repeated calls for a job return the same seed.

    Args:
        run_seed: the user's seed; None for secret seeds.
        recorded: seeds of jobs that are judged again, by job.
    """

    def __init__(self, run_seed: int | None, recorded: dict[JobKey, int] | None = None) -> None:
        self._run_seed = run_seed
        self._recorded = dict(recorded or {})
        self._secrets: dict[int, int] = {}
        """Job index → secret seed. If a solution is judged again, it gets a new secret, since its trace has the old
        secret."""

    def anew(self) -> JobSeeds:
        """Return the seeds of another run: the user's seed and the recorded seeds stay, secret seeds are new."""
        return JobSeeds(self._run_seed, self._recorded)

    def of(self, job: Job) -> int:
        """Return a job's seed."""
        key = (job.definition.name, job.solution.name, job.workload.uuid)
        if key in self._recorded:
            return self._recorded[key]
        if self._run_seed is None:
            return self._secrets.setdefault(job.index, secrets.randbits(SECRET_BITS))
        return job_seed(self._run_seed, job)

    def forget(self, job: Job) -> None:
        """Forget the secret of a job that has ended. The job's index does not occur again."""
        self._secrets.pop(job.index, None)

    def describe(self, job: Job) -> dict[str, Any]:
        """Return the seed fields of a job's trace."""
        if self._run_seed is not None:
            return {"seed": self._run_seed, "seeded": True}
        return {"seed": self.of(job), "seeded": False}


def job_seed(run_seed: int, job: Job) -> int:
    """Return the seed of a job's inputs, derived from the seeds of run, definition, workload and solution.

    The seed differs between solutions, so that a solution cannot store answers for another solution.
    """
    parts = (str(run_seed), job.definition.digest(), job.workload.digest(), job.solution.digest())
    return seed_of("|".join(parts))


def recorded_seeds(traces: Iterable[Trace]) -> tuple[int | None, dict[JobKey, int]]:
    """Return the user's seed of the run that recorded the traces. If the user gave no seed, return None, and each job's
    secret seed.

    A trace without a seed has no entry, so its job gets a new seed.

    Raises:
        UsageError: the traces come from runs of different seeds.
    """
    run_seeds: set[int] = set()
    found: dict[JobKey, int] = {}
    for trace in traces:
        run = (trace.evaluation.extra or {}).get("run") if trace.evaluation is not None else None
        seed = run.get("seed") if isinstance(run, dict) else None
        if not isinstance(seed, int) or trace.solution is None or not isinstance(run, dict):
            continue
        if run.get("seeded", True):
            run_seeds.add(seed)
        else:
            found[(trace.definition, trace.solution, trace.workload.uuid)] = seed
    if len(run_seeds) + bool(found) > 1:
        raise UsageError("these traces come from runs of different seeds; replay them one by one (FILE:LINE)")
    return next(iter(run_seeds), None), found
