"""Regimes that a reference or an output asks for, and those of bytes, bools and float8."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.regimes.choose import (
    FOR_FLOATS,
    IN_ALL_JOBS,
    OTHERS,
    PART_CALLS,
    Regimes,
)
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu


def given(reference, inputs, outputs=None, *, op_type="test", **axes):
    definition = make_definition(
        op_type=op_type,
        axes=dict.fromkeys(axes),
        inputs=inputs,
        outputs=outputs or {"y": "float32[n, m]"},
        reference=reference,
    )
    return Regimes(definition, make_workload(axes=axes, inputs={}), seed=3)


@pytest.mark.parametrize(
    ("reference", "asked"),
    [
        ("def run(x, gate):\n    return x * (gate != 0)\n", ["zeros"]),
        ("def run(x, gate):\n    return torch.nan_to_num(x) * gate\n", ["nonfinite"] * 3),
        (
            "def run(x, gate):\n    return (torch.sigmoid(gate) * x).cumsum(0)\n",
            ["gates", "other_gates", *["few_gates"] * 4],
        ),
        ("def run(x, gate):\n    return torch.sigmoid(gate) * x\n", []),
    ],
    ids=["zeros", "nonfinite", "gates", "nothing"],
)
@pytest.mark.parametrize("trials", [1, 2, 3])
def test_what_a_reference_looks_for_comes_in_each_trial(reference, asked, trials):
    regimes = given(reference, {"x": "float32[n, m]", "gate": "float32[n, m]"}, n=8, m=8)
    chosen = [name for trial in range(trials) for name in regimes.choose(trial, trials)]
    counts = Counter(name for name in chosen if name not in (*IN_ALL_JOBS, *OTHERS))
    of_all = [*FOR_FLOATS, *["part_of_columns"] * PART_CALLS]
    assert counts == Counter([*asked, *of_all] * trials)
    assert set(asked) <= set(regimes.names)


def test_op_types_whose_gates_have_rules_get_no_others():
    reference = "def run(x, gate):\n    return (torch.sigmoid(gate) * x).cumsum(0)\n"
    regimes = given(reference, {"x": "float32[n, m]", "gate": "float32[n, m]"}, op_type="gdn", n=8, m=8)
    assert "gates" not in regimes.names


def test_gates_are_moved_to_one_side_and_in_another_call_to_the_other():
    reference = "def run(x, a, b):\n    return (torch.sigmoid(a) * x + b.sigmoid()).cumsum(0)\n"
    regimes = given(reference, dict.fromkeys("xab", "float32[n, m]"), n=8, m=8)
    sides = {}
    for name in ("gates", "other_gates"):
        values = [torch.zeros(8, 8) for _ in range(3)]
        regimes.change(name, 0, values)
        assert not values[0].any()
        for index in (1, 2):
            assert 3 <= float(values[index].abs().min()) <= float(values[index].abs().max()) <= 5
            sides.setdefault(index, []).append(float(values[index].sign().mean()))
    assert all(sorted(one) == [-1, 1] for one in sides.values())


def test_what_is_not_finite_comes_where_the_reference_looks_for_it():
    reference = "def run(x, w):\n    return torch.where(torch.isnan(x), 0.0, x) * w\n"
    regimes = given(reference, {"x": "float32[n, m]", "w": "float32[m]"}, n=8, m=8)
    x, w = torch.ones(8, 8), torch.ones(8)
    regimes.change("nonfinite", 0, [x, w])
    assert (int(x.isnan().sum()), int(x.isinf().sum())) == (1, 0)
    assert w.isfinite().all()


def test_of_very_many_groups_some_have_such_a_row():
    regimes = given("def run(x): 1", {"x": "float32[b, t, m]"}, {"y": "float32[b]"}, b=640, t=4, m=4)
    x = torch.ones(640, 4, 4)
    regimes.change("one_row", 0, [x])
    assert (x != 1).any(dim=-1).sum(dim=1).unique(return_counts=True)[1].tolist() == [630, 10]


def test_half_of_some_rows_become_zeros():
    regimes = given("def run(x): 1", {"x": "bfloat16[n, m]", "b": "int8[n, m]"}, n=400, m=100)
    x, b = torch.ones(400, 100).bfloat16(), torch.ones(400, 100, dtype=torch.int8)
    regimes.change("zeros", 0, [x, b])
    for value in (x, b):
        counts = (value == 0).sum(dim=1)
        assert int((counts > 0).sum()) == pytest.approx(50, rel=0.5)
        assert float(counts[counts > 0].float().mean()) == pytest.approx(50, rel=0.1)
    one = torch.ones(1, 100)
    regimes.change("zeros", 0, [one, None])
    assert 30 < int((one == 0).sum()) < 70


@pytest.mark.parametrize(
    ("shape", "output", "axes", "rows_with_one"),
    [
        ("[b, t, m]", "[b]", {"b": 20, "t": 50, "m": 4}, 20),
        ("[b, h, t, m]", "[b, h]", {"b": 5, "h": 4, "t": 50, "m": 4}, 20),
        ("[t, m]", "[]", {"t": 50, "m": 4}, 1),
        ("[b, t, m]", "[b]", {"b": 2, "t": 50, "m": 4}, 2),
        ("[b, t, m]", "[t]", {"b": 20, "t": 50, "m": 4}, 1),
    ],
)
def test_of_a_group_of_rows_one_outweighs_the_others(shape, output, axes, rows_with_one):
    regimes = given("def run(x): 1", {"x": f"float32{shape}"}, {"y": f"float32{output}"}, **axes)
    x = torch.ones([axes[name] for name in shape.strip("[]").split(", ")])
    regimes.change("one_row", 0, [x])
    loud = (x != 1).any(dim=-1).view(rows_with_one, -1)
    assert sorted(loud.sum(dim=1).tolist()) == [0] * (rows_with_one - 1) + [1]
    has_groups_of_many = rows_with_one >= 16
    assert regimes.choose(0, 1).count("one_row") == (1 if has_groups_of_many else 3 if output != "[t]" else 0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8], ids=str)
def test_bytes_are_bytes_of_another_size_or_side(dtype):
    regimes = given("def run(x): 1", {"x": f"{str(dtype)[6:]}[n, m]"}, n=600, m=64)
    usual = torch.empty(600, 64, dtype=torch.uint8).random_(256, generator=torch.Generator().manual_seed(0)).view(dtype)
    size = float(usual.float().abs().mean())
    found = {}
    for name in (*IN_ALL_JOBS, *OTHERS):
        changed = usual.clone()
        regimes.change(name, 0, [changed])
        found[name] = changed.float()
        assert not torch.equal(changed, usual)
    assert float(found["smaller"].abs().mean()) == pytest.approx(size / 8, rel=0.05)
    assert float(found["few_large"].abs().mean()) < size / 6
    assert int((found["few_large"].abs() > 32).sum()) == pytest.approx(600, rel=0.3)
    assert float(found["heavy_tails"].abs().mean()) == pytest.approx(size / 2, rel=0.05)
    middle = 127.5 if dtype is torch.uint8 else -0.5
    assert bool((found["larger"] > middle).all()) or bool((found["larger"] < middle).all())
    sides = (found["offset"] > middle).float().mean(dim=1)
    assert 100 < int(((sides == 0) | (sides == 1)).sum()) < 300


def test_large_bytes_and_few_bools_stay(monkeypatch):
    regimes = given("def run(x): 1", {"x": "int8[n, m]", "mask": "bool[n]"}, n=32, m=64)
    monkeypatch.setattr("flashinfer_bench.bench.evaluators.inputs.regimes.narrow.MANY_BYTES", 100)
    x, mask = torch.ones(32, 64, dtype=torch.int8), torch.ones(32, dtype=torch.bool)
    for name in (*IN_ALL_JOBS, *OTHERS):
        regimes.change(name, 0, [x, mask])
    assert (x == 1).all()
    assert mask.all()


@pytest.mark.parametrize("tells", [True, False])
def test_bools_are_true_rarely_mostly_or_in_each_row_otherwise(tells):
    reference = f"def run(x):\n    return x.{'any' if tells else 'sum'}()\n"
    regimes = given(reference, {"x": "bool[n, m]"}, n=200, m=500)
    shares = {}
    for name in (*IN_ALL_JOBS, *OTHERS):
        x = torch.rand(200, 500, generator=torch.Generator().manual_seed(0)) < 0.5
        regimes.change(name, 0, [x])
        shares[name] = x.float().mean(dim=1)
    assert [float(shares[name].mean()) for name in ("few_large", "smaller", "larger")] == pytest.approx(
        [0.1, 0.1, 0.9], abs=0.01
    )
    for name in ("offset", "heavy_tails"):
        assert float(shares[name].std()) > 0.2
        assert bool((shares[name] == 0).any()) is tells


def test_float8_stays_finite_and_is_judged_as_floats_are():
    regimes = given("def run(x): 1", {"x": "float8_e4m3fn[n, m]"}, n=64, m=512)
    usual = torch.randn(64, 512, generator=torch.Generator().manual_seed(0))
    for name in (*IN_ALL_JOBS, *OTHERS, "far", "spike"):
        x = usual.to(torch.float8_e4m3fn)
        regimes.change(name, 0, [x])
        assert x.float().isfinite().all()
        assert not torch.equal(x.float(), usual.to(torch.float8_e4m3fn).float())


@pytest.mark.parametrize("columns", [2, 16, 32, 128])
def test_no_row_or_column_of_bools_is_without_any_or_full_that_was_not(columns):
    regimes = given("def run(x): 1", {"x": "bool[n, m]"}, n=64, m=columns)
    for number in range(8):
        for name in (*IN_ALL_JOBS, *OTHERS):
            usual = torch.rand(64, columns, generator=torch.Generator().manual_seed(number)) < 0.5
            x = usual.clone()
            regimes.change(name, number, [x])
            for dim in (0, 1):
                assert bool((x.any(dim=dim) | ~usual.any(dim=dim)).all())
                assert bool((~x.all(dim=dim) | usual.all(dim=dim)).all())


def test_what_says_how_fast_a_state_forgets_stays():
    regimes = given("def run(x): 1", {"x": "float32[n, m]", "A_log": "float32[n]", "dt_bias": "float32[n]"}, n=8, m=8)
    assert [one is not None for one in regimes.free] == [True, False, False]
