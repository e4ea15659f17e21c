"""The seed of each job: what all of its random inputs are made from.

Without a seed of the user's each job has a secret of its own, which stands in no file before the job is over; then its
trace carries it, and `run --replay` makes the same inputs again. With the user's seed every job's seed follows from it:
such a run can be repeated, and a solution that knows the seed can know its inputs.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.planning.resume import JobKey
from flashinfer_bench.data import Trace
from flashinfer_bench.data.digest import seed_of
from flashinfer_bench.errors import Misuse

SECRET_BITS = 62


class JobSeeds:
    """Gives each job its seed, the same one each time.

    Args:
        run_seed: the user's; None for secrets.
        recorded: seeds of jobs that are judged again, by job.
    """

    def __init__(self, run_seed: int | None, recorded: dict[JobKey, int] | None = None) -> None:
        self._run_seed = run_seed
        self._recorded = dict(recorded or {})
        self._secrets: dict[int, int] = {}
        """By the job's index: a solution that is judged again gets other inputs, since its trace has told the first."""

    def anew(self) -> JobSeeds:
        """Return the seeds of another run of the same kind: its secrets are others."""
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
        """Forget the secret of a job that has ended, and whose number comes never again."""
        self._secrets.pop(job.index, None)

    def describe(self, job: Job) -> dict[str, Any]:
        """Return what a trace says of a job's seed."""
        if self._run_seed is not None:
            return {"seed": self._run_seed, "seeded": True}
        return {"seed": self.of(job), "seeded": False}


def job_seed(run_seed: int, job: Job) -> int:
    """Return the seed of a job's inputs: the run's, the definition's, the workload's and the solution's together.

    It differs between solutions, so that none can leave another the answers.
    """
    parts = (str(run_seed), job.definition.digest(), job.workload.digest(), job.solution.digest())
    return seed_of("|".join(parts))


def recorded_seeds(traces: Iterable[Trace]) -> tuple[int | None, dict[JobKey, int]]:
    """Return the seed of the run that recorded some traces, where the user gave one, and else each job's own seed.

    A trace that carries no seed has none here: its job gets a new one.

    Raises:
        Misuse: the traces come from runs of different seeds.
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
        raise Misuse("these traces come from runs of different seeds; replay them one by one (FILE:LINE)")
    return next(iter(run_seeds), None), found
