"""Tests whether quantiles in [0, 1) are uniform and independent. This module knows neither tokens nor solutions.

Each test gives a p-value: the chance that a perfect sampler looks this odd or odder. Sums of chi-square over rows or
calls are compared with the chi-square distribution. The true variance of the sums is a little smaller, so a perfect
sampler is rejected less often than the p-value says.
"""

from __future__ import annotations

import math
from typing import Final

import torch

GROUPS: Final = (32, 8)
"""Numbers of groups of equal expected share. Many groups show a narrow deviation, few groups a broad deviation."""
PART_GROUPS: Final = (4, 2)
"""Numbers of groups for the few draws of a part of the rows. With more groups, the p-values would be too small."""
PAIR_GROUPS: Final = 16
"""Number of groups for comparing a draw with the draw of the previous call."""
LEAST_EXPECTED: Final = 8
"""Minimum expected draws in a group. If there are few draws, there are fewer groups."""


def measure_distance(quantiles: torch.Tensor) -> tuple[float, float]:
    """Measure how unequally quantiles [orders, ...] are distributed over groups of equal width.

    Returns:
        The total variation distance in the worst order: half of the sum of |observed share - expected share|. The
        second number is the distance that a perfect sampler with this many draws exceeds once in ten thousand times.
    """
    draws = quantiles[0].numel()
    groups = _group_count(draws, GROUPS[0])
    shares = _count(quantiles.reshape(len(quantiles), -1), groups) / draws
    # The mean of a sum of folded normal values, one for each group, plus four standard deviations of the sum.
    noise = math.sqrt(groups / (2 * math.pi * draws)) + 1.2 / math.sqrt(draws)
    return float((shares - 1 / groups).abs().sum(dim=1).max() / 2), noise


def measure_chances(quantiles: torch.Tensor) -> dict[str, float]:
    """Test whether quantiles [calls, rows] are uniform and independent; return a p-value for each test."""
    calls, rows = quantiles.shape
    result = {"shares": measure_shares(quantiles.reshape(1, -1)), "shares within a row": measure_shares(quantiles.T)}
    if calls > 1:  # Poisson test of draws in the group of the previous call's draw
        group = _group(quantiles, PAIR_GROUPS)
        repeats, pairs = (group[1:] == group[:-1]).sum(), group[1:].numel()
        expected = torch.tensor(pairs / PAIR_GROUPS, dtype=torch.float64)
        result["independence of calls"] = float(torch.special.gammainc(repeats.double(), expected)) if repeats else 1.0
    if rows > 1:
        result["independence of rows"] = measure_shares(quantiles)
    return result


def measure_shares(lines: torch.Tensor, groups: tuple[int, int] = GROUPS) -> float:
    """Test whether the quantiles of each line are uniform, by counts in groups of equal width; return the p-value.

    Args:
        lines: quantiles [lines, draws].
        groups: numbers of groups to try.
    """
    chances = []
    for most in groups:
        count = _group_count(lines.shape[1], most)
        expected = lines.shape[1] / count
        statistic = ((_count(lines, count) - expected) ** 2).sum() / expected
        degrees = torch.tensor(len(lines) * (count - 1), dtype=torch.float64)
        chances.append(float(torch.special.gammaincc(degrees / 2, statistic.cpu() / 2)))
    return min(1.0, 2 * min(chances))  # Bonferroni correction for the smaller of two p-values


def measure_omission(quantiles: torch.Tensor, least_share: float) -> float:
    """Test whether draws are lacking at an end of [0, 1); return the p-value.

    A sampler that omits the likeliest or the unlikeliest tokens has no draws at that end. Groups of equal share show
    such a gap only if a whole group lies in it.

    Args:
        quantiles: the draws.
        least_share: width of the smallest gap that must show. Twice this width, four times this width, and so on are
            tried, too.
    """
    chances: list[float] = []
    width, draws = least_share, quantiles.numel()
    while width <= 0.5:
        for count in ((quantiles < width).sum(), (quantiles >= 1 - width).sum()):
            seen, expected = count.double() / draws, torch.tensor(width, dtype=torch.float64)
            # Chernoff's bound on the tail of the binomial distribution; exact if the count is zero.
            entropy = torch.xlogy(seen, seen / expected) + torch.xlogy(1 - seen, (1 - seen) / (1 - expected))
            chances.append(1.0 if seen >= expected else math.exp(-draws * float(entropy)))
        width *= 2
    return min(1.0, len(chances) * min(chances))


def _group_count(draws: int, most: int) -> int:
    return max(2, min(most, draws // LEAST_EXPECTED))


def _group(quantiles: torch.Tensor, groups: int) -> torch.Tensor:
    return (quantiles * groups).long().clamp(0, groups - 1)


def _count(quantiles: torch.Tensor, groups: int) -> torch.Tensor:
    """Count the quantiles of each line in each group, [lines, groups]."""
    lines = len(quantiles)
    flat = _group(quantiles, groups) + torch.arange(lines)[:, None] * groups
    return torch.bincount(flat.reshape(-1), minlength=lines * groups).reshape(lines, groups).double()
