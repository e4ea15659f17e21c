"""The tokens that a sampler may draw, and the quantile of each draw in its required distribution.

Filters act on the probabilities of a row, sorted from the largest:
* top-k keeps the first k tokens. A k below 1 or above the vocabulary keeps all tokens.
* top-p keeps tokens until their mass reaches p, including the token that crosses p. A p of 1 or more keeps all tokens,
  a p of 0 or less only the likeliest token.
* min-p keeps the tokens with at least min_p of the largest probability.
* With top-k and top-p, top-k comes first, and top-p acts on the kept tokens, rescaled. If the definition's name has
  "joint", both act on the original row.

Right implementations differ in rounding and ties. So a row has a narrow set and a wide set of kept tokens. The tokens
in only the wide set are the boundary group. Every draw from the wide set is allowed. The number of draws in the
boundary group shows which set the sampler follows.

In a fixed order of the tokens, each token has an interval in [0, 1) whose length is its probability. A draw's quantile
is a random point in its token's interval. For any distribution, the quantiles of a right sampler are uniform and
independent. So quantiles of different rows are tested together (`statistics`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch.nn.functional import pad

from flashinfer_bench.bench.evaluator_record import find_weights
from flashinfer_bench.data import Definition
from flashinfer_bench.errors import WorkloadFault

FILTERS: Final = {"top_k": torch.int64, "top_p": torch.float64, "min_p": torch.float64}
ROUNDING: Final = 1e-4
"""Largest shift of a filter's boundary by rounding: in mass for top-p, relative for min-p."""
MATERIAL: Final = 1e-3
"""A row is not tested in the orders by id if its boundary group has more than this share of the kept mass."""
CHUNK_ELEMENTS: Final = 1 << 23
"""Maximum number of probabilities that are sorted at once. Sorting this many takes a few hundred megabytes."""
ORDERS: Final = ("probability", "token id", "token id, even ids first")
"""Orders of the tokens in which quantiles are computed. The last order sorts by the reversed bits of the ids."""


@dataclass(frozen=True)
class SamplingProblem:
    """A sampler's inputs."""

    probabilities: torch.Tensor
    """[rows, vocabulary]; no value is negative."""
    filters: dict[str, torch.Tensor]
    """[rows] by name: int64 top_k, float64 top_p and min_p, if the definition has them."""
    joint: bool = False
    """Whether top-k and top-p both act on the original row."""


class DrawQuantiles(NamedTuple):
    """The draws of all rows and calls, on the CPU."""

    quantiles: torch.Tensor
    """[rows, calls, orders]."""
    allowed: torch.Tensor
    """[rows, calls]: whether the token is in the wide set."""
    kept: torch.Tensor
    """[rows]: number of tokens in the wide set."""
    peaks: torch.Tensor
    """[rows]: largest probability."""


def read_problem(definition: Definition, inputs: Sequence[Any]) -> SamplingProblem:
    """Read the rows and the filters from the inputs of a definition.

    Raises:
        WorkloadFault: a row is not a distribution.
        ValueError: the definition has no input of probabilities or logits, or several. Only a plug-in can get this.
    """
    values = dict(zip(definition.inputs, inputs, strict=True))
    name = find_weights(definition)
    if name is None:
        raise ValueError(f"{definition.name} needs exactly one 2-D float input called probs, probabilities or logits")
    weights = values[name].to(torch.float32)
    if "logits" in name.lower():
        temperature = torch.as_tensor(values.get("temperature", 1.0), device=weights.device)
        weights = (weights / temperature.to(torch.float32).reshape(-1, 1)).softmax(dim=-1)
    if isinstance(values.get("indices"), torch.Tensor):
        weights = weights[values["indices"].long()]
    usable = torch.isfinite(weights).all() & (weights >= 0).all() & (weights.sum(dim=-1) > 0).all()
    if weights.numel() == 0 or not bool(usable):
        raise WorkloadFault(f"input {name!r} of {definition.name} has a row that is no distribution")
    filters = {
        key: torch.as_tensor(values[key], device=weights.device).to(dtype).reshape(-1).expand(len(weights))
        for key, dtype in FILTERS.items()
        if values.get(key) is not None
    }
    return SamplingProblem(weights, filters, "joint" in definition.name.lower())


class SortedRows:
    """Rows sorted from the largest probability. Arguments and results of its methods are [rows, n]."""

    def __init__(self, problem: SamplingProblem) -> None:
        self.problem = problem
        self.vocabulary = problem.probabilities.shape[1]
        # searchsorted needs ascending numbers.
        self._negative = problem.probabilities.neg().sort(dim=1).values
        self.mass = pad(self._negative.neg().double().cumsum(dim=1), (1, 0))
        """[rows, vocabulary + 1]: at i, the mass of the first i tokens."""

    def value(self, rank: torch.Tensor) -> torch.Tensor:
        """Return the probability at a rank; 0 beyond the last rank."""
        result = -self._negative.gather(1, rank.clamp(0, self.vocabulary - 1))
        return torch.where(rank < self.vocabulary, result, 0.0)

    def count_above(self, value: torch.Tensor, *, or_equal: bool = False) -> torch.Tensor:
        """Count the tokens whose probability is above `value`, or equal to it if `or_equal`."""
        wanted = value.neg().to(self._negative.dtype).contiguous()
        return torch.searchsorted(self._negative, wanted, right=or_equal)

    def count_kept(self, slack: float) -> torch.Tensor:
        """Count the kept tokens [rows, 1]: the wide set if `slack` is positive, else the narrow set."""
        filters, is_wide = self.problem.filters, slack > 0
        zero = torch.zeros_like(self.mass[:, :1])
        kept, everything, whole = self.count_above(zero), zero.long() + self.vocabulary, zero + 1

        def with_ties(count: torch.Tensor) -> torch.Tensor:
            return self.count_above(self.value(count - 1), or_equal=True) if is_wide else count

        if "min_p" in filters:
            least = filters["min_p"][:, None] * self.value(zero.long()).double() * (1 - slack)
            kept = torch.minimum(kept, self.count_above(least, or_equal=True))
        if "top_k" in filters:
            k = filters["top_k"][:, None]
            active = (k > 0) & (k < self.vocabulary)
            kept = torch.minimum(kept, with_ties(torch.where(active, k, everything)))
            whole = torch.where(active, self.mass.gather(1, kept), whole) if not self.problem.joint else whole
        if "top_p" in filters:
            p = filters["top_p"][:, None]
            reached = torch.searchsorted(self.mass[:, 1:].contiguous(), (p + slack) * whole, right=is_wide)
            crossing = (reached + 1).clamp(max=self.vocabulary)
            crossing = torch.where(p >= 1, everything, torch.where(p <= 0, 1, crossing))
            kept = torch.minimum(kept, with_ties(crossing))
        return kept.clamp(min=1)


def find_quantiles(problem: SamplingProblem, tokens: torch.Tensor, generator: torch.Generator) -> DrawQuantiles:
    """Find the quantiles of draws, in chunks of rows.

    Args:
        problem: the sampler's inputs.
        tokens: int64 [rows, calls].
        generator: on the CPU; it decides the position of a draw's quantile within its token's interval.
    """
    rows, vocabulary = problem.probabilities.shape
    step, chunks = max(1, CHUNK_ELEMENTS // vocabulary), []
    for start in range(0, rows, step):
        part = slice(start, start + step)
        filters = {name: value[part] for name, value in problem.filters.items()}
        some = SamplingProblem(problem.probabilities[part], filters, problem.joint)
        chunks.append([one.cpu() for one in _find_quantiles(some, tokens[part], generator)])
    return DrawQuantiles(*map(torch.cat, zip(*chunks, strict=True)))


def _find_quantiles(problem: SamplingProblem, tokens: torch.Tensor, generator: torch.Generator) -> DrawQuantiles:
    """Find the quantiles of draws [rows, calls]."""
    probabilities, ordered = problem.probabilities, SortedRows(problem)
    spread = torch.rand((3, *tokens.shape), dtype=torch.float64, generator=generator).to(tokens.device)
    narrow = ordered.count_kept(-ROUNDING)
    wide = torch.maximum(ordered.count_kept(ROUNDING), narrow)
    in_range = (tokens >= 0) & (tokens < ordered.vocabulary)
    tokens = torch.where(in_range, tokens, 0)
    drawn, least = probabilities.gather(1, tokens), ordered.value(wide - 1)
    # The boundary group begins at the first token that ties with the first token outside the narrow set.
    core = torch.minimum(ordered.count_above(ordered.value(narrow)), narrow)
    core_mass, narrow_mass, wide_mass = (ordered.mass.gather(1, count) for count in (core, narrow, wide))
    above, up_to = ordered.count_above(drawn), ordered.count_above(drawn, or_equal=True)
    in_group = above >= core
    outside = 1 - in_group.double().mean(dim=1, keepdim=True)
    follows_wide = (outside - core_mass / wide_mass).abs() < (outside - core_mass / narrow_mass).abs()
    whole = torch.where(follows_wide, wide_mass, narrow_mass)
    low = torch.where(in_group, core_mass, ordered.mass.gather(1, above))
    high = torch.where(in_group, whole, ordered.mass.gather(1, up_to))
    quantiles = [(low + spread[0] * (high - low)) / whole]
    weights = torch.where(probabilities >= least, probabilities, 0.0)
    # If ties decide which tokens a row keeps, orders by id test nothing, since a sampler may draw any of the tied
    # tokens.
    clear = wide_mass - narrow_mass <= MATERIAL * narrow_mass
    for order, by_chance in zip(_order_ids(ordered.vocabulary), spread[1:], strict=True):
        order, position = order.to(tokens.device), order.argsort().to(tokens.device)[tokens]
        in_order = weights[:, order].double()
        mass = in_order.cumsum(dim=1)
        quantile = (mass.gather(1, position) - by_chance * in_order.gather(1, position)) / mass[:, -1:]
        quantiles.append(torch.where(clear, quantile, by_chance))
    allowed = in_range & (drawn >= least) & (drawn > 0)
    return DrawQuantiles(torch.stack(quantiles, dim=-1), allowed, wide[:, 0], probabilities.amax(dim=1))


def _order_ids(vocabulary: int) -> list[torch.Tensor]:
    """Return the ids of all tokens as they are, and in the order of their reversed bits."""
    bits = max(vocabulary - 1, 1).bit_length()
    turned = torch.arange(2**bits).view([2] * bits).permute(*reversed(range(bits))).reshape(-1)
    return [torch.arange(vocabulary), turned[turned < vocabulary]]
