"""The Sampling evaluator. A sampler is random, so its draws are judged, not compared. A draw is one token of one row.

Every draw has to be allowed. All draws together have to look like draws of the right distribution: how often groups of
tokens come, over all rows and in each row, and whether calls and rows are independent. Counting single tokens would not
work: with 128,256 tokens and some thousand draws, a perfect sampler is far from the expected shares.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import COUNT, SHARE, EvaluatorRecord, ExtraKey, find_weights, is_number
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import JudgeContext, JudgedCall, SolutionRunnable
from flashinfer_bench.bench.evaluators.inputs.seeds import make_generator
from flashinfer_bench.bench.evaluators.sampling.calls import ORDERS, PlacedCalls, find_forbidden, place_calls
from flashinfer_bench.bench.evaluators.sampling.power import (
    ALARM_SHARE,
    DEFAULT_LEAST_SHIFT,
    PATIENCE_S,
    POWER,
    count_calls,
    make_flattened,
)
from flashinfer_bench.bench.evaluators.sampling.rules import (
    PlacedDraws,
    SamplingProblem,
    place_draws,
    read_problem,
)
from flashinfer_bench.bench.evaluators.sampling.statistics import (
    PART_GROUPS,
    Distance,
    measure_agreement,
    measure_chances,
    measure_distance,
    measure_omission,
    measure_overuse,
    measure_shares,
)
from flashinfer_bench.bench.evaluators.verdict import Accepted, Rejected, Verdict, check_form, decide, read_parameter
from flashinfer_bench.data import Correctness, Definition, EvaluationStatus
from flashinfer_bench.data.dtypes import DTYPES
from flashinfer_bench.errors import DefinitionFault

DEFAULT_TRIALS: Final = 100
"""Calls of the sampler for one verdict."""
DEFAULT_THRESHOLD: Final = 0.2
"""Largest total variation distance from the expected distribution, beyond the noise of a perfect sampler."""
DEFAULT_FALSE_ALARM: Final = 1e-4
"""Chance that a perfect sampler is rejected, over all tests of a verdict together."""
LEAST_CALLS_TO_MOVE: Final = 8
"""Calls from which on rows are tested for equal tokens in one call; fewer calls are too few to be moved."""
TIMED_DRAWS: Final = 96
"""Draws of each timed trial that are judged at the least. Who draws the likeliest token passes where that has more than
nine tenths of a row."""
TIMED_SHARE: Final = 0.05
"""Timed draws are rejected by chance this many times as often as the first draws: they are a second look."""
PARTS: Final = {"quarter": 4, "eighth": 8}
"""Parts of the rows of timed draws, by their largest probability, the flattest first."""
LEAST_PART: Final = 24
"""Fewer draws of a part are not tested by themselves."""
DETECTABLE: Final = 5.5
"""Divided by the root of the number of draws, this is the mass that a sampler can hardly move from one group of tokens
to another without being rejected. Few draws show coarse faults only."""

TRIALS: Final = "sampling_validation_trials"
TVD_THRESHOLD: Final = "sampling_tvd_threshold"
FALSE_ALARM_RATE: Final = "sampling_false_alarm_rate"
LEAST_SHIFT: Final = "sampling_least_shift"
"""Mass that a sampler may not omit unseen: the rule `power` calls it until omitting it would show."""


def draws_tokens(definition: Definition) -> bool:
    """Tell whether a definition gives one token for each row of probabilities or logits."""
    specs = list(definition.outputs.values())
    is_tokens = len(specs) == 1 and DTYPES[specs[0].dtype].kind == "int" and len(specs[0].shape or ()) == 1
    return is_tokens and find_weights(definition) is not None


class SamplingEvaluator(DefaultEvaluator):
    """Takes definitions of op type sampling that draw one token for each row of probabilities or logits."""

    record = EvaluatorRecord(
        revision=2,
        op_types=("sampling",),
        takes=draws_tokens,
        extra_keys={
            TRIALS: COUNT,
            TVD_THRESHOLD: SHARE,
            FALSE_ALARM_RATE: SHARE,
            LEAST_SHIFT: ExtraKey(
                "a number from 0.001 to 0.5", lambda value: is_number(value) and 1e-3 <= value <= 0.5
            ),
        },
    )
    is_random = True
    needs_expected = False

    @classmethod
    def count_reads(cls, elements: int) -> int:
        """Give so many calls that TIMED_DRAWS draws of each trial are judged."""
        return math.ceil(TIMED_DRAWS / max(elements, 1))

    @classmethod
    def check_correctness(
        cls,
        definition: Definition,
        sol_runnable: SolutionRunnable,
        inputs: list[list[Any]],
        ref_outputs: list[list[torch.Tensor]],
        cfg: ResolvedEvalConfig,
        *,
        context: JudgeContext,
    ) -> Verdict:
        """Call the sampler many times on the inputs of the first trial and judge all draws together."""
        limits = SamplingLimits.of(cfg)
        problem = read_problem(definition, inputs[0])
        draws = []
        for outputs in sol_runnable.call_repeatedly(inputs[0], limits.trials):
            got = check_form(definition, outputs, ref_outputs[0])
            if isinstance(got, Rejected):
                return got
            draws.append(got[0].to(problem.probabilities.device, torch.int64))
        tokens = torch.stack(draws)
        generator = make_generator(context.seed, "places of draws", device=torch.device("cpu"))
        verdict = judge_draws(problem, tokens, limits, generator)
        if isinstance(verdict, Rejected):
            _check_reference(definition, problem, ref_outputs[0][0], generator)
            return verdict
        if not cfg.power_rule:
            return verdict
        count = count_calls(problem.rows, limits.least_shift)
        made: list[JudgedCall] = []
        deadline = time.monotonic() + PATIENCE_S
        for flat, calls in make_flattened(definition, inputs[0], count, generator):
            for outputs in sol_runnable.call_repeatedly(flat, calls):
                made.append(JudgedCall(flat, outputs, ref_outputs[0]))
                if time.monotonic() > deadline:
                    return judge_flattened(definition, made, limits, generator, verdict.correctness)
        return judge_flattened(definition, made, limits, generator, verdict.correctness)

    @classmethod
    def judge_reads(
        cls, definition: Definition, calls: Sequence[JudgedCall], cfg: ResolvedEvalConfig, context: JudgeContext
    ) -> Verdict:
        """Judge timed calls, each on probabilities of its own: every token is allowed, and their places are uniform.

        The calls of `check_correctness` have equal inputs, and timed ones have not. So whoever tells them apart may do
        without a part of each row in timed calls only.
        """
        limits = SamplingLimits.of(cfg)
        generator = make_generator(context.seed, "places of timed draws", device=torch.device("cpu"))
        placed = place_calls(definition, calls, generator)
        return placed if isinstance(placed, Rejected) else judge_timed_places(placed, limits)

    @classmethod
    def rehearse(cls, definition: Definition, call: JudgedCall, cfg: ResolvedEvalConfig, context: JudgeContext) -> None:
        """Judge the call's draws as timed ones, and as those of a verdict; flatten its rows."""
        cls.judge_reads(definition, [call, call], cfg, context)
        problem, generator = read_problem(definition, call.inputs), make_generator(0, "", device=torch.device("cpu"))
        tokens = call.got[0].to(problem.probabilities.device, torch.int64).expand(2, -1)
        judge_draws(problem, tokens, SamplingLimits.of(cfg), generator)
        for _ in make_flattened(definition, call.inputs, 1, generator):
            break


@dataclass(frozen=True)
class SamplingLimits:
    """The parameters of this evaluator."""

    trials: int = DEFAULT_TRIALS
    tvd_threshold: float = DEFAULT_THRESHOLD
    false_alarm_rate: float = DEFAULT_FALSE_ALARM
    """Chance that a perfect sampler is rejected; with 0 the distance is the only test of the distribution."""
    least_shift: float = DEFAULT_LEAST_SHIFT
    """Mass that a sampler may not leave out unseen."""

    @classmethod
    def of(cls, cfg: ResolvedEvalConfig) -> SamplingLimits:
        """Read the parameters from a configuration.

        Raises:
            WorkloadFault: a parameter is out of range.
        """
        trials = read_parameter(cfg, TRIALS, DEFAULT_TRIALS)
        threshold = read_parameter(cfg, TVD_THRESHOLD, DEFAULT_THRESHOLD)
        false_alarm = read_parameter(cfg, FALSE_ALARM_RATE, DEFAULT_FALSE_ALARM)
        return cls(int(trials), threshold, false_alarm, read_parameter(cfg, LEAST_SHIFT, DEFAULT_LEAST_SHIFT))


def judge_timed_places(placed: PlacedCalls, limits: SamplingLimits) -> Verdict:
    """Judge the places of timed draws, by the tokens' order; few of them show coarse faults only.

    A sampler may leave tokens out in some of the rows, such as flat ones. Among the draws of all rows that is hardly
    seen. So each quarter of the rows, by how flat they are, is tested by itself, and each eighth.
    """
    chances = measure_places(placed.places, limits) | measure_parts(placed, limits)
    oddest = min(chances, key=lambda test: chances[test])
    wrong = None
    if chances[oddest] * len(chances) < limits.false_alarm_rate * TIMED_SHARE:
        wrong = f"the draws are not random as they should be: {describe_chance(oddest, chances)}"
    return decide(wrong, Correctness(extra={"calls": len(placed.peaks), "smallest_p_value": chances[oddest]}))


def measure_parts(placed: PlacedCalls, limits: SamplingLimits) -> dict[str, float]:
    """Give the p-value of each test of a part of the rows, in each order of the tokens; none where there are few."""
    by_flatness = placed.peaks.reshape(-1).argsort()
    chances: dict[str, float] = {}
    for order, drawn in placed.places.items():
        for name, count in PARTS.items():
            parts = drawn.reshape(-1)[by_flatness].chunk(count) if len(by_flatness) >= count * LEAST_PART else ()
            for number, part in enumerate(parts, 1):
                words = f"{name} {number} of the rows by flatness, tokens by {ORDERS[order]}"
                chances[f"shares, {words}"] = measure_shares(part, PART_GROUPS)
                chances[f"left out, {words}"] = measure_omission(part, limits.least_shift)
    return chances


def measure_places(places: Mapping[str, torch.Tensor], limits: SamplingLimits) -> dict[str, float]:
    """Give the p-value of each test of places [calls, rows] in each order of the tokens."""
    chances: dict[str, float] = {}
    for order, drawn in places.items():
        tests = {**measure_chances(drawn), "left out": measure_omission(drawn, limits.least_shift)}
        chances.update({f"{test}, tokens by {ORDERS[order]}": chance for test, chance in tests.items()})
    return chances


def judge_flattened(
    definition: Definition,
    calls: Sequence[JudgedCall],
    limits: SamplingLimits,
    generator: torch.Generator,
    correctness: Correctness,
) -> Verdict:
    """Judge calls on flattened rows, and add what they show to what is known of the sampler."""
    placed = place_calls(definition, calls, generator)
    if isinstance(placed, Rejected):
        return placed
    chances = measure_places(placed.places, limits)
    oddest = min(chances, key=lambda test: chances[test])
    found = {"calls": len(calls), "least_shift": limits.least_shift, "smallest_p_value": chances[oddest]}
    correctness = correctness.model_copy(update={"extra": {**(correctness.extra or {}), "flattened": found}})
    if chances[oddest] * len(chances) >= limits.false_alarm_rate * ALARM_SHARE:
        return Accepted(correctness)
    message = (
        f"the draws from flattened rows are not random as they should be: {describe_chance(oddest, chances)} "
        f"({len(calls)} calls; rule {POWER!r})"
    )
    integrity = {"rule": POWER, "evidence": {"test": oddest, **found}}
    return Rejected(EvaluationStatus.INCORRECT_NUMERICAL, message, correctness, integrity)


def judge_draws(
    problem: SamplingProblem, tokens: torch.Tensor, limits: SamplingLimits, generator: torch.Generator
) -> Verdict:
    """Judge draws [calls, rows] of a sampler.

    Args:
        problem: what the sampler was given.
        tokens: the draws, int64, on the device of the problem.
        limits: the parameters that decide.
        generator: a generator on the CPU.
    """
    chunks = list(place_draws(problem, tokens, generator))
    forbidden = find_forbidden(problem, tokens, chunks)
    if forbidden is not None:
        return forbidden
    distances, chances = _test(chunks, tokens, generator)
    worst = max(distances, key=lambda order: distances[order].tvd - distances[order].noise)
    oddest = min(chances, key=lambda test: chances[test])
    distance = distances[worst]
    correctness = Correctness(
        max_absolute_error=max(0.0, distance.tvd - distance.noise),
        extra={
            "calls": tokens.shape[0],
            "draws": tokens.numel(),
            "tvd": distance.tvd,
            "tvd_noise": distance.noise,
            "tvd_threshold": limits.tvd_threshold,
            "detectable_shift": DETECTABLE / math.sqrt(tokens.numel()),
            "smallest_p_value": chances[oddest],
            "p_values": chances,
        },
    )
    facts = f"total variation distance {distance.tvd:.4g}, noise of a perfect sampler {distance.noise:.4g}"
    draws = f"{tokens.shape[0]} calls of {tokens.shape[1]} rows"
    wrong = None
    if distance.tvd > limits.tvd_threshold + distance.noise:
        over = f"threshold {limits.tvd_threshold:g} on top of the noise; tokens grouped by {ORDERS[worst]}; {draws}"
        wrong = f"the draws are too far from the expected distribution: {facts}, {over}"
    elif chances[oddest] * len(chances) < limits.false_alarm_rate:
        wrong = f"the draws are not random as they should be: {describe_chance(oddest, chances)} ({draws}; {facts})"
    return decide(wrong, correctness)


def describe_chance(test: str, chances: Mapping[str, float]) -> str:
    """Say how seldom a perfect sampler does as badly in a test."""
    return f"{test}: a perfect sampler looks this odd once in {1 / max(chances[test], 1e-300):.3g} times"


def _test(
    chunks: list[PlacedDraws], tokens: torch.Tensor, generator: torch.Generator
) -> tuple[dict[str, Distance], dict[str, float]]:
    """Test the places in each order, single tokens for being drawn too often, and rows for equal tokens."""
    clear = torch.cat([chunk.clear for chunk in chunks]).cpu()
    distances, chances = {}, {}
    for order, words in ORDERS.items():
        places = torch.cat([getattr(chunk, order) for chunk in chunks], dim=1).cpu()
        places = places if order == "by_probability" else places[:, clear]
        if places.numel():
            distances[order] = measure_distance(places)
            chances.update({f"{test}, tokens by {words}": chance for test, chance in measure_chances(places).items()})
    shares = torch.cat([chunk.share for chunk in chunks], dim=1)
    calls, rows = tokens.shape
    keys = tokens + torch.arange(rows, device=tokens.device) * (int(tokens.max()) + 1)
    _, group, counts = torch.unique(keys, return_inverse=True, return_counts=True)
    share = torch.zeros(counts.shape, dtype=torch.float64, device=tokens.device)
    share[group.reshape(-1)] = shares.reshape(-1)
    kept = sum(int(chunk.kept.sum()) for chunk in chunks)
    chances["single tokens"] = measure_overuse(counts.double().cpu(), share.cpu(), calls=calls, candidates=kept)
    if rows > 1 and calls >= LEAST_CALLS_TO_MOVE:
        chances["equal tokens in one call"] = measure_agreement(tokens, generator)
    return distances, chances


def _check_reference(
    definition: Definition, problem: SamplingProblem, tokens: torch.Tensor, generator: torch.Generator
) -> None:
    """Check that the reference's own draws are allowed, before a solution is rejected.

    Raises:
        DefinitionFault: they are not, so the rules do not fit the definition.
    """
    drawn = tokens.to(problem.probabilities.device, torch.int64)[None]
    if not all(bool(chunk.allowed.all()) for chunk in place_draws(problem, drawn, generator)):
        raise DefinitionFault(
            f"the reference of {definition.name} draws tokens that its own filters do not allow; "
            "the rules of the Sampling evaluator do not fit this definition"
        )
