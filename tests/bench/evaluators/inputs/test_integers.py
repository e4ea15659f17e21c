"""Random integers that a reference's source tells more of: indices of its tables, padding, packed words, labels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.contents import Contents, find_varied
from flashinfer_bench.bench.evaluators.inputs.make import InputMaker
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

CPU = torch.device("cpu")
UNPACKED = "((q[:, None, :] >> torch.arange(0, 32, 4)[None, :, None]) & 15).reshape(-1, q.shape[1])"


def definition_with(body, constraints=(), op_type="test", **inputs):
    names = {axis for spec in inputs.values() for axis in spec.partition("[")[2].strip("]").split(", ") if axis}
    lines = body if isinstance(body, list) else [f"return {body}"]
    return make_definition(
        op_type=op_type,
        axes=dict.fromkeys(sorted(name for name in names if not name.isdigit())),
        inputs=inputs,
        outputs={"y": "float32"},
        constraints=list(constraints),
        reference="\n".join(["import torch", f"def run({', '.join(inputs)}):", *(f"    {line}" for line in lines)]),
    )


def make(definition, seed=1, **axes):
    made = InputMaker(definition, make_workload(axes=axes, inputs={}), CPU, Path("nowhere")).make(seed)
    return dict(zip(definition.inputs, made, strict=True))


@pytest.mark.parametrize("name", ["tokens", "ids", "labels"])
def test_what_indexes_a_table_reaches_all_of_it(name):
    definition = definition_with(f"table[{name}] @ w", w="float32[d, d]", table="float32[v, d]", **{name: "int64[t]"})
    found = make(definition, t=4096, v=300, d=2)[name]
    assert (int(found.min()), int(found.max())) == (0, 299)


def test_of_several_tables_the_smallest_counts():
    definition = definition_with("a[ids] + b[:, ids].T", a="float32[v, w]", b="float32[w, v]", ids="int64[t]")
    assert int(make(definition, t=999, v=300, w=40)["ids"].max()) == 299
    definition = definition_with("a[ids] + b[ids]", a="float32[v, d]", b="float32[w, d]", ids="int64[t]")
    assert int(make(definition, t=999, v=300, w=40, d=2)["ids"].max()) == 39


@pytest.mark.parametrize(
    "body", ["table[tokens ^ 1]", "table.take(tokens)", "other(tokens, table)", "table[2:][tokens]"]
)
def test_what_is_not_clear_stays_small(body):
    definition = definition_with(body, table="float32[v, d]", tokens="int64[t]")
    assert int(make(definition, t=999, v=300, d=3)["tokens"].max()) == 7


def test_indices_whose_use_is_not_clear_stay_below_all_leading_sizes():
    definition = definition_with("table[ids ^ 0] @ w", table="float32[v, d]", w="float32[d, d]", ids="int64[t]")
    assert int(make(definition, t=999, v=300, d=5)["ids"].max()) == 4


@pytest.mark.parametrize(
    ("constraint", "most"),
    [("tokens.max() < 20", 19), ("tokens.max() <= 20", 20), ("0 <= tokens < 20", 19), ("20 > tokens.max().item()", 19)],
)
def test_constraints_bound_what_a_reference_indexes(constraint, most):
    definition = definition_with("table[tokens]", [constraint], table="float32[v, d]", tokens="int64[t]")
    assert int(make(definition, t=2048, v=300, d=2)["tokens"].max()) == most


@pytest.mark.parametrize("constraint", ["tokens.sum() >= 0", "tokens[0] < v", "tokens.max() < strange"])
def test_constraints_that_ask_for_something_else_leave_the_usual_range(constraint):
    definition = definition_with("table[tokens]", [constraint], table="float32[v, d]", tokens="int64[t]")
    assert int(make(definition, t=2048, v=300, d=2)["tokens"].max()) == 7


def test_labels_stay_below_the_classes_of_the_definition():
    body = ["return torch.nn.functional.nll_loss(x.log_softmax(-1), labels)"]
    definition = definition_with(body, x="float32[n, num_classes]", labels="int64[n]")
    assert int(make(definition, n=2048, num_classes=100)["labels"].max()) == 99
    assert int(make(definition, n=2048, num_classes=3)["labels"].max()) == 2


def look_up_padded(name):
    return [
        f"rows = table[{name}.clamp(min=0)]",
        f"return torch.where({name}[:, None] >= 0, rows, torch.zeros_like(rows))",
    ]


@pytest.mark.parametrize("name", ["indices", "token", "slot_ids", "page_indices"])
def test_padding_comes_where_the_reference_tests_for_it(name):
    body = look_up_padded(name)
    definition = definition_with(body, table="float32[v, d]", **{name: "int64[t]"})
    found = make(definition, t=1024, v=2048, d=2)[name]
    assert 60 < int((found == -1).sum()) < 200
    assert int(found.min()) == -1
    for seed in range(20):
        few = make(definition, seed, t=8, v=2048, d=2)[name]
        assert 1 <= int((few == -1).sum()) < 8
        assert int((make(definition, seed, t=1, v=2048, d=2)[name] == -1).sum()) == 0


def test_distinct_slots_stay_distinct_beside_padding():
    definition = definition_with(
        ["valid = slots >= 0", "return pool[slots.clamp(min=0)] * valid[:, None]"],
        pool="float32[v, d]",
        slots="int32[t]",
    )
    found = make(definition, t=64, v=64, d=2)["slots"]
    kept = found[found >= 0].tolist()
    assert len(set(kept)) == len(kept) < 64


def test_no_row_of_indices_is_padding_alone():
    definition = definition_with(
        ["return (table[ids.clamp(min=0)] * (ids >= 0)[:, :, None]).sum(1)"], table="float32[v, d]", ids="int64[t, k]"
    )
    found = make(definition, t=4096, k=2, v=9, d=2)["ids"]
    assert (found == -1).any()
    assert not (found == -1).all(dim=1).any()


def test_a_constraint_may_forbid_padding():
    inputs = {"table": "float32[v, d]", "at": "int64[t]"}
    for least in (0, -1):
        definition = definition_with(look_up_padded("at"), [f"at.min() >= {least}"], **inputs)
        assert int(make(definition, t=99, v=9, d=2)["at"].min()) == least


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "int16"])
def test_words_that_are_taken_apart_have_any_bits(dtype):
    definition = definition_with(f"x @ {UNPACKED}.float()", x="float32[m, k]", q=f"{dtype}[p, n]")
    held = make(definition, m=2, k=64, p=8, n=512)["q"].view(torch.uint8).float()
    assert 120 < float(held.mean()) < 135
    assert len(held.unique()) == 256


def test_a_name_tells_packed_words_where_the_reference_opens_them():
    for body, is_small in (("x @ ((qweight // 16) % 16).float()", False), ("x @ qweight.float()", True)):
        definition = definition_with(body, x="float32[m, p]", qweight="int32[p, n]")
        assert (int(make(definition, m=2, p=8, n=512)["qweight"].max()) == 7) is is_small


def test_words_of_which_a_part_indexes_or_that_a_constraint_bounds_stay_small():
    lookup = definition_with("x @ table[(q >> 4) & 15]", x="float32[m, p]", table="float32[n]", q="int32[p, n]")
    bounded = definition_with(f"x @ {UNPACKED}.float()", ["q.min() >= 0"], x="float32[m, k]", q="int32[p, n]")
    for definition in (lookup, bounded):
        assert int(make(definition, m=2, k=64, p=8, n=64)["q"].max()) == 7


def test_packed_words_differ_from_call_to_call_in_all_bits():
    definition = definition_with(f"x @ {UNPACKED}.float()", x="float32[m, k]", q="int32[p, n]")
    workload = make_workload(axes={"m": 2, "k": 64, "p": 8, "n": 64}, inputs={})
    base = InputMaker(definition, workload, CPU, Path("nowhere")).make(1)
    contents = Contents(base, find_varied(definition, workload, CPU), seed=5, base_number=0)
    first, second = (contents.make(number)[1] for number in (1, 2))
    seen = set(base[1].flatten().tolist())
    assert not torch.equal(first, second)
    assert not seen & set(first.flatten().tolist())


def test_indices_fit_their_dtype():
    definition = definition_with("table[at]", table="float32[v, d]", at="int16[t]")
    found = make(definition, t=4096, v=1 << 17, d=1)["at"]
    assert int(found.min()) >= 0
    assert int(found.max()) > 30000
