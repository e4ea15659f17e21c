"""The Speculative evaluator, for chain speculative sampling (C. Chen et al., arXiv 2302.01318).

A drafted token has the probability p in the target and q in the draft. It is accepted with the chance min(1, p / q).
After the first rejection, a token is drawn from max(0, target - draft), rescaled. If no token is rejected, one is
drawn from the target's last row.

The outputs are random. Their form is checked exactly. Three things are tested against their distribution: how many
tokens were emitted, how many could have been accepted one by one, and which token was drawn last. So are those of timed
calls, whose inputs never come twice: a solution could tell them from others by that.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import EvaluatorRecord
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import JudgeContext, JudgedCall, Rejected, SolutionRunnable, Verdict
from flashinfer_bench.bench.evaluators.inputs.seeds import make_generator
from flashinfer_bench.bench.evaluators.sampling.draws import TIMED_SHARE, SamplingLimits, count_calls
from flashinfer_bench.bench.evaluators.sampling.evaluator import PATIENCE_S
from flashinfer_bench.bench.evaluators.sampling.statistics import measure_chances
from flashinfer_bench.bench.evaluators.verdict import check_form, decide
from flashinfer_bench.data import Correctness, Definition

SPECULATIVE_TENSORS = [
    *("draft_probs", "draft_token_ids", "target_probs"),
    *("output_token_ids", "accepted", "emitted"),
]
"""Names of inputs and outputs of chain speculative sampling."""


class SpeculativeEvaluator(DefaultEvaluator):
    """Takes op type sampling with drafted tokens: draft_probs, draft_token_ids and target_probs."""

    record = EvaluatorRecord(
        revision=2,
        op_types=("sampling",),
        takes=lambda definition: [*definition.inputs, *definition.outputs] == SPECULATIVE_TENSORS,
    )
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
        limits = SamplingLimits.of(cfg)
        wanted = count_calls(len(inputs[0][1]), limits.least_shift) if cfg.power_rule else 0
        deadline = time.monotonic() + PATIENCE_S

        def make_calls() -> Iterable[JudgedCall]:
            count = max(limits.trials, wanted)
            for call, outputs in enumerate(sol_runnable.call_repeatedly(inputs[0], count)):
                if call >= limits.trials and time.monotonic() > deadline:
                    return
                yield JudgedCall(inputs[0], outputs, ref_outputs[0])

        return judge_calls(definition, make_calls(), limits, context)

    @classmethod
    def judge_reads(
        cls, definition: Definition, calls: Sequence[JudgedCall], cfg: ResolvedEvalConfig, context: JudgeContext
    ) -> Verdict:
        """Judge timed calls, each on probabilities of its own: what is possible is tested for its distribution."""
        limits = SamplingLimits.of(cfg)
        return judge_calls(definition, calls, limits, context, alarm_share=TIMED_SHARE)


def judge_calls(
    definition: Definition,
    calls: Iterable[JudgedCall],
    limits: SamplingLimits,
    context: JudgeContext,
    *,
    alarm_share: float = 1.0,
) -> Verdict:
    """Judge calls: each has to be possible, and their places [calls, rows] in each of three distributions uniform.

    Args:
        definition: names the outputs.
        calls: on inputs of their own, or several on the same.
        limits: the parameters that decide.
        context: of the job.
        alarm_share: a right sampler is rejected this many times as often as the limits say.
    """
    generator = make_generator(context.seed, "places of chains", device=torch.device("cpu"))
    places, chain, inputs = [], None, None
    for number, call in enumerate(calls):
        if chain is None or call.inputs is not inputs:
            chain, inputs = Chain(*call.inputs), call.inputs
        got = check_form(definition, call.got, call.expected)
        if isinstance(got, Rejected):
            return got
        problem = chain.find_problem(got)
        if problem is not None:
            return decide(f"call {number}: {problem}", Correctness(max_absolute_error=1.0))
        places.append(chain.place(got, generator))
    names = ("tokens emitted", "tokens accepted", "token drawn last")
    chances = {
        f"{name}, {test}": chance
        for name, part in zip(names, torch.stack(places, dim=1), strict=True)
        for test, chance in measure_chances(part).items()
    }
    odd = limits.find_odd(chances, alarm_share=alarm_share)
    facts = {"calls": len(places), "smallest_p_value": min(chances.values()), "p_values": chances}
    return decide(None if odd is None else f"the results are {odd}", Correctness(extra=facts))


class Chain:
    """The drafted tokens of a call, and the distributions of its outputs, on the CPU in float64.

    Args:
        draft_probs: [rows, n, vocabulary].
        draft_token_ids: [rows, n].
        target_probs: [rows, n + 1, vocabulary].
    """

    def __init__(self, draft_probs: torch.Tensor, draft_token_ids: torch.Tensor, target_probs: torch.Tensor) -> None:
        draft, target = draft_probs.double().cpu(), target_probs.double().cpu()
        self.drafted = draft_token_ids.long().cpu()
        self.count = self.drafted.shape[1]
        p, q = (source.gather(-1, self.drafted[..., None])[..., 0] for source in (target[:, : self.count], draft))
        accept = torch.where(q > 0, p / q, 1.0).clamp(max=1.0)
        reached = _pad(accept.cumprod(dim=1), 1, 0, value=1.0)
        independent = torch.zeros_like(reached)  # the chance of each number of tokens, if each is accepted by itself
        independent[:, 0] = 1.0
        for share in accept.T[..., None]:
            independent = independent * (1 - share) + _pad(independent[:, :-1], 1, 0) * share
        self.emitted_cdf = _pad((reached - _pad(reached[:, 1:], 0, 1)).cumsum(dim=1), 1, 0)
        """[rows, n + 2]: entry i is the chance that fewer than i tokens are emitted."""
        self.accepted_cdf = _pad(independent.cumsum(dim=1), 1, 0)
        """[rows, n + 2]: entry i is the chance that fewer than i tokens could be accepted one by one."""
        left = (target - torch.nn.functional.pad(draft, (0, 0, 0, 1))).clamp(min=0)
        self.last_mass = _pad(left.cumsum(dim=-1), 1, 0)
        """[rows, n + 1, vocabulary + 1]: entry i is the mass of the tokens below i, for a last token at a position."""

    def find_problem(self, got: Sequence[torch.Tensor]) -> str | None:
        """Say what is impossible in the outputs of a call; None if nothing is."""
        tokens, accepted, emitted = (value.long().cpu() for value in got)
        place = torch.arange(self.count + 1)
        before, at = place < emitted[:, None], place == emitted[:, None]
        mass, last = self._last(tokens, emitted.clamp(0, self.count))
        inside = (last >= 0) & (last < mass.shape[1] - 1)
        safe = torch.where(inside, last, 0)
        checks = {
            "the number of emitted tokens is out of range": (emitted >= 0) & (emitted <= self.count),
            "fewer accepted tokens than emitted ones, or more than drafted": (accepted >= emitted)
            & (accepted <= self.count),
            "an emitted token is not the drafted one": ((tokens == _pad(self.drafted, 0, 1)) | ~before).all(dim=1),
            "what follows the last token is not -1": ((tokens == -1) | before | at).all(dim=1),
            "the last token cannot be drawn there": inside & (_at(mass, safe + 1) > _at(mass, safe)),
        }
        for what, holds in checks.items():
            for row in (~holds).nonzero()[:1, 0].tolist():
                return f"{what} (row {row})"
        return None

    def place(self, got: Sequence[torch.Tensor], generator: torch.Generator) -> torch.Tensor:
        """Return the place of a possible call in each of its three distributions, [3, rows] in [0, 1)."""
        tokens, accepted, emitted = (value.long().cpu() for value in got)
        mass, last = self._last(tokens, emitted)
        tables = ((self.emitted_cdf, emitted), (self.accepted_cdf, accepted), (mass / mass[:, -1:], last))
        low, high = (torch.stack([_at(table, found + step) for table, found in tables]) for step in (0, 1))
        return low + torch.rand(low.shape, dtype=torch.float64, generator=generator) * (high - low)

    def _last(self, tokens: torch.Tensor, emitted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the masses [rows, vocabulary + 1] of what may be drawn last, and what was [rows]."""
        return self.last_mass[torch.arange(len(emitted)), emitted], _at(tokens, emitted)


def _pad(table: torch.Tensor, before: int, behind: int, value: float = 0.0) -> torch.Tensor:
    return torch.nn.functional.pad(table, (before, behind), value=value)


def _at(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return table.gather(1, index[:, None])[:, 0]
