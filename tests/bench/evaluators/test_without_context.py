"""An evaluator as the public package documents it, whose methods take no `context`."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators import registry
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import Accepted, Baseline, Evaluator
from flashinfer_bench.bench.evaluators.registry import choose_evaluator, find_evaluator
from flashinfer_bench.bench.evaluators.without_context import accept_context
from flashinfer_bench.data import Correctness, Performance
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


def test_an_evaluator_that_takes_the_context_is_left_as_it_is():
    assert accept_context(DefaultEvaluator) is DefaultEvaluator
