"""Judges the indices of a top-k indexer. They are a set: their order means nothing, and -1 is padding in any place.

Each index has to be a token that its sequence can reach. No index may be there twice. There must be k of them, or as
many as the sequence has tokens.

Rounding may change which tokens are chosen. A right implementation finds scores between the lowest and the highest ones
of `ScoredRow`. So the score of its last choice lies between the k-th largest lowest score and the k-th largest highest
score. A chosen token is wrong where its highest score is below this range. A token that was left out is missing where
its lowest score is above it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.selection.indexer import IndexerProblem, ScoredRow, score_row
from flashinfer_bench.bench.evaluators.verdict import Verdict, decide
from flashinfer_bench.data import Correctness

DSA_TOLERANCE: Final = "dsa_score_tolerance"
DEFAULT_TOLERANCE: Final = 2e-3
"""How far off a score may be, as a share of its magnitude. Rounding the scaled keys to bfloat16 changes the worst of
some hundred scores by this share. Scores differ from each other by about a hundred times as much."""
PADDING: Final = -1
"""The index that fills a line with too few tokens."""
OUT_OF_RANGE, UNREACHABLE, DUPLICATE, TOO_LOW = 1, 2, 3, 4
"""Codes of what is wrong with an index; a right index has 0."""


@dataclass(frozen=True)
class _RowFinding:
    """What was found in one line of indices. Tensors stay on the device, so no line waits for it."""

    codes: torch.Tensor
    """[topk]: what is wrong with each index."""
    entries: torch.Tensor
    """Number of indices that are not padding."""
    left_out: torch.Tensor
    """[length]: which tokens had to be chosen and were not."""
    threshold: torch.Tensor
    """The k-th largest score."""
    shortfall: torch.Tensor
    """How far the lowest chosen score is below `threshold`; infinite where an index has no score or is missing."""
    magnitude: torch.Tensor
    """Largest absolute score of the sequence."""


def judge_indices(problem: IndexerProblem, indices: torch.Tensor, tolerance: float, *, name: str) -> Verdict:
    """Judge the indices [sequences, topk] that an indexer gave.

    Args:
        problem: what it was given.
        indices: of any integer dtype, on the device of the problem.
        tolerance: how far off a score may be, as a share of its magnitude.
        name: the output's name, for messages.
    """
    findings = [
        _judge_row(score_row(problem, row, tolerance), indices[row].long(), problem.tokens)
        for row in range(len(problem.lengths))
    ]
    wrong = _to_list([(finding.codes > 0).sum() for finding in findings])
    left_out = _to_list([finding.left_out.sum() for finding in findings])
    entries = _to_list([finding.entries for finding in findings])
    shortfalls = _to_list([finding.shortfall for finding in findings])
    relative = _to_list([(finding.shortfall / finding.magnitude).nan_to_num(nan=0.0) for finding in findings])
    due = [min(indices.shape[1], length) for length in problem.lengths]
    correctness = Correctness(
        max_relative_error=max(relative, default=0.0),
        max_absolute_error=max(shortfalls, default=0.0),
        extra={"indices": sum(entries), "wrong": sum(wrong), "left_out": sum(left_out), DSA_TOLERANCE: tolerance},
    )
    for row, finding in enumerate(findings):
        if wrong[row] or left_out[row] or entries[row] != due[row]:
            what = next(_describe_row(problem, indices[row], row, finding, tolerance))
            counts = f"{sum(wrong)} of {sum(entries)} indices are wrong, {sum(left_out)} are missing"
            return decide(f"output {name!r}: {what} ({counts}; {DSA_TOLERANCE}={tolerance:g})", correctness)
    return decide(None, correctness)


def _to_list(numbers: list[torch.Tensor]) -> list[Any]:
    """Give numbers that lie on a device as Python numbers, in one transfer."""
    return torch.stack(numbers).tolist() if numbers else []


def _judge_row(row: ScoredRow, chosen: torch.Tensor, cache_tokens: int) -> _RowFinding:
    """Judge a line of indices. A token that the sequence reaches twice may be chosen twice."""
    length, due = len(row.tokens), min(len(chosen), len(row.tokens))
    lowest, highest = row.lowest, row.highest
    # The last choice of a right implementation has a score between these two.
    floor, ceiling = (side.topk(due).values[-1] if due else side.new_tensor(-torch.inf) for side in (lowest, highest))
    threshold = row.scores.topk(due).values[-1] if due else row.scores.new_tensor(-torch.inf)
    values, columns = chosen.sort(stable=True)
    repeat = torch.arange(len(values), device=values.device) - torch.searchsorted(values, values)
    tokens = torch.cat((row.tokens, row.tokens.new_tensor([cache_tokens])))  # no index in range equals the last entry
    first = torch.searchsorted(tokens, values).clamp(max=length)
    place = (first + repeat).clamp(max=length)
    is_entry = values != PADDING
    in_range = (values >= 0) & (values < cache_tokens)
    is_own = in_range & (tokens[place] == values)
    codes = torch.zeros_like(values)
    codes[is_own & (torch.nn.functional.pad(highest, (0, 1))[place] < floor)] = TOO_LOW
    codes[in_range & ~is_own] = DUPLICATE
    codes[in_range & (tokens[first] != values)] = UNREACHABLE
    codes[is_entry & ~in_range] = OUT_OF_RANGE
    taken = torch.zeros(length + 1, dtype=torch.bool, device=values.device)
    taken[torch.where(is_own, place, length)] = True
    lowest_chosen = torch.where(taken[:-1], row.scores, torch.inf).min() if length else threshold
    is_whole = (((codes == 0) | (codes == TOO_LOW)).all()) & (is_entry.sum() == due)
    shortfall = (threshold - lowest_chosen).nan_to_num(nan=0.0).clamp(min=0.0)
    return _RowFinding(
        codes=torch.zeros_like(codes).scatter_(0, columns, codes),
        entries=is_entry.sum(),
        left_out=~taken[:-1] & (lowest > ceiling),
        threshold=threshold,
        shortfall=torch.where(is_whole, shortfall, torch.inf),
        magnitude=row.scores.abs().max() if length else row.scores.new_tensor(1.0),
    )


def _describe_row(
    problem: IndexerProblem, indices: torch.Tensor, row: int, finding: _RowFinding, tolerance: float
) -> Iterator[str]:
    """Say what is wrong with a line of indices, one sentence for each kind of error, the worst kind first."""
    for code in (OUT_OF_RANGE, UNREACHABLE, DUPLICATE):
        for column in (finding.codes == code).nonzero()[:1, 0].tolist():
            yield _describe_index(problem, indices, row, column, code)
    length, entries = problem.lengths[row], int(finding.entries)
    due = min(len(indices), length)
    if entries != due:
        why = f"the sequence has {length} tokens and there is room for {len(indices)}"
        yield f"line {row} holds {entries} indices, expected {due} and -1 else: {why}"
    scored = score_row(problem, row, tolerance)
    least = f"the {due}th best of {length} scores {float(finding.threshold):.6g}"
    for column in (finding.codes == TOO_LOW).nonzero()[:1, 0].tolist():
        at = int(torch.searchsorted(scored.tokens, int(indices[column])))
        yield f"token {int(indices[column])} at [{row}, {column}] scores {_describe_score(scored, at)}; {least}"
    for at in finding.left_out.nonzero()[:1, 0].tolist():
        what = f"token {int(scored.tokens[at])}, which scores {_describe_score(scored, at)}"
        yield f"line {row} leaves out {what}; {least}"


def _describe_index(problem: IndexerProblem, indices: torch.Tensor, row: int, column: int, code: int) -> str:
    value = int(indices[column])
    what = f"{value} at [{row}, {column}]"
    if code == OUT_OF_RANGE:
        return f"{what} is no token: the cache has 0 to {problem.tokens - 1}, and -1 is padding"
    if code == DUPLICATE:
        earlier = (indices == value).nonzero()[:, 0].tolist()
        return f"{what} is there already, at [{row}, {earlier[0] if earlier[0] != column else earlier[-1]}]"
    length, size = problem.lengths[row], problem.page_size
    pages = problem.table[row, : -(-length // size)].tolist()
    page = value // size
    if page in pages:
        return f"{what} lies beyond the end of sequence {row}, which has {length} tokens"
    return (
        f"{what} cannot be reached: page {page} is none of the {len(pages)} pages of sequence {row} in the block table"
    )


def _describe_score(row: ScoredRow, at: int) -> str:
    return f"{float(row.scores[at]):.6g} (± {float(row.margins[at]):.2g})"
