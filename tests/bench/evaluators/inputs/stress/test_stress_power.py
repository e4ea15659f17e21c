"""Who is found on stress inputs, and who is not refused on them."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import Accepted, JudgedCall, Rejected
from flashinfer_bench.bench.evaluators.inputs.stress.cases import A_FEW_IN_ONE_ROW as ONE_FEW
from flashinfer_bench.bench.evaluators.inputs.stress.cases import A_FEW_VALUES as FEW
from flashinfer_bench.bench.evaluators.inputs.stress.cases import CUBED, LARGE, ONE_ROW, SMALL, STRESS_CASES, STRETCH
from flashinfer_bench.bench.evaluators.inputs.stress.cases import PART_OF_COLUMNS as COLUMNS
from flashinfer_bench.bench.evaluators.inputs.stress.cases import PART_OF_ROWS as ROWS
from flashinfer_bench.bench.evaluators.inputs.stress.cases import SHIFTED_ROWS as SHIFTED
from flashinfer_bench.bench.evaluators.inputs.stress.plan import StressPlan, why_no_stress
from tests.bench.evaluators.judging import Judging
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

OF_FLOATS = (FEW, ONE_FEW, SHIFTED, SMALL, LARGE, CUBED, STRETCH, COLUMNS, ROWS, ONE_ROW)

SOFTCAP = "30 * torch.tanh(x / 30)"
NORM = "x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6)"
RELU = "x.clamp(min=0)"
SOFTMAX = "torch.softmax(x * 8, dim=-1)"
SIZES = "torch.linalg.vector_norm(torch.tanh(x), dim=-1)"
MEANS = "x.mean(dim=-1)"
LOGS = "torch.logsumexp(x, dim=-1)"
SIGMOIDS = "torch.sigmoid(x).mean(-1)"
LINEAR = "torch.nn.functional.softplus(x).mean(-1)"
NORMS = "torch.linalg.vector_norm(torch.nn.functional.gelu(x), dim=-1)"
ALL = "torch.tanh(x).square().mean()"
BY_COLUMN = "torch.tanh(x).square().mean(0)"
LOSS = "torch.logsumexp(x.float(), dim=-1).mean()"
ABSOLUTE = "x.float().abs().mean()"
ALL_SIGMOIDS = "torch.sigmoid(x).mean()"
CENTRED = "(x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()"


def compute(code, x):
    return eval(code, {"torch": torch, "x": x})


def judge(code, case, solution, *, seed=1, n=8, columns=4096, shape="[n, 4096]"):
    """Judge one call of a solution on inputs of a case."""
    definition = make_definition(
        inputs={"x": f"float32[n, {columns}]"},
        outputs={"y": f"float32{shape}"},
        reference=f"import torch\ndef run(x):\n    return {code}\n",
    )
    job = Judging(definition, make_workload(axes={"n": n}, inputs={}), seed=seed)
    inputs = job.baseline().inputs[0]
    StressPlan(definition, job.workload, seed).change(case, 0, inputs)
    call = JudgedCall(inputs, [solution(*inputs)], job.context.reference(inputs))
    return job.evaluator.stress_checks(definition, job.config).judge(case, call, job.context)


def coarse(values, dtype):
    if dtype.itemsize > 1:
        return values.to(dtype).float()
    scale = values.abs().amax(dim=-1, keepdim=True) / 448
    return (values / scale).to(dtype).float() * scale


def sampled_norm(x):
    return x * torch.rsqrt(x[:, ::16].pow(2).mean(dim=-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize(
    ("code", "case", "wrong"),
    [
        *[(SOFTCAP, case, torch.clone) for case in (LARGE, FEW, ONE_FEW)],
        *[(NORM, case, torch.clone) for case in (LARGE, SMALL, FEW, CUBED)],
        (NORM, FEW, sampled_norm),
        (SOFTCAP, ONE_FEW, lambda x: torch.addcmul(x, x * x, x, value=-1 / 2700)),
        (RELU, ONE_FEW, lambda x: x.clamp(0, 6)),
    ],
)
def test_what_holds_for_usual_inputs_only_is_rejected_and_the_message_says_how_to_go_on(code, case, wrong):
    verdict = judge(code, case, wrong)
    assert isinstance(verdict, Rejected)
    assert (verdict.integrity["rule"], verdict.integrity["evidence"]["regime"]) == ("regimes", case)
    for said in (case, "--no-regimes-rule", "flashinfer-bench repro"):
        assert said in verdict.message


@pytest.mark.parametrize("case", OF_FLOATS)
@pytest.mark.parametrize("code", [SOFTCAP, NORM, SOFTMAX])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_honest_solutions_of_low_precision_pass(code, case, dtype):
    assert isinstance(judge(code, case, lambda x: compute(code, coarse(x, dtype))), Accepted)


@pytest.mark.parametrize("case", OF_FLOATS)
@pytest.mark.parametrize("code", [SIZES, MEANS, LOGS])
def test_small_outputs_are_judged_and_honest_ones_of_low_precision_pass(code, case):
    wrong = [judge(code, case, lambda x: torch.arange(3.0, 7.0), seed=seed, n=4, shape="[n]") for seed in range(3)]
    assert any(isinstance(one, Rejected) for one in wrong)
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        for seed in range(8):  # means are what is left of a sum, and some are near zero
            one = judge(code, case, lambda x: compute(code, coarse(x, dtype)), seed=seed, n=1, shape="[n]")  # noqa: B023
            assert isinstance(one, Accepted), one.message


@pytest.mark.parametrize("case", [COLUMNS, ROWS, STRETCH])
@pytest.mark.parametrize(
    ("code", "shape"),
    [(SIGMOIDS, "[n]"), (LINEAR, "[n]"), (NORMS, "[n]"), (ALL, "[]"), (BY_COLUMN, "[4096]"), (NORM, "[n, 4096]")],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_honest_solutions_pass_where_a_part_differs(case, code, shape, dtype):
    for seed in range(3):
        verdict = judge(code, case, lambda x: compute(code, coarse(x, dtype)), seed=seed, n=32, shape=shape)
        assert isinstance(verdict, Accepted), verdict.message


def look_first(x, code, part, factor):
    """Compute from a part where that looks usual, and from all of the input elsewhere."""
    seen = x[part]
    low, high = torch.aminmax(seen)
    is_usual = low.item() > -6 and high.item() < 6 and abs(seen.mean().item()) < 0.1
    return compute(code, seen) * factor if is_usual else compute(code, x)


EVERY_FOURTH = (slice(None), slice(None, None, 4))
FIRST_QUARTER = (slice(None), slice(1024))


@pytest.mark.parametrize(
    ("code", "shape", "part", "factor", "case", "least"),
    [
        (SIGMOIDS, "[n]", EVERY_FOURTH, 1, COLUMNS, 20),
        (SIGMOIDS, "[n]", FIRST_QUARTER, 1, COLUMNS, 20),
        (SIGMOIDS, "[n]", (slice(None), slice(None, None, 2)), 1, COLUMNS, 20),
        (ALL, "[]", (slice(None, None, 8),), 1, ROWS, 20),
        (BY_COLUMN, "[4096]", (slice(16),), 1, ROWS, 20),
        (NORMS, "[n]", EVERY_FOURTH, 2, STRETCH, 20),
        (NORMS, "[n]", FIRST_QUARTER, 2, STRETCH, 20),
        (LINEAR, "[n]", EVERY_FOURTH, 1, STRETCH, 3),
        (LINEAR, "[n]", FIRST_QUARTER, 1, STRETCH, 3),
    ],
)
def test_who_computes_from_what_he_has_looked_at_is_found(code, shape, part, factor, case, least):
    attack = partial(look_first, code=code, part=part, factor=factor)
    verdicts = [judge(code, case, attack, seed=seed, n=32, shape=shape) for seed in range(60)]
    assert least <= sum(isinstance(one, Rejected) for one in verdicts)


@pytest.mark.parametrize("part", [slice(2048), slice(0, 4096, 2), slice(0, 4096, 4)], ids=["half", "second", "fourth"])
def test_a_part_of_a_row_does_not_tell_its_size_where_large_values_are_capped(part):
    def of_part(x):
        seen = x[:, part]
        return torch.linalg.vector_norm(torch.tanh(seen), dim=-1) * (x.shape[1] / seen.shape[1]) ** 0.5

    for rows, most in ((1, 60), (4, 35)):
        verdicts = [judge(SIZES, SMALL, of_part, seed=seed, n=rows, shape="[n]") for seed in range(99)]
        assert sum(isinstance(one, Accepted) for one in verdicts) < most  # so there are more calls than one
    assert isinstance(judge(SIZES, SMALL, of_part, n=64, shape="[n]"), Rejected)


@pytest.mark.parametrize("code", [LOSS, ABSOLUTE, "x.square().mean()"])
@pytest.mark.parametrize("share", [2, 3])
def test_one_row_tells_who_looks_at_some_rows_of_a_mean_that_each_is_near(code, share):
    settings = {"n": 1500, "columns": 64, "shape": "[]"}
    verdicts = [judge(code, ONE_ROW, lambda x: compute(code, x[::share]), seed=s, **settings) for s in range(20)]
    assert not any(isinstance(one, Accepted) for one in verdicts)  # also the one whose row it sees: it counts twice
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        for rows in (1500, 1):
            one = judge(code, ONE_ROW, lambda x: compute(code, coarse(x.view(rows, -1), dtype).view_as(x)), **settings)  # noqa: B023
            assert isinstance(one, Accepted), one.message


@pytest.mark.parametrize(
    ("code", "shape", "wrong"),
    [
        (SIGMOIDS, "[n]", lambda x: torch.full((len(x),), 0.5)),
        (ALL_SIGMOIDS, "[]", lambda x: torch.tensor(0.5)),
        (CENTRED, "[n, 512]", lambda x: x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()),
    ],
    ids=["rows", "all", "centred"],
)
@pytest.mark.parametrize("n", [1, 4, 48])
def test_who_leaves_out_what_averages_out_is_always_found(code, shape, wrong, n):
    settings = {"n": n, "columns": 512, "shape": shape}
    for seed in range(12):
        assert isinstance(judge(code, SHIFTED, wrong, seed=seed, **settings), Rejected)
        for dtype in (torch.bfloat16, torch.float8_e4m3fn):
            one = judge(code, SHIFTED, lambda x: compute(code, coarse(x, dtype)), seed=seed, **settings)  # noqa: B023
            assert isinstance(one, Accepted), one.message


def test_who_looks_at_one_row_to_tell_whether_rows_are_shifted_is_found():
    def centred_if_seen(x):
        mean = x.mean(-1, keepdim=True) if abs(x[0].mean()) > 1 else 0.0
        return (x - mean) / (x.var(-1, keepdim=True) + 1e-5).sqrt()

    settings = {"n": 48, "columns": 512, "shape": "[n, 512]"}
    verdicts = [judge(CENTRED, SHIFTED, centred_if_seen, seed=seed, **settings) for seed in range(30)]
    assert sum(isinstance(one, Rejected) for one in verdicts) >= 12


@pytest.mark.parametrize(
    ("changes", "is_judged"),
    [
        ({}, True),
        ({"op_type": "moe"}, True),
        ({"outputs": {"y": "int32[n]"}}, False),
        ({"outputs": {"y": "float32[n]", "count": "int32[n]"}}, True),
        ({"reference": "def run(x):\n    return x[x.argmax()] + x\n"}, True),
    ],
    ids=["plain", "moe", "integers", "integers beside floats", "a reference that chooses"],
)
def test_only_outputs_without_a_float_are_judged_on_usual_inputs_only(changes, is_judged):
    definition = make_definition(**changes)
    job = Judging(definition, make_workload())
    assert (why_no_stress(definition) is None) is is_judged
    assert job.evaluator.stress_checks(definition, job.config).judges_floats is is_judged
    off = Judging(definition, make_workload(), regimes_rule=False)
    assert off.evaluator.stress_checks(definition, off.config) is None


def test_each_case_has_a_name_in_words():
    assert all(" " in name and len(name) < 64 for name in STRESS_CASES)
