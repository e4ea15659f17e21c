"""The best passing solution of each workload, and of each definition.

A confirmed solution, judged at full assurance, comes before others. Where intervals meet, it is a tie. Numbers taken
on different hardware are never compared. Quick looks (`--quick`) are left out, and so are calls that wait for the GPU
inside where the reference's do, too: the host's time decides these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import log
from operator import attrgetter
from typing import Literal

from flashinfer_bench.data import EvaluationStatus, Performance
from flashinfer_bench.data.measurement import CONFIRMED, lead_confirmed, read_measurement
from flashinfer_bench.data.store.trace_lines import AnyEvaluation, AnyTrace, PerformanceLine
from flashinfer_bench.report.decision import join_halves, log_half_of
from flashinfer_bench.report.intervals import TimeInterval, latency_of, read_interval
from flashinfer_bench.report.summary import SummaryRow, Tie, measured_speedup, summarise
from flashinfer_bench.report.timing import Burst, Timing, read_burst, read_timing
from flashinfer_bench.report.verdict import caveat_of, judged

Merit = Literal["latency", "speedup"]
"""What the best is best by."""
Contestant = tuple[AnyTrace, AnyEvaluation, Performance | PerformanceLine]
_Times = dict[tuple[str, str, str], dict[str, tuple[float, float]]]
"""Definition, solution and hardware → workload → logarithm of the latency, and half its interval."""


@dataclass(frozen=True)
class BestRow:
    """The fastest passing trace of one workload on one kind of hardware."""

    definition: str
    workload: str
    axes: Mapping[str, int]
    hardware: str
    solution: str
    latency_ms: float
    speedup: float | None
    """Over the reference; None when the reference was not measured."""
    timing_caveat: str | None
    """Why the latency means nothing; None when it means something."""
    timing: Timing
    """How it was timed."""
    burst: Burst
    """What bursts said of the latency."""
    contenders: int
    """Passing solutions that this one was picked from."""
    standing: str
    """What its time counts for, as of a measurement."""
    confirmed: bool
    """Whether it is of full assurance; if not, no solution of the workload on this hardware is."""
    interval: TimeInterval | None = None
    """What the latency of a re-run in a new worker lies in, in 95 of 100 cases."""
    ties: tuple[Tie, ...] = ()
    """Other solutions whose interval meets this one's: which is faster cannot be told. The fastest first."""


def best_by_workload(traces: Iterable[AnyTrace], by: Merit = "latency") -> list[BestRow]:
    """Pick the best passing trace of each workload: meaningful timings first, confirmed ones first among these."""
    contests: dict[tuple[str, str, str], list[Contestant]] = {}
    for trace, evaluation in judged(traces):
        if not evaluation.may_be_best:
            continue
        is_timed = evaluation.performance is not None and latency_of(evaluation) is not None
        if evaluation.status is EvaluationStatus.PASSED and evaluation.performance is not None and is_timed:
            key = (trace.definition, evaluation.environment.hardware, trace.workload.uuid)
            contests.setdefault(key, []).append((trace, evaluation, evaluation.performance))
    ordered = sorted(contests.items(), key=lambda contest: contest[0][:2])
    return [_winner(contestants, by) for _, contestants in ordered]


def best_by_definition(traces: Iterable[AnyTrace], by: Merit = "speedup") -> list[SummaryRow]:
    """Pick the best solution of each definition: it passes the most workloads, then has the highest mean speed-up.

    By latency, the lowest median latency counts in place of the speed-up. Of those that pass as many workloads, one
    with a confirmed result comes first if there is one. A tie passes as many workloads, and over
    those of both the intervals of the geometric means meet.
    """
    whole = [(trace, evaluation) for trace, evaluation in judged(traces) if evaluation.may_be_best]
    found: dict[tuple[str, str], list[SummaryRow]] = {}
    for row in summarise(trace for trace, _ in whole):
        if row.passed and row.latency_ms is not None:
            found.setdefault((row.definition, row.hardware), []).append(row)
    times = _times(whole)
    best = []
    for rows in found.values():
        ordered = sorted(rows, key=partial(_merit, by=by), reverse=True)
        ranked = lead_confirmed(ordered, lambda row: (row.timing_caveat is None, row.passed), attrgetter("standing"))
        tied = [row for row in ranked[1:] if _is_tie(ranked[0], row, times)]
        ties = tuple(
            Tie(row.solution, row.latency_ms, row.speedup, row.interval_share, row.standing, row.confirmed)
            for row in tied
        )
        best.append(replace(ranked[0], ties=ties))
    return best


def _winner(contestants: list[Contestant], by: Merit) -> BestRow:
    ranked = sorted(contestants, key=partial(_order, by=by))
    trace, evaluation, performance = ranked[0]
    interval, standing = read_interval(evaluation), read_measurement(evaluation).standing
    return BestRow(
        definition=trace.definition,
        workload=trace.workload.uuid,
        axes=dict(trace.workload.axes),
        hardware=evaluation.environment.hardware,
        solution=trace.solution or "",
        latency_ms=performance.latency_ms,
        speedup=measured_speedup(evaluation),
        timing_caveat=caveat_of(evaluation),
        timing=read_timing([evaluation]),
        burst=read_burst(trace.workload.uuid, read_measurement(evaluation)),
        contenders=len(contestants),
        standing=standing,
        confirmed=standing == CONFIRMED,
        interval=interval,
        ties=_ties(ranked) if interval is not None and caveat_of(evaluation) is None else (),
    )


def _ties(ranked: list[Contestant]) -> tuple[Tie, ...]:
    """Return the other solutions whose interval meets the winner's."""
    first = read_interval(ranked[0][1])
    found = []
    for trace, evaluation, performance in ranked[1:]:
        interval = read_interval(evaluation)
        if first is not None and interval is not None and caveat_of(evaluation) is None and first.meets(interval):
            half = interval.half_share if interval.kind else None
            standing = read_measurement(evaluation).standing
            times = (performance.latency_ms, measured_speedup(evaluation), half)
            found.append(Tie(trace.solution or "", *times, standing, standing == CONFIRMED))
    return tuple(found)


def _times(whole: Iterable[tuple[AnyTrace, AnyEvaluation]]) -> _Times:
    """Return the logarithm of each solution's latency on each workload, with half its interval."""
    times: _Times = {}
    for trace, evaluation in whole:
        interval = read_interval(evaluation)
        latency = latency_of(evaluation) or 0.0
        half = log_half_of(latency, interval.low_ms, interval.high_ms) if interval is not None else None
        if half is not None and evaluation.status is EvaluationStatus.PASSED:
            key = (trace.definition, trace.solution or "", evaluation.environment.hardware)
            times.setdefault(key, {})[trace.workload.uuid] = (log(latency), half)
    return times


def _is_tie(first: SummaryRow, other: SummaryRow, times: _Times) -> bool:
    """Say whether the intervals of two geometric means meet, over the workloads of both."""
    if other.passed != first.passed or first.timing_caveat is not None or other.timing_caveat is not None:
        return False
    mine, theirs = (times.get((row.definition, row.solution, row.hardware), {}) for row in (first, other))
    shared = [(mine[uuid], theirs[uuid]) for uuid in mine if uuid in theirs]
    apart = abs(sum(one[0] - two[0] for one, two in shared))
    halves = [join_halves([half for _, half in side]) or 0.0 for side in zip(*shared, strict=True)]
    return bool(shared) and apart <= sum(halves)


def _order(contestant: Contestant, by: Merit) -> tuple[bool, bool, float, float]:
    _, evaluation, performance = contestant
    speedup = -(measured_speedup(evaluation) or 0.0)
    merits = (performance.latency_ms, speedup) if by == "latency" else (speedup, performance.latency_ms)
    return (caveat_of(evaluation) is not None, not read_measurement(evaluation).is_full, *merits)


def _merit(row: SummaryRow, by: Merit) -> tuple[bool, int, float, float]:
    latency = -(row.latency_ms if row.latency_ms is not None else float("inf"))
    speedup = row.speedup or 0.0
    return (row.timing_caveat is None, row.passed, *((latency, speedup) if by == "latency" else (speedup, latency)))
