"""What the notes of a job say of each regime: judged, or left out and why."""

from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import Baseline, JudgedCall, Rejected
from flashinfer_bench.bench.runner.session.regimes import judge_regimes
from flashinfer_bench.bench.runner.workers.timed.regime_calls import RegimeCall
from flashinfer_bench.data import EvaluationStatus
from flashinfer_bench.errors import WorkloadFault
from tests.bench.evaluators.judging import Judging
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

SUMS = "def run(x):\n    return x.clamp(min=0).sum(dim=-1)\n"


def judge(solution, x):
    definition = make_definition(inputs={"x": "float32[n, 256]"}, outputs={"y": "float32[n]"}, reference=SUMS)
    judging = Judging(definition, make_workload(axes={"n": len(x)}, inputs={}))
    block = SimpleNamespace(definition=definition, reference=judging.context.reference, evaluator=judging.evaluator)
    job = SimpleNamespace(block=block, config=judging.config, notes={})
    baseline = Baseline([], [[torch.ones(len(x))]], None, None)
    wrong = judge_regimes(job, [RegimeCall("larger", [x], [solution(x)])], baseline, judging.context)
    return wrong, job.notes["regimes"]["larger"]


def right(x):
    return x.bfloat16().clamp(min=0).sum(dim=-1, dtype=torch.float32)


def test_a_small_output_is_judged_and_said_to_be():
    x = torch.randn(4, 256, generator=torch.Generator().manual_seed(0)) * 20
    assert judge(right, x) == (None, "judged")
    wrong, told = judge(lambda x: torch.ones(4), x)
    assert isinstance(wrong, Rejected)
    assert told == "judged"


def test_zeros_are_not_said_to_be_judged():
    assert judge(right, torch.full((4, 256), -1.0)) == (None, "left out: nothing but zeros is expected")
    assert judge(right, torch.full((32, 256), -1.0)) == (None, "left out: nothing but zeros is expected")


def judge_all(*solutions, of=SUMS, xs=None):
    """Judge calls of other regimes, one of each solution; return what is wrong, and what is told of each."""
    definition = make_definition(inputs={"x": "float32[n, 256]"}, outputs={"y": "float32[n]"}, reference=of)
    xs = xs or [torch.randn(64, 256, generator=torch.Generator().manual_seed(at)) for at in range(len(solutions))]
    judging = Judging(definition, make_workload(axes={"n": 64}, inputs={}))
    block = SimpleNamespace(definition=definition, reference=judging.context.reference, evaluator=judging.evaluator)
    job = SimpleNamespace(block=block, config=judging.config, notes={})
    baseline = Baseline([], [[torch.ones(64)]], None, None)
    calls = [RegimeCall(f"r{at}", [x], [one(x)]) for at, (one, x) in enumerate(zip(solutions, xs, strict=True))]
    wrong = judge_regimes(job, calls, baseline, judging.context)
    return wrong, job.notes["regimes"]


def test_calls_are_looked_at_together_and_judged_alone_where_one_may_be_wrong(monkeypatch):
    alone = []
    judge_one = DefaultEvaluator.judge_regime.__func__
    monkeypatch.setattr(
        DefaultEvaluator,
        "judge_regime",
        classmethod(lambda cls, *given: alone.append(given[1]) or judge_one(cls, *given)),
    )
    assert judge_all(right, right, right) == (None, {"r0": "judged", "r1": "judged", "r2": "judged"})
    wrong, told = judge_all(right, lambda x: torch.ones(64), right)
    assert isinstance(wrong, Rejected)
    assert (list(told), alone) == (["r0", "r1"], ["r0", "r1"])


def test_of_calls_that_are_looked_at_together_each_is_told_by_itself():
    xs = [torch.full((64, 256), -1.0), torch.randn(64, 256, generator=torch.Generator().manual_seed(0))]
    _, told = judge_all(right, right, xs=xs)
    assert told == {"r0": "left out: nothing but zeros is expected", "r1": "judged"}
    overflows = "def run(x):\n    return (x.clamp(min=0) * 1e38).sum(dim=-1)\n"
    wrong, told = judge_all(lambda x: torch.ones(64), of=overflows, xs=xs[1:])
    assert (wrong, told) == (None, {"r0": "left out: the reference is not finite"})


class Stricter(DefaultEvaluator):
    """Rejects whatever it judges."""

    @classmethod
    def judge_regime(cls, definition, regime, call, cfg, context):
        return Rejected(EvaluationStatus.INCORRECT_NUMERICAL, "never")


def test_an_evaluator_with_a_rule_of_its_own_judges_each_call():
    x = torch.randn(64, 256)
    call = JudgedCall([x], [right(x)], [right(x)])
    definition = make_definition(inputs={"x": "float32[n, 256]"}, outputs={"y": "float32[n]"}, reference=SUMS)
    config = Judging(definition, make_workload(axes={"n": 64}, inputs={})).config
    assert DefaultEvaluator.regimes_surely_pass(definition, [call], config) == [True]
    assert Stricter.regimes_surely_pass(definition, [call], config) is None


def test_what_is_wrong_is_told_though_the_reference_has_no_memory_for_later_calls():
    calls = []

    def short(inputs):
        calls.append(inputs)
        if len(calls) > 1:
            raise WorkloadFault("no memory")
        return [right(inputs[0])]

    x = torch.randn(64, 256)
    definition = make_definition(inputs={"x": "float32[n, 256]"}, outputs={"y": "float32[n]"}, reference=SUMS)
    judging = Judging(definition, make_workload(axes={"n": 64}, inputs={}))
    block = SimpleNamespace(definition=definition, reference=short, evaluator=judging.evaluator)
    job, baseline = (
        SimpleNamespace(block=block, config=judging.config, notes={}),
        Baseline([], [[torch.ones(64)]], None, None),
    )

    def judge_two(first):
        calls.clear()
        found = [RegimeCall("larger", [x], [first]), RegimeCall("smaller", [x], [right(x)])]
        return judge_regimes(job, found, baseline, judging.context)

    assert isinstance(judge_two(torch.ones(64)), Rejected)
    with pytest.raises(WorkloadFault):
        judge_two(right(x))
