"""One row per solution."""

import pytest

from flashinfer_bench.report.summary import count_statuses, measured_speedup, summarise
from tests.kit import make_evaluation, make_trace, make_workload


def on(uuid, **parts):
    return make_trace(workload=make_workload(uuid), **parts)


def test_a_row_has_the_median_latency_and_the_geometric_mean_of_speedups():
    traces = [on("a", latency_ms=1.0, speedup=1.0), on("b", latency_ms=2.0, speedup=4.0), on("c", latency_ms=9.0)]
    (row,) = summarise(traces)
    assert (row.passed, row.judged, row.pending) == (3, 3, 0)
    assert row.latency_ms == 2.0
    assert row.speedup == pytest.approx(2.0)


def test_failed_workloads_do_not_enter_the_numbers():
    (row,) = summarise([on("a", latency_ms=1.0), on("b", status="TIMEOUT")])
    assert (row.passed, row.judged, row.latency_ms) == (1, 2, 1.0)


def test_a_solution_that_never_passed_has_no_numbers():
    (row,) = summarise([on("a", status="TIMEOUT")])
    assert row.latency_ms is None
    assert row.speedup is None


def test_a_reference_that_was_not_measured_gives_no_speedup():
    evaluation = make_evaluation(speedup=0.0)
    assert measured_speedup(evaluation) is None
    (row,) = summarise([on("a", evaluation=evaluation)])
    assert (row.latency_ms, row.speedup) == (1.0, None)


def test_failures_are_grouped_by_status_and_reason():
    traces = [
        on("a", status="RUNTIME_ERROR", log="boom"),
        on("b", status="TIMEOUT", log="boom"),
        on("c", status="RUNTIME_ERROR", log="boom"),
    ]
    (row,) = summarise(traces)
    assert [(group.status, group.workloads, group.is_exact) for group in row.failures] == [
        ("RUNTIME_ERROR", ("a", "c"), True),
        ("TIMEOUT", ("b",), True),
    ]


def test_reasons_that_differ_in_numbers_only_are_one_group():
    traces = [on("a", status="TIMEOUT", log="after 3.0 s"), on("b", status="TIMEOUT", log="after 12 s")]
    (group,) = summarise(traces)[0].failures
    assert (group.reason, group.workloads, group.is_exact) == ("after 3.0 s", ("a", "b"), False)


def test_expected_verdicts_that_are_missing_are_pending():
    pairs = {("double", "double_python"): ["a", "b", "c"], ("double", "never_run"): ["a", "b"]}
    rows = summarise([on("a")], pairs)
    assert [(row.solution, row.judged, row.pending) for row in rows] == [("double_python", 1, 2), ("never_run", 0, 2)]


def test_the_best_solution_of_a_definition_stands_first():
    traces = [on("a", solution="slow", speedup=1.0), on("a", solution="fast", speedup=3.0)]
    traces += [on("a", solution="wrong", status="TIMEOUT")]
    assert [row.solution for row in summarise(traces)] == ["fast", "slow", "wrong"]


def test_hardware_has_rows_of_its_own():
    traces = [on("a"), on("a", environment={"hardware": "other device", "libs": {}})]
    assert [row.hardware for row in summarise(traces)] == ["other device", "test device"]


def test_statuses_are_counted_once_a_job():
    traces = [on("a", status="TIMEOUT"), on("a"), on("b", status="TIMEOUT")]
    assert count_statuses(traces) == {"PASSED": 1, "TIMEOUT": 1}


def test_verdicts_on_workloads_that_the_set_does_not_have_stand_for_no_other():
    (row,) = summarise([on("gone"), on("a"), on("old")], {("double", "double_python"): ["a", "b"]})
    assert (row.judged, row.pending) == (3, 1)
