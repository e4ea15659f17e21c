"""The DSA evaluator: which choices of an indexer are right in any order and rounding, and where others are wrong."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import Accepted, Rejected
from flashinfer_bench.bench.evaluators.selection import indexer
from flashinfer_bench.bench.evaluators.selection.indexer import IndexerProblem, find_roles
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import WorkloadFault
from tests.bench.evaluators.judging import Judging
from tests.bench.evaluators.selection.indexers import TOPK, WRONG_INDEXERS, index
from tests.kit.make import make_definition

pytestmark = pytest.mark.cpu

BUNDLED = Path(__file__).resolve().parents[4] / "flashinfer-trace"
SET = TraceSet.from_path(BUNDLED)
INDEXER = "dsa_topk_indexer_fp8_h64_d128_topk64_ps64"
ATTENTION = "dsa_sparse_attention_h16_ckv512_kpe64_topk64_ps64"
PLAIN = {
    "op_type": "dsa_paged",
    "axes": {"b": None, "p": None, "w": None, "k": 4},
    "outputs": {"i": "int32[b, k]"},
    "inputs": {
        "q": "float32[b, 2, 3]",
        "k_cache": "float32[p, 4, 3]",
        "weights": "float32[b, 2]",
        "seq_lens": "int32[b]",
        "block_table": "int32[b, w]",
    },
}


def judging(name=INDEXER, *, batch=4, **settings) -> Judging:
    """Take a bundled workload with a number of sequences."""
    size = "batch_size" if name == INDEXER else "num_tokens"
    workloads = [trace.workload for trace in SET.workloads[name] if trace.workload.axes[size] == batch]
    return Judging(SET.definitions[name], workloads[0], root=BUNDLED, num_trials=1, **settings)


def test_every_right_choice_is_accepted_in_any_order_under_many_seeds():
    for seed in range(15):
        job = judging(batch=(1, 2, 4)[seed % 3], seed=seed)
        made = job.baseline()
        for solution in (
            lambda *given: index(*given)[:, torch.randperm(TOPK)],
            lambda *given: index(*given, rounded=torch.bfloat16),
            job.context.reference.run,
        ):
            assert isinstance(job.check(solution, made), Accepted)


@pytest.mark.parametrize("name", WRONG_INDEXERS)
def test_a_wrong_indexer_is_rejected_under_every_seed(name):
    for seed in range(4):
        assert judging(seed=seed).check(WRONG_INDEXERS[name]).status.value == "INCORRECT_NUMERICAL"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda i, t: i[1, 5].fill_(896), ["896 at [1, 5] is no token", "0 to 895"]),
        (lambda i, t: i[1, 5].copy_(i[1, 9]), ["at [1, 9] is there already, at [1, 5]"]),
        (lambda i, t: i[1, 5].fill_(int(t[2, 0]) * 64), ["at [1, 5] cannot be reached", "7 pages", "sequence 1"]),
        (lambda i, t: i[2, 5].fill_(int(t[2, 0]) * 64 + 20), ["at [2, 5] lies beyond", "sequence 2", "20 tokens"]),
        (lambda i, t: i[1, 5].fill_(-1), ["line 1 holds 63 indices, expected 64", "400 tokens"]),
        (lambda i, t: i.fill_(-0x5A5A5A5B), ["-1515870811 at [0, 0] is no token", "256 of 256"]),
    ],
)
def test_a_wrong_index_is_named_with_its_place(change, words):
    def solution(*given):
        chosen = index(*given)
        change(chosen, given[-1])
        return chosen

    verdict = judging().check(solution)
    assert verdict.correctness.max_absolute_error == math.inf
    assert [word for word in ["'topk_indices'", *words] if word not in verdict.message] == []


def problem_of(scores) -> IndexerProblem:
    """Make one sequence whose tokens have these scores, in pages of two; the last page has number 0."""
    pages = len(scores) // 2
    keys = torch.tensor(scores).reshape(pages, 2, 1).flip(0)
    return IndexerProblem(torch.ones(1, 1, 1), keys, torch.ones(1, 1), [len(scores)], torch.arange(pages).flip(0)[None])


def judge(scores, places, tolerance=1e-3):
    """Judge the choice of some places of a sequence."""
    pages = len(scores) // 2
    tokens = torch.tensor([[(pages - 1 - place // 2) * 2 + place % 2 for place in places]])
    return indexer.judge_indices(problem_of(scores), tokens, tolerance, name="i")


HUNDRED = [110.0, 105.0, 100.0, 99.9, 90.0, 1.0]
ODD = [math.nan, 3.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("scores", "chosen", "tolerance", "word"),
    [
        pytest.param(HUNDRED, [2, 0, 1], 1e-3, None, id="in another order"),
        pytest.param(HUNDRED, [0, 1, 4], 1e-3, "at [0, 2] scores 90", id="too low"),
        pytest.param(HUNDRED, [1, 2, 3], 1e-3, "leaves out token 4, which scores 110", id="the best left out"),
        pytest.param(HUNDRED, [0, 1, 3], 0.0006, None, id="a share of the magnitude"),
        pytest.param(HUNDRED, [0, 1, 3], 0.0004, "scores 99.9", id="a smaller share"),
        pytest.param(ODD, [1, 2], 1e-3, None, id="a score of nan left out"),
        pytest.param(ODD, [0, 3], 1e-3, "scores 1", id="too low beside nan"),
    ],
)
def test_what_rounding_explains_may_go_either_way_and_nothing_else(scores, chosen, tolerance, word):
    verdict = judge(scores, chosen, tolerance)
    assert isinstance(verdict, Accepted if word is None else Rejected)
    assert word is None or word in verdict.message


def test_the_errors_say_how_far_the_worst_choice_is_below_the_score_that_it_had_to_reach():
    found = judge([110.0, 100.0, 99.0, 1.0], [0, 2], 0.1).correctness
    assert (found.max_absolute_error, found.max_relative_error) == pytest.approx((1.0, 1 / 110))
    assert found.extra == {"indices": 2, "wrong": 0, "left_out": 0, "dsa_score_tolerance": 0.1}
    with pytest.raises(WorkloadFault, match="dsa_score_tolerance"):
        judging(extra={"dsa_score_tolerance": 1}).baseline()


def test_a_page_that_the_table_lists_twice_gives_its_tokens_twice():
    problem = replace(problem_of([5.0, 4.0, 3.0, 2.0]), table=torch.tensor([[1, 1]]))
    for chosen, verdict in (([2, 3, 2], Accepted), ([2, 2, 2], Rejected)):
        assert isinstance(indexer.judge_indices(problem, torch.tensor([chosen]), 1e-3, name="i"), verdict)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lengths": [7]}, ["7 tokens", "0 to 6"]),
        ({"table": torch.tensor([[2, 3, 0]])}, ["page 3 at [0, 1]", "3 pages"]),
        ({"keys": torch.zeros(3, 2, 2)}, ["no cache of keys with 1 elements"]),
    ],
)
def test_a_workload_whose_lengths_pages_or_keys_do_not_fit_is_a_fault(change, words):
    definition = make_definition(**PLAIN)
    problem = replace(problem_of([1.0] * 6), **change)
    inputs = [problem.queries, problem.keys, problem.weights, torch.tensor(problem.lengths), problem.table]
    with pytest.raises(WorkloadFault) as fault:
        indexer.read_problem(definition, find_roles(definition), inputs)
    assert all(word in str(fault.value) for word in words)


def test_keys_that_are_not_packed_are_scored_too():
    keys, weights = torch.arange(24.0).reshape(2, 4, 3), torch.tensor([[1.0, -1.0]])
    offer = indexer.offer_tokens(
        IndexerProblem(torch.eye(3)[None, :2], keys, weights, [5], torch.tensor([[1, 0]])), 0.1
    )
    assert (offer.tokens.tolist(), offer.scores.tolist()) == ([[0, 4, 5, 6, 7]], [[-1.0] * 5])
    assert offer.margins[0].tolist() == pytest.approx([0.1, 2.5, 3.1, 3.7, 4.3])


def test_a_reference_that_chooses_by_other_scores_is_a_fault():
    job = judging()
    source = job.definition.reference.replace("torch.relu(", "torch.abs(")
    other = Judging(job.definition.model_copy(update={"reference": source}), job.workload, root=BUNDLED, num_trials=1)
    with pytest.raises(WorkloadFault, match="does not choose by"):
        other.baseline()


def test_only_an_indexer_with_its_five_inputs_is_one():
    inputs = PLAIN["inputs"]
    for other in ({name: inputs[name] for name in list(inputs)[:-1]}, {**inputs, "more": "float32[b, 2]"}):
        assert find_roles(make_definition(**{**PLAIN, "inputs": other})) is None


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
