"""Winners are confirmed: the best of each workload is judged again at full assurance, and only then is it the best.

A run at standard assurance is cheap while many solutions are tried; what counts is judged by all that there is. This
module decides what is judged again, and starts nothing: `next_to_confirm` by the standings of one workload, `Winners`
by the results of a run, `BestKnown` by the single verdicts of an engine. The harness judges a confirmation like any
other job, in a worker of its own and on other inputs; its trace is another line of the file.

A confirmation may show that a solution passed what it should not have passed. If it breaks a rule that chance does not
break, and another job of the solution in this run does, too, each workload that it passed in this run gets another
line: the verdict by that rule (`void`).
"""

from __future__ import annotations

import math
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
from flashinfer_bench.data import Evaluation, EvaluationStatus, Trace
from flashinfer_bench.data.measurement import read_measurement, tell
from flashinfer_bench.data.store.trace_lines import AnyEvaluation, AnyTrace

MOST_CONFIRMED: Final = 3
"""Most confirmations of a workload in a run; what is as fast beyond these is a tie. Those that found a solution wrong,
or its time raised, do not count."""

VOIDING: Final = {"unwritten": 0.0, "norm": 2.0, "lost_rows": 2.0, "regimes": 2.0}
"""Rule → error, in multiples of its limit, from which chance does not explain that it is broken. The draws of a sampler
(`power`) are left to chance."""
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
    """Return how a solution stands by a verdict; None if it can never be the best."""
    performance, told = evaluation.performance, tell(evaluation)
    record = told.measurement
    if evaluation.status is not EvaluationStatus.PASSED or performance is None or not record.meaningful:
        return None
    if not told.may_be_best(performance.latency_ms):
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
    """Solution → its job, if it can be confirmed."""
    standings: dict[str, dict[str, Standing]] = field(default_factory=lambda: defaultdict(dict))
    """Hardware → solution → how it stands."""
    tried: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Hardware → solutions that were judged again."""


@dataclass
class Record:
    """What a run knows of one solution."""

    passed: dict[str, tuple[Contest, Trace]] = field(default_factory=dict)
    """Uuid of a workload → its latest verdict in this run, which is PASSED."""
    broken: list[Trace] = field(default_factory=list)
    """Verdicts by rules that chance does not break."""
    is_confirmation_broken: bool = False
    """One of them is of a confirmation."""


class Winners:
    """The workloads of a run, and what confirms their best.

    Args:
        jobs: of the run, at standard assurance.
        done: jobs that a resumed run leaves out, since a trace records them.
        recorded: all verdicts so far, the latest of a solution last.
        hardware: names of the devices of the run; those that join later are known by their verdicts.
        elsewhere: workloads whose best another run confirms.
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
        self.voided: list[Trace] = []
        """Lines that take verdicts of this run back, until somebody takes them out."""
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
        """Return what is judged first: the jobs of the run, and what an earlier one has left to be confirmed.

        A solution that nothing else is compared with is judged at full assurance at once.
        """
        found = []
        for job in self._jobs:
            contest = self._contests[scope_of(job)]
            is_alone = len(contest.jobs) == 1 and not any(contest.standings.values())
            found.append(confirming(job, job.index) if is_alone else job)
        return [*found, *(job for contest in self._contests.values() for job in self._next(contest))]

    def note(self, job: Job, result: Trace | JobFaulted) -> list[Job]:
        """Note what a job came to; return jobs that confirm the best of workloads that have all their verdicts."""
        contest, name = self._contests[scope_of(job)], job.solution.name
        contest.open -= 1
        changed = [contest]
        if isinstance(result, Trace) and (evaluation := result.evaluation) is not None:
            hardware = evaluation.environment.hardware
            self._here.add(hardware)
            note_standing(contest.standings[hardware], name, evaluation)
            if not read_measurement(evaluation).assurance:  # no clock outside the worker bounds its time
                contest.jobs.pop(name, None)
            record = self._records[job.definition.name, name]
            record.passed.pop(job.workload.uuid, None)
            if evaluation.status is EvaluationStatus.PASSED:
                record.passed[job.workload.uuid] = contest, result
            elif is_beyond_chance(evaluation):
                record.broken.append(result)
                record.is_confirmation_broken |= name in contest.tried[hardware]
            changed += self._void(record, name)
        return [confirmation for one in changed for confirmation in self._next(one)]

    def _void(self, record: Record, name: str) -> list[Contest]:
        """Take back what a solution passed, if it is to be; return the workloads.

        Two verdicts at standard assurance are not enough: an honest solution may be wrong on some workloads.
        """
        if not record.is_confirmation_broken or len(record.broken) < 2:
            return []
        passed, record.passed = record.passed, {}
        for contest, trace in passed.values():
            self.voided.append(void(trace, record.broken))
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
    """Return which workload a job is of."""
    return job.definition.name, job.workload.uuid


def is_beyond_chance(evaluation: Evaluation) -> bool:
    """Tell whether a verdict is by a rule that chance does not break, and no close one."""
    found = (evaluation.extra or {}).get("integrity")
    evidence = found.get("evidence") if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(evidence, dict) or found.get("rule") not in VOIDING:
        return False
    return bool(evidence.get("error_norm", math.inf) >= VOIDING[found["rule"]] * evidence.get("limit", 1.0))


def void(trace: Trace, broken: Sequence[Trace]) -> Trace:
    """Return the line that takes a verdict back: the latest of the verdicts by a broken rule, for this workload."""
    before, latest = trace.evaluation, broken[-1].evaluation
    assert before is not None
    assert latest is not None
    uuids = list(dict.fromkeys(one.workload.uuid for one in broken))
    integrity = {**(latest.extra or {})["integrity"], "voided_by": uuids}
    told = f"the solution broke rule {integrity['rule']!r} on {' and '.join(uuids)}, once as it was confirmed"
    changes = {
        "status": latest.status,
        "correctness": latest.correctness,
        "performance": None,
        "log": f"it passed here, and is taken back: {told}",
        "timestamp": max(before.timestamp, latest.timestamp),
        "extra": {**{key: (before.extra or {}).get(key) for key in ("run", "evaluator")}, "integrity": integrity},
    }
    return trace.model_copy(update={"evaluation": before.model_copy(update=changes)})
