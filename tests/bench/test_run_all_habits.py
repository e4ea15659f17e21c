"""What `run_all` does beside judging: it reads the disk, tells events, and warns of broken files."""

import sys
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from flashinfer_bench.bench.benchmark import Benchmark
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, JobsAdded, JobStarted, RunStarted
from flashinfer_bench.bench.progress_bar import is_notebook, progress_bar
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.sets.merge import reread_traces
from flashinfer_bench.data.store.trace_writer import TraceWriter
from tests.bench.small_runs import HONEST, QUICKLY, write_set
from tests.cli.fake_engine import CPU, finished, make_jobs
from tests.kit import make_definition, make_trace, make_workload, write_trace_set


def test_traces_that_others_recorded_are_read_again(tmp_path):
    trace_set = write_set(tmp_path, {"s": HONEST})
    mine, theirs = (make_trace(workload=make_workload(name)) for name in ("mine", "theirs"))
    trace_set.keep_traces([mine])
    TraceWriter(tmp_path).append(theirs, author="alice", op_type="test")
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


def test_a_bar_is_drawn_in_notebooks_alone_unless_it_is_asked_for(tmp_path, monkeypatch, capsys):
    jobs, drawn = make_jobs(tmp_path / "set"), StringIO()
    events = [RunStarted((CPU,), 2), JobStarted(jobs[0], CPU), finished(jobs[0]), JobFaulted(jobs[1], "no device")]
    events += [JobsAdded(2)]
    console = Console(file=drawn, force_terminal=True, width=100)
    for asked in ({"wanted": True, "console": console}, {}):
        with progress_bar(**asked) as tell:
            for event in events:
                tell(event)
    assert ("50%" in drawn.getvalue(), capsys.readouterr(), is_notebook()) == (
        True,
        ("", ""),
        False,
    )
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel="k")))
    assert is_notebook()


@pytest.mark.cpu
def test_broken_files_are_warned_of_and_events_are_told(tmp_path):
    write_set(tmp_path, {"s": HONEST})
    (tmp_path / "definitions" / "broken.json").write_text("{")
    events, config = [], BenchmarkConfig.default(**QUICKLY)
    with Benchmark(TraceSet.from_path(tmp_path), config) as benchmark, pytest.warns(UserWarning, match="broken"):
        result = benchmark.run_all(save_results=False, on_event=events.append)
    assert len(result.traces["double"]) == 1
    assert {"RunStarted", "JobFinished"} <= {type(event).__name__ for event in events}
