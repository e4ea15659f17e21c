"""Confirms winners: the best solution of each workload counts as best only after it was judged again at full assurance.

A run at standard assurance is cheap while many solutions are tried; winners are judged by all checks. This module
decides what is judged again, and starts no process. `next_to_confirm` decides for one workload, `Winners` for a run,
and `BestKnown` for the single verdicts of an engine. The harness judges a confirmation like any other job, in a new
worker and on other inputs; its trace is another line of the file.

Some checks never reject a right solution by chance. If such checks reject a solution in a confirmation and in another
job of this run, the solution's passed verdicts were wrong. Each workload that it passed in this run then gets another
trace, which revokes the verdict (`void`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final, Literal, NamedTuple

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, JobFinished
from flashinfer_bench.bench.machine import Machine
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.planning.resume import FULL
from flashinfer_bench.data import Evaluation, EvaluationStatus, Trace
from flashinfer_bench.data.measurement import read_measurement, read_reported
from flashinfer_bench.data.store.trace_lines import AnyEvaluation, AnyTrace

MOST_CONFIRMED: Final = 3
"""Maximum number of confirmations of a workload in a run. Solutions of the same speed beyond this number count as a
tie. The count omits confirmations that found the solution wrong, or far slower than the worker reported."""

VOIDING: Final = {"unwritten": 0.0, "norm": 2.0, "lost_rows": 2.0, "regimes": 2.0}
"""Rule → smallest error that chance cannot explain, in multiples of the rule's limit. `power`, the rule on a sampler's
draws, is missing, since chance can break it."""
MOST_KNOWN: Final = 16
"""Number of fastest solutions that an engine remembers for each workload and kind of hardware."""
Confirm = Literal["if_best", "always", "never"]
"""When a submission is judged at full assurance. "if_best": after a verdict that would make it the best. "always": at
once. "never": not at all."""
Scope = tuple[str, str]
"""Name of a definition, uuid of a workload."""


class Standing(NamedTuple):
    """The time of a solution on one workload; the solution's latest verdict there is PASSED."""

    solution: str
    """`Job.solution_key`, or the name of a solution that this run does not judge."""
    latency_ms: float
    low_ms: float
    high_ms: float
    """Bounds of its 95 % interval."""
    is_confirmed: bool = False


def next_to_confirm(standings: Iterable[Standing], tried: Collection[str]) -> str | None:
    """Return the solution to confirm next on a workload; None if the best is confirmed, or no solution is left to try.

    The next solution is the fastest without a confirmation. The interval of its time must lie below the intervals of
    all confirmed solutions.

    Args:
        standings: the times of all solutions that pass on one kind of hardware, including recorded verdicts.
        tried: solutions that this run has judged again, with any result.
    """
    found = list(standings)
    if sum(one.solution in tried for one in found) >= MOST_CONFIRMED:
        return None
    left = [one for one in found if not one.is_confirmed and one.solution not in tried]
    if not left:
        return None
    fastest = min(left, key=lambda one: one.latency_ms)
    is_ahead = all(fastest.high_ms < one.low_ms for one in found if one.is_confirmed)
    return fastest.solution if is_ahead else None


def stand(solution: str, evaluation: AnyEvaluation) -> Standing | None:
    """Return a solution's standing from a verdict; None if this verdict cannot make the solution the best."""
    performance, reported = evaluation.performance, read_reported(evaluation)
    record = reported.measurement
    if evaluation.status is not EvaluationStatus.PASSED or performance is None or not record.meaningful:
        return None
    if not (performance.latency_ms and reported.may_be_best(performance.latency_ms)):
        return None
    low_ms, high_ms = record.bounds or (performance.latency_ms, performance.latency_ms)
    return Standing(solution, performance.latency_ms, low_ms, high_ms, record.is_full)


def note_standing(standings: dict[str, Standing], solution: str, evaluation: AnyEvaluation) -> None:
    """Update the standings on one workload and hardware by a solution's latest verdict."""
    found = stand(solution, evaluation)
    standings.pop(solution, None)
    if found is not None:
        standings[solution] = found


def may_confirm(config: BenchmarkConfig, machine: Machine) -> bool:
    """Return whether winners are confirmed. This needs a GPU, standard assurance, and `confirm`; quick runs confirm
    nothing."""
    return config.confirm and config.assurance == "standard" and not config.quick and machine.kind != "cpu"


class BestKnown:
    """The fastest known solutions of each workload of an engine, from recorded verdicts and from its own verdicts."""

    def __init__(self) -> None:
        self._fastest: defaultdict[tuple[str, str, str], dict[str, Standing]] = defaultdict(dict)
        """Definition, workload and hardware → solution → its standing."""

    def note(self, trace: AnyTrace, solution: str) -> bool:
        """Note a verdict; return whether its solution becomes the best known, and must be confirmed.

        Args:
            trace: the latest verdict of the solution on the workload.
            solution: its digest, or its name if it has no digest.
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
    """Number of its jobs without a result."""
    jobs: dict[str, Job] = field(default_factory=dict)
    """Solution → its job, if it can be confirmed."""
    standings: dict[str, dict[str, Standing]] = field(default_factory=lambda: defaultdict(dict))
    """Hardware → solution → its standing."""
    tried: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Hardware → solutions that were judged again."""


@dataclass
class Record:
    """A run's record of one solution."""

    passed: dict[str, tuple[Contest, JobFinished]] = field(default_factory=dict)
    """Uuid of a workload → its latest verdict in this run, if this is PASSED."""
    broken: list[Trace] = field(default_factory=list)
    """Rejections by rules that a right solution never breaks by chance."""
    is_confirmation_broken: bool = False
    """Whether one of the verdicts in `broken` comes from a confirmation."""


class Winners:
    """The workloads of a run, and the confirmations of their best solutions.

    Args:
        jobs: the jobs of the run, at standard assurance.
        done: jobs that a resumed run skips, since a trace records them.
        recorded: all verdicts so far, the latest of a solution last.
        hardware: names of the devices of the run. The names of devices that join later come from verdicts.
        elsewhere: workloads whose best solution another run confirms.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        done: Sequence[Job] = (),
        recorded: Iterable[AnyTrace] = (),
        *,
        hardware: Iterable[str] = (),
        elsewhere: Collection[Scope] = (),
    ) -> None:
        self._jobs, self._here, self._elsewhere = jobs, set(hardware), elsewhere
        self._contests: defaultdict[Scope, Contest] = defaultdict(Contest)
        self._records: defaultdict[tuple[str, str], Record] = defaultdict(Record)
        self._numbers = count(len(jobs))
        self.voided: list[JobFinished] = []
        """Passed verdicts of this run with the traces that revoke them, until a caller takes them out."""
        for job in (*done, *jobs):
            self._contests[scope_of(job)].jobs[job.solution.name] = job
        for job in jobs:
            self._contests[scope_of(job)].open += 1
        again = {(*scope_of(job), job.solution.name) for job in jobs}
        for trace in recorded:
            scope, name = (trace.definition, trace.workload.uuid), trace.solution or ""
            if scope in self._contests and trace.evaluation is not None and (*scope, name) not in again:
                standings = self._contests[scope].standings[trace.evaluation.environment.hardware]
                note_standing(standings, name, trace.evaluation)

    def begin(self) -> list[Job]:
        """Return the run's jobs, and the open confirmations of an earlier run.

        If a workload has only one solution, this solution is judged at full assurance at once.
        """
        found = []
        for job in self._jobs:
            contest = self._contests[scope_of(job)]
            is_alone = len(contest.jobs) == 1 and not any(contest.standings.values())
            found.append(confirming(job, job.index) if is_alone else job)
        return [*found, *(job for contest in self._contests.values() for job in self._next(contest))]

    def note(self, result: JobFinished | JobFaulted) -> list[Job]:
        """Note the result of a job; return the confirmations of workloads whose verdicts are now complete."""
        job, name = result.job, result.job.solution.name
        contest = self._contests[scope_of(job)]
        contest.open -= 1
        changed = [contest]
        if isinstance(result, JobFinished) and (evaluation := result.trace.evaluation) is not None:
            hardware = evaluation.environment.hardware
            self._here.add(hardware)
            note_standing(contest.standings[hardware], name, evaluation)
            if not read_measurement(evaluation).assurance:  # no clock outside the worker has checked the latency
                contest.jobs.pop(name, None)
            record = self._records[job.definition.name, name]
            record.passed.pop(job.workload.uuid, None)
            if evaluation.status is EvaluationStatus.PASSED:
                record.passed[job.workload.uuid] = contest, result
            elif is_beyond_chance(evaluation):
                record.broken.append(result.trace)
                record.is_confirmation_broken |= name in contest.tried[hardware]
            changed += self._void(record, name)
        return [confirmation for one in changed for confirmation in self._next(one)]

    def _void(self, record: Record, name: str) -> list[Contest]:
        """Revoke the passed verdicts of a solution with two verdicts in `broken`; return the workloads of the revoked
        verdicts.

        One of these two verdicts must come from a confirmation, since an honest solution may be wrong on two workloads.
        """
        if not record.is_confirmation_broken or len(record.broken) < 2:
            return []
        passed, record.passed = record.passed, {}
        for contest, finished in passed.values():
            self.voided.append(replace(finished, trace=void(finished.trace, record.broken)))
            contest.jobs.pop(name, None)
            for standings in contest.standings.values():
                standings.pop(name, None)
        return [contest for contest, _ in passed.values()]

    def _next(self, contest: Contest) -> list[Job]:
        found = []
        for hardware, standings in contest.standings.items() if not contest.open else ():
            tried = contest.tried[hardware]
            chosen = next_to_confirm(standings.values(), tried) if hardware in self._here else None
            job = contest.jobs.get(chosen or "")
            if chosen is not None and job is not None and scope_of(job) not in self._elsewhere:
                tried.append(chosen)
                found.append(confirming(job, next(self._numbers), hardware))
        contest.open += len(found)
        return found


def confirming(job: Job, index: int, hardware: str | None = None) -> Job:
    """Return the job that judges a job's solution at full assurance, on any device or on this hardware."""
    keys = {**job.fingerprint, "assurance": FULL}
    return replace(job, index=index, assurance=FULL, hardware=hardware, fingerprint=keys)


def scope_of(job: Job) -> Scope:
    """Return a job's definition and workload."""
    return job.definition.name, job.workload.uuid


def is_beyond_chance(evaluation: Evaluation) -> bool:
    """Return whether a verdict rejects by a rule that chance does not break, and by a clear margin."""
    found = (evaluation.extra or {}).get("integrity")
    evidence = found.get("evidence") if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(evidence, dict) or found.get("rule") not in VOIDING:
        return False
    return bool(evidence.get("error_norm", math.inf) >= VOIDING[found["rule"]] * evidence.get("limit", 1.0))


def void(trace: Trace, broken: Sequence[Trace]) -> Trace:
    """Return the trace that revokes a verdict. The trace has the status and the rule of the latest trace in
    `broken`."""
    before, latest = trace.evaluation, broken[-1].evaluation
    assert before is not None
    assert latest is not None
    uuids = list(dict.fromkeys(one.workload.uuid for one in broken))
    integrity = {**(latest.extra or {})["integrity"], "voided_by": uuids}
    reported = f"the solution broke rule {integrity['rule']!r} on {' and '.join(uuids)}, once as it was confirmed"
    changes = {
        "status": latest.status,
        "correctness": latest.correctness,
        "performance": None,
        "log": f"it passed here, and is taken back: {reported}",
        "timestamp": max(before.timestamp, latest.timestamp),
        "extra": {**{key: (before.extra or {}).get(key) for key in ("run", "evaluator")}, "integrity": integrity},
    }
    return trace.model_copy(update={"evaluation": before.model_copy(update=changes)})
