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
MINE = make_definition(op_type="mine")


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


@pytest.mark.parametrize("module", [Documented.__module__, "flashinfer_bench.bench.evaluators.documented"])
def test_it_judges_and_is_told_of_by_its_own_name_also_in_a_checkout(monkeypatch, module):
    monkeypatch.setattr(Documented, "__module__", module)
    monkeypatch.setattr(registry, "_EVALUATORS", [Documented, *registry._EVALUATORS])
    job = Judging(MINE, make_workload())
    assert isinstance(job.check(lambda x: x * 2), Accepted)
    found, choice = find_evaluator(MINE), choose_evaluator(MINE)
    names = (found.__name__, found.__module__, choice.name, choice.why)
    assert names == ("Documented", module, "Documented", "Takes mine.")
    assert found.eval_performance(MINE, None, [], None, None, context=job.context).latency_ms == 1.0


def test_an_evaluator_of_this_package_is_left_as_it_is_and_others_keep_what_they_declare():
    assert accept_context(DefaultEvaluator) is DefaultEvaluator
    near = type("Near", (DefaultEvaluator,), {"__module__": "mine"})
    assert accept_context(near) is not near
    assert accept_context(near).compares_elements(MINE)


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
REJECTED = Rejected(EvaluationStatus.INCORRECT_NUMERICAL, "two apart", WRONG.correctness)


@pytest.mark.parametrize(
    ("returned", "verdict"),
    [
        (Correctness(), Accepted(Correctness())),
        ((Correctness(), None), Accepted(Correctness())),
        ((WRONG.correctness, WRONG), REJECTED),
        (True, "type bool"),
        (None, r"nothing \(None\)"),
        ((None, None), "tuple"),
    ],
)
def test_what_an_evaluator_of_the_public_package_returns_is_taken_or_a_fault_that_names_it(
    monkeypatch, returned, verdict
):
    monkeypatch.setattr(registry, "_EVALUATORS", [Public])
    monkeypatch.setitem(RETURNED, "it", returned)
    job = Judging(MINE, make_workload())
    if not isinstance(verdict, str):
        assert job.check(lambda x: x * 2) == verdict
        return
    with pytest.raises(WorkloadFault, match=rf"Public.check_correctness returned .*{verdict}"):
        job.check(lambda x: x * 2)
