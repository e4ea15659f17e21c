"""The trace set: look-ups, what counts as best, counts, moving results aside, and several roots as one set."""

from __future__ import annotations

import math
from datetime import datetime, timezone

import pytest

from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import DataSetError
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

HERE = [make_definition()]


def _set_of(*traces):
    return TraceSet(definitions={"double": make_definition()}, traces={"double": list(traces)})


def test_an_empty_variable_names_no_set(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    with pytest.raises(DataSetError, match="FIB_DATASET_PATH"):
        TraceSet.from_path(environment={"FIB_DATASET_PATH": ""})


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


def test_traces_are_filtered_by_both_errors_and_those_of_other_hardware_stay():
    near = make_trace(solution="near", max_absolute_error=1e-3, max_relative_error=1e-3)
    there = near.model_copy(update={"evaluation": make_trace(environment={"hardware": "other", "libs": {}}).evaluation})
    absolute = make_trace(solution="absolute", max_absolute_error=1.0)
    unknown = make_trace(solution="unknown", max_absolute_error=math.nan)
    trace_set = _set_of(near, there, absolute, unknown, BROKEN, HUGE)
    assert trace_set.filter_traces("double") == [near, there]
    assert trace_set.filter_traces("double", atol=2.0, rtol=1e-2) == [near, there, absolute]
    assert trace_set.latest_traces("double")[:2] == [near, there]


def test_the_summary_counts_by_everything(tmp_path):
    traces = [make_trace(), make_trace(solution="b", status="TIMEOUT"), make_trace(solution="gone", latency_ms=3.0)]
    solutions = [make_solution(), make_solution("b", author="bob")]
    root = write_trace_set(tmp_path, definitions=HERE, solutions=solutions, traces=[*traces, traces[0]])
    wanted = {
        "traces": 4,
        "total": 3,
        "avg_latency_ms": 2.0,
        "by_status": {"PASSED": 2, "TIMEOUT": 1},
        "by_author": {"alice": 1, "bob": 1, "unknown": 1},
        "by_op_type": {"test": 3},
    }
    assert wanted.items() <= dict(TraceSet.from_path(root).summary()).items()
    assert TraceSet().summary()["min_latency_ms"] is None


def test_traces_are_added_all_or_none_and_only_with_an_evaluation(tmp_path):
    trace_set = TraceSet(tmp_path, {"double": make_definition()}, {"double": [make_solution()]})
    trace_set.keep_traces([make_trace(), make_trace()])
    with pytest.raises(DataSetError, match="no evaluation"):
        trace_set.add_traces([make_trace(), make_trace(solution=None)])
    assert len(trace_set.traces["double"]) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_set_without_traces_shares_nothing_that_can_be_added_to():
    first = _set_of(make_trace())
    second = first.without_traces()
    second.keep_traces([make_trace(), make_trace()])
    second.definitions.clear()
    assert (len(first.traces["double"]), len(first.definitions)) == (1, 1)


def test_traces_are_moved_aside_and_never_over_older_ones(tmp_path):
    now = datetime(2025, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    for ending in ("", "_1"):
        write_trace_set(tmp_path, definitions=HERE, traces=[make_trace()])
        trace_set = TraceSet.from_path(tmp_path)
        assert trace_set.backup_traces(now=now) == [tmp_path / f"traces_bak_20250102_030405{ending}"]
    assert trace_set.backup_traces() == []


def test_a_set_turns_into_plain_json(tmp_path):
    root = write_trace_set(tmp_path, definitions=HERE, solutions=[make_solution()])
    assert TraceSet.from_path(root).to_dict() == {
        "root": str(tmp_path),
        "definitions": {"double": make_definition().to_dict()},
        "solutions": {"double": [make_solution().to_dict()]},
        "workloads": {},
        "traces": {},
    }


def _workload(uuid, **parts):
    return make_trace(solution=None, workload=make_workload(uuid, **parts))


def _merge(tmp_path, first, second):
    """Merge two sets on disk; give the first, and what became of both."""
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


def test_a_definition_from_another_root_settles_what_was_missing(tmp_path):
    first = {"solutions": [make_solution()], "workloads": [_workload("a"), _workload("b", axes={})]}
    mine, merged = _merge(tmp_path, first, {"definitions": HERE})
    assert {issue.missing_definition for issue in mine.issues} == {"", "double"}
    (issue,) = merged.issues
    assert issue.reason.startswith("workload b of double: workload.axes.n: ")
    assert merged.workloads == {"double": [_workload("a")]}
    assert merged.solution_root("double_python") == tmp_path / "1"
