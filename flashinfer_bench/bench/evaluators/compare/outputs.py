"""Compare an output with the expected one, chunk by chunk with torch: every dtype on every device, no whole copy.

Floats are compared in float32, float64 in float64, integers and booleans bit by bit. A first look takes every element
for a number that matches, and all that it finds comes over in one transfer. Only chunks in which that was not so are
looked at closely, in one more transfer. `rule` decides on the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import torch

from flashinfer_bench.bench.evaluators.compare.packed import is_packed, unpack
from flashinfer_bench.bench.evaluators.compare.rule import (
    WINDOW,
    Comparison,
    Element,
    Tolerance,
    bounds_of,
    find_beyond,
    match_bits,
)

CHUNK_ELEMENTS: Final = {"cpu": 1 << 15, "cuda": 1 << 22}
"""Elements that are compared at once, by device. On a CPU torch uses one thread for chunks of up to this size. On a GPU
a chunk of this size takes less than 200 MB of extra memory. A float32 holds each index in a chunk."""
SMALL_ELEMENTS: Final = 1 << 15
"""A GPU's output with no more elements than this is compared on the CPU, in one transfer of each side: there an
operation costs a fifth of a launch."""
EXACT_BELOW: Final = 2.0**62
"""Two whole numbers of 64 bits are less than 2**63 apart if their difference in float64 is below this."""
ZERO: Final = 2.0**-127
"""A magnitude that counts as zero. It is the least scale that is a power of two, whose byte is 0."""


class _Seen(NamedTuple):
    """What a look finds in one chunk."""

    max_abs_error: float
    max_rel_error: float
    max_expected: float
    worst_score: float
    """Largest error in multiples of its element's bound."""
    worst_at: float
    """Index in the chunk."""
    expected: float
    got: float
    error: float
    mismatched: float = 0.0
    nonfinite: float = 0.0
    unwritten_at: float = -1.0
    """Index in the chunk; -1 if no window looks unwritten."""
    shared_zeros: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether all elements are finite and match: a side that is not finite makes an error or a magnitude so."""
        return math.isfinite(self.max_abs_error + self.max_expected) and self.worst_score <= 1


def compare(
    expected: torch.Tensor,
    got: torch.Tensor,
    tolerance: Tolerance,
    *,
    output: str = "output",
    chunk_elements: int | None = None,
) -> Comparison:
    """Compare an output with the expected one of the same shape and dtype.

    Args:
        expected: what the reference gave.
        got: what the solution gave. A bool output may be given as its bytes; a byte other than 0 and 1 is wrong.
        tolerance: what decides.
        output: the output's name for messages.
        chunk_elements: stored elements of a chunk; the result does not depend on it.
    """
    left, right = bring_small(expected.contiguous().reshape(-1), got.contiguous().reshape(-1))
    if not left.numel():
        return Comparison(output, tolerance)
    chunks = list(_split(left, right, chunk_elements))
    seen = _look_at([_look(*chunk, tolerance) for chunk in chunks])
    close = [at for at, one in enumerate(seen) if not one.is_plain]
    if close:
        close = list(range(len(seen))) if tolerance.ignores_shared_zeros else close
        closely = zip(close, _look_at([_look(*chunks[at], tolerance, closely=True) for at in close]), strict=True)
        for at, one in closely:
            seen[at] = one
    width = 2 if is_packed(expected.dtype) else 1
    shape = (*expected.shape[:-1], expected.shape[-1] * width) if width > 1 else tuple(expected.shape)
    step = len(chunks[0][0]) * width
    worst_in = max(range(len(seen)), key=lambda at: seen[at].worst_score)
    worst, at = seen[worst_in], worst_in * step + int(seen[worst_in].worst_at)
    wanted, given, error = worst.expected, worst.got, worst.error
    mismatched, nonfinite = (int(sum(counts)) for counts in zip(*(one[8:10] for one in seen), strict=True))
    is_exact = _is_whole(expected)
    if is_exact and mismatched:
        wanted, given = (int(_bytes_of_bool(side[at]).item()) for side in (left, right))
        error = float(abs(given - wanted))
    unwritten = (chunk * step + int(one.unwritten_at) for chunk, one in enumerate(seen) if one.unwritten_at >= 0)
    unwritten_at = next(unwritten, None)
    return Comparison(
        output=output,
        tolerance=tolerance,
        elements=left.numel() * width,
        mismatched=mismatched,
        nonfinite_mismatched=nonfinite,
        max_abs_error=math.inf if nonfinite else max(one.max_abs_error for one in seen),
        max_rel_error=math.inf if nonfinite else max(one.max_rel_error for one in seen),
        max_expected=max(one.max_expected for one in seen),
        worst=Element(_unravel(at, shape), wanted, given, error),
        unwritten_at=None if unwritten_at is None else _unravel(unwritten_at, shape),
        shared_zeros=int(sum(one.shared_zeros for one in seen)) if tolerance.ignores_shared_zeros else 0,
        is_exact=is_exact,
    )


def find_failing(expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    """Return which elements fail, as booleans of the output's shape. Packed values give two elements each."""
    if _is_whole(expected):
        return ~match_bits(expected, got)
    return find_beyond(read_values(expected), read_values(got), tolerance)


def bring_small(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return tensors of one size, on the CPU if they are so small that a GPU would take longer to look at them."""
    return [one.cpu() if one.numel() <= SMALL_ELEMENTS else one for one in tensors]


def read_values(values: torch.Tensor) -> torch.Tensor:
    """Return values in the type in which they are compared: float64, or float32 for smaller floats."""
    if is_packed(values.dtype):
        return unpack(values.contiguous().reshape(-1)).reshape(*values.shape[:-1], values.shape[-1] * 2)
    if values.dtype == torch.float64 or not values.dtype.is_floating_point:
        return _bytes_of_bool(values).double()
    return values.float()


def _split(
    left: torch.Tensor, right: torch.Tensor, size: int | None = None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Return two flat tensors in chunks of whole windows."""
    size = size or CHUNK_ELEMENTS.get(left.device.type, CHUNK_ELEMENTS["cpu"]) // (2 if is_packed(left.dtype) else 1)
    size = max(WINDOW, size // WINDOW * WINDOW)
    return ((left[at : at + size], right[at : at + size]) for at in range(0, len(left), size))


def _look_at(numbers: list[list[torch.Tensor]]) -> list[_Seen]:
    """Return what was found in chunks, in one transfer."""
    flat = torch.stack([number for of_chunk in numbers for number in of_chunk])
    return [_Seen(*line) for line in flat.view(len(numbers), -1).tolist()]


def _look(
    left: torch.Tensor, right: torch.Tensor, tolerance: Tolerance, *, closely: bool = False
) -> list[torch.Tensor]:
    """Return the fields of `_Seen`, all of one dtype; the last four only if the elements are looked at closely."""
    expected, got = read_values(left), read_values(right)
    error, magnitude = (got - expected).abs_(), expected.abs()
    if _is_whole(left):
        if left.element_size() == 8:  # float64 has not all of them
            exact = (right.view(torch.int64) - left.view(torch.int64)).abs_().double()
            error = torch.where(error < EXACT_BELOW, exact, error)
        score = torch.where(match_bits(left, right), 0.0, error.clamp(min=2.0))
    else:
        score = error / bounds_of(magnitude, tolerance)
    counts: tuple[torch.Tensor, ...] = ()
    if closely:
        failed, finite = find_failing(left, right, tolerance), expected.isfinite()
        # The arithmetic is wrong where a side is nan or infinite.
        error = torch.where(error.isnan(), torch.where(failed, math.inf, 0.0), error)
        score = torch.where(finite & ~error.isinf(), score, error)
        magnitude = torch.where(finite, magnitude, 0.0)
        nonfinite = failed & ~(finite & got.isfinite())
        both = (expected.isnan() & got.isnan()) | ((expected.abs() <= ZERO) & (got.abs() <= ZERO))
        unwritten = _first_unwritten(got, failed) if tolerance.by_ratio else torch.full_like(failed.sum(), -1)
        counts = (failed.sum(), nonfinite.sum(), unwritten, both.sum())
    relative = (error / magnitude).nan_to_num_(nan=0.0, posinf=0.0)
    worst_score, at = score.max(dim=0)
    largest = [error.max(), relative.max(), magnitude.max(), worst_score, at.to(error.dtype)]
    worst = [values.take(at) for values in (expected, got, error)]
    return [*largest, *worst, *(count.to(error.dtype) for count in counts)]


def _first_unwritten(got: torch.Tensor, failed: torch.Tensor) -> torch.Tensor:
    """Return the index of the first window that looks unwritten; -1 if there is none."""
    whole = got.numel() // WINDOW * WINDOW
    if whole == 0:
        return torch.full((), -1, device=got.device)
    values, wrong = got[:whole].view(-1, WINDOW), failed[:whole].view(-1, WINDOW)
    suspicious = (values == values[:, :1]).all(dim=1) & (wrong.sum(dim=1) * 2 >= WINDOW)
    return torch.where(suspicious.any(), suspicious.to(torch.uint8).argmax() * WINDOW, -1)


def _is_whole(values: torch.Tensor) -> bool:
    return not (values.dtype.is_floating_point or is_packed(values.dtype))


def _bytes_of_bool(values: torch.Tensor) -> torch.Tensor:
    """Return booleans as their bytes, because torch takes every byte but 0 as true; other values as they are."""
    return values.view(torch.uint8) if values.dtype == torch.bool else values


def _unravel(at: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        at, place = divmod(at, size)
        index.append(place)
    return tuple(reversed(index))
