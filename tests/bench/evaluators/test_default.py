"""The Default and the LowBit evaluator from inputs to latency: accepted outputs, and the status of each fault."""

from dataclasses import replace

import pytest
import torch

from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.inputs import memory
from flashinfer_bench.bench.evaluators.verdict import decide, summarise
from flashinfer_bench.data import Correctness
from flashinfer_bench.errors import SolutionFailure, WorkloadFault
from tests.bench.evaluators.judging import Judging, define, expect

pytestmark = pytest.mark.cpu
OUTPUTS = {"y": "float32[n, 4]", "mask": "bool[n, 4]"}
RANDOM = "return x * (1 + torch.rand_like(x)), x > 0"


def judging(body="return x * 2, (x > 0)", **settings):
    return Judging(define({"x": "float32[n, 4]"}, body, outputs=OUTPUTS, axes={}), {"n": 16}, **settings)


def right(x):
    return [x + x, x > 0]


def spoilt(x):
    return [(x * 2).index_fill(0, torch.tensor(0), 1e3), x > 0]


def half_wrong(x):
    return [torch.where(torch.arange(4) % 2 == 0, x * 2, x * 2.1 + 0.1), x > 0]


def fails(x):
    raise SolutionFailure("RUNTIME_ERROR", "it broke")


LOOSE = {"required_matched_ratio": 0.9, "norm_rule": False, "lost_rows_rule": False}


@pytest.mark.parametrize(
    ("solution", "settings", "status", "words"),
    [
        (right, {}, None, None),
        (lambda x: x * 2, {}, "SHAPE", "1 outputs, the definition has 2 (y, mask)"),
        (lambda x: [x[:1] * 2, x > 0], {}, "SHAPE", "'y' has shape [1, 4], expected [16, 4]"),
        (lambda x: [x * 2, (x > 0).int()], {}, "DTYPE", "'mask' is torch.int32"),
        (lambda x: [x * 2.1, x > 0], {}, "NUMERICAL", "trial 1 of 3"),
        (half_wrong, {"required_matched_ratio": 0.4}, None, None),
        (spoilt, LOOSE, "NUMERICAL", "max_error_cap=2"),
        (lambda x: [x * 2 + 0.3, x > 0], {"atol": 0.5, "rtol": 0.0, "norm_rule": False}, None, None),
        (lambda x: [x * 2 + 0.3, x > 0], {"atol": 0.0, "rtol": 0.5, "norm_rule": False}, "NUMERICAL", "rtol=0.5"),
    ],
)
def test_an_error_gets_its_status_and_its_location(solution, settings, status, words):
    verdict = judging(**settings).check(solution)
    expect(verdict, words)
    if status:
        assert verdict.status.value == f"INCORRECT_{status}"
        assert (verdict.correctness is not None) == (status == "NUMERICAL")


def test_trials_have_inputs_of_their_own_and_a_wrong_element_in_the_last_is_found():
    job = judging()
    made = job.baseline()
    assert not torch.equal(made.inputs[0][0], made.inputs[1][0])
    last, wrong = made.inputs[-1][0], torch.zeros(16, 4)
    wrong[7, 3] = 1
    verdict = job.check(lambda x: [x * 2 + wrong * float(x is last), x > 0], made)
    for words in ("worst at [7, 3]", "trial 3 of 3"):
        expect(verdict, words)


def test_a_right_solution_is_measured_and_has_no_speedup_without_a_profiled_baseline():
    job = judging()
    found = job.measure(right)
    assert (found.latency_ms, found.speedup_factor) == (1.0, 4.0)
    assert job.notes["measurement"]["trials_ms"] == [1.0, 1.0, 1.0]
    job.context = replace(job.context, profile_baseline=False)
    found = job.measure(right)
    assert (found.reference_latency_ms, found.speedup_factor) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("body", "solution", "error", "words"),
    [
        ("return x * 2, x > 0", fails, SolutionFailure, "it broke"),
        (RANDOM, right, WorkloadFault, "second call"),
    ],
)
def test_faults_are_reported_and_failures_of_a_solution_pass_through(body, solution, error, words):
    with pytest.raises(error, match=words):
        judging(body).check(solution)


def test_inputs_too_large_to_keep_for_all_trials_are_used_again(monkeypatch):
    monkeypatch.setattr(memory, "total_bytes", lambda device: 0)
    job = judging()
    made = job.baseline()
    assert len({id(inputs[0]) for inputs in made.inputs}) == job.notes["input_sets"] == 1
    expect(job.check(right, made), None)


class Signs(DefaultEvaluator):
    """Compares only signs."""

    @classmethod
    def judge_trial(cls, definition, trial, cfg):
        equal = torch.equal(trial.got[0].sign(), trial.expected[0].sign())
        return decide(None if equal else "another sign", Correctness())


class Calling(DefaultEvaluator):
    @classmethod
    def check_correctness(cls, *given, **named):
        return super().check_correctness(*given, **named)


def test_a_subclass_that_judges_trials_itself_loses_the_declarations_it_overrides():
    job = judging(RANDOM)
    for one, compares, alone in ((DefaultEvaluator, True, True), (Signs, False, True), (Calling, False, False)):
        assert (one.compares_elements(job.definition), one.judges_calls_alone) == (compares, alone)
        assert (one.stress_checks(job.definition, job.config) is not None) == compares
    job.evaluator = Signs
    expect(job.check(lambda x: [x, x > 0]), None)
    expect(job.check(lambda x: [-x, x > 0]), "another sign (trial 1 of 3)")


def test_a_verdict_has_the_largest_errors_of_all_trials():
    pairs = [(1.0, 0.1), (0.5, 2.0)]
    trials = [Correctness(max_relative_error=relative, max_absolute_error=absolute) for relative, absolute in pairs]
    found = summarise(trials)
    assert (found.max_relative_error, found.max_absolute_error) == (1.0, 2.0)
