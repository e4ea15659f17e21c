"""Several workers for each job: copies of the jobs, interleaved between solutions, and one evaluation of them all.

The latency is the mean over the workers; its interval comes from the spread between them. The first worker that does
not pass decides the verdict: a solution has to be right each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.data import Evaluation, Performance
from flashinfer_bench.timing.between_workers import NOISY, told_of_workers


@dataclass
class Repeats:
    """The workers of each job of a plan.

    Args:
        jobs: the plan's, by their index.
        times: how many workers each gets.
    """

    jobs: Sequence[Job]
    times: int
    _found: dict[int, list[Evaluation]] = field(default_factory=dict)
    _ended: set[int] = field(default_factory=set)

    def copies(self) -> list[Job]:
        """Return the jobs in rounds: each once, then each again. A copy's index tells its job."""
        count = len(self.jobs)
        return [
            replace(job, index=at + count * round_) for round_ in range(self.times) for at, job in enumerate(self.jobs)
        ]

    def original(self, copy: Job) -> Job:
        """Return the plan's job that one is a copy of."""
        return self.jobs[copy.index % len(self.jobs)]

    def hear(self, copy: Job, evaluation: Evaluation) -> Evaluation | None:
        """Take what a worker came to; return the evaluation of its job once that is known, and only once."""
        index = copy.index % len(self.jobs)
        if index in self._ended:
            return None
        found = self._found.setdefault(index, [])
        found.append(evaluation)
        if evaluation.performance is None:
            self._ended.add(index)
            return evaluation
        if len(found) < self.times:
            return None
        self._ended.add(index)
        return join_workers(found)

    def fault(self, copy: Job) -> bool:
        """Take note that a worker has no verdict; say whether its job is to be told as a fault, which is once."""
        index = copy.index % len(self.jobs)
        is_first = index not in self._ended
        self._ended.add(index)
        return is_first

    def left_of(self, copy: Job) -> list[int]:
        """Return the indices of all copies of a job."""
        index = copy.index % len(self.jobs)
        return [index + len(self.jobs) * round_ for round_ in range(self.times)]

    def groups(self) -> list[list[float]]:
        """Return the latencies of each job's workers."""
        return [_latencies(found) for found in self._found.values()]


def join_workers(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Return one evaluation of several workers that passed, at least two. What it does not join is the last one's."""
    last = evaluations[-1]
    latencies = _latencies(evaluations)
    references = [one.performance.reference_latency_ms for one in evaluations if one.performance is not None]
    latency, reference = fmean(latencies), fmean(references) if min(references) > 0 else 0.0
    records = [dict((one.extra or {}).get("measurement", {})) for one in evaluations]
    record = told_of_workers(records[-1], latencies)
    raised = dict.fromkeys(flag for one in records for flag in one.get("flags", []))
    flags = [flag for flag in raised if flag != NOISY]  # how far workers differ stands in the interval
    record = {key: value for key, value in record.items() if key != "flags"} | ({"flags": flags} if flags else {})
    performance = Performance(
        latency_ms=latency,
        reference_latency_ms=reference,
        speedup_factor=reference / latency if reference > 0 and latency > 0 else 0.0,
    )
    return last.model_copy(update={"performance": performance, "extra": {**(last.extra or {}), "measurement": record}})


def _latencies(evaluations: Sequence[Evaluation]) -> list[float]:
    return [one.performance.latency_ms for one in evaluations if one.performance is not None]
