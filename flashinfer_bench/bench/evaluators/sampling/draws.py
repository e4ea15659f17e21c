"""Judges the draws of a sampler. A draw is one token of one row, drawn in one call.

Every draw has to be allowed. All draws together have to look like draws of the right distribution: how often groups of
tokens come, over all rows and in each row, and whether calls and rows are independent. Counting single tokens would not
work: with 128,256 tokens and some thousand draws, a perfect sampler is far from the expected shares.

A hundred calls of one row are a hundred draws: few for a sampler that leaves out the likeliest 8 % of the mass. And if
one token has most of a row, leaving others out changes hardly anything. So by the rule `power` a sampler is called on
flattened rows, too: the same rows with a higher temperature, until no token has more than about a hundredth of the
mass. There are enough calls for the smallest cheat that is worth having to show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NamedTuple

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import find_weights
from flashinfer_bench.bench.evaluators.evaluator import Accepted, JudgedCall, Rejected, Verdict
from flashinfer_bench.bench.evaluators.sampling.rules import (
    CHUNK_ELEMENTS,
    ORDERS,
    PlacedDraws,
    SamplingProblem,
    join_problems,
    place_draws,
    read_problem,
)
from flashinfer_bench.bench.evaluators.sampling.statistics import (
    PART_GROUPS,
    measure_agreement,
    measure_chances,
    measure_distance,
    measure_omission,
    measure_overuse,
    measure_shares,
)
from flashinfer_bench.bench.evaluators.verdict import check_form, decide, read_parameter
from flashinfer_bench.data import Correctness, Definition, EvaluationStatus

LEAST_CALLS_TO_MOVE: Final = 8
"""Calls from which on rows are tested for equal tokens in one call; fewer calls are too few to be moved."""
TIMED_SHARE: Final = 0.05
"""Timed draws are rejected by chance this many times as often as the first draws: they are a second look."""
PARTS: Final = {"quarter": 4, "eighth": 8}
"""Parts of the rows of timed draws, by their largest probability, the flattest first."""
LEAST_PART: Final = 24
"""Fewer draws of a part are not tested by themselves."""
DETECTABLE: Final = 5.5
"""Divided by the root of the number of draws, this is the mass that a sampler can hardly move from one group of tokens
to another without being rejected. Few draws show coarse faults only."""

POWER: Final = "power"
CHANCE_UNSEEN: Final = 3e-8
"""Chance that a right sampler draws nothing in a part of the least mass: below the limit of any verdict."""
FLATTEST, SHARPEST = 0.002, 0.012
"""The largest probability of a flattened row lies between these, as far as LEAST_FACTOR lets it."""
LEAST_FACTOR: Final = 0.05
"""Logits are multiplied by no less: where all probabilities tie, filters may keep any of them."""
MOST_KINDS: Final = 8
"""Flattened inputs of a job, at most; each is used for several calls."""
KINDS_ELEMENTS: Final = 1 << 21
"""Probabilities of all kinds together, about."""
STEPS: Final = 10
"""Halvings in which the temperature is found."""
FLAT_SHARE: Final = 0.1
"""Draws from flattened rows reject a right sampler by chance this many times as often as the first draws."""


@dataclass(frozen=True)
class SamplingLimits:
    """The parameters of samplers' evaluators, with their defaults."""

    trials: int = 100
    """Calls of the sampler for one verdict."""
    tvd_threshold: float = 0.2
    """Largest total variation distance from the expected distribution, beyond the noise of a perfect sampler."""
    false_alarm_rate: float = 1e-4
    """Chance that a perfect sampler is rejected, over all tests of a verdict together; with 0 the distance is the only
    test of the distribution."""
    least_shift: float = 0.06
    """Mass that a sampler may not leave out unseen. Leaving out less saves next to nothing."""

    @classmethod
    def of(cls, cfg: ResolvedEvalConfig) -> SamplingLimits:
        """Read the parameters from a configuration.

        Raises:
            WorkloadFault: a parameter is out of range.
        """
        return cls(
            int(read_parameter(cfg, "sampling_validation_trials", cls.trials)),
            read_parameter(cfg, "sampling_tvd_threshold", cls.tvd_threshold),
            read_parameter(cfg, "sampling_false_alarm_rate", cls.false_alarm_rate),
            read_parameter(cfg, "sampling_least_shift", cls.least_shift),
        )

    def find_odd(self, chances: Mapping[str, float], *, alarm_share: float = 1.0) -> str | None:
        """Say what is too odd for a perfect sampler, by the p-values of several tests; None if nothing is.

        Args:
            chances: test → p-value.
            alarm_share: a perfect sampler is rejected this many times as often as the limits say.
        """
        oddest = find_oddest(chances)
        if chances[oddest] * len(chances) >= self.false_alarm_rate * alarm_share:
            return None
        seldom = f"a perfect sampler looks this odd once in {1 / max(chances[oddest], 1e-300):.3g} times"
        return f"not random as they should be: {oddest}: {seldom}"


class PlacedCalls(NamedTuple):
    """Draws of several calls, each on rows of its own."""

    places: torch.Tensor
    """[orders, calls, rows]."""
    peaks: torch.Tensor
    """[calls, rows]: the largest probability of each row."""


def find_oddest(chances: Mapping[str, float]) -> str:
    """Return the test with the smallest p-value."""
    return min(chances, key=chances.__getitem__)


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
    placed = place_draws(problem, tokens, generator)
    forbidden = find_forbidden(problem, tokens, placed)
    if forbidden is not None:
        return forbidden
    chances = _test_places(placed.places, limits) | _test_tokens(placed, tokens.cpu(), generator)
    distances = {order: measure_distance(places) for order, places in _orders(placed.places)}
    worst = max(distances, key=lambda order: distances[order].tvd - distances[order].noise)
    distance, (calls, rows) = distances[worst], tokens.shape
    correctness = Correctness(
        max_absolute_error=max(0.0, distance.tvd - distance.noise),
        extra={
            "calls": calls,
            "draws": tokens.numel(),
            "tvd": distance.tvd,
            "tvd_noise": distance.noise,
            "tvd_threshold": limits.tvd_threshold,
            "detectable_shift": DETECTABLE / math.sqrt(tokens.numel()),
            "smallest_p_value": min(chances.values()),
            "p_values": chances,
        },
    )
    facts = f"total variation distance {distance.tvd:.4g}, noise of a perfect sampler {distance.noise:.4g}"
    draws = f"{calls} calls of {rows} rows"
    if distance.tvd > limits.tvd_threshold + distance.noise:
        over = f"threshold {limits.tvd_threshold:g} on top of the noise; tokens grouped by {worst}; {draws}"
        return decide(f"the draws are too far from the expected distribution: {facts}, {over}", correctness)
    odd = limits.find_odd(chances)
    return decide(None if odd is None else f"the draws are {odd} ({draws}; {facts})", correctness)


def _test_tokens(placed: PlacedDraws, tokens: torch.Tensor, generator: torch.Generator) -> dict[str, float]:
    """Test single tokens for being drawn too often, and rows for equal tokens."""
    calls, rows = tokens.shape
    keys = tokens + torch.arange(rows) * (int(tokens.max()) + 1)
    _, group, counts = torch.unique(keys, return_inverse=True, return_counts=True)
    share = torch.zeros(counts.shape, dtype=torch.float64)
    share[group.reshape(-1)] = placed.share.reshape(-1)
    kept = int(placed.kept.sum())
    chances = {"single tokens": measure_overuse(counts.double(), share, calls=calls, candidates=kept)}
    if rows > 1 and calls >= LEAST_CALLS_TO_MOVE:
        chances["equal tokens in one call"] = measure_agreement(tokens, generator)
    return chances


def find_forbidden(
    problem: SamplingProblem, tokens: torch.Tensor, placed: PlacedDraws, *, groups: int = 1
) -> Rejected | None:
    """Return the verdict on draws [calls, groups x rows] that are not allowed; None if all are."""
    if bool(placed.allowed.all()):
        return None
    wrong = ~placed.allowed
    call, row = (int(index) for index in wrong.nonzero()[0])
    token, vocabulary = int(tokens[call, row]), problem.probabilities.shape[1]
    why = f"the vocabulary has {vocabulary}"
    if 0 <= token < vocabulary:
        filters = ", ".join(f"{name}={value.item():g}" for name, value in problem.filters(row).items())
        allowed = f"{int(placed.kept[row])} tokens are allowed{f' ({filters})' if filters else ''}"
        why = f"its probability is {float(problem.probabilities[row, token]):.4g}; {allowed}"
    count = int(wrong.sum())
    first = f"the first is token {token} in call {call}, row {row % (tokens.shape[1] // groups)}: {why}"
    message = f"{count} of {tokens.numel()} draws are not allowed; {first}"
    found = {"calls": len(tokens), "draws": tokens.numel(), "not_allowed": count}
    correctness = Correctness(max_absolute_error=float(wrong.double().mean()), extra=found)
    return Rejected(EvaluationStatus.INCORRECT_NUMERICAL, message, correctness)


def judge_timed(
    definition: Definition, calls: Sequence[JudgedCall], limits: SamplingLimits, generator: torch.Generator
) -> Verdict:
    """Judge timed calls, each on probabilities of its own; few of them show coarse faults only.

    A sampler may leave tokens out in some of the rows, such as flat ones. Among the draws of all rows that is hardly
    seen. So each quarter of the rows, by how flat they are, is tested by itself, and each eighth.
    """
    placed = place_calls(definition, calls, generator)
    if isinstance(placed, Rejected):
        return placed
    chances, by_flatness = _test_places(placed.places, limits), placed.peaks.reshape(-1).argsort()
    for order, drawn in _orders(placed.places):
        for name, count in PARTS.items():
            parts = drawn.reshape(-1)[by_flatness].chunk(count) if len(by_flatness) >= count * LEAST_PART else ()
            for number, part in enumerate(parts, 1):
                words = f"{name} {number} of the rows by flatness, tokens by {order}"
                chances[f"shares, {words}"] = measure_shares(part, PART_GROUPS)
                chances[f"left out, {words}"] = measure_omission(part, limits.least_shift)
    odd = limits.find_odd(chances, alarm_share=TIMED_SHARE)
    found = {"calls": len(placed.peaks), "smallest_p_value": min(chances.values())}
    return decide(None if odd is None else f"the draws are {odd}", Correctness(extra=found))


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
    chances = _test_places(placed.places, limits)
    odd = limits.find_odd(chances, alarm_share=FLAT_SHARE)
    found = {"calls": len(calls), "least_shift": limits.least_shift, "smallest_p_value": min(chances.values())}
    correctness = correctness.model_copy(update={"extra": {**(correctness.extra or {}), "flattened": found}})
    if odd is None:
        return Accepted(correctness)
    message = f"the draws from flattened rows are {odd} ({len(calls)} calls; rule {POWER!r})"
    integrity = {"rule": POWER, "evidence": {"test": find_oddest(chances), **found}}
    return Rejected(EvaluationStatus.INCORRECT_NUMERICAL, message, correctness, integrity)


def place_calls(
    definition: Definition, calls: Sequence[JudgedCall], generator: torch.Generator
) -> PlacedCalls | Rejected:
    """Return the places of draws, or the verdict on a wrong one.

    Calls on the same inputs stand together. Several such groups are placed at once, as rows of one problem: of a
    hundred calls on two rows each, to place them one by one takes half a second on a GPU.
    """
    groups: list[tuple[SamplingProblem, torch.Tensor]] = []
    for _, group in groupby(calls, key=lambda call: id(call.inputs)):
        alike, draws = list(group), []
        for call in alike:
            got = check_form(definition, call.got, call.expected)
            if isinstance(got, Rejected):
                return got
            draws.append(got[0])
        problem = read_problem(definition, alike[0].inputs)
        groups.append((problem, torch.stack(draws).to(problem.probabilities.device, torch.int64)))
    groups.sort(key=lambda group: len(group[1]))
    together = max(1, CHUNK_ELEMENTS // groups[0][0].probabilities.numel())
    found = []
    for _, equal in groupby(groups, key=lambda group: len(group[1])):
        some = list(equal)
        for start in range(0, len(some), together):
            problems, tokens = zip(*some[start : start + together], strict=True)
            placed = _place_together(join_problems(problems), torch.cat(tokens, dim=1), len(problems), generator)
            if isinstance(placed, Rejected):
                return placed
            found.append(placed)
    return PlacedCalls(torch.cat([one.places for one in found], dim=1), torch.cat([one.peaks for one in found]))


def _place_together(
    problem: SamplingProblem, tokens: torch.Tensor, groups: int, generator: torch.Generator
) -> PlacedCalls | Rejected:
    """Place draws [calls, groups x rows]; return the calls of one group behind those of another."""
    placed = place_draws(problem, tokens, generator)
    forbidden = find_forbidden(problem, tokens, placed, groups=groups)
    if forbidden is not None:
        return forbidden
    places = placed.places.view(len(ORDERS), len(tokens), groups, -1).movedim(2, 1).flatten(1, 2)
    peaks = problem.probabilities.amax(dim=1).cpu().view(groups, 1, -1).expand(-1, len(tokens), -1).flatten(0, 1)
    return PlacedCalls(places, peaks)


def _orders(places: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Return each order in words, and the places [calls, rows] in it."""
    return zip(ORDERS, places, strict=True)


def _test_places(places: torch.Tensor, limits: SamplingLimits) -> dict[str, float]:
    """Return the p-value of each test of places [orders, calls, rows]."""
    chances: dict[str, float] = {}
    for order, drawn in _orders(places):
        tests = {**measure_chances(drawn), "left out": measure_omission(drawn, limits.least_shift)}
        chances.update({f"{test}, tokens by {order}": chance for test, chance in tests.items()})
    return chances


def count_calls(rows: int, least_shift: float) -> int:
    """Return how often a sampler of some rows is called on flattened rows."""
    return math.ceil(math.log(CHANCE_UNSEEN) / math.log1p(-least_shift) / max(rows, 1))


def make_flattened(
    definition: Definition, inputs: list[Any], calls: int, generator: torch.Generator
) -> Iterator[tuple[list[Any], int]]:
    """Yield flattened inputs, each with the number of calls that it is used for.

    Args:
        definition: names the input with probabilities or logits.
        inputs: in the order of the definition.
        calls: of all flattened inputs together.
        generator: on the CPU.
    """
    name = find_weights(definition) or ""
    at = list(definition.inputs).index(name)
    weights = inputs[at]
    kinds = max(1, min(calls, MOST_KINDS, KINDS_ELEMENTS // max(weights.numel(), 1)))
    for kind in range(kinds):
        share = torch.rand((weights.shape[0], 1), generator=generator).to(weights.device)
        flat = flatten(weights, FLATTEST * (SHARPEST / FLATTEST) ** share, are_logits="logits" in name.lower())
        yield [*inputs[:at], flat, *inputs[at + 1 :]], calls // kinds + (kind < calls % kinds)


def flatten(weights: torch.Tensor, target: torch.Tensor, *, are_logits: bool) -> torch.Tensor:
    """Return rows whose largest probability is at most about the target [rows, 1]; flatter rows stay as they are.

    What is impossible stays impossible.
    """
    logits = weights.float() if are_logits else weights.float().log()
    low, high = torch.full_like(target, LEAST_FACTOR), torch.ones_like(target)
    for _ in range(STEPS):
        middle = (low + high) / 2
        is_sharp = (logits * middle).softmax(dim=-1).amax(dim=-1, keepdim=True) > target
        low, high = torch.where(is_sharp, low, middle), torch.where(is_sharp, middle, high)
    flat = logits * low
    return (flat if are_logits else flat.softmax(dim=-1)).to(weights.dtype)
