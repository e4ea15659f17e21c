"""Random integers that a reference computes with before it indexes: all are valid, and reach the whole table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.make import InputMaker
from flashinfer_bench.data.workload import ScalarInput
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

CPU = torch.device("cpu")
EACH_LABEL = ["total = 0", "for i in range(labels.shape[0]):", "    y = int(labels[i])"]
SIZES = {"t": 2048, "v": 30, "w": 64, "p": 16, "d": 3}


def make(body, name="tok", inputs=None, given=None, constants=""):
    """Make the inputs of a definition, run its reference on them, and return one of them."""
    specs = {"table": "float32[v, d]", name: "int64[t]", **(inputs or {})}
    names = {axis for spec in specs.values() for axis in spec.partition("[")[2].strip("]").split(", ") if axis}
    lines = body if isinstance(body, list) else [f"return {body}"]
    head = ["import torch", constants, f"def run({', '.join(specs)}):"]
    definition = make_definition(
        op_type="test",
        axes=dict.fromkeys(sorted(axis for axis in names if not axis.isdigit())),
        inputs=specs,
        outputs={"y": "float32"},
        reference="\n".join([*head, *(f"    {line}" for line in lines)]),
    )
    workload = make_workload(axes={axis: SIZES[axis] for axis in names if axis in SIZES}, inputs=given or {})
    made = InputMaker(definition, workload, CPU, Path("nowhere")).make(1)
    scope = {}
    exec(compile(definition.reference, "reference", "exec"), scope)
    scope["run"](*made)
    return made[list(specs).index(name)]


def ends(values):
    return int(values.min()), int(values.max())


@pytest.mark.parametrize(
    ("body", "least", "most"),
    [
        ("table[tok + 1]", 0, 28),
        ("table[1 + tok.long()]", 0, 28),
        ("table[tok * 4]", 0, 7),
        ("table[tok // 4]", 0, 119),
        ("table[tok - 9]", 9, 38),
        ("table[table.shape[0] - 1 - tok]", 0, 29),
        ("table.index_select(0, torch.add(tok, 5).mul(2))", 0, 9),
        ("table[(tok[:, None] * 2 + torch.arange(2)).view(-1)]", 0, 14),
        ("torch.cat([torch.zeros(1, table.shape[1]), table])[tok + 1]", 0, 29),
        ("table.view(-1)[tok * 3 + 1]", 0, 29),
        ("table.log_softmax(-1)[tok + 1]", 0, 28),
        ("(table * 2)[tok]", 0, 29),
        (["at = tok + 2", "rows = [table[int(i)] for i in at]", "return torch.stack(rows)"], 0, 27),
        (["at = tok[:, None]", "return table.gather(0, (at + 3).expand(-1, 2))"], 0, 26),
        ("torch.stack([table, table])[tok % 2]", 0, 7),
        ("table[:, 2][tok + 1]", 0, 28),
        ("table[3][tok * 2]", 0, 1),
        ("table[None, :, 0][0][tok + 1]", 0, 7),
        ("table.view(-1, 1)[:, 0][tok + 1]", 0, 88),
        (["at = tok + 1", "more = at * 2", "return table[more] + table[at]"], 0, 13),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else None,
)
def test_computed_indices_are_valid_and_reach_the_table(body, least, most):
    assert ends(make(body)) == (least, most)


def test_numbers_of_a_workload_and_constants_of_a_module_count():
    assert ends(make("table[tok + base]", inputs={"base": "int32"})) == (0, 28)
    given = {"base": ScalarInput(type="scalar", value=7)}
    assert ends(make("table[tok + base]", inputs={"base": "int32"}, given=given)) == (0, 22)
    assert ends(make("table[tok // PAGE + SHIFT]", constants="PAGE = 4\nSHIFT = PAGE - 3")) == (0, 115)
    assert ends(make("table[tok + 0 * d]", inputs={"d": "int32"})) == (0, 29)


def test_positions_and_lengths_stay_within_what_they_index():
    assert ends(make("table[positions + 2]", name="positions")) == (0, 27)
    body = "x[torch.arange(x.shape[0]), seq_lens - 1]"
    assert ends(make(body, name="seq_lens", inputs={"x": "float32[t, 5]"})) == (1, 5)
    body = ["starts = sizes.cumsum(0) - sizes", "return x[starts]"]
    sizes = make(body, name="sizes", inputs={"x": "float32[3333, 2]", "sizes": "int64[p]"})
    assert 100 < int(sizes.max()) <= 3332 // 16


def test_what_is_taken_off_is_the_least():
    assert ends(make("table.index_select(0, positions - 5)", name="positions")) == (5, 34)
    body = "x[torch.arange(x.shape[0]), seq_lens - 2]"
    assert ends(make(body, name="seq_lens", inputs={"x": "float32[t, 5]"})) == (2, 6)
    slots = make("table.index_select(0, slots - 3)", name="slots", inputs={"slots": "int64[p]"})
    assert int(slots.min()) >= 3
    assert len(slots.unique()) == 16
    body = ["valid = tok >= 0", "return table.index_select(0, tok.clamp(min=0) - 2) * valid[:, None]"]
    assert ends(make(body)) == (2, 31)


def test_offsets_of_which_nothing_says_the_total_end_in_the_table():
    assert ends(make("table[indptr]", name="indptr", inputs={"indptr": "int64[p]"})) == (0, 29)


def test_pages_are_split_into_a_page_and_a_place():
    look_up = ["page_size = cache.shape[1]", "rows = []", "for b in range(pos.shape[0]):"]
    look_up += ["    page = pages[b, pos[b] // page_size]", "    rows.append(cache[page, pos[b] % page_size])"]
    inputs = {"cache": "float32[v, 4, d]", "pages": "int32[t, 5]"}
    assert ends(make([*look_up, "return torch.stack(rows)"], name="pos", inputs=inputs)) == (0, 19)
    flat = ["slots = pages[:, :, None] * 4 + torch.arange(4)", "return cache.view(-1, 3)[slots]"]
    assert ends(make(flat, name="pages", inputs={**inputs})) == (0, 29)


def test_what_is_wrapped_or_clamped_leaves_the_table():
    assert ends(make("table[tok % table.shape[0]]")) == (0, 59)
    assert ends(make("table[(tok - 5).clamp(0, table.shape[0] - 1)]")) == (0, 64)


def test_a_remainder_that_indexes_a_smaller_table_stays_below_it():
    assert ends(make("table[tok % 40]")) == (0, 29)
    assert ends(make("table[(tok % 40).long() * 2 + 4]")) == (0, 12)
    assert ends(make(["valid = tok >= 0", "return table[tok % 40] * valid[:, None]"])) == (0, 29)


def test_of_a_sum_of_inputs_each_is_small_enough():
    for name in ("tok", "more"):
        inputs = {"tok": "int64[t]", "more": "int64[t]", "table": "float32[9, d]"}
        assert ends(make("table[tok + more]", name=name, inputs=inputs)) == (0, 4)
    inputs = {"tok": "int64[t]", "more": "int64[t]"}
    assert ends(make("table.view(-1)[tok * 3 + more]", inputs=inputs)) == (0, 7)


def test_a_known_index_counts_even_where_another_use_is_not_known():
    assert ends(make(["other = str(tok)", "return table[tok * 10]"])) == (0, 2)


@pytest.mark.parametrize(
    "body",
    [
        ["valid = labels != -100", "return logits.gather(1, torch.where(valid, labels, 0)[:, None])[:, 0] * valid"],
        ["gone = labels == -100", "return logits.log_softmax(-1).gather(1, labels.masked_fill(gone, 0)[:, None])"],
        ["valid = labels != -100", "return logits.gather(1, (labels * valid).unsqueeze(1))[:, 0] * valid"],
        ["return torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100)"],
        [*EACH_LABEL, "    if y == -100:", "        continue", "    total = total + logits[i, y]", "return total"],
        [*EACH_LABEL, "    if y != -100:", "        total = total + logits[i, y]", "return total"],
    ],
    ids=["where", "masked_fill", "product", "cross_entropy", "continue", "if"],
)
def test_a_quarter_of_labels_is_what_the_reference_ignores(body):
    labels = make(body, name="labels", inputs={"logits": "float32[t, w]", "labels": "int64[t]"})
    assert 400 < int((labels == -100).sum()) < 620
    assert ends(labels[labels != -100])[0] == 0
    assert int(labels.max()) <= 63


@pytest.mark.parametrize(
    "body",
    [
        ["valid = labels != -100", "return logits.gather(1, labels[:, None])[:, 0] * valid"],
        ["valid = labels != -100", "return logits[0][labels] * valid"],
        ["valid = (labels != -100) & (labels != -1)", "return logits[0, labels.clamp(min=0)] * valid"],
        ["if (labels == -100).any():", "    raise ValueError", "return logits[0, labels]"],
        ["if labels[0] != -100:", "    pass", "return logits[0, labels]"],
    ],
    ids=["gather", "index", "two", "guard", "after"],
)
def test_no_label_is_ignored_where_the_reference_may_index_by_it(body):
    labels = make(body, name="labels", inputs={"logits": "float32[t, w]", "labels": "int64[t]"})
    assert int(labels.min()) == 0


@pytest.mark.parametrize(
    ("body", "most"),
    [
        (["return torch.stack([table[int(one % 64)] for one in tok])"], 29),
        (["return table[torch.arange(int(tok[0] % 64))]"], 7),
        (["return torch.stack([table[one] for one in tok % 64])"], 7),
        (["y = 0", "for one in tok % 64:", "    y = y + table[one]", "return y"], 7),
        (["y = 0", "for at, one in enumerate(tok % 64):", "    y = y + table[one]", "return y"], 7),
        (["return table[(tok[:, None] % 64).T]"], 7),
        (["return table[(tok % 64).data]"], 7),
        (["assert (tok % 128 < 100).all()", "return table[tok // 128]"], 7),
        (["fits = (tok % 128 < 100).all()", "assert fits", "return table[tok // 128]"], 7),
        (["return table[(tok % 64).gather(0, torch.arange(5))]"], 7),
        (["return table[(tok % 64).index_select(0, torch.arange(5))]"], 7),
        (["return table[2:].view(-1, 3)[tok % 64]"], 7),
        (["return table[(tok % 200).to(torch.int8).long()]"], 7),
        (["return table[(tok % 20).view(torch.int32).long()]"], 7),
        (["return table[torch.nn.functional.embedding(torch.arange(5), (tok % 64)[:, None])]"], 7),
        (["return torch.cat([table, table], dim=table.ndim - 1)[tok]"], 7),
        (["return torch.cat([table, table], table.ndim - 2)[tok]"], 7),
        (["return torch.cat([table, table], dim=0)[tok]"], 59),
        (["return table[tok[:, None] + torch.arange(1, end=4)]"], 7),
        (["return table[tok[:, None] + torch.arange(1, 4)]"], 26),
    ],
    ids=lambda given: "; ".join(given) if isinstance(given, list) else None,
)
def test_what_is_lost_on_the_way_to_the_table_stays_small(body, most):
    assert ends(make(body)) == (0, most)


@pytest.mark.parametrize("index", ["tok % 40 + more % 40", "tok % 40 - more % 40", "tok % 20 + more % 20 + 5"])
@pytest.mark.parametrize("name", ["tok", "more"])
def test_inputs_of_two_remainders_stay_small(index, name):
    assert ends(make(f"table[{index}]", name=name, inputs={"tok": "int64[t]", "more": "int64[t]"})) == (0, 7)


def test_a_remainder_that_is_added_to_an_input_stays_small():
    assert ends(make("table[tok + more % 64]", name="more", inputs={"tok": "int64[t]", "more": "int64[t]"})) == (0, 7)


def test_padding_that_the_dtype_cannot_hold_is_none():
    body = ["valid = labels != -100000", "return logits.gather(1, torch.where(valid, labels, 0).long()[:, None])"]
    labels = make(body, name="labels", inputs={"logits": "float32[t, w]", "labels": "int16[t]"})
    assert ends(labels) == (0, 63)


@pytest.mark.parametrize(
    "inner",
    [
        ["    if i > 5000:", "        if y == -100:", "            continue"],
        ["    for _ in range(0):", "        if y == -100:", "            continue"],
        ["    while i > 5000:", "        if y == -100:", "            continue"],
        ["    if y == -100:", "        continue", "    else:", "        y = int(labels[0])"],
    ],
    ids=["if", "for", "while", "else"],
)
def test_a_branch_keeps_padding_out_no_longer_than_it_lasts(inner):
    body = [*EACH_LABEL, *inner, "    total = total + logits[i, y]", "return total"]
    labels = make(body, name="labels", inputs={"logits": "float32[t, w]", "labels": "int64[t]"})
    assert int(labels.min()) == 0


@pytest.mark.parametrize(
    "lines",
    [
        ["try:", "    k = 5", "except ValueError:", "    pass"],
        ["with contextlib.nullcontext(5) as k:", "    pass"],
        ["with contextlib.suppress(ValueError):", "    int('a')", "    k = 1"],
        ["match 5:", "    case k:", "        pass"],
        ["match [5]:", "    case [*k]:", "        k = k[0]"],
        ["def change():", "    nonlocal k", "    k = 5", "change()"],
        ["def change():", "    nonlocal k", "    k = 5", "k = 0", "change()"],
        ["many = [(k := 5) for _ in range(2)]"],
        ["many = {(k := 5) for _ in range(2)}"],
        ["text = f'{(k := 5)}'"],
        ["from tabnanny import verbose as k"],
    ],
    ids=lambda given: "; ".join(given),
)
def test_nothing_is_known_of_a_name_that_is_bound_in_another_way(lines):
    assert ends(make(["import contextlib", "k = 0", *lines, "return table[tok + k]"])) == (0, 7)


def test_a_walrus_counts_from_its_second_turn_on():
    assert ends(make(["k = 0", "return [(table[tok + k], k := 5) for _ in range(2)]"])) == (0, 7)


def test_what_a_function_gives_may_be_returned_in_a_piece_that_is_not_read():
    helper = "def pick():\n    try:\n        return 5\n    except ValueError:\n        pass\n    return 0"
    assert ends(make("table[tok + pick()]", constants=helper)) == (0, 7)


def test_a_function_may_read_what_is_bound_after_it():
    body = ["def look_up():", "    return table[at + 20]", "at = tok.long()", "return look_up() + table[at]"]
    assert ends(make(body)) == (0, 7)


@pytest.mark.parametrize(
    "again",
    [
        "try:\n    from tabnanny import verbose as K\nexcept ImportError:\n    pass",
        "try:\n    pass\nexcept ImportError as K:\n    pass",
        "from colorsys import *",
    ],
)
def test_a_constant_of_a_module_that_is_bound_again_is_none(again):
    assert ends(make("table[tok + K]", constants=f"K = 4\n{again}")) == (0, 7)


def test_what_is_computed_fits_the_dtype_as_well():
    inputs = {"table": "float32[100000, d]", "tok": "int16[t]"}
    for index, most in (("tok * 40", 819), ("(tok * 40) // 8", 819), ("tok % 20000 * 3", 10922)):
        values = make(f"table[({index}).long()]", inputs=inputs)
        assert most * 0.98 < int(values.max()) <= most


def test_a_counter_that_is_taken_off_leaves_the_values_their_range():
    body = ["y = 0", "for k in range(table.shape[0]):", "    i = tok - k"]
    body += ["    y = y + torch.where((i >= 0)[:, None], table[i], 0)", "return y"]
    assert ends(make(body)) == (0, 29)


def test_where_no_value_is_valid_by_itself_the_usual_ones_come():
    body = ["y = 0", "for k in range(40):", "    i = torch.where(tok >= k, tok - k, 0)"]
    assert ends(make([*body, "    y = y + table.index_select(0, i)", "return y"])) == (0, 7)


def test_where_two_places_have_no_value_in_common_the_usual_ones_come():
    assert ends(make(["i = torch.where(tok >= 40, tok - 40, 0)", "return table.index_select(0, i) + table[tok]"])) == (
        0,
        7,
    )


def test_a_function_may_read_what_is_bound_for_the_whole_module():
    helper = "def look_up(rows):\n    return rows[at + 20]"
    assert ends(make(["global at", "at = tok", "return look_up(table) + table[tok]"], constants=helper)) == (0, 7)


def test_a_remainder_that_is_a_number_of_classes_stays_small():
    body = ["n = int(tok[0] % 64)", "torch.nn.functional.one_hot(torch.arange(3), n + 3)", "return table[n // 64]"]
    assert ends(make(body)) == (0, 7)


def test_what_is_not_clear_stays_small_even_where_a_known_place_takes_something_off():
    assert ends(make(["other = str(tok)", "return table.index_select(0, tok - 5)"])) == (5, 7)
    assert ends(make(["other = str(tok)", "return table[tok - 9]"])) == (0, 7)
