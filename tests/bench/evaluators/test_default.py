"""The Default evaluator from inputs to latency: what is accepted, and which status what is wrong gets."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import Accepted, Rejected
from flashinfer_bench.bench.evaluators.inputs import memory
from flashinfer_bench.bench.evaluators.verdict import decide
from flashinfer_bench.data import Correctness, EvaluationStatus
from flashinfer_bench.errors import SolutionFailure, WorkloadFault
from tests.bench.evaluators.judging import Judging
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

TWO = "import torch\ndef run(x):\n    return x * 2, (x > 0)\n"


def judging(reference: str = TWO, **settings) -> Judging:
    definition = make_definition(
        inputs={"x": "float32[n, 4]"}, outputs={"y": "float32[n, 4]", "mask": "bool[n, 4]"}, reference=reference
    )
    return Judging(definition, make_workload(axes={"n": 16}), **settings)


def test_a_right_solution_is_accepted_and_measured():
    job = judging()
    performance = job.measure(lambda x: [x + x, x > 0])
    assert (performance.latency_ms, performance.reference_latency_ms, performance.speedup_factor) == (1.0, 4.0, 4.0)
    assert job.notes["measurement"]["trials_ms"] == [1.0, 1.0, 1.0]


def test_each_trial_has_inputs_of_its_own_and_an_equal_seed_the_same_ones():
    first, again = (judging().baseline().inputs for _ in range(2))
    assert not torch.equal(first[0][0], first[1][0])
    assert all(torch.equal(left[0], right[0]) for left, right in zip(first, again, strict=True))


@pytest.mark.parametrize(
    ("solution", "status", "words"),
    [
        (lambda x: x * 2, "INCORRECT_SHAPE", ["1 outputs", "2 (y, mask)"]),
        (lambda x: [x * 2, x > 0, x], "INCORRECT_SHAPE", ["3 outputs"]),
        (lambda x: [x[:1] * 2, x > 0], "INCORRECT_SHAPE", ["'y'", "[1, 4]", "[16, 4]"]),
        (lambda x: [x.double() * 2, (x > 0)[:1]], "INCORRECT_SHAPE", ["'mask'"]),
        (lambda x: [2.0, x > 0], "INCORRECT_SHAPE", ["'y'", "[]"]),
        (lambda x: [x.half() * 2, x > 0], "INCORRECT_DTYPE", ["'y'", "float16", "float32"]),
        (lambda x: [x * 2, (x > 0).int()], "INCORRECT_DTYPE", ["'mask'", "int32"]),
        (lambda x: [None, x > 0], "INCORRECT_DTYPE", ["'y'", "NoneType"]),
        (lambda x: [x * 2.1, x > 0], "INCORRECT_NUMERICAL", ["'y'", "differ", "trial 1 of 3"]),
        (lambda x: [x * 2, x >= x.max()], "INCORRECT_NUMERICAL", ["'mask'"]),
        (lambda x: [torch.full_like(x, float("nan")), x > 0], "INCORRECT_NUMERICAL", ["all 64 elements are nan"]),
    ],
    ids=[
        "missing output",
        "further output",
        "shape",
        "shape before dtype",
        "number for tensor",
        "dtype",
        "int for bool",
        "none",
        "values",
        "bool values",
        "unwritten",
    ],
)
def test_what_is_wrong_gets_its_status_and_says_where(solution, status, words):
    verdict = judging().check(solution)
    assert isinstance(verdict, Rejected)
    assert verdict.status is EvaluationStatus(status)
    assert (verdict.correctness is not None) == (status == "INCORRECT_NUMERICAL")
    assert all(word in verdict.message for word in words)


def test_one_wrong_element_in_the_last_trial_is_found():
    job = judging()
    made = job.baseline()

    def solution(x):
        y = x * 2
        if torch.equal(x, made.inputs[-1][0]):
            y[7, 3] += 1
        return [y, x > 0]

    verdict = job.check(solution, made)
    assert isinstance(verdict, Rejected)
    assert "worst at [7, 3]" in verdict.message
    assert "trial 3 of 3" in verdict.message


def test_the_errors_of_all_trials_stand_in_the_correctness_and_can_be_written():
    verdict = judging().check(lambda x: [x * 2 + 0.001, x > 0])
    assert isinstance(verdict, Accepted)
    assert verdict.correctness.max_absolute_error == pytest.approx(0.001, rel=0.01)
    record = json.loads(verdict.correctness.to_json())["extra"]
    assert (record["trials"], record["outputs"]["y"]["mismatched"], record["outputs"]["y"]["elements"]) == (3, 0, 64)


def test_errors_that_are_not_finite_can_be_written_and_read_back():
    verdict = judging().check(lambda x: [x / 0, x > 0])
    assert isinstance(verdict, Rejected)
    assert verdict.correctness is not None
    assert Correctness.model_validate_json(verdict.correctness.to_json()).max_absolute_error == float("inf")


def test_a_required_ratio_of_the_configuration_is_honoured():
    def half_wrong(x):
        return [torch.where(torch.arange(4) % 2 == 0, x * 2, x * 2.1 + 0.1), x > 0]

    assert isinstance(judging().check(half_wrong), Rejected)
    assert isinstance(judging(required_matched_ratio=0.4).check(half_wrong), Accepted)


def test_the_cap_on_errors_can_be_set_and_must_be_a_number():
    def one_far_off(x):
        y = x * 2
        y[0, 0] = 1000
        return [y, x > 0]

    assert isinstance(judging(required_matched_ratio=0.9).check(one_far_off), Rejected)
    loose = {"required_matched_ratio": 0.9, "norm_rule": False, "lost_rows_rule": False}
    assert isinstance(judging(**loose, extra={"max_error_cap": 1e4}).check(one_far_off), Accepted)
    with pytest.raises(WorkloadFault, match="max_error_cap"):
        judging(extra={"max_error_cap": "high"}).check(one_far_off)


def test_the_failure_of_a_solution_passes_through():
    def fails(x):
        raise SolutionFailure("RUNTIME_ERROR", "it broke")

    with pytest.raises(SolutionFailure, match="it broke"):
        judging().check(fails)


def test_a_reference_that_disagrees_with_itself_is_a_fault():
    job = judging("import torch\ndef run(x):\n    return torch.rand_like(x), x > 0\n")
    with pytest.raises(WorkloadFault, match="second call"):
        job.baseline()


def test_without_a_profiled_baseline_there_is_no_speedup():
    job = judging()
    job.context = replace(job.context, profile_baseline=False)
    performance = job.measure(lambda x: [x * 2, x > 0])
    assert (performance.reference_latency_ms, performance.speedup_factor) == (0.0, 0.0)


def test_a_reference_that_writes_to_its_inputs_is_measured_on_copies():
    job = judging("def run(x):\n    x += 1\n    return (x - 1) * 2, x > 1\n")
    job.context = replace(
        job.context, measure_reference=lambda sets: [inputs[0].zero_() for inputs in sets] and job.measured
    )
    job.measured = judging().context.measure_reference([[]])
    assert all(float(inputs[0].abs().sum()) > 0 for inputs in job.baseline().inputs)


def test_the_first_call_of_the_reference_may_be_made_beside_that_of_its_worker():
    job, first = judging(), []

    def call_first(inputs):
        first.append(inputs)
        return job.context.reference(inputs)

    job.context = replace(job.context, call_reference_first=call_first)
    baseline = job.baseline()
    assert len(first) == 1
    assert first[0] is baseline.inputs[0]
    assert len(baseline.outputs) == 3


def test_inputs_too_large_to_keep_for_all_trials_are_used_again(monkeypatch):
    monkeypatch.setattr(memory, "total_bytes", lambda device: 0)
    job = judging()
    made = job.baseline()
    assert [inputs[0] is made.inputs[0][0] for inputs in made.inputs] == [True] * 3
    assert job.notes["input_sets"] == 1
    assert isinstance(job.check(lambda x: [x * 2, x > 0], made), Accepted)


def test_a_number_stands_for_an_output_without_dimensions():
    definition = make_definition(outputs={"y": "float32[]"}, reference="def run(x):\n    return x.sum()\n")
    job = Judging(definition, make_workload())
    assert isinstance(job.check(lambda x: float(x.sum())), Accepted)
    verdict = job.check(lambda x: True)
    assert isinstance(verdict, Rejected)
    assert verdict.status is EvaluationStatus.INCORRECT_DTYPE


def test_a_subclass_may_judge_a_trial_in_its_own_way():
    class Signs(DefaultEvaluator):
        """Compares nothing but signs."""

        @classmethod
        def judge_trial(cls, definition, trial, cfg):
            equal = torch.equal(trial.got[0].sign(), trial.expected[0].sign())
            return decide(None if equal else "another sign", Correctness())

    job = judging("import torch\ndef run(x):\n    return x * (1 + torch.rand_like(x)), x > 0\n")
    job.evaluator = Signs
    verdict = job.check(lambda x: [x, x > 0])
    assert isinstance(verdict, Accepted)
    assert verdict.correctness.extra == {"trials": 3}
    verdict = job.check(lambda x: [-x, x > 0])
    assert isinstance(verdict, Rejected)
    assert verdict.message == "another sign (trial 1 of 3)"


def test_default_takes_any_definition():
    assert DefaultEvaluator.can_evaluate(make_definition(op_type="anything"))
