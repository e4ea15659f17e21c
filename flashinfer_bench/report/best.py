"""The best passing solution of each workload, and of each definition.

A confirmed solution, judged at full assurance, comes before others. Where intervals meet, it is a tie. Numbers taken
on different hardware are never compared. Quick looks (`--quick`) are left out, and so are calls that wait for the GPU
inside where the reference's do, too: the host's time decides these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from operator import attrgetter
from typing import Literal

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.measurement import CONFIRMED, lead_confirmed
from flashinfer_bench.data.sets.results import Result, group, list_results
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.report.decision import join_halves
from flashinfer_bench.report.intervals import TimeInterval, half_of, interval_of
from flashinfer_bench.report.summary import SummaryRow, Tie, summarise_results
from flashinfer_bench.report.timing import Timing, count_timing
from flashinfer_bench.report.verdict import caveat_in

Merit = Literal["latency", "speedup"]
"""What the best is best by."""


@dataclass(frozen=True)
class BestRow:
    """The fastest passing trace of one workload on one kind of hardware."""

    definition: str
    op_type: str
    workload: str
    axes: Mapping[str, int]
    hardware: str
    solution: str
    author: str
    latency_ms: float
    speedup: float | None
    """Over the reference; None when the reference was not measured."""
    timing_caveat: str | None
    """Why the latency means nothing; None when it means something."""
    timing: Timing
    """How it was timed."""
    contenders: int
    """Passing solutions that this one was picked from."""
    standing: str
    """What its time counts for, as of a measurement."""
    confirmed: bool
    """Whether it is of full assurance; if not, no solution of the workload on this hardware is."""
    interval: TimeInterval | None
    """The latency of a re-run in a new worker lies in it in 95 of 100 cases."""
    ties: tuple[Tie, ...] = ()
    """Other solutions whose interval meets this one's: which is faster cannot be told. The fastest first."""


def best_by_workload(
    traces: Iterable[AnyTrace], by: Merit = "latency", trace_set: TraceSet | None = None
) -> list[BestRow]:
    """Pick the best passing trace of each workload: meaningful timings first, confirmed ones first among these."""
    found = [item for item in list_results(trace_set, traces) if item.is_passed and item.may_be_best]
    timed = [item for item in found if item.latency_ms is not None]
    contests = group(timed, attrgetter("definition", "hardware", "workload"))
    ordered = sorted(contests.items(), key=lambda contest: contest[0][:2])
    return [_winner(sorted(items, key=lambda item: _order(item, by))) for _, items in ordered]


def best_by_definition(traces: Iterable[AnyTrace], by: Merit = "speedup") -> list[SummaryRow]:
    """Pick the best solution of each definition: it passes the most workloads, then has the highest mean speed-up.

    By latency, the lowest median latency counts in place of the speed-up. Of those that pass as many workloads, one
    with a confirmed result comes first if there is one. A tie passes as many workloads, and over those of both the
    intervals of the geometric means meet.
    """
    results = [item for item in list_results(None, traces) if item.may_be_best]
    timed = [row for row in summarise_results(results) if row.passed and row.latency_ms is not None]
    passed = group((item for item in results if item.is_passed), attrgetter("definition", "solution", "hardware"))
    best = []
    for rows in group(timed, attrgetter("definition", "hardware")).values():
        ordered = sorted(rows, key=lambda row: _merit(row, by), reverse=True)
        first, *others = lead_confirmed(
            ordered, lambda row: (row.timing_caveat is None, row.passed), attrgetter("standing")
        )
        ties = tuple(
            _tie(row, row.interval_share)
            for row in others
            if row.passed == first.passed
            and not (first.timing_caveat or row.timing_caveat)
            and _meet(*(passed[one.definition, one.solution, one.hardware] for one in (first, row)))
        )
        best.append(replace(first, ties=ties))
    return best


def _winner(ranked: Sequence[Result]) -> BestRow:
    first = ranked[0]
    interval, caveat = interval_of(first.latency_ms, first.measurement), caveat_in(first.measurement)
    ties = []
    for item in ranked[1:] if caveat is None else ():
        other = interval_of(item.latency_ms, item.measurement)
        if interval is not None and other is not None and item.measurement.meaningful and interval.meets(other):
            half = other.half_share if other.kind else None
            ties.append(_tie(item, half))
    return BestRow(
        definition=first.definition,
        op_type=first.op_type,
        workload=first.workload,
        axes=dict(first.trace.workload.axes),
        hardware=first.hardware,
        solution=first.solution,
        author=first.author,
        latency_ms=first.latency_ms or 0.0,
        speedup=first.speedup,
        timing_caveat=caveat,
        timing=count_timing([first.told]),
        contenders=len(ranked),
        standing=first.standing,
        confirmed=first.standing == CONFIRMED,
        interval=interval,
        ties=tuple(ties),
    )


def _tie(one: SummaryRow | Result, half_share: float | None) -> Tie:
    return Tie(one.solution, one.latency_ms, one.speedup, half_share, one.standing, one.standing == CONFIRMED)


def _meet(first: Sequence[Result], other: Sequence[Result]) -> bool:
    """Say whether the intervals of two geometric means of latencies meet, over the workloads of both."""
    sides = [{item.workload: (item.latency_ms, half_of(item)) for item in side} for side in (first, other)]
    shared = [(sides[0][uuid], two) for uuid, two in sides[1].items() if uuid in sides[0]]
    known = [(one, two) for one, two in shared if one[1] is not None and two[1] is not None]
    apart = abs(sum(log(one[0] or 0.0) - log(two[0] or 0.0) for one, two in known))
    halves = [join_halves([half for _, half in side]) or 0.0 for side in zip(*known, strict=True)]
    return bool(known) and apart <= sum(halves)


def _order(item: Result, by: Merit) -> tuple[bool, bool, float, float]:
    latency, speedup = item.latency_ms or 0.0, -(item.speedup or 0.0)
    merits = (latency, speedup) if by == "latency" else (speedup, latency)
    return (not item.measurement.meaningful, item.standing != CONFIRMED, *merits)


def _merit(row: SummaryRow, by: Merit) -> tuple[bool, int, float, float]:
    latency = -(row.latency_ms if row.latency_ms is not None else float("inf"))
    speedup = row.speedup or 0.0
    return (row.timing_caveat is None, row.passed, *((latency, speedup) if by == "latency" else (speedup, latency)))
