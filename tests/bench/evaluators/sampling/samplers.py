"""Samplers to be judged: a perfect one, and those that are wrong in a way that somebody has shipped before."""

from __future__ import annotations

from collections.abc import Callable

import torch

from flashinfer_bench.bench.evaluators.sampling.rules import SamplingProblem

CALLS = 100


def make_problem(
    generator: torch.Generator, *, rows: int = 64, vocabulary: int = 1000, filters: str = "", sharpest: float = 3.0
) -> SamplingProblem:
    """Make rows of mixed sharpness; `filters` has k, p and m for top-k, top-p and min-p."""
    logits = torch.randn(rows, vocabulary, generator=generator)
    sharpness = sharpest * (1 - 0.7 * torch.rand(rows, 1, generator=generator))
    half = torch.full((rows,), 0.5, dtype=torch.float64)
    return SamplingProblem(
        probabilities=(logits * sharpness).softmax(dim=-1),
        top_k=torch.full((rows,), vocabulary // 4) if "k" in filters else None,
        top_p=half + 0.3 if "p" in filters else None,
        min_p=half / 10 if "m" in filters else None,
        joint=False,
    )


def expected_shares(problem: SamplingProblem) -> torch.Tensor:
    """Filter and rescale, the slow and plain way."""
    shares = torch.zeros(problem.probabilities.shape, dtype=torch.float64)
    for row, probabilities in enumerate(problem.probabilities.double()):
        ordered, ids = probabilities.sort(descending=True)
        if problem.min_p is not None:
            ordered = torch.where(ordered >= problem.min_p[row] * ordered[0], ordered, 0.0)
        if problem.top_k is not None:
            ordered[int(problem.top_k[row]) :] = 0
            ordered /= ordered.sum()
        if problem.top_p is not None:
            ordered = torch.where(ordered.cumsum(0) - ordered < problem.top_p[row], ordered, 0.0)
        shares[row, ids] = ordered / ordered.sum()
    return shares


def draw(shares: torch.Tensor, generator: torch.Generator, calls: int = CALLS) -> torch.Tensor:
    """Draw perfectly: [calls, rows]."""
    return torch.multinomial(shares, calls, replacement=True, generator=generator).T.contiguous()


def _move_a_tenth(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Move a tenth of each row's mass from some tokens to others, in proportion; less where there is less."""
    sums = [part.sum(dim=1, keepdim=True) for part in (source, target)]
    moved = torch.where(sums[1] > 0, torch.minimum(sums[0], torch.tensor(0.1)), 0.0)
    return (source * (1 - moved / sums[0].clamp(min=1e-9))).clamp(min=0) + target * (
        1 + moved / sums[1].clamp(min=1e-9)
    )


def _argmax(problem, shares, generator):
    return shares.argmax(dim=1).expand(CALLS, -1).contiguous()


def _off_by_one(problem, shares, generator):
    return (draw(shares, generator) + 1) % shares.shape[1]


def _same_in_every_call(problem, shares, generator):
    return draw(shares, generator, 1).expand(CALLS, -1).contiguous()


def _same_twice(problem, shares, generator):
    return draw(shares, generator, CALLS // 2).repeat_interleave(2, dim=0)


def _cycle_of_ten(problem, shares, generator):
    return draw(shares, generator, 10).repeat(CALLS // 10, 1)


def _same_token_in_every_row(problem, shares, generator):
    return draw(shares, generator)[:, :1].expand(-1, shares.shape[0]).contiguous()


def _same_random_number_in_every_row(problem, shares, generator):
    numbers = torch.rand(CALLS, dtype=torch.float64, generator=generator).expand(shares.shape[0], -1).contiguous()
    return torch.searchsorted(shares.cumsum(dim=1), numbers).clamp(max=shares.shape[1] - 1).T.contiguous()


def _same_noise_in_every_row(problem, shares, generator):
    noise = torch.empty(CALLS, 1, shares.shape[1]).exponential_(generator=generator)
    return torch.stack([(shares / once).argmax(dim=1) for once in noise])


def _no_filters(problem, shares, generator):
    return draw(problem.probabilities, generator)


def _no_top_p(problem, shares, generator):
    return draw(
        expected_shares(SamplingProblem(problem.probabilities, problem.top_k, None, None, joint=False)), generator
    )


def _tenth_moved_to_the_first(problem, shares, generator):
    moved = shares * 0.9
    moved[torch.arange(len(shares)), shares.argmax(dim=1)] += 0.1
    return draw(moved, generator)


def _tenth_moved_to_the_tail(problem, shares, generator):
    ordered, ids = shares.sort(dim=1, descending=True)
    head = (ordered.cumsum(dim=1) - ordered) < 0.5
    parts = [torch.where(chosen, ordered, 0.0) for chosen in (head, ~head)]
    moved = _move_a_tenth(*parts)
    return draw(torch.zeros_like(shares).scatter_(1, ids, moved), generator)


def _tenth_moved_to_even_ids(problem, shares, generator):
    even = torch.arange(shares.shape[1]) % 2 == 0
    return draw(_move_a_tenth(torch.where(even, 0.0, shares), torch.where(even, shares, 0.0)), generator)


def _sharper(problem, shares, generator):
    return draw(shares**1.25, generator)


Sampler = Callable[[SamplingProblem, torch.Tensor, torch.Generator], torch.Tensor]

WRONG: dict[str, Sampler] = {
    function.__name__.strip("_"): function
    for function in (
        _argmax,
        _off_by_one,
        _same_in_every_call,
        _same_twice,
        _cycle_of_ten,
        _same_token_in_every_row,
        _same_random_number_in_every_row,
        _same_noise_in_every_row,
        _tenth_moved_to_the_first,
        _tenth_moved_to_the_tail,
        _tenth_moved_to_even_ids,
        _sharper,
    )
}
IGNORE_FILTERS: dict[str, Sampler] = {"no_filters": _no_filters, "no_top_p": _no_top_p}
