"""The Sampling evaluator: perfect samplers pass, whatever the rounding and the ties; wrong ones do not."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import Accepted, JudgedCall, Rejected
from flashinfer_bench.bench.evaluators.sampling import evaluator as evaluator_module
from flashinfer_bench.bench.evaluators.sampling.evaluator import (
    TIMED_DRAWS,
    SamplingEvaluator,
    SamplingLimits,
    judge_draws,
)
from flashinfer_bench.bench.evaluators.sampling.rules import SamplingProblem
from flashinfer_bench.data import EvaluationStatus
from flashinfer_bench.errors import WorkloadFault
from tests.bench.evaluators.judging import Judging
from tests.bench.evaluators.sampling.samplers import CALLS, IGNORE_FILTERS, WRONG, draw, expected_shares, make_problem
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def judge(problem, tokens, *, seed=0, **limits):
    return judge_draws(
        problem, tokens, SamplingLimits(**limits), seeded(10_000 + seed)
    )  # not the generator that drew them


def rows(*probabilities, top_k=None, top_p=None, min_p=None, joint=False) -> SamplingProblem:
    """Make a problem of a few rows, with one filter value for all."""

    def per_row(value, dtype):
        return None if value is None else torch.full((len(probabilities),), value, dtype=dtype)

    return SamplingProblem(
        torch.tensor(probabilities),
        per_row(top_k, torch.int64),
        per_row(top_p, torch.float64),
        per_row(min_p, torch.float64),
        joint,
    )


@pytest.mark.parametrize("filters", ["", "k", "p", "kp", "m"])
@pytest.mark.parametrize("count", [1, 7, 64])
def test_a_perfect_sampler_passes(filters, count):
    generator = seeded(count)
    rejected = []
    for seed in range(20):
        problem = make_problem(generator, rows=count, vocabulary=300, filters=filters)
        verdict = judge(problem, draw(expected_shares(problem), generator), seed=seed)
        rejected += [verdict.message] if isinstance(verdict, Rejected) else []
    assert rejected == []


@pytest.mark.parametrize("filters", ["", "kp"])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_sampler_is_rejected(name, filters):
    generator = seeded(1)
    for seed in range(3):
        problem = make_problem(generator, filters=filters)
        verdict = judge(problem, WRONG[name](problem, expected_shares(problem), generator), seed=seed)
        assert isinstance(verdict, Rejected)
        assert verdict.status is EvaluationStatus.INCORRECT_NUMERICAL


@pytest.mark.parametrize("name", IGNORE_FILTERS)
def test_a_sampler_that_ignores_its_filters_is_rejected_for_the_token(name):
    generator = seeded(2)
    for count in (1, 64):
        problem = make_problem(generator, rows=count, filters="kp")
        verdict = judge(problem, IGNORE_FILTERS[name](problem, expected_shares(problem), generator))
        assert isinstance(verdict, Rejected)
        assert "not allowed" in verdict.message
        assert "top_k=250, top_p=0.8" in verdict.message


@pytest.mark.parametrize("vocabulary", [32_000, 128_256])
def test_a_large_vocabulary_changes_neither_verdict(vocabulary):
    generator = seeded(3)
    problem = make_problem(generator, rows=8, vocabulary=vocabulary, filters="kp")
    shares = expected_shares(problem)
    assert isinstance(judge(problem, draw(shares, generator)), Accepted)
    for name in ("argmax", "off_by_one", "same_in_every_call", "same_random_number_in_every_row"):
        assert isinstance(judge(problem, WRONG[name](problem, shares, generator)), Rejected), name


@pytest.mark.parametrize("name", ["argmax", "same_in_every_call", "cycle_of_ten", "off_by_one"])
def test_a_coarse_fault_shows_in_a_single_row(name):
    generator = seeded(4)
    for _ in range(5):
        problem = make_problem(generator, rows=1, sharpest=2.0)
        assert isinstance(judge(problem, WRONG[name](problem, expected_shares(problem), generator)), Rejected)


def test_one_row_among_many_that_is_wrong_is_found():
    generator = seeded(5)
    problem = make_problem(generator)
    shares = expected_shares(problem)
    tokens = draw(shares, generator)
    tokens[:, 17] = shares[17].argmax()
    assert isinstance(judge(problem, tokens), Rejected)


def test_the_token_that_crosses_the_boundary_belongs_to_the_nucleus():
    problem = rows([0.5, 0.3, 0.15, 0.05], top_p=0.7)
    assert isinstance(judge(problem, draw(expected_shares(problem), seeded(0))), Accepted)
    without = draw(torch.tensor([[1.0, 0, 0, 0]]), seeded(0))
    assert isinstance(judge(problem, without), Rejected)
    beyond = torch.full((CALLS, 1), 2)
    assert "2 tokens are allowed" in judge(problem, beyond).message


@pytest.mark.parametrize("kept", [2, 3], ids=["reached", "exceeded"])
def test_a_mass_that_falls_on_p_may_be_taken_either_way(kept):
    problem = rows([0.5, 0.25, 0.125, 0.125], top_p=0.75)
    shares = torch.tensor([[0.5, 0.25, 0.125, 0.0]])
    shares[:, kept:] = 0
    assert isinstance(judge(problem, draw(shares, seeded(1))), Accepted)


@pytest.mark.parametrize("kept", [2, 4], ids=["k tokens", "all ties"])
def test_ties_at_the_last_of_k_may_be_kept_or_not(kept):
    problem = rows([0.4, 0.15, 0.15, 0.15, 0.1, 0.05], top_k=2)
    shares = torch.tensor([[0.4, 0.15, 0.15, 0.15, 0.0, 0.0]])
    shares[:, kept:] = 0
    assert isinstance(judge(problem, draw(shares, seeded(2))), Accepted)
    assert isinstance(judge(problem, torch.full((CALLS, 1), 4)), Rejected)


def test_argmax_is_no_sampler_even_where_all_tokens_tie():
    problem = make_problem(seeded(0), rows=2, sharpest=0.0, filters="k")
    assert isinstance(judge(problem, draw(problem.probabilities, seeded(0))), Accepted)
    assert isinstance(judge(problem, torch.zeros(CALLS, 2, dtype=torch.int64)), Rejected)


@pytest.mark.parametrize(("top_k", "top_p"), [(0, None), (-1, None), (99, None), (None, 1.0), (None, 1.5)])
def test_a_filter_out_of_range_keeps_all(top_k, top_p):
    problem = rows([0.4, 0.3, 0.2, 0.1], top_k=top_k, top_p=top_p)
    assert isinstance(judge(problem, draw(problem.probabilities, seeded(3))), Accepted)


def test_a_p_of_zero_keeps_the_largest():
    problem = rows([0.2, 0.5, 0.3], top_p=0.0)
    assert isinstance(judge(problem, torch.ones(CALLS, 1, dtype=torch.int64)), Accepted)
    assert isinstance(judge(problem, torch.zeros(CALLS, 1, dtype=torch.int64)), Rejected)


def test_a_token_of_zero_probability_is_never_allowed():
    problem = rows([0.5, 0.5, 0.0])
    tokens = draw(problem.probabilities, seeded(4))
    tokens[50] = 2
    assert "call 50, row 0: its probability is 0" in judge(problem, tokens).message


@pytest.mark.parametrize("token", [-1, 3, 2**40])
def test_a_token_outside_the_vocabulary_is_rejected(token):
    problem = rows([0.2, 0.5, 0.3])
    tokens = draw(problem.probabilities, seeded(5))
    tokens[0] = token
    assert "the vocabulary has 3" in judge(problem, tokens).message


def test_top_p_acts_on_what_top_k_left_unless_both_are_joint():
    row = [0.4, 0.2, 0.2, 0.1, 0.1]
    first, joint = rows(row, top_k=3, top_p=0.7), rows(row, top_k=3, top_p=0.7, joint=True)
    two, three = (draw(torch.tensor([[*row[:kept], *[0.0] * (5 - kept)]]), seeded(6)) for kept in (2, 3))
    assert isinstance(judge(joint, three), Accepted)
    assert isinstance(judge(first, three), Accepted)  # 0.75 of the rescaled mass lies in two, but the third ties
    row = [0.4, 0.25, 0.15, 0.1, 0.1]
    first, joint = rows(row, top_k=3, top_p=0.7), rows(row, top_k=3, top_p=0.7, joint=True)
    two, three = (draw(torch.tensor([[*row[:kept], *[0.0] * (5 - kept)]]), seeded(6)) for kept in (2, 3))
    assert (isinstance(judge(first, two), Accepted), isinstance(judge(first, three), Accepted)) == (True, False)
    assert (isinstance(judge(joint, two), Accepted), isinstance(judge(joint, three), Accepted)) == (False, True)


def test_the_threshold_is_honoured_on_top_of_the_noise():
    generator = seeded(7)
    problem = make_problem(generator)
    shares = expected_shares(problem)
    tokens = draw(0.7 * shares + 0.3 * torch.ones_like(shares) / shares.shape[1], generator)
    for threshold, accepted in ((0.05, False), (0.5, True)):
        verdict = judge(problem, tokens, tvd_threshold=threshold, false_alarm_rate=0.0)
        assert isinstance(verdict, Accepted) == accepted
    perfect = draw(shares, generator)
    assert isinstance(judge(problem, perfect, tvd_threshold=0.0), Accepted)


def test_the_trace_tells_the_distance_its_noise_and_the_odds():
    problem = make_problem(seeded(8))
    verdict = judge(problem, draw(expected_shares(problem), seeded(8)))
    assert isinstance(verdict, Accepted)
    facts = verdict.correctness.extra or {}
    assert facts["tvd"] < facts["tvd_noise"] < 0.1
    assert (facts["calls"], facts["draws"]) == (100, 6400)
    assert 0 < facts["smallest_p_value"] <= 1


REFERENCE = """
import torch
def run(probs, top_p):
    ordered, ids = probs.sort(dim=-1, descending=True)
    ordered[ordered.cumsum(-1) - ordered > top_p[:, None]] = 0
    return ids.gather(1, torch.multinomial(ordered, 1))[:, 0]
"""


def sampling_job(reference=REFERENCE, **settings):
    definition = make_definition(
        op_type="sampling",
        axes={"n": None, "v": 200},
        inputs={"probs": "float32[n, v]", "top_p": "float32[n]"},
        outputs={"samples": "int64[n]"},
        reference=reference,
    )
    return Judging(definition, make_workload(axes={"n": 16}, inputs={}), **settings)


def right_sampler(probs, top_p):
    ordered, ids = probs.sort(dim=-1, descending=True)
    ordered[ordered.cumsum(-1) - ordered > top_p[:, None]] = 0
    return ids.gather(1, torch.multinomial(ordered, 1))[:, 0]


def test_a_sampler_is_called_as_often_as_the_configuration_says():
    torch.manual_seed(0)
    calls = []
    job = sampling_job(extra={"sampling_validation_trials": 30}, power_rule=False)
    verdict = job.check(lambda *inputs: [calls.append(1), right_sampler(*inputs)][1])
    assert isinstance(verdict, Accepted)
    assert len(calls) == 30


def test_a_sampler_is_measured_like_any_solution():
    torch.manual_seed(0)
    assert sampling_job().measure(right_sampler).speedup_factor == 4.0


@pytest.mark.parametrize(
    ("solution", "status"),
    [
        (lambda probs, top_p: probs.argmax(dim=-1), "INCORRECT_NUMERICAL"),
        (lambda probs, top_p: torch.multinomial(probs, 1)[:, 0], "INCORRECT_NUMERICAL"),
        (lambda probs, top_p: right_sampler(probs, top_p).int(), "INCORRECT_DTYPE"),
        (lambda probs, top_p: right_sampler(probs, top_p)[:, None], "INCORRECT_SHAPE"),
    ],
    ids=["argmax", "ignores p", "dtype", "shape"],
)
def test_a_wrong_sampler_gets_its_status(solution, status):
    torch.manual_seed(0)
    verdict = sampling_job().check(solution)
    assert isinstance(verdict, Rejected)
    assert verdict.status is EvaluationStatus(status)


def test_a_reference_that_breaks_the_rules_itself_is_a_fault_of_the_definition():
    job = sampling_job("def run(probs, top_p):\n    return probs.argmin(dim=-1)\n")
    with pytest.raises(WorkloadFault, match="do not fit this definition"):
        job.check(lambda probs, top_p: probs.argmin(dim=-1))


@pytest.mark.parametrize("key", ["sampling_validation_trials", "sampling_tvd_threshold", "sampling_false_alarm_rate"])
@pytest.mark.parametrize("value", [-1, "many", True])
def test_a_parameter_out_of_range_is_a_fault_that_names_it(key, value):
    with pytest.raises(WorkloadFault, match=key):
        sampling_job(extra={key: value}).check(right_sampler)


def test_logits_are_divided_by_the_temperature():
    definition = make_definition(
        op_type="sampling",
        axes={"n": None, "v": 200},
        inputs={"logits": "float32[n, v]", "temperature": "float32[n]"},
        outputs={"samples": "int32[n]"},
        reference="def run(logits, temperature):\n    return logits.argmax(dim=-1).int()\n",
    )
    torch.manual_seed(0)

    def sampler(logits, temperature):
        return torch.multinomial((logits / temperature[:, None]).softmax(-1), 1)[:, 0].int()

    job = Judging(definition, make_workload(axes={"n": 64}, inputs={}))
    assert isinstance(job.check(sampler), Accepted)
    assert isinstance(job.check(lambda logits, temperature: sampler(logits, temperature * 1.3)), Rejected)


def test_rows_that_are_no_distribution_are_a_fault():
    job = sampling_job()
    made = job.baseline()
    made.inputs[0][0][3] = 0
    with pytest.raises(WorkloadFault, match="no distribution"):
        job.check(right_sampler, made)


def judge_timed(sampler, *, calls=200, seed=0):
    """Judge calls on one row that never comes twice."""
    judging, chance = sampling_job(), seeded(seed)
    made = []
    for _ in range(calls):
        probs = (torch.randn(1, 512, generator=chance) * (1 + 4 * torch.rand(1, generator=chance))).softmax(dim=-1)
        inputs = [probs, torch.tensor([0.9])]
        made.append(JudgedCall(inputs, [sampler(*inputs)], [torch.zeros(1, dtype=torch.int64)]))
    return judging.evaluator.judge_reads(judging.definition, made, judging.config, judging.context)


def first_part(probs, top_p):
    return right_sampler(probs[:, :32], top_p)


def every_eighth(probs, top_p):
    return right_sampler(probs[:, ::8], top_p) * 8


def likeliest(probs, top_p):
    return probs.argmax(dim=-1)


@pytest.mark.parametrize("sampler", [first_part, every_eighth, likeliest])
def test_a_sampler_that_reads_less_of_rows_that_never_come_twice_is_rejected(sampler):
    for seed in range(3):
        torch.manual_seed(seed)
        verdict = judge_timed(sampler, seed=seed)
        assert isinstance(verdict, Rejected)
        assert "draws are not" in verdict.message


def judge_timed_flat(*, seed, every=8):
    """Judge a sampler that reads an eighth of flat rows, which some calls have, and all of others."""
    torch.manual_seed(seed)
    chance, made = seeded(seed), []
    for call in range(200):
        probs = torch.randn(1, 8192, generator=chance).mul(0.5 if call % every == 0 else 5).softmax(dim=-1)
        step = 8 if call % every == 0 else 1
        some = probs[:, ::step]
        drawn = right_sampler(some / some.sum(), torch.tensor([0.9 if step == 1 else 0.7])) * step
        made.append(JudgedCall([probs, torch.tensor([0.9])], [drawn], [torch.zeros(1, dtype=torch.int64)]))
    job = sampling_job()
    return job.evaluator.judge_reads(job.definition, made, job.config, job.context)


def test_a_sampler_that_reads_less_of_flat_rows_alone_is_rejected(monkeypatch):
    verdicts = [judge_timed_flat(seed=seed) for seed in range(8)]
    assert all(isinstance(verdict, Rejected) and "1 of the rows by flatness" in verdict.message for verdict in verdicts)
    monkeypatch.setattr(evaluator_module, "LEAST_PART", 1000)
    assert any(isinstance(judge_timed_flat(seed=seed), Accepted) for seed in range(8))  # among all rows it is lost


def test_a_right_sampler_is_accepted_on_rows_that_never_come_twice():
    for seed in range(10):
        torch.manual_seed(seed)
        assert isinstance(judge_timed(right_sampler, seed=seed), Accepted)


@pytest.mark.parametrize(("rows", "calls"), [(1, TIMED_DRAWS), (2, TIMED_DRAWS // 2), (1000, 1)])
def test_so_many_timed_calls_are_judged_that_there_are_enough_draws(rows, calls):
    assert SamplingEvaluator.count_reads(rows) == calls
    assert DefaultEvaluator.count_reads(rows) == 0
