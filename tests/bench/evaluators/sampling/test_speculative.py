"""The Speculative evaluator: what accepts and draws as it should passes; each way to be wrong is found."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import pad

from flashinfer_bench.bench.evaluators.evaluator import Accepted, JudgedCall, Rejected
from flashinfer_bench.bench.evaluators.sampling.speculative import SpeculativeEvaluator
from flashinfer_bench.routines.case.lift import lift
from flashinfer_bench.routines.code import sampling_torch
from tests.bench.evaluators.judging import Judging
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu
ROWS, DRAFTED, TOKENS = 24, 3, 32
TIMED_CALLS = 39
"""Of three trials: twelve chosen by chance in each, and the one on the evaluator's own inputs."""


def make_job(rows=ROWS):
    definition = make_definition(
        op_type="sampling",
        axes={"rows": rows, "n": DRAFTED, "v": TOKENS},
        inputs={
            "draft_probs": "float32[rows, n, v]",
            "draft_token_ids": "int32[rows, n]",
            "target_probs": f"float32[rows, {DRAFTED + 1}, v]",
        },
        outputs={
            "output_token_ids": f"int32[rows, {DRAFTED + 1}]",
            "accepted": "int32[rows]",
            "emitted": "int32[rows]",
        },
        reference=lift(
            "sampling_torch", "chain_speculative_sampling", {}, ["draft_probs", "draft_token_ids", "target_probs"]
        )[0],
    )
    job = Judging(definition, make_workload(axes={}, inputs={}), num_trials=1)
    assert job.evaluator is SpeculativeEvaluator
    return job


def right(*inputs):
    return list(sampling_torch.chain_speculative_sampling(*inputs))


def draws_from_target(draft, ids, target):
    tokens, accepted, emitted = right(draft, ids, target)
    drawn = sampling_torch.draw(target.gather(1, emitted.long()[:, None, None].expand(-1, 1, TOKENS))[:, 0])
    return [tokens.scatter(1, emitted.long()[:, None], drawn[:, None]), accepted, emitted]


def counts_only_what_was_emitted(*inputs):
    tokens, _, emitted = right(*inputs)
    return [tokens, emitted.clone(), emitted]


@pytest.mark.parametrize(
    ("sampler", "words"),
    [
        (right, None),
        (draws_from_target, "token"),
        (counts_only_what_was_emitted, "tokens accepted"),
        (lambda *inputs: [one.clamp(min=0) for one in right(*inputs)], "what follows the last token is not -1"),
    ],
)
def test_a_right_sampler_passes_and_a_wrong_one_is_found(sampler, words):
    torch.manual_seed(0)
    verdict = make_job().check(sampler)
    assert isinstance(verdict, Accepted) if words is None else words in verdict.message


def judge_timed(job, sampler, *, seed=0, calls=TIMED_CALLS):
    """Judge calls on inputs that never come twice."""
    torch.manual_seed(seed)
    made = []
    draft, ids, target = job.baseline().inputs[0]
    for _ in range(calls):
        inputs = [torch.randn(like.shape).mul(2).softmax(dim=-1) for like in (draft, target)]
        inputs.insert(1, ids)
        made.append(JudgedCall(inputs, sampler(*inputs), right(*inputs)))
    return job.evaluator.judge_reads(job.definition, made, job.config, job.context)


def draws_by_chance(draft, ids, target):
    """Accept by a coin and draw any token that the outcome may have: probabilities are used for nothing else."""
    accepted = torch.rand(ids.shape) < 0.5
    emitted = accepted.long().cumprod(dim=1).sum(dim=1)
    left = (target - pad(draft, (0, 0, 0, 1))).clamp(min=0)
    last = sampling_torch.draw((left.gather(1, emitted[:, None, None].expand(-1, 1, TOKENS))[:, 0] > 0).float())
    place = torch.arange(DRAFTED + 1)
    tokens = torch.where(place < emitted[:, None], pad(ids, (0, 1)), -1)
    tokens = torch.where(place == emitted[:, None], last[:, None], tokens)
    return [tokens.to(torch.int32), accepted.sum(dim=1).to(torch.int32), emitted.to(torch.int32)]


def test_a_timed_call_that_answers_what_is_possible_but_not_random_is_found():
    verdict = judge_timed(make_job(), draws_by_chance)
    assert isinstance(verdict, Rejected)
    assert "not random" in verdict.message


@pytest.mark.parametrize("rows", [1, ROWS])
def test_timed_calls_of_a_right_sampler_pass_also_a_single_one(rows):
    job = make_job(rows)
    for seed in range(10):
        verdict = judge_timed(job, right, seed=seed, calls=TIMED_CALLS if seed else 1)
        assert isinstance(verdict, Accepted), verdict
