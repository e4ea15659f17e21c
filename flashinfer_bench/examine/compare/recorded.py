"""Compares recorded traces: for each workload the latest of each side on the same hardware, with their intervals.

A trace of one worker has an interval that is widened by the spread between workers; one without any named interval, of
an older version, gets the default spread of its kind of device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from flashinfer_bench.data.evaluation import EvaluationStatus
from flashinfer_bench.data.sets.best import passed_of
from flashinfer_bench.data.sets.told import tell
from flashinfer_bench.data.store.trace_lines import AnyEvaluation, AnyTrace
from flashinfer_bench.errors import DataSetError
from flashinfer_bench.examine.compare.chosen import choose_workloads
from flashinfer_bench.examine.compare.comparison import ComparedSides, NoComparison, Row
from flashinfer_bench.examine.compare.ratios import ratio_of_intervals
from flashinfer_bench.examine.compare.sides import Contender
from flashinfer_bench.report.comparable import KINDS, Difference, find_difference, marks_of
from flashinfer_bench.report.intervals import latency_of, read_interval
from flashinfer_bench.report.verdict import caveat_of, reason_of


class RecordedPlace(NamedTuple):
    """What two traces have in common."""

    definition: str
    label: str
    """The solution, where the sides are sets or runs; empty for solutions and authors."""
    workload: str


def compare_recorded(
    first: Contender, second: Contender, threshold: float, workloads: Sequence[str] | None = None
) -> ComparedSides:
    """Compare what is recorded of two sides.

    Args:
        first: A.
        second: B.
        threshold: the smallest difference of interest, as a share.
        workloads: uuids or beginnings of them; None for all.

    Raises:
        DataSetError: nothing can be compared; the first reason is named.
    """
    sides = [_by_place(one) for one in (first, second)]
    both = [place for place in sides[0] if place in sides[1]]
    if not both:
        raise DataSetError(f"no trace of {first.word} is of the same definition and workload as one of {second.word}")
    wanted = choose_workloads(workloads, {place.workload for place in both})
    places = [place for place in both if place.workload in wanted]
    rows = [row for place in places for row in _rows(place, sides[0][place], sides[1][place])]
    refused = [row for row in rows if row.ratio is None]
    if len(refused) == len(rows):
        raise DataSetError(f"{first.word} and {second.word}: {refused[0].problem}")
    found = {trace.evaluation.environment.hardware for trace in first.traces if trace.evaluation is not None}
    return ComparedSides(tuple(rows), threshold, "recorded", " + ".join(sorted(found)))


def _by_place(side: Contender) -> dict[RecordedPlace, list[AnyTrace]]:
    named = side.kind in ("set", "run")
    grouped: dict[RecordedPlace, list[AnyTrace]] = defaultdict(list)
    for trace in side.traces:
        grouped[RecordedPlace(trace.definition, (trace.solution or "") if named else "", trace.workload.uuid)].append(
            trace
        )
    return grouped


def _rows(place: RecordedPlace, first: list[AnyTrace], second: list[AnyTrace]) -> Iterable[Row]:
    """Yield a row for each kind of hardware that both were timed on; one that tells why, where there is none."""
    a, b = (_fastest_by_hardware(traces) for traces in (first, second))
    row = Row(place.definition, place.workload, dict(first[0].workload.axes), place.label)
    for side, found, traces in (("A", a, first), ("B", b, second)):
        if not found:
            yield _with_problem(row, _why_no_time(side, traces))
            return
    common = [hardware for hardware in a if hardware in b]
    if not common:
        one, other = next(iter(a)), next(iter(b))
        yield _with_problem(row, str(NoComparison(place.workload, Difference(KINDS["hardware"], one, other))))
    for hardware in common:
        difference = find_difference(*(marks_of(tell(side[hardware]), hardware) for side in (a, b)))
        if difference is not None:
            yield _with_problem(row, str(NoComparison(place.workload, difference)))
        else:
            yield _compared(row, a[hardware], b[hardware])


def _with_problem(row: Row, problem: str) -> Row:
    return replace(row, problem=problem)


def _compared(row: Row, first: AnyEvaluation, second: AnyEvaluation) -> Row:
    a, b = _with_interval(first), _with_interval(second)
    return replace(row, first_ms=a[0], second_ms=b[0], ratio=ratio_of_intervals(a, b))


def _fastest_by_hardware(traces: list[AnyTrace]) -> dict[str, AnyEvaluation]:
    """Return the passing evaluation with the lowest latency on each kind of hardware; quick looks do not count."""
    best: dict[str, AnyEvaluation] = {}
    for trace in passed_of(traces):
        found = trace.evaluation
        if found is None or _latency(found) <= 0 or caveat_of(found) is not None:
            continue
        hardware = found.environment.hardware
        if hardware not in best or _latency(found) < _latency(best[hardware]):
            best[hardware] = found
    return best


def _latency(evaluation: AnyEvaluation) -> float:
    return latency_of(evaluation) or 0.0


def _with_interval(evaluation: AnyEvaluation) -> tuple[float, float, float]:
    """Return a latency with its 95 % interval."""
    latency, interval = _latency(evaluation), read_interval(evaluation)
    return (latency, interval.low_ms, interval.high_ms) if interval is not None else (latency, latency, latency)


def _why_no_time(side: str, traces: list[AnyTrace]) -> str:
    evaluation = traces[-1].evaluation
    if evaluation is None:
        return f"{side} has no verdict"
    if evaluation.status is EvaluationStatus.PASSED:
        why = "it is a quick look" if evaluation.is_quick else caveat_of(evaluation) or "there is none"
        return f"the time of {side} does not count: {why}"
    return f"{side} did not pass: {evaluation.status.value}: {reason_of(evaluation)}".rstrip(": ")
