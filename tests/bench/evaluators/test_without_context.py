"""An evaluator as the public package documents it, whose methods take no `context`."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators import registry
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import Accepted, Baseline, Evaluator, Rejected
from flashinfer_bench.bench.evaluators.registry import choose_evaluator, find_evaluator
from flashinfer_bench.bench.evaluators.without_context import accept_context
from flashinfer_bench.data import Correctness, Environment, Evaluation, EvaluationStatus, Performance
from flashinfer_bench.errors import WorkloadFault
from tests.bench.evaluators.judging import Judging
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu


class Documented(Evaluator):
    """Takes mine."""

    @classmethod
    def can_evaluate(cls, definition):
        return definition.op_type == "mine"

    @classmethod
    def build_baseline(cls, definition, workload, cfg, device):
        x = torch.ones(workload.axes["n"], device=device)
        return Baseline([[x]], [[2 * x]], None, None)

    @classmethod
    def check_correctness(cls, definition, sol_runnable, inputs, ref_outputs, cfg):
        assert torch.equal(sol_runnable(*inputs[0])[0], ref_outputs[0][0])
        return Accepted(Correctness())

    @classmethod
    def eval_performance(cls, definition, sol_runnable, inputs, ref_mean_latency_ms, cfg, **kwargs):
        assert "context" in kwargs
        return Performance(latency_ms=1.0)


def test_it_judges_and_is_told_of_by_its_own_name(monkeypatch):
    monkeypatch.setattr(registry, "_EVALUATORS", [Documented, *registry._EVALUATORS])
    definition = make_definition(op_type="mine")
    job = Judging(definition, make_workload())
    assert isinstance(job.check(lambda x: x * 2), Accepted)
    found, choice = find_evaluator(definition), choose_evaluator(definition)
    assert (found.__name__, found.__module__, choice.name, choice.why) == (
        "Documented",
        Documented.__module__,
        "Documented",
        "Takes mine.",
    )
    assert found.eval_performance(definition, None, [], None, None, context=job.context).latency_ms == 1.0


def test_an_evaluator_of_this_package_is_left_as_it_is():
    assert accept_context(DefaultEvaluator) is DefaultEvaluator


def test_an_evaluator_that_somebody_put_into_a_checkout_may_lack_the_context(monkeypatch):
    monkeypatch.setattr(Documented, "__module__", "flashinfer_bench.bench.evaluators.documented")
    monkeypatch.setattr(registry, "_EVALUATORS", [*registry._EVALUATORS, Documented])
    job = Judging(make_definition(op_type="mine"), make_workload())
    assert isinstance(job.check(lambda x: x * 2), Accepted)


class Public(DefaultEvaluator):
    """Takes the parameters of the public package, and returns what RETURNED says."""

    @staticmethod
    def can_evaluate(definition):
        return definition.op_type == "mine"

    @classmethod
    def check_correctness(cls, definition, sol_runnable, inputs, ref_outputs, cfg, log_path, device):
        assert (log_path, device) == ("/dev/null", "cpu")
        assert torch.equal(sol_runnable(*inputs[0])[0], ref_outputs[0][0])
        return RETURNED["it"]


RETURNED = {}
WRONG = Evaluation(
    status="INCORRECT_NUMERICAL",
    log="two apart",
    environment=Environment(hardware="cpu"),
    timestamp="2026-01-01T00:00:00",
    correctness=Correctness(max_absolute_error=2.0),
)


def judge_with_public(monkeypatch, returned):
    monkeypatch.setattr(registry, "_EVALUATORS", [Public])
    monkeypatch.setitem(RETURNED, "it", returned)
    return Judging(make_definition(op_type="mine"), make_workload()).check(lambda x: x * 2)


@pytest.mark.parametrize("returned", [Correctness(), (Correctness(), None)], ids=["correctness", "pair"])
def test_an_evaluator_of_the_public_package_accepts(monkeypatch, returned):
    assert judge_with_public(monkeypatch, returned) == Accepted(Correctness())


def test_an_evaluator_of_the_public_package_rejects_by_an_evaluation(monkeypatch):
    verdict = judge_with_public(monkeypatch, (WRONG.correctness, WRONG))
    assert verdict == Rejected(EvaluationStatus.INCORRECT_NUMERICAL, "two apart", WRONG.correctness)


@pytest.mark.parametrize(
    ("returned", "told"), [(True, "type bool"), (None, r"nothing \(None\)"), ((None, None), "tuple")]
)
def test_what_is_no_verdict_is_a_fault_that_names_the_evaluator(monkeypatch, returned, told):
    with pytest.raises(WorkloadFault, match=rf"Public.check_correctness returned .*{told}"):
        judge_with_public(monkeypatch, returned)
