"""The frame for reports, scores, exports and look-ups: one result for each verdict, with typed columns.

`list_results` makes results from traces. No other module reads these columns from a trace. Reports group and aggregate
rows by columns.

If a job was judged more than once, its latest verdict counts, whichever file has it (`find_latest`). A passed quick
look (`--quick`) does not replace a whole verdict on the same definition, solution and workload. Look-ups, reports and
resumed runs use both rules. Verdicts with equal or invalid times keep the order of the files.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from flashinfer_bench.base.host import collector_paused
from flashinfer_bench.data.evaluation import EvaluationStatus, as_time
from flashinfer_bench.data.measurement import CONFIRMED, Measurement, ReportedTrace, read_reported
from flashinfer_bench.data.sets.weights import weights_of
from flashinfer_bench.data.store.dialects import UNKNOWN_AUTHOR
from flashinfer_bench.data.store.trace_lines import AnyEvaluation, AnyTrace, PerformanceLine

if TYPE_CHECKING:
    from flashinfer_bench.data.trace_set import TraceSet

_PASSED = EvaluationStatus.PASSED  # a global is ten times faster than access to an Enum member
UNMEASURED: Final = PerformanceLine()
BASELINE: Final = "baseline"
"""The default baseline author."""
REFERENCE: Final = "reference"
"""Name of the baseline of a speed-of-light score if the baseline author has no latency."""
RANKING: Final = "ranking:"
"""Prefix of a definition's tag with the rule of its score: geom, mean or last."""
_UNKNOWN: Final = datetime.min.replace(tzinfo=timezone.utc)
JUDGED_KEYS: Final = ("definition", "solution", "workload", "evaluator")
"""Keys of a fingerprint that identify the judged objects and the evaluator. The other keys are settings."""
_JOB: Final = attrgetter("definition", "workload", "hardware")
Item = TypeVar("Item")


class Result(NamedTuple):
    """One verdict: a row of the frame."""

    trace: AnyTrace
    evaluation: AnyEvaluation
    reported: ReportedTrace
    op_type: str
    """Empty for a definition outside the set."""
    author: str
    """For a solution outside the set: the author that a server recorded, else `UNKNOWN_AUTHOR`."""
    language: str
    is_latest: bool
    """Whether the verdict is the latest on the same definition, solution, workload and hardware."""
    sol_score: float | None = None
    """Speed-of-light score, 0 for a failure. None if the score is unknown, or if the latency's interval is below the
    floor."""
    sol_baseline: str = ""
    """Author of the score's baseline, or `REFERENCE`. A result without a baseline counts in no mean."""
    baseline_ms: float | None = None
    """Lowest latency of the set's baseline author; 0 if that author has no latency; None if the reference is the
    baseline."""
    weight: float = 1.0
    """The workload's weight in the set, or the recorded weight for a workload outside the set."""

    @property
    def definition(self) -> str:
        """Name of the definition."""
        return self.trace.definition

    @property
    def solution(self) -> str:
        """Name of the solution."""
        return self.trace.solution or ""

    @property
    def workload(self) -> str:
        """The workload's uuid."""
        return self.trace.workload.uuid

    @property
    def hardware(self) -> str:
        """Name of the device."""
        return self.evaluation.environment.hardware

    @property
    def status(self) -> str:
        """The verdict."""
        return self.evaluation.status.value

    @property
    def is_passed(self) -> bool:
        """Whether it passed."""
        return self.evaluation.status is _PASSED

    @property
    def measurement(self) -> Measurement:
        """The record of the timing."""
        return self.reported.measurement

    @property
    def latency_ms(self) -> float | None:
        """The latency; None if it is missing or out of range."""
        return as_time((self.evaluation.performance or UNMEASURED).latency_ms)

    @property
    def reference_ms(self) -> float | None:
        """The latency of the reference, or of the set's baseline author; None if it was not measured."""
        recorded = (self.evaluation.performance or UNMEASURED).reference_latency_ms
        return as_time(recorded if self.baseline_ms is None else self.baseline_ms)

    @property
    def speedup_factor(self) -> float:
        """The speed-up over the reference as recorded in the trace; 0 if it is not recorded."""
        factor = (self.evaluation.performance or UNMEASURED).speedup_factor
        return factor if math.isfinite(factor) else 0.0

    @property
    def speedup(self) -> float | None:
        """Speed-up over the reference; None if either latency is missing."""
        latency, reference = self.latency_ms, self.reference_ms
        return reference / latency if latency and reference else None

    @property
    def compile_ms(self) -> float | None:
        """The latency of the reference under torch.compile; None if it was not measured."""
        return as_time(self.reported.baseline_compile.latency_ms or 0.0)

    @property
    def compile_speedup(self) -> float | None:
        """Speed-up over the reference under torch.compile; None if either latency is missing."""
        latency, compiled = self.latency_ms, self.compile_ms
        return compiled / latency if latency and compiled else None

    @property
    def is_ranked(self) -> bool:
        """Whether the latency may be compared: the solution passed, the verdict is no quick look, and the time is
        meaningful."""
        known = self.is_passed and self.latency_ms is not None
        return known and not self.reported.run.quick and self.reported.measurement.meaningful

    @property
    def may_be_best(self) -> bool:
        """Whether the latency may be called the best (`ReportedTrace.may_be_best`)."""
        return self.reported.may_be_best(self.latency_ms or 0.0)

    @property
    def standing(self) -> str:
        """The standing of the latency; empty if the result is not ranked."""
        return self.reported.measurement.standing if self.is_ranked else ""


@collector_paused()
def list_results(trace_set: TraceSet | None, traces: Iterable[AnyTrace], *, latest_only: bool = True) -> list[Result]:
    """Return the results of the traces with a verdict, in the order of the traces.

    Failures get a speed-of-light score if any result of the same definition and hardware has a floor and a baseline. On
    a workload without a latency of the baseline author, the reference is the baseline.

    Args:
        trace_set: the set with the definitions and solutions; None for no set.
        latest_only: if a job was judged more than once, list only the verdict that counts.
    """
    given = list(traces)
    latest = {id(trace) for trace in find_latest(given)}
    op_types: dict[str, str] = {}
    weights: dict[str, dict[str, float]] = {}
    authors: dict[str | None, tuple[str, str]] = {}
    if trace_set is not None:
        op_types = {name: definition.op_type for name, definition in trace_set.definitions.items()}
        weights = {name: weights_of(lines) for name, lines in trace_set.workloads.items()}
        authors = {item.name: (item.author, item.spec.language.value) for item in trace_set.all_solutions()}
    found = []
    for trace in given:
        evaluation, is_latest = trace.evaluation, id(trace) in latest
        if evaluation is not None and (is_latest or not latest_only):
            reported = read_reported(evaluation)
            who = authors.get(trace.solution) or (reported.run.author or UNKNOWN_AUTHOR, "")
            op_type = op_types.get(trace.definition, "")
            weight = weights.get(trace.definition, {}).get(trace.workload.uuid, trace.workload.weight)
            found.append(Result(trace, evaluation, reported, op_type, *who, is_latest, weight=weight))
    baseline = trace_set.baseline_author if trace_set is not None else None
    rival = baseline or BASELINE
    own = {name for name, (author, _) in authors.items() if author == rival}
    traced = [trace for trace in trace_set.all_traces() if trace.solution in own] if trace_set and own else []
    lowest = lowest_of(list_results(None, traced)) if traced else {}
    floors = {
        (item.definition, item.hardware)
        for item in found
        if item.reported.roofline.floor_ms and (item.reference_ms or _JOB(item) in lowest)
    }
    found = [
        _with_sol_score(item, lowest.get(_JOB(item)), rival) if (item.definition, item.hardware) in floors else item
        for item in found
    ]
    return found if baseline is None else [item._replace(baseline_ms=lowest.get(_JOB(item), 0.0)) for item in found]


def _with_sol_score(item: Result, rival_ms: float | None, author: str) -> Result:
    baseline_ms, floor_ms, score = rival_ms or item.reference_ms, item.reported.roofline.floor_ms, None
    if not item.is_passed:
        score = 0.0
    elif not (item.is_ranked and item.latency_ms and floor_ms and baseline_ms):
        return item
    elif max(item.measurement.bounds or (item.latency_ms,)) >= floor_ms:
        score = sol_score(item.latency_ms, baseline_ms, floor_ms)
    return item._replace(sol_score=score, sol_baseline=author if rival_ms else REFERENCE)


def sol_score(kernel_ms: float, baseline_ms: float, floor_ms: float) -> float:
    """Return the speed-of-light score of a latency, from 0 to 1.

        score = 1 / (1 + (kernel - floor) / (baseline - floor))

    The baseline scores 0.5, the floor 1, and an endless call 0.
    A latency below the floor counts as the floor. If the baseline equals the floor, the floor scores 1, and a latency
    above the floor scores 0.

    Args:
        kernel_ms: the latency of the solution.
        baseline_ms: the latency of the baseline.
        floor_ms: the shortest time that the device's peak rates allow.
    """
    excess_ms, room_ms = max(kernel_ms - floor_ms, 0.0), baseline_ms - floor_ms
    if room_ms <= 0:
        return float(excess_ms == 0)
    return 1 / (1 + excess_ms / room_ms)


def mean_sol_score(results: Iterable[Result], missing: float = 0.0) -> float | None:
    """Return the mean of speed-of-light scores; None without scores. Missing workloads count 0, and so do latencies
    below the floor.

    Args:
        missing: sum of the weights of missing workloads.
    """
    scored = [item for item in results if item.sol_baseline]
    known = [item.sol_score * item.weight for item in scored if item.sol_score is not None]
    return sum(known) / (sum(item.weight for item in scored) + missing) if known else None


def in_order_of_time(traces: Iterable[AnyTrace]) -> list[AnyTrace]:
    """Return the traces with a verdict, the earliest first."""
    judged = [(trace, trace.evaluation) for trace in traces if trace.evaluation is not None]
    return [trace for trace, _ in sorted(judged, key=lambda item: moment_of(item[1]))]


def find_latest(traces: Iterable[AnyTrace]) -> list[AnyTrace]:
    """Return the trace that counts for each definition, solution, workload and hardware, the earliest first."""
    latest: dict[tuple[str, str | None, str, str], AnyTrace] = {}
    whole: dict[tuple[str, str | None, str, str], AnyTrace] = {}
    for trace in in_order_of_time(traces):
        assert trace.evaluation is not None  # `in_order_of_time` skips traces without a verdict
        key = (trace.definition, trace.solution, trace.workload.uuid, trace.evaluation.environment.hardware)
        before = latest.pop(key, None)
        if before is not None:
            if not _is_quick(before):
                whole[key] = before
            if key in whole and _is_quick(trace) and trace.is_successful() and _may_be_alike(whole[key], trace):
                trace = whole[key]
        latest[key] = trace
    return list(latest.values())


def _is_quick(trace: AnyTrace) -> bool:
    return trace.evaluation is not None and read_reported(trace.evaluation).run.quick


def _may_be_alike(*traces: AnyTrace) -> bool:
    """Return whether the fingerprints of traces name the same judged objects. A missing fingerprint counts as equal to
    every fingerprint."""
    found = [read_reported(trace.evaluation).run.fingerprint for trace in traces if trace.evaluation is not None]
    return len({tuple(map(keys.get, JUDGED_KEYS)) for keys in found if keys}) < 2


def moment_of(evaluation: AnyEvaluation) -> datetime:
    """Return the time of a verdict. An unknown time is the earliest."""
    return parse_time(evaluation.timestamp) or _UNKNOWN


def parse_time(text: str) -> datetime | None:
    """Return the time of a verdict; None if the text is not a time. A time without a zone is UTC."""
    try:
        moment = msgspec.convert(text.strip(), datetime)
        return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)
    except (msgspec.ValidationError, OverflowError):
        return None


def fastest_of(results: Iterable[Result], key: Callable[[Result], Any]) -> dict[Any, tuple[float, Result]]:
    """Return key → the lowest latency and its result. If a key has a confirmed result, only confirmed results count."""
    timed = (item for item in results if item.is_passed and item.latency_ms is not None)
    best = {
        name: min(items, key=lambda item: (item.standing != CONFIRMED, item.latency_ms))
        for name, items in group(timed, key).items()
    }
    return {name: (item.latency_ms or 0.0, item) for name, item in best.items()}


def lowest_of(results: Iterable[Result]) -> Mapping[tuple[str, str, str], float]:
    """Return (definition, workload, hardware) → the lowest latency of ranked results; see `fastest_of`."""
    ranked = fastest_of((item for item in results if item.is_ranked), _JOB)
    return {key: latency for key, (latency, _) in ranked.items()}


def group(items: Iterable[Item], key: Callable[[Item], Any]) -> dict[Any, list[Item]]:
    """Return items by key, in the order of the first item of each key."""
    groups: defaultdict[Any, list[Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups
