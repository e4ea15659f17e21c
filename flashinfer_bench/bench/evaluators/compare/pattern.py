"""Describes a wrong output in a few words: a change of all values, or the positions of the wrong elements.

A pattern is a hint for the author of a solution and decides nothing. If many elements fail, the search tries one change
of all values: a factor, an offset, a shift, another order. If no change fits, the failing positions are described along
each axis: one range, the same range of each tile, or a side of the diagonal. Most positions in a range fail, and few
positions outside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import torch

from flashinfer_bench.bench.evaluators.compare.outputs import find_failing, is_whole, read_values
from flashinfer_bench.bench.evaluators.compare.tolerance import Comparison, Tolerance, find_beyond

MOST_ELEMENTS: Final = 1 << 24
"""Outputs with more elements than this get no pattern, since the search would take seconds."""
LEAST_SHARE: Final = 0.99
"""A change of all values fits if at least this share of the elements then matches."""
LEAST_FAILING: Final = 0.25
"""Changes of all values are tried if at least this share of the elements fails."""
MOST_WRONG: Final = 0.2
"""A range fits if the positions that it describes wrongly are at most this share of the failing positions."""
MOST_ELSEWHERE: Final = 0.1
"""A position of an axis counts as failing if it has more than this share of the worst position's failures. A side of
the diagonal is named if at most this share of the failures is outside it."""
MOST_OF_TILE: Final = 0.6
"""A range that repeats in each tile covers at most this share of a tile."""
LEAST_HITS: Final = 4
"""Tiles are tried if at least this many positions of an axis fail. Only matrices with at least this many rows have a
diagonal."""
WRITTEN_RTOL: Final = 0.01
"""Relative tolerance of float32 values that a solution may have written to a 16-bit output."""
SHIFTS: Final = tuple(2**power for power in range(8))
"""Shifts that are tried along each axis, in positions: one, and common sizes of tiles."""
TILES: Final = tuple(2**power for power in range(1, 13))


def describe_problem(comparison: Comparison, expected: torch.Tensor, got: torch.Tensor) -> str | None:
    """Return why an output is wrong, with the pattern of its errors; None if it is right."""
    if comparison.problem() is None:
        return None
    return replace(comparison, pattern=describe_pattern(expected, got, comparison.tolerance)).problem()


def describe_pattern(expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance) -> str | None:
    """Describe a wrong output; None if no pattern fits, or no element fails."""
    if not 1 < expected.numel() <= MOST_ELEMENTS or expected.shape != got.shape:
        return None
    failing = find_failing(expected, got, tolerance)
    left, right = read_values(expected), read_values(got)
    is_rounded = is_whole(expected) and bool((left == right)[failing].any())  # integers that float64 rounds
    if failing.float().mean() >= LEAST_FAILING and not is_rounded:
        if bool((right == right.flatten()[0]).all()):
            return f"all values are {right.flatten()[0].item():g}"
        limits = Tolerance(0.0, 0.0) if is_whole(expected) else tolerance
        for words, wanted, given in _candidates(left, right, got):
            if float(find_beyond(wanted, given, limits).float().mean()) <= 1 - LEAST_SHARE:
                return f"got {words}"
    return describe_positions(failing)


def describe_positions(failing: torch.Tensor) -> str | None:
    """Describe the failing positions along each axis; None if no range fits, or no element fails."""
    count = int(failing.sum())
    if not count:
        return None
    if failing.ndim == 2 and failing.shape[0] == failing.shape[1] >= LEAST_HITS:
        upper = torch.ones_like(failing).triu()
        for words, side in (("on", upper & upper.T), ("above", ~upper.T), ("below", ~upper)):
            inside = int((failing & side).sum())
            # At least half of a side must fail, so that a few random failures are not described as a side.
            if inside >= max(count * (1 - MOST_ELSEWHERE), int(side.sum()) / 2):
                return f"{'only' if inside == count else 'mostly'} {words} the diagonal"
    result = [one for axis in range(failing.ndim) if (one := _describe_axis(failing, axis))]
    how = "only" if all(is_all for _, is_all in result) else "mostly"
    return f"{how} {' and '.join(words for words, _ in result)}" if result else None


def _describe_axis(failing: torch.Tensor, axis: int) -> tuple[str, bool] | None:
    """Return words for the failing positions of an axis, and whether all failures are at these positions; None if no
    range fits."""
    size = failing.shape[axis]
    counts = failing.movedim(axis, 0).reshape(size, -1).sum(dim=1).cpu()
    hit = counts > counts.max() * MOST_ELSEWHERE
    hits, result = int(hit.sum()), None
    least = MOST_WRONG * hits + 0.5
    for tile in (size, *(tile for tile in TILES if tile <= size // 2 and hits >= LEAST_HITS)):
        shares = hit[: size // tile * tile].view(-1, tile).float().mean(dim=0)
        inside = (shares > 0.5).nonzero().flatten().tolist()
        most = tile - 1 if tile == size else tile * MOST_OF_TILE
        if 0 < len(inside) <= most and inside[-1] - inside[0] < len(inside):
            marked = torch.isin(torch.arange(size) % tile, torch.tensor(inside))
            wrong = int((hit != marked).sum())
            if wrong < least:
                result, least = (tile, inside, not bool(counts[~marked].any())), wrong
    if result is None:
        return None
    tile, inside, is_all = result
    one, many, of_axis = _name_axis(axis, failing.ndim)
    edge = "the first" if inside[0] == 0 else "the last" if inside[-1] == tile - 1 else ""
    every = "" if tile == size else f" of every {tile}"
    if len(inside) == 1 and every:
        words = f"every {tile}{'nd' if tile in (2, 32, 512) else 'th'} {one}{of_axis}, from {inside[0]}"
    elif len(inside) == 1:
        words = f"{edge} {one}{of_axis}" if edge else f"{one} {inside[0]}{of_axis}"
    elif edge:
        words = f"{edge} {len(inside)}{every} {many}{of_axis}"
    else:
        words = f"{many} {inside[0]} to {inside[-1]}{every}{of_axis}"
    return words, is_all


def _candidates(
    left: torch.Tensor, right: torch.Tensor, got: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield the words for each change that is tried, the expected values after the change, and the actual values."""
    finite = left.isfinite() & right.isfinite()
    usable = finite & (left.abs() > left[finite].abs().mean() if bool(finite.any()) else finite)
    if bool(usable.any()):
        factor = float((right[usable] / left[usable]).median())
        offset = float((right[usable] - left[usable]).median())
        if factor:
            yield f"is expected times {factor:.4g}", left * factor, right
        if offset:
            yield f"is expected plus {offset:.4g}", left + offset, right
    if left.ndim >= 2 and min(left.shape[-2:]) > 1:
        yield "is expected, transposed", left.transpose(-1, -2).reshape(left.shape), right
    for axis, size in enumerate(left.shape):
        one, many, of_axis = _name_axis(axis, left.ndim)
        for far in (far for far in SHIFTS if far <= size // 2 and size > 2):
            for by, on, side in ((far, "on", "next"), (-far, "back", "previous")):
                where = f"to the {side} {one}" if far == 1 else f"{on} by {far} {many}"
                kept = left.narrow(axis, max(0, -by), size - far)
                yield f"is expected, shifted {where}{of_axis}", kept, right.narrow(axis, max(0, by), size - far)
    yield "has the expected values in another order", left.flatten().sort().values, right.flatten().sort().values
    is_16_bit = got.dtype in (torch.bfloat16, torch.float16) and got.numel() % 2 == 0
    if is_16_bit and float((left == right).float().mean()) < MOST_ELSEWHERE:
        written = got.flatten().clone().view(torch.float32)
        wanted = left.flatten()[: written.numel()]
        # Without an absolute tolerance, since small 16-bit values have the bytes of a float32 near 0.
        if float(find_beyond(wanted, written, Tolerance(WRITTEN_RTOL, 0.0)).float().mean()) <= 1 - LEAST_SHARE:
            yield "has the bytes of float32 values", wanted, written


def _name_axis(axis: int, count: int) -> tuple[str, str, str]:
    """Return the words for a position along an axis, for several positions, and for the axis."""
    if axis == count - 1:
        return ("element", "elements", "") if count == 1 else ("column", "columns", "")
    return ("row", "rows", "") if count == 2 else ("index", "indices", f" of axis {axis}")
