"""Compares recorded traces: for each workload the latest of each side on the same hardware, with their intervals.

A trace of one worker has an interval that is widened by the spread between workers; one without any named interval, of
an older version, gets the default spread of its kind of device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from flashinfer_bench.data.evaluation import EvaluationStatus
from flashinfer_bench.data.sets.best import passed_of
from flashinfer_bench.data.sets.told import tell
from flashinfer_bench.data.store.trace_lines import AnyEvaluation, AnyTrace
from flashinfer_bench.errors import DataSetError
from flashinfer_bench.examine.compare.ratios import ratio_of_intervals
from flashinfer_bench.examine.compare.result import Comparison, Row, describe_difference
from flashinfer_bench.examine.compare.sides import Contender, choose_workloads
from flashinfer_bench.report.comparable import KINDS, Difference, find_difference, marks_of
from flashinfer_bench.report.intervals import latency_of, read_interval
from flashinfer_bench.report.verdict import caveat_of, reason_of

Place = tuple[str, str, str]
"""Definition, workload, and the solution if the sides are sets or runs."""


def compare_recorded(
    first: Contender, second: Contender, threshold: float, workloads: Sequence[str] | None = None
) -> Comparison:
    """Compare the traces of two sides.

    Args:
        first: A.
        second: B.
        threshold: the smallest difference of interest, as a share.
        workloads: uuids or beginnings of them; None for all.

    Raises:
        DataSetError: nothing can be compared; the first reason is named.
    """
    a, b = _by_place(first), _by_place(second)
    both = [place for place in a if place in b]
    if not both:
        raise DataSetError(f"no trace of {first.word} is of the same definition and workload as one of {second.word}")
    wanted = choose_workloads(workloads, {workload for _, workload, _ in both})
    rows = [row for place in both if place[1] in wanted for row in _compare(place, a[place], b[place])]
    if all(row.ratio is None for row in rows):
        raise DataSetError(f"{first.word} and {second.word}: {rows[0].problem}")
    hardware = {trace.evaluation.environment.hardware for trace in first.traces if trace.evaluation is not None}
    return Comparison(tuple(rows), threshold, "recorded", " + ".join(sorted(hardware)))


def _by_place(side: Contender) -> dict[Place, list[AnyTrace]]:
    named = side.kind in ("set", "run")
    grouped: dict[Place, list[AnyTrace]] = defaultdict(list)
    for trace in side.traces:
        place = (trace.definition, trace.workload.uuid, (trace.solution or "") if named else "")
        grouped[place].append(trace)
    return grouped


def _compare(place: Place, first: list[AnyTrace], second: list[AnyTrace]) -> Iterator[Row]:
    """Yield a row for each kind of hardware that both were timed on; one that says why, if there is none."""
    row = Row(place[0], place[1], dict(first[0].workload.axes), place[2])
    a, b = (_fastest_by_hardware(traces) for traces in (first, second))
    missing = [_why_no_time(side, traces) for side, found, traces in (("A", a, first), ("B", b, second)) if not found]
    if missing:
        yield replace(row, problem=missing[0])
    elif not a.keys() & b.keys():
        other = Difference(KINDS["hardware"], next(iter(a)), next(iter(b)))
        yield replace(row, problem=describe_difference(row.workload, other))
    for hardware in [] if missing else [one for one in a if one in b]:
        pair = [a[hardware], b[hardware]]
        difference = find_difference(*(marks_of(tell(one), hardware) for one in pair))
        if difference is not None:
            yield replace(row, problem=describe_difference(row.workload, difference))
            continue
        one, other_time = map(_read_time, pair)
        yield replace(row, first_ms=one[0], second_ms=other_time[0], ratio=ratio_of_intervals(one, other_time))


def _fastest_by_hardware(traces: list[AnyTrace]) -> dict[str, AnyEvaluation]:
    """Return the passing evaluation with the lowest latency on each kind of hardware; quick runs do not count."""
    best: dict[str, AnyEvaluation] = {}
    for trace in passed_of(traces):
        found = trace.evaluation
        if found is None or caveat_of(found) is not None or _read_time(found)[0] <= 0:
            continue
        hardware = found.environment.hardware
        if hardware not in best or _read_time(found)[0] < _read_time(best[hardware])[0]:
            best[hardware] = found
    return best


def _read_time(evaluation: AnyEvaluation) -> tuple[float, float, float]:
    """Return a latency with its 95 % interval."""
    latency, interval = latency_of(evaluation) or 0.0, read_interval(evaluation)
    return (latency, interval.low_ms, interval.high_ms) if interval is not None else (latency, latency, latency)


def _why_no_time(side: str, traces: list[AnyTrace]) -> str:
    evaluation = traces[-1].evaluation
    if evaluation is None:
        return f"{side} has no verdict"
    if evaluation.status is EvaluationStatus.PASSED:
        why = "it is a quick look" if evaluation.is_quick else caveat_of(evaluation) or "there is none"
        return f"the time of {side} does not count: {why}"
    return f"{side} did not pass: {evaluation.status.value}: {reason_of(evaluation)}".rstrip(": ")
