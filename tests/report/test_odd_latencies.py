"""Recorded latencies that no call has, such as 0 and infinity: every report leaves them out, and none is ever best."""

import math

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from flashinfer_bench.report.best import best_by_definition, best_by_workload
from flashinfer_bench.report.summary import summarise
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

ODD = [math.inf, 0.0, 5e-324, 1e308]


def write_odd(root, latency_ms):
    workload = make_workload("w")
    traces = [
        make_trace(workload=workload, solution="odd", latency_ms=latency_ms, speedup=math.inf if latency_ms else 0.0),
        make_trace(workload=workload, solution="usual", latency_ms=2.0),
    ]
    solutions = [make_solution(name, author=name) for name in ("odd", "usual")]
    workloads = [make_trace(workload=workload, solution=None)]
    parts = {"definitions": [make_definition()], "solutions": solutions, "workloads": workloads, "traces": traces}
    return write_trace_set(root, **parts), traces


@pytest.mark.parametrize("latency_ms", ODD)
def test_such_a_latency_is_never_best_and_in_no_average(tmp_path, latency_ms):
    root, traces = write_odd(tmp_path, latency_ms)
    assert [row.solution for row in best_by_workload(traces)] == ["usual"]
    assert [row.solution for row in best_by_definition(traces)] == ["usual"]
    assert {row.solution: row.latency_ms for row in summarise(traces)} == {"odd": None, "usual": 2.0}
    trace_set = TraceSet.from_path(root)
    assert trace_set.get_best_trace("double").solution == "usual"
    summary = trace_set.summary(baseline_author="usual")
    assert [summary[f"{what}_latency_ms"] for what in ("min", "max", "avg")] == [2.0] * 3


@pytest.mark.parametrize("latency_ms", ODD)
@pytest.mark.parametrize(
    "command",
    ["summary", "summary --by author", "best", "best --by author", "history --definition double", "export -", "html"],
)
def test_every_report_of_such_a_latency_is_made(tmp_path, capsys, command, latency_ms):
    root, _ = write_odd(tmp_path / "set", latency_ms)
    words = [*command.split(), *([str(tmp_path / "pages")] if command == "html" else [])]
    assert main(["report", *words, "--local", str(root)]) == 0
    assert "Traceback" not in capsys.readouterr().err
