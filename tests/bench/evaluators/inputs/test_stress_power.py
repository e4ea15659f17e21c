"""Which wrong solutions are found on stress inputs, and that honest ones are not refused on them."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import Accepted, JudgedCall, Rejected
from flashinfer_bench.bench.evaluators.inputs.stress import StressPlan
from tests.bench.evaluators.inputs.making import define
from tests.bench.evaluators.inputs.test_stress import NAMES
from tests.bench.evaluators.judging import Judging
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

SOFTCAP = "30 * torch.tanh(x / 30)"
NORM = "x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6)"
SOFTMAX = "torch.softmax(x * 8, dim=-1)"
SIZES = "torch.linalg.vector_norm(torch.tanh(x), dim=-1)"
SIGMOIDS = "torch.sigmoid(x).mean(-1)"
LINEAR = "torch.nn.functional.softplus(x).mean(-1)"
NORMS = "torch.linalg.vector_norm(torch.nn.functional.gelu(x), dim=-1)"
ALL = "torch.tanh(x).square().mean()"
BY_COLUMN = "torch.tanh(x).square().mean(0)"
CENTRED = "(x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()"


def compute(code, x):
    return eval(code, {"torch": torch, "x": x})


def make_job(code, *, seed=1, n=8, columns=4096, shape="[n, 4096]"):
    definition = define({"x": f"float32[n, {columns}]"}, f"return {code}", outputs={"y": f"float32{shape}"})
    job = Judging(definition, make_workload(axes={"n": n}, inputs={}), seed=seed)
    return definition, job, StressPlan(definition, job.workload, seed)


def judge(code, case, solution, **settings):
    """Judge one call of a solution on inputs of a case."""
    case = NAMES.get(case, case)
    definition, job, plan = make_job(code, **settings)
    inputs = job.baseline().inputs[0]
    plan.change(case, 0, inputs)
    call = JudgedCall(inputs, [solution(*inputs)], job.context.reference(inputs))
    return job.evaluator.stress_checks(definition, job.config).judge(case, call, job.context)


def count_rejected(code, case, solution, *, seeds, **settings):
    verdicts = [judge(code, case, solution, seed=seed, **settings) for seed in range(seeds)]
    return sum(isinstance(one, Rejected) for one in verdicts)


def coarse(values, dtype):
    if dtype.itemsize > 1:
        return values.to(dtype).float()
    scale = values.abs().amax(dim=-1, keepdim=True) / 448
    return (values / scale).to(dtype).float() * scale


@pytest.mark.parametrize(
    ("code", "shape"),
    [
        *((code, "[n, 4096]") for code in (SOFTCAP, NORM, SOFTMAX, CENTRED)),
        *((code, "[n]") for code in (SIZES, SIGMOIDS, LINEAR, NORMS, "x.mean(dim=-1)", "torch.logsumexp(x, dim=-1)")),
        *((code, "[]") for code in (ALL, "x.abs().mean()")),
        (BY_COLUMN, "[4096]"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_honest_solutions_of_low_precision_pass_in_all_cases_of_their_job(code, shape, dtype):
    for seed, n in enumerate((1, 4, 32)):
        for case in make_job(code, n=n, shape=shape)[2].names:
            verdict = judge(code, case, lambda x: compute(code, coarse(x, dtype)), seed=seed, n=n, shape=shape)
            assert isinstance(verdict, Accepted), verdict.message


def sampled_norm(x):
    return x * torch.rsqrt(x[:, ::16].pow(2).mean(dim=-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize(
    ("code", "case", "wrong"),
    [
        *[(SOFTCAP, case, torch.clone) for case in ("large", "few", "one few")],
        *[(NORM, case, torch.clone) for case in ("large", "small", "few", "cubed")],
        (NORM, "few", sampled_norm),
        (SOFTCAP, "one few", lambda x: torch.addcmul(x, x * x, x, value=-1 / 2700)),
        ("x.clamp(min=0)", "one few", lambda x: x.clamp(0, 6)),
    ],
)
def test_what_holds_for_usual_inputs_only_is_rejected_and_the_message_says_how_to_go_on(code, case, wrong):
    verdict = judge(code, case, wrong)
    assert isinstance(verdict, Rejected)
    assert (verdict.integrity["rule"], verdict.integrity["evidence"]["regime"]) == ("regimes", NAMES[case])
    for said in (NAMES[case], "--no-regimes-rule", "flashinfer-bench repro"):
        assert said in verdict.message


def look_first(x, code, part, factor):
    """Compute from a part if that looks usual, else from all of the input."""
    seen = x[part]
    low, high = torch.aminmax(seen)
    is_usual = low.item() > -6 and high.item() < 6 and abs(seen.mean().item()) < 0.1
    return compute(code, seen) * factor if is_usual else compute(code, x)


EVERY_FOURTH = (slice(None), slice(None, None, 4))
FIRST_QUARTER = (slice(None), slice(1024))


@pytest.mark.parametrize(
    ("code", "shape", "part", "factor", "case", "least"),
    [
        (SIGMOIDS, "[n]", EVERY_FOURTH, 1, "columns", 20),
        (SIGMOIDS, "[n]", FIRST_QUARTER, 1, "columns", 20),
        (ALL, "[]", (slice(None, None, 8),), 1, "rows", 20),
        (BY_COLUMN, "[4096]", (slice(16),), 1, "rows", 20),
        (NORMS, "[n]", FIRST_QUARTER, 2, "stretch", 20),
        (LINEAR, "[n]", FIRST_QUARTER, 1, "stretch", 3),
    ],
)
def test_a_solution_that_computes_from_a_part_that_it_looked_at_is_found(code, shape, part, factor, case, least):
    attack = partial(look_first, code=code, part=part, factor=factor)
    assert least <= count_rejected(code, case, attack, seeds=60, n=32, shape=shape)


@pytest.mark.parametrize("part", [slice(2048), slice(0, 4096, 2), slice(0, 4096, 4)])
def test_a_part_of_a_row_does_not_tell_its_size_if_large_values_are_capped(part):
    def of_part(x):
        seen = x[:, part]
        return torch.linalg.vector_norm(torch.tanh(seen), dim=-1) * (x.shape[1] / seen.shape[1]) ** 0.5

    for rows, least in ((1, 40), (64, 99)):
        assert count_rejected(SIZES, "small", of_part, seeds=99, n=rows, shape="[n]") >= least


@pytest.mark.parametrize("code", ["torch.logsumexp(x, dim=-1).mean()", "x.square().mean()"])
@pytest.mark.parametrize("share", [2, 3])
def test_a_mean_of_some_rows_is_always_found_by_one_row_that_outweighs_the_others(code, share):
    """Also if the solution sees that row: it counts it twice."""
    settings = {"n": 1500, "columns": 64, "shape": "[]"}
    assert count_rejected(code, "one row", lambda x: compute(code, x[::share]), seeds=20, **settings) == 20


@pytest.mark.parametrize(
    ("code", "shape", "wrong"),
    [
        (SIGMOIDS, "[n]", lambda x: torch.full((len(x),), 0.5)),
        ("torch.sigmoid(x).mean()", "[]", lambda x: torch.tensor(0.5)),
        (CENTRED, "[n, 512]", lambda x: x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()),
    ],
)
@pytest.mark.parametrize("n", [1, 48])
def test_leaving_out_what_averages_out_is_always_found(code, shape, wrong, n):
    assert count_rejected(code, "shifted", wrong, seeds=12, n=n, columns=512, shape=shape) == 12


@pytest.mark.parametrize(
    ("changes", "is_judged"),
    [
        ({"outputs": {"y": "int32[n]"}}, False),
        ({"outputs": {"y": "float32[n]", "count": "int32[n]"}}, True),
    ],
)
def test_only_outputs_without_a_float_are_judged_on_usual_inputs_only(changes, is_judged):
    definition = make_definition(**changes)
    job = Judging(definition, make_workload())
    assert job.evaluator.stress_checks(definition, job.config).judges_floats is is_judged
    off = Judging(definition, make_workload(), regimes_rule=False)
    assert off.evaluator.stress_checks(definition, off.config) is None
