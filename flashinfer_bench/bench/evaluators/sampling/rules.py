"""Which tokens a sampler may draw, and where a draw lies in the distribution that it should follow.

The rules, for the probabilities of a row sorted from the largest:
* top-k keeps the first k tokens. A k below 1 or above the vocabulary keeps all.
* top-p keeps tokens until their mass reaches p; the token that crosses p is kept. A p of 1 or more keeps all, a p of 0
  or less keeps only the largest.
* min-p keeps the tokens with at least min_p of the largest probability.
* With top-k and top-p, top-k comes first, and top-p acts on what is left, rescaled. If the definition's name has
  "joint", both act on the original row.

Where rounding or ties decide, implementations differ and all of them are right. So a row has a narrow set and a wide
set of kept tokens. The tokens between the two are the group at the boundary. Every draw from the wide set is allowed.
The number of draws in the group shows which set the sampler follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

import torch
from torch.nn.functional import pad

from flashinfer_bench.bench.evaluator_record import find_weights
from flashinfer_bench.data import Definition
from flashinfer_bench.errors import WorkloadFault

ROUNDING: Final = 1e-4
"""How far an implementation may move the boundary: mass for top-p, relative size for min-p."""
MATERIAL: Final = 1e-3
"""Share of the kept mass from which on the group at the boundary is too large for the tests that order tokens by id."""
CHUNK_ELEMENTS: Final = 1 << 23
"""Number of probabilities that are sorted at once; it takes a few hundred megabytes."""
ORDERS: Final = ("probability", "token id", "token id, even ids first")
"""The orders of the tokens in which draws are placed. The last is that of the reversed bits of ids."""
ORDERS_KEPT: Final = 4
"""Vocabularies whose order by reversed bits is kept: to find it takes half as long as to place a few draws."""


@dataclass(frozen=True)
class SamplingProblem:
    """What a sampler was given."""

    probabilities: torch.Tensor
    """[rows, vocabulary]; none is negative."""
    top_k: torch.Tensor | None
    """int64 [rows]."""
    top_p: torch.Tensor | None
    """float64 [rows]."""
    min_p: torch.Tensor | None
    """float64 [rows]."""
    joint: bool
    """Whether top-k and top-p both act on the original row."""

    def filters(self, rows: slice | int) -> dict[str, torch.Tensor]:
        """Return the filters that there are, of some rows."""
        values = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
        return {name: value[rows] for name, value in values.items() if value is not None}


class PlacedDraws(NamedTuple):
    """The draws of all rows and calls, on the CPU.

    With the tokens in some order, each token has a stretch of [0, 1) that is as long as its probability. The place of a
    draw is a random point of its token's stretch. If the sampler is right, places are uniform and independent for
    every distribution. So the places of all rows can be tested together. In a row in which ties decide what is kept,
    ids say nothing: there a draw lies anywhere in the orders by id.
    """

    places: torch.Tensor
    """[orders, calls, rows]."""
    allowed: torch.Tensor
    """[calls, rows]: whether the token is in the wide set."""
    share: torch.Tensor
    """[calls, rows]: largest probability that the drawn token may have, in the narrow or the wide set."""
    kept: torch.Tensor
    """[rows]: number of tokens in the wide set."""


def read_problem(definition: Definition, inputs: Sequence[Any]) -> SamplingProblem:
    """Read the rows and the filters from the inputs of a definition.

    Raises:
        WorkloadFault: a row is not a distribution.
    """
    values = dict(zip(definition.inputs, inputs, strict=True))
    name = find_weights(definition)
    if name is None:
        raise WorkloadFault(f"{definition.name} has no input that holds probabilities or logits")
    weights = values[name].to(torch.float32)

    def per_row(name: str, dtype: torch.dtype) -> torch.Tensor | None:
        value = values.get(name)
        if value is None:
            return None
        return torch.as_tensor(value, device=weights.device).to(dtype).reshape(-1).expand(len(weights))

    if "logits" in name.lower():
        temperature = per_row("temperature", torch.float32)
        weights = (weights if temperature is None else weights / temperature[:, None]).softmax(dim=-1)
    rows = values.get("indices")
    if isinstance(rows, torch.Tensor):
        weights = weights[rows.long()]
    usable = torch.isfinite(weights).all() & (weights >= 0).all() & (weights.sum(dim=-1) > 0).all()
    if weights.numel() == 0 or not bool(usable):
        raise WorkloadFault(f"input {name!r} of {definition.name} has a row that is no distribution")
    filters = per_row("top_k", torch.int64), per_row("top_p", torch.float64), per_row("min_p", torch.float64)
    return SamplingProblem(weights, *filters, "joint" in definition.name.lower())


def join_problems(problems: Sequence[SamplingProblem]) -> SamplingProblem:
    """Return one problem with the rows of several problems of one definition, one behind the other."""
    filters = [one.filters(slice(None)) for one in problems]
    joined: dict[str, Any] = {name: torch.cat([one[name] for one in filters]) for name in filters[0]}
    probabilities = torch.cat([one.probabilities for one in problems])
    return replace(problems[0], probabilities=probabilities, **joined)


def place_draws(problem: SamplingProblem, tokens: torch.Tensor, generator: torch.Generator) -> PlacedDraws:
    """Find the places of all draws, for some rows at a time.

    Args:
        problem: what the sampler was given.
        tokens: int64 [calls, rows].
        generator: a generator on the CPU; it decides where in its stretch a draw is placed.
    """
    rows, vocabulary = problem.probabilities.shape
    step, chunks = max(1, CHUNK_ELEMENTS // vocabulary), []
    for start in range(0, rows, step):
        some = slice(start, min(start + step, rows))
        spread = torch.rand((3, some.stop - start, len(tokens)), dtype=torch.float64, generator=generator)
        chunks.append([part.cpu() for part in _place(problem, some, tokens[:, some].T, spread.to(tokens.device))])
    return PlacedDraws(*(torch.cat(parts, dim=-1) for parts in zip(*chunks, strict=True)))


class _SortedRows:
    """Rows sorted from the largest probability. What is asked of them, and the answers, are [rows, n]."""

    def __init__(self, probabilities: torch.Tensor) -> None:
        self.vocabulary = probabilities.shape[1]
        # searchsorted needs numbers that ascend.
        self._negative = probabilities.neg().sort(dim=1).values
        self._mass = pad(self._negative.neg().double().cumsum(dim=1), (1, 0))

    def value(self, rank: torch.Tensor) -> torch.Tensor:
        """Return the probability at a rank; 0 beyond the last."""
        found = -self._negative.gather(1, rank.clamp(0, self.vocabulary - 1))
        return torch.where(rank < self.vocabulary, found, 0.0)

    def mass_of(self, count: torch.Tensor) -> torch.Tensor:
        """Return the mass of the first `count` tokens."""
        return self._mass.gather(1, count)

    def count_above(self, value: torch.Tensor, *, or_equal: bool = False) -> torch.Tensor:
        """Count the tokens with a larger (or equal) probability."""
        wanted = value.neg().to(self._negative.dtype).contiguous()
        return torch.searchsorted(self._negative, wanted, right=or_equal)

    def count_until(self, mass: torch.Tensor, *, beyond: bool) -> torch.Tensor:
        """Count the tokens until a mass is reached, the last one included; `beyond`: until it is exceeded."""
        found = torch.searchsorted(self._mass[:, 1:].contiguous(), mass, right=beyond)
        return (found + 1).clamp(max=self.vocabulary)

    def count_kept(self, filters: dict[str, torch.Tensor], *, joint: bool, wide: bool) -> torch.Tensor:
        """Count the tokens in the narrow or in the wide set, [rows, 1]."""
        slack = ROUNDING if wide else -ROUNDING
        zero = torch.zeros_like(self._mass[:, :1])
        kept, everything, whole = self.count_above(zero), zero.long() + self.vocabulary, zero + 1

        def with_ties(count: torch.Tensor) -> torch.Tensor:
            return self.count_above(self.value(count - 1), or_equal=True) if wide else count

        if "min_p" in filters:
            least = filters["min_p"][:, None] * self.value(zero.long()).double() * (1 - slack)
            kept = torch.minimum(kept, self.count_above(least, or_equal=True))
        if "top_k" in filters:
            k = filters["top_k"][:, None]
            active = (k > 0) & (k < self.vocabulary)
            kept = torch.minimum(kept, with_ties(torch.where(active, k, everything)))
            whole = torch.where(active, self.mass_of(kept), whole) if not joint else whole
        if "top_p" in filters:
            p = filters["top_p"][:, None]
            crossing = self.count_until((p + slack) * whole, beyond=wide)
            crossing = torch.where(p >= 1, everything, torch.where(p <= 0, 1, crossing))
            kept = torch.minimum(kept, with_ties(crossing))
        return kept.clamp(min=1)


def _place(problem: SamplingProblem, rows: slice, tokens: torch.Tensor, spread: torch.Tensor) -> PlacedDraws:
    """Find the places of the draws of some rows; `tokens` is [rows, calls], `spread` [3, rows, calls] in [0, 1)."""
    probabilities, filters = problem.probabilities[rows], problem.filters(rows)
    ordered = _SortedRows(probabilities)
    narrow, wide = (ordered.count_kept(filters, joint=problem.joint, wide=wide) for wide in (False, True))
    wide = torch.maximum(wide, narrow)
    in_range = (tokens >= 0) & (tokens < ordered.vocabulary)
    tokens = torch.where(in_range, tokens, 0)
    drawn, least = probabilities.gather(1, tokens), ordered.value(wide - 1)
    # The group at the boundary begins at the first token that ties with the first one that the narrow set leaves out.
    core = torch.minimum(ordered.count_above(ordered.value(narrow)), narrow)
    core_mass, narrow_mass, wide_mass = (ordered.mass_of(count) for count in (core, narrow, wide))
    above = ordered.count_above(drawn)
    in_group = above >= core
    outside = 1 - in_group.double().mean(dim=1, keepdim=True)
    follows_wide = (outside - core_mass / wide_mass).abs() < (outside - core_mass / narrow_mass).abs()
    whole = torch.where(follows_wide, wide_mass, narrow_mass)
    low = torch.where(in_group, core_mass, ordered.mass_of(above))
    high = torch.where(in_group, whole, ordered.mass_of(ordered.count_above(drawn, or_equal=True)))
    weights = torch.where(probabilities >= least, probabilities, 0.0)
    ids, ranks = order_by_reversed_bits(ordered.vocabulary, tokens.device)
    clear = wide_mass - narrow_mass <= MATERIAL * narrow_mass
    by_id = _place_in_order(weights, tokens, spread[1]), _place_in_order(weights[:, ids], ranks[tokens], spread[2])
    places = [(low + spread[0] * (high - low)) / whole, *torch.where(clear, torch.stack(by_id), spread[1:])]
    return PlacedDraws(
        places=torch.stack(places).mT,
        allowed=(in_range & (drawn >= least) & (drawn > 0)).T,
        share=(drawn.double() / narrow_mass).clamp(max=1.0).T,
        kept=wide[:, 0],
    )


def _place_in_order(weights: torch.Tensor, positions: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
    """Find the places of draws, with the tokens in the order of the columns."""
    mass = weights.double().cumsum(dim=1)
    return (mass.gather(1, positions) - spread * weights.gather(1, positions)) / mass[:, -1:]


@lru_cache(maxsize=ORDERS_KEPT)
def order_by_reversed_bits(vocabulary: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids [vocabulary] ordered by their reversed bits, and the place of each id in this order."""
    ids = torch.arange(vocabulary, device=device)
    key = torch.zeros_like(ids)
    for bit in range(max(vocabulary - 1, 1).bit_length()):
        key = (key << 1) | ((ids >> bit) & 1)
    order = key.argsort()
    return order, order.argsort()
