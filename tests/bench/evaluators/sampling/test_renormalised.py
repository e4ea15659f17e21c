"""The Renormalised evaluator: rows that keep the largest and sum to one pass; what else a row may hold is named."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import Accepted
from flashinfer_bench.bench.evaluators.sampling.renormalised import RenormalisedEvaluator, find_problem
from flashinfer_bench.errors import WorkloadFault
from tests.bench.evaluators.judging import Judging
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

ROW = torch.tensor([[0.4, 0.3, 0.1, 0.1, 0.06, 0.04]])
TOP_P = """import torch
def run(probs, top_p):
    ordered = probs.sort(dim=-1, descending=True)
    kept = ordered.values.cumsum(-1) - ordered.values < top_p
    out = torch.zeros_like(probs).scatter(-1, ordered.indices, ordered.values * kept)
    return out / out.sum(-1, keepdim=True)
"""


def definition(reference=TOP_P):
    return make_definition(
        op_type="sampling",
        axes={"rows": None, "n": None},
        inputs={"probs": "float32[rows, n]", "top_p": "float32"},
        outputs={"out": "float32[rows, n]"},
        reference=reference,
    )


def rescaled(*entries, scale=1.0):
    kept = torch.zeros_like(ROW)
    kept[0, list(entries)] = ROW[0, list(entries)]
    return kept / kept.sum() * scale


def problem(got, wanted, top_k=None):
    return find_problem(ROW, got, rescaled(*wanted), rtol=1e-3, top_k=top_k)


@pytest.mark.parametrize(
    ("kept", "wanted", "top_k"),
    [
        ((0, 1, 2), (0, 1, 3), 3),  # ties either way
        ((0, 1, 2, 3), (0, 1, 2), 3),
        ((0, 1, 2, 3), (0, 1, 2), None),
    ],
)
def test_the_largest_pass_and_ties_may_stay_or_go(kept, wanted, top_k):
    assert problem(rescaled(*kept), wanted, top_k) is None


@pytest.mark.parametrize(
    ("got", "wanted", "top_k", "words"),
    [
        (torch.zeros_like(ROW), (0,), 1, "row 0 keeps 0 entries, the reference 1; 1 of 1 rows"),
        (rescaled(0, 1, scale=1.25), (0, 1), 2, "2 of 2 kept values are off"),
        (rescaled(0, 1, scale=-1.0), (0, 1), 2, "2 of 6 values are no probabilities"),
        (ROW.clone(), (0, 1), 2, "keeps 6 entries, the reference 2"),
        (rescaled(0, 2), (0, 1), 2, "row 0 keeps 0.1 and drops 0.3, which is larger"),
        (rescaled(0, 1), (0, 1, 2), 3, "keeps 2 entries, the reference 3"),  # the smallest ties with another
        (rescaled(0, 1, 2, 3, 4), (0, 1, 2, 3), None, "keeps 5 entries, the reference 4"),
    ],
)
def test_wrong_rows_are_named(got, wanted, top_k, words):
    assert words in (problem(got, wanted, top_k) or "")


def test_a_nucleus_may_differ_by_what_rounding_of_its_sum_explains():
    weights = torch.full((2, 100_000), 1e-5) * torch.linspace(2, 0.01, 100_000)
    wanted, less, much_less = weights.clone(), weights.clone(), weights.clone()
    wanted[:, 60_000:], less[:, 59_990:], much_less[:, 59_000:] = 0, 0, 0
    rows = [row / row.sum(dim=1, keepdim=True) for row in (wanted, less, much_less)]
    assert find_problem(weights, rows[1], rows[0], rtol=1e-3) is None
    assert "2 of 2 rows keep the wrong ones" in (find_problem(weights, rows[2], rows[0], rtol=1e-3) or "")


def test_the_evaluator_accepts_and_rejects_also_a_reference():
    job = Judging(definition(), make_workload(axes={"rows": 5, "n": 4096}, inputs={"top_p": 0.5}), rtol=1e-3)
    assert job.evaluator is RenormalisedEvaluator
    exec(TOP_P, module := {})
    assert isinstance(job.check(module["run"]), Accepted)

    def skip_a_row(probs, top_p):
        out = module["run"](probs, top_p)
        out[3] = 0
        return out

    for wrong in (lambda probs, _: probs.clone(), skip_a_row):
        assert job.check(wrong).status.value == "INCORRECT_NUMERICAL"
    empty = torch.zeros(0, 6)
    assert find_problem(empty, empty, empty, rtol=1e-3) is None
    copy = definition(reference="def run(probs, top_p):\n    return probs * 0.5\n")
    job = Judging(copy, make_workload(axes={"rows": 3, "n": 9}, inputs={"top_p": 0.5}))
    with pytest.raises(WorkloadFault, match="does not rescale what it keeps"):
        job.baseline()
