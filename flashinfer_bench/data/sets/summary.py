"""The summary of a set: counts by key, and the ranking of its authors, which is made when it is looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from flashinfer_bench.data.sets.results import list_results
from flashinfer_bench.data.sets.scores import Ranking
from flashinfer_bench.data.store.trace_lines import kept_of

if TYPE_CHECKING:
    from flashinfer_bench.data.trace_set import TraceSet


class TraceSetSummary(dict[str, Any]):
    """Counts of a set by key, the most wanted ones as attributes too, and the ranking of its authors."""

    def __init__(self, counts: Mapping[str, Any], rank: Callable[[], Ranking]) -> None:
        super().__init__(counts)
        self._rank = rank
        self.total: int = counts["total"]
        """Latest verdicts."""
        self.passed: int = counts["passed"]
        self.failed: int = counts["failed"]

    @property
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
    results = list_results(trace_set, [trace for part in trace_set.traces.values() for trace in kept_of(part)])
    passed = [item for item in results if item.is_passed]
    latencies = [item.latency_ms for item in passed if not item.told.run.quick and item.latency_ms is not None]
    return {
        "definitions": len(trace_set.definitions),
        "solutions": sum(map(len, trace_set.solutions.values())),
        "workloads": sum(map(len, trace_set.workloads.values())),
        "traces": sum(map(len, trace_set.traces.values())),
        "total": len(results),
        "passed": len(passed),
        "failed": len(results) - len(passed),
        "min_latency_ms": min(latencies, default=None),
        "max_latency_ms": max(latencies, default=None),
        "avg_latency_ms": sum(latencies) / len(latencies) if latencies else None,
        "by_status": _count(item.status for item in results),
        "by_definition": _count(item.definition for item in results),
        "by_solution": _count(item.solution for item in results),
        "by_author": _count(item.author for item in results),
        "by_op_type": _count(item.op_type or "unknown" for item in results),
    }


def _count(words: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(words).items()))
