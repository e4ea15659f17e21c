"""Choices by score: what is right passes in any order and rounding, and what else an index may be is named."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import Accepted, Rejected
from flashinfer_bench.bench.evaluators.selection import dsa
from flashinfer_bench.bench.evaluators.selection.dsa import IndexerProblem, find_roles
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import WorkloadFault
from tests.bench.evaluators.judging import Judging
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

BUNDLED = Path(__file__).resolve().parents[4] / "flashinfer-trace"
SET = TraceSet.from_path(BUNDLED)
INDEXER = "dsa_topk_indexer_fp8_h64_d128_topk64_ps64"
ATTENTION = "dsa_sparse_attention_h16_ckv512_kpe64_topk64_ps64"
PLAIN_INPUTS = {
    "q": "float32[b, 2, 3]",
    "k_cache": "float32[p, 4, 3]",
    "weights": "float32[b, 2]",
    "seq_lens": "int32[b]",
    "block_table": "int32[b, w]",
}


def plain(**inputs):
    axes = {"b": None, "p": None, "w": None, "k": 4}
    return make_definition(op_type="dsa_paged", axes=axes, outputs={"i": "int32[b, k]"}, inputs=inputs)


def judging(name=INDEXER, *, batch=4, **settings) -> Judging:
    """Take a bundled workload with a number of sequences."""
    size = "batch_size" if name == INDEXER else "num_tokens"
    workload = next(trace.workload for trace in SET.workloads[name] if trace.workload.axes[size] == batch)
    return Judging(SET.definitions[name], workload, root=BUNDLED, num_trials=1, **settings)


def test_a_right_choice_is_accepted_in_any_order_and_rounding_and_no_other_one_under_many_seeds():
    for seed in range(15):
        job = judging(batch=(1, 2, 4)[seed % 3], seed=seed)
        made, run = job.baseline(), job.context.reference.run
        signs = torch.randn(made.inputs[0][2].shape, generator=torch.Generator().manual_seed(seed)).sign()
        for by, verdict in ((0.0, Accepted), (1e-3, Accepted), (0.5, Rejected)):

            def solution(q, cache, weights, *rest, run=run, signs=1 + by * signs):
                return run(q, cache, weights * signs, *rest)[:, torch.randperm(64)]

            assert isinstance(job.check(solution, made), verdict)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda i, t: i[1, 5].fill_(896), "896 at [1, 5] is not offered: row 1 has 400 tokens"),
        (lambda i, t: i[2, 5].fill_(int(t[2, 0]) * 64 + 20), "at [2, 5] is not offered: row 2 has 20"),  # beyond it
        (lambda i, t: i[1, 5].fill_(-1), "row 1 holds 63 indices, expected 64"),
    ],
)
def test_a_wrong_index_is_named_with_its_place(change, words):
    job = judging()

    def solution(*given):
        chosen = job.context.reference.run(*given)
        change(chosen, given[-1])
        return chosen

    verdict = job.check(solution)
    assert verdict.correctness.max_absolute_error == math.inf
    assert [word for word in ["'topk_indices'", words] if word not in verdict.message] == []


def problem_of(scores) -> IndexerProblem:
    """Make one sequence whose tokens have these scores, in pages of two; the last page has number 0."""
    pages, one = len(scores) // 2, torch.ones(1, 1)
    keys, table = torch.tensor(scores).reshape(pages, 2, 1).flip(0), torch.arange(pages).flip(0)[None]
    return IndexerProblem(one[None], keys, one, torch.tensor([len(scores)]), table)


HUNDRED = [110.0, 105.0, 100.0, 99.9, 90.0, 1.0]
ODD = [math.nan, 3.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("scores", "chosen", "tolerance", "word"),
    [
        pytest.param(HUNDRED, [2, 0, 1], 1e-3, None, id="in another order"),
        pytest.param(HUNDRED, [1, 2, 3], 1e-3, "leaves out token 4, which scores 110", id="the best left out"),
        pytest.param(HUNDRED, [0, 1, 3], 0.0006, None, id="a share of the magnitude"),
        pytest.param(HUNDRED, [0, 1, 3], 0.0004, "scores 99.9", id="a smaller share"),
        pytest.param(ODD, [0, 3], 1e-3, "scores 1", id="too low beside nan"),
    ],
)
def test_what_rounding_explains_may_go_either_way_and_nothing_else(scores, chosen, tolerance, word):
    pages = len(scores) // 2
    tokens = torch.tensor([[(pages - 1 - place // 2) * 2 + place % 2 for place in chosen]])
    verdict = dsa.judge_indices(problem_of(scores), tokens, tolerance, name="i")
    assert isinstance(verdict, Accepted) if word is None else word in verdict.message


def test_the_errors_say_how_far_the_worst_choice_is_below_the_score_that_it_had_to_reach():
    found = dsa.judge_indices(problem_of([110.0, 100.0, 99.0, 1.0]), torch.tensor([[2, 0]]), 0.1, name="i").correctness
    assert (found.max_absolute_error, found.max_relative_error) == pytest.approx((1.0, 1 / 110))
    assert found.extra == {"indices": 2, "wrong": 0, "left_out": 0, "dsa_score_tolerance": 0.1}


def test_a_page_that_the_table_lists_twice_gives_its_tokens_twice():
    problem = replace(problem_of([5.0, 4.0, 3.0, 2.0]), table=torch.tensor([[1, 1]]))
    for chosen, verdict in (([2, 3, 2], Accepted), ([2, 2, 2], Rejected)):
        assert isinstance(dsa.judge_indices(problem, torch.tensor([chosen]), 1e-3, name="i"), verdict)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lengths": torch.tensor([7])}, ["7 at [0]", "0 to 6"]),
        ({"table": torch.tensor([[2, 3, 0]])}, ["3 at [0, 1]", "0 to 2"]),
        ({"keys": torch.zeros(3, 2, 2)}, ["no cache of keys with 1 elements"]),
    ],
)
def test_a_workload_whose_lengths_pages_or_keys_do_not_fit_is_a_fault(change, words):
    definition, problem = plain(**PLAIN_INPUTS), replace(problem_of([1.0] * 6), **change)
    with pytest.raises(WorkloadFault) as fault:
        dsa.read_problem(definition, find_roles(definition), list(vars(problem).values()))
    assert all(word in str(fault.value) for word in words)


def test_a_reference_that_chooses_by_other_scores_is_a_fault():
    job = judging()
    source = job.definition.reference.replace("torch.relu(", "torch.abs(")
    other = Judging(job.definition.model_copy(update={"reference": source}), job.workload, root=BUNDLED, num_trials=1)
    with pytest.raises(WorkloadFault, match="does not choose by"):
        other.baseline()


@pytest.mark.parametrize("change", [None, lambda o, lse: lse.nan_to_num_(neginf=0.0), lambda o, lse: o[0].zero_()])
def test_attention_is_compared_element_by_element_also_where_nothing_is_seen(change):
    job = judging(ATTENTION)

    def solution(*given):
        outputs = [one.clone() for one in job.context.reference(list(given))]
        if change is not None:
            change(*outputs)
        return outputs

    assert int((job.baseline().outputs[0][1] == -math.inf).sum()) > 0
    assert isinstance(job.check(solution), Accepted if change is None else Rejected)


RIGHT = "def run(scores):\n    found = scores.topk(2)\n    return found.values, found.indices\n"
FIRST = "def run(scores):\n    return scores[:, :2].clone(), scores[:, :2].long() * 0\n"
SCORES = torch.tensor([[3.0, 1.0, 3.0, 2.0], [0.0, 5.0, 5.0, 5.0]])
TABLE = {"src_page_table": torch.tensor([[40, 30, 20, 10], [7, 5, 5, 6]])}
OFFSETS = {"offsets": torch.tensor([10, 20])}


def top_k(given=(), values=True, reference=RIGHT) -> Judging:
    more = {name: f"int32[rows{', n' if value.ndim == 2 else ''}]" for name, value in dict(given).items()}
    outputs = {"values": "float32[rows, 2]"} if values else {}
    definition = make_definition(
        op_type="top_k",
        axes={"rows": None, "n": None},
        inputs={"scores": "float32[rows, n]", **more},
        outputs={**outputs, "indices": "int64[rows, 2]"},
        reference=reference,
    )
    return Judging(definition, make_workload(axes={"rows": 3, "n": 9}, inputs={}))


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
    verdict = top_k(given, values=False).judge([SCORES, *given.values()], [torch.tensor(indices)])
    assert isinstance(verdict, Accepted) if words is None else words in verdict.message


def test_values_have_to_be_the_scores_of_the_indices():
    indices = torch.tensor([[0, 2], [2, 1]])
    for given, shift in (({}, 0), (OFFSETS, OFFSETS["offsets"][:, None])):
        for value, found in ((3.0, Accepted), (3.5, Rejected)):
            made = [torch.tensor([[3.0, value], [5.0, 5.0]]), indices + shift]
            verdict = top_k(given).judge([SCORES, *given.values()], made)
            assert isinstance(verdict, found)
    assert "the value at [0, 1] is 3.5" in verdict.message


def test_the_evaluator_of_top_k_accepts_and_rejects_also_a_reference():
    assert isinstance(top_k().check(lambda scores: list(scores.topk(2))), Accepted)
    assert top_k().check(lambda scores: list(scores.topk(2, largest=False))).status.value == "INCORRECT_NUMERICAL"
    with pytest.raises(WorkloadFault, match="does not select the largest scores"):
        top_k(reference=FIRST).baseline()
