"""Sampling, rescaling and speculative sampling: a right sampler passes, with any rounding and ties."""

import pytest
import torch
from torch.nn.functional import pad

from flashinfer_bench.bench.evaluators.evaluator import Accepted, JudgedCall
from flashinfer_bench.bench.evaluators.sampling import evaluator
from flashinfer_bench.bench.evaluators.sampling.evaluator import DrawJudge, SamplingLimits
from flashinfer_bench.bench.evaluators.sampling.rules import SamplingProblem, read_problem
from flashinfer_bench.errors import WorkloadFault
from flashinfer_bench.routines.case.extract_source import extract_source
from flashinfer_bench.routines.code import sampling_torch
from tests.bench.evaluators.judging import Judging, define, expect
from tests.kit.make import make_definition

pytestmark = pytest.mark.cpu
CALLS = 100


def make_problem(generator, *, rows=64, vocabulary=1000, filters="", sharpest=3.0):
    """Make rows of mixed sharpness; `filters` has k, p and m for top-k, top-p and min-p."""
    logits = torch.randn(rows, vocabulary, generator=generator)
    sharpness = sharpest * (1 - 0.7 * torch.rand(rows, 1, generator=generator))
    half = torch.full((rows,), 0.5, dtype=torch.float64)
    known = {"k": ("top_k", half.long() + vocabulary // 4), "p": ("top_p", half + 0.3), "m": ("min_p", half / 10)}
    return SamplingProblem((logits * sharpness).softmax(dim=-1), dict(known[letter] for letter in filters))


def expected_shares(problem):
    """Filter and rescale, the slow and plain way."""
    shares = torch.zeros(problem.probabilities.shape, dtype=torch.float64)
    for row, probabilities in enumerate(problem.probabilities.double()):
        ordered, ids = probabilities.sort(descending=True)
        filters = {name: value[row] for name, value in problem.filters.items()}
        ordered[ordered < filters.get("min_p", 0) * ordered[0]] = 0
        ordered[int(filters.get("top_k", len(ordered))) :] = 0
        ordered /= ordered.sum()
        ordered[ordered.cumsum(0) - ordered >= filters.get("top_p", 2)] = 0
        shares[row, ids] = ordered / ordered.sum()
    return shares


def draw(shares, generator, calls=CALLS):
    """Draw perfectly: [calls, rows]."""
    return torch.multinomial(shares, calls, replacement=True, generator=generator).T.contiguous()


def as_calls(problem, tokens):
    """Return the definition that has a problem's filters, and calls that gave these tokens [calls, rows]."""
    filters = {name: f"{'int64' if name == 'top_k' else 'float64'}[n]" for name in problem.filters}
    definition = make_definition(
        "joint" if problem.joint else "rows",
        op_type="sampling",
        axes={"n": None, "v": problem.probabilities.shape[1]},
        inputs={"probs": "float32[n, v]", **filters},
        outputs={"samples": "int64[n]"},
    )
    inputs = [problem.probabilities, *problem.filters.values()]
    return definition, [JudgedCall(inputs, [drawn], [drawn]) for drawn in tokens]


def moves_a_tenth(shares, generator):
    """Move up to a tenth of each row's mass from odd tokens to even tokens, in proportion."""
    odd, even = (shares * (torch.arange(shares.shape[1]) % 2 == side) for side in (1, 0))
    left, right = (part.sum(dim=1, keepdim=True).clamp(min=1e-9) for part in (odd, even))
    moved = left.clamp(max=0.1) * (right > 1e-9)
    return draw((odd * (1 - moved / left) + even * (1 + moved / right)).clamp(min=0), generator)


WRONG = {
    "argmax": lambda shares, _: shares.argmax(dim=1).expand(CALLS, -1).contiguous(),
    "same twice": lambda shares, chance: draw(shares, chance, CALLS // 2).repeat_interleave(2, dim=0),
    "same token in every row": lambda shares, chance: draw(shares, chance)[:, :1].expand(-1, len(shares)),
    "a tenth moved": moves_a_tenth,
}
"""Takes the right shares [rows, vocabulary] and a generator; returns draws [calls, rows]."""


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def judge(problem, tokens, *, seed=0, **limits):
    definition, calls = as_calls(problem, tokens)
    return DrawJudge(definition, SamplingLimits(**limits), seeded(10_000 + seed)).judge_first(calls)


@pytest.mark.parametrize("filters", ["", "kp", "m"])
@pytest.mark.parametrize("count", [1, 64])
def test_a_perfect_sampler_passes(filters, count):
    generator = seeded(count)
    for seed in range(20):
        problem = make_problem(generator, rows=count, vocabulary=300, filters=filters)
        expect(judge(problem, draw(expected_shares(problem), generator), seed=seed), None)


COARSE = [{"rows": 1, "sharpest": 2.0}, {"rows": 8, "vocabulary": 128_256, "filters": "kp"}]


@pytest.mark.parametrize(
    ("name", "shape"),
    [*((name, {"filters": one}) for name in WRONG for one in ("", "kp")), *(("argmax", one) for one in COARSE)],
)
def test_a_wrong_sampler_is_rejected(name, shape):
    generator = seeded(1)
    problem = make_problem(generator, **shape)
    verdict = judge(problem, WRONG[name](expected_shares(problem), generator))
    assert verdict.status.value == "INCORRECT_NUMERICAL"


def rows(*probabilities, joint=False, **filters):
    """Make a problem of a few rows, with one filter value for all."""
    values = {name: torch.tensor([value] * len(probabilities)) for name, value in filters.items()}
    filters = {name: one.double() if one.is_floating_point() else one for name, one in values.items()}
    return SamplingProblem(torch.tensor(probabilities), filters, joint)


FOUR = [0.4, 0.3, 0.2, 0.1]
FIVE = [0.4, 0.25, 0.15, 0.1, 0.1]
ON_P = rows([0.5, 0.25, 0.125, 0.125], top_p=0.75)


@pytest.mark.parametrize(
    ("problem", "kept", "accepted"),
    [
        (rows([0.5, 0.3, 0.15, 0.05], top_p=0.7), 1, False),  # without the token that crosses p
        *((ON_P, kept, True) for kept in (2, 3)),  # a mass that falls on p may be reached or exceeded
        *((rows(FOUR, top_k=k), 4, True) for k in (0, 99)),  # these keep all
        (rows(FIVE, top_k=3, top_p=0.7), 2, True),  # top-p acts on the rest after top-k
        (rows(FIVE, top_k=3, top_p=0.7), 3, False),
        (rows(FIVE, top_k=3, top_p=0.7, joint=True), 3, True),
    ],
)
def test_the_tokens_that_filters_keep(problem, kept, accepted):
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
def test_a_forbidden_draw_is_reported(problem, token, words):
    tokens = draw(expected_shares(problem), seeded(4))
    tokens[50] = token
    expect(judge(problem, tokens), words)


TOP_P = """ordered, ids = probs.sort(dim=-1, descending=True)
ordered[ordered.cumsum(-1) - ordered > top_p[:, None]] = 0
return ids.gather(1, torch.multinomial(ordered, 1))[:, 0]"""
PROBS = {"probs": "float32[n, v]", "top_p": "float32[n]"}
LOGITS = {"logits": "float32[n, v]", "temperature": "float32[n]"}


def sampling_job(body=TOP_P, n=16, v=200, inputs=PROBS, **settings):
    torch.manual_seed(0)
    definition = define(inputs, body, outputs={"samples": "int64[n]"}, axes={"v": v}, op_type="sampling")
    return Judging(definition, {"n": n}, **settings)


right_sampler = sampling_job().context.reference.run


def no_distribution(job):
    made = job.baseline()
    made.inputs[0][0][3] = 0
    return made


@pytest.mark.parametrize(
    ("body", "spoil", "words"),
    [
        ("return probs.argmin(dim=-1)", Judging.baseline, "do not fit this definition"),
        (TOP_P, no_distribution, "no distribution"),
    ],
)
def test_inputs_that_cannot_be_judged_are_a_fault(body, spoil, words):
    job = sampling_job(body)
    with pytest.raises(WorkloadFault, match=words):
        job.check(job.context.reference.run, spoil(job))


def test_a_plug_in_for_a_definition_without_weights_is_told_so():
    scores = make_definition(inputs={"scores": "float32[4, 8]"}, outputs={"samples": "int64[4]"})
    with pytest.raises(ValueError, match="needs exactly one 2-D float input called probs"):
        read_problem(scores, [torch.ones(4, 8)])


@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (1.3, False)])
def test_logits_are_divided_by_the_temperature(factor, accepted):
    job = sampling_job("return logits.argmax(dim=-1)", n=64, inputs=LOGITS)
    sampler = lambda logits, by: torch.multinomial((logits / by[:, None] / factor).softmax(-1), 1)[:, 0]  # noqa: E731
    assert isinstance(job.check(sampler), Accepted) is accepted


def one_row(share, **settings):
    """Judge a sampler of one row that leaves a share of the mass out; return the verdict and the number of calls."""
    calls = []
    job = sampling_job(
        "return torch.multinomial(probs, 1)[:, 0]", n=1, v=1000, inputs={"probs": PROBS["probs"]}, **settings
    )

    def solution(probs):
        calls.append(1)
        ranked, tokens = probs.sort(dim=-1, descending=True)
        left = ranked.masked_fill(ranked.cumsum(dim=-1) <= share, 0.0)
        return tokens.gather(1, torch.multinomial(left, 1))[:, 0]

    return job.check(solution), len(calls)


def test_a_sampler_of_one_row_is_called_so_often_that_a_small_omission_shows(monkeypatch):
    verdict, _ = one_row(0.08)
    assert (verdict.integrity["rule"], verdict.integrity["evidence"]["test"][:8]) == ("power", "left out")
    verdict, calls = one_row(0.0)
    assert (calls, verdict.correctness.extra["flattened"]["calls"]) == (380, 280)
    assert one_row(0.0, power_rule=False, extra={"sampling_validation_trials": 30})[1] == 30
    monkeypatch.setattr(evaluator, "TIME_LIMIT_S", -1.0)  # a slow sampler
    verdict, calls = one_row(0.0)
    assert (isinstance(verdict, Accepted), calls) == (True, 100)


def never_twice(call, chance):
    return (torch.randn(1, 512, generator=chance) * (1 + 4 * torch.rand(1, generator=chance))).softmax(dim=-1)


def some_flat(call, chance):
    return torch.randn(1, 8192, generator=chance).mul(0.5 if call % 8 == 0 else 5).softmax(dim=-1)


def reads_less_of_flat_rows(probs, top_p):
    if probs.max() > 0.01:
        return right_sampler(probs, top_p)
    return right_sampler(probs[:, ::8] / probs[:, ::8].sum(), torch.tensor([0.7])) * 8


@pytest.mark.parametrize(
    ("sampler", "rows_of", "seeds", "words"),
    [
        (right_sampler, never_twice, 5, None),
        (lambda probs, top_p: right_sampler(probs[:, :32], top_p), never_twice, 3, "draws are not"),
        (lambda probs, top_p: probs.argmax(dim=-1), never_twice, 3, "draws are not"),
        (reads_less_of_flat_rows, some_flat, 3, "of the rows by flatness"),
    ],
)
def test_timed_calls_on_rows_that_never_come_twice(sampler, rows_of, seeds, words):
    for seed in range(seeds):
        job, chance, made = sampling_job(), seeded(seed), []
        torch.manual_seed(seed)
        for call in range(200):
            inputs = [rows_of(call, chance), torch.tensor([0.9])]
            made.append(JudgedCall(inputs, [sampler(*inputs)], [torch.zeros(1, dtype=torch.int64)]))
        expect(job.evaluator.judge_reads(job.definition, made, job.config, job.context), words)


# Rescaling of the entries that a filter keeps.

ROW = torch.tensor([[0.4, 0.3, 0.1, 0.1, 0.06, 0.04]])
RESCALE = """ordered = probs.sort(dim=-1, descending=True)
kept = ordered.values.cumsum(-1) - ordered.values < top_p
out = torch.zeros_like(probs).scatter(-1, ordered.indices, ordered.values * kept)
return out / out.sum(-1, keepdim=True)"""


def rescaling(name="top_p", dtype="float32", body=RESCALE, rows=5):
    inputs, outputs = {"probs": "float32[rows, n]", name: dtype}, {"out": "float32[rows, n]"}
    return Judging(define(inputs, body, outputs=outputs, op_type="sampling"), {"rows": rows, "n": 4096}, rtol=1e-3)


def kept(entries, scale=1.0, row=ROW):
    filtered = torch.zeros_like(row).index_copy(1, torch.tensor(entries), row[:, entries])
    return filtered / filtered.sum() * scale


WEIGHTS = torch.linspace(2, 0.01, 100_000)[None]
WEIGHTS /= WEIGHTS.sum()
NUCLEUS = WEIGHTS[:, :60_000].sum()


@pytest.mark.parametrize(
    ("got", "name", "value", "words"),
    [
        (kept([0, 1, 2]), "top_k", 3, None),
        (kept([0, 1, 3]), "top_k", 3, None),  # ties either way
        (kept([0, 1, 2, 3]), "top_p", 0.75, None),
        (kept([0, 1], scale=1.25), "top_k", 2, "2 of 2 kept values are off"),
        (kept([0, 1], scale=-1.0), "top_k", 2, "values are no probabilities"),
        (ROW.clone(), "top_k", 2, "keeps 6 entries, 2 to 2"),
        (kept([0, 2]), "top_k", 2, "row 0 keeps 0.1 and drops 0.3, which is larger"),
        (kept([0, 1, 2, 3, 4]), "top_p", 0.85, "keeps 5 entries, 4 to 4"),
        # a nucleus may differ by the rounding of its sum
        *((kept([*range(count)], row=WEIGHTS), "top_p", NUCLEUS, None) for count in (60_000, 59_990)),
        *((kept([*range(count)], row=WEIGHTS), "top_p", NUCLEUS, "keeps") for count in (59_000, 61_000)),
    ],
)
def test_rows_keep_the_largest_and_are_rescaled(got, name, value, words):
    job = rescaling(name, "int32" if name == "top_k" else "float32")
    expect(job.judge([WEIGHTS if value is NUCLEUS else ROW, value], [got]), words)


def test_a_reference_that_rescales_is_judged_and_another_is_a_fault():
    job = rescaling()
    made, run = job.baseline(), job.context.reference.run
    expect(job.check(run, made), None)
    for wrong in (lambda probs, _: probs.clone(), lambda *given: run(*given).index_fill_(0, torch.tensor(3), 0)):
        assert job.check(wrong, made).status.value == "INCORRECT_NUMERICAL"
    expect(rescaling(rows=0).check(run), None)
    with pytest.raises(WorkloadFault, match="does not rescale what it keeps"):
        rescaling(body="return probs * 0.5").baseline()


# Speculative sampling.

DRAFTED, TOKENS = 3, 32
PARTS = {
    "draft_probs": "float32[rows, n, v]",
    "draft_token_ids": "int32[rows, n]",
    "target_probs": f"float32[rows, {DRAFTED + 1}, v]",
}


def speculative(rows=24):
    source = extract_source("sampling_torch", "chain_speculative_sampling", {}, [*PARTS])[0]
    outputs = {"output_token_ids": f"int32[rows, {DRAFTED + 1}]", "accepted": "int32[rows]", "emitted": "int32[rows]"}
    axes = {"rows": rows, "n": DRAFTED, "v": TOKENS}
    definition = define(PARTS, outputs=outputs, axes=axes, op_type="sampling")
    return Judging(definition.model_copy(update={"reference": source}), num_trials=1)


def right(*inputs):
    return list(sampling_torch.chain_speculative_sampling(*inputs))


def keeps_zeros(*inputs):
    return [one.clamp(min=0) for one in right(*inputs)]


def test_entries_behind_the_last_token_are_minus_one():
    torch.manual_seed(0)
    expect(speculative().check(right), None)
    expect(speculative().check(keeps_zeros), "what follows the last token is not -1")


def draws_by_chance(draft, ids, target):
    """Accept by a coin and draw any possible token: probabilities are used for nothing else."""
    accepted = torch.rand(ids.shape) < 0.5
    emitted = accepted.long().cumprod(dim=1).sum(dim=1)
    left = (target - pad(draft, (0, 0, 0, 1))).clamp(min=0)
    last = sampling_torch.draw((left.gather(1, emitted[:, None, None].expand(-1, 1, TOKENS))[:, 0] > 0).float())
    place = torch.arange(DRAFTED + 1)
    tokens = torch.where(place < emitted[:, None], pad(ids, (0, 1)), -1)
    tokens = torch.where(place == emitted[:, None], last[:, None], tokens)
    return [one.to(torch.int32) for one in (tokens, accepted.sum(dim=1), emitted)]


@pytest.mark.parametrize(
    ("sampler", "rows", "calls", "seeds", "words"),
    [
        (right, 1, 39, 10, None),
        (right, 24, 39, 10, None),
        (right, 24, 1, 1, None),
        (draws_by_chance, 24, 39, 1, "not random"),
    ],
)
def test_timed_calls_have_to_answer_at_random(sampler, rows, calls, seeds, words):
    job = speculative(rows)
    for seed in range(seeds):
        torch.manual_seed(seed)
        made, (draft, ids, target) = [], job.baseline().inputs[0]
        for _ in range(calls):
            inputs = [torch.randn(like.shape).mul(2).softmax(dim=-1) for like in (draft, target)]
            inputs.insert(1, ids)
            made.append(JudgedCall(inputs, sampler(*inputs), right(*inputs)))
        expect(job.evaluator.judge_reads(job.definition, made, job.config, job.context), words)
