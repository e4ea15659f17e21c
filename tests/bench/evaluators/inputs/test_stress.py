"""Which stress cases a job has, which inputs they change, and what these become."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.looks import look_at
from flashinfer_bench.bench.evaluators.inputs.stress import StressPlan, count_affordable
from tests.kit.make import make_definition, make_workload
from tests.kit.operations import WAITS, counting_operations

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
USUAL = dict.fromkeys((FEW, SHIFTED, SMALL, LARGE, CUBED), 1) | {COLUMNS: 6, ONE_FEW: 3, STRETCH: 6}
GATED = "def run(x, gate):\n    return (torch.sigmoid(gate) * x).cumsum(0)\n"
ALL = "def run(x, gate):\n    return (torch.sigmoid(gate) * (x.nan_to_num() == 0)).cumsum(0)\n"
XY = {"x": "float32[n, m]", "gate": "float32[n, m]"}


def plan(
    inputs=XY, output="[n, m]", reference="def run(x): 1", sources=None, *, seed=3, op_type="test", has=False, **axes
):
    definition = make_definition(
        op_type=op_type,
        axes=dict.fromkeys(axes),
        inputs=inputs,
        outputs={"y": f"float32{output}"},
        reference=reference,
    )
    workload = make_workload(axes=axes, inputs=sources or {})
    return StressPlan(definition, workload, seed, has_constants=has)


def change(case, values, number=0, shape="n, m", output="[n]", **how):
    """Return a copy of values as a case makes them."""
    axes = dict(zip(shape.split(", "), values.shape, strict=True))
    dtype = str(values.dtype).removeprefix("torch.")
    made = values.clone()
    plan({"x": f"{dtype}[{shape}]"}, output, **how, **axes).change(case, number, [made])
    return made


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({ZEROS: 3}, {"reference": "def run(x, gate):\n    return x * (gate != 0)\n"}),
        ({NOT_FINITE: 9}, {"reference": "def run(x, gate):\n    return torch.nan_to_num(x) * gate\n"}),
        ({GATES_UP: 3, GATES_DOWN: 3, SOME_GATES: 12}, {"reference": GATED}),
        ({}, {"reference": GATED, "op_type": "gdn"}),
        ({}, {"reference": "def run(x, gate):\n    return torch.sigmoid(gate) * x\n"}),
        ({SPIKE: 12, FAR_LARGER: 3, SHIFTED: 3}, {"has": True}),
        ({SMALL: 9, ONE_ROW: 9}, {"output": "[n]", "n": 15}),
        ({}, {"output": "[n]", "n": 16}),
        ({ROWS: 6}, {"output": "[m]"}),
        ({ROWS: 6, SMALL: 9, ONE_ROW: 9}, {"output": "[]"}),
        ({ONE_ROW: 3, ROWS: 6}, {"output": "[n]", "inputs": {"x": "float32[n, k, m]", "w": "float32[n, k]"}, "k": 4}),
        ({ONE_FEW: -3, STRETCH: -6, ROWS: 6}, {"inputs": {"x": "uint8[n, m]"}}),
        ({ONE_FEW: -3, STRETCH: -6}, {"inputs": {"x": "float8_e4m3fn[n, m]"}}),
        (dict.fromkeys(USUAL, -9), {"inputs": {"x": "int32[n, m]", "scale": "float32[n]"}}),
    ],
)
def test_definition_and_workload_say_which_cases_come_beside_the_usual_ones(asked, told):
    found = plan(**{"n": 32, "m": 64, **told})
    wanted = Counter(USUAL) + Counter()
    wanted.update(asked)
    assert Counter(found.calls) == +wanted
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
    assert first[CUBED] > first[COLUMNS]


@pytest.mark.parametrize(("n", "most"), [(1 << 12, 20), (1 << 26, 4), (1 << 34, 1)])
def test_of_large_inputs_fewer_are_kept(n, most):
    assert len(plan({"x": "float32[n]"}, "[n]", n=n).calls) == most


@pytest.mark.parametrize(
    ("latency_ms", "device", "most"), [(None, "cuda", None), (4.9, "cuda", None), (5.1, "cuda", 2), (3e3, "cpu", 1)]
)
def test_a_slow_reference_is_called_for_few(latency_ms, device, most):
    assert count_affordable(latency_ms, device) == most


STAYS = "scale:float32 A_log:float32 dt_bias:float32 cos_sin_cache:float32 e:float8_e8m0fnu pages:int32 stored:float32"
CHANGES = "x:bfloat16 q:float8_e4m3fn image:uint8 weights:int8 mask:bool"


def test_only_random_values_without_a_meaning_are_changed():
    dtypes = dict(one.split(":") for one in f"{CHANGES} {STAYS}".split())
    inputs = {name: f"{dtype}[n, m]" for name, dtype in dtypes.items()} | {"number": "float32"}
    kept = {"type": "safetensors", "path": "a.safetensors", "tensor_key": "kept"}
    found = plan(inputs, sources={"stored": kept}, n=8, m=8).free
    assert [one.kind for one in found if one] == ["float", "float8", "bytes", "bytes", "bools"]
    assert [one.name for one in found if one] == list(dtypes)[:5]
    assert not any(plan({"mask": "bool[n]"}, "[n]", n=32).free)  # of few bools all could become false


def test_all_but_a_few_columns_and_rows_are_smaller_still_the_same_of_inputs_that_share_them():
    found = plan({"x": "float32[n, m]", "w": "float32[m, k]"}, n=400, m=1000, k=8)
    x, w = torch.ones(400, 1000), torch.ones(1000, 8)
    found.change(SMALL, 0, [x, w])
    assert 1 / 32 <= float(x.amax()) <= 1 / 16
    columns, rows = ((x == x.amax()).any(dim=dim) for dim in (0, 1))
    assert (int(columns.sum()), int(rows.sum())) == (15, 15)
    assert torch.equal((w == w.amax()).any(dim=1), columns)
    quiet = x.masked_fill(columns, 0).square().sum(dim=1) / x.square().sum(dim=1)
    assert quiet.tolist() == pytest.approx([1 / 400] * 400, rel=0.02)


@pytest.mark.parametrize(
    ("case", "shape", "most", "low", "high"),
    [
        (FEW, (256, 4096), 32, 56, 80),
        (ONE_FEW, (64, 4), 4, 56, 80),
        (SHIFTED, (1, 4000), 4000, 0.9, 1.2),
        (SHIFTED, (48, 64), 16 * 64, 0.9, 4.5),
        (STRETCH, (16, 1 << 17), 525, 168, 240),
    ],
)
def test_few_elements_become_large_or_shifted_to_either_side(case, shape, most, low, high):
    made = torch.stack([change(case, torch.zeros(shape), number, output="[m]") for number in range(12)])
    counts, sizes = (made != 0).flatten(1).sum(1), made.abs().flatten(1).amax(1)
    assert 1 <= counts.min() <= counts.max() <= most
    assert low <= sizes.min() <= sizes.max() <= high
    assert made.min() < 0 < made.max()


@pytest.mark.parametrize(
    ("dtype", "shape", "output", "sizes", "loud", "largest", "count"),
    [
        (torch.bfloat16, "n, m", "[]", (400, 64), 1, 32 * 400 * 8, 8),
        (torch.float16, "n, m", "[]", (200, 64), 1, 6550.4, 64),
        (torch.float16, "n, m", "[]", (500, 4), 0, 1, 0),  # the dtype has no such numbers
        (torch.float32, "n, m", "[]", (1, 64), 0, 1, 0),
        (torch.float32, "b, h, t, m", "[b, h]", (5, 4, 50, 4), 1, 32 * 50, 4),
        (torch.float32, "b, t, m", "[b]", (640, 4, 4), 10, 32 * 4, 4),
    ],
    ids=str,
)
def test_one_row_of_a_group_outweighs_the_others(dtype, shape, output, sizes, loud, largest, count):
    made = change(ONE_ROW, torch.ones(sizes, dtype=dtype), shape=shape, output=output)
    changed = (made != 1).sum(dim=-1)
    assert changed[changed > 0].tolist() == [count] * loud
    assert int((changed > 0).sum(dim=-1).max()) <= 1
    assert 0.69 * largest <= float(made.abs().max()) <= 1.01 * largest


@pytest.mark.parametrize(("case", "dim"), [(COLUMNS, 0), (ROWS, 1)])
@pytest.mark.parametrize("length", [7, 64])
def test_two_calls_of_a_job_have_something_of_each_second_place_and_of_each_half(case, dim, length):
    for seed in range(8):
        found, parts = plan({"x": "float32[n, m]"}, "[m]", seed=seed, n=length, m=length), []
        for number in (5, 17, 2, 3):
            values = torch.zeros(length, length)
            found.change(case, number, [values])
            parts.append(set(values.any(dim=dim).nonzero().flatten().tolist()))
        assert set.union(*parts) == set(range(length))
        for both in (parts[0] | parts[1], parts[2] | parts[3]):
            looks = range(length // 2), range(length // 2 + 1, length), range(0, length, 2), range(1, length, 2)
            assert all(both & {*looked} for looked in looks)
    assert not change(ROWS, torch.zeros(3, 8)).any()  # a short axis has no part
    assert not change(ROWS, torch.zeros(8), shape="n").any()


def test_gates_are_moved_to_one_side_in_another_call_to_the_other_and_some_of_them_late():
    found = plan({"x": "float32[t, m]", "gate": "float32[t, m]"}, "[t, m]", GATED, t=200, m=64)

    def move(case):
        x, gate = torch.zeros(2, 200, 64)
        found.change(case, 0, [x, gate])
        assert not x.any()
        return gate

    for case, low, high in ((GATES_UP, 3.4, 5.1), (GATES_DOWN, -5.1, -3.4)):
        assert low <= float(move(case).min()) <= float(move(case).max()) <= high
    gate = move(SOME_GATES)
    assert all(((gate == side).sum(dim=1) == torch.tensor([16] * 120 + [32] * 80)).all() for side in (5, -5))


@pytest.mark.parametrize(
    ("call", "kinds"), [("isnan", {"nan"}), ("isinf", {"inf", "-inf"}), ("isfinite", {"nan", "inf", "-inf"})]
)
def test_one_element_is_not_finite_as_the_reference_looks_for(call, kinds):
    reference = f"def run(x, w):\n    return torch.where(torch.{call}(x), 0.0, x) * w\n"
    found = plan({"x": "float32[n, m]", "w": "float32[m]"}, "[n, m]", reference, n=8, m=8)
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
    assert change(ZEROS, torch.ones(1, 100)).sum() < 100


BYTES = torch.empty(400, 400, dtype=torch.uint8).random_(256, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("dtype", "middle"), [(torch.uint8, 127.5), (torch.int8, -0.5)], ids=str)
def test_bytes_are_bytes_of_another_size_or_side(dtype, middle):
    usual = BYTES.view(dtype)
    small, large, cubed = (change(case, usual).float() for case in (SMALL, LARGE, CUBED))
    size = usual.float().abs().mean()
    assert [float(one.abs().mean() / size) for one in (small, cubed)] == pytest.approx([1 / 8, 1 / 2], rel=0.05)
    assert (large > middle).all() or (large < middle).all()
    for case, dim in ((COLUMNS, 0), (ROWS, 1)):
        means = change(case, usual).float().mean(dim=dim)
        assert int(((means - middle).abs() > 100).sum()) == pytest.approx(100, abs=2)


@pytest.mark.parametrize("tells", [True, False])
def test_bools_are_true_rarely_mostly_or_in_each_row_otherwise(tells):
    reference, usual = f"def run(x):\n    return x.{'any' if tells else 'sum'}()\n", BYTES > 127
    for case, share in ((SMALL, 0.1), (LARGE, 0.9)):
        assert change(case, usual).float().mean() == pytest.approx(share, abs=0.01)
    for case in (SHIFTED, CUBED):
        shares = change(case, usual, reference=reference).float().mean(dim=1)
        assert float(shares.std()) > 0.1
        assert bool((shares == 0).any()) is tells
    for case, dim in ((COLUMNS, 0), (ROWS, 1)):
        means = change(case, usual).float().mean(dim=dim)
        assert int(((means - 0.5).abs() > 0.35).sum()) == pytest.approx(100, abs=2)


@pytest.mark.parametrize("columns", [2, 32])
@pytest.mark.parametrize("case", USUAL)
def test_no_row_or_column_of_bools_is_empty_or_full_that_was_not(case, columns):
    for number in range(8):
        usual = torch.rand(64, columns, generator=torch.Generator().manual_seed(number)) < 0.5
        made = change(case, usual, number)
        for dim in (0, 1):
            assert bool((made.any(dim=dim) | ~usual.any(dim=dim)).all())
            assert bool((~made.all(dim=dim) | usual.all(dim=dim)).all())


@pytest.mark.parametrize("case", [FEW, LARGE, FAR_LARGER])
def test_float8_stays_finite_and_is_changed_as_floats_are(case):
    usual = torch.linspace(-3, 3, 512).repeat(64, 1).to(torch.float8_e4m3fn)
    made = change(case, usual).float()
    assert made.isfinite().all()
    assert not torch.equal(made, usual.float())


@pytest.mark.parametrize("dtype", ["float32", "float8_e4m3fn", "uint8", "bool"])
def test_a_seed_decides_all_and_nobody_waits_for_a_device_while_inputs_are_changed(dtype):
    made = []
    for seed in (3, 3, 4):
        found = plan({"x": f"{dtype}[n, m]", "gate": f"{dtype}[n, m]"}, reference=ALL, seed=seed, n=40, m=64)
        values = [torch.ones(40, 64).to(getattr(torch, dtype)) for _ in range(2)]
        with counting_operations() as counted:
            for name in found.names:
                found.change(name, 0, values)
        made.append(values[0].float().nan_to_num())
        assert counted.launches() > 0
        assert counted.counts.keys() & (WAITS - {"_to_copy"}) == set()  # it makes another dtype of what is there
    assert made[0].equal(made[1])
    assert not made[0].equal(made[2])


@pytest.mark.parametrize(
    ("line", "kinds", "guarded"),
    [
        ("x.isfinite().all()", "-inf inf nan", "x"),
        ("torch.isinf(x[:, 0].float()) | y", "-inf inf", "x"),
        ("torch.nan_to_num(-x) * w", "nan", "x"),
        ("torch.isnan(x @ w)", "nan", ""),
        ("x  # isnan", "", ""),
    ],
)
def test_names_tell_which_values_that_are_not_finite_are_looked_for_and_where(line, kinds, guarded):
    looks = look_at(f"def run(x, y, w):\n    'No isnan here.'\n    return {line}\n")
    assert sorted(map(str, looks.not_finite)) == kinds.split()
    assert looks.guarded - {"torch"} == set(guarded)


@pytest.mark.parametrize(
    ("line", "does"),
    [
        ("x.sum() / (x != 0).sum()", True),
        ("torch.where(x[:, 1:] == 0.0, y, x)", True),
        ("x.ne(0) * y", True),
        ("torch.count_nonzero(x)", True),
        ("x if x.shape[0] == 0 else y", False),
        ("x if len(x) == 0 else y", False),
        ("x * (y == 1) + (x > 0)", False),
    ],
)
def test_comparisons_tell_whether_zeros_are_looked_for(line, does):
    assert look_at(f"def run(x, y):\n    return {line}\n").zeros is does


STEPS = "f = torch.sigmoid(gate); s = 0\n    for t in range(len(x)):\n        s = s * f[t] + x[t]\n    return s"


@pytest.mark.parametrize(
    ("body", "is_gate"),
    [
        (STEPS, True),
        ("return (x * F.logsigmoid(-gate[:, 1:]).cumsum(1).exp()).sum(1)", True),
        ("return (x * gate.float().sigmoid()).cumsum(1)", True),
        ("return (x * torch.sigmoid(gate[0] + other)).cumsum(1)", True),
        ("return (x * torch.exp(-torch.exp(gate.float()))).cumsum(1)", True),
        ("for g in gate:\n        x = torch.lerp(x, g, gate.sigmoid())\n    return x", True),
        ("return x * torch.sigmoid(gate)", False),
        ("return torch.sigmoid(gate @ x).cumsum(1)", False),
        ("s = 0\n    for g in gate:\n        s = s + x * torch.sigmoid(gate)\n    return s", False),
    ],
)
def test_what_a_sigmoid_is_given_is_a_gate_where_a_state_is_carried(body, is_gate):
    gates = look_at(f"def run(x, gate, other):\n    {body}\n").gates
    assert gates & {"x", "gate", "other"} == ({"gate"} if is_gate else set())


@pytest.mark.parametrize("source", ["def run(x:\n    return x.isnan()\n", "return" * 2 + "\x00"])
def test_what_cannot_be_parsed_tells_nothing(source):
    assert not any(look_at(source))
