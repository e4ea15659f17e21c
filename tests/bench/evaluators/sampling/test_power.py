"""A sampler of one row: called on flattened rows, often enough that leaving out a small mass shows."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import Accepted, Rejected
from flashinfer_bench.bench.evaluators.sampling import evaluator
from flashinfer_bench.bench.evaluators.sampling.power import (
    FLATTEST,
    MOST_KINDS,
    SHARPEST,
    count_calls,
    flatten,
    make_flattened,
)
from flashinfer_bench.bench.evaluators.sampling.statistics import measure_omission
from tests.bench.evaluators.judging import Judging
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

REFERENCE = "import torch\ndef run(probs):\n    return torch.multinomial(probs, 1)[:, 0]\n"


def judging(rows=1, **settings):
    definition = make_definition(
        op_type="sampling",
        axes={"n": None, "v": 1000},
        inputs={"probs": "float32[n, v]"},
        outputs={"samples": "int64[n]"},
        reference=REFERENCE,
    )
    return Judging(definition, make_workload(axes={"n": rows}, inputs={}), **settings)


def sample(probs):
    return torch.multinomial(probs, 1)[:, 0]


def leave_out(share):
    def solution(probs):
        ranked, tokens = probs.sort(dim=-1, descending=True)
        left = ranked.masked_fill(ranked.cumsum(dim=-1) <= share, 0.0)
        return tokens.gather(1, torch.multinomial(left, 1))[:, 0]

    return solution


def test_a_sampler_of_one_row_that_leaves_the_likeliest_8_percent_out_is_found():
    torch.manual_seed(0)
    verdict = judging().check(leave_out(0.08))
    assert isinstance(verdict, Rejected)
    assert verdict.integrity["rule"] == "power"
    assert verdict.integrity["evidence"]["test"].startswith("left out")


def test_a_right_sampler_of_one_row_passes_and_the_trace_says_how_often_it_was_called():
    torch.manual_seed(0)
    verdict = judging().check(sample)
    assert isinstance(verdict, Accepted)
    assert verdict.correctness.extra["flattened"]["calls"] == count_calls(1, 0.06) == 280


@pytest.mark.parametrize(("rows", "least", "calls"), [(1, 0.06, 280), (8, 0.06, 35), (64, 0.06, 5), (1, 0.5, 25)])
def test_few_rows_are_called_often_and_many_seldom(rows, least, calls):
    assert count_calls(rows, least) == calls


def test_the_rule_can_be_switched_off():
    calls = []
    torch.manual_seed(0)
    verdict = judging(power_rule=False).check(lambda probs: [calls.append(1), sample(probs)][1])
    assert isinstance(verdict, Accepted)
    assert len(calls) == 100


@pytest.mark.parametrize("are_logits", [False, True], ids=["probabilities", "logits"])
def test_flattened_rows_have_no_large_token_and_keep_their_order(are_logits):
    logits = torch.randn(4, 2000, generator=torch.Generator().manual_seed(0)) * 4
    weights = logits if are_logits else logits.softmax(dim=-1)
    target = torch.full((4, 1), SHARPEST)
    flat = flatten(weights, target, are_logits=are_logits)
    assert torch.equal(flat.argmax(dim=-1), weights.argmax(dim=-1))
    largest = (flat.softmax(dim=-1) if are_logits else flat).amax(dim=-1)
    assert ((largest > SHARPEST / 2) & (largest <= SHARPEST * 1.001)).all()


def test_what_is_impossible_or_flat_already_stays_so():
    weights = torch.full((1, 1000), 1e-3)
    assert torch.allclose(flatten(weights, torch.full((1, 1), FLATTEST), are_logits=False), weights)
    weights[0, :500] = 0
    flat = flatten(weights, torch.full((1, 1), FLATTEST), are_logits=False)
    assert not flat[0, :500].any()
    assert float(flat.sum()) == pytest.approx(1.0)


def test_calls_are_dealt_to_some_kinds_of_rows():
    job = judging(rows=2)
    generator = torch.Generator().manual_seed(0)
    kinds = list(make_flattened(job.definition, job.baseline().inputs[0], 35, generator))
    assert len(kinds) == MOST_KINDS
    assert sum(calls for _, calls in kinds) == 35
    assert len({inputs[0].numpy().tobytes() for inputs, _ in kinds}) == MOST_KINDS


def test_a_gap_at_either_end_is_odd_and_even_draws_are_not():
    places = torch.rand(280, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert measure_omission(places, 0.06) > 1e-2
    assert measure_omission(0.07 + 0.93 * places, 0.06) < 1e-6
    assert measure_omission(0.93 * places, 0.06) < 1e-6


def test_chances_of_gaps_are_bounds():
    seen = [
        measure_omission(torch.rand(200, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), 0.06)
        for seed in range(300)
    ]
    assert sum(chance < 0.05 for chance in seen) <= 0.05 * len(seen)


def test_a_slow_sampler_is_not_called_until_its_time_is_over(monkeypatch):
    calls = []
    monkeypatch.setattr(evaluator, "PATIENCE_S", -1.0)
    torch.manual_seed(0)
    verdict = judging().check(lambda probs: [calls.append(1), sample(probs)][1])
    assert isinstance(verdict, Accepted)
    assert len(calls) == 101
