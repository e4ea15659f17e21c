"""What the notes of a job say of each regime: judged, or left out and why."""

from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import Baseline, Rejected
from flashinfer_bench.bench.runner.session.regimes import judge_regimes
from flashinfer_bench.bench.runner.workers.timed.regime_calls import RegimeCall
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
