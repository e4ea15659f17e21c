"""What `run_all` does beside judging: it reads the disk, tells events, and warns of broken files."""

import pytest

from flashinfer_bench.bench.benchmark import Benchmark
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.sets.rereading import reread_traces
from flashinfer_bench.data.store.record import TraceWriter
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set


def test_traces_that_others_recorded_are_read_again(tmp_path):
    parts = {"definitions": [make_definition()], "solutions": [make_solution()]}
    trace_set = TraceSet.from_path(write_trace_set(tmp_path, **parts))
    mine = make_trace(workload=make_workload("mine"))
    trace_set.keep_traces([mine])
    TraceWriter(tmp_path).append(make_trace(workload=make_workload("theirs")), author="alice", op_type="test")
    for _ in range(2):
        reread_traces(trace_set)
        assert [trace.workload.uuid for trace in trace_set.traces["double"]] == ["theirs", "mine"]


def test_a_set_is_shown_in_three_lines(tmp_path):
    (tmp_path / "definitions").mkdir()
    (tmp_path / "definitions" / "broken.json").write_text("{")
    lines = repr(TraceSet.from_path(write_trace_set(tmp_path, definitions=[make_definition()]))).splitlines()
    assert lines[0] == f"TraceSet({tmp_path})"
    assert lines[1] == "  1 definitions, 0 solutions, 0 workloads, 0 traces"
    assert lines[2].startswith("  issues: 1 errors, ")
    assert repr(TraceSet()).startswith("TraceSet(in memory)\n")


@pytest.mark.cpu
def test_broken_files_are_warned_of_and_events_are_told(tmp_path):
    lines = [make_trace(solution=None)]
    parts = {"definitions": [make_definition()], "solutions": [make_solution()], "workloads": lines}
    root = write_trace_set(tmp_path, **parts)
    (root / "definitions" / "broken.json").write_text("{")
    config = BenchmarkConfig.default(devices=["cpu"], iterations=2, warmup_runs=1, num_trials=1)
    events = []
    with Benchmark(TraceSet.from_path(root), config) as benchmark, pytest.warns(UserWarning, match=r"broken\.json"):
        result = benchmark.run_all(save_results=False, on_event=events.append)
    assert len(result.traces["double"]) == 1
    assert {"RunStarted", "JobFinished"} <= {type(event).__name__ for event in events}
