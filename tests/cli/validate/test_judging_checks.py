"""`validate --checks baseline,benchmark`: what the verdicts of an engine become."""

import json

import pytest

from flashinfer_bench.bench.machine import Device, Machine
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.cli.sets.validate import judging
from flashinfer_bench.cli.sets.validate.judging import judge_baselines, judge_references, pack_reference
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import ConfigError, DeviceFault
from tests.cli.fake_engine import FakeEngine, write_small_set
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set

BLOB = {"x": {"type": "safetensors", "path": "blob/gone.safetensors", "tensor_key": "x"}}


def engine(verdict_of=lambda job: {}):
    """Return what makes a fake engine, and the list of those that it made."""
    made = []

    def make(trace_set, config):
        made.append(FakeEngine(trace_set, config, verdict_of))
        return made[-1]

    return make, made


def test_each_reference_is_judged_as_a_solution_on_every_workload_that_is_whole(tmp_path, capsys):
    definitions = [make_definition(), make_definition("bare"), make_definition("dumped", reference="def f(x): pass\n")]
    workloads = [make_trace(solution=None, definition=name) for name in ("double", "dumped")]
    workloads.append(make_trace(solution=None, workload=make_workload("gone", inputs=BLOB)))
    root = write_trace_set(tmp_path, definitions=definitions, workloads=workloads, solutions=[make_solution()])
    make, made = engine()
    judged = judge_references(TraceSet.from_path(root), cpu_only=True, make_engine=make)
    assert [(job.definition, job.solution, job.workload, job.status) for job in judged.jobs] == [
        ("double", "double__reference", "w0", "PASSED")
    ]
    (issue,) = judged.issues
    assert (issue.check, issue.severity) == ("baseline", "error")
    assert issue.reason.startswith("double: not judged: 1 of 2 workloads lack their stored inputs")
    assert made[0].config.devices == ["cpu"]
    assert (made[0].config.timeout_seconds, made[0].saved, made[0].is_ended) == (900.0, False, True)
    assert capsys.readouterr().err == "baseline: 1 job on cpu (test device)\n"


def test_a_reference_that_fails_and_one_without_a_verdict_are_errors(tmp_path, capsys):
    verdicts = {"w0": {"status": "RUNTIME_ERROR", "log": "boom"}, "w1": "no such axis"}
    make, _ = engine(lambda job: verdicts[job.workload.uuid])
    judged = judge_references(TraceSet.from_path(write_small_set(tmp_path)), cpu_only=False, make_engine=make)
    assert [(issue.severity, issue.reason) for issue in judged.issues] == [
        ("error", "double: the reference on workload w0: RUNTIME_ERROR: boom"),
        ("error", "double: the reference on workload w1: NO VERDICT: no such axis"),
    ]
    assert judged.issues[0].file.endswith("definitions/test/double.json")


OUT_OF_TIME = {"status": "TIMEOUT", "log": "the call was still running"}


@pytest.mark.parametrize(("kind", "severity", "limit"), [("cpu", "warning", 900), ("cuda", "error", 300)])
def test_a_reference_that_is_slow_on_a_cpu_is_no_error(tmp_path, monkeypatch, kind, severity, limit):
    device = Device(kind, 0, "test device", "uuid")
    monkeypatch.setattr(FakeEngine, "machine", Machine((device,), {"python": None}))
    make, made = engine(lambda job: OUT_OF_TIME)
    judged = judge_references(TraceSet.from_path(write_small_set(tmp_path)), cpu_only=False, make_engine=make)
    assert [issue.severity for issue in judged.issues] == [severity] * 2
    assert made[0].config.timeout_seconds == limit
    assert ("takes longer than 900 s on a CPU" in judged.issues[0].reason) == (kind == "cpu")
    judged = judge_baselines(
        TraceSet.from_path(tmp_path), author="alice", cpu_only=False, make_engine=engine(lambda job: OUT_OF_TIME)[0]
    )
    assert {issue.severity for issue in judged.issues if "TIMEOUT" in issue.reason} == {"error"}


def test_the_solutions_of_the_baselines_author_are_judged_and_no_others(tmp_path, capsys):
    root = write_small_set(tmp_path)
    write_trace_set(root, solutions=[make_solution("base", author="baseline")])
    make, _ = engine()
    judged = judge_baselines(TraceSet.from_path(root), author="baseline", cpu_only=True, make_engine=make)
    assert [(job.solution, job.workload) for job in judged.jobs] == [("base", "w0"), ("base", "w1")]
    judged = judge_baselines(TraceSet.from_path(root), author="nobody", cpu_only=True, make_engine=make)
    assert (judged.jobs, judged.issues) == ([], [])


def test_a_check_that_takes_too_long_ends_and_says_what_is_left(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(judging, "CHECK_LIMIT_S", -1.0)
    make, made = engine()
    judged = judge_references(TraceSet.from_path(write_small_set(tmp_path)), cpu_only=True, make_engine=make)
    (issue,) = judged.issues
    assert issue.severity == "warning"
    assert "2 of 2 jobs not judged; a check ends after" in issue.reason
    assert made[0].is_ended


def test_a_check_that_takes_long_says_how_far_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(judging, "TOLD_EVERY_S", -1.0)
    make, _ = engine()
    judge_references(TraceSet.from_path(write_small_set(tmp_path)), cpu_only=True, make_engine=make)
    assert capsys.readouterr().err.splitlines()[-1] == "baseline: 2 of 2 jobs"


def test_what_ends_a_check_is_told_and_the_others_go_on(tmp_path, capsys):
    def fail(trace_set, config):
        raise ConfigError("tolerances.yaml: double.atol (line 3): wrong")

    trace_set = TraceSet.from_path(write_small_set(tmp_path))
    judged = judge_references(trace_set, cpu_only=True, make_engine=fail)
    assert [issue.reason for issue in judged.issues] == ["not judged: tolerances.yaml: double.atol (line 3): wrong"]
    make, made = engine(lambda job: DeviceFault("the device is lost"))
    judged = judge_references(trace_set, cpu_only=True, make_engine=make)
    told = [(issue.severity, issue.reason) for issue in judged.issues]
    assert told[0] == ("error", "given up: the device is lost")
    assert "2 of 2 jobs not judged" in told[1][1]
    assert made[0].is_ended


def test_a_reference_with_another_order_of_parameters_is_called_by_keyword():
    inputs = {"a": "float32[n]", "b": "float32[n]"}
    definition = make_definition(inputs=inputs, reference="def run(b, a):\n    return a - b\n")
    assert [source.path for source in pack_reference(definition).sources] == ["reference.py", "main.py"]
    for parameters in ("a, *, b", "a, /, *, b", "*rest, b", "**inputs"):
        reference = f"def run({parameters}):\n    return 0\n"
        packed = pack_reference(make_definition(inputs=inputs, reference=reference))
        assert [source.path for source in packed.sources] == ["reference.py", "main.py"]
    swapped = make_definition(inputs=inputs, reference="def run(a, b):\n    return a - b\n")
    assert [source.path for source in pack_reference(swapped).sources] == ["main.py"]


@pytest.mark.cpu
def test_references_and_baselines_are_judged_by_the_engine(tmp_path, capsys):
    inputs = {"a": "float32[n]", "b": "float32[n]"}
    root = write_trace_set(
        tmp_path,
        definitions=[make_definition(inputs=inputs, reference="def run(b, a):\n    return a - b\n")],
        solutions=[make_solution("wrong", author="baseline", source="def run(a, b):\n    return b - a\n")],
        workloads=[make_trace(solution=None, workload=make_workload(inputs={}))],
    )
    flags = ["--checks", "baseline,benchmark", "--disable-gpu", "--format", "json"]
    assert main(["validate", "--dataset", str(root), *flags]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [(job["check"], job["solution"], job["status"]) for job in report["jobs"]] == [
        ("baseline", "double__reference", "PASSED"),
        ("benchmark", "wrong", "INCORRECT_NUMERICAL"),
    ]
    (issue,) = report["issues"]
    assert "double: solution 'wrong' on workload w0: INCORRECT_NUMERICAL: output 'y'" in issue["reason"]
    assert not (root / "traces").exists()
