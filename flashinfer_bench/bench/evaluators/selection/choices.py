"""Judges which tokens rows choose by their scores. A choice is a set: its order means nothing, and -1 is padding.

Each index has to be a token that is offered to its row. No index may be there more often than it is offered. There must
be k of them, or as many as the row is offered.

Rounding may change which tokens are chosen. A right implementation finds each score within its margin. So the score of
its last choice lies between the k-th largest of the lowest scores, and the k-th largest of the highest. A chosen token
is wrong if its highest score is below this range. A token that was left out is missing if its lowest score is above it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from flashinfer_bench.bench.evaluators.evaluator import Verdict
from flashinfer_bench.bench.evaluators.verdict import decide
from flashinfer_bench.data import Correctness

PADDING: Final = -1
TOO_LOW, DUPLICATE, STRANGE = 1, 2, 3
"""Codes of what is wrong with an index, the worst last; a right index has 0."""


@dataclass(frozen=True)
class Offer:
    """What rows choose from. Of each row the first `lengths` entries count."""

    tokens: torch.Tensor
    """int64 [rows, n], or [n] for all rows, ascending."""
    scores: torch.Tensor
    """[rows, n], of any float dtype."""
    lengths: torch.Tensor
    """int64 [rows]."""
    margins: torch.Tensor | None = None
    """[rows, n]: how far off each score may be; None: scores are exact. A score with a margin that is not finite says
    nothing of its token."""

    def bound(self, sign: int) -> torch.Tensor:
        """Return the lowest (-1) or the highest (1) scores that a right implementation may find."""
        if self.margins is None:
            return self.scores
        return torch.where(self.scores.isfinite(), self.scores + sign * self.margins, sign * torch.inf)


def judge_choice(
    offer: Offer, chosen: torch.Tensor, *, name: str, explain: Callable[[int, int], str], note: str = ""
) -> Verdict:
    """Judge the indices [rows, k] that rows chose; `extra` of the correctness has the counts.

    Args:
        offer: what the rows choose from.
        chosen: of any integer dtype, on the device of the offer.
        name: the output's name, for messages.
        explain: says why an index is not offered, by the row and the index.
        note: stands behind the counts in a message.
    """
    scores, lengths = offer.scores, offer.lengths[:, None]
    size, most = scores.shape[1], chosen.shape[1]
    inside = torch.arange(size, device=scores.device) < lengths
    due = lengths.clamp(max=most)
    lowest, highest = offer.bound(-1), offer.bound(1)

    def last(side: torch.Tensor) -> torch.Tensor:
        """Return the score [rows, 1] of the last choice by these scores."""
        best = torch.where(inside, side, -torch.inf).topk(min(most, size), dim=1).values
        return torch.where(due > 0, best.gather(1, (due - 1).clamp(min=0)), -torch.inf)

    threshold, tokens = last(scores), offer.tokens.expand(len(scores), -1)
    values, columns = chosen.long().sort(dim=1, stable=True)
    first = torch.searchsorted(offer.tokens.contiguous(), values)
    # A token that is offered twice may be chosen twice.
    place = first + torch.arange(most, device=values.device) - torch.searchsorted(values, values)
    known, is_own = ((at < lengths) & (tokens.gather(1, at.clamp(max=size - 1)) == values) for at in (first, place))
    safe = torch.where(is_own, place, 0)
    is_low = is_own & (highest.gather(1, safe) < last(lowest))
    codes = torch.where(is_own, is_low.long() * TOO_LOW, torch.where(known, DUPLICATE, STRANGE))
    codes = torch.where(values == PADDING, 0, codes).scatter(1, columns, torch.where(values == PADDING, 0, codes))
    taken = torch.zeros(len(scores), size + 1, dtype=torch.bool, device=scores.device)
    taken = taken.scatter_(1, torch.where(is_own, place, size), value=True)[:, :-1]
    missing = inside & ~taken & (lowest > last(highest))
    entries = (values != PADDING).sum(dim=1)
    reached = torch.where(taken, scores, torch.inf).amin(dim=1)
    is_whole = (codes <= TOO_LOW).all(dim=1) & (entries == due[:, 0])
    shortfall = (threshold[:, 0] - reached).nan_to_num(nan=0.0).clamp(min=0.0)
    shortfall = torch.where(is_whole, shortfall, torch.inf).double()
    size_of = torch.where(inside, scores.abs(), 0.0).amax(dim=1).double()
    facts = torch.stack(
        [
            (codes > 0).sum(dim=1),
            missing.sum(dim=1),
            entries,
            due[:, 0],
            shortfall,
            (shortfall / size_of).nan_to_num(0.0),
        ]
    )
    wrong, left_out, made, wanted, absolute, relative = facts.tolist()
    correctness = Correctness(
        max_relative_error=max(relative, default=0.0),
        max_absolute_error=max(absolute, default=0.0),
        extra={"indices": int(sum(made)), "wrong": int(sum(wrong)), "left_out": int(sum(left_out))},
    )
    row = next((row for row in range(len(wrong)) if wrong[row] or left_out[row] or made[row] != wanted[row]), None)
    if row is None:
        return decide(None, correctness)

    def describe() -> str:
        """Say what is wrong with the row, the worst first."""
        for code in (STRANGE, DUPLICATE):
            for column in (codes[row] == code).nonzero()[:1, 0].tolist():
                index = int(chosen[row, column])
                what = f"{index} at [{row}, {column}]"
                if code == STRANGE:
                    return f"{what} {explain(row, index)}"
                earlier = next(at for at in (chosen[row] == index).nonzero()[:, 0].tolist() if at != column)
                return f"{what} is there already, at [{row}, {earlier}]"
        if made[row] != wanted[row]:
            why = f"it is offered {int(lengths[row])} tokens and there is room for {most}"
            return f"line {row} holds {made[row]:.0f} indices, expected {wanted[row]:.0f} and -1 else: {why}"
        least = f"the {wanted[row]:.0f}th best of {int(lengths[row])} scores {float(threshold[row]):.6g}"

        def score(at: int) -> str:
            margin = "" if offer.margins is None else f" (± {float(offer.margins[row, at]):.2g})"
            return f"{float(scores[row, at]):.6g}{margin}"

        for column in (codes[row] == TOO_LOW).nonzero()[:1, 0].tolist():
            index = int(chosen[row, column])
            at = int(torch.searchsorted(tokens[row].contiguous(), index))
            return f"token {index} at [{row}, {column}] scores {score(at)}; {least}"
        at = int(missing[row].nonzero()[0])
        return f"line {row} leaves out token {int(tokens[row, at])}, which scores {score(at)}; {least}"

    counts = f"{sum(wrong):.0f} of {sum(made):.0f} indices are wrong, {sum(left_out):.0f} are missing{note}"
    return decide(f"output {name!r}: {describe()} ({counts})", correctness)
