"""Changes between two sets, from run to run, and from save to save. Recorded intervals decide whether a time changed.

`compare` uses the same rule (`report/decision.py`). No time is measured again. Recorded intervals omit some causes of a
change, such as a machine that was busy on one day. So decisions ignore these causes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from math import log
from operator import attrgetter
from typing import Any, Final, NamedTuple

from flashinfer_bench.data import Trace
from flashinfer_bench.data.measurement import INDICATIVE, join_standings
from flashinfer_bench.data.sets.results import Result, group, list_results, moment_of
from flashinfer_bench.report.comparable import comparison_keys, find_difference
from flashinfer_bench.report.decision import SAME, THRESHOLD, UNKNOWN, decide, join_halves
from flashinfer_bench.report.intervals import MeanRatio, half_of, mean_of

GONE, NEW = "gone", "new"
VERDICT: Final = "verdict"
UNCHANGED: Final = "unchanged sources"
_job = attrgetter("definition", "solution", "workload", "hardware")


@dataclass(frozen=True)
class Change:
    """One job in an old and a new set."""

    definition: str
    solution: str
    workload: str
    hardware: str
    decision: str
    """"faster", "slower", "same", "cannot tell yet", "verdict" (changed), "new" or "gone"."""
    reason: str
    """Why there is no decision, or both verdicts if the verdict changed. Otherwise empty."""
    old_status: str
    new_status: str
    old_ms: float | None
    new_ms: float | None
    ratio: MeanRatio | None
    """New time over old time."""


@dataclass(frozen=True)
class Epoch:
    """Consecutive verdicts on a solution on one kind of hardware, at most one per workload. Sources and versions are
    the same for all of these verdicts."""

    solution: str
    hardware: str
    digest: str
    """The first 8 digits of the solution's digest; empty if the traces lack the digest."""
    begin: str
    """Time of the first verdict."""
    verdicts: int
    passed: int
    latency_ms: float | None
    """Geometric mean over the workloads that passed."""
    changed: tuple[str, ...]
    """The difference from the previous epoch: "sources", or a package with its versions; empty for a re-run."""
    ratio: MeanRatio | None
    """Times of this epoch over times of the previous epoch, on the workloads of both epochs."""
    decision: str
    """Decision on the ratio, as in `Change`; empty for the first epoch."""


class SaveChange(NamedTuple):
    """The times of a save, compared with the times of an earlier save."""

    since: str
    """Time of the earlier save: 14:02:11."""
    ratio: MeanRatio
    """Geometric mean over workloads of new time divided by old time."""
    decision: str
    """Decision on the ratio, as in `Change`; `UNCHANGED` if the sources are equal."""
    standing: str
    """The standing of the new times."""

    def __str__(self) -> str:
        """Describe the change: "0.71x the time of 14:02:11 (0.66 to 0.77): faster"."""
        head = f"{INDICATIVE}: " if self.standing == INDICATIVE else ""
        interval = " ({:.2f} to {:.2f})".format(*self.ratio.interval) if self.ratio.interval is not None else ""
        return f"{head}{self.ratio.value:.2f}x the time of {self.since}{interval}: {self.decision}"

    def document(self) -> dict[str, Any]:
        """Return the change as JSON-able values."""
        interval = [self.ratio.low, self.ratio.high]
        return {**self._asdict(), "ratio": self.ratio.value, "interval95": interval}


def find_changes(old: Iterable[Result], new: Iterable[Result], threshold: float = THRESHOLD) -> list[Change]:
    """Return a change for each job of the two sets, ordered by definition, solution and workload."""
    before, after = ({_job(item): item for item in part} for part in (old, new))
    found = []
    for job in sorted({*before, *after}):
        one, two = before.get(job), after.get(job)
        old_status, new_status = ("" if item is None else item.status for item in (one, two))
        old_ms, new_ms = (None if item is None else item.latency_ms for item in (one, two))
        decision, reason, ratio = _decide_change(one, two, threshold)
        found.append(Change(*job, decision, reason, old_status, new_status, old_ms, new_ms, ratio))
    return found


def find_epochs(results: Iterable[Result], threshold: float = THRESHOLD) -> list[Epoch]:
    """Return the epochs of each solution on each kind of hardware, the earliest first.

    A new epoch begins if sources or versions change, or if a workload is judged again.

    Args:
        results: all results of a definition, including repeated ones.
        threshold: the smallest difference of interest.
    """
    found = []
    for _, items in sorted(group(results, attrgetter("solution", "hardware")).items()):
        previous: dict[str, Result] = {}
        current: dict[str, Result] = {}
        for item in sorted(items, key=lambda item: moment_of(item.evaluation)):
            if current and (item.workload in current or _differences(current, item)):
                found.append(_epoch(current, previous, threshold))
                previous, current = current, {}
            current[item.workload] = item
        found.append(_epoch(current, previous, threshold))
    return found


class SaveHistory:
    """The latest save of `run --watch` whose jobs all passed."""

    def __init__(self) -> None:
        self._moment = ""
        self._results: list[Result] = []

    def add(self, traces: Iterable[Trace], seconds: float) -> SaveChange | None:
        """Store a save. Return the change since the previous save that passed; None if no time can be compared.

        Both saves may be quick looks. Other comparisons refuse quick looks.

        Args:
            traces: a passed trace for each job of the save.
            seconds: time since the save.
        """
        old, since, new = self._results, self._moment, list_results(None, traces)
        self._results = new
        self._moment = time.strftime("%H:%M:%S", time.localtime(time.time() - seconds))
        before = {_job(item): item for item in old}
        pairs = [(before[_job(item)], item) for item in new if _job(item) in before]
        ratio = _ratio(pair for pair in pairs if not _not_comparable(*pair, may_be_quick=True))
        if ratio is None:
            return None
        then, now = ({one.reported.run.solution_digest for one in part} for part in (old, new))
        decision = UNCHANGED if then == now else _decide(ratio, THRESHOLD)
        return SaveChange(since, ratio, decision, join_standings(one.measurement.standing for one in new))


def _decide_change(old: Result | None, new: Result | None, threshold: float) -> tuple[str, str, MeanRatio | None]:
    if old is None or new is None:
        return NEW if old is None else GONE, "", None
    if old.status != new.status:
        return VERDICT, f"{old.status} then, {new.status} now", None
    if not old.is_passed:
        return SAME, "", None
    if problem := _not_comparable(old, new):
        return UNKNOWN, problem, None
    ratio = _ratio([(old, new)])
    decision = _decide(ratio, threshold)
    why = "an interval reaches to 0" if ratio is None or ratio.low is None else "the interval is too wide"
    return decision, why if decision == UNKNOWN else "", ratio


def _not_comparable(old: Result, new: Result, *, may_be_quick: bool = False) -> str:
    """Return why two times must not be compared; empty if the times are comparable."""
    takes_quick = may_be_quick and old.reported.run.quick and new.reported.run.quick
    for item, which in ((old, "old"), (new, "new")):
        if not (item.is_ranked or (takes_quick and item.latency_ms and item.measurement.meaningful)):
            return f"the {which} time is of a quick look, or means nothing"
    difference = find_difference(*(comparison_keys(item.reported, item.hardware) for item in (old, new)))
    return "" if difference is None else f"{difference.kind}: {difference.first} then, {difference.second} now"


def _ratio(pairs: Iterable[tuple[Result, Result]]) -> MeanRatio | None:
    """Return the geometric mean of new over old times, with its interval. The times must be comparable."""
    return mean_of(
        ((new.latency_ms or 0.0) / (old.latency_ms or 1.0), 1.0, join_halves([half_of(old), half_of(new)]))
        for old, new in pairs
    )


def _decide(ratio: MeanRatio | None, threshold: float) -> str:
    if ratio is None or ratio.high is None:
        return UNKNOWN
    return decide(log(ratio.value), log(ratio.high / ratio.value), threshold)


def _epoch(current: dict[str, Result], previous: dict[str, Result], threshold: float) -> Epoch:
    first = next(iter(current.values()))
    pairs = [(previous[uuid], item) for uuid, item in current.items() if uuid in previous]
    ratio = _ratio(pair for pair in pairs if not _not_comparable(*pair))
    passed = [item for item in current.values() if item.is_passed]
    latency = mean_of((item.latency_ms, 1.0, None) for item in passed)
    return Epoch(
        solution=first.solution,
        hardware=first.hardware,
        digest=first.reported.run.solution_digest[:8],
        begin=first.evaluation.timestamp,
        verdicts=len(current),
        passed=len(passed),
        latency_ms=latency and latency.value,
        changed=_differences(previous, first),
        ratio=ratio,
        decision=_decide(ratio, threshold) if previous else "",
    )


def _differences(before: dict[str, Result], new: Result) -> tuple[str, ...]:
    """Return the differences between a result and an epoch: sources, and versions of libraries."""
    if not before:
        return ()
    old = next(iter(before.values()))
    then, now = (item.evaluation.environment.libs for item in (old, new))
    is_other = old.reported.run.solution_digest != new.reported.run.solution_digest
    versions = [
        f"{name} {then.get(name, '-')} -> {now.get(name, '-')}"
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    ]
    return (*(["sources"] if is_other else []), *versions)
