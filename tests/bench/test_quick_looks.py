"""Quick runs (`--quick`): their cost, their keys, and that they are neither ranked nor resumed from."""

import pytest

from flashinfer_bench.bench.planning.resume import fingerprint
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.sets.results import find_latest
from tests.kit import make_trace
from tests.report.made import best_by_definition, best_by_workload

KEYS = {"definition": "d", "solution": "s", "workload": "w", "evaluator": "e", "hardware": "test device"}
WHOLE, QUICK = fingerprint(**KEYS), fingerprint(**KEYS, timing="quick")


def quick(keys=QUICK, **parts):
    """Return the trace of a quick run; traces of other hours come later in the day."""
    return make_trace(extra={"run": {"fingerprint": keys, "quick": True}}, timestamp=_at(parts.pop("hour", 3)), **parts)


def whole(keys=WHOLE, **parts):
    return make_trace(extra={"run": {"fingerprint": keys}}, timestamp=_at(parts.pop("hour", 1)), **parts)


def _at(hour):
    return f"2025-01-02T{hour:02d}:00:00Z"


OTHER, OTHER_QUICK = {**WHOLE, "solution": "x"}, {**QUICK, "solution": "x"}


@pytest.mark.parametrize(
    ("traces", "shown"),
    [
        ([quick()], 0),
        ([whole(), quick()], 0),
        ([whole(status="TIMEOUT"), quick()], 0),
        ([whole(), quick(status="TIMEOUT")], 1),
        ([whole(), quick(status="TIMEOUT"), quick(hour=4)], 0),
        ([whole(), quick(OTHER_QUICK)], 1),
        ([make_trace(timestamp=_at(1)), quick()], 0),
        ([quick(hour=0), whole()], 1),
        ([whole(), quick(), whole(hour=5)], 2),
    ],
)
def test_a_quick_look_that_passed_displaces_no_whole_verdict_on_the_same(traces, shown):
    assert find_latest(traces) == [traces[shown]]


def test_no_choice_falls_on_a_quick_look():
    fast = quick(solution="fast", speedup=99.0, latency_ms=0.01)
    slow = whole(solution="slow", speedup=2.0)
    trace_set = TraceSet(traces={"double": [slow, fast]})
    assert trace_set.get_best_trace("double") == slow
    assert trace_set.filter_traces("double") == [slow]
    assert trace_set.summary()["min_latency_ms"] == 1.0
    assert [(row.solution, row.contenders) for row in best_by_workload([slow, fast])] == [("slow", 1)]
    assert [row.solution for row in best_by_definition([slow, fast])] == ["slow"]
    for traces in (
        [fast],
        [whole(OTHER, speedup=5.0), quick()],
    ):  # nor a solution that was changed since its whole verdict
        assert best_by_workload(traces) == best_by_definition(traces) == []
