"""One row per solution: how many workloads it passed, how fast it was on those, and why it failed on the others."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from statistics import geometric_mean, median
from typing import Final

from flashinfer_bench.base.host import collector_paused
from flashinfer_bench.data.evaluation import EvaluationStatus, as_time
from flashinfer_bench.data.measurement import (
    CONFIRMED,
    BriefMeasurement,
    join_standings,
    lead_confirmed,
    read_measurement,
)
from flashinfer_bench.data.sets.latest import latest_by_key
from flashinfer_bench.data.store.trace_lines import AnyEvaluation, AnyTrace
from flashinfer_bench.report.intervals import latency_of
from flashinfer_bench.report.timing import QUICK, Burst, Timing, count_timing, read_briefly_told, read_burst
from flashinfer_bench.report.verdict import caveat_in, judged, reason_of

NUMBER: Final = re.compile(r"-?\d[\d.]*(?:e[-+]?\d+)?")
"""Numbers in a reason. Failures whose reasons differ only in numbers are told as one."""
_PASSED: Final = EvaluationStatus.PASSED  # a look at a member of an Enum takes ten times as long
PairKey = tuple[str, str]
"""Definition and solution, by name."""
Member = tuple[str, AnyEvaluation]
"""A workload's uuid, and the verdict on it."""


@dataclass(frozen=True)
class FailureGroup:
    """Workloads on which one solution failed in the same way."""

    status: str
    reason: str
    """The reason of the first of them."""
    workloads: tuple[str, ...]
    """Uuids, in the order of the traces."""
    is_exact: bool
    """Whether all have the same reason. If not, their reasons differ in numbers only."""


@dataclass(frozen=True)
class Tie:
    """A solution that cannot be told apart from the best one: their intervals meet."""

    solution: str
    latency_ms: float | None
    """As of the best one: of a workload, or the median over those of a definition."""
    speedup: float | None
    half_share: float | None
    """Half the interval of the latency, as a share of it; None where no trace tells it."""
    standing: str
    """As of the best one."""
    confirmed: bool


@dataclass(frozen=True)
class SummaryRow:
    """One solution on one kind of hardware, over all its judged workloads."""

    definition: str
    solution: str
    hardware: str
    passed: int
    judged: int
    pending: int
    """Workloads of the set without a verdict: not run yet, interrupted, or faulted."""
    latency_ms: float | None
    """Median over the passed workloads; None when none passed."""
    speedup: float | None
    """Geometric mean over the passed workloads with a measured reference; None when there are none."""
    timing_caveat: str | None
    """Why the latency of some workload means nothing; None when all mean something."""
    timing: Timing
    """How the passed workloads were timed."""
    bursts: tuple[Burst, ...]
    """What bursts said of the latency on each of them; empty where nobody asked."""
    failures: tuple[FailureGroup, ...]
    standing: str
    """The best standing of its times; empty if none passed."""
    confirmed: bool
    """Whether one of them is of full assurance: first place needs it if any solution has it."""
    interval_share: float | None = None
    """Half the interval of a latency, as a share of it: median over the passed workloads whose trace tells it."""
    ties: tuple[Tie, ...] = ()
    """Of the best of a definition: which solution is faster cannot be told. The best first."""


@collector_paused()
def summarise(
    traces: Iterable[AnyTrace],
    expected: Mapping[PairKey, Collection[str]] | None = None,
    *,
    with_bursts: bool = True,
) -> list[SummaryRow]:
    """Make the rows, ordered by definition, then from the most useful solution to the least; quick looks come last.

    Args:
        traces: verdicts in the order in which they were recorded. The last one of a job counts.
        expected: the workloads that each pair should have a verdict for, by uuid; pairs without any get a row too.
        with_bursts: say what bursts said, which no table shows.
    """
    expected = expected or {}
    grouped: defaultdict[tuple[str, str, str], list[Member]] = defaultdict(list)
    for (definition, solution, workload, hardware), trace in latest_by_key(traces).items():
        if trace.evaluation is not None:
            grouped[definition, solution or "", hardware].append((workload, trace.evaluation))
    rows = [_row(key, members, expected.get(key[:2], ()), with_bursts=with_bursts) for key, members in grouped.items()]
    with_verdict = {key[:2] for key in grouped}
    rows += [_row((*pair, ""), [], uuids) for pair, uuids in expected.items() if pair not in with_verdict]
    return lead_confirmed(sorted(rows, key=_rank), lambda row: _rank(row)[:5], attrgetter("standing"))


def count_statuses(traces: Iterable[AnyTrace]) -> dict[str, int]:
    """Count verdicts by status, in the order in which the statuses are declared."""
    counts = dict.fromkeys((status.value for status in EvaluationStatus), 0)
    for _, evaluation in judged(traces):
        counts[evaluation.status.value] += 1
    return {status: count for status, count in counts.items() if count}


def measured_speedup(evaluation: AnyEvaluation) -> float | None:
    """Give the speed-up over the reference; None when there is no latency or the reference was not measured."""
    performance, latency = evaluation.performance, latency_of(evaluation)
    reference = as_time(performance.reference_latency_ms) if performance is not None else None
    return reference / latency if reference is not None and latency is not None else None


def _row(
    key: tuple[str, str, str], members: list[Member], expected: Collection[str], *, with_bursts: bool = True
) -> SummaryRow:
    passing = [(workload, evaluation) for workload, evaluation in members if evaluation.status is _PASSED]
    passed = [evaluation for _, evaluation in passing]
    told = [read_briefly_told(evaluation) for evaluation in passed]
    standing = join_standings(item.measurement.standing for item in told)
    latencies = [latency for evaluation in passed if (latency := latency_of(evaluation)) is not None]
    speedups = [speedup for evaluation in passed if (speedup := measured_speedup(evaluation)) is not None]
    return SummaryRow(
        *key,
        passed=len(passed),
        judged=len(members),
        pending=len(set(expected).difference(workload for workload, _ in members)),
        latency_ms=median(latencies) if latencies else None,
        speedup=geometric_mean(speedups) if speedups else None,
        timing_caveat=next(filter(None, (caveat_in(item.measurement) for item in told)), None),
        timing=count_timing(told),
        bursts=tuple(
            read_burst(workload, read_measurement(evaluation)) for workload, evaluation in passing if with_bursts
        ),
        failures=_failures(members),
        standing=standing,
        confirmed=standing == CONFIRMED,
        interval_share=_interval_share(item.measurement for item in told),
    )


def _interval_share(measurements: Iterable[BriefMeasurement]) -> float | None:
    """Return the median of half the intervals that hold for another worker, as shares of their middles."""
    bounds = [one.bounds for one in measurements if one.interval]
    shares = [(high - low) / (high + low) for low, high in filter(None, bounds) if high + low > 0]
    return median(shares) if shares else None


def _failures(members: list[Member]) -> tuple[FailureGroup, ...]:
    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for workload, evaluation in members:
        if evaluation.status is not _PASSED:
            reason = reason_of(evaluation)
            alike = (evaluation.status.value, NUMBER.sub("#", reason))
            groups.setdefault(alike, []).append((reason, workload))
    return tuple(_failure_group(status, found) for (status, _), found in groups.items())


def _failure_group(status: str, found: list[tuple[str, str]]) -> FailureGroup:
    reasons = [reason for reason, _ in found]
    return FailureGroup(status, reasons[0], tuple(uuid for _, uuid in found), is_exact=len(set(reasons)) == 1)


def _rank(row: SummaryRow) -> tuple[str, bool, str, bool, float, float, float, str]:
    share = row.passed / row.judged if row.judged else -1.0
    latency = row.latency_ms if row.latency_ms is not None else float("inf")
    place = (row.definition, not row.hardware, row.hardware, QUICK in row.timing.flags)
    return (*place, -share, -(row.speedup or 0.0), latency, row.solution)
