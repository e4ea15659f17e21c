"""The Sampling evaluator: perfect samplers pass, whatever the rounding and the ties; wrong ones do not."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import Accepted, JudgedCall, Rejected
from flashinfer_bench.bench.evaluators.sampling import evaluator, statistics
from flashinfer_bench.bench.evaluators.sampling.evaluator import DrawJudge, SamplingLimits
from flashinfer_bench.bench.evaluators.sampling.rules import SamplingProblem
from flashinfer_bench.errors import WorkloadFault
from tests.bench.evaluators.judging import Judging
from tests.bench.evaluators.sampling.samplers import WRONG, as_calls, draw, expected_shares, make_problem
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def judge(problem, tokens, *, seed=0, **limits):
    generator = seeded(10_000 + seed)  # not what drew them
    definition, calls = as_calls(problem, tokens)
    return DrawJudge(definition, SamplingLimits(**limits), generator).judge_first(calls)


@pytest.mark.parametrize("filters", ["", "kp", "m"])
@pytest.mark.parametrize("count", [1, 64])
def test_a_perfect_sampler_passes(filters, count):
    generator, rejected = seeded(count), []
    for seed in range(20):
        problem = make_problem(generator, rows=count, vocabulary=300, filters=filters)
        verdict = judge(problem, draw(expected_shares(problem), generator), seed=seed)
        rejected += [verdict.message] if isinstance(verdict, Rejected) else []
    assert rejected == []


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_sampler_is_rejected(name):
    generator = seeded(1)
    for seed, filters in enumerate(("", "kp")):
        problem = make_problem(generator, filters=filters)
        verdict = judge(problem, WRONG[name](expected_shares(problem), generator), seed=seed)
        assert verdict.status.value == "INCORRECT_NUMERICAL"


def test_a_coarse_fault_shows_in_a_single_row_and_in_a_large_vocabulary():
    for shape in ({"rows": 1, "sharpest": 2.0}, {"rows": 8, "vocabulary": 128_256, "filters": "kp"}):
        problem = make_problem(seeded(3), **shape)
        shares = expected_shares(problem)
        assert isinstance(judge(problem, draw(shares, seeded(3))), Accepted)
        assert isinstance(judge(problem, WRONG["argmax"](shares, seeded(3))), Rejected)


def rows(*probabilities, joint=False, **filters) -> SamplingProblem:
    """Make a problem of a few rows, with one filter value for all."""
    values = {name: torch.tensor([value] * len(probabilities)) for name, value in filters.items()}
    filters = {name: one.double() if one.is_floating_point() else one for name, one in values.items()}
    return SamplingProblem(torch.tensor(probabilities), filters, joint)


FOUR = [0.4, 0.3, 0.2, 0.1]
TIES = [0.4, 0.15, 0.15, 0.15, 0.1, 0.05]
FIVE = [0.4, 0.25, 0.15, 0.1, 0.1]
ON_P = rows([0.5, 0.25, 0.125, 0.125], top_p=0.75)


@pytest.mark.parametrize(
    ("problem", "kept", "accepted"),
    [
        (rows([0.5, 0.3, 0.15, 0.05], top_p=0.7), 1, False),  # without the token that crosses p
        (ON_P, 2, True),  # a mass that falls on p may be reached
        (ON_P, 3, True),  # or exceeded
        (rows(TIES, top_k=2), 5, False),
        *((rows(FOUR, top_k=k), 4, True) for k in (0, 99)),  # these keep all
        (rows(FOUR, top_p=0.0), 2, False),
        (rows(FIVE, top_k=3, top_p=0.7), 2, True),  # top-p acts on what top-k left
        (rows(FIVE, top_k=3, top_p=0.7), 3, False),
        (rows(FIVE, top_k=3, top_p=0.7, joint=True), 3, True),
    ],
)
def test_what_the_filters_keep(problem, kept, accepted):
    shares = problem.probabilities.double()
    shares[:, kept:] = 0
    assert isinstance(judge(problem, draw(shares, seeded(6))), Accepted) == accepted


@pytest.mark.parametrize(
    ("problem", "token", "words"),
    [
        (
            rows([0.5, 0.5, 0.0]),
            2,
            "1 of 100 draws are not allowed; the first is token 2 in row 0: its probability is 0",
        ),
        (rows(FOUR, top_p=0.3), 3, "its probability is 0.1; 1 tokens are allowed (top_p=0.3)"),
    ],
)
def test_a_draw_that_is_not_allowed_is_told(problem, token, words):
    tokens = draw(expected_shares(problem), seeded(4))
    tokens[50] = token
    assert words in judge(problem, tokens).message


def test_the_threshold_is_honoured_on_top_of_the_noise():
    problem = make_problem(seeded(7))
    shares = expected_shares(problem)
    tokens = draw(0.7 * shares + 0.3 / shares.shape[1], seeded(7))
    for threshold, accepted in ((0.05, False), (0.5, True)):
        verdict = judge(problem, tokens, tvd_threshold=threshold, false_alarm_rate=0.0)
        assert isinstance(verdict, Accepted) == accepted
    assert 0.1 < verdict.correctness.extra["tvd"] < 0.4


REFERENCE = """
import torch
def run(probs, top_p):
    ordered, ids = probs.sort(dim=-1, descending=True)
    ordered[ordered.cumsum(-1) - ordered > top_p[:, None]] = 0
    return ids.gather(1, torch.multinomial(ordered, 1))[:, 0]
"""
exec(REFERENCE, MODULE := {})
right_sampler = MODULE["run"]
PROBS = {"probs": "float32[n, v]", "top_p": "float32[n]"}


def sampling_job(reference=REFERENCE, n=16, v=200, inputs=PROBS, **settings):
    torch.manual_seed(0)
    shape = {"axes": {"n": None, "v": v}, "inputs": inputs, "outputs": {"samples": "int64[n]"}}
    definition = make_definition(op_type="sampling", reference=reference, **shape)
    return Judging(definition, make_workload(axes={"n": n}, inputs={}), **settings)


def test_what_cannot_be_judged_is_a_fault():
    job = sampling_job("def run(probs, top_p):\n    return probs.argmin(dim=-1)\n")
    with pytest.raises(WorkloadFault, match="do not fit this definition"):
        job.check(lambda probs, top_p: probs.argmin(dim=-1))
    job = sampling_job()
    made = job.baseline()
    made.inputs[0][0][3] = 0
    with pytest.raises(WorkloadFault, match="no distribution"):
        job.check(right_sampler, made)
    with pytest.raises(WorkloadFault, match="sampling_tvd_threshold"):
        sampling_job(extra={"sampling_tvd_threshold": -1}).check(right_sampler)


def test_logits_are_divided_by_the_temperature():
    def sampler(logits, temperature):
        return torch.multinomial((logits / temperature[:, None]).softmax(-1), 1)[:, 0]

    inputs = {"logits": "float32[n, v]", "temperature": "float32[n]"}
    job = sampling_job("def run(logits, temperature):\n    return logits.argmax(dim=-1)\n", n=64, inputs=inputs)
    assert isinstance(job.check(sampler), Accepted)
    assert isinstance(job.check(lambda logits, temperature: sampler(logits, temperature * 1.3)), Rejected)


def leave_out(share):
    def solution(probs):
        ranked, tokens = probs.sort(dim=-1, descending=True)
        left = ranked.masked_fill(ranked.cumsum(dim=-1) <= share, 0.0)
        return tokens.gather(1, torch.multinomial(left, 1))[:, 0]

    return solution


def one_row(share, **settings):
    """Judge a sampler of one row without a filter; return the verdict and the number of calls."""
    calls = []
    reference = "import torch\ndef run(probs):\n    return torch.multinomial(probs, 1)[:, 0]\n"
    job = sampling_job(reference, n=1, v=1000, inputs={"probs": "float32[n, v]"}, **settings)
    return job.check(lambda probs: [calls.append(1), leave_out(share)(probs)][1]), len(calls)


def test_a_sampler_of_one_row_is_called_so_often_that_a_small_omission_shows(monkeypatch):
    verdict, _ = one_row(0.08)
    assert verdict.integrity["rule"] == "power"
    assert verdict.integrity["evidence"]["test"].startswith("left out")
    verdict, calls = one_row(0.0)
    assert (calls, verdict.correctness.extra["flattened"]["calls"]) == (380, 280)
    assert one_row(0.0, power_rule=False, extra={"sampling_validation_trials": 30})[1] == 30
    monkeypatch.setattr(evaluator, "PATIENCE_S", -1.0)  # a slow sampler
    verdict, calls = one_row(0.0)
    assert (isinstance(verdict, Accepted), calls) == (True, 100)


def judge_timed(sampler, *, calls=200, seed=0, make=None):
    """Judge calls on rows that never come twice."""
    job, chance, made = sampling_job(), seeded(seed), []
    torch.manual_seed(seed)
    for call in range(calls):
        scale = 1 + 4 * torch.rand(1, generator=chance)
        probs = make(call, chance) if make else (torch.randn(1, 512, generator=chance) * scale).softmax(dim=-1)
        inputs = [probs, torch.tensor([0.9])]
        made.append(JudgedCall(inputs, [sampler(*inputs)], [torch.zeros(1, dtype=torch.int64)]))
    return job.evaluator.judge_reads(job.definition, made, job.config, job.context)


@pytest.mark.parametrize(
    "sampler",
    [
        pytest.param(lambda probs, top_p: right_sampler(probs[:, :32], top_p), id="first part"),
        pytest.param(lambda probs, top_p: probs.argmax(dim=-1), id="likeliest"),
    ],
)
def test_a_sampler_that_reads_less_of_rows_that_never_come_twice_is_rejected(sampler):
    for seed in range(3):
        assert "draws are not" in judge_timed(sampler, seed=seed).message


def test_a_sampler_that_reads_less_of_flat_rows_alone_is_rejected():
    def make(call, chance):
        return torch.randn(1, 8192, generator=chance).mul(0.5 if call % 8 == 0 else 5).softmax(dim=-1)

    def sampler(probs, top_p):
        if probs.max() > 0.01:
            return right_sampler(probs, top_p)
        return right_sampler(probs[:, ::8] / probs[:, ::8].sum(), torch.tensor([0.7])) * 8

    assert all("of the rows by flatness" in judge_timed(sampler, seed=seed, make=make).message for seed in range(8))


def test_a_right_sampler_is_accepted_on_rows_that_never_come_twice():
    assert all(isinstance(judge_timed(right_sampler, seed=seed), Accepted) for seed in range(10))


@pytest.mark.parametrize("shape", [(100, 1), (20, 64)])
def test_odds_of_one_percent_come_up_once_in_a_hundred_times(shape):
    rounds = 600
    seen = [torch.rand(shape, dtype=torch.float64, generator=seeded(seed)) for seed in range(rounds)]
    seen = [{**statistics.measure_chances(one), "left out": statistics.measure_omission(one, 0.06)} for one in seen]
    for test in seen[0]:
        assert sum(chances[test] < 0.01 for chances in seen) <= 0.01 * rounds + 4 * (0.01 * rounds) ** 0.5, test
