"""The TopK evaluator: what selects the largest scores passes in any order; what does not is named."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import Accepted, Rejected
from flashinfer_bench.bench.evaluators.selection.top_k import TopKEvaluator, find_problem
from flashinfer_bench.errors import WorkloadFault
from tests.bench.evaluators.judging import Judging
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

RIGHT = "def run(scores):\n    found = scores.topk(2)\n    return found.values, found.indices\n"
FIRST = "def run(scores):\n    return scores[:, :2].clone(), scores[:, :2].long() * 0\n"
SCORES = torch.tensor([[3.0, 1.0, 3.0, 2.0], [0.0, 5.0, 5.0, 5.0]])


def definition(reference=RIGHT, **inputs):
    given = {"scores": "float32[rows, n]", **inputs}
    outputs = {"values": "float32[rows, 2]", "indices": "int64[rows, 2]"}
    return make_definition(
        op_type="top_k", axes={"rows": None, "n": None}, inputs=given, outputs=outputs, reference=reference
    )


def problem(indices, values=None, **given):
    indices = torch.tensor(indices)
    values = SCORES.gather(1, indices.clamp(0, 3)) if values is None else torch.tensor(values)
    return find_problem(definition(**dict.fromkeys(given, "int32[rows]")), [SCORES, *given.values()], [values, indices])


@pytest.mark.parametrize("indices", [[[0, 2], [1, 2]], [[2, 0], [3, 1]], [[0, 2], [3, 2]]])
def test_ties_and_any_order_are_right(indices):
    assert problem(indices) is None


@pytest.mark.parametrize(
    ("indices", "words"),
    [
        ([[0, 0], [1, 2]], "row 0 has an index twice"),
        ([[0, 3], [1, 2]], "rank 1 in row 0 should be 3, the chosen one is 2"),
        ([[0, 2], [1, 4]], "index 4 in row 1 points to no score"),
        ([[0, 2], [1, -2]], "index -2 in row 1 points to no score"),
        ([[0, -1], [1, 2]], "row 0 has 1 indices; there should be 2"),
    ],
)
def test_a_wrong_selection_is_named(indices, words):
    assert words in problem(indices)


def test_values_have_to_be_the_scores_of_the_indices():
    assert "the value at [0, 1]" in problem([[0, 2], [1, 2]], [[3.0, 3.5], [5.0, 5.0]])


def test_offsets_are_taken_off():
    assert problem([[10, 12], [23, 21]], [[3.0, 3.0], [5.0, 5.0]], offsets=torch.tensor([10, 20])) is None
    assert "points to no score" in problem([[0, 2], [23, 21]], offsets=torch.tensor([10, 20]))


def test_a_short_row_is_filled_with_minus_one():
    shape = {"indices": "int32[rows, 2]"}
    short = make_definition(
        op_type="top_k",
        axes={"rows": None, "n": None},
        inputs={"scores": "float32[rows, n]", "lengths": "int32[rows]"},
        outputs=shape,
        reference="def run(scores, lengths):\n    return scores\n",
    )
    lengths = torch.tensor([1, 2])
    assert find_problem(short, [SCORES, lengths], [torch.tensor([[0, -1], [1, 0]])]) is None
    assert "points to no score" in find_problem(short, [SCORES, lengths], [torch.tensor([[0, 2], [1, 0]])])


def test_the_evaluator_accepts_and_rejects():
    job = Judging(definition(), make_workload(axes={"rows": 3, "n": 9}, inputs={}))
    assert job.evaluator is TopKEvaluator
    assert isinstance(job.check(lambda scores: list(scores.topk(2))), Accepted)
    wrong = job.check(lambda scores: list(scores.topk(2, largest=False)))
    assert isinstance(wrong, Rejected)
    assert wrong.status.value == "INCORRECT_NUMERICAL"


def test_a_reference_that_selects_something_else_is_a_fault():
    job = Judging(definition(FIRST), make_workload(axes={"rows": 3, "n": 9}, inputs={}))
    with pytest.raises(WorkloadFault, match="does not select the largest scores"):
        job.baseline()
