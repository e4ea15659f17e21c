"""The Sampling evaluator. A sampler is random, so the distribution of its draws is tested.

A draw is one token of one row, drawn in one call. The filters must allow each draw. The quantiles of all draws
(`rules`) must be uniform and independent (`statistics`). Counts of single tokens are no test: with 128,256 tokens and
some thousand draws, a perfect sampler's counts are far from the expected shares. A sampler is tested three times, on:
* the first draws, many calls on the same rows;
* flattened rows (rule `power`): the same rows with a higher temperature, until no token has more than about a hundredth
  of the mass. There are enough calls to find a sampler that skips `least_shift` of the mass, even with one row;
* timed calls, each with its own rows. These are few draws, so they show coarse faults only.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import RECORDS, find_weights
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import JudgeContext, JudgedCall, Rejected, SolutionRunnable, Verdict
from flashinfer_bench.bench.evaluators.inputs.seeds import make_generator
from flashinfer_bench.bench.evaluators.sampling.rules import (
    ORDERS,
    DrawQuantiles,
    SamplingProblem,
    find_quantiles,
    read_problem,
)
from flashinfer_bench.bench.evaluators.sampling.statistics import (
    PART_GROUPS,
    measure_chances,
    measure_distance,
    measure_omission,
    measure_shares,
)
from flashinfer_bench.bench.evaluators.verdict import check_form, decide, read_parameter
from flashinfer_bench.data import Correctness, Definition, EvaluationStatus
from flashinfer_bench.errors import DefinitionFault

CPU: Final = torch.device("cpu")
TIMED_DRAWS: Final = 96
"""Minimum number of judged draws in each timed trial. With this many draws, a sampler that always draws the likeliest
token passes only if this token has more than nine tenths of the mass."""
TIME_LIMIT_S: Final = 20.0
"""Seconds after which no more calls on flattened rows are made. A sampler under Triton's interpreter is so slow that it
needs this limit. A cheating sampler gains nothing by being slow."""
TIMED_SHARE: Final = 0.05
"""Factor on the false alarm rate for timed draws, because they are a second test of the same sampler."""
PARTS: Final = (4, 8)
"""Numbers of parts into which timed draws are split. The draws are first sorted by the largest probability of their
row, the flattest row first."""
LEAST_PART: Final = 24
"""Parts with fewer draws than this are not tested."""
DETECTABLE: Final = 5.5
"""A sampler that moves the mass DETECTABLE / sqrt(number of draws) between groups of tokens is very likely rejected."""

POWER: Final = "power"
CHANCE_UNSEEN: Final = 3e-8
"""Probability that a right sampler has no draw in a range of mass `least_shift`. The probability is so small that a
sampler without such draws is rejected."""
FLATTEST, SHARPEST = 0.002, 0.012
"""The largest probability of a flattened row lies between these bounds, if LEAST_FACTOR allows it."""
LEAST_FACTOR: Final = 0.05
"""Smallest factor by which logits are multiplied. A smaller factor could make all probabilities tie, and then filters
may keep any of them."""
MOST_KINDS: Final = 8
"""Maximum number of flattened inputs in a job; each is used for several calls."""
KINDS_ELEMENTS: Final = 1 << 21
"""Approximate maximum number of probabilities in all flattened inputs together."""
STEPS: Final = 10
"""Bisection steps that find the temperature."""
FLAT_SHARE: Final = 0.1
"""Factor on the false alarm rate for draws from flattened rows."""


class SamplingEvaluator(DefaultEvaluator):
    """Takes definitions of op type sampling that draw one token for each row of probabilities or logits."""

    record = RECORDS["SamplingEvaluator"]
    is_random = True
    needs_expected = False

    @classmethod
    def count_reads(cls, elements: int) -> int:
        """Return the number of calls that give TIMED_DRAWS draws of each trial."""
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
        limits, expected = SamplingLimits.of(cfg), ref_outputs[0]
        read_problem(definition, inputs[0])  # an input that cannot be judged is no fault of the sampler
        judge = DrawJudge(definition, limits, make_generator(context.seed, "places of draws", device=CPU))
        result = judge.judge_first([*call_within(math.inf, sol_runnable, inputs[0], limits.trials, expected)])
        if isinstance(result, Rejected):
            if isinstance(judge.find_quantiles([JudgedCall(inputs[0], expected, expected)]), Rejected):
                raise DefinitionFault(
                    f"the reference of {definition.name} draws tokens that its own filters do not allow; "
                    "the rules of the Sampling evaluator do not fit this definition"
                )
            return result
        deadline = time.monotonic() + TIME_LIMIT_S
        count = count_calls(expected[0].numel(), limits.least_shift) if cfg.power_rule else 0
        flattened = [
            call
            for flat, times in make_flattened(definition, inputs[0], count, judge.generator)
            for call in call_within(deadline, sol_runnable, flat, times, expected)
        ]
        return judge.judge_flattened(flattened, result.correctness) if flattened else result

    @classmethod
    def judge_reads(
        cls, definition: Definition, calls: Sequence[JudgedCall], cfg: ResolvedEvalConfig, context: JudgeContext
    ) -> Verdict:
        """Judge timed calls, each with its own probabilities. Every token must be allowed, and the quantiles must be
        uniform.

        The calls of `check_correctness` have equal inputs; timed calls do not. A solution that detects the difference
        could skip a part of each row in timed calls only.
        """
        generator = make_generator(context.seed, "places of timed draws", device=CPU)
        return DrawJudge(definition, SamplingLimits.of(cfg), generator).judge_timed(calls)


def call_within(
    deadline: float, sol_runnable: SolutionRunnable, inputs: list[Any], count: int, expected: list[torch.Tensor]
) -> Iterator[JudgedCall]:
    """Yield at most `count` calls on the same inputs, until `time.monotonic` reaches the deadline."""
    if count <= 0 or time.monotonic() > deadline:
        return
    for outputs in sol_runnable.call_repeatedly(inputs, count):
        yield JudgedCall(inputs, outputs, expected)
        if time.monotonic() > deadline:
            return


@dataclass(frozen=True)
class SamplingLimits:
    """The parameters of samplers' evaluators, with their defaults."""

    trials: int = 100
    """Calls of the sampler on the inputs of the first trial."""
    tvd_threshold: float = 0.2
    """Largest total variation distance from the expected distribution, beyond the noise of a perfect sampler."""
    false_alarm_rate: float = 1e-4
    """Chance that a perfect sampler is rejected, over all tests of a verdict together. If it is 0, only the total
    variation distance is tested."""
    least_shift: float = 0.06
    """Largest mass that a sampler may skip undetected. A solution that skips less mass than this saves next to
    nothing."""

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
        """Return a description of the deviation that rejects a sampler; None if no test rejects it.

        Args:
            chances: test → p-value.
            alarm_share: factor on the false alarm rate.
        """
        oddest = min(chances, key=chances.__getitem__)
        if chances[oddest] * len(chances) >= self.false_alarm_rate * alarm_share:
            return None
        seldom = f"a perfect sampler looks this odd once in {1 / max(chances[oddest], 1e-300):.3g} times"
        return f"not random as they should be: {oddest}: {seldom}"


@dataclass(frozen=True)
class DrawJudge:
    """Judges the draws of one sampler."""

    definition: Definition
    limits: SamplingLimits
    generator: torch.Generator
    """A generator on the CPU, which decides the position of a draw's quantile within its token's interval."""

    def judge_first(self, calls: Sequence[JudgedCall]) -> Verdict:
        """Judge the first draws, all on the same inputs."""
        located = self.find_quantiles(calls)
        if isinstance(located, Rejected):
            return located
        chances, (tvd, noise) = self._test(located[0]), measure_distance(located[0])
        draws, threshold = located[1].numel(), self.limits.tvd_threshold
        correctness = Correctness(
            max_absolute_error=max(0.0, tvd - noise),
            extra={
                "calls": len(calls),
                "draws": draws,
                "tvd": tvd,
                "tvd_noise": noise,
                "tvd_threshold": threshold,
                "detectable_shift": DETECTABLE / math.sqrt(draws),
                "smallest_p_value": min(chances.values()),
                "p_values": chances,
            },
        )
        problem = self.limits.find_odd(chances)
        if tvd > threshold + noise:
            problem = f"too far from the expected distribution, threshold {threshold:g} on top of the noise"
        counts = f"{len(calls)} calls; total variation distance {tvd:.4g}, noise of a perfect sampler {noise:.4g}"
        return decide(problem and f"the draws are {problem} ({counts})", correctness)

    def judge_timed(self, calls: Sequence[JudgedCall]) -> Verdict:
        """Judge timed calls.

        A sampler may skip tokens in some of the rows, such as flat rows. The draws of all rows together hardly show it.
        So the rows are sorted by flatness, and each quarter and each eighth is tested alone.
        """
        located = self.find_quantiles(calls)
        if isinstance(located, Rejected):
            return located
        quantiles, peaks = located
        chances, by_flatness = self._test(quantiles), peaks.reshape(-1).argsort()
        for count in (count for count in PARTS if len(by_flatness) >= count * LEAST_PART):
            for order, drawn in zip(ORDERS, quantiles, strict=True):
                for number, part in enumerate(drawn.reshape(-1)[by_flatness].chunk(count), 1):
                    words = f"part {number} of {count} of the rows by flatness, tokens by {order}"
                    chances[f"shares, {words}"] = measure_shares(part[None], PART_GROUPS)
                    chances[f"left out, {words}"] = measure_omission(part, self.limits.least_shift)
        odd = self.limits.find_odd(chances, alarm_share=TIMED_SHARE)
        result = {"calls": len(calls), "smallest_p_value": min(chances.values())}
        return decide(odd and f"the draws are {odd}", Correctness(extra=result))

    def judge_flattened(self, calls: Sequence[JudgedCall], correctness: Correctness) -> Verdict:
        """Judge calls on flattened rows, and add the figures to the sampler's record."""
        located = self.find_quantiles(calls)
        if isinstance(located, Rejected):
            return located
        chances, least_shift = self._test(located[0]), self.limits.least_shift
        odd = self.limits.find_odd(chances, alarm_share=FLAT_SHARE)
        result = {"calls": len(calls), "least_shift": least_shift, "smallest_p_value": min(chances.values())}
        correctness = correctness.model_copy(update={"extra": {**(correctness.extra or {}), "flattened": result}})
        message = f"the draws from flattened rows are {odd} ({len(calls)} calls; rule {POWER!r})"
        integrity = {"rule": POWER, "evidence": {"test": min(chances, key=chances.__getitem__), **result}}
        return decide(odd and message, correctness, integrity)

    def find_quantiles(self, calls: Sequence[JudgedCall]) -> tuple[torch.Tensor, torch.Tensor] | Rejected:
        """Return the quantiles of draws [orders, calls, rows] and the largest probabilities [calls, rows].

        If a draw is forbidden, return the verdict instead. Calls on the same inputs must be adjacent. Inputs with equal
        numbers of calls are processed at once, as rows of one problem. Processing them one by one would be far slower
        on a GPU.
        """
        by_count: dict[int, list[tuple[SamplingProblem, torch.Tensor]]] = defaultdict(list)
        for _, group in groupby(calls, key=lambda call: id(call.inputs)):
            alike, draws = list(group), []
            for call in alike:
                got = check_form(self.definition, call.got, call.expected)
                if isinstance(got, Rejected):
                    return got
                draws.append(got[0])
            problem = read_problem(self.definition, alike[0].inputs)
            tokens = torch.stack(draws, dim=1).to(problem.probabilities.device, torch.int64)
            by_count[len(alike)].append((problem, tokens))
        all_quantiles, all_peaks = [], []
        for count, groups in by_count.items():
            problems, some = zip(*groups, strict=True)
            tokens, rows = torch.cat(some), len(some[0])
            filters = {key: torch.cat([one.filters[key] for one in problems]) for key in problems[0].filters}
            problem = SamplingProblem(torch.cat([one.probabilities for one in problems]), filters, problems[0].joint)
            located = find_quantiles(problem, tokens, self.generator)
            if not bool(located.allowed.all()):
                return _describe_forbidden(problem, tokens, located)
            quantiles = located.quantiles.view(-1, rows, count, len(ORDERS))
            all_quantiles.append(quantiles.permute(3, 0, 2, 1).flatten(1, 2))
            all_peaks.append(located.peaks.view(-1, rows).repeat_interleave(count, dim=0))
        return torch.cat(all_quantiles, dim=1), torch.cat(all_peaks)

    def _test(self, quantiles: torch.Tensor) -> dict[str, float]:
        """Return the p-value of each test of quantiles [orders, calls, rows]."""
        chances: dict[str, float] = {}
        for order, drawn in zip(ORDERS, quantiles, strict=True):
            result = {**measure_chances(drawn), "left out": measure_omission(drawn, self.limits.least_shift)}
            chances |= {f"{test}, tokens by {order}": chance for test, chance in result.items()}
        return chances


def _describe_forbidden(problem: SamplingProblem, tokens: torch.Tensor, located: DrawQuantiles) -> Rejected:
    """Return the verdict on draws [rows, calls] that are not allowed."""
    wrong = ~located.allowed
    count, (_, row) = int(wrong.sum()), wrong.T.nonzero()[0].tolist()
    token, vocabulary = int(tokens[row][wrong[row]][0]), problem.probabilities.shape[1]
    why = f"the vocabulary has {vocabulary}"
    if 0 <= token < vocabulary:
        filters = ", ".join(f"{name}={float(value[row]):g}" for name, value in problem.filters.items())
        allowed = f"{int(located.kept[row])} tokens are allowed{f' ({filters})' if filters else ''}"
        why = f"its probability is {float(problem.probabilities[row, token]):.4g}; {allowed}"
    return Rejected(
        EvaluationStatus.INCORRECT_NUMERICAL,
        f"{count} of {tokens.numel()} draws are not allowed; the first is token {token} in row {row}: {why}",
        Correctness(max_absolute_error=count / tokens.numel(), extra={"draws": tokens.numel(), "not_allowed": count}),
    )


def count_calls(rows: int, least_shift: float) -> int:
    """Return how many calls on flattened rows are needed to find a sampler that skips `least_shift` of the mass."""
    return math.ceil(math.log(CHANCE_UNSEEN) / math.log1p(-least_shift) / max(rows, 1))


def make_flattened(
    definition: Definition, inputs: list[Any], calls: int, generator: torch.Generator
) -> Iterator[tuple[list[Any], int]]:
    """Yield flattened inputs, each with the number of calls that it is used for.

    Args:
        definition: names the input with probabilities or logits.
        inputs: the inputs, in the order of the definition.
        calls: number of calls on all flattened inputs together.
        generator: a generator on the CPU.
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
    """Return rows whose largest probability is at most about the target [rows, 1]; flatter rows stay unchanged.

    Impossible tokens stay impossible.
    """
    logits = weights.float() if are_logits else weights.float().log()
    low, high = torch.full_like(target, LEAST_FACTOR), torch.ones_like(target)
    for _ in range(STEPS):
        middle = (low + high) / 2
        is_sharp = (logits * middle).softmax(dim=-1).amax(dim=-1, keepdim=True) > target
        low, high = torch.where(is_sharp, low, middle), torch.where(is_sharp, middle, high)
    flat = logits * low
    return (flat if are_logits else flat.softmax(dim=-1)).to(weights.dtype)
