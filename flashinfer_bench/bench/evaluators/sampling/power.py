"""The rule `power`: a sampler is called often enough for the smallest cheat that is worth having to show.

A hundred calls of one row are a hundred draws: few for a sampler that leaves out the likeliest 8 % of the mass. And
where one token has most of a row, leaving others out changes hardly anything. So a sampler is called on flattened rows,
too: the same rows with a higher temperature, until no token has more than about a hundredth of the mass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluator_record import find_weights
from flashinfer_bench.data import Definition

POWER: Final = "power"
DEFAULT_LEAST_SHIFT: Final = 0.06
"""Mass that a sampler may not leave out unseen. Leaving out less saves next to nothing."""
CHANCE_UNSEEN: Final = 3e-8
"""A right sampler leaves a part of the least mass out by this chance: below the limit of any verdict."""
FLATTEST: Final = 0.002
SHARPEST: Final = 0.012
"""The largest probability of a flattened row lies between these, as far as LEAST_FACTOR lets it."""
LEAST_FACTOR: Final = 0.05
"""Logits are multiplied by no less: where all probabilities tie, filters may keep any of them."""
MOST_KINDS: Final = 8
"""Flattened inputs of a job, at the most; each is used for several calls."""
ELEMENTS: Final = 1 << 21
"""There are so few kinds that they have about this many probabilities together."""
STEPS: Final = 10
"""Halvings in which the temperature is found."""
ALARM_SHARE: Final = 0.1
"""These draws reject a right sampler by chance this many times as often as the first draws: they are a second look."""


PATIENCE_S: Final = 20.0
"""No more of these calls are made after this many seconds: a slow sampler, as under Triton's interpreter, has a limit
on its time, and being slow wins nothing."""


def count_calls(rows: int, least_shift: float) -> int:
    """Return how often a sampler of so many rows is called on flattened rows."""
    draws = math.log(CHANCE_UNSEEN) / math.log1p(-least_shift)
    return math.ceil(draws / max(rows, 1))


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
    name = find_weights(definition)
    place = list(definition.inputs).index(name or "")
    weights = inputs[place]
    kinds = max(1, min(calls, MOST_KINDS, ELEMENTS // max(weights.numel(), 1)))
    for kind in range(kinds):
        share = torch.rand((weights.shape[0], 1), generator=generator).to(weights.device)
        target = FLATTEST * (SHARPEST / FLATTEST) ** share
        flat = flatten(weights, target, are_logits="logits" in (name or "").lower())
        yield [*inputs[:place], flat, *inputs[place + 1 :]], calls // kinds + (kind < calls % kinds)


def flatten(weights: torch.Tensor, target: torch.Tensor, *, are_logits: bool) -> torch.Tensor:
    """Return rows whose largest probability is at most about the target, [rows, 1]; flatter ones stay as they are."""
    logits = weights.float() if are_logits else weights.float().log()
    low, high = torch.full_like(target, LEAST_FACTOR), torch.ones_like(target)
    for _ in range(STEPS):
        middle = (low + high) / 2
        is_sharp = _soften(logits, middle).amax(dim=-1, keepdim=True) > target
        low, high = torch.where(is_sharp, low, middle), torch.where(is_sharp, middle, high)
    if are_logits:
        return (logits * low).to(weights.dtype)
    return _soften(logits, low).to(weights.dtype)


def _soften(logits: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Give the probabilities of scaled logits; what was impossible stays so."""
    return (logits * factor).softmax(dim=-1)
