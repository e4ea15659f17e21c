"""Compares recorded traces. For each workload, the latest trace of each side on the same hardware counts, with its
interval.

The interval of a single worker's trace is widened by the run-to-run variation. A trace of an older version may have an
interval of its samples only. It is widened by the default variation of its kind of device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log

from flashinfer_bench.data.sets.results import Result, group
from flashinfer_bench.errors import DataSetError
from flashinfer_bench.examine.compare.result import Comparison, Row, describe_difference, describe_times, recorded_ratio
from flashinfer_bench.examine.compare.sides import Contender, choose_workloads
from flashinfer_bench.report.comparable import comparison_keys, find_difference
from flashinfer_bench.report.decision import join_halves
from flashinfer_bench.report.intervals import half_of
from flashinfer_bench.report.verdict import caveat_in, reason_of

Key = tuple[str, str, str]
"""Definition, workload, and the solution if the sides are sets or runs."""


def compare_recorded(
    first: Contender, second: Contender, threshold: float, workloads: Sequence[str] | None = None
) -> Comparison:
    """Compare the traces of two sides.

    Args:
        first: A.
        second: B.
        threshold: the smallest difference of interest, as a share.
        workloads: names of workloads; None for all.

    Raises:
        DataSetError: no two traces can be compared; the message has the first reason.
    """
    by_name = [side.kind in ("set", "run") for side in (first, second)]
    a = group(first.results, lambda one: (one.definition, one.workload, one.solution if by_name[0] else ""))
    b = group(second.results, lambda one: (one.definition, one.workload, one.solution if by_name[1] else ""))
    both = [key for key in a if key in b]
    if not both:
        raise DataSetError(f"no trace of {first.word} is of the same definition and workload as one of {second.word}")
    used = choose_workloads(workloads, both, lambda key: a[key][0].trace.workload)
    rows = [row for key in used for row in _compare(key, a[key], b[key])]
    if all(row.ratio is None for row in rows):
        raise DataSetError(f"{first.word} and {second.word}: {rows[0].problem}")
    hardware = " + ".join(sorted({one.hardware for one in first.results}))
    times = describe_times(*([one.reported for key in used for one in side[key] if one.is_ranked] for side in (a, b)))
    return Comparison(rows, threshold, "recorded", hardware, 0.0, *times)


def _compare(key: Key, first: list[Result], second: list[Result]) -> Iterator[Row]:
    """Yield a row for each kind of hardware on which both sides were timed. If there is no such hardware, a single row
    says why.

    If a side has several times, the lowest counts. Quick runs do not count.
    """
    row = Row(key[0], key[1], dict(first[0].trace.workload.axes), key[2])
    a, b = (
        {one.hardware: one for one in sorted(results, key=_latency, reverse=True) if one.is_ranked}
        for results in (first, second)
    )
    if not (a and b):
        yield replace(row, problem=_why_no_time("A", first) if not a else _why_no_time("B", second))
        return
    others = (next(iter(a.values())), next(iter(b.values())))
    for one, two in [(a[name], b[name]) for name in a if name in b] or [others]:
        difference = find_difference(*(comparison_keys(found.reported, found.hardware) for found in (one, two)))
        if difference is not None:
            yield replace(row, problem=describe_difference(row.workload, difference))
            continue
        ratio = recorded_ratio(log(_latency(two) / _latency(one)), join_halves([half_of(one), half_of(two)]))
        yield replace(row, a_ms=one.latency_ms, b_ms=two.latency_ms, ratio=ratio)


def _latency(result: Result) -> float:
    return result.latency_ms or 0.0


def _why_no_time(side: str, results: list[Result]) -> str:
    latest = results[-1]
    if latest.is_passed:
        why = "it is a quick look" if latest.reported.run.quick else caveat_in(latest.measurement) or "there is none"
        return f"the time of {side} does not count: {why}"
    return f"{side} did not pass: {latest.status}: {reason_of(latest.evaluation)}".rstrip(": ")
