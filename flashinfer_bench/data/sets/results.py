"""The frame that reports, scores, exports and look-ups read: one result for each verdict, with typed columns.

`list_results` makes it of traces. What a column needs of a trace is read here and nowhere else; reports group rows by
these columns and sum them up.

Of a job that was judged more than once the latest verdict counts, whatever file it is in (`find_latest`). A quick look
(`--quick`) that passed does not displace a whole verdict on the same definition, solution and workload. Look-ups,
reports and resumed runs use this rule. Equal times, and times that are no ISO 8601, keep the files' order.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from flashinfer_bench.base.host import collector_paused
from flashinfer_bench.data.evaluation import EvaluationStatus, as_time
from flashinfer_bench.data.measurement import CONFIRMED, Measurement, ReportedTrace, read_reported
from flashinfer_bench.data.store.dialects import UNKNOWN_AUTHOR
from flashinfer_bench.data.store.trace_lines import AnyEvaluation, AnyTrace, PerformanceLine

if TYPE_CHECKING:
    from flashinfer_bench.data.trace_set import TraceSet

_PASSED = EvaluationStatus.PASSED  # access to a member of an Enum takes ten times as long
UNMEASURED: Final = PerformanceLine()
_UNKNOWN: Final = datetime.min.replace(tzinfo=timezone.utc)
JUDGED_KEYS: Final = ("definition", "solution", "workload", "evaluator")
"""The keys of a fingerprint that say what was judged, and by whom. The others say under which settings."""
_JUDGED: Final = attrgetter(*JUDGED_KEYS)
Item = TypeVar("Item")


class Result(NamedTuple):
    """One verdict: a row of the frame."""

    trace: AnyTrace
    evaluation: AnyEvaluation
    reported: ReportedTrace
    op_type: str
    """Empty for a definition that the set does not have."""
    author: str
    """`UNKNOWN_AUTHOR` for a solution that the set does not have."""
    language: str
    is_latest: bool
    """Whether it counts of its definition, solution, workload and hardware."""

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
        """How it was timed."""
        return self.reported.measurement

    @property
    def latency_ms(self) -> float | None:
        """The latency; None without one, or if no call takes as long."""
        return as_time((self.evaluation.performance or UNMEASURED).latency_ms)

    @property
    def reference_ms(self) -> float | None:
        """The latency of the reference; None if it was not measured."""
        return as_time((self.evaluation.performance or UNMEASURED).reference_latency_ms)

    @property
    def speedup_factor(self) -> float:
        """The speed-up over the reference that the trace tells; 0 without one."""
        factor = (self.evaluation.performance or UNMEASURED).speedup_factor
        return factor if math.isfinite(factor) else 0.0

    @property
    def speedup(self) -> float | None:
        """Over the reference; None if one of both was not measured."""
        latency, reference = self.latency_ms, self.reference_ms
        return reference / latency if latency and reference else None

    @property
    def is_ranked(self) -> bool:
        """Whether it may be compared with others: it passed, is no quick run, and its time means something."""
        known = self.is_passed and self.latency_ms is not None
        return known and not self.reported.run.quick and self.reported.measurement.meaningful

    @property
    def may_be_best(self) -> bool:
        """Whether its latency may be called the best, as `ReportedTrace.may_be_best` says."""
        return self.reported.may_be_best(self.latency_ms or 0.0)

    @property
    def standing(self) -> str:
        """What its time counts for in a ranking, as of a measurement; empty if it is not ranked."""
        return self.reported.measurement.standing if self.is_ranked else ""


@collector_paused()
def list_results(trace_set: TraceSet | None, traces: Iterable[AnyTrace], *, latest_only: bool = True) -> list[Result]:
    """Return the results of the traces that hold a verdict, in their order.

    Args:
        trace_set: where definitions and solutions are looked up; None for nowhere.
        traces: what to read.
        latest_only: of a job that was judged more than once, list only the verdict that counts.
    """
    given = list(traces)
    latest = {id(trace) for trace in find_latest(given)}
    op_types: dict[str, str] = {}
    authors: dict[str | None, tuple[str, str]] = {}
    if trace_set is not None:
        op_types = {name: definition.op_type for name, definition in trace_set.definitions.items()}
        authors = {item.name: (item.author, item.spec.language.value) for item in trace_set.all_solutions()}
    found = []
    for trace in given:
        evaluation, is_latest = trace.evaluation, id(trace) in latest
        if evaluation is not None and (is_latest or not latest_only):
            op_type, who = op_types.get(trace.definition, ""), authors.get(trace.solution, (UNKNOWN_AUTHOR, ""))
            found.append(Result(trace, evaluation, read_reported(evaluation), op_type, *who, is_latest))
    return found


def in_order_of_time(traces: Iterable[AnyTrace]) -> list[AnyTrace]:
    """Return the traces that hold a verdict, the earliest first."""
    judged = [(trace, trace.evaluation) for trace in traces if trace.evaluation is not None]
    return [trace for trace, _ in sorted(judged, key=lambda item: moment_of(item[1]))]


def find_latest(traces: Iterable[AnyTrace]) -> list[AnyTrace]:
    """Return the trace that counts of each definition, solution, workload and hardware, the earliest first."""
    latest: dict[tuple[str, str | None, str, str], AnyTrace] = {}
    whole: dict[tuple[str, str | None, str, str], AnyTrace] = {}
    for trace in in_order_of_time(traces):
        assert trace.evaluation is not None  # as of all that are in order
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
    """Tell whether two traces are of the same things by their fingerprints, or one has none."""
    judged = {
        _JUDGED(read_reported(trace.evaluation).run.fingerprint) for trace in traces if trace.evaluation is not None
    }
    return len(judged - {("", "", "", "")}) < 2


def moment_of(evaluation: AnyEvaluation) -> datetime:
    """Return the time of a verdict; one whose time is unknown is the earliest."""
    return parse_time(evaluation.timestamp) or _UNKNOWN


def parse_time(text: str) -> datetime | None:
    """Return the time of a verdict; None for a text that is no time. A time without a zone is UTC."""
    try:
        moment = msgspec.convert(text.strip(), datetime)
        return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)
    except (msgspec.ValidationError, OverflowError):
        return None


def fastest_of(results: Iterable[Result], key: Callable[[Result], Any]) -> dict[Any, tuple[float, Result]]:
    """Return the lowest latency by a key, with its result: of a confirmed one if there is one."""
    timed = (item for item in results if item.is_passed and item.latency_ms is not None)
    best = {
        name: min(items, key=lambda item: (item.standing != CONFIRMED, item.latency_ms))
        for name, items in group(timed, key).items()
    }
    return {name: (item.latency_ms or 0.0, item) for name, item in best.items()}


def group(items: Iterable[Item], key: Callable[[Item], Any]) -> dict[Any, list[Item]]:
    """Return items by a key, in the order in which keys come first."""
    groups: defaultdict[Any, list[Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups
