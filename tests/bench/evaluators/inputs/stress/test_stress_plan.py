"""Which stress cases a job has, which inputs they change, and what these become."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.stress.plan import StressPlan, count_affordable
from flashinfer_bench.bench.evaluators.inputs.stress.supports import choose_part
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

FEW = "a few large values in one row of 64"
ONE_FEW = "a few large values in one row"
SHIFTED = "some rows shifted"
SMALL = "small values, all but a few rows and columns smaller still"
LARGE = "all values about 20 times as large"
CUBED = "cubed values (heavy tails)"
STRETCH = "a stretch of one row near 200"
COLUMNS = "every second column of one half shifted"
ROWS = "every second row of one half shifted"
ONE_ROW = "one row that outweighs all others"
ZEROS = "zeros in half of some rows"
NOT_FINITE = "one infinite value or NaN"
GATES_UP = "gates shifted up"
GATES_DOWN = "gates shifted down"
SOME_GATES = "some gates shifted"
SPIKE = "one huge value"
FAR_LARGER = "all values 100 to 1,000 times as large"
USUAL = (FEW, SHIFTED, SMALL, LARGE, CUBED)


def plan(inputs, outputs=None, reference="def run(x): 1", sources=None, *, seed=3, op_type="test", has=False, **axes):
    definition = make_definition(
        op_type=op_type,
        axes=dict.fromkeys(axes),
        inputs=inputs,
        outputs=outputs or {"y": "float32[n]"},
        reference=reference,
    )
    workload = make_workload(axes=axes, inputs=sources or {})
    return StressPlan(definition, workload, seed, has_constants=has)


GATED = "def run(x, gate):\n    return (torch.sigmoid(gate) * x).cumsum(0)\n"
FLOATS = {COLUMNS: 6, ONE_FEW: 3, STRETCH: 6}


@pytest.mark.parametrize(
    ("reference", "op_type", "asked"),
    [
        ("def run(x, gate):\n    return x * (gate != 0)\n", "test", {ZEROS: 3}),
        ("def run(x, gate):\n    return torch.nan_to_num(x) * gate\n", "test", {NOT_FINITE: 9}),
        (GATED, "test", {GATES_UP: 3, GATES_DOWN: 3, SOME_GATES: 12}),
        (GATED, "gdn", {}),
        ("def run(x, gate):\n    return torch.sigmoid(gate) * x\n", "test", {}),
    ],
    ids=["zeros", "not finite", "gates", "gates with rules", "nothing"],
)
def test_the_reference_says_which_cases_come_beside_the_usual_ones(reference, op_type, asked):
    inputs = dict.fromkeys(("x", "gate"), "float32[n, m]")
    found = plan(inputs, {"y": "float32[n, m]"}, reference, op_type=op_type, n=32, m=8)
    assert Counter(found.calls) == Counter({**dict.fromkeys(USUAL, 1), **FLOATS, **asked})
    assert set(found.names) == set(found.calls)


def test_the_list_is_the_same_in_each_run_and_another_order_for_another_workload():
    def calls(uuid, seed):
        definition = make_definition(axes={"n": None}, inputs={"x": "float32[n]"}, outputs={"y": "float32[n]"})
        return StressPlan(definition, make_workload(uuid=uuid, axes={"n": 40}, inputs={}), seed).calls

    assert calls("a", 1) == calls("a", 2)
    orders = [calls(str(number), 1) for number in range(40)]
    assert len({tuple(one) for one in orders}) > 30
    assert all(len(set(one[: len(set(one))])) == len(set(one)) for one in orders)  # each once before one comes again
    first = Counter(one[0] for one in orders)
    assert set(first) <= {*USUAL, *FLOATS}
    assert first[CUBED] > first[COLUMNS]


@pytest.mark.parametrize(("n", "more"), [(1, 9), (15, 9), (16, 0)])
def test_where_outputs_have_few_numbers_there_are_more_calls_of_what_shows_them(n, more):
    calls = Counter(plan({"x": "float32[n, m]"}, n=n, m=8).calls)
    assert (calls[SMALL], calls[ONE_ROW]) == (1 + more, more)


def test_where_an_output_is_constant_there_are_strong_inputs():
    usual, tried = (Counter(plan({"x": "float32[n]"}, {"y": "int64[]"}, has=has, n=64).calls) for has in (False, True))
    assert tried - usual == Counter({SPIKE: 12, FAR_LARGER: 3, SHIFTED: 3})


@pytest.mark.parametrize(("n", "most"), [(1 << 12, 20), (1 << 26, 4), (1 << 28, 1), (1 << 34, 1)])
def test_of_large_inputs_fewer_are_kept(n, most):
    assert len(plan({"x": "float32[n]"}, n=n).calls) == most


@pytest.mark.parametrize(
    ("latency_ms", "device", "most"),
    [
        (None, "cuda", None),
        (4.9, "cuda", None),
        (5.1, "cuda", 2),
        (3e3, "cuda", 2),
        (1.0, "cpu", 1000),
        (100.0, "cpu", 10),
        (3e3, "cpu", 1),
    ],
)
def test_a_slow_reference_is_called_for_few(latency_ms, device, most):
    assert count_affordable(latency_ms, device) == most


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
    assert (ROWS in plan(inputs, {"y": f"float32{output}"}, n=32, m=8).names) is is_asked


def test_only_random_values_without_a_meaning_are_changed():
    inputs = {
        "x": "bfloat16[n, m]",
        "scale": "float32[n]",
        "q": "float8_e4m3fn[n, m]",
        "kv_indices": "int32[n]",
        "cos_sin_cache": "float32[n, m]",
        "stored": "float32[n, m]",
        "number": "float32",
        "image": "uint8[n, m]",
        "weights": "int8[n, m]",
        "mask": "bool[n, m]",
        "exponents": "float8_e8m0fnu[n, m]",
        "count": "int32[n, m]",
        "kept": "bool[n, m]",
        "A_log": "float32[n]",
        "dt_bias": "float32[n]",
    }
    kept = {"type": "safetensors", "path": "a.safetensors", "tensor_key": "kept"}
    free = plan(inputs, sources={"stored": kept, "kept": kept}, n=4, m=8).free
    assert {one.name: one.kind for one in free if one} == {
        "x": "float",
        "q": "float8",
        "image": "bytes",
        "weights": "bytes",
        "mask": "bools",
    }


def change(case, values, number=0, shape="n, m", output="[n]", **how):
    """Return a copy of values as a case makes them."""
    axes = dict(zip(shape.split(", "), values.shape, strict=True))
    dtype = str(values.dtype).removeprefix("torch.")
    made = values.clone()
    plan({"x": f"{dtype}[{shape}]"}, {"y": f"float32{output}"}, **how, **axes).change(case, number, [made])
    return made


@pytest.mark.parametrize(("shape", "most"), [((256, 4096), 32), ((1, 1 << 20), 8), ((64, 4), 4)])
def test_few_large_values_are_few_and_large(shape, most):
    for case, in_rows in ((FEW, max(1, shape[0] // 64)), (ONE_FEW, 1)):
        made = change(case, torch.zeros(shape))
        assert 1 <= int(made.any(dim=1).sum()) <= in_rows
        assert int((made != 0).sum()) <= most
        assert 56 <= float(made.abs().max()) <= 80


@pytest.mark.parametrize("shape", [(1, 4000), (2, 64), (48, 64), (6000, 8)])
def test_some_rows_are_shifted_to_one_side_and_most_stay(shape):
    signs = set()
    for number in range(12):
        made = change(SHIFTED, torch.zeros(shape), number)
        assert torch.equal(made, made[:, :1].expand_as(made))
        sizes = made[:, 0].abs()
        assert float(sizes.max()) <= 5.8
        assert 1 <= int((sizes > 0).sum()) <= max(2, shape[0] / 3)
        signs |= {float(one) for one in made[:, 0].sign() if one}
    assert signs == {1, -1}


def test_all_but_a_few_columns_and_rows_are_smaller_still_the_same_of_inputs_that_share_them():
    found = plan({"x": "float32[n, m]", "w": "bfloat16[k, m]", "v": "float32[m, k]"}, n=400, m=1000, k=8)
    x, w, v = torch.ones(400, 1000), torch.ones(8, 1000).bfloat16(), torch.ones(1000, 8)
    found.change(SMALL, 0, [x, w, v])
    assert 1 / 32 <= float(x.amax()) <= 1 / 16
    columns, rows = (x == x.amax()).any(dim=0), (x == x.amax()).any(dim=1)
    assert (int(columns.sum()), int(rows.sum())) == (15, 15)
    assert torch.equal(x == x.amax(), rows[:, None] & columns)
    assert torch.equal((w == w.amax()).any(dim=0), columns)
    assert torch.equal((v == v.amax()).any(dim=1), columns)
    quiet = x.masked_fill(columns, 0).square().sum(dim=1) / x.square().sum(dim=1)
    assert quiet.tolist() == pytest.approx([1 / 400] * 400, rel=0.02)
    again, few = torch.ones(400, 1000), torch.ones(15, 15)
    found.change(SMALL, 1, [again, None, None])
    found.change(SMALL, 0, [few, None, None])
    assert not torch.equal((again == again.amax()).any(dim=0), columns)
    assert len(few.unique()) == 1


@pytest.mark.parametrize(
    ("dtype", "rows", "columns", "largest", "count"),
    [
        (torch.float32, 400, 4, 32 * 400, 4),
        (torch.bfloat16, 400, 64, 32 * 400 * 8, 8),
        (torch.float16, 200, 64, 6550.4, 63),
        (torch.float16, 500, 4, 1, 0),
        (torch.float32, 1 << 18, 64, 1 << 26, 8),
        (torch.float32, 1, 64, 1, 0),
    ],
    ids=str,
)
def test_values_of_one_row_outweigh_all_others_where_the_dtype_has_such_numbers(dtype, rows, columns, largest, count):
    made = change(ONE_ROW, torch.ones(rows, columns, dtype=dtype), output="[]")
    assert int((made != 1).any(dim=1).sum()) == (count > 0)
    assert int((made != 1).sum()) == count
    assert 0.69 * largest <= float(made.abs().max()) <= 1.01 * largest


@pytest.mark.parametrize(
    ("shape", "output", "sizes", "groups", "loud"),
    [
        ("b, t, m", "[b]", (20, 50, 4), 20, 1),
        ("b, h, t, m", "[b, h]", (5, 4, 50, 4), 20, 1),
        ("t, m", "[]", (50, 4), 1, 1),
        ("b, t, m", "[t]", (20, 50, 4), 20, 1),
        ("b, t, m", "[b]", (640, 4, 4), 640, 10),
    ],
)
def test_of_a_group_of_rows_one_outweighs_the_others(shape, output, sizes, groups, loud):
    made = change(ONE_ROW, torch.ones(sizes), shape=shape, output=output)
    per_group = (made != 1).any(dim=-1).view(groups, -1).sum(dim=1)
    assert (int(per_group.sum()), int(per_group.max())) == (loud, 1)


@pytest.mark.parametrize(("shape", "most"), [((16, 1 << 17), 525), ((64, 256), 5), ((4096, 16), 2)])
def test_a_stretch_is_some_numbers_of_one_row_side_by_side_or_32_apart(shape, most):
    counts = set()
    for number in range(20):
        made = change(STRETCH, torch.zeros(shape), number, output="[m]")
        (row,) = made.any(dim=1).nonzero().flatten().tolist()
        places = made[row].nonzero().flatten()
        counts.add(len(places))
        assert {int(one) % shape[1] for one in places.diff()} <= {1, 32, *range(shape[1] - most * 32, shape[1])}
        assert len(made[row][places].sign().unique()) == 1
        assert 168 <= float(made.abs().max()) <= 240
    assert 1 <= min(counts) <= max(counts) <= most


@pytest.mark.parametrize("length", [4, 7, 64, 1001])
def test_a_part_is_every_second_place_of_a_half_and_the_next_one_of_neither(length):
    parts = [range(length)[choose_part(length, number)] for number in range(4)]
    assert all(len(part) == pytest.approx(length / 4, abs=1) and part.step == 2 for part in parts)
    assert sorted(place for part in parts for place in part) == list(range(length))
    for one, other in (parts[:2], parts[2:]):
        assert one[0] % 2 != other[0] % 2
        assert (one[-1] < length / 2) != (other[-1] < length / 2)


@pytest.mark.parametrize(("case", "dim"), [(COLUMNS, 0), (ROWS, 1)])
def test_two_calls_of_a_job_have_something_of_each_second_place_and_of_each_half(case, dim):
    for seed in range(8):
        found = plan({"x": "float32[n, m]"}, {"y": "float32[m]"}, seed=seed, n=64, m=64)
        moved = set()
        for number in (5, 17):
            values = torch.zeros(64, 64)
            found.change(case, number, [values])
            assert int(values.any(dim=dim).sum()) == 16
            moved |= {*values.any(dim=dim).nonzero().flatten().tolist()}
        assert all(moved & {*looked} for looked in (range(0, 64, 8), range(32), range(32, 64), range(1, 64, 2)))


@pytest.mark.parametrize("shape", [(3, 8), (8,)], ids=str)
def test_a_short_axis_has_no_part(shape):
    names = "n, m" if len(shape) == 2 else "n"
    assert not change(ROWS, torch.zeros(shape), shape=names).any()


def test_gates_are_moved_to_one_side_in_another_call_to_the_other_and_some_of_them_late():
    found = plan(dict.fromkeys(("x", "gate"), "float32[n, t, m]"), {"y": "float32[n, t, m]"}, GATED, n=2, t=200, m=64)
    for case, low, high in ((GATES_UP, 3.4, 5.1), (GATES_DOWN, -5.1, -3.4)):
        x, gate = torch.zeros(2, 200, 64), torch.zeros(2, 200, 64)
        found.change(case, 0, [x, gate])
        assert not x.any()
        assert low <= float(gate.min()) <= float(gate.max()) <= high
    for number in range(4):
        x, gate = torch.zeros(2, 200, 64), torch.zeros(2, 200, 64)
        found.change(SOME_GATES, number, [x, gate])
        for steps, moved in ((slice(120), 1), (slice(120, None), 2)):
            assert all(int((gate[:, steps] == side).all(dim=1).sum()) == 16 * moved for side in (5, -5))


@pytest.mark.parametrize(
    ("call", "kinds"), [("isnan", {"nan"}), ("isinf", {"inf", "-inf"}), ("isfinite", {"nan", "inf", "-inf"})]
)
def test_what_is_not_finite_is_one_element_as_the_reference_looks_for(call, kinds):
    reference = f"def run(x, w):\n    return torch.where(torch.{call}(x), 0.0, x) * w\n"
    found = plan({"x": "float32[n, m]", "w": "float32[m]"}, {"y": "float32[n, m]"}, reference, n=8, m=8)
    seen = set()
    for number in range(24):
        x, w = torch.ones(8, 8), torch.ones(8)
        found.change(NOT_FINITE, number, [x, w])
        (value,) = x[~x.isfinite()].tolist()
        seen.add(str(value))
        assert w.isfinite().all()
    assert seen == kinds


def test_half_of_some_rows_become_zeros():
    for value in (torch.ones(400, 100).bfloat16(), torch.ones(400, 100, dtype=torch.int8)):
        counts = (change(ZEROS, value) == 0).sum(dim=1)
        assert int((counts > 0).sum()) == pytest.approx(50, rel=0.5)
        assert float(counts[counts > 0].float().mean()) == pytest.approx(50, rel=0.1)
    assert 30 < int((change(ZEROS, torch.ones(1, 100)) == 0).sum()) < 70


def test_strong_inputs_are_strong_and_a_huge_value_is_one_element_of_either_sign():
    spikes = []
    for number in range(12):
        made = change(SPIKE, torch.ones(100, 100, dtype=torch.float16), number)
        assert int((made != 1).sum()) == 1
        spikes.append(made[made != 1].item())
        assert 9.9 <= abs(spikes[-1]) <= 65504
    assert min(spikes) < 0 < max(spikes)
    assert 99 <= change(FAR_LARGER, torch.ones(10, 10, dtype=torch.float16)).unique().item() <= 1001


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8], ids=str)
def test_bytes_are_bytes_of_another_size_or_side(dtype):
    usual = torch.empty(600, 64, dtype=torch.uint8).random_(256, generator=torch.Generator().manual_seed(0)).view(dtype)
    size = float(usual.float().abs().mean())
    found = {case: change(case, usual).float() for case in USUAL}
    assert float(found[SMALL].abs().mean()) == pytest.approx(size / 8, rel=0.05)
    assert float(found[FEW].abs().mean()) < size / 6
    assert int((found[FEW].abs() > 32).sum()) == pytest.approx(600, rel=0.3)
    assert float(found[CUBED].abs().mean()) == pytest.approx(size / 2, rel=0.05)
    middle = 127.5 if dtype is torch.uint8 else -0.5
    assert bool((found[LARGE] > middle).all()) or bool((found[LARGE] < middle).all())
    sides = (found[SHIFTED] > middle).float().mean(dim=1)
    assert 100 < int(((sides == 0) | (sides == 1)).sum()) < 300


@pytest.mark.parametrize(("case", "dim"), [(COLUMNS, 0), (ROWS, 1)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.bool], ids=str)
def test_bytes_of_a_part_are_at_an_end_of_their_range_and_bools_nearly_all_alike(case, dim, dtype):
    usual = torch.empty(400, 400, dtype=torch.uint8).random_(256, generator=torch.Generator().manual_seed(0))
    usual = usual > 127 if dtype is torch.bool else usual.view(dtype)
    for number in range(4):
        means = change(case, usual, number).float().mean(dim=dim)
        middle, far = {torch.uint8: (127, 100), torch.int8: (0, 100), torch.bool: (0.5, 0.35)}[dtype]
        assert int(((means - middle).abs() > far).sum()) == pytest.approx(100, abs=2)


def test_few_bools_stay():
    assert change(LARGE, torch.ones(32, dtype=torch.bool), shape="n").all()


@pytest.mark.parametrize("tells", [True, False])
def test_bools_are_true_rarely_mostly_or_in_each_row_otherwise(tells):
    reference = f"def run(x):\n    return x.{'any' if tells else 'sum'}()\n"
    usual = torch.rand(200, 500, generator=torch.Generator().manual_seed(0)) < 0.5
    shares = {case: change(case, usual, reference=reference).float().mean(dim=1) for case in USUAL}
    assert [float(shares[case].mean()) for case in (FEW, SMALL, LARGE)] == pytest.approx([0.1, 0.1, 0.9], abs=0.01)
    for case in (SHIFTED, CUBED):
        assert float(shares[case].std()) > 0.2
        assert bool((shares[case] == 0).any()) is tells


@pytest.mark.parametrize("columns", [2, 16, 32, 128])
def test_no_row_or_column_of_bools_is_without_any_or_full_that_was_not(columns):
    for number in range(8):
        usual = torch.rand(64, columns, generator=torch.Generator().manual_seed(number)) < 0.5
        for case in USUAL:
            made = change(case, usual, number)
            for dim in (0, 1):
                assert bool((made.any(dim=dim) | ~usual.any(dim=dim)).all())
                assert bool((~made.all(dim=dim) | usual.all(dim=dim)).all())


@pytest.mark.parametrize("case", [*USUAL, FAR_LARGER, SPIKE])
def test_float8_stays_finite_and_is_changed_as_floats_are(case):
    usual = torch.randn(64, 512, generator=torch.Generator().manual_seed(0)).to(torch.float8_e4m3fn)
    made = change(case, usual).float()
    assert made.isfinite().all()
    assert not torch.equal(made, usual.float())
