"""What changed: between two sets, and from run to run. Each change of a time has a decision, by the recorded intervals.

The rule is that of `compare` (`report/decision.py`). Nothing is measured again: what recorded intervals do not know,
such as a busy machine on that day, no decision knows either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import log
from operator import attrgetter
from typing import Final

from flashinfer_bench.data.sets.latest import parse_time
from flashinfer_bench.data.sets.results import Result, group
from flashinfer_bench.report.comparable import find_difference, marks_of
from flashinfer_bench.report.decision import SAME, THRESHOLD, UNKNOWN, decide, join_halves
from flashinfer_bench.report.intervals import MeanRatio, half_of, mean_of

GONE, NEW = "gone", "new"
VERDICT: Final = "verdict"
DIGEST_SHOWN: Final = 8
"""Digits of a digest that tell it from others."""
_job = attrgetter("definition", "solution", "workload", "hardware")


@dataclass(frozen=True)
class Change:
    """One job in an old and in a new set."""

    definition: str
    solution: str
    workload: str
    hardware: str
    decision: str
    """"faster", "slower", "same", "cannot tell yet", "verdict" (it changed), "new" or "gone"."""
    reason: str
    """Why it cannot be told; empty where it can."""
    old_status: str
    new_status: str
    old_ms: float | None
    new_ms: float | None
    ratio: MeanRatio | None
    """New time over old time."""


@dataclass(frozen=True)
class Epoch:
    """Verdicts in a row of a solution on one kind of hardware, with the same sources and versions, one a workload."""

    solution: str
    hardware: str
    digest: str
    """The solution's digest; empty where the traces do not tell it."""
    begin: str
    """Time of the first verdict."""
    verdicts: int
    passed: int
    latency_ms: float | None
    """Geometric mean over the workloads that passed."""
    changed: tuple[str, ...]
    """What differs from the epoch before: "sources", or a package with its versions; empty where it was run again."""
    ratio: MeanRatio | None
    """Times over those of the epoch before, on the workloads of both."""
    decision: str
    """As of a change; empty for the first epoch."""


def find_changes(old: Iterable[Result], new: Iterable[Result], threshold: float = THRESHOLD) -> list[Change]:
    """Return a change for each job of either set, by definition, solution and workload."""
    before, after = ({_job(item): item for item in part} for part in (old, new))
    found = []
    for job in sorted({*before, *after}):
        one, two = before.get(job), after.get(job)
        decision, reason, ratio = _decide_change(one, two, threshold)
        old_status, new_status = (item.status if item is not None else "" for item in (one, two))
        old_ms, new_ms = (item.latency_ms if item is not None else None for item in (one, two))
        found.append(Change(*job, decision, reason, old_status, new_status, old_ms, new_ms, ratio))
    return found


def find_epochs(results: Iterable[Result], threshold: float = THRESHOLD) -> list[Epoch]:
    """Return the epochs of each solution on each kind of hardware, the earliest first.

    Args:
        results: all of a definition, repeated ones too.
        threshold: the smallest difference of interest.
    """
    epochs: list[Epoch] = []
    for _, items in sorted(group(results, attrgetter("solution", "hardware")).items()):
        previous: list[Result] = []
        for current in _split(sorted(items, key=_moment)):
            epochs.append(_epoch(current, previous, threshold))
            previous = current
    return epochs


def _moment(item: Result) -> float:
    moment = parse_time(item.evaluation.timestamp)
    return moment.timestamp() if moment is not None else 0.0


def _split(ordered: Iterable[Result]) -> Iterator[list[Result]]:
    """Yield the results of each epoch: a new one begins with other conditions, and where a workload comes again."""
    current: list[Result] = []
    for item in ordered:
        is_again = any(item.workload == other.workload for other in current)
        if current and (is_again or _differences(current[0], item)):
            yield current
            current = []
        current.append(item)
    if current:
        yield current


def _decide_change(old: Result | None, new: Result | None, threshold: float) -> tuple[str, str, MeanRatio | None]:
    if old is None or new is None:
        return (NEW if old is None else GONE), "", None
    if old.status != new.status:
        return VERDICT, "", None
    if not old.is_passed:
        return SAME, "", None
    problem = _not_comparable(old, new)
    if problem:
        return UNKNOWN, problem, None
    ratio = _ratio([(old, new)])
    decision = _decide(ratio, threshold)
    why = "an interval reaches to 0" if ratio is None or ratio.low is None else "the interval is too wide"
    return decision, why if decision == UNKNOWN else "", ratio


def _not_comparable(old: Result, new: Result) -> str:
    """Say why two times are not to be compared; empty where they are."""
    for item, which in ((old, "old"), (new, "new")):
        if not item.is_ranked:
            return f"the {which} time is of a quick look, or means nothing"
    difference = find_difference(*(marks_of(item.told, item.hardware) for item in (old, new)))
    return "" if difference is None else f"{difference.kind}: {difference.first} then, {difference.second} now"


def _ratio(pairs: Iterable[tuple[Result, Result]]) -> MeanRatio | None:
    """Return the geometric mean of new over old times, with its interval."""
    timed = [(old, new) for old, new in pairs if old.latency_ms and new.latency_ms]
    ratios = [(new.latency_ms or 0.0) / (old.latency_ms or 1.0) for old, new in timed]
    return mean_of(ratios, [join_halves(list(map(half_of, pair))) for pair in timed])


def _decide(ratio: MeanRatio | None, threshold: float) -> str:
    if ratio is None:
        return UNKNOWN
    return decide(log(ratio.value), None if ratio.high is None else log(ratio.high / ratio.value), threshold)


def _epoch(current: Sequence[Result], previous: Sequence[Result], threshold: float) -> Epoch:
    first = current[0]
    before = {item.workload: item for item in previous}
    shared = [(before[item.workload], item) for item in current if item.workload in before and item.is_passed]
    ratio = _ratio(pair for pair in shared if pair[0].is_passed and not _not_comparable(*pair))
    latency = mean_of([item.latency_ms for item in current if item.is_passed and item.latency_ms], [None])
    return Epoch(
        solution=first.solution,
        hardware=first.hardware,
        digest=first.told.run.fingerprint.solution[:DIGEST_SHOWN],
        begin=first.evaluation.timestamp,
        verdicts=len(current),
        passed=sum(item.is_passed for item in current),
        latency_ms=latency.value if latency is not None else None,
        changed=_differences(previous[-1], first) if previous else (),
        ratio=ratio,
        decision=_decide(ratio, threshold) if previous else "",
    )


def _differences(old: Result, new: Result) -> tuple[str, ...]:
    """Say what differs in the conditions of two results: the sources, and versions of libraries."""
    before, after = (item.evaluation.environment.libs for item in (old, new))
    is_other = old.told.run.fingerprint.solution != new.told.run.fingerprint.solution
    versions = [
        f"{name} {before.get(name, '-')} -> {after.get(name, '-')}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]
    return (*(["sources"] if is_other else []), *versions)
