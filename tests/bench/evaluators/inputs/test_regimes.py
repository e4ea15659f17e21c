"""Inputs of other regimes: which inputs are changed, how, when, and who is judged on them."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import Accepted, JudgedCall, Rejected
from flashinfer_bench.bench.evaluators.inputs.regimes import REGIMES, Regimes, why_no_regimes
from tests.bench.evaluators.judging import Judging
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

SOFTCAP = "import torch\ndef run(x):\n    return 30 * torch.tanh(x / 30)\n"
NORM = "import torch\ndef run(x):\n    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6)\n"
SOFTMAX = "import torch\ndef run(x):\n    return torch.softmax(x * 8, dim=-1)\n"


def judge(reference, regime, solution, *, seed=1, **settings):
    definition = make_definition(
        inputs={"x": "float32[n, 4096]"}, outputs={"y": "float32[n, 4096]"}, reference=reference
    )
    job = Judging(definition, make_workload(axes={"n": 8}, inputs={}), seed=seed, **settings)
    inputs = job.baseline().inputs[0]
    Regimes(definition, job.workload, seed).change(regime, 0, inputs)
    call = JudgedCall(inputs, [solution(*inputs)], job.context.reference(inputs))
    return job.evaluator.judge_regime(definition, regime, call, job.config, job.context)


def sampled_norm(x):
    return x * torch.rsqrt(x[:, ::16].pow(2).mean(dim=-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize(
    ("reference", "regime", "wrong"),
    [
        (SOFTCAP, "larger", torch.clone),
        (SOFTCAP, "few_large", torch.clone),
        (NORM, "larger", torch.clone),
        (NORM, "smaller", torch.clone),
        (NORM, "few_large", torch.clone),
        (NORM, "heavy_tails", torch.clone),
        (NORM, "few_large", sampled_norm),
    ],
)
def test_what_holds_for_usual_inputs_only_is_rejected(reference, regime, wrong):
    verdict = judge(reference, regime, wrong)
    assert isinstance(verdict, Rejected)
    assert verdict.integrity["rule"] == "regimes"
    assert verdict.integrity["evidence"]["regime"] == regime
    assert regime in verdict.message


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("reference", [SOFTCAP, NORM, SOFTMAX], ids=["softcap", "norm", "softmax"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_honest_solutions_of_low_precision_pass(reference, regime, dtype):
    space = {}
    exec(reference, space)

    def coarse(x):
        scale = x.abs().amax(dim=-1, keepdim=True) / 448 if dtype.itemsize == 1 else torch.ones(())
        return space["run"]((x / scale).to(dtype).float() * scale)

    assert isinstance(judge(reference, regime, coarse), Accepted)


def open_regimes(inputs, sources=None, *, op_type="test", **axes):
    definition = make_definition(
        op_type=op_type, axes=dict.fromkeys(axes), inputs=inputs, outputs={"y": "float32[n]"}, reference="def run(): 1"
    )
    return Regimes(definition, make_workload(axes=axes, inputs=sources or {}), seed=3)


def test_only_random_floats_without_a_meaning_are_free():
    inputs = {
        "x": "bfloat16[n, m]",
        "scale": "float32[n]",
        "q": "float8_e4m3fn[n, m]",
        "kv_indices": "int32[n]",
        "cos_sin_cache": "float32[n, m]",
        "stored": "float32[n, m]",
        "number": "float32",
    }
    stored = {"stored": {"type": "safetensors", "path": "a.safetensors", "tensor_key": "stored"}}
    assert open_regimes(inputs, stored, n=4, m=8).free == [True, *[False] * 6]


def test_the_few_large_values_of_a_row_outweigh_it_and_are_few():
    regimes = open_regimes({"x": "float32[n, m]"}, n=16, m=4096)
    before = torch.randn(16, 4096, generator=torch.Generator().manual_seed(0))
    after = before.clone()
    regimes.change("few_large", 0, [after])
    changed = (after != before).sum(dim=1)
    assert int(changed.max()) <= 8
    assert float(after.abs().max()) <= 100
    assert (after.square().sum(dim=1) > 2 * before.square().sum(dim=1)).all()


@pytest.mark.parametrize("trials", [1, 2, 3, 5])
def test_few_large_values_come_in_every_job_and_no_regime_twice(trials):
    regimes = open_regimes({"x": "float32[n]"}, n=4)
    chosen = [name for trial in range(trials) for name in regimes.choose(trial, trials)]
    assert len(chosen) == len(set(chosen)) == min(trials + 1, len(REGIMES))
    assert "few_large" in chosen


@pytest.mark.parametrize(
    ("changes", "is_judged"),
    [
        ({}, True),
        ({"op_type": "moe"}, False),
        ({"outputs": {"y": "int32[n]"}}, False),
        ({"reference": "def run(x):\n    return x[x.argmax()] + x\n"}, False),
    ],
    ids=["plain", "moe", "integers", "a reference that chooses"],
)
def test_what_chooses_is_judged_on_usual_inputs_only(changes, is_judged):
    definition = make_definition(**changes)
    job = Judging(definition, make_workload())
    assert (why_no_regimes(definition) is None) is is_judged
    assert job.evaluator.takes_regimes(definition, job.config) is is_judged
    off = Judging(definition, make_workload(), regimes_rule=False)
    assert not off.evaluator.takes_regimes(definition, off.config)
