"""A plan as a submission: each job once, or in several workers that are interleaved between solutions.

With several workers the latency is the mean over them; its interval comes from the spread between them. The first
worker that does not pass decides the verdict: a solution has to be right each time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from flashinfer_bench.bench.events import JobFaulted
from flashinfer_bench.bench.harness import Harness, Result, Submission
from flashinfer_bench.bench.job_queue import Lane
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.data import Evaluation, Performance, Trace
from flashinfer_bench.timing.between_workers import NOISY, told_of_workers


class PlanRun(Submission):
    """The jobs of a plan.

    Args:
        harness: judges them.
        jobs: by their index.
        times: workers of each job.
        is_saved: each trace is appended to the set on disk before it is told.
    """

    def __init__(self, harness: Harness, jobs: Sequence[Job], times: int, *, is_saved: bool) -> None:
        self._harness = harness
        self._jobs = tuple(jobs)
        self._times = times
        self.lane = Lane(in_order=times > 1)
        self.is_saved = is_saved
        self.open = len(jobs)
        """Jobs without a result."""
        self._begun: set[int] = set()
        self._found: defaultdict[int, list[Evaluation]] = defaultdict(list)
        self._ended: set[int] = set()

    def begin(self) -> None:
        """Submit the jobs in rounds: each job once, then each again."""
        self._harness.submit(self, self._jobs * self._times)

    def note_start(self, job: Job) -> bool:
        """Return whether no worker of the job was told before."""
        is_first = job.index not in self._begun
        self._begun.add(job.index)
        return is_first

    def join(self, job: Job, result: Result) -> Result | None:
        """Return the result of a job with its last worker, or with the first that does not pass."""
        if job.index in self._ended:
            return None
        if isinstance(result, Evaluation) and self._times > 1:
            found = self._found[job.index]
            found.append(result)
            if result.performance is not None and len(found) < self._times:
                return None
            result = join_workers(found) if result.performance is not None else result
        self._ended.add(job.index)
        self.open -= 1
        return result

    def note(self, job: Job, result: Trace | JobFaulted) -> None:
        """Take a job's other workers out."""
        del result
        if self._times > 1:
            self._harness.withdraw(self, job)

    def latencies(self) -> list[list[float]]:
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
