"""Rows of solutions, and the best passing solution of each workload and of each definition.

A confirmed solution has a latency with full assurance, and comes before unconfirmed solutions. Overlapping intervals
are a tie. Times from different hardware are never compared. Quick looks (`--quick`) are never the best. A solution is
never the best if solution and reference both wait for the GPU inside a call. The host's time would decide the speed-up.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from statistics import fmean, geometric_mean
from typing import Final, Literal

from flashinfer_bench.base.host import collector_paused
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.evaluation import EvaluationStatus
from flashinfer_bench.data.measurement import CONFIRMED, join_standings, lead_confirmed
from flashinfer_bench.data.sets.results import RANKING, Result, group, mean_sol_score
from flashinfer_bench.data.sets.weights import differ
from flashinfer_bench.report.intervals import (
    MeanRatio,
    TimeInterval,
    half_of,
    interval_of,
    mean_of,
    mean_speedup,
    overlap,
)
from flashinfer_bench.report.timing import QUICK, Timing, count_timing
from flashinfer_bench.report.verdict import caveat_in, reason_of

Merit = Literal["latency", "speedup"]
"""The criterion for the best solution."""
NUMBER: Final = re.compile(r"-?\d[\d.]*(?:e[-+]?\d+)?")
"""Matches numbers in a reason. Failures with reasons that differ only in numbers form one group."""
PairKey = tuple[str, str]
"""Names of definition and solution."""
_key = attrgetter("definition", "solution", "hardware")
_workload = attrgetter("definition", "hardware", "workload")


@dataclass(frozen=True)
class FailureGroup:
    """Workloads on which one solution failed in the same way."""

    status: str
    reason: str
    """The reason of the first workload."""
    workloads: tuple[str, ...]
    """Uuids, in the order of the traces."""
    is_exact: bool
    """Whether all reasons are equal. Unequal reasons of a group differ only in numbers."""


@dataclass(frozen=True)
class SummaryRow:
    """One solution on one kind of hardware, over all its judged workloads."""

    definition: str
    solution: str
    hardware: str
    passed: int
    judged: int
    pending: int
    """Workloads of the set without a verdict: not run, interrupted, or failed by an infrastructure error."""
    latency_ms: float | None
    """Median over the passed workloads; None if none passed."""
    speedup: float | None
    """Geometric mean over the passed workloads with a measured reference; None without such workloads."""
    speedup_interval95: tuple[float, float] | None
    """The 95 % interval of the speed-up; None if a time has no recorded interval."""
    timing_caveat: str | None
    """Why a latency is not meaningful; None if all latencies are meaningful."""
    timing: Timing
    """The timing of the passed workloads."""
    failures: tuple[FailureGroup, ...]
    standing: str
    """The best standing of the latencies; empty if no workload passed."""
    confirmed: bool
    """Whether any latency has full assurance. First place needs a confirmed row if there is a confirmed row."""
    mean: MeanRatio | None
    """Geometric mean of the latencies in ms, with its interval."""
    interval_share: float | None
    """Half the interval of the median latency, divided by the median latency. If the median lies between two workloads,
    the interval with the larger share counts."""
    ties: tuple[SummaryRow, ...] = ()
    """In the best row, the solutions whose times do not differ significantly from the best time, in order of rank."""
    sol_score: float | None = None
    """Mean speed-of-light score. Failed and pending workloads count 0. None if no floor is known."""
    sol_basis: tuple[str, ...] = ()
    """Baseline and peak of each score."""
    compile_speedup: float | None = None
    """Like `speedup`, but over the reference under torch.compile."""
    weighted: bool = False
    """Whether the workloads of the means have different weights. Medians ignore weights."""
    ranked_ms: float | None = None
    """Score of a GPU MODE problem by the rule of its definition (`ranking_by`). None unless all workloads passed."""


@dataclass(frozen=True, kw_only=True)
class WorkloadRow(SummaryRow):
    """One solution on one workload and one kind of hardware."""

    op_type: str
    author: str
    workload: str
    axes: Mapping[str, int]
    status: str
    contenders: int
    """Number of passing solutions for the workload."""
    interval: TimeInterval | None
    """95 % interval of the latency, including the variation between workers."""
    weight: float
    """The workload's weight."""
    is_best: bool
    """Whether the solution is the best passing solution of the workload."""
    is_tie: bool
    """Whether the time ties with the best time: no significant difference."""


@collector_paused()
def summarise(
    results: Iterable[Result],
    expected: Mapping[PairKey, Mapping[str, float]] | None = None,
    trace_set: TraceSet | None = None,
) -> list[SummaryRow]:
    """Return the rows, ordered by definition, then from the best solution to the worst. Quick looks come last.

    Args:
        results: the results that count, one per job.
        expected: pair → uuid → weight of a workload to judge. A pair without verdicts also gets a row.
        trace_set: the set, whose definitions may have a rule for a score.
    """
    wanted = expected or {}
    groups: dict[tuple[str, str, str], list[Result]] = group(results, _key)
    judged = {key[:2] for key in groups}
    groups |= {(*pair, ""): [] for pair in wanted if pair not in judged}
    rows = [_row(items, key, wanted.get(key[:2])) for key, items in groups.items()]
    rows = lead_confirmed(sorted(rows, key=_rank), lambda row: _rank(row)[:5], attrgetter("standing"))
    return rows if trace_set is None else [_with_score(row, groups.get(_key(row), []), trace_set) for row in rows]


def _with_score(row: SummaryRow, items: Sequence[Result], trace_set: TraceSet) -> SummaryRow:
    """Return a row with `ranked_ms`, or unchanged if the definition has no rule for a score."""
    definition = trace_set.definitions.get(row.definition)
    tags = definition.tags if definition is not None else ()
    rule = next((tag.removeprefix(RANKING) for tag in tags if tag.startswith(RANKING)), None)
    workloads = [line.workload for line in trace_set.workloads.get(row.definition, [])]
    passed = {item.workload: item.latency_ms for item in items if item.is_passed}
    times = [passed.get(workload.uuid) or 0.0 for workload in workloads if workload.timed]
    if rule is None or not times or not all(times) or not {one.uuid for one in workloads} <= passed.keys():
        return row
    means = {"geom": geometric_mean, "mean": fmean}
    return replace(row, ranked_ms=means[rule](times) if rule in means else times[-1])


def rank_by_workload(results: Iterable[Result], by: Merit = "latency") -> list[list[Result]]:
    """Return the passing results of each workload on each kind of hardware, the best first. Meaningful times come
    first, and confirmed times come first among them."""

    def order(item: Result) -> tuple[bool, bool, float, float]:
        return not item.measurement.meaningful, item.standing != CONFIRMED, *_merits(item, by)

    timed = (item for item in results if item.is_passed and item.latency_ms is not None)
    contests = group((item for item in timed if item.may_be_best), _workload)
    return [sorted(items, key=order) for _, items in sorted(contests.items(), key=lambda contest: contest[0][:2])]


def best_by_workload(results: Iterable[Result], by: Merit = "latency") -> list[WorkloadRow]:
    """Return the best passing result of each workload, with its ties."""
    rows = []
    for ranked in rank_by_workload(results, by):
        ties = _ties(ranked)
        rows.append(replace(_workload_row(ranked[0], ranked, ties), ties=tuple(_row([tie]) for tie in ties)))
    return rows


def by_workload(results: Sequence[Result]) -> list[WorkloadRow]:
    """Return a row for each solution and workload. Solutions have the order of `summarise`. Workloads are ordered by
    axes."""
    contests = {_workload(ranked[0]): (ranked, _ties(ranked)) for ranked in rank_by_workload(results)}
    order = {_key(row): index for index, row in enumerate(summarise(results))}
    ordered = sorted(results, key=lambda item: (order[_key(item)], [*item.trace.workload.axes.items()], item.workload))
    return [_workload_row(item, *contests.get(_workload(item), ((), ()))) for item in ordered]


def best_by_definition(results: Iterable[Result], by: Merit = "speedup") -> list[SummaryRow]:
    """Return the best solution of each definition: the solution that passes the most workloads.

    Among solutions with the same number of passed workloads, confirmed solutions come first, then the highest mean
    speed-up. If `by` is "latency", the lowest median latency replaces the speed-up. A solution ties with the best
    solution under two conditions: both pass equally many workloads, and the intervals of the geometric means overlap.
    """

    def order(row: SummaryRow) -> tuple[bool, int, float, float]:
        return row.timing_caveat is not None, -row.passed, *_merits(row, by)

    rows = [row for row in summarise(item for item in results if item.may_be_best) if row.latency_ms is not None]
    best = []
    for contest in group(rows, attrgetter("definition", "hardware")).values():
        first, *others = lead_confirmed(sorted(contest, key=order), lambda row: order(row)[:2], attrgetter("standing"))
        rivals = [row for row in others if order(row)[:2] == (False, -first.passed)]
        ties = [row for row in rivals if overlap(*(one.mean and one.mean.interval for one in (first, row)))]
        best.append(replace(first, ties=tuple(ties)))
    return best


def _merits(one: Result | SummaryRow, by: Merit) -> tuple[float, float]:
    """Return latency and speed-up for a comparison, the criterion first. Lower is better."""
    latency_ms, slowdown = one.latency_ms or 0.0, -(one.speedup or 0.0)
    return (latency_ms, slowdown) if by == "latency" else (slowdown, latency_ms)


def count_statuses(results: Iterable[Result]) -> dict[str, int]:
    """Count results by status, in the order of the statuses' declaration."""
    counts = Counter(item.status for item in results)
    return {status.value: counts[status.value] for status in EvaluationStatus if counts[status.value]}


def _row(
    items: Sequence[Result], key: tuple[str, str, str] | None = None, expected: Mapping[str, float] | None = None
) -> SummaryRow:
    passed = [item for item in items if item.is_passed]
    measured = [item for item in passed if item.trace.workload.timed]
    records = [item.measurement for item in measured]
    timed = sorted((item for item in passed if item.latency_ms is not None), key=attrgetter("latency_ms"))
    middle = timed[(len(timed) - 1) // 2 : len(timed) // 2 + 1]
    intervals = [interval for item in middle if (interval := interval_of(item)) is not None and interval.kind]
    standing = join_standings(record.standing for record in records)
    definition, solution, hardware = key or _key(items[0])
    judged = {item.workload for item in items}
    speedup = mean_speedup(passed)
    pending = [weight for uuid, weight in (expected or {}).items() if uuid not in judged]
    return SummaryRow(
        definition=definition,
        solution=solution,
        hardware=hardware,
        passed=len(passed),
        judged=len(items),
        pending=len(pending),
        latency_ms=fmean(item.latency_ms or 0.0 for item in middle) if middle else None,
        speedup=speedup and speedup.value,
        speedup_interval95=speedup and speedup.interval,
        timing_caveat=next(filter(None, map(caveat_in, records)), None),
        timing=count_timing([item.reported for item in measured]),
        failures=_group_failures(item for item in items if not item.is_passed),
        standing=standing,
        confirmed=standing == CONFIRMED,
        mean=mean_of((item.latency_ms, item.weight, half_of(item)) for item in timed),
        interval_share=max((interval.half_share for interval in intervals), default=None),
        sol_score=mean_sol_score(items, sum(pending)),
        sol_basis=basis_of(items),
        compile_speedup=mean_compile_speedup(passed),
        weighted=differ([*(item.weight for item in items), *pending]),
    )


def mean_compile_speedup(results: Iterable[Result]) -> float | None:
    """Return the geometric mean of the known speed-ups over the compiled reference; None if none is known."""
    mean = mean_of((item.compile_speedup, item.weight, None) for item in results)
    return mean and mean.value


def basis_of(items: Iterable[Result]) -> tuple[str, ...]:
    """Return the baselines and peaks that the speed-of-light scores of results use."""
    return tuple(sorted({f"{item.sol_baseline}, {item.reported.roofline.peak}" for item in items if item.sol_score}))


def _group_failures(failed: Iterable[Result]) -> tuple[FailureGroup, ...]:
    listed = [(item.status, reason_of(item.evaluation), item.workload) for item in failed]
    found = []
    for alike in group(listed, lambda one: (one[0], NUMBER.sub("#", one[1]))).values():
        (status, *_), reasons, uuids = zip(*alike, strict=True)
        found.append(FailureGroup(status, reasons[0], uuids, is_exact=len(set(reasons)) == 1))
    return tuple(found)


def _rank(row: SummaryRow) -> tuple[str, bool, str, bool, float, float, float, str]:
    share = row.passed / row.judged if row.judged else -1.0
    latency = row.latency_ms if row.latency_ms is not None else float("inf")
    contest = (row.definition, not row.hardware, row.hardware, QUICK in row.timing.flags)
    return (*contest, -share, -(row.speedup or 0.0), latency, row.solution)


def _ties(ranked: Sequence[Result]) -> list[Result]:
    """Return the results whose intervals overlap the interval of the first result."""
    timed = [item for item in ranked if item.measurement.meaningful]
    bounds = [interval and interval.bounds for interval in map(interval_of, timed)]
    return [item for item, own in zip(timed[1:], bounds[1:], strict=True) if overlap(bounds[0], own)]


def _workload_row(item: Result, ranked: Sequence[Result], ties: Sequence[Result]) -> WorkloadRow:
    return WorkloadRow(
        **vars(_row([item])),
        op_type=item.op_type,
        author=item.author,
        workload=item.workload,
        axes=dict(item.trace.workload.axes),
        status=item.status,
        contenders=len(ranked),
        interval=interval_of(item),
        weight=item.weight,
        is_best=any(item is one for one in ranked[:1]),
        is_tie=any(item is tie for tie in ties),
    )
