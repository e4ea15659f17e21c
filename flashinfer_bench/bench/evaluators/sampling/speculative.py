"""The Speculative evaluator, for chain speculative sampling (C. Chen et al., arXiv 2302.01318).

A drafted token with the probability p in the target and q in the draft is accepted with the chance min(1, p / q). After
the first rejection, a token is drawn from max(0, target - draft), rescaled. If no token is rejected, another token is
drawn from the target's last row.

The outputs are random, but their form is checked exactly. Three values are tested against their distribution, by
quantiles as in `rules`: the number of emitted tokens, the number of tokens that are accepted if each is judged alone,
and the last token. The values of timed calls are tested, too, because a solution could detect that the inputs of timed
calls never repeat.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.nn.functional import pad

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import RECORDS
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import JudgeContext, JudgedCall, Rejected, SolutionRunnable, Verdict
from flashinfer_bench.bench.evaluators.inputs.seeds import make_generator
from flashinfer_bench.bench.evaluators.sampling.evaluator import (
    CPU,
    TIME_LIMIT_S,
    TIMED_SHARE,
    SamplingLimits,
    call_within,
    count_calls,
)
from flashinfer_bench.bench.evaluators.sampling.statistics import measure_chances
from flashinfer_bench.bench.evaluators.verdict import check_form, decide
from flashinfer_bench.data import Correctness, Definition

TESTED: Final = ("tokens emitted", "tokens accepted", "token drawn last")


class SpeculativeEvaluator(DefaultEvaluator):
    """Takes op type sampling with drafted tokens: draft_probs, draft_token_ids and target_probs."""

    record = RECORDS["SpeculativeEvaluator"]
    is_random = True
    needs_expected = False

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
        """Call the sampler many times on the inputs of the first trial and judge all calls together."""
        limits, given, expected = SamplingLimits.of(cfg), inputs[0], ref_outputs[0]
        more = count_calls(len(given[1]), limits.least_shift) - limits.trials if cfg.power_rule else 0
        calls = (
            *call_within(math.inf, sol_runnable, given, limits.trials, expected),
            *call_within(time.monotonic() + TIME_LIMIT_S, sol_runnable, given, more, expected),
        )
        return judge_calls(definition, calls, limits, context)

    @classmethod
    def judge_reads(
        cls, definition: Definition, calls: Sequence[JudgedCall], cfg: ResolvedEvalConfig, context: JudgeContext
    ) -> Verdict:
        """Judge timed calls, each with its own probabilities. Results must be possible, and their distribution is
        tested."""
        return judge_calls(definition, calls, SamplingLimits.of(cfg), context, alarm_share=TIMED_SHARE)


def judge_calls(
    definition: Definition,
    calls: Sequence[JudgedCall],
    limits: SamplingLimits,
    context: JudgeContext,
    *,
    alarm_share: float = 1.0,
) -> Verdict:
    """Judge calls. Each result must be possible, and the quantiles [calls, rows] of each of three values must be
    uniform.

    Args:
        definition: names the outputs.
        calls: the calls to judge; several of them may have the same inputs.
        limits: the parameters that decide.
        context: the job's context.
        alarm_share: factor on the false alarm rate of the limits.
    """
    generator = make_generator(context.seed, "places of chains", device=CPU)
    quantiles, chain, inputs = [], None, None
    for number, call in enumerate(calls):
        if chain is None or call.inputs is not inputs:
            chain, inputs = Chain(*call.inputs), call.inputs
        got = check_form(definition, call.got, call.expected)
        if isinstance(got, Rejected):
            return got
        result = chain.find_quantiles(got, generator)
        if isinstance(result, str):
            return decide(f"call {number}: {result}", Correctness(max_absolute_error=1.0))
        quantiles.append(result)
    chances = {
        f"{name}, {test}": chance
        for name, part in zip(TESTED, torch.stack(quantiles, dim=1), strict=True)
        for test, chance in measure_chances(part).items()
    }
    odd = limits.find_odd(chances, alarm_share=alarm_share)
    extra = {"calls": len(quantiles), "smallest_p_value": min(chances.values()), "p_values": chances}
    return decide(odd and f"the results are {odd}", Correctness(extra=extra))


class Chain:
    """The drafted tokens of a call, and the distributions of its outputs, on the CPU in float64.

    Tables of [rows, n + 2] or [rows, vocabulary + 1] are cumulative: entry i is the mass of all values below i.

    Args:
        draft_probs: [rows, n, vocabulary].
        draft_token_ids: [rows, n].
        target_probs: [rows, n + 1, vocabulary].
    """

    def __init__(self, draft_probs: torch.Tensor, draft_token_ids: torch.Tensor, target_probs: torch.Tensor) -> None:
        draft, target = draft_probs.double().cpu(), target_probs.double().cpu()
        drafted = draft_token_ids.long().cpu()
        self.count = drafted.shape[1]
        self.drafted = pad(drafted, (0, 1), value=-1)
        p, q = (source.gather(-1, drafted[..., None])[..., 0] for source in (target[:, : self.count], draft))
        accept = torch.where(q > 0, p / q, 1.0).clamp(max=1.0)
        reached = pad(accept.cumprod(dim=1), (1, 0), value=1.0)
        accepted = torch.zeros_like(reached)  # probability of each count, if each token is judged alone
        accepted[:, 0] = 1.0
        for share in accept.T[..., None]:
            accepted = accepted * (1 - share) + pad(accepted[:, :-1], (1, 0)) * share
        emitted = reached - pad(reached[:, 1:], (0, 1))
        self.counts = [pad(chance.cumsum(dim=1), (1, 0)) for chance in (emitted, accepted)]
        left = (target - pad(draft, (0, 0, 0, 1))).clamp(min=0)
        self.last = pad(left.cumsum(dim=-1), (1, 0))
        """Cumulative mass of the last token at each position, [rows, n + 1, vocabulary + 1]."""

    def find_quantiles(self, got: Sequence[torch.Tensor], generator: torch.Generator) -> torch.Tensor | str:
        """Return the quantile of a call in each of its three distributions, [3, rows] in [0, 1).

        If the result of the call is impossible, return the reason instead.
        """
        tokens, accepted, emitted = (value.long().cpu() for value in got)
        at = emitted.clamp(0, self.count)[:, None]
        mass, position = self.last[torch.arange(len(at)), at[:, 0]], torch.arange(self.count + 1)
        last = tokens.gather(1, at)
        inside = (last >= 0) & (last < mass.shape[1] - 1)
        last = torch.where(inside, last, 0)
        checks = {
            "the number of emitted tokens is out of range": emitted[:, None] == at,
            "fewer accepted tokens than emitted ones, or more than drafted": (accepted >= emitted)
            & (accepted <= self.count),
            "an emitted token is not the drafted one": (tokens == self.drafted) | (position >= at),
            "what follows the last token is not -1": (tokens == -1) | (position <= at),
            "the last token cannot be drawn there": inside & (mass.gather(1, last + 1) > mass.gather(1, last)),
        }
        for what, holds in checks.items():
            for row in (~holds).nonzero()[:1, 0].tolist():
                return f"{what} (row {row})"
        tables = [(self.counts[0], at), (self.counts[1], accepted[:, None]), (mass / mass[:, -1:], last)]
        low, high = (torch.cat([table.gather(1, i + step) for table, i in tables], dim=1).T for step in (0, 1))
        return low + torch.rand(low.shape, dtype=torch.float64, generator=generator) * (high - low)
