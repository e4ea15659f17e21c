"""Winners are confirmed: the best of each workload is judged again at full assurance, and only then is it the best.

A run at standard assurance is cheap while many solutions are tried; what counts is judged by all that there is. This
module decides what is judged again, and starts nothing: `next_to_confirm` by the standings of one workload, `Winners`
by the results of a run, `BestKnown` by the single verdicts of an engine. The harness judges a confirmation like any
other job, in a worker of its own and on other inputs; its trace is another line of the file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final, Literal, NamedTuple

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted
from flashinfer_bench.bench.machine import Machine
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.planning.resume import FULL
from flashinfer_bench.data import EvaluationStatus, Trace
from flashinfer_bench.data.measurement import read_measurement
from flashinfer_bench.data.store.trace_lines import AnyEvaluation, AnyTrace

MOST_CONFIRMED: Final = 3
"""Most confirmations of a workload in a run; what is as fast beyond these is a tie."""

MOST_KNOWN: Final = 16
"""Solutions that an engine knows of a workload on one kind of hardware: the fastest."""
Confirm = Literal["if_best", "always", "never"]
"""Whether what is submitted is judged at full assurance: if it would be the best, at once, or not at all."""
Scope = tuple[str, str]
"""Name of a definition, uuid of a workload."""


class Standing(NamedTuple):
    """How a solution stands on one workload: the time of its latest verdict, which is PASSED."""

    solution: str
    """`Job.solution_key`, or the name of one that this run does not judge."""
    latency_ms: float
    low_ms: float
    high_ms: float
    """Bounds of its 95 % interval."""
    is_confirmed: bool = False


def next_to_confirm(standings: Iterable[Standing], tried: Collection[str]) -> str | None:
    """Return the solution that is to be judged again on a workload; None if the best stands, or nothing can be done.

    That is the fastest without a confirmation, if each confirmed time lies behind its time by more than both intervals.

    Args:
        standings: of all solutions that pass on one kind of hardware, recorded ones included.
        tried: solutions that this run has judged again, with whatever result.
    """
    if len(tried) >= MOST_CONFIRMED:
        return None
    found = list(standings)
    left = [one for one in found if not one.is_confirmed and one.solution not in tried]
    if not left:
        return None
    fastest = min(left, key=lambda one: one.latency_ms)
    is_ahead = all(fastest.high_ms < one.low_ms for one in found if one.is_confirmed)
    return fastest.solution if is_ahead else None


def stand(solution: str, evaluation: AnyEvaluation) -> Standing | None:
    """Return how a solution stands by a verdict; None if it can never be the best."""
    performance, record = evaluation.performance, read_measurement(evaluation)
    if evaluation.status is not EvaluationStatus.PASSED or performance is None or not evaluation.may_be_best:
        return None
    if not record.meaningful:
        return None
    low_ms, high_ms = record.bounds or (performance.latency_ms, performance.latency_ms)
    return Standing(solution, performance.latency_ms, low_ms, high_ms, record.is_full)


def note_standing(standings: dict[str, Standing], solution: str, evaluation: AnyEvaluation) -> None:
    """Note the latest verdict of a solution among those of one workload and hardware."""
    found = stand(solution, evaluation)
    standings.pop(solution, None)
    if found is not None:
        standings[solution] = found


def may_confirm(config: BenchmarkConfig, machine: Machine) -> bool:
    """Tell whether winners are confirmed at all: on a GPU, at standard assurance, unless the user does without."""
    return config.confirm and config.assurance == "standard" and not config.quick and machine.kind != "cpu"


class BestKnown:
    """The fastest solutions of each workload that an engine knows: recorded ones, and those that it has judged."""

    def __init__(self) -> None:
        self._fastest: defaultdict[tuple[str, str, str], dict[str, Standing]] = defaultdict(dict)
        """Definition, workload and hardware → solution → how it stands."""

    def note(self, trace: AnyTrace, solution: str) -> bool:
        """Note a verdict; return whether it makes its solution the best that is known, and is to be confirmed.

        Args:
            trace: the latest verdict of the solution on the workload.
            solution: its digest, or the name of one that has none.
        """
        evaluation = trace.evaluation
        if evaluation is None:
            return False
        fastest = self._fastest[trace.definition, trace.workload.uuid, evaluation.environment.hardware]
        note_standing(fastest, solution, evaluation)
        if len(fastest) > MOST_KNOWN:
            del fastest[max(fastest.values(), key=lambda one: one.latency_ms).solution]
        is_best = next_to_confirm(fastest.values(), ()) == solution
        return is_best and bool(read_measurement(evaluation).assurance)


@dataclass
class Contest:
    """One workload of a run."""

    open: int = 0
    """Its jobs without a result."""
    jobs: dict[str, Job] = field(default_factory=dict)
    """`Job.solution_key` → the job of a solution that can be confirmed."""
    standings: dict[str, dict[str, Standing]] = field(default_factory=lambda: defaultdict(dict))
    """Hardware → solution → how it stands."""
    tried: list[str] = field(default_factory=list)


class Winners:
    """The workloads of a run, and what confirms their best.

    Args:
        jobs: of the run, at standard assurance.
        done: jobs that a resumed run leaves out, since a trace records them.
        recorded: all verdicts so far, the latest of a solution last.
    """

    def __init__(self, jobs: Sequence[Job], done: Sequence[Job] = (), recorded: Iterable[AnyTrace] = ()) -> None:
        self._jobs = jobs
        self._contests: defaultdict[Scope, Contest] = defaultdict(Contest)
        self._numbers = count(len(jobs))
        for job in (*done, *jobs):
            self._contests[_scope(job)].jobs[job.solution_key] = job
        for job in jobs:
            self._contests[_scope(job)].open += 1
        again = {(*_scope(job), job.solution.name) for job in jobs}
        keys = {(*_scope(job), job.solution.name): job.solution_key for job in done}
        for trace in recorded:
            scope, name = (trace.definition, trace.workload.uuid), trace.solution or ""
            if scope in self._contests and trace.evaluation is not None and (*scope, name) not in again:
                standings = self._contests[scope].standings[trace.evaluation.environment.hardware]
                note_standing(standings, keys.get((*scope, name), name), trace.evaluation)

    def begin(self) -> list[Job]:
        """Return what is judged first: the jobs of the run, and what an earlier one has left to be confirmed.

        A solution that nothing else is compared with is judged at full assurance at once.
        """
        found = []
        for job in self._jobs:
            contest = self._contests[_scope(job)]
            is_alone = len(contest.jobs) == 1 and not any(contest.standings.values())
            found.append(confirming(job, job.index) if is_alone else job)
        return [*found, *(job for contest in self._contests.values() for job in self._next(contest))]

    def note(self, job: Job, result: Trace | JobFaulted) -> list[Job]:
        """Note what a job came to; return the job that confirms the best, if its workload has all its verdicts."""
        contest = self._contests[_scope(job)]
        contest.open -= 1
        if isinstance(result, Trace) and result.evaluation is not None:
            standings = contest.standings[result.evaluation.environment.hardware]
            note_standing(standings, job.solution_key, result.evaluation)
            if not read_measurement(result.evaluation).assurance:  # no clock outside the worker bounds its time
                contest.jobs.pop(job.solution_key, None)
        return self._next(contest)

    def _next(self, contest: Contest) -> list[Job]:
        for standings in contest.standings.values() if not contest.open else ():
            chosen = next_to_confirm(standings.values(), contest.tried)
            if chosen is not None and chosen in contest.jobs:
                contest.tried.append(chosen)
                contest.open += 1
                return [confirming(contest.jobs[chosen], next(self._numbers))]
        return []


def confirming(job: Job, index: int) -> Job:
    """Return the job that judges a job's solution at full assurance."""
    return replace(job, index=index, assurance=FULL, fingerprint={**job.fingerprint, "assurance": FULL})


def _scope(job: Job) -> Scope:
    return job.definition.name, job.workload.uuid
