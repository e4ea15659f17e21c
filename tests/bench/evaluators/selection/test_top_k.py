"""The TopK evaluator: what selects the largest scores passes in any order; what does not is named."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import Accepted, Rejected
from flashinfer_bench.bench.evaluators.selection.top_k import TopKEvaluator, judge
from flashinfer_bench.errors import WorkloadFault
from tests.bench.evaluators.judging import Judging
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

RIGHT = "def run(scores):\n    found = scores.topk(2)\n    return found.values, found.indices\n"
FIRST = "def run(scores):\n    return scores[:, :2].clone(), scores[:, :2].long() * 0\n"
SCORES = torch.tensor([[3.0, 1.0, 3.0, 2.0], [0.0, 5.0, 5.0, 5.0]])
TABLE = {"src_page_table": torch.tensor([[40, 30, 20, 10], [7, 5, 5, 6]])}
OFFSETS = {"offsets": torch.tensor([10, 20])}


def definition(reference=RIGHT, values=True, **given):
    more = {name: f"int32[rows{', n' if value.ndim == 2 else ''}]" for name, value in given.items()}
    outputs = {"values": "float32[rows, 2]"} if values else {}
    return make_definition(
        op_type="top_k",
        axes={"rows": None, "n": None},
        inputs={"scores": "float32[rows, n]", **more},
        outputs={**outputs, "indices": "int64[rows, 2]"},
        reference=reference,
    )


@pytest.mark.parametrize(
    ("indices", "given", "words"),
    [
        ([[2, 0], [3, 1]], {}, None),
        ([[0, 2], [3, 2]], {}, None),
        ([[0, 0], [1, 2]], {}, "0 at [0, 1] is there already, at [0, 0]"),
        ([[0, 3], [1, 2]], {}, "token 3 at [0, 1] scores 2; the 2th best of 4 scores 3"),
        ([[0, 2], [1, 4]], {}, "4 at [1, 1] points to no score"),
        ([[0, -1], [1, 2]], {}, "line 0 holds 1 indices, expected 2"),
        ([[10, 12], [23, 21]], OFFSETS, None),
        ([[0, 2], [23, 21]], OFFSETS, "0 at [0, 0] points to no score"),
        ([[0, 2], [1, 0]], {"lengths": torch.tensor([1, 2])}, "2 at [0, 1] points to no score"),
        ([[20, 40], [6, 5]], TABLE, None),
        ([[40, 30], [5, 5]], TABLE, "token 30 at [0, 1] scores 1"),
        ([[40, 20], [5, 5]], {**TABLE, "lengths": torch.tensor([4, 2])}, "5 at [1, 1] is there already"),
        ([[40, 20], [40, 20]], {**TABLE, "row_to_batch": torch.tensor([0, 0])}, "token 40 at [1, 0] scores 0"),
    ],
)
def test_a_selection_is_right_in_any_order_and_else_it_is_named(indices, given, words):
    verdict = judge(definition(values=False, **given), [SCORES, *given.values()], [torch.tensor(indices)])
    assert isinstance(verdict, Accepted) if words is None else words in verdict.message


def test_values_have_to_be_the_scores_of_the_indices():
    indices = torch.tensor([[0, 2], [2, 1]])
    for given, shift in (({}, 0), (OFFSETS, OFFSETS["offsets"][:, None])):
        for value, found in ((3.0, Accepted), (3.5, Rejected)):
            made = [torch.tensor([[3.0, value], [5.0, 5.0]]), indices + shift]
            verdict = judge(definition(**given), [SCORES, *given.values()], made)
            assert isinstance(verdict, found)
    assert "the value at [0, 1] is 3.5" in verdict.message


def test_the_evaluator_accepts_and_rejects_also_a_reference():
    job = Judging(definition(), make_workload(axes={"rows": 3, "n": 9}, inputs={}))
    assert job.evaluator is TopKEvaluator
    assert isinstance(job.check(lambda scores: list(scores.topk(2))), Accepted)
    assert job.check(lambda scores: list(scores.topk(2, largest=False))).status.value == "INCORRECT_NUMERICAL"
    job = Judging(definition(FIRST), make_workload(axes={"rows": 3, "n": 9}, inputs={}))
    with pytest.raises(WorkloadFault, match="does not select the largest scores"):
        job.baseline()
