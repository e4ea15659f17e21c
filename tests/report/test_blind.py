"""Outputs whose expected values are all within atol: zeros would pass, and a run says so."""

import json

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.report.blind import find_blind
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set

pytestmark = pytest.mark.cpu

SMALL = "def run(x):\n    return x * 1e-4\n"


def passed(workload, largest, *, atol=0.01, status="PASSED", **config):
    outputs = {"y": {"max_expected": largest}}
    correctness = {"max_relative_error": 0.0, "max_absolute_error": 0.0, "extra": {"outputs": outputs}}
    extra = {"run": {"config": {"atol": atol, **config}}}
    performance = None if status != "PASSED" else {"latency_ms": 1, "reference_latency_ms": 1, "speedup_factor": 1}
    return make_trace(
        workload=make_workload(workload),
        status=status,
        correctness=correctness,
        performance=performance,
        extra=extra,
    )


def test_an_output_within_atol_is_told_once_with_its_largest_value():
    (found,) = find_blind([passed("w0", 0.001), passed("w1", 0.01), passed("w1", 0.009), passed("w2", 0.02)])
    assert (found.output, found.largest, found.atol, found.workloads) == ("y", 0.009, 0.01, 2)
    assert "on 2 workloads: no expected value is above atol=0.01, the largest is 0.009" in str(found)


@pytest.mark.parametrize("largest", [0.0, 0.0101, None, float("inf")])
def test_others_are_not(largest):
    assert find_blind([passed("w0", largest)]) == []


def test_an_output_whose_norm_was_judged_is_not_unless_the_rule_was_off():
    judged, off = passed("w0", 0.001, norm_rule=True), passed("w1", 0.001, norm_rule=False)
    for trace in (judged, off):
        trace.evaluation.correctness.extra["outputs"]["y"]["error_norm"] = 0.01
    assert find_blind([judged]) == []
    assert [found.workloads for found in find_blind([judged, off])] == [1]


def test_only_what_passed_counts():
    assert find_blind([passed("w0", 0.001, status="INCORRECT_NUMERICAL")]) == []
    assert find_blind([make_trace()]) == []


@pytest.mark.parametrize("outputs", [None, [], {"y": 3}, {"y": {"max_expected": "large"}}])
def test_records_of_another_form_are_passed_over(outputs):
    trace = passed("w0", 0.001)
    trace.evaluation.correctness.extra["outputs"] = outputs
    assert find_blind([trace]) == []


@pytest.mark.slow
def test_a_run_warns_of_it(tmp_path, capsys):
    write_trace_set(
        tmp_path,
        definitions=[make_definition(reference=SMALL)],
        solutions=[make_solution("zeros", source="def run(x):\n    return x * 0\n", destination_passing_style=False)],
        workloads=[make_trace(workload=make_workload("w0"), solution=None)],
    )
    command = ["run", "--local", str(tmp_path), "--devices", "cpu", "--iterations", "2", "--warmup-runs", "1"]
    command += ["--no-norm-rule", "--no-regimes-rule"]  # these would refuse the zeros
    assert main(command) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "warning: zeros would pass as output" in told
    assert main([*command, "--format", "json"]) == 0
    (blind,) = json.loads(capsys.readouterr().out)["blind"]
    assert blind["workloads"] == 1
