"""The frame that reports, scores, exports and look-ups read: one result for each verdict, with typed columns.

`list_results` makes it of traces. What a column needs of a trace is read here and nowhere else; reports group rows by
these columns and sum them up.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from flashinfer_bench.base.host import collector_paused
from flashinfer_bench.data.evaluation import EvaluationStatus, as_time
from flashinfer_bench.data.measurement import CONFIRMED, Measurement, ToldTrace, tell
from flashinfer_bench.data.sets.latest import find_latest
from flashinfer_bench.data.store.trace_lines import AnyEvaluation, AnyTrace

if TYPE_CHECKING:
    from flashinfer_bench.data.trace_set import TraceSet

_PASSED = EvaluationStatus.PASSED  # access to a member of an Enum takes ten times as long
Item = TypeVar("Item")
UNKNOWN_AUTHOR: Final = "unknown"


class Result(NamedTuple):
    """One verdict: a row of the frame."""

    trace: AnyTrace
    evaluation: AnyEvaluation
    told: ToldTrace
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
        return self.told.measurement

    @property
    def latency_ms(self) -> float | None:
        """The latency; None without one, or if no call takes as long."""
        performance = self.evaluation.performance
        return as_time(performance.latency_ms) if performance is not None else None

    @property
    def reference_ms(self) -> float | None:
        """The latency of the reference; None if it was not measured."""
        performance = self.evaluation.performance
        return as_time(performance.reference_latency_ms) if performance is not None else None

    @property
    def speedup_factor(self) -> float:
        """The speed-up over the reference that the trace tells; 0 without one."""
        performance = self.evaluation.performance
        factor = performance.speedup_factor if performance is not None else 0.0
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
        return known and not self.told.run.quick and self.told.measurement.meaningful

    @property
    def may_be_best(self) -> bool:
        """Whether its latency may be called the best, as `ToldTrace.may_be_best` says."""
        return self.told.may_be_best(self.latency_ms or 0.0)

    @property
    def standing(self) -> str:
        """What its time counts for in a ranking, as of a measurement; empty if it is not ranked."""
        return self.told.measurement.standing if self.is_ranked else ""


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
    op_types, solutions = {}, {}
    if trace_set is not None:
        op_types = {name: definition.op_type for name, definition in trace_set.definitions.items()}
        solutions = {item.name: item for group in trace_set.solutions.values() for item in group}
    found = []
    for trace in given:
        evaluation, is_latest = trace.evaluation, id(trace) in latest
        if evaluation is None or (latest_only and not is_latest):
            continue
        solution = solutions.get(trace.solution or "")
        author, language = UNKNOWN_AUTHOR, ""
        if solution is not None:
            author, language = solution.author, solution.spec.language.value
        op_type = op_types.get(trace.definition, "")
        found.append(Result(trace, evaluation, tell(evaluation), op_type, author, language, is_latest))
    return found


def fastest_of(results: Iterable[Result], key: Callable[[Result], Any]) -> dict[Any, tuple[float, Result]]:
    """Return the lowest latency by a key, with its result: of a confirmed one if there is one."""
    best: dict[Any, tuple[bool, float, Result]] = {}
    for item in results:
        latency = item.latency_ms
        if item.is_passed and latency is not None:
            name, found = key(item), (item.standing != CONFIRMED, latency, item)
            best[name] = min(found, best.get(name, found), key=lambda one: one[:2])
    return {name: (latency, item) for name, (_, latency, item) in best.items()}


def group(items: Iterable[Item], key: Callable[[Item], Any]) -> dict[Any, list[Item]]:
    """Return items by a key, in the order in which keys come first."""
    groups: defaultdict[Any, list[Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups
