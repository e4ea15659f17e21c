"""One row per solution: how many workloads it passed, how fast it was on those, and why it failed on the others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import geometric_mean, median
from typing import Final

from flashinfer_bench.base.host import collector_paused
from flashinfer_bench.data.evaluation import EvaluationStatus, as_time
from flashinfer_bench.data.measurement import CONFIRMED, join_standings, lead_confirmed
from flashinfer_bench.data.sets.latest import find_latest
from flashinfer_bench.data.sets.results import Result, group, list_results
from flashinfer_bench.data.store.trace_lines import AnyEvaluation, AnyTrace
from flashinfer_bench.report.intervals import latency_of
from flashinfer_bench.report.timing import QUICK, Timing, count_timing
from flashinfer_bench.report.verdict import caveat_in, reason_of

NUMBER: Final = re.compile(r"-?\d[\d.]*(?:e[-+]?\d+)?")
"""Numbers in a reason. Failures whose reasons differ only in numbers are told as one."""
PairKey = tuple[str, str]
"""Definition and solution, by name."""


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
    failures: tuple[FailureGroup, ...]
    standing: str
    """The best standing of its times; empty if none passed."""
    confirmed: bool
    """Whether one of them is of full assurance: first place needs it if any solution has it."""
    interval_share: float | None = None
    """Half the interval of a latency, as a share of it: median over the passed workloads whose trace tells it."""
    ties: tuple[Tie, ...] = ()
    """Of the best of a definition: which solution is faster cannot be told. The best first."""


def summarise(
    traces: Iterable[AnyTrace], expected: Mapping[PairKey, Collection[str]] | None = None
) -> list[SummaryRow]:
    """Make the rows, ordered by definition, then from the most useful solution to the least; quick looks come last.

    Args:
        traces: verdicts in the order in which they were recorded. The last one of a job counts.
        expected: the workloads that each pair should have a verdict for, by uuid; pairs without any get a row too.
    """
    return summarise_results(list_results(None, traces), expected)


@collector_paused()
def summarise_results(
    results: Iterable[Result], expected: Mapping[PairKey, Collection[str]] | None = None
) -> list[SummaryRow]:
    """Make the rows of `summarise` of results that count."""
    expected = expected or {}
    groups: dict[tuple[str, str, str], list[Result]] = group(results, attrgetter("definition", "solution", "hardware"))
    rows = [_row(key, items, expected.get(key[:2], ())) for key, items in groups.items()]
    judged = {key[:2] for key in groups}
    rows += [_row((*pair, ""), [], uuids) for pair, uuids in expected.items() if pair not in judged]
    return lead_confirmed(sorted(rows, key=_rank), lambda row: _rank(row)[:5], attrgetter("standing"))


def count_statuses(traces: Iterable[AnyTrace]) -> dict[str, int]:
    """Count verdicts by status, in the order in which the statuses are declared."""
    counts = Counter(trace.evaluation.status for trace in find_latest(traces) if trace.evaluation is not None)
    return {status.value: counts[status] for status in EvaluationStatus if counts[status]}


def measured_speedup(evaluation: AnyEvaluation) -> float | None:
    """Give the speed-up over the reference; None when there is no latency or the reference was not measured."""
    performance, latency = evaluation.performance, latency_of(evaluation)
    reference = as_time(performance.reference_latency_ms) if performance is not None else None
    return reference / latency if reference is not None and latency is not None else None


def _row(key: tuple[str, str, str], items: Sequence[Result], expected: Collection[str]) -> SummaryRow:
    passed = [item for item in items if item.is_passed]
    records = [item.measurement for item in passed]
    latencies = [latency for item in passed if (latency := item.latency_ms) is not None]
    speedups = [speedup for item in passed if (speedup := item.speedup) is not None]
    bounds = [record.bounds for record in records if record.interval]
    shares = [(high - low) / (high + low) for low, high in filter(None, bounds) if high + low > 0]
    standing = join_standings(record.standing for record in records)
    return SummaryRow(
        *key,
        passed=len(passed),
        judged=len(items),
        pending=len(set(expected).difference(item.workload for item in items)),
        latency_ms=median(latencies) if latencies else None,
        speedup=geometric_mean(speedups) if speedups else None,
        timing_caveat=next(filter(None, map(caveat_in, records)), None),
        timing=count_timing([item.told for item in passed]),
        failures=_failures([item for item in items if not item.is_passed]),
        standing=standing,
        confirmed=standing == CONFIRMED,
        interval_share=median(shares) if shares else None,
    )


def _failures(failed: Iterable[Result]) -> tuple[FailureGroup, ...]:
    told = [(item.status, reason_of(item.evaluation), item.workload) for item in failed]
    groups = group(told, lambda one: (one[0], NUMBER.sub("#", one[1])))
    found = []
    for alike in groups.values():
        statuses, reasons, uuids = zip(*alike, strict=True)
        found.append(FailureGroup(statuses[0], reasons[0], uuids, is_exact=len(set(reasons)) == 1))
    return tuple(found)


def _rank(row: SummaryRow) -> tuple[str, bool, str, bool, float, float, float, str]:
    share = row.passed / row.judged if row.judged else -1.0
    latency = row.latency_ms if row.latency_ms is not None else float("inf")
    place = (row.definition, not row.hardware, row.hardware, QUICK in row.timing.flags)
    return (*place, -share, -(row.speedup or 0.0), latency, row.solution)
