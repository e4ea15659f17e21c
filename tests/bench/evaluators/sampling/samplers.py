"""Samplers to be judged: a perfect one, and those that are wrong in a way that somebody has shipped before."""

from __future__ import annotations

import torch

from flashinfer_bench.bench.evaluators.evaluator import JudgedCall
from flashinfer_bench.bench.evaluators.sampling.rules import SamplingProblem
from flashinfer_bench.data import Definition
from tests.kit.make import make_definition

CALLS = 100


def make_problem(
    generator: torch.Generator, *, rows: int = 64, vocabulary: int = 1000, filters: str = "", sharpest: float = 3.0
) -> SamplingProblem:
    """Make rows of mixed sharpness; `filters` has k, p and m for top-k, top-p and min-p."""
    logits = torch.randn(rows, vocabulary, generator=generator)
    sharpness = sharpest * (1 - 0.7 * torch.rand(rows, 1, generator=generator))
    half = torch.full((rows,), 0.5, dtype=torch.float64)
    known = {"k": ("top_k", half.long() + vocabulary // 4), "p": ("top_p", half + 0.3), "m": ("min_p", half / 10)}
    return SamplingProblem((logits * sharpness).softmax(dim=-1), dict(known[letter] for letter in filters))


def expected_shares(problem: SamplingProblem) -> torch.Tensor:
    """Filter and rescale, the slow and plain way."""
    shares = torch.zeros(problem.probabilities.shape, dtype=torch.float64)
    for row, probabilities in enumerate(problem.probabilities.double()):
        ordered, ids = probabilities.sort(descending=True)
        filters = {name: value[row] for name, value in problem.filters.items()}
        if "min_p" in filters:
            ordered = torch.where(ordered >= filters["min_p"] * ordered[0], ordered, 0.0)
        if "top_k" in filters:
            ordered[int(filters["top_k"]) :] = 0
            ordered /= ordered.sum()
        if "top_p" in filters:
            ordered = torch.where(ordered.cumsum(0) - ordered < filters["top_p"], ordered, 0.0)
        shares[row, ids] = ordered / ordered.sum()
    return shares


def draw(shares: torch.Tensor, generator: torch.Generator, calls: int = CALLS) -> torch.Tensor:
    """Draw perfectly: [calls, rows]."""
    return torch.multinomial(shares, calls, replacement=True, generator=generator).T.contiguous()


def as_calls(problem: SamplingProblem, tokens: torch.Tensor) -> tuple[Definition, list[JudgedCall]]:
    """Return the definition that has a problem's filters, and calls that gave these tokens [calls, rows]."""
    dtypes = {name: "int64" if name == "top_k" else "float64" for name in problem.filters}
    definition = make_definition(
        "joint" if problem.joint else "rows",
        op_type="sampling",
        axes={"n": None, "v": problem.probabilities.shape[1]},
        inputs={"probs": "float32[n, v]", **{name: f"{dtype}[n]" for name, dtype in dtypes.items()}},
        outputs={"samples": "int64[n]"},
    )
    inputs = [problem.probabilities, *problem.filters.values()]
    return definition, [JudgedCall(inputs, [drawn], [drawn]) for drawn in tokens]


def move_a_tenth(shares: torch.Tensor, is_target: torch.Tensor) -> torch.Tensor:
    """Move a tenth of each row's mass to some tokens, in proportion; less if there is less."""
    source, target = torch.where(is_target, 0.0, shares), torch.where(is_target, shares, 0.0)
    sums = [part.sum(dim=1, keepdim=True) for part in (source, target)]
    moved = torch.where(sums[1] > 0, sums[0].clamp(max=0.1), 0.0)
    parts = source * (1 - moved / sums[0].clamp(min=1e-9)), target * (1 + moved / sums[1].clamp(min=1e-9))
    return parts[0].clamp(min=0) + parts[1]


def same_random_number_in_every_row(shares, generator):
    numbers = torch.rand(CALLS, dtype=torch.float64, generator=generator).expand(len(shares), -1).contiguous()
    return torch.searchsorted(shares.cumsum(dim=1), numbers).clamp(max=shares.shape[1] - 1).T.contiguous()


def tail_of(shares):
    ordered, ids = shares.sort(dim=1, descending=True)
    return torch.zeros_like(shares).scatter_(1, ids, ((ordered.cumsum(dim=1) - ordered) >= 0.5).double()) > 0


WRONG = {
    "argmax": lambda shares, _: shares.argmax(dim=1).expand(CALLS, -1).contiguous(),
    "off by one": lambda shares, generator: (draw(shares, generator) + 1) % shares.shape[1],
    "same twice": lambda shares, generator: draw(shares, generator, CALLS // 2).repeat_interleave(2, dim=0),
    "same token in every row": lambda shares, generator: draw(shares, generator)[:, :1].expand(-1, len(shares)),
    "same random number in every row": same_random_number_in_every_row,
    "a tenth moved to the tail": lambda shares, generator: draw(move_a_tenth(shares, tail_of(shares)), generator),
    "a tenth moved to even ids": lambda shares, generator: draw(
        move_a_tenth(shares, (torch.arange(shares.shape[1]) % 2 == 0).expand(len(shares), -1)), generator
    ),
}
"""Takes the right shares [rows, vocabulary] and a generator; gives draws [calls, rows]."""
