"""Judges which tokens each row chose by score. A choice is a set: its order has no meaning, and -1 is padding.

Each index must be a token that is offered to its row. No index may occur more often than it is offered. The choice has
k indices, or all offered tokens if fewer than k are offered.

Rounding may change the chosen tokens. A right implementation computes each score with an error of at most its margin,
so each token has a lowest and a highest possible score. The lowest chosen score lies in a range: from the k-th largest
of all lowest scores to the k-th largest of all highest scores. A chosen token is wrong if its highest score is below
this range. An omitted token should have been chosen if its lowest score is above the range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from flashinfer_bench.bench.evaluators.evaluator import Verdict
from flashinfer_bench.bench.evaluators.verdict import decide
from flashinfer_bench.data import Correctness

PADDING: Final = -1
TOO_LOW, DUPLICATE, STRANGE = 1, 2, 3
"""Codes of errors of an index, the worst last; a right index has 0."""


@dataclass(frozen=True)
class Offer:
    """The candidates of rows. Only the first `lengths` entries of each row count."""

    tokens: torch.Tensor
    """int64 [rows, n], or [n] for all rows, ascending."""
    scores: torch.Tensor
    """[rows, n], of any float dtype."""
    lengths: torch.Tensor
    """int64 [rows]."""
    margins: torch.Tensor | float = 0.0
    """[rows, n]: largest error of each score. If a margin is not finite, the token's score is unknown."""

    def bound(self, sign: int) -> torch.Tensor:
        """Return the lowest (-1) or the highest (1) scores that a right implementation may find."""
        return torch.where(self.scores.isfinite(), self.scores + sign * self.margins, sign * torch.inf)


def judge_choice(offer: Offer, chosen: torch.Tensor, *, name: str) -> Verdict:
    """Judge the indices [rows, k] that rows chose; `extra` of the correctness has the counts.

    Args:
        offer: the candidates of the rows.
        chosen: the indices, of any integer dtype, on the device of the offer.
        name: the output's name, for messages.
    """
    scores, lengths, device = offer.scores, offer.lengths[:, None], chosen.device
    (rows, size), most = scores.shape, chosen.shape[1]
    inside, due = torch.arange(size, device=device) < lengths, lengths.clamp(max=most)

    def last(side: torch.Tensor) -> torch.Tensor:
        """Return the `due`-th largest score of each row [rows, 1]: the lowest in a right choice by these scores."""
        best = torch.where(inside, side, -torch.inf).topk(min(most, size), dim=1).values
        return torch.where(due > 0, best.gather(1, (due - 1).clamp(min=0)), -torch.inf)

    lowest, highest, threshold = offer.bound(-1), offer.bound(1), last(scores)
    tokens = offer.tokens.expand(rows, -1).contiguous()
    values, columns = chosen.long().sort(dim=1, stable=True)
    first, padding = torch.searchsorted(tokens, values), values == PADDING
    # A token that is offered twice may be chosen twice.
    second = first + torch.arange(most, device=device) - torch.searchsorted(values, values)
    known, is_own = ((at < lengths) & (tokens.gather(1, at.clamp(max=size - 1)) == values) for at in (first, second))
    is_low = is_own & (highest.gather(1, torch.where(is_own, second, 0)) < last(lowest))
    codes = torch.where(is_own, is_low.long() * TOO_LOW, torch.where(known, DUPLICATE, STRANGE))
    codes = torch.where(padding, 0, codes).gather(1, columns.argsort(dim=1))
    taken = torch.zeros(rows, size + 1, dtype=torch.bool, device=device)
    taken = taken.scatter_(1, torch.where(is_own, second, size), value=True)[:, :-1]
    missing = inside & ~taken & (lowest > last(highest))
    entries = (~padding).sum(dim=1)
    reached = torch.where(taken, scores, torch.inf).amin(dim=1)
    is_whole = (codes <= TOO_LOW).all(dim=1) & (entries == due[:, 0])
    shortfall = (threshold[:, 0] - reached).nan_to_num(nan=0.0).clamp(min=0.0)
    shortfall = torch.where(is_whole, shortfall, torch.inf).double()
    shares = (shortfall / torch.where(inside, scores.abs(), 0.0).amax(dim=1).double()).nan_to_num(0.0)
    counts = torch.stack([(codes > 0).sum(dim=1), missing.sum(dim=1), entries, due[:, 0]])
    wrong, left_out, made, wanted = counts.tolist()
    correctness = Correctness(
        max_relative_error=max(shares.tolist(), default=0.0),
        max_absolute_error=max(shortfall.tolist(), default=0.0),
        extra={"indices": sum(made), "wrong": sum(wrong), "left_out": sum(left_out)},
    )
    row = next((row for row in range(rows) if wrong[row] or left_out[row] or made[row] != wanted[row]), None)
    if row is None:
        return decide(None, correctness)
    code, column = (int(one) for one in codes[row].max(dim=0))
    index, offered = int(chosen[row, column]), int(lengths[row])
    if code > TOO_LOW:
        why = "twice" if code == DUPLICATE else f"not offered: row {row} has {offered} tokens to choose from"
        what = f"{index} at [{row}, {column}] is {why}"
    elif made[row] != wanted[row]:
        what = f"row {row} holds {made[row]} indices, expected {wanted[row]} and -1 else"
    else:
        at = int(torch.searchsorted(tokens[row], index) if code else missing[row].nonzero()[0])
        which = (
            f"token {index} at [{row}, {column}]"
            if code
            else f"row {row} leaves out token {int(tokens[row, at])}, which"
        )
        least = f"the {wanted[row]}th best of {offered} scores {float(threshold[row]):.6g}"
        what = f"{which} scores {float(scores[row, at]):.6g}; {least}"
    summary = f"{sum(wrong)} of {sum(made)} indices are wrong, {sum(left_out)} are missing"
    return decide(f"output {name!r}: {what} ({summary})", correctness)
