"""The Speculative evaluator, for chain speculative sampling (C. Chen et al., arXiv 2302.01318).

A drafted token has the probability p in the target and q in the draft. It is accepted with the chance min(1, p / q).
After the first rejection, a token is drawn from max(0, target - draft), rescaled. Where no token is rejected, one is
drawn from the target's last row.

The outputs are random. Their form is checked exactly. Three things are tested against their distribution: how many
tokens were emitted, how many could have been accepted one by one, and which token was drawn last. So are those of timed
calls, whose inputs never come twice: a solution could tell them from others by that.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import EvaluatorRecord
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import JudgeContext, JudgedCall, SolutionRunnable
from flashinfer_bench.bench.evaluators.inputs.seeds import make_generator
from flashinfer_bench.bench.evaluators.sampling.evaluator import TIMED_SHARE, SamplingLimits, describe_chance
from flashinfer_bench.bench.evaluators.sampling.power import PATIENCE_S, count_calls
from flashinfer_bench.bench.evaluators.sampling.statistics import measure_chances
from flashinfer_bench.bench.evaluators.verdict import Rejected, Verdict, check_form, decide
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
        chain = Chain.of(*inputs[0])
        generator = make_generator(context.seed, "places of chains", device=torch.device("cpu"))
        places: list[torch.Tensor] = []
        rows = chain.drafted.shape[0]
        calls = max(limits.trials, count_calls(rows, limits.least_shift)) if cfg.power_rule else limits.trials
        deadline = time.monotonic() + PATIENCE_S
        for call, outputs in enumerate(sol_runnable.call_repeatedly(inputs[0], calls)):
            if call >= limits.trials and time.monotonic() > deadline:
                break
            got = check_form(definition, outputs, ref_outputs[0])
            if isinstance(got, Rejected):
                return got
            problem = chain.find_problem(got)
            if problem is not None:
                return decide(f"call {call}: {problem}", Correctness(max_absolute_error=1.0))
            places.append(chain.place(got, generator))
        return judge_places(torch.stack(places, dim=1), limits)

    @classmethod
    def judge_reads(
        cls, definition: Definition, calls: Sequence[JudgedCall], cfg: ResolvedEvalConfig, context: JudgeContext
    ) -> Verdict:
        """Judge timed calls, each on probabilities of its own: what is possible is tested for its distribution."""
        generator = make_generator(context.seed, "places of timed chains", device=torch.device("cpu"))
        places: list[torch.Tensor] = []
        for call in calls:
            got = check_form(definition, call.got, call.expected)
            if isinstance(got, Rejected):
                return got
            chain = Chain.of(*call.inputs)
            problem = chain.find_problem(got)
            if problem is not None:
                return decide(problem, Correctness(max_absolute_error=1.0))
            places.append(chain.place(got, generator))
        return judge_places(torch.stack(places, dim=1), SamplingLimits.of(cfg), alarm_share=TIMED_SHARE)


def judge_places(places: torch.Tensor, limits: SamplingLimits, *, alarm_share: float = 1.0) -> Verdict:
    """Judge places [3, calls, rows]; they are uniform where the sampler is right.

    Args:
        places: in the three distributions.
        limits: the parameters that decide.
        alarm_share: a right sampler is rejected this many times as often as the limits say.
    """
    names = ("tokens emitted", "tokens accepted", "token drawn last")
    chances = {
        f"{name}, {test}": chance
        for name, part in zip(names, places, strict=True)
        for test, chance in measure_chances(part).items()
    }
    oddest = min(chances, key=lambda test: chances[test])
    facts = {"calls": places.shape[1], "smallest_p_value": chances[oddest], "p_values": chances}
    wrong = None
    if chances[oddest] * len(chances) < limits.false_alarm_rate * alarm_share:
        wrong = f"the results are not random as they should be: {describe_chance(oddest, chances)}"
    return decide(wrong, Correctness(extra=facts))


@dataclass(frozen=True)
class Chain:
    """The drafted tokens of a call, and the distributions of its outputs."""

    drafted: torch.Tensor
    """int64 [rows, n]: the n drafted tokens of each row."""
    emitted_cdf: torch.Tensor
    """[rows, n + 2]: entry i is the chance that fewer than i tokens are emitted."""
    accepted_cdf: torch.Tensor
    """[rows, n + 2]: entry i is the chance that fewer than i tokens could be accepted one by one."""
    last_mass: torch.Tensor
    """[rows, n + 1, vocabulary + 1]: entry i is the mass of the tokens below i, for a last token at each position."""

    @classmethod
    def of(cls, draft_probs: torch.Tensor, draft_token_ids: torch.Tensor, target_probs: torch.Tensor) -> Chain:
        """Compute the distributions, on the CPU in float64."""
        draft, target = draft_probs.double().cpu(), target_probs.double().cpu()
        ids = draft_token_ids.long().cpu()
        count = ids.shape[1]
        picked = [source.gather(-1, ids[..., None])[..., 0] for source in (target[:, :count], draft)]
        accept = torch.where(picked[1] > 0, picked[0] / picked[1], 1.0).clamp(max=1.0)
        left = (target - torch.nn.functional.pad(draft, (0, 0, 0, 1))).clamp(min=0)
        mass = torch.nn.functional.pad(left.cumsum(dim=-1), (1, 0))
        return cls(ids, _cdf(_emitted(accept)), _cdf(_independent(accept)), mass)

    def find_problem(self, got: Sequence[torch.Tensor]) -> str | None:
        """Say what is impossible in the outputs of a call; None where nothing is."""
        tokens, accepted, emitted = (value.long().cpu() for value in got)
        count = self.drafted.shape[1]
        place = torch.arange(count + 1)
        kept = torch.nn.functional.pad(self.drafted, (0, 1))
        before, at = place < emitted[:, None], place == emitted[:, None]
        checks = {
            "the number of emitted tokens is out of range": (emitted >= 0) & (emitted <= count),
            "fewer accepted tokens than emitted ones, or more than drafted": (accepted >= emitted)
            & (accepted <= count),
            "an emitted token is not the drafted one": ((tokens == kept) | ~before).all(dim=1),
            "what follows the last token is not -1": ((tokens == -1) | before | at).all(dim=1),
            "the last token cannot be drawn there": self._can_be_last(tokens, emitted),
        }
        for what, holds in checks.items():
            if not bool(holds.all()):
                return f"{what} (row {int((~holds).nonzero()[0])})"
        return None

    def place(self, got: Sequence[torch.Tensor], generator: torch.Generator) -> torch.Tensor:
        """Give the place of a call in each of its three distributions, [3, rows] in [0, 1)."""
        tokens, accepted, emitted = (value.long().cpu() for value in got)
        spread = torch.rand((3, len(emitted)), dtype=torch.float64, generator=generator)
        mass = self.last_mass[torch.arange(len(emitted)), emitted]
        last = tokens.gather(1, emitted[:, None])
        bounds = [
            (_at(self.emitted_cdf, emitted), _at(self.emitted_cdf, emitted + 1)),
            (_at(self.accepted_cdf, accepted), _at(self.accepted_cdf, accepted + 1)),
            (_at(mass, last[:, 0]) / mass[:, -1], _at(mass, last[:, 0] + 1) / mass[:, -1]),
        ]
        return torch.stack([low + u * (high - low) for (low, high), u in zip(bounds, spread, strict=True)])

    def _can_be_last(self, tokens: torch.Tensor, emitted: torch.Tensor) -> torch.Tensor:
        row = torch.arange(len(emitted))
        position = emitted.clamp(0, self.drafted.shape[1])
        token = tokens[row, position]
        inside = (token >= 0) & (token < self.last_mass.shape[-1] - 1)
        mass = self.last_mass[row, position]
        safe = torch.where(inside, token, 0)
        return inside & (_at(mass, safe + 1) > _at(mass, safe))


def _emitted(accept: torch.Tensor) -> torch.Tensor:
    """Give the chance of each number of tokens before the first rejected one, [rows, n + 1]."""
    reached = torch.nn.functional.pad(accept.cumprod(dim=1), (1, 0), value=1.0)
    return reached - torch.nn.functional.pad(reached[:, 1:], (0, 1))


def _independent(accept: torch.Tensor) -> torch.Tensor:
    """Give the chance of each number of accepted tokens, where each is accepted by itself, [rows, n + 1]."""
    rows, count = accept.shape
    chance = torch.zeros(rows, count + 1, dtype=accept.dtype)
    chance[:, 0] = 1.0
    for trial in range(count):
        p = accept[:, trial : trial + 1]
        chance = chance * (1 - p) + torch.nn.functional.pad(chance[:, :-1], (1, 0)) * p
    return chance


def _cdf(chance: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(chance.cumsum(dim=1), (1, 0))


def _at(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return table.gather(1, index[:, None])[:, 0]
