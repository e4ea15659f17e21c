"""The DSA evaluator: which choices of an indexer are right in any order and rounding, and where others are wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import Accepted, Rejected
from flashinfer_bench.bench.evaluators.selection.dsa import DSAEvaluator
from flashinfer_bench.bench.evaluators.selection.indexer import (
    IndexerProblem,
    find_roles,
    judge_indices,
    offer_tokens,
    read_problem,
)
from flashinfer_bench.data import EvaluationStatus, TraceSet
from flashinfer_bench.errors import WorkloadFault
from tests.bench.evaluators.judging import Judging
from tests.bench.evaluators.selection.sparse_attention import TOPK, WRONG_ATTENTION, WRONG_INDEXERS, attend, index
from tests.kit.make import make_definition

pytestmark = pytest.mark.cpu

BUNDLED = Path(__file__).resolve().parents[4] / "flashinfer-trace"
SET = TraceSet.from_path(BUNDLED)
INDEXER = "dsa_topk_indexer_fp8_h64_d128_topk64_ps64"
ATTENTION = "dsa_sparse_attention_h16_ckv512_kpe64_topk64_ps64"
AXES = {"b": None, "p": None, "w": None, "k": 4}
PLAIN = {
    "q": "float32[b, 2, 3]",
    "k_cache": "float32[p, 4, 3]",
    "weights": "float32[b, 2]",
    "seq_lens": "int32[b]",
    "block_table": "int32[b, w]",
}


def judging(name: str, *, batch: int | None = None, **settings) -> Judging:
    """Take a bundled workload: the one with most sequences, unless a number says which."""
    workloads = [trace.workload for trace in SET.workloads[name]]
    size = "batch_size" if name == INDEXER else "num_tokens"
    wanted = max(workload.axes[size] for workload in workloads) if batch is None else batch
    workload = next(workload for workload in workloads if workload.axes[size] == wanted)
    return Judging(SET.definitions[name], workload, root=BUNDLED, num_trials=1, **settings)


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_every_right_choice_is_accepted_in_any_order_under_many_seeds(batch):
    def shuffled(*given):
        return index(*given)[:, torch.randperm(TOPK)]

    def rounds_keys(*given):
        return index(*given, rounded=torch.bfloat16)

    for seed in range(15):
        job = judging(INDEXER, batch=batch, seed=seed)
        made = job.baseline()
        for solution in (shuffled, rounds_keys, job.context.reference.run):
            assert isinstance(job.check(solution, made), Accepted)


@pytest.mark.parametrize("fault", WRONG_INDEXERS)
def test_a_wrong_indexer_is_rejected_under_every_seed(fault):
    for seed in range(5):
        verdict = judging(INDEXER, seed=seed).check(WRONG_INDEXERS[fault])
        assert isinstance(verdict, Rejected), fault
        assert verdict.status is EvaluationStatus.INCORRECT_NUMERICAL


def spoil(change: Callable[[torch.Tensor, torch.Tensor], object]) -> Callable[..., torch.Tensor]:
    """Choose rightly, then change the indices; the change gets them and the block table."""

    def solution(*given):
        chosen = index(*given)
        change(chosen, given[-1])
        return chosen

    return solution


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda i, t: i[1, 5].fill_(896), ["896 at [1, 5] is no token", "0 to 895"]),
        (lambda i, t: i[1, 5].fill_(-2), ["-2 at [1, 5] is no token", "-1 is padding"]),
        (lambda i, t: i[1, 5].copy_(i[1, 9]), ["at [1, 9] is there already, at [1, 5]"]),
        (lambda i, t: i[1, 5].fill_(int(t[2, 0]) * 64), ["at [1, 5] cannot be reached", "7 pages", "sequence 1"]),
        (lambda i, t: i[2, 5].fill_(int(t[2, 0]) * 64 + 20), ["at [2, 5] lies beyond", "sequence 2", "20 tokens"]),
        (lambda i, t: i[1, 5].fill_(-1), ["line 1 holds 63 indices, expected 64", "400 tokens"]),
        (lambda i, t: i[2, 20].fill_(0), ["0 at [2, 20] cannot be reached"]),
        (lambda i, t: i[2].fill_(-1), ["line 2 holds 0 indices, expected 20"]),
        (lambda i, t: i.fill_(-0x5A5A5A5B), ["-1515870811 at [0, 0] is no token", "256 of 256"]),
    ],
    ids=[
        "beyond the cache",
        "negative",
        "twice",
        "page of another",
        "beyond the end",
        "too few",
        "zero as padding",
        "line skipped",
        "unwritten",
    ],
)
def test_a_wrong_index_is_named_with_its_place(change, words):
    verdict = judging(INDEXER).check(spoil(change))
    assert isinstance(verdict, Rejected)
    assert verdict.correctness is not None
    assert verdict.correctness.max_absolute_error == math.inf
    assert all(word in verdict.message for word in ["'topk_indices'", *words]), verdict.message


def problem_of(scores: list[float], *, page_size: int = 2) -> IndexerProblem:
    """Make one sequence whose tokens have these scores; the last token has number 0."""
    pages = len(scores) // page_size
    keys = torch.tensor(scores).reshape(pages, page_size, 1).flip(0)
    table = torch.arange(pages).flip(0)[None]
    return IndexerProblem(torch.ones(1, 1, 1), keys, torch.ones(1, 1), [len(scores)], table)


def tokens_of(places: list[int], count: int, page_size: int = 2) -> torch.Tensor:
    pages = count // page_size
    return torch.tensor([[(pages - 1 - place // page_size) * page_size + place % page_size for place in places]])


@pytest.mark.parametrize(
    ("chosen", "word"),
    [
        ([0, 1, 2], None),
        ([2, 0, 1], None),
        ([0, 1, 3], None),
        ([0, 1, 4], "at [0, 2] scores 90"),
        ([1, 2, 3], "leaves out token 4, which scores 110"),
    ],
    ids=["best", "in another order", "a tie within rounding", "too low", "best one left out"],
)
def test_a_tie_within_the_tolerance_may_go_either_way_and_nothing_else(chosen, word):
    scores = [110.0, 105.0, 100.0, 99.9, 90.0, 1.0]
    verdict = judge_indices(problem_of(scores), tokens_of(chosen, 6), 1e-3, name="i")
    assert isinstance(verdict, Accepted if word is None else Rejected)
    assert word is None or word in verdict.message


def test_the_tolerance_is_a_share_of_the_magnitude_and_may_be_set():
    scores = [110.0, 100.0, 99.9, 1.0]
    for tolerance, passes in ((0.0004, False), (0.0006, True)):
        verdict = judge_indices(problem_of(scores), tokens_of([0, 2], 4), tolerance, name="i")
        assert isinstance(verdict, Accepted) == passes
    with pytest.raises(WorkloadFault, match="dsa_score_tolerance"):
        judging(INDEXER, extra={"dsa_score_tolerance": 1}).baseline()


def test_the_errors_say_how_far_the_worst_choice_is_below_the_score_that_it_had_to_reach():
    verdict = judge_indices(problem_of([110.0, 100.0, 99.0, 1.0]), tokens_of([0, 2], 4), 0.1, name="i")
    assert isinstance(verdict, Accepted)
    assert verdict.correctness.max_absolute_error == pytest.approx(1.0)
    assert verdict.correctness.max_relative_error == pytest.approx(1 / 110)


def test_a_page_that_the_table_lists_twice_gives_its_tokens_twice():
    problem = replace(problem_of([5.0, 4.0, 3.0, 2.0]), table=torch.tensor([[1, 1]]))
    assert isinstance(judge_indices(problem, torch.tensor([[2, 3, 2]]), 1e-3, name="i"), Accepted)
    assert isinstance(judge_indices(problem, torch.tensor([[2, 2, 2]]), 1e-3, name="i"), Rejected)


def test_tokens_with_equal_scores_may_all_be_chosen():
    assert isinstance(judge_indices(problem_of([0.0] * 6), tokens_of([4, 1], 6), 0.0, name="i"), Accepted)


def test_nothing_is_held_against_a_choice_by_scores_that_are_not_finite():
    problem = problem_of([math.nan, 3.0, 2.0, 1.0])
    assert isinstance(judge_indices(problem, tokens_of([0, 1], 4), 1e-3, name="i"), Accepted)
    assert isinstance(judge_indices(problem, tokens_of([1, 2], 4), 1e-3, name="i"), Accepted)
    assert isinstance(judge_indices(problem, tokens_of([0, 3], 4), 1e-3, name="i"), Rejected)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lengths": [7]}, ["7 tokens", "0 to 6"]),
        ({"lengths": [-1]}, ["-1 tokens"]),
        ({"table": torch.tensor([[2, 3, 0]])}, ["page 3 at [0, 1]", "3 pages"]),
    ],
)
def test_a_workload_whose_lengths_or_pages_are_out_of_range_is_a_fault(change, words):
    definition = make_definition(op_type="dsa_paged", axes=AXES, inputs=PLAIN, outputs={"i": "int32[b, k]"})
    roles = find_roles(definition)
    problem = replace(problem_of([1.0] * 6), **change)
    inputs = [problem.queries, problem.keys, problem.weights, torch.tensor(problem.lengths), problem.table]
    with pytest.raises(WorkloadFault) as fault:
        read_problem(definition, roles, inputs)
    assert all(word in str(fault.value) for word in words)


def test_keys_that_are_not_packed_are_scored_too():
    problem = IndexerProblem(
        torch.eye(3)[None, :2],
        torch.arange(24.0).reshape(2, 4, 3),
        torch.tensor([[1.0, -1.0]]),
        [5],
        torch.tensor([[1, 0]]),
    )
    offer = offer_tokens(problem, 0.1)
    assert offer.tokens.tolist() == [[0, 4, 5, 6, 7]]
    assert offer.scores.tolist() == [[-1.0] * 5]
    assert offer.margins[0].tolist() == pytest.approx([0.1, 2.5, 3.1, 3.7, 4.3])


def test_a_reference_that_chooses_by_other_scores_is_a_fault():
    job = judging(INDEXER)
    source = job.definition.reference.replace("torch.relu(", "torch.abs(")
    other = Judging(job.definition.model_copy(update={"reference": source}), job.workload, root=BUNDLED, num_trials=1)
    with pytest.raises(WorkloadFault, match="does not choose by"):
        other.baseline()


def test_both_spellings_and_both_kinds_are_taken():
    for op_type in ("dsa_paged", "dsa-paged"):
        assert DSAEvaluator.can_evaluate(make_definition(op_type=op_type))
    assert find_roles(SET.definitions[ATTENTION]) is None
    without_weights = {name: spec for name, spec in PLAIN.items() if name != "weights"}
    parts = {"op_type": "dsa_paged", "axes": AXES, "outputs": {"i": "int32[b, k]"}}
    assert find_roles(make_definition(inputs=PLAIN, **parts)) is not None
    assert find_roles(make_definition(inputs=without_weights, **parts)) is None
    assert find_roles(make_definition(inputs={**PLAIN, "more": "float32[b, 2]"}, **parts)) is None


def test_right_attention_is_accepted_under_many_seeds():
    for seed in range(15):
        job = judging(ATTENTION, batch=4, seed=seed)
        assert int((job.baseline().outputs[0][1] == -math.inf).sum()) > 0
        assert isinstance(job.check(attend), Accepted)


@pytest.mark.parametrize("fault", WRONG_ATTENTION)
def test_wrong_attention_is_rejected_under_every_seed(fault):
    for seed in range(3):
        assert isinstance(judging(ATTENTION, batch=4, seed=seed).check(WRONG_ATTENTION[fault]), Rejected), fault


def test_a_definition_without_an_lse_is_judged_by_its_output():
    definition = SET.definitions[ATTENTION]
    alone = definition.model_copy(
        update={
            "outputs": {"output": definition.outputs["output"]},
            "reference": definition.reference.replace("return output, lse", "return output"),
        }
    )
    job = Judging(alone, judging(ATTENTION).workload, root=BUNDLED, num_trials=1)
    assert isinstance(job.check(lambda *given: attend(*given)[0]), Accepted)
    assert isinstance(job.check(lambda *given: attend(*given, rope=0.0)[0]), Rejected)
