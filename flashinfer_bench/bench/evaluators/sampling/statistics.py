"""Tests of whether places in [0, 1) are uniform and independent: statistics only, no tokens, no solution.

Each test gives a p-value: the chance that a perfect sampler looks this odd or odder. Sums of chi-square over rows or
calls are compared with the chi-square distribution. Their own spread is a little smaller, so a perfect sampler is
rejected less often than the p-value says.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import torch

DRAW_GROUPS: Final = (32, 8)
"""Numbers of groups of equal expected share for all draws. Many groups show a narrow deviation, few a broad one."""
PART_GROUPS: Final = (4, 2)
"""The same for the draws of some of the rows, of which there are few: more groups have p-values that are too small."""
ROW_GROUPS: Final = (12, 4)
"""Numbers of groups of equal expected share for the draws of one row."""
CALL_GROUPS: Final = 16
"""Largest number of groups for the draws of one call."""
PAIR_GROUPS: Final = 16
"""Number of groups in which a draw is compared with the draw of the call before."""
MOVES: Final = 32
"""Times that the calls of the rows are moved, to see how often rows agree by chance."""
MOVE_SLACK: Final = 1.4
"""Factor on the deviation that is estimated from `MOVES` moves. With it the tail of the normal distribution lies above
that of Student's, up to eight deviations."""
LEAST_EXPECTED: Final = 8
"""Draws that are expected in a group, at least; if there are few draws, there are fewer groups."""


class Distance(NamedTuple):
    """How far the observed shares are from the expected ones."""

    tvd: float
    """Total variation distance over groups of tokens: half of the sum of |observed share - expected share|."""
    noise: float
    """A perfect sampler with this number of draws exceeds this distance once in ten thousand times."""


def measure_distance(places: torch.Tensor) -> Distance:
    """Return the distance of all places from equal shares."""
    draws = places.numel()
    groups = _group_count(draws, DRAW_GROUPS[0])
    shares = _count(places.reshape(1, -1), groups) / draws
    # The mean of the sum of folded normal values, one for each group, and four deviations of the sum.
    noise = math.sqrt(groups / (2 * math.pi * draws)) + 1.2 / math.sqrt(draws)
    return Distance(float((shares - 1 / groups).abs().sum() / 2), noise)


def measure_chances(places: torch.Tensor) -> dict[str, float]:
    """Test places [calls, rows]; return a p-value for each test of being uniform and independent."""
    calls, rows = places.shape
    found = {
        "shares": measure_shares(places),
        "shares within a row": _chi_square_of_best(places.T, ROW_GROUPS),
    }
    if calls > 1:  # draws in the same group as the draw of the call before, by Poisson
        group = _group(places, PAIR_GROUPS)
        repeats, pairs = (group[1:] == group[:-1]).sum(), group[1:].numel()
        expected = torch.tensor(pairs / PAIR_GROUPS, dtype=torch.float64)
        found["independence of calls"] = float(torch.special.gammainc(repeats.double(), expected)) if repeats else 1.0
    if rows > 1:
        found["independence of rows"] = _chi_square(places, max(2, min(CALL_GROUPS, rows // 4)))
    return found


def measure_shares(places: torch.Tensor, groups: tuple[int, int] = DRAW_GROUPS) -> float:
    """Test whether groups of equal share have equal numbers of all places; return the p-value.

    Args:
        places: the draws.
        groups: two numbers of groups; fewer if there are few draws.
    """
    return _chi_square_of_best(places.reshape(1, -1), groups)


def measure_omission(places: torch.Tensor, least_share: float) -> float:
    """Test whether draws are lacking at an end of [0, 1); return the p-value.

    A sampler that leaves out the likeliest or the unlikeliest tokens draws nothing there. Groups of equal share show
    that only where one of them lies wholly in the gap.

    Args:
        places: the draws.
        least_share: width of the smallest gap that has to show; those of twice, four times... the width are tried, too.
    """
    chances: list[float] = []
    width = least_share
    while width <= 0.5:
        counts = ((places < width).sum(), (places >= 1 - width).sum())
        chances += [_chance_of_few(int(count) / places.numel(), places.numel(), width) for count in counts]
        width *= 2
    return min(1.0, len(chances) * min(chances))


def measure_overuse(counts: torch.Tensor, shares: torch.Tensor, *, calls: int, candidates: int) -> float:
    """Test whether single tokens were drawn too often; return the p-value of the oddest token.

    Args:
        counts: for each drawn token of each row, how often it was drawn.
        shares: the probabilities of these tokens.
        calls: number of draws in a row.
        candidates: number of tokens that could have been drawn, in all rows. The p-value is multiplied by it, because
            the oddest of all these tokens is tested.
    """
    observed, expected = counts / calls, shares.clamp(1e-300, 1.0)
    entropy = torch.where(observed > expected, _entropy(observed, expected), 0.0)
    return min(1.0, candidates * math.exp(-calls * float(entropy.max())))


def measure_agreement(tokens: torch.Tensor, generator: torch.Generator) -> float:
    """Test whether tokens [calls, rows] of two rows are equal more often in one call than in two; return the p-value.

    To see how often rows agree by chance, the calls of each row are moved by a random number.
    """
    calls, rows = tokens.shape
    moves = torch.randint(calls, (MOVES, 1, rows), generator=generator)
    moved = tokens.expand(MOVES, -1, -1).gather(1, (torch.arange(calls)[:, None] + moves) % calls)
    ordered = torch.cat([tokens[None], moved]).sort(dim=2).values
    counts = (ordered[..., 1:] == ordered[..., :-1]).sum(dim=(1, 2)).double()
    mean, deviation = counts[1:].mean(), counts[1:].std()
    # If rows seldom agree, the count is not normal: its deviation is taken as if one more case had been seen.
    excess = (counts[0] - mean) / torch.maximum(deviation, (mean + 1).sqrt())
    return float(torch.special.erfc(excess / (MOVE_SLACK * math.sqrt(2))) / 2)


def chi_square_tail(statistic: float, degrees: int) -> float:
    """Return the chance of a chi-square statistic at least as large."""
    half = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def _entropy(observed: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return the relative entropy of two shares: Chernoff's bound on the tail of the binomial distribution."""
    rest = torch.xlogy(1 - observed, (1 - observed) / (1 - expected).clamp(min=1e-300))
    return torch.xlogy(observed, observed / expected) + rest


def _chance_of_few(observed: float, draws: int, share: float) -> float:
    """Bound the chance that a part of some share has no more of the draws; exact if it has none."""
    if observed >= share:
        return 1.0
    return math.exp(-draws * float(_entropy(*torch.tensor([observed, share], dtype=torch.float64))))


def _chi_square_of_best(places: torch.Tensor, groups: tuple[int, int]) -> float:
    """Return the smaller of two p-values, doubled because it is the smaller one."""
    return min(1.0, 2 * min(_chi_square(places, _group_count(places.shape[1], most)) for most in groups))


def _chi_square(places: torch.Tensor, groups: int) -> float:
    """Sum chi-square against equal shares over the lines of [lines, draws]; return the p-value of the sum."""
    lines, draws = places.shape
    expected = draws / groups
    statistic = float(((_count(places, groups) - expected) ** 2).sum() / expected)
    return chi_square_tail(statistic, lines * (groups - 1))


def _group_count(draws: int, most: int) -> int:
    return max(2, min(most, draws // LEAST_EXPECTED))


def _group(places: torch.Tensor, groups: int) -> torch.Tensor:
    return (places * groups).long().clamp(0, groups - 1)


def _count(places: torch.Tensor, groups: int) -> torch.Tensor:
    """Count the places of each line in each group, [lines, groups]."""
    lines = len(places)
    flat = _group(places, groups) + torch.arange(lines, device=places.device)[:, None] * groups
    return torch.bincount(flat.reshape(-1), minlength=lines * groups).reshape(lines, groups).double()
