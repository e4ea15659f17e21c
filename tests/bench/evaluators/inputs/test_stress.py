"""Stress cases: the cases of a job, their inputs, the shortcuts that they find, and that honest solutions pass."""

import math
from collections import Counter
from pathlib import Path

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import JudgeContext, JudgedCall, Rejected
from flashinfer_bench.bench.evaluators.inputs.source_checks import find_source_checks
from flashinfer_bench.bench.evaluators.inputs.stress import StressPlan, count_affordable
from flashinfer_bench.bench.evaluators.integrity.norm_rule import NormRule
from flashinfer_bench.bench.evaluators.stress_checks import StressChecks, find_constants, keep_finite
from tests.bench.evaluators.judging import Judging, define, expect
from tests.kit.make import make_definition, make_workload
from tests.kit.operations import WAITS, counting_operations

pytestmark = pytest.mark.cpu
INF, NAN = math.inf, math.nan
NAMES = {
    "few": "a few large values in one row of 64",
    "shifted": "some rows shifted",
    "small": "small values, all but a few rows and columns smaller still",
    "large": "all values about 20 times as large",
    "cubed": "cubed values (heavy tails)",
    "columns": "every second column of one half shifted",
    "one few": "a few large values in one row",
    "stretch": "a stretch of one row near 200",
    "rows": "every second row of one half shifted",
    "one row": "one row that outweighs all others",
    "zeros": "zeros in half of some rows",
    "not finite": "one infinite value or NaN",
    "up": "gates shifted up",
    "down": "gates shifted down",
    "some": "some gates shifted",
    "spike": "one huge value",
    "far": "all values 100 to 1,000 times as large",
}
"""Short name → the name that traces have."""
USUAL = {"few": 1, "shifted": 1, "small": 1, "large": 1, "cubed": 1, "columns": 6, "one few": 3, "stretch": 6}
GATED = "return (torch.sigmoid(gate) * x).cumsum(0)"
XY = {"x": "float32[n, m]", "gate": "float32[n, m]"}


def plan(inputs=XY, output="[n, m]", body="return 1", sources=None, *, seed=3, op_type="test", has=False, **axes):
    definition = define(inputs, body, outputs={"y": f"float32{output}"}, op_type=op_type)
    return StressPlan(definition, make_workload(axes=axes, inputs=sources or {}), seed, has_constants=has)


def change(case, values, number=0, shape="n, m", output="[n]", **how):
    """Return a copy of values as a case makes them."""
    axes, made = dict(zip(shape.split(", "), values.shape, strict=True)), values.clone()
    found = plan({"x": f"{str(values.dtype).removeprefix('torch.')}[{shape}]"}, output, **how, **axes)
    found.change(NAMES[case], number, [made])
    return made


JOINED = {"x": "float32[n, k, m]", "w": "float32[n, k]"}


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({"zeros": 3}, {"body": "return x * (gate != 0)"}),
        ({"not finite": 9}, {"body": "return torch.nan_to_num(x) * gate"}),
        ({"up": 3, "down": 3, "some": 12}, {"body": GATED}),
        ({"spike": 12, "far": 3, "shifted": 3}, {"has": True}),
        ({"small": 9, "one row": 9}, {"output": "[n]", "n": 15}),
        ({"rows": 6}, {"output": "[m]"}),
        ({"rows": 6, "small": 9, "one row": 9}, {"output": "[]"}),
        ({"one row": 3, "rows": 6}, {"output": "[n]", "inputs": JOINED, "k": 4}),
        ({"one few": -3, "stretch": -6, "rows": 6}, {"inputs": {"x": "uint8[n, m]"}}),
        (dict.fromkeys(USUAL, -9), {"inputs": {"x": "int32[n, m]", "scale": "float32[n]"}}),
    ],
)
def test_definition_and_workload_decide_the_cases_besides_the_usual_inputs(asked, given):
    found, wanted = plan(**{"n": 32, "m": 64, **given}), Counter(USUAL)
    wanted.update(asked)
    assert Counter(found.calls) == {NAMES[name]: count for name, count in wanted.items() if count > 0}
    assert set(found.names) == set(found.calls)


def test_the_list_is_the_same_in_each_run_and_another_order_for_another_workload():
    orders = [
        StressPlan(make_definition(), make_workload(str(at % 40), axes={"n": 40}, inputs={}), seed=at).calls
        for at in range(41)
    ]
    assert orders[0] == orders[40]
    assert len({tuple(one) for one in orders}) > 30
    assert all(len(set(one[: len(set(one))])) == len(set(one)) for one in orders)  # each once before one comes again


def test_of_large_inputs_and_for_a_slow_reference_there_are_few():
    sizes = {1 << 12: 20, 1 << 26: 4, 1 << 34: 1}
    assert {n: len(plan({"x": "float32[n]"}, "[n]", n=n).calls) for n in sizes} == sizes
    times = {(None, "cuda"): None, (4.9, "cuda"): None, (5.1, "cuda"): 2, (3e3, "cpu"): 1}
    assert {one: count_affordable(*one) for one in times} == times


STAYS = "scale:float32 A_log:float32 dt_bias:float32 cos_sin_cache:float32 e:float8_e8m0fnu pages:int32 stored:float32"
CHANGES = "x:bfloat16 q:float8_e4m3fn image:uint8 weights:int8 mask:bool"


def test_only_random_values_without_a_meaning_are_changed():
    inputs = {name: f"{dtype}[n, m]" for name, dtype in (one.split(":") for one in f"{CHANGES} {STAYS}".split())}
    kept = {"type": "safetensors", "path": "a.safetensors", "tensor_key": "kept"}
    found = plan({**inputs, "number": "float32"}, sources={"stored": kept}, n=8, m=8).free
    assert [one.name for one in found if one] == list(inputs)[:5]
    assert not any(plan({"mask": "bool[n]"}, "[n]", n=32).free)  # of few bools all could become false
    assert not any(plan({"a": "bfloat16[n, m]"}, op_type="gdn", n=8, m=8).free)  # kernels compute log(1 + exp(a))


def test_only_an_input_that_the_reference_checks_gets_a_value_that_is_not_finite():
    x, other = torch.ones(2, 8, 8)
    found = plan(XY, "[n, m]", "return torch.where(torch.isnan(x), 0.0, x) * gate", n=8, m=8)
    found.change(NAMES["not finite"], 0, [x, other])
    assert (int(x.isnan().sum()), bool(other.isfinite().all())) == (1, True)


@pytest.mark.parametrize("dtype", ["float32", "float8_e4m3fn", "uint8", "bool"])
def test_a_seed_decides_the_inputs_of_each_case_without_a_wait_for_the_device(dtype):
    usual = torch.ones(40, 64).to(getattr(torch, dtype))
    body = "return (torch.sigmoid(x) * (x.nan_to_num() == 0)).cumsum(0)"
    for case in plan({"x": f"{dtype}[n, m]"}, body=body, n=40, m=64).names:
        short = next(short for short, name in NAMES.items() if name == case)
        with counting_operations() as counted:
            made = [change(short, usual, output="[n, m]", body=body, seed=seed) for seed in (3, 3)]
        assert torch.equal(*(one.view(torch.uint8) for one in made))
        assert counted.counts.keys() & (WAITS - {"_to_copy"}) == set()  # it makes another dtype of the values


STEPS = "f = torch.sigmoid(gate); s = 0\n    for t in range(len(x)):\n        s = s * f[t] + x[t]\n    return s"
SOURCES = {
    # values that are not finite, and the names whose values are checked
    "return x.isfinite().all()": ["-inf", "inf", "nan", "x"],
    "return torch.isinf(x[:, 0].float()) | y": ["-inf", "inf", "x"],
    "return torch.nan_to_num(-x) * w": ["nan", "x"],
    "return torch.isnan(x @ w)": ["nan"],
    "return x  # isnan": [],
    # zeros
    "return x.sum() / (x != 0).sum()": ["zeros"],
    "return torch.where(x[:, 1:] == 0.0, y, x)": ["zeros"],
    "return torch.count_nonzero(x)": ["zeros"],
    "return x if x.shape[0] == 0 else y": [],
    "return x * (y == 1) + (x > 0) + (y & 8 != 0)": [],
    # gates
    STEPS: ["gate"],
    "return (x * F.logsigmoid(-gate[:, 1:]).cumsum(1).exp()).sum(1)": ["gate"],
    "return (x * torch.exp(-torch.exp(gate.float()))).cumsum(1)": ["gate"],
    "for g in gate:\n        x = torch.lerp(x, g, gate.sigmoid())\n    return x": ["gate"],
    "return x * torch.sigmoid(gate)": [],
    "return torch.sigmoid(gate @ x).cumsum(1)": [],
    "return x.isnan(\n": [],
}


@pytest.mark.parametrize("body", SOURCES)
def test_a_source_shows_the_values_that_it_tests_for(body):
    source_checks = find_source_checks(f"def run(x, y, w, gate):\n    'No isnan here.'\n    {body}\n")
    found = [
        *map(str, source_checks.not_finite),
        *(source_checks.guarded | source_checks.gates) - {"torch", "F"},
        *["zeros"] * source_checks.zeros,
    ]
    assert sorted(found) == sorted(SOURCES[body])


# Which solutions are found, and which pass.

SOFTCAP = "30 * torch.tanh(x / 30)"
NORM = "x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6)"
SIZES = "torch.linalg.vector_norm(torch.tanh(x), dim=-1)"
SIGMOIDS = "torch.sigmoid(x).mean(-1)"
LINEAR = "F.softplus(x).mean(-1)"
NORMS = "torch.linalg.vector_norm(F.gelu(x), dim=-1)"
ALL = "torch.tanh(x).square().mean()"
BY_COLUMN = "torch.tanh(x).square().mean(0)"
CENTRED = "(x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()"


def compute(code, x):
    return eval(code, {"torch": torch, "F": torch.nn.functional, "x": x})


def make_job(code, *, seed=1, n=8, columns=4096, shape="[n, 4096]"):
    definition = define({"x": f"float32[n, {columns}]"}, f"return {code}", outputs={"y": f"float32{shape}"})
    job = Judging(definition, {"n": n}, seed=seed)
    return job, StressPlan(definition, job.workload, seed), job.baseline().inputs[0]


def judge(job, plan, base, case, solution):
    """Judge one call of a solution on inputs of a case."""
    inputs = [base[0].clone()]
    plan.change(case, 0, inputs)
    call = JudgedCall(inputs, [solution(*inputs)], job.context.reference(inputs))
    return job.evaluator.stress_checks(job.definition, job.config).judge(case, call, job.context)


def coarse(values, dtype):
    scale = values.abs().amax(dim=-1, keepdim=True) / 448 if dtype.itemsize == 1 else 1
    return (values / scale).to(dtype).float() * scale


ROWWISE = [SIZES, SIGMOIDS, LINEAR, NORMS, "x.mean(dim=-1)", "torch.logsumexp(x, dim=-1)"]
HONEST = [*((code, "[n, 4096]") for code in (SOFTCAP, NORM, "torch.softmax(x * 8, dim=-1)", CENTRED))]
HONEST += [*((code, "[n]") for code in ROWWISE), (ALL, "[]"), ("x.abs().mean()", "[]"), (BY_COLUMN, "[4096]")]


@pytest.mark.parametrize(("code", "shape"), HONEST)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_honest_solutions_of_low_precision_pass_in_all_cases_of_their_job(code, shape, dtype):
    for seed, n in enumerate((1, 4, 32)):
        made = make_job(code, seed=seed, n=n, shape=shape)
        for case in made[1].names:
            expect(judge(*made, case, lambda x: compute(code, coarse(x, dtype))), None)


def look_first(x):
    """Compute from a quarter of each row if that looks usual, else from all of it."""
    seen = x[:, :1024]
    return torch.sigmoid(seen if seen.abs().max() < 6 and seen.mean().abs() < 0.1 else x).mean(-1)


TALL, ONES = {"n": 1500, "columns": 64, "shape": "[]"}, {"n": 32, "shape": "[n]"}


@pytest.mark.parametrize(
    ("code", "cases", "wrong", "settings", "least"),
    [
        (SOFTCAP, ["large", "few", "one few"], torch.clone, {}, 1),
        (NORM, ["large", "small", "few", "cubed"], torch.clone, {}, 1),
        ("x.clamp(min=0)", ["one few"], lambda x: x.clamp(0, 6), {}, 0.8),
        (SIGMOIDS, ["columns"], look_first, ONES, 0.3),
        (SIGMOIDS, ["shifted"], lambda x: torch.full((len(x),), 0.5), ONES, 1),
        (SIZES, ["small"], lambda x: torch.linalg.vector_norm(torch.tanh(x[:, ::4]), dim=-1) * 2, ONES, 1),
        ("x.square().mean()", ["one row"], lambda x: x[::3].square().mean(), TALL, 1),
    ],
)
def test_a_shortcut_for_usual_inputs_is_found_and_the_message_says_how_to_go_on(code, cases, wrong, settings, least):
    for case in cases:
        found = [judge(*make_job(code, seed=seed, **settings), NAMES[case], wrong) for seed in range(10)]
        found = [verdict for verdict in found if isinstance(verdict, Rejected)]
        assert len(found) >= 10 * least
        for said in (NAMES[case], "rule 'norm'", "--no-regimes-rule", "flashinfer-bench repro"):
            expect(found[0], said)


@pytest.mark.parametrize("case", ["shifted", "small", "large", "cubed", "columns", "rows"])
def test_no_row_or_column_of_bools_is_empty_or_full_that_was_not_and_narrow_floats_stay_finite(case):
    for number in range(8):
        usual = torch.rand(64, 2, generator=torch.Generator().manual_seed(number)) < 0.5
        made = change(case, usual, number)
        for one, before in ((made, usual), (~made, ~usual)):
            assert all(bool((one.any(dim=dim) | ~before.any(dim=dim)).all()) for dim in (0, 1))
    assert change(case, torch.linspace(-3, 3, 512).repeat(64, 1).to(torch.float8_e4m3fn)).float().isfinite().all()


def test_only_outputs_without_a_float_are_judged_on_usual_inputs_only():
    for outputs, is_judged in (({"y": "int32[n]"}, False), ({"y": "float32[n]", "count": "int32[n]"}, True)):
        job = Judging(make_definition(outputs=outputs), {"n": 8})
        assert job.evaluator.stress_checks(job.definition, job.config).judges_floats is is_judged
        off = Judging(job.definition, {"n": 8}, regimes_rule=False)
        assert off.evaluator.stress_checks(off.definition, off.config) is None


# Outputs that usual inputs never change, and rows that are not finite.

ZEROS, SOME = torch.zeros(4, dtype=torch.int64), torch.tensor([0, 3, 0, 0])


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        ([[SOME], [SOME.clone()]], [0]),
        ([[ZEROS]], [0]),
        ([[SOME]], []),
        ([[SOME]] * 2, []),  # if memory is short, trials share expected outputs
        ([[ZEROS.float(), ZEROS.bool()], [ZEROS.float(), ZEROS.bool()]], [0, 1]),
        ([[ZEROS.float()]], []),
        ([[ZEROS + INF], [ZEROS + INF]], []),
        ([], []),
    ],
)
def test_outputs_that_are_the_same_in_all_calls_are_constant(calls, found):
    assert list(find_constants([one if one[0] is SOME else [*one] for one in calls])) == found


def context_of(reference):
    return JudgeContext(3, Path(), reference, profile_baseline=False, measure_reference=None, notes={})


def count_large(x):
    return (x > 8).sum(dim=-1)


def share_of_large(x):
    return (x > 8).float().mean(dim=-1)


def zeros(x):
    return torch.zeros(len(x), dtype=torch.int64)


X = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)) * 10


@pytest.mark.parametrize(
    ("solution", "x", "reference", "is_blamed"),
    [
        (zeros, X, count_large, True),
        *((lambda x, by=by: share_of_large(x) * by, X, share_of_large, by == 0) for by in (0.0, NAN, 1.03, 0.97)),
        *(
            (lambda x, to=dtype: count_large(x.to(to).float()), X[:, :8], count_large, False)
            for dtype in (torch.bfloat16, torch.float8_e4m3fn)
        ),
        (zeros, torch.full((1, 1), 8.01), count_large, False),  # rounding flips it
        (zeros, torch.full((1, 1), 16.01), count_large, True),
        (lambda x: zeros(x) + 1, X.clamp(max=1), count_large, False),  # the reference's stays as it is
    ],
)
def test_an_output_that_is_nearly_always_the_same_may_not_be_omitted(solution, x, reference, is_blamed):
    checks = StressChecks(make_definition(), NormRule(0.1, judges_output=True, row_rule=None))
    expected = reference(x)
    call, usual = JudgedCall([x], [solution(x)], [expected]), {0: torch.zeros_like(expected)}
    verdict = checks.judge_constants("larger", call, usual, context_of(lambda inputs: [reference(*inputs)]))
    expect(verdict, "elements differ from what they are on all usual inputs" if is_blamed else None)
    if is_blamed:
        found = verdict.integrity["evidence"]
        assert (found["output"], found["regime"], found["wrong"]) == ("y", "larger", found["changed"])


def spoil(*places, by=INF):
    value = torch.ones(6, 16)
    for row, column in places:
        value[row, column] = by
    return value


ROWS, USUALLY = range(6), [[spoil()]]
MASKED = spoil(*((row, 0) for row in ROWS), by=-INF)
MASKS = [[spoil((0, 0), by=-INF)], [spoil((0, 1), by=-INF)]]


@pytest.mark.parametrize(
    ("expected", "got", "usual", "left_out"),
    [
        *((spoil((1, 3), by=NAN), spoil((4, 0), by=by), USUALLY, {1, 4}) for by in (NAN, INF)),
        *((spoil((1, 3), by=by), spoil((4, 0)), USUALLY, {*ROWS}) for by in (INF, -INF)),  # it overflows
        (spoil((3, 3), (4, 4)), spoil(), [[spoil((0, 0))], [spoil((1, 1), (2, 2), by=NAN)]], None),  # as usual
        (MASKED + spoil((2, 5), by=NAN), MASKED, MASKS, {2}),
    ],
)
def test_rows_in_which_either_output_is_not_finite_are_skipped(expected, got, usual, left_out):
    part = keep_finite(JudgedCall([], [got], [expected]), context_of(lambda inputs: [expected * 2]), usual)
    assert (part is None) == (left_out is None)
    if part:
        (call, context), kept = part, [row not in left_out for row in ROWS]
        for value, all_rows in ((call.expected, expected), (call.got, got), (context.reference([]), expected * 2)):
            torch.testing.assert_close(value[0], all_rows[kept], equal_nan=True)
