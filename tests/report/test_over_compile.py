"""Speed-ups over other baselines: the reference under torch.compile, and the solutions of an author."""

import csv
import io

import pytest

from flashinfer_bench.cli.outcome import describe_compiled
from flashinfer_bench.data.sets.results import list_results
from flashinfer_bench.report.export import make_export
from tests.report.made import best_by_workload, on, set_of, summarise

TOLD = {"mode": "default", "latency_ms": 4.0, "compile_s": 9.5, "graphs": 1, "graph_breaks": 2}
REFUSED = {"mode": "default", "reason": "no compiler"}
TRACES = [
    on("w0", latency=1.0, baseline_compile=TOLD),
    on("w1", latency=4.0, baseline_compile=TOLD),
    on("w2", baseline_compile=REFUSED),
    on("w3", status="TIMEOUT", baseline_compile=TOLD),
]


def test_the_mean_covers_the_workloads_with_both_times_and_the_rest_has_its_reason():
    (row,) = summarise(TRACES)
    assert row.compile_speedup == pytest.approx(2.0)
    assert summarise([on()])[0].compile_speedup is None
    (line,) = describe_compiled(list_results(None, TRACES))
    assert line == (
        "speed-up over torch.compile (default): 2.00x on 2 verdicts (geometric mean); 1 without a time: no compiler"
    )
    assert describe_compiled(list_results(None, TRACES[2:3])) == [
        "speed-up over torch.compile (default): 1 without a time: no compiler"
    ]
    assert describe_compiled(list_results(None, [on()])) == []


def test_an_export_has_both_baselines():
    traces = TRACES[:3]
    rows = csv.DictReader(io.StringIO(make_export("csv", set_of(*traces), traces)[0].decode()))
    names = ("compile_mode", "compile_ms", "compile_speedup", "graph_breaks")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("default", "4.0", "4.0", "2"),
        ("default", "4.0", "1.0", "2"),
        ("default", "", "", ""),
    ]


def test_any_author_can_be_the_baseline_of_speed_ups():
    traces = [on("w0", "a", 2.0), on("w0", "b", 1.0), on("w1", "b", 1.0), on("w1", "a", 4.0, hardware="other")]
    trace_set = set_of(*traces)
    trace_set.baseline_author = "by_a"
    found = {(row.solution, row.hardware): row.speedup for row in summarise(traces, trace_set=trace_set)}
    assert found == {("a", "GPU"): 1.0, ("b", "GPU"): 2.0, ("a", "other"): 1.0}
    best = {(row.workload, row.hardware): row.speedup for row in best_by_workload(traces, trace_set=trace_set)}
    assert best == {("w0", "GPU"): 2.0, ("w1", "GPU"): None, ("w1", "other"): 1.0}
    trace_set.baseline_author = None
    plain = [row.speedup for row in summarise(traces, trace_set=trace_set) if row.solution == "b"]
    assert plain == [pytest.approx(8.0)]
