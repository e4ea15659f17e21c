"""The best solution of each workload and of each definition."""

import pytest

from flashinfer_bench.cli.verdicts import render_best, render_summary
from flashinfer_bench.report.best import best_by_definition, best_by_workload
from tests.kit import make_evaluation, make_trace, make_workload

UNREAL = {"measurement": {"meaningful": False}}


def on(uuid, solution, **parts):
    return make_trace(workload=make_workload(uuid), solution=solution, **parts)


def test_the_highest_speedup_wins_a_workload_where_that_is_asked():
    traces = [on("a", "slow", speedup=1.0), on("a", "fast", speedup=3.0), on("b", "slow")]
    rows = best_by_workload(traces, "speedup")
    assert [(row.workload, row.solution, row.contenders) for row in rows] == [("a", "fast", 2), ("b", "slow", 1)]


def test_a_failed_solution_never_wins():
    assert best_by_workload([on("a", "wrong", status="INCORRECT_NUMERICAL")]) == []
    assert best_by_definition([on("a", "wrong", status="INCORRECT_NUMERICAL")]) == []


def test_without_speedups_the_lower_latency_wins():
    traces = [
        on("a", name, evaluation=make_evaluation(latency_ms=ms, speedup=0.0)) for name, ms in (("x", 2), ("y", 1))
    ]
    (row,) = best_by_workload(traces)
    assert (row.solution, row.speedup) == ("y", None)


def test_a_timing_that_means_nothing_does_not_beat_one_that_does():
    traces = [on("a", "interpreted", speedup=9.0, extra=UNREAL), on("a", "real", speedup=1.0)]
    assert best_by_workload(traces)[0].solution == "real"
    assert best_by_definition(traces)[0].solution == "real"


@pytest.mark.parametrize(("solution", "reference", "best"), [(True, True, ["other"]), (True, False, ["waiting"])])
def test_what_waits_for_the_gpu_as_its_reference_does_is_never_the_best(solution, reference, best):
    extra = {
        "measurement": {"flags": ["waits_inside"] if solution else []},
        "baseline": {"flags": ["waits_inside"] if reference else []},
    }
    traces = [on("a", "waiting", speedup=9.0, extra=extra), on("a", "other", speedup=1.0)]
    assert [row.solution for row in best_by_workload(traces, "speedup")] == best
    assert [row.solution for row in best_by_definition(traces)] == best


@pytest.mark.parametrize(("claimed_ms", "best"), [(0.5, "other"), (0.95, "raised")])
def test_what_reported_far_less_than_the_outside_time_is_never_the_best(claimed_ms, best):
    extra = {"measurement": {"claimed_ms": claimed_ms, "bound": "chain"}}
    traces = [on("a", "raised", latency_ms=1.0, speedup=9.0, extra=extra), on("a", "other", latency_ms=2.0)]
    assert best_by_workload(traces)[0].solution == best


def test_hardware_is_never_compared():
    other = {"hardware": "other device", "libs": {}}
    traces = [on("a", "x", speedup=1.0), on("a", "y", speedup=3.0, environment=other)]
    rows = best_by_workload(traces)
    assert [(row.hardware, row.solution) for row in rows] == [("other device", "y"), ("test device", "x")]


def test_the_definition_goes_to_the_solution_that_passes_the_most_workloads():
    traces = [on("a", "half", speedup=9.0), on("b", "half", status="TIMEOUT")]
    traces += [on(uuid, "whole", speedup=1.5) for uuid in "ab"]
    assert [row.solution for row in best_by_definition(traces)] == ["whole"]


def timed(name, latency_ms, *, speedup=2.0, half=0.01):
    bounds = [latency_ms * (1 - half), latency_ms * (1 + half)]
    record = {"method": "cupti", "interval95_ms": bounds, "interval": "workers", "assurance": "full"}
    return on("a", name, latency_ms=latency_ms, speedup=speedup, extra={"measurement": record})


def test_the_lowest_latency_wins_whatever_each_reference_took():
    traces = [timed("x", 1.0, speedup=2.0), timed("y", 1.5, speedup=3.0)]
    assert best_by_workload(traces)[0].solution == "x"
    assert best_by_workload(traces, "speedup")[0].solution == "y"


def test_solutions_whose_intervals_meet_are_a_tie():
    (row,) = best_by_workload([timed("x", 1.0), timed("y", 1.01), timed("z", 1.5)])
    assert (row.solution, [tie.solution for tie in row.ties], row.contenders) == ("x", ["y"], 3)
    assert (row.interval.low_ms, row.interval.high_ms) == (0.99, 1.01)
    lines = render_best([row], 200).splitlines()
    assert "x" in lines[2].split()
    assert lines[3].split()[1:6] == ["=", "y", "1.01", "ms", "±1%"]
    assert any(line.startswith("= a tie") for line in lines)


def test_many_ties_are_counted():
    (row,) = best_by_workload([timed(f"s{index}", 1.0) for index in range(9)])
    lines = render_best([row], 200).splitlines()
    assert [line.split()[1:] for line in lines if line.startswith("double") and "=" in line.split()][-1] == [
        "=",
        "and",
        "5",
        "more",
    ]
    assert len(row.ties) == 8


def test_ties_are_told_by_definition_too():
    """Over two workloads a geometric mean is known better than each: what ties on one need not tie over all."""
    traces = [timed(name, ms, speedup=2.0 / ms) for name, ms in (("x", 1.0), ("y", 1.01), ("z", 1.018))]
    traces += [on("b", trace.solution, evaluation=trace.evaluation) for trace in traces]
    traces.append(timed("half", 1.0, speedup=9.0))
    (row,) = best_by_definition(traces, "latency")
    assert (row.solution, [tie.solution for tie in row.ties]) == ("x", ["y"])
    assert [len(one.ties) for one in best_by_workload(traces)] == [3, 2]
    assert "= y" in render_summary([row], 200)
