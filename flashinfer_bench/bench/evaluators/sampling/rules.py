"""Which tokens a sampler may draw, and where a draw lies in the distribution that it should follow.

The rules, for the probabilities of a row sorted from the largest:
* top-k keeps the first k tokens. A k below 1 or above the vocabulary keeps all.
* top-p keeps tokens until their mass reaches p; the token that crosses p is kept. A p of 1 or more keeps all, a p of 0
  or less keeps only the largest.
* min-p keeps the tokens with at least min_p of the largest probability.
* With top-k and top-p, top-k comes first, and top-p acts on what is left, rescaled. Where the definition's name has
  "joint", both act on the original row.

Where rounding or ties decide, implementations differ and all of them are right. So a row has a narrow set and a wide
set of kept tokens. The tokens between the two are the group at the boundary. Every draw from the wide set is allowed.
The number of draws in the group shows which set the sampler follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import torch

from flashinfer_bench.bench.evaluator_record import find_weights
from flashinfer_bench.data import Definition
from flashinfer_bench.errors import WorkloadFault

ROUNDING: Final = 1e-4
"""How far an implementation may move the boundary: mass for top-p, relative size for min-p."""
MATERIAL: Final = 1e-3
"""Share of the kept mass from which on the group at the boundary is too large for the tests that order tokens by id."""
CHUNK_ELEMENTS: Final = 1 << 23
"""Number of probabilities that are sorted at once; it takes a few hundred megabytes."""
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

    @property
    def rows(self) -> int:
        """Number of rows: a call draws one token for each."""
        return self.probabilities.shape[0]

    def describe_row(self, row: int) -> str:
        """Give the filters of a row as text."""
        values = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
        return ", ".join(f"{name}={value[row].item():g}" for name, value in values.items() if value is not None)


@dataclass(frozen=True)
class PlacedDraws:
    """The draws of some rows in all calls, and their places; tensors are [calls, rows] where nothing else is said.

    With the tokens in some order, each token has a stretch of [0, 1) that is as long as its probability. The place of a
    draw is a random point of its token's stretch. Where the sampler is right, places are uniform and independent for
    every distribution. So the places of all rows can be tested together.
    """

    allowed: torch.Tensor
    """Whether the token is in the wide set."""
    by_probability: torch.Tensor
    """The place, with the tokens ordered by probability."""
    by_id: torch.Tensor
    """The place, with the tokens ordered by id."""
    by_reversed_bits: torch.Tensor
    """The place, with the tokens ordered by the reversed bits of their ids: all even ids come first."""
    share: torch.Tensor
    """Largest probability that the drawn token may have, in the narrow or the wide set."""
    clear: torch.Tensor
    """[rows]: whether the group at the boundary is small enough for the orders by id."""
    kept: torch.Tensor
    """[rows]: number of tokens in the wide set."""


def read_problem(definition: Definition, inputs: list[Any]) -> SamplingProblem:
    """Read the rows and the filters from the inputs of a definition.

    Raises:
        WorkloadFault: a row is not a distribution.
    """
    values = dict(zip(definition.inputs, inputs, strict=True))
    name = find_weights(definition)
    if name is None:
        raise WorkloadFault(f"{definition.name} has no input that holds probabilities or logits")
    weights = values[name].to(torch.float32)
    if "logits" in name.lower():
        temperature = _per_row(values, "temperature", weights, torch.float32)
        weights = (weights if temperature is None else weights / temperature[:, None]).softmax(dim=-1)
    rows = values.get("indices")
    if isinstance(rows, torch.Tensor):
        weights = weights[rows.long()]
    usable = torch.isfinite(weights).all() & (weights >= 0).all() & (weights.sum(dim=-1) > 0).all()
    if weights.numel() == 0 or not bool(usable):
        raise WorkloadFault(f"input {name!r} of {definition.name} has a row that is no distribution")
    return SamplingProblem(
        probabilities=weights,
        top_k=_per_row(values, "top_k", weights, torch.int64),
        top_p=_per_row(values, "top_p", weights, torch.float64),
        min_p=_per_row(values, "min_p", weights, torch.float64),
        joint="joint" in definition.name.lower(),
    )


def join_problems(problems: Sequence[SamplingProblem]) -> SamplingProblem:
    """Return one problem with the rows of several problems of one definition, one behind the other."""
    first = problems[0]
    if len(problems) == 1:
        return first

    def join(name: str) -> torch.Tensor | None:
        return None if getattr(first, name) is None else torch.cat([getattr(problem, name) for problem in problems])

    probabilities = torch.cat([problem.probabilities for problem in problems])
    return SamplingProblem(probabilities, join("top_k"), join("top_p"), join("min_p"), first.joint)


def place_draws(problem: SamplingProblem, tokens: torch.Tensor, generator: torch.Generator) -> Iterator[PlacedDraws]:
    """Find the places of all draws, for some rows at a time.

    Args:
        problem: what the sampler was given.
        tokens: int64 [calls, rows].
        generator: a generator on the CPU; it decides where in its stretch a draw is placed.
    """
    vocabulary = problem.probabilities.shape[1]
    step = max(1, CHUNK_ELEMENTS // vocabulary)
    reversed_bits = order_by_reversed_bits(vocabulary, tokens.device)
    for start in range(0, problem.rows, step):
        rows = slice(start, min(start + step, problem.rows))
        spread = torch.rand((3, rows.stop - start, tokens.shape[0]), dtype=torch.float64, generator=generator)
        yield _place_rows(problem, rows, tokens[:, rows].T, spread.to(tokens.device), reversed_bits)


@dataclass(frozen=True)
class _SortedRows:
    """Rows sorted from the largest probability."""

    negative: torch.Tensor
    """[rows, vocabulary]: the probabilities as negative numbers; these ascend, as searchsorted needs it."""
    mass: torch.Tensor
    """[rows, vocabulary + 1]: entry i is the mass of the first i tokens."""

    @classmethod
    def of(cls, probabilities: torch.Tensor) -> _SortedRows:
        negative = probabilities.neg().sort(dim=1).values
        mass = torch.nn.functional.pad(negative.neg().double().cumsum(dim=1), (1, 0))
        return cls(negative, mass)

    @property
    def vocabulary(self) -> int:
        return self.negative.shape[1]

    def value(self, rank: torch.Tensor) -> torch.Tensor:
        """Give the probability at a rank, [rows] or [rows, n]; 0 beyond the last."""
        index = rank.clamp(0, self.vocabulary - 1)
        found = -self.negative.gather(1, index if index.ndim == 2 else index[:, None])
        return torch.where(rank < self.vocabulary, found if index.ndim == 2 else found[:, 0], 0.0)

    def mass_of(self, count: torch.Tensor) -> torch.Tensor:
        """Give the mass of the first `count` tokens, [rows] or [rows, n]."""
        return self.mass.gather(1, count) if count.ndim == 2 else self.mass.gather(1, count[:, None])[:, 0]

    def count_above(self, value: torch.Tensor, *, or_equal: bool) -> torch.Tensor:
        """Count the tokens with a larger (or equal) probability, [rows] or [rows, n]."""
        wanted = value.neg().to(self.negative.dtype).contiguous()
        found = torch.searchsorted(self.negative, wanted if wanted.ndim == 2 else wanted[:, None], right=or_equal)
        return found if wanted.ndim == 2 else found[:, 0]

    def count_until(self, mass: torch.Tensor, *, beyond: bool) -> torch.Tensor:
        """Count the tokens until a mass [rows] is reached, the last one included; `beyond`: until it is exceeded."""
        found = torch.searchsorted(self.mass[:, 1:].contiguous(), mass[:, None], right=beyond)[:, 0]
        return (found + 1).clamp(max=self.vocabulary)


def _count_kept(problem: SamplingProblem, rows: slice, ordered: _SortedRows, *, wide: bool) -> torch.Tensor:
    """Count the tokens in the narrow or in the wide set, [rows]."""
    slack = ROUNDING if wide else -ROUNDING
    everything = torch.full_like(ordered.negative[:, 0], ordered.vocabulary, dtype=torch.int64)
    kept = torch.minimum(everything, ordered.count_above(torch.zeros_like(ordered.negative[:, 0]), or_equal=False))
    whole = torch.ones_like(ordered.mass[:, 0])
    if problem.min_p is not None:
        least = problem.min_p[rows] * ordered.value(torch.zeros_like(everything)).double() * (1 - slack)
        kept = torch.minimum(kept, ordered.count_above(least, or_equal=True))
    if problem.top_k is not None:
        k = problem.top_k[rows]
        active = (k > 0) & (k < ordered.vocabulary)
        k = _with_ties(ordered, torch.where(active, k, everything), wide=wide)
        kept = torch.minimum(kept, k)
        if not problem.joint:
            whole = torch.where(active, ordered.mass_of(kept), whole)
    if problem.top_p is not None:
        p = problem.top_p[rows]
        crossing = ordered.count_until((p + slack) * whole, beyond=wide)
        crossing = torch.where(p >= 1, everything, torch.where(p <= 0, torch.ones_like(crossing), crossing))
        kept = torch.minimum(kept, _with_ties(ordered, crossing, wide=wide))
    return kept.clamp(min=1)


def _with_ties(ordered: _SortedRows, count: torch.Tensor, *, wide: bool) -> torch.Tensor:
    """For the wide set, add the tokens whose probability equals that of the last kept one."""
    return ordered.count_above(ordered.value(count - 1), or_equal=True) if wide else count


def _place_rows(
    problem: SamplingProblem, rows: slice, tokens: torch.Tensor, spread: torch.Tensor, reversed_bits: ReversedBits
) -> PlacedDraws:
    """Find the places of the draws of some rows; `tokens` is [rows, calls], `spread` [3, rows, calls] in [0, 1)."""
    probabilities = problem.probabilities[rows]
    ordered = _SortedRows.of(probabilities)
    narrow = _count_kept(problem, rows, ordered, wide=False)
    wide = torch.maximum(_count_kept(problem, rows, ordered, wide=True), narrow)
    in_range = (tokens >= 0) & (tokens < ordered.vocabulary)
    tokens = torch.where(in_range, tokens, 0)
    drawn = probabilities.gather(1, tokens)
    least = ordered.value(wide - 1)
    # The group at the boundary begins at the first token that ties with the first one that the narrow set leaves out.
    core = torch.minimum(ordered.count_above(ordered.value(narrow), or_equal=False), narrow)
    core_mass, narrow_mass, wide_mass = (ordered.mass_of(count) for count in (core, narrow, wide))
    above = ordered.count_above(drawn, or_equal=False)
    in_group = above >= core[:, None]
    observed = in_group.double().mean(dim=1)
    follows_wide = (observed - (1 - core_mass / wide_mass)).abs() < (observed - (1 - core_mass / narrow_mass)).abs()
    whole = torch.where(follows_wide, wide_mass, narrow_mass)[:, None]
    low = torch.where(in_group, core_mass[:, None], ordered.mass_of(above))
    high = torch.where(in_group, whole, ordered.mass_of(ordered.count_above(drawn, or_equal=True)))
    weights = torch.where(probabilities >= least[:, None], probabilities, 0.0)
    return PlacedDraws(
        allowed=(in_range & (drawn >= least[:, None]) & (drawn > 0)).T,
        by_probability=((low + spread[0] * (high - low)) / whole).T,
        by_id=_place_in_order(weights, tokens, spread[1]).T,
        by_reversed_bits=_place_in_order(weights[:, reversed_bits.ids], reversed_bits.ranks[tokens], spread[2]).T,
        share=(drawn.double() / narrow_mass[:, None]).clamp(max=1.0).T,
        clear=(wide_mass - narrow_mass) <= MATERIAL * narrow_mass,
        kept=wide,
    )


def _place_in_order(weights: torch.Tensor, positions: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
    """Find the places of draws, with the tokens in the order of the columns."""
    mass = weights.double().cumsum(dim=1)
    return (mass.gather(1, positions) - spread * weights.gather(1, positions)) / mass[:, -1:]


class ReversedBits(NamedTuple):
    """Token ids ordered by their reversed bits."""

    ids: torch.Tensor
    """int64 [vocabulary]: the ids in this order."""
    ranks: torch.Tensor
    """int64 [vocabulary]: the place of each id in it."""


@lru_cache(maxsize=ORDERS_KEPT)
def order_by_reversed_bits(vocabulary: int, device: torch.device) -> ReversedBits:
    """Return the order, on a device."""
    ids = torch.arange(vocabulary, device=device)
    key = torch.zeros_like(ids)
    for bit in range(max(vocabulary - 1, 1).bit_length()):
        key = (key << 1) | ((ids >> bit) & 1)
    order = key.argsort()
    return ReversedBits(order, order.argsort())


def _per_row(values: dict[str, Any], name: str, weights: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """Give the value of a filter for each row; None where the definition has no such input."""
    value = values.get(name)
    if value is None:
        return None
    return torch.as_tensor(value, device=weights.device).to(dtype).reshape(-1).expand(weights.shape[0])
