"""The summary of a set: counts by key, and the ranking of its authors, which is made when it is looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from flashinfer_bench.data.sets.best import is_quick, time_of
from flashinfer_bench.data.sets.latest import find_latest
from flashinfer_bench.data.sets.scores import Ranking
from flashinfer_bench.data.store.trace_lines import kept_of

if TYPE_CHECKING:
    from flashinfer_bench.data.trace_set import TraceSet


class TraceSetSummary(dict[str, Any]):
    """Counts of a set by key, the most wanted ones as attributes too, and the ranking of its authors."""

    def __init__(self, counts: Mapping[str, Any], rank: Callable[[], Ranking]) -> None:
        super().__init__(counts)
        self._rank = rank

    @property
    def total(self) -> int:
        """Latest verdicts."""
        return int(self["total"])

    @property
    def passed(self) -> int:
        """Those that passed."""
        return int(self["passed"])

    @property
    def failed(self) -> int:
        """Those that did not."""
        return int(self["failed"])

    @cached_property
    def rankings(self) -> Ranking:
        """Authors with their scores, the highest first; also under the key "rankings".

        Raises:
            ValueError: the baseline author has no solution, or several, of a definition that counts.
        """
        return self._rank()

    def __missing__(self, key: str) -> Any:
        if key == "rankings":
            return self.rankings
        raise KeyError(key)


def count_set(trace_set: TraceSet) -> dict[str, Any]:
    """Count what is in the set, and its latest traces by status, definition, solution, author and op type."""
    latest = [trace for traces in trace_set.traces.values() for trace in find_latest(kept_of(traces))]
    passed = [trace for trace in latest if trace.is_successful()]
    authors = {item.name: item.author for group in trace_set.solutions.values() for item in group}
    op_types = {name: definition.op_type for name, definition in trace_set.definitions.items()}
    latencies = [time for trace in passed if not is_quick(trace) and (time := time_of(trace)) is not None]
    return {
        "definitions": len(trace_set.definitions),
        "solutions": sum(map(len, trace_set.solutions.values())),
        "workloads": sum(map(len, trace_set.workloads.values())),
        "traces": sum(map(len, trace_set.traces.values())),
        "total": len(latest),
        "passed": len(passed),
        "failed": len(latest) - len(passed),
        "min_latency_ms": min(latencies, default=None),
        "max_latency_ms": max(latencies, default=None),
        "avg_latency_ms": sum(latencies) / len(latencies) if latencies else None,
        "by_status": _count(trace.evaluation.status.value for trace in latest if trace.evaluation),
        "by_definition": _count(trace.definition for trace in latest),
        "by_solution": _count(trace.solution or "" for trace in latest),
        "by_author": _count(authors.get(trace.solution or "", "unknown") for trace in latest),
        "by_op_type": _count(op_types.get(trace.definition, "unknown") for trace in latest),
    }


def _count(words: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(words).items()))
