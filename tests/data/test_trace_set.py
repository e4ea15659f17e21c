"""The trace set: look-ups, the best trace, counts, moving results aside, and merging several roots."""

from __future__ import annotations

import math

import pytest

from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import DataSetError
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

HERE = [make_definition()]


def _set_of(*traces):
    return TraceSet(definitions={"double": make_definition()}, traces={"double": list(traces)})


OLD, NEW = make_trace(speedup=9.0), make_trace(speedup=2.0)
BROKEN = make_trace(status="RUNTIME_ERROR")
SLOW, FAST = make_trace(solution="slow", speedup=1.0), make_trace(solution="fast", speedup=3.0)
WRONG = make_trace(solution="wrong", status="INCORRECT_NUMERICAL")
HUGE = make_trace(solution="huge", max_absolute_error=1e-6, max_relative_error=math.inf)
BY_MS = [make_trace(solution=f"s{ms}", latency_ms=ms, speedup=0.0) for ms in (2.0, 1.0)]
BEST = {
    "the highest speed-up that passed": ([SLOW, WRONG, FAST], FAST),
    "nothing passed": ([WRONG], None),
    "the last of a job counts": ([OLD, NEW], NEW),
    "also if it failed": ([OLD, BROKEN], None),
    "a huge relative error near zero": ([HUGE], HUGE),
    "the lower latency where no reference was measured": (BY_MS, BY_MS[1]),
    **{
        f"older: {time}": ([NEW, make_trace(speedup=9.0, timestamp=time)], NEW)
        for time in ("2024-12-31T23:59:59.123456789Z", "2025-01-02T03:04:04", "2025-01-02T05:04:04+02:00", "yesterday")
    },
}


@pytest.mark.parametrize(("traces", "best"), BEST.values(), ids=BEST)
def test_the_best_trace_is_of_the_last_that_passed(traces, best):
    assert _set_of(*traces).get_best_trace("double") == best


@pytest.mark.parametrize(
    ("bounds", "is_found"),
    [({}, True), ({"max_abs_error": 0.5}, True), ({"max_rel_error": 2.0}, True), ({"max_rel_error": 0.1}, False)],
)
def test_a_bound_that_is_given_limits_the_largest_error(bounds, is_found):
    trace_set = _set_of(make_trace(max_absolute_error=0.1, max_relative_error=1.0))
    assert (trace_set.get_best_trace("double", **bounds) is not None) == is_found


def _workload(uuid, **parts):
    return make_trace(solution=None, workload=make_workload(uuid, **parts))


def _merge(tmp_path, first, second):
    """Merge two sets on disk; return the first set and the merged set."""
    one, two = (
        TraceSet.from_path(write_trace_set(tmp_path / name, **models))
        for name, models in {"1": first, "2": second}.items()
    )
    return one, TraceSet.merge([one, two])


MINE = {"definitions": HERE, "solutions": [make_solution()], "workloads": [_workload("a")]}


def test_what_is_the_same_counts_once_and_blobs_are_in_the_root_of_their_workload(tmp_path):
    second = {
        "definitions": [make_definition(description="other words")],
        "workloads": [_workload("a"), _workload("b")],
    }
    one, merged = _merge(tmp_path, MINE, {**MINE, **second})
    assert (merged.definitions, merged.solutions) == (one.definitions, one.solutions)
    assert merged.workloads == {"double": [_workload("a"), _workload("b")]}
    assert (merged.root, merged.roots) == (one.root, [tmp_path / "1", tmp_path / "2"])
    assert [merged.blob_root("double", uuid).name for uuid in "ab"] == ["1", "2"]
    with pytest.raises(DataSetError, match="no trace set"):
        TraceSet.merge([])


def test_a_definition_from_another_root_resolves_the_issue(tmp_path):
    first = {"solutions": [make_solution()], "workloads": [_workload("a"), _workload("b", axes={})]}
    mine, merged = _merge(tmp_path, first, {"definitions": HERE})
    assert {issue.missing_definition for issue in mine.issues} == {"", "double"}
    (issue,) = merged.issues
    assert issue.reason.startswith("workload b of double: workload.axes.n: ")
    assert merged.workloads == {"double": [_workload("a")]}
    assert merged.solution_root("double_python") == tmp_path / "1"
