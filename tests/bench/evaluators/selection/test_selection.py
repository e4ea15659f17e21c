"""Choices by score: right choices pass in any order and rounding, and each error of an index is named."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flashinfer_bench.bench.evaluators.selection import dsa
from flashinfer_bench.bench.evaluators.selection.dsa import IndexerProblem, find_roles
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import WorkloadFault
from tests.bench.evaluators.judging import Judging, define, expect

pytestmark = pytest.mark.cpu


def problem_of(scores, **changes):
    """Make one sequence whose tokens have these scores, in pages of two; the last page has number 0."""
    pages, one = len(scores) // 2, torch.ones(1, 1)
    keys, table = torch.tensor(scores).reshape(pages, 2, 1).flip(0), torch.arange(pages).flip(0)[None]
    return replace(IndexerProblem(one[None], keys, one, torch.tensor([len(scores)]), table), **changes)


HUNDRED, ODD = [110.0, 105.0, 100.0, 99.9, 90.0, 1.0], [math.nan, 3.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("scores", "chosen", "tolerance", "words"),
    [
        (HUNDRED, [2, 0, 1], 1e-3, None),  # in another order
        (HUNDRED, [1, 2, 3], 1e-3, "leaves out token 4, which scores 110"),
        (HUNDRED, [0, 1, 3], 0.0006, None),  # a share of the magnitude
        (HUNDRED, [0, 1, 3], 0.0004, "scores 99.9"),
        (ODD, [0, 3], 1e-3, "scores 1"),  # too low next to nan
    ],
)
def test_only_choices_within_rounding_may_differ(scores, chosen, tolerance, words):
    pages = len(scores) // 2
    tokens = torch.tensor([[(pages - 1 - place // 2) * 2 + place % 2 for place in chosen]])
    verdict = dsa.judge_indices(problem_of(scores), tokens, tolerance, name="i")
    expect(verdict, words)


BUNDLED = Path(__file__).resolve().parents[4] / "flashinfer-trace"
PLAIN = define(
    {
        "q": "float32[b, 2, 3]",
        "k_cache": "float32[p, 4, 3]",
        "weights": "float32[b, 2]",
        "seq_lens": "int32[b]",
        "block_table": "int32[b, w]",
    },
    outputs={"i": "int32[b, k]"},
    axes={"k": 4},
    op_type="dsa_paged",
)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lengths": torch.tensor([7])}, ["7 at [0]", "0 to 6"]),
        ({"table": torch.tensor([[2, 3, 0]])}, ["3 at [0, 1]", "0 to 2"]),
        ({"keys": torch.zeros(3, 2, 2)}, ["no cache of keys with 1 elements"]),
    ],
)
def test_a_workload_whose_lengths_pages_or_keys_do_not_fit_is_a_fault(change, words):
    with pytest.raises(WorkloadFault) as fault:
        dsa.read_problem(PLAIN, find_roles(PLAIN), list(vars(problem_of([1.0] * 6, **change)).values()))
    assert all(word in str(fault.value) for word in words)


# Top-k of scores, with tables, offsets and lengths.

RIGHT = "found = scores.topk(2)\nreturn found.values, found.indices"
SCORES = torch.tensor([[3.0, 1.0, 3.0, 2.0], [0.0, 5.0, 5.0, 5.0]])
TABLE = {"src_page_table": torch.tensor([[40, 30, 20, 10], [7, 5, 5, 6]])}
OFFSETS = {"offsets": torch.tensor([10, 20])}


def top_k(given=(), values=True, body=RIGHT):
    more = {name: f"int32[rows{', n' if value.ndim == 2 else ''}]" for name, value in dict(given).items()}
    outputs = {**({"values": "float32[rows, 2]"} if values else {}), "indices": "int64[rows, 2]"}
    return Judging(
        define({"scores": "float32[rows, n]", **more}, body, outputs=outputs, op_type="top_k"), {"rows": 3, "n": 9}
    )


@pytest.mark.parametrize(
    ("indices", "given", "words"),
    [
        ([[2, 0], [3, 1]], {}, None),
        ([[0, 0], [1, 2]], {}, "0 at [0, 1] is twice"),
        ([[0, 3], [1, 2]], {}, "token 3 at [0, 1] scores 2; the 2th best of 4 scores 3"),
        ([[0, -1], [1, 2]], {}, "row 0 holds 1 indices, expected 2"),
        ([[10, 12], [23, 21]], OFFSETS, None),
        ([[0, 2], [1, 0]], {"lengths": torch.tensor([1, 2])}, "2 at [0, 1] is not offered"),
        ([[20, 40], [6, 5]], TABLE, None),
        ([[40, 20], [5, 5]], {**TABLE, "lengths": torch.tensor([4, 2])}, "5 at [1, 1] is twice"),
        ([[40, 20], [40, 20]], {**TABLE, "row_to_batch": torch.tensor([0, 0])}, "token 40 at [1, 0] scores 0"),
    ],
)
def test_a_selection_is_right_in_any_order_and_else_it_is_named(indices, given, words):
    expect(top_k(given, values=False).judge([SCORES, *given.values()], [torch.tensor(indices)]), words)


@pytest.mark.parametrize("given", [{}, OFFSETS])
def test_values_have_to_be_the_scores_of_the_indices(given):
    indices = torch.tensor([[0, 2], [2, 1]]) + given.get("offsets", torch.tensor(0))[..., None]
    for value, words in ((3.0, None), (3.5, "the value at [0, 1] is 3.5")):
        made = [torch.tensor([[3.0, value], [5.0, 5.0]]), indices]
        expect(top_k(given).judge([SCORES, *given.values()], made), words)


def test_the_evaluator_of_top_k_accepts_and_rejects():
    expect(top_k().check(lambda scores: list(scores.topk(2))), None)
    assert top_k().check(lambda scores: list(scores.topk(2, largest=False))).status.value == "INCORRECT_NUMERICAL"


def by_other_scores():
    name, trace_set = "dsa_topk_indexer_fp8_h64_d128_topk64_ps64", TraceSet.from_path(BUNDLED)
    source = trace_set.definitions[name].reference.replace("torch.relu(", "torch.abs(")
    definition = trace_set.definitions[name].model_copy(update={"reference": source})
    return Judging(definition, trace_set.workloads[name][0].workload, root=BUNDLED, num_trials=1)


FIRST = "return scores[:, :2].clone(), scores[:, :2].long() * 0"
OTHERS = [(by_other_scores, "not choose by"), (lambda: top_k(body=FIRST), "does not select the largest scores")]


@pytest.mark.parametrize(("job", "words"), OTHERS)
def test_a_reference_that_selects_in_another_way_is_a_fault(job, words):
    with pytest.raises(WorkloadFault, match=words):
        job().baseline()
