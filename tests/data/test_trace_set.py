"""The trace set: look-ups, what counts as best, counts, and moving results aside."""

from __future__ import annotations

import math
from datetime import datetime, timezone

import pytest

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.sets.latest import find_latest
from flashinfer_bench.errors import DataSetError
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set


def _set_of(*traces):
    return TraceSet(definitions={"double": make_definition()}, traces={"double": list(traces)})


def test_the_path_may_come_from_the_environment(tmp_path, monkeypatch):
    write_trace_set(tmp_path, definitions=[make_definition()])
    assert list(TraceSet.from_path(environment={"FIB_DATASET_PATH": str(tmp_path)}).definitions) == ["double"]
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    for environment in ({}, {"FIB_DATASET_PATH": ""}):
        with pytest.raises(DataSetError, match="FIB_DATASET_PATH"):
            TraceSet.from_path(environment=environment)


def test_a_solution_is_found_by_name():
    trace_set = TraceSet(solutions={"double": [make_solution("a")], "other": [make_solution("b")]})
    assert trace_set.get_solution("b").name == "b"
    assert trace_set.get_solution("c") is None


def test_the_best_trace_is_the_passing_one_with_the_highest_speed_up():
    slow, fast = make_trace(solution="slow", speedup=1.0), make_trace(solution="fast", speedup=3.0)
    wrong = make_trace(solution="wrong", status="INCORRECT_NUMERICAL")
    assert _set_of(slow, wrong, fast).get_best_trace("double") == fast
    assert _set_of(wrong).get_best_trace("double") is None
    assert _set_of().get_best_trace("unknown") is None


def test_the_last_trace_of_a_solution_and_workload_counts():
    old, new = make_trace(speedup=9.0), make_trace(speedup=2.0)
    broken = make_trace(status="RUNTIME_ERROR")
    assert _set_of(old, new).get_best_trace("double") == new
    assert _set_of(old, broken).get_best_trace("double") is None
    assert _set_of(old, broken).filter_traces("double") == []


@pytest.mark.parametrize(
    "older",
    ["2024-12-31T23:59:59.123456789Z", "2025-01-02T03:04:04", "2025-01-02T05:04:04+02:00", "yesterday", ""],
)
def test_the_time_of_a_trace_says_which_is_the_last_not_its_file(older):
    new, old = make_trace(speedup=2.0), make_trace(speedup=9.0, timestamp=older)
    assert _set_of(new, old).get_best_trace("double") == new
    assert find_latest([new, old]) == [new]


def test_traces_of_different_hardware_all_count_as_in_reports():
    here, there = make_trace(), make_trace(environment={"hardware": "other device", "libs": {}})
    assert _set_of(here, there).latest_traces("double") == [here, there]


def test_a_pass_with_a_huge_relative_error_near_zero_can_be_best():
    passed = make_trace(max_absolute_error=1e-6, max_relative_error=math.inf)
    assert _set_of(passed).get_best_trace("double") == passed
    assert _set_of(passed).filter_traces("double") == []


@pytest.mark.parametrize(
    ("bounds", "is_found"),
    [({}, True), ({"max_abs_error": 0.5}, True), ({"max_abs_error": 1e-3}, False), ({"max_rel_error": 2.0}, True),
     ({"max_rel_error": 0.1}, False), ({"max_abs_error": math.inf, "max_rel_error": 0.1}, False)],
)  # fmt: skip
def test_a_bound_that_is_given_limits_the_largest_error(bounds, is_found):
    trace_set = _set_of(make_trace(max_absolute_error=0.1, max_relative_error=1.0))
    assert (trace_set.get_best_trace("double", **bounds) is not None) == is_found


def test_the_best_trace_may_be_asked_for_by_axes():
    small = make_trace(workload=make_workload("a", axes={"n": 1}), speedup=1.0)
    large = make_trace(workload=make_workload("b", axes={"n": 9}), speedup=2.0)
    assert _set_of(small, large).get_best_trace("double", axes={"n": 1}) == small
    assert _set_of(small, large).get_best_trace("double", axes={"n": 3}) is None


def test_where_no_reference_was_measured_the_lower_latency_is_best():
    slow, fast = (make_trace(solution=f"s{ms}", latency_ms=ms, speedup=0.0) for ms in (2.0, 1.0))
    assert _set_of(slow, fast).get_best_trace("double") == fast


def test_traces_are_filtered_by_both_errors():
    near = make_trace(solution="near", max_absolute_error=1e-3, max_relative_error=1e-3)
    absolute = make_trace(solution="absolute", max_absolute_error=1.0)
    unknown = make_trace(solution="unknown", max_absolute_error=math.nan)
    trace_set = _set_of(near, absolute, unknown, make_trace(status="TIMEOUT"))
    assert trace_set.filter_traces("double") == [near]
    assert trace_set.filter_traces("double", atol=2.0, rtol=1e-2) == [near, absolute]


def test_the_summary_counts_by_everything(tmp_path):
    traces = [make_trace(), make_trace(solution="b", status="TIMEOUT"), make_trace(solution="gone", latency_ms=3.0)]
    solutions = [make_solution(), make_solution("b", author="bob")]
    workloads = [make_trace(solution=None)]
    root = write_trace_set(
        tmp_path, definitions=[make_definition()], solutions=solutions, workloads=workloads, traces=[*traces, traces[0]]
    )
    summary = TraceSet.from_path(root).summary()
    assert {key: summary[key] for key in ("definitions", "solutions", "workloads", "traces")} == {
        "definitions": 1, "solutions": 2, "workloads": 1, "traces": 4,
    }  # fmt: skip
    assert (summary["total"], summary["passed"], summary["failed"], summary["avg_latency_ms"]) == (3, 2, 1, 2.0)
    assert summary["by_status"] == {"PASSED": 2, "TIMEOUT": 1}
    assert summary["by_author"] == {"alice": 1, "bob": 1, "unknown": 1}
    assert summary["by_op_type"] == {"test": 3}


def test_an_empty_set_has_a_summary():
    summary = TraceSet().summary()
    assert (summary["total"], summary["min_latency_ms"], summary["by_status"]) == (0, None, {})


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
    for _ in range(2):
        write_trace_set(tmp_path, definitions=[make_definition()], traces=[make_trace()])
        trace_set = TraceSet.from_path(tmp_path)
        (moved,) = trace_set.backup_traces(now=now)
        assert (moved / "alice/test/double.jsonl").is_file()
        assert trace_set.traces == TraceSet.from_path(tmp_path).traces == {}
    names = sorted(path.name for path in tmp_path.glob("traces*"))
    assert names == ["traces_bak_20250102_030405", "traces_bak_20250102_030405_1"]
    assert trace_set.backup_traces() == []


def test_a_set_turns_into_plain_json(tmp_path):
    root = write_trace_set(
        tmp_path, definitions=[make_definition()], solutions=[make_solution()], workloads=[make_trace(solution=None)]
    )
    plain = TraceSet.from_path(root).to_dict()
    assert plain == {
        "root": str(tmp_path),
        "definitions": {"double": make_definition().to_dict()},
        "solutions": {"double": [make_solution().to_dict()]},
        "workloads": {"double": [make_trace(solution=None).to_dict()]},
        "traces": {},
    }
