"""`run --replay FILE[:LINE]`: what it judges again, and what it refuses."""

import json

import pytest

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.planning.plan import make_plan
from flashinfer_bench.cli.args import choose_recorded, keep_recorded, read_recorded
from flashinfer_bench.cli.entry import call, parse_command_line
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import DataSetError, Misuse
from tests.cli.fake_engine import MACHINE, FakeEngine, run_with, write_small_set
from tests.kit import make_trace, make_workload


@pytest.fixture
def file(tmp_path):
    """A file of two verdicts, and a workload's line between them."""
    traces = [make_trace(), make_trace(solution=None), make_trace(solution="other", workload=make_workload("w1"))]
    path = tmp_path / "traces.jsonl"
    path.write_text("".join(trace.to_json() + "\n" for trace in traces))
    return path


def names(traces):
    return [(trace.solution, trace.workload.uuid) for trace in traces]


def test_a_file_names_its_verdicts_and_a_line_its_own(file):
    assert names(read_recorded(str(file))) == [("double_python", "w0"), ("other", "w1")]
    assert names(read_recorded(f"{file}:3")) == [("other", "w1")]


def test_a_file_may_have_a_colon_in_its_name(file):
    odd = file.with_name("traces:3")
    file.rename(odd)
    assert len(read_recorded(str(odd))) == 2
    assert names(read_recorded(f"{odd}:1")) == [("double_python", "w0")]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (":4", "has 3 lines; there is no line 4"),
        (":0", "there is no line 0"),
        (":2", "holds no verdict that could be judged again"),
    ],
)
def test_a_line_without_a_verdict_is_refused(file, line, said):
    with pytest.raises(Misuse, match=said):
        read_recorded(f"{file}{line}")


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(DataSetError, match=r"none\.jsonl"):
        read_recorded(str(tmp_path / "none.jsonl"))


def test_the_jobs_that_are_recorded_are_planned_and_no_others(file, tmp_path):
    trace_set = TraceSet.from_path(write_small_set(tmp_path / "set"))
    traces = read_recorded(str(file))
    plan = make_plan(trace_set, choose_recorded(BenchmarkConfig(), traces), MACHINE)
    assert len(plan.jobs) == 4
    kept = keep_recorded(plan, traces)
    assert [(job.solution.name, job.workload.uuid) for job in kept.jobs] == [("double_python", "w0"), ("other", "w1")]
    assert [job.index for job in kept.jobs] == [0, 1]


@pytest.fixture
def run(tmp_path, capfd, monkeypatch):
    """Run the command on the small set; returns exit code, stderr and the engine."""
    root = write_small_set(tmp_path / "set")
    monkeypatch.setattr("sys.argv", ["flashinfer-bench"])

    def start(*flags):
        engines = []

        def make_engine(trace_set, config, **_):
            engines.append(FakeEngine(trace_set, config))
            return engines[-1]

        args = parse_command_line(["run", "--local", str(root), *flags])
        code = call(lambda: run_with(make_engine, args))
        return code, capfd.readouterr().err, engines[-1] if engines else None

    return start


def test_a_replayed_run_gives_the_engine_its_traces_and_saves_nothing(run, file):
    code, err, engine = run("--replay", str(file))
    assert code == 0
    assert names(engine.replayed) == [("double_python", "w0"), ("other", "w1")]
    assert engine.saved is False
    assert "[2/2]" in err


def test_an_ordinary_run_replays_nothing_and_saves(run):
    _, _, engine = run()
    assert (engine.replayed, engine.saved) == ([], True)


def test_replay_and_resume_do_not_go_together(run, file):
    code, err, engine = run("--replay", str(file), "--resume")
    assert (code, engine) == (2, None)
    assert "--replay judges what is recorded, which --resume leaves out: give one of them" in err


def test_a_verdict_of_something_that_the_set_does_not_have_is_told(run, file):
    trace = json.loads(file.read_text().splitlines()[0])
    file.write_text(json.dumps({**trace, "solution": "gone"}) + "\n")
    code, err, _ = run("--replay", str(file))
    assert code == 2
    assert "gone" in err
