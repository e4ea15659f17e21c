"""Which stress cases a job has, which inputs they change, and what these become."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.looks import look_at
from flashinfer_bench.bench.evaluators.inputs.stress import StressPlan, count_affordable
from tests.bench.evaluators.inputs.making import define
from tests.kit.make import make_definition, make_workload
from tests.kit.operations import WAITS, counting_operations

pytestmark = pytest.mark.cpu

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
ALL = "return (torch.sigmoid(gate) * (x.nan_to_num() == 0)).cumsum(0)"
XY = {"x": "float32[n, m]", "gate": "float32[n, m]"}


def plan(inputs=XY, output="[n, m]", body="return 1", sources=None, *, seed=3, op_type="test", has=False, **axes):
    definition = define(inputs, body, outputs={"y": f"float32{output}"}, op_type=op_type)
    return StressPlan(definition, make_workload(axes=axes, inputs=sources or {}), seed, has_constants=has)


def change(case, values, number=0, shape="n, m", output="[n]", **how):
    """Return a copy of values as a case makes them."""
    axes = dict(zip(shape.split(", "), values.shape, strict=True))
    made = values.clone()
    found = plan({"x": f"{str(values.dtype).removeprefix('torch.')}[{shape}]"}, output, **how, **axes)
    found.change(NAMES[case], number, [made])
    return made


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"zeros": 3}, {"body": "return x * (gate != 0)"}),
        ({"not finite": 9}, {"body": "return torch.nan_to_num(x) * gate"}),
        ({"up": 3, "down": 3, "some": 12}, {"body": GATED}),
        ({}, {"body": GATED, "op_type": "gdn"}),
        ({"spike": 12, "far": 3, "shifted": 3}, {"has": True}),
        ({"small": 9, "one row": 9}, {"output": "[n]", "n": 15}),
        ({}, {"output": "[n]", "n": 16}),
        ({"rows": 6}, {"output": "[m]"}),
        ({"rows": 6, "small": 9, "one row": 9}, {"output": "[]"}),
        (
            {"one row": 3, "rows": 6},
            {"output": "[n]", "inputs": {"x": "float32[n, k, m]", "w": "float32[n, k]"}, "k": 4},
        ),
        ({"one few": -3, "stretch": -6, "rows": 6}, {"inputs": {"x": "uint8[n, m]"}}),
        ({"one few": -3, "stretch": -6}, {"inputs": {"x": "float8_e4m3fn[n, m]"}}),
        (dict.fromkeys(USUAL, -9), {"inputs": {"x": "int32[n, m]", "scale": "float32[n]"}}),
    ],
)
def test_definition_and_workload_say_which_cases_come_beside_the_usual_ones(asked, told):
    found = plan(**{"n": 32, "m": 64, **told})
    wanted = Counter(USUAL)
    wanted.update(asked)
    assert Counter(found.calls) == {NAMES[name]: count for name, count in wanted.items() if count > 0}
    assert set(found.names) == set(found.calls)


def test_the_list_is_the_same_in_each_run_and_another_order_for_another_workload():
    def calls(uuid, seed=1):
        return StressPlan(make_definition(), make_workload(uuid, axes={"n": 40}, inputs={}), seed).calls

    orders = [calls(str(number)) for number in range(40)]
    assert orders[0] == calls("0", 2)
    assert len({tuple(one) for one in orders}) > 30
    assert all(len(set(one[: len(set(one))])) == len(set(one)) for one in orders)  # each once before one comes again
    first = Counter(one[0] for one in orders)
    assert first[NAMES["cubed"]] > first[NAMES["columns"]]


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
    inputs = {name: f"{dtype}[n, m]" for name, dtype in (one.split(":") for one in f"{CHANGES} {STAYS}".split())}
    kept = {"type": "safetensors", "path": "a.safetensors", "tensor_key": "kept"}
    found = plan({**inputs, "number": "float32"}, sources={"stored": kept}, n=8, m=8).free
    assert [one.kind for one in found if one] == ["float", "float8", "bytes", "bytes", "bools"]
    assert [one.name for one in found if one] == list(inputs)[:5]
    assert not any(plan({"mask": "bool[n]"}, "[n]", n=32).free)  # of few bools all could become false


def test_all_but_a_few_columns_and_rows_are_smaller_still_the_same_of_inputs_that_share_them():
    x, w = torch.ones(400, 1000), torch.ones(1000, 8)
    plan({"x": "float32[n, m]", "w": "float32[m, k]"}, n=400, m=1000, k=8).change(NAMES["small"], 0, [x, w])
    columns, rows = ((x == x.amax()).any(dim=dim) for dim in (0, 1))
    assert (int(columns.sum()), int(rows.sum())) == (15, 15)
    assert torch.equal((w == w.amax()).any(dim=1), columns)


@pytest.mark.parametrize(
    ("dtype", "shape", "output", "sizes", "loud", "largest", "count"),
    [
        (torch.bfloat16, "n, m", "[]", (400, 64), 1, 32 * 400 * 8, 8),
        (torch.float16, "n, m", "[]", (500, 4), 0, 1, 0),  # the dtype has no such numbers
        (torch.float32, "b, h, t, m", "[b, h]", (5, 4, 50, 4), 1, 32 * 50, 4),
        (torch.float32, "b, t, m", "[b]", (640, 4, 4), 10, 32 * 4, 4),
    ],
)
def test_one_row_of_a_group_outweighs_the_others(dtype, shape, output, sizes, loud, largest, count):
    made = change("one row", torch.ones(sizes, dtype=dtype), shape=shape, output=output)
    changed = (made != 1).sum(dim=-1)
    assert changed[changed > 0].tolist() == [count] * loud
    assert 0.69 * largest <= float(made.abs().max()) <= 1.01 * largest


@pytest.mark.parametrize(("case", "share"), [("up", 1), ("down", 1), ("some", 0.7)])
def test_gates_are_moved_to_one_side_in_another_call_to_the_other_and_some_of_them_late(case, share):
    x, gate = torch.zeros(2, 200, 64)
    plan(XY, "[n, m]", GATED, n=200, m=64).change(NAMES[case], 0, [x, gate])
    assert not x.any()
    assert ((gate > 3.4).any(), (gate < -3.4).any()) == (case != "down", case != "up")
    assert gate.bool().double().mean() == pytest.approx(share)


@pytest.mark.parametrize(("call", "kinds"), [("isnan", "nan"), ("isinf", "-inf inf"), ("isfinite", "-inf inf nan")])
def test_one_element_is_not_finite_as_the_reference_looks_for(call, kinds):
    found, seen = plan(XY, "[n, m]", f"return torch.where(torch.{call}(x), 0.0, x) * gate", n=8, m=8), set()
    for number in range(24):
        x, other = torch.ones(2, 8, 8)
        found.change(NAMES["not finite"], number, [x, other])
        seen.update(map(str, x[~x.isfinite()].tolist()))
        assert (int(x.isfinite().sum()), bool(other.isfinite().all())) == (63, True)
    assert " ".join(sorted(seen)) == kinds


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_half_of_some_rows_become_zeros(dtype):
    counts = (change("zeros", torch.ones(400, 100, dtype=dtype)) == 0).sum(dim=1)
    assert int((counts > 0).sum()) == pytest.approx(50, rel=0.5)
    assert float(counts[counts > 0].float().mean()) == pytest.approx(50, rel=0.1)
    assert change("zeros", torch.ones(1, 100, dtype=dtype)).sum() < 100


BYTES = torch.empty(400, 400, dtype=torch.uint8).random_(256, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("case", ["small", "large", "cubed", "columns", "rows", "shifted"])
def test_narrow_inputs_keep_to_a_part_of_their_range_or_are_true_at_another_rate(case):
    is_part = case not in ("small", "large", "cubed")
    parts, rates = set(), set()
    for number in range(24):
        for signed in (BYTES, BYTES.view(torch.int8)):
            made = change(case, signed, number)
            is_changed = made != signed
            low, high = map(int, (made[is_changed].amin(), made[is_changed].amax()))
            parts.add((high - low + 1) // 16)
            assert not is_part or 0.1 < is_changed.float().mean() < 0.3
        mask = change(case, BYTES > 127, number)
        rates.add(round(float(mask.float().mean()), 1 if is_part else 2))
    assert parts <= {1, 2, 8}
    assert len(parts) == 3
    assert len(rates) > 1
    wide = change(case, torch.linspace(-3, 3, 512).repeat(64, 1).to(torch.float8_e4m3fn)).float()
    assert wide.isfinite().all()


@pytest.mark.parametrize("tells", [True, False])
def test_a_row_of_bools_is_empty_only_if_the_reference_says_what_it_gives(tells):
    body = f"return x.{'any' if tells else 'sum'}()"
    for case in ("shifted", "cubed"):
        shares = change(case, BYTES > 127, body=body).float().mean(dim=1)
        assert bool((shares == 0).any()) is tells


@pytest.mark.parametrize("columns", [2, 32])
@pytest.mark.parametrize("case", ["shifted", "small", "large", "cubed", "columns", "rows"])
def test_no_row_or_column_of_bools_is_empty_or_full_that_was_not(case, columns):
    for number in range(8):
        usual = torch.rand(64, columns, generator=torch.Generator().manual_seed(number)) < 0.5
        made = change(case, usual, number)
        for one, before in ((made, usual), (~made, ~usual)):
            assert all(bool((one.any(dim=dim) | ~before.any(dim=dim)).all()) for dim in (0, 1))


@pytest.mark.parametrize("dtype", ["float32", "float8_e4m3fn", "uint8", "bool"])
def test_a_seed_decides_all_and_nobody_waits_for_a_device_while_inputs_are_changed(dtype):
    made = []
    for seed in (3, 3, 4):
        found = plan(dict.fromkeys(XY, f"{dtype}[n, m]"), body=ALL, seed=seed, n=40, m=64)
        values = [torch.ones(40, 64).to(getattr(torch, dtype)) for _ in range(2)]
        with counting_operations() as counted:
            for name in found.names:
                found.change(name, 0, values)
        made.append(values[0].float().nan_to_num())
        assert counted.launches() > 0
        assert counted.counts.keys() & (WAITS - {"_to_copy"}) == set()  # it makes another dtype of what is there
    assert made[0].equal(made[1])
    assert not made[0].equal(made[2])


STEPS = "f = torch.sigmoid(gate); s = 0\n    for t in range(len(x)):\n        s = s * f[t] + x[t]\n    return s"
LOOKS = {
    # values that are not finite, and the names whose values are checked
    "return x.isfinite().all()": ["-inf", "inf", "nan", "x"],
    "return torch.isinf(x[:, 0].float()) | y": ["-inf", "inf", "x"],
    "return torch.nan_to_num(-x) * w": ["nan", "x"],
    "return torch.isnan(x @ w)": ["nan"],
    "return x  # isnan": [],
    # zeros
    "return x.sum() / (x != 0).sum()": ["zeros"],
    "return torch.where(x[:, 1:] == 0.0, y, x)": ["zeros"],
    "return x.ne(0) * y": ["zeros"],
    "return torch.count_nonzero(x)": ["zeros"],
    "return x if x.shape[0] == 0 else y": [],
    "return x if len(x) == 0 else y": [],
    "return x * (y == 1) + (x > 0) + (y & 8 != 0)": [],
    # gates
    STEPS: ["gate"],
    "return (x * F.logsigmoid(-gate[:, 1:]).cumsum(1).exp()).sum(1)": ["gate"],
    "return (x * gate.float().sigmoid()).cumsum(1)": ["gate"],
    "return (x * torch.sigmoid(gate[0] + y)).cumsum(1)": ["gate"],
    "return (x * torch.exp(-torch.exp(gate.float()))).cumsum(1)": ["gate"],
    "for g in gate:\n        x = torch.lerp(x, g, gate.sigmoid())\n    return x": ["gate"],
    "return x * torch.sigmoid(gate)": [],
    "return torch.sigmoid(gate @ x).cumsum(1)": [],
    "s = 0\n    for g in gate:\n        s = s + x * torch.sigmoid(gate)\n    return s": [],
    "return x.isnan(\n": [],
    "return\x00": [],
}


@pytest.mark.parametrize("body", LOOKS)
def test_a_source_tells_what_it_looks_for(body):
    looks = look_at(f"def run(x, y, w, gate):\n    'No isnan here.'\n    {body}\n")
    found = [*map(str, looks.not_finite), *(looks.guarded | looks.gates) - {"torch", "F"}, *["zeros"] * looks.zeros]
    assert sorted(found) == sorted(LOOKS[body])
