"""The Renormalised evaluator: rows that keep the largest and sum to one pass; what else a row may hold is named."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import Accepted
from flashinfer_bench.bench.evaluators.sampling.renormalised import RenormalisedEvaluator
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
exec(TOP_P, TOP_P_MODULE := {})
run_top_p = TOP_P_MODULE["run"]


def job(name="top_p", dtype="float32", reference=TOP_P, rows=5, **inputs):
    definition = make_definition(
        op_type="sampling",
        axes={"rows": None, "n": None},
        inputs={"probs": "float32[rows, n]", name: dtype},
        outputs={"out": "float32[rows, n]"},
        reference=reference,
    )
    return Judging(definition, make_workload(axes={"rows": rows, "n": 4096}, inputs=inputs), rtol=1e-3)


def rescaled(*entries, scale=1.0, row=ROW):
    kept = torch.zeros_like(row).index_copy(1, torch.tensor(entries), row[:, list(entries)])
    return kept / kept.sum() * scale


@pytest.mark.parametrize(
    ("got", "filters", "words"),
    [
        (rescaled(0, 1, 2), {"top_k": 3}, None),
        (rescaled(0, 1, 3), {"top_k": 3}, None),  # ties either way
        (rescaled(0, 1, 2, 3), {"top_p": 0.75}, None),
        (rescaled(0, 1, scale=1.25), {"top_k": 2}, "2 of 2 kept values are off"),
        (rescaled(0, 1, scale=-1.0), {"top_k": 2}, "values are no probabilities"),
        (ROW.clone(), {"top_k": 2}, "keeps 6 entries, 2 to 2"),
        (rescaled(0, 2), {"top_k": 2}, "row 0 keeps 0.1 and drops 0.3, which is larger"),
        (rescaled(0, 1, 2, 3, 4), {"top_p": 0.85}, "keeps 5 entries, 4 to 4"),
    ],
)
def test_the_largest_pass_and_wrong_rows_are_named(got, filters, words):
    ((name, value),) = filters.items()
    verdict = job(name, "int32" if name == "top_k" else "float32", **filters).judge([ROW, value], [got])
    assert isinstance(verdict, Accepted) if words is None else words in verdict.message


def test_a_nucleus_may_differ_by_what_rounding_of_its_sum_explains():
    weights = torch.linspace(2, 0.01, 100_000)[None]
    weights /= weights.sum()
    p = weights[:, :60_000].sum()
    for count, is_right in ((60_000, True), (59_990, True), (59_000, False), (61_000, False)):
        verdict = job().judge([weights, p], [rescaled(*range(count), row=weights)])
        assert isinstance(verdict, Accepted) is is_right


def skip_a_row(probs, top_p):
    out = run_top_p(probs, top_p)
    out[3] = 0
    return out


def test_the_evaluator_accepts_and_rejects_also_a_reference():
    made = job(top_p=0.5)
    assert made.evaluator is RenormalisedEvaluator
    assert isinstance(made.check(run_top_p), Accepted)
    for wrong in (lambda probs, _: probs.clone(), skip_a_row):
        assert made.check(wrong).status.value == "INCORRECT_NUMERICAL"
    assert isinstance(job(top_p=0.5, rows=0).check(run_top_p), Accepted)
    with pytest.raises(WorkloadFault, match="does not rescale what it keeps"):
        job(reference="def run(probs, top_p):\n    return probs * 0.5\n", top_p=0.5).baseline()
