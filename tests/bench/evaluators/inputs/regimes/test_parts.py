"""Regimes in which a secret part of an input differs, and who is found by them after a look at some elements."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import Accepted, JudgedCall, Rejected
from flashinfer_bench.bench.evaluators.inputs.regimes.chance import Chance
from flashinfer_bench.bench.evaluators.inputs.regimes.choose import Regimes, leave_out_repeats
from flashinfer_bench.bench.evaluators.inputs.regimes.parts import (
    PART_OF_COLUMNS,
    STRETCH,
    choose_part,
    choose_places,
    find_part,
)
from tests.bench.evaluators.judging import Judging
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

SIGMOIDS = "torch.sigmoid(x).mean(-1)"
LINEAR = "torch.nn.functional.softplus(x).mean(-1)"
NORMS = "torch.linalg.vector_norm(torch.nn.functional.gelu(x), dim=-1)"
ALL = "torch.tanh(x).square().mean()"
ROWS = "torch.tanh(x).square().mean(0)"
SCALED = "x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)"
N, M = 32, 4096


def open_chance(seed):
    return Chance(seed, torch.device("cpu"))


def compute(code, x):
    return eval(code, {"torch": torch, "x": x})


def judge(code, regime, solution, *, seed, shape="[n]"):
    definition = make_definition(
        axes={"n": None, "m": None},
        inputs={"x": "float32[n, m]"},
        outputs={"y": f"float32{shape}"},
        reference=f"import torch\ndef run(x):\n    return {code}\n",
    )
    job = Judging(definition, make_workload(axes={"n": N, "m": M}, inputs={}), seed=seed)
    inputs = job.baseline().inputs[0]
    Regimes(definition, job.workload, seed).change(regime, 0, inputs)
    call = JudgedCall(inputs, [solution(*inputs)], job.context.reference(inputs))
    return job.evaluator.judge_regime(definition, regime, call, job.config, job.context)


def look_first(x, code, part, factor):
    seen = x[part]
    low, high = torch.aminmax(seen)
    is_usual = low.item() > -6 and high.item() < 6 and abs(seen.mean().item()) < 0.1
    return compute(code, seen) * factor if is_usual else compute(code, x)


EVERY_FOURTH = (slice(None), slice(None, None, 4))
FIRST_QUARTER = (slice(None), slice(M // 4))


@pytest.mark.parametrize(
    ("code", "shape", "part", "factor", "regime", "least"),
    [
        (SIGMOIDS, "[n]", EVERY_FOURTH, 1, "part_of_columns", 20),
        (SIGMOIDS, "[n]", FIRST_QUARTER, 1, "part_of_columns", 20),
        (SIGMOIDS, "[n]", (slice(None), slice(None, None, 2)), 1, "part_of_columns", 20),
        (ALL, "[]", (slice(None, None, 8),), 1, "part_of_rows", 20),
        (ROWS, "[m]", (slice(N // 2),), 1, "part_of_rows", 20),
        (NORMS, "[n]", EVERY_FOURTH, 2, "stretch", 20),
        (NORMS, "[n]", FIRST_QUARTER, 2, "stretch", 20),
        (LINEAR, "[n]", EVERY_FOURTH, 1, "stretch", 6),
        (LINEAR, "[n]", FIRST_QUARTER, 1, "stretch", 6),
    ],
)
def test_who_computes_from_what_he_has_looked_at_is_found(code, shape, part, factor, regime, least):
    attack = partial(look_first, code=code, part=part, factor=factor)
    verdicts = [judge(code, regime, attack, seed=seed, shape=shape) for seed in range(60)]
    assert least <= sum(isinstance(one, Rejected) for one in verdicts)


@pytest.mark.parametrize("regime", ["part_of_columns", "part_of_rows", "stretch"])
@pytest.mark.parametrize(
    ("code", "shape"),
    [(SIGMOIDS, "[n]"), (LINEAR, "[n]"), (NORMS, "[n]"), (ALL, "[]"), (ROWS, "[m]"), (SCALED, "[n, m]")],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_honest_solutions_of_low_precision_pass(regime, code, shape, dtype):
    def solve(x):
        if dtype is torch.float16:
            return compute(code, x.half()).float()
        scale = x.abs().amax(dim=-1, keepdim=True) / 448 if dtype.itemsize == 1 else 1.0
        return compute(code, (x / scale).to(dtype).float() * scale)

    for seed in range(4):
        verdict = judge(code, regime, solve, seed=seed, shape=shape)
        assert isinstance(verdict, Accepted), verdict.message


@pytest.mark.parametrize("length", [4, 7, 64, 1001])
def test_a_part_is_every_second_place_of_a_half(length):
    found = set()
    for seed in range(40):
        places = range(length)[choose_part(length, open_chance(seed))]
        assert len(places) == pytest.approx(length / 4, abs=1)
        assert places.step == 2
        found.add(places[0])
    assert len(found) == 4


def test_parts_lie_along_an_axis_that_is_long_enough():
    values = torch.zeros(2, 8, 6)
    find_part(values, -1, open_chance(0)).fill_(1)
    assert values[0, 0].sum() in (1, 2)
    assert torch.equal(values, values[0, 0].expand(2, 8, 6))
    values.zero_()
    find_part(values, -2, open_chance(0)).fill_(1)
    assert values[0, :, 0].sum() == 2
    assert torch.equal(values, values[0, :, :1].expand(2, 8, 6))
    assert find_part(torch.zeros(8), -2, open_chance(0)) is None
    assert find_part(torch.zeros(3, 8), -2, open_chance(0)) is None


def test_places_follow_one_another_or_are_so_far_apart_that_strides_miss_them():
    steps = set()
    for seed in range(20):
        places = choose_places(5, 4096, open_chance(seed))
        assert len(set(places.tolist())) == 5
        steps |= {int(one) for one in places.diff() % 4096}
    assert steps == {1, 32}
    assert sorted(choose_places(6, 6, open_chance(0)).tolist()) == [*range(6)]


def open_regimes(inputs, outputs, reference="def run(x): 1", **axes):
    definition = make_definition(axes=dict.fromkeys(axes), inputs=inputs, outputs=outputs, reference=reference)
    return Regimes(definition, make_workload(axes=axes, inputs={}), seed=3)


@pytest.mark.parametrize(("shape", "most"), [((16, 1 << 17), 525), ((64, 256), 3), ((1,), 1), ((4096, 16), 2)])
def test_a_stretch_is_a_few_numbers_of_one_row_whose_squares_float16_holds(shape, most):
    counts = set()
    names = "nm"[-len(shape) :]
    regimes = open_regimes(
        {"x": f"float32[{', '.join(names)}]"}, {"y": "float32[m]"}, **dict(zip(names, shape, strict=True))
    )
    for number in range(20):
        x = torch.zeros(shape)
        regimes.change("stretch", number, [x])
        assert int(x.view(-1, shape[-1]).any(dim=1).sum()) == 1
        counts.add(int((x != 0).sum()))
        assert 180 <= float(x.abs().max()) <= 240
    assert 1 <= min(counts) <= max(counts) <= most


@pytest.mark.parametrize(
    ("inputs", "output", "is_asked"),
    [
        ({"x": "float32[n, m]"}, "[n]", False),
        ({"x": "float32[n, m]"}, "[m]", True),
        ({"x": "float32[n, m]"}, "[]", True),
        ({"x": "uint8[n, m]"}, "[n, m]", True),
        ({"x": "float32[m]"}, "[]", False),
    ],
)
def test_a_part_of_the_rows_differs_where_an_output_joins_them(inputs, output, is_asked):
    regimes = open_regimes(inputs, {"y": f"float32{output}"}, n=32, m=8)
    assert ("part_of_rows" in regimes.names) is is_asked


@pytest.mark.parametrize("regime", ["part_of_columns", "part_of_rows"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.bool], ids=str)
def test_bytes_of_a_part_are_at_an_end_of_their_range_and_bools_nearly_all_alike(regime, dtype):
    regimes = open_regimes({"x": f"{str(dtype)[6:]}[n, m]"}, {"y": "float32[n]"}, n=400, m=400)
    usual = torch.empty(400, 400, dtype=torch.uint8).random_(256, generator=open_chance(0).many)
    usual = usual > 127 if dtype is torch.bool else usual.view(dtype)
    for number in range(4):
        x = usual.clone()
        regimes.change(regime, number, [x])
        means = x.float().mean(dim=0 if regime == "part_of_columns" else 1)
        middle, far = {torch.uint8: (127, 100), torch.int8: (0, 100), torch.bool: (0.5, 0.35)}[dtype]
        assert int(((means - middle).abs() > far).sum()) == pytest.approx(100, abs=2)


def test_few_gates_are_moved_to_either_side_and_half_of_them_in_the_last_steps():
    reference = "def run(x, gate):\n    return (gate.sigmoid() * x).cumsum(1)\n"
    regimes = open_regimes(
        dict.fromkeys(("x", "gate"), "float32[n, t, m]"), {"y": "float32[n, t, m]"}, reference, n=2, t=200, m=64
    )
    for number in range(4):
        x, gate = torch.zeros(2, 200, 64), torch.zeros(2, 200, 64)
        regimes.change("few_gates", number, [x, gate])
        assert not x.any()
        for steps, moved in ((slice(120), 1), (slice(120, None), 2)):
            for side in (5, -5):
                assert int((gate[:, steps] == side).all(dim=1).sum()) == 2 * 8 * moved


def test_of_large_inputs_no_calls_are_kept_for_parts():
    asked = [PART_OF_COLUMNS, PART_OF_COLUMNS, "fewest_large", STRETCH, STRETCH, "nonfinite", "nonfinite"]
    assert leave_out_repeats(asked, 100) == [*dict.fromkeys(asked), PART_OF_COLUMNS, STRETCH, "nonfinite"]
    assert leave_out_repeats(asked, 5) == [*dict.fromkeys(asked), PART_OF_COLUMNS]
    assert leave_out_repeats(asked, 4) == [*dict.fromkeys(asked)]
    assert leave_out_repeats(asked, 3) == ["fewest_large", "nonfinite"]
