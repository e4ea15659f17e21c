"""Compare chunk by chunk with torch: every dtype on every device, no copy of a whole output, one transfer.

Floats are compared in float32, float64 in float64, integers and booleans bit by bit. `rule` says what the numbers mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import torch

from flashinfer_bench.bench.evaluators.compare.packed import is_packed, unpack
from flashinfer_bench.bench.evaluators.compare.rule import WINDOW, Findings, Tolerance

CHUNK_ELEMENTS: Final = {"cpu": 1 << 15, "cuda": 1 << 22}
"""Elements that are compared at once, by device. On a CPU torch uses one thread for chunks of up to this size; more
threads would wait for each other on a busy machine and cost ten times what they gain. On a GPU a chunk of this size
takes less than 200 MB of extra memory."""
SMALL_ELEMENTS: Final = 1 << 15
"""An output of a GPU with no more elements than this is compared on the CPU, to which each side is brought in one
transfer: there an operation costs a fifth of a launch, and a look at a value needs no wait."""
EXACT_BELOW: Final = 2.0**62
"""Two whole numbers of 64 bits are less than 2**63 apart where their difference in float64 is below this."""
_SIGNED: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of an element → the type as which it is tested for equality; torch cannot compare all of its unsigned types."""


def bring_small(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return tensors of one size, on the CPU where they are so small that a GPU would take longer to look at them."""
    return [one.cpu() if one.numel() <= SMALL_ELEMENTS else one for one in tensors]


def measure_chunks(
    expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance, *, chunk_elements: int | None = None
) -> Findings:
    """Compare two flat tensors that are not empty; the size of the chunks does not change what is found."""
    size = chunk_elements or CHUNK_ELEMENTS.get(expected.device.type, CHUNK_ELEMENTS["cpu"])
    size = max(WINDOW, size // WINDOW * WINDOW)
    reader = make_reader(expected, got)
    rows = [_measure(reader.read(start, size), tolerance) for start in range(0, reader.elements, size)]
    # One transfer for all chunks, because each transfer waits for the device.
    facts = [_Facts(*row) for row in torch.stack(rows).tolist()]
    unwritten = [chunk * size + int(fact.unwritten_at) for chunk, fact in enumerate(facts) if fact.unwritten_at >= 0]
    worst = max(range(len(facts)), key=lambda chunk: facts[chunk].worst_score)
    score = score_elements(reader.read(worst * size, size), tolerance).score
    return Findings(
        mismatched=int(sum(fact.mismatched for fact in facts)),
        nonfinite_mismatched=int(sum(fact.nonfinite_mismatched for fact in facts)),
        max_abs_error=max(fact.max_abs_error for fact in facts),
        max_rel_error=max(fact.max_rel_error for fact in facts),
        max_expected=max(fact.max_expected for fact in facts),
        worst_score=facts[worst].worst_score,
        worst_at=worst * size + int(score.argmax()),
        unwritten_at=unwritten[0] if unwritten else None,
    )


def read_element(expected: torch.Tensor, got: torch.Tensor, at: int) -> Chunk:
    """Read one element of two flat tensors, onto the CPU."""
    # Packed elements are read in pairs.
    pair = make_reader(expected, got).read(at - at % 2, 2)
    only = slice(at % 2, at % 2 + 1)
    return Chunk(
        pair.expected[only].cpu(),
        pair.got[only].cpu(),
        None if pair.matches is None else pair.matches[only].cpu(),
        None if pair.error is None else pair.error[only].cpu(),
    )


class Chunk(NamedTuple):
    """Some elements, in the type in which they are compared."""

    expected: torch.Tensor
    got: torch.Tensor
    matches: torch.Tensor | None
    """Which elements are equal, for types without a tolerance; None for other types."""
    error: torch.Tensor | None = None
    """How far apart they are, for whole numbers that float64 does not hold; None for other types."""


class Errors(NamedTuple):
    """How far off each element is."""

    error: torch.Tensor
    magnitude: torch.Tensor
    score: torch.Tensor
    """Error in multiples of what is allowed. An element fails above 1 and, before `_repair`, also where this is nan."""


class ElementReader(NamedTuple):
    """Two flat tensors, to be read in chunks."""

    elements: int
    read: Callable[[int, int], Chunk]
    """Takes a start and a size; gives the elements from the start on, at most `size` of them."""


class _Facts(NamedTuple):
    mismatched: float
    nonfinite_mismatched: float
    max_abs_error: float
    max_rel_error: float
    max_expected: float
    worst_score: float
    unwritten_at: float
    """Index in the chunk; -1 where no window looks unwritten."""


def make_reader(expected: torch.Tensor, got: torch.Tensor) -> ElementReader:
    """Return what reads two flat tensors of one dtype."""
    left, right = expected.contiguous().reshape(-1), got.contiguous().reshape(-1)

    def read_packed(start: int, size: int) -> Chunk:
        pair = slice(start // 2, (start + size) // 2)
        return Chunk(unpack(left[pair]), unpack(right[pair]), None)

    def read_floats(start: int, size: int) -> Chunk:
        work = torch.float64 if left.dtype == torch.float64 else torch.float32
        return Chunk(left[start : start + size].to(work), right[start : start + size].to(work), None)

    def read_exact(start: int, size: int) -> Chunk:
        return _exact_chunk(left[start : start + size], right[start : start + size])

    if is_packed(expected.dtype):
        return ElementReader(2 * left.numel(), read_packed)
    return ElementReader(left.numel(), read_floats if expected.dtype.is_floating_point else read_exact)


def match_bits(expected: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """Tell which whole numbers or booleans of two tensors of one width are equal."""
    bits = _SIGNED[expected.element_size()]
    return expected.view(bits) == got.view(bits)


def _exact_chunk(expected: torch.Tensor, got: torch.Tensor) -> Chunk:
    """Compare bit by bit; a bool by its byte, because torch takes every byte but 0 as true."""
    if expected.dtype == torch.bool:
        expected, got = expected.view(torch.uint8), got.view(torch.uint8)
    bits = _SIGNED[expected.element_size()]
    left, right = expected.to(torch.float64), got.to(torch.float64)
    error = None
    if bits == torch.int64:  # float64 has not all of them; a difference wraps round only where a rounding is nothing
        error, exact = (right - left).abs_(), (got.view(bits) - expected.view(bits)).abs_().to(torch.float64)
        error = torch.where(error < EXACT_BELOW, exact, error)
    return Chunk(left, right, match_bits(expected, got), error)


def _measure(chunk: Chunk, tolerance: Tolerance) -> torch.Tensor:
    """Give the fields of `_Facts` for one chunk, on a GPU without waiting for it.

    On a CPU a comparison of elements takes five times as long as arithmetic. So where the scores show that no element
    fails, none is made.
    """
    errors = errors_of(chunk, tolerance)
    none = torch.zeros((), device=chunk.got.device)
    if _surely(errors.score.max() <= 1):
        return _facts(errors, failed=none, nonfinite=none, unwritten=none - 1)
    failed = ~(errors.score <= 1)
    nonfinite = none
    is_exact = chunk.matches is not None
    if not is_exact and not _surely(torch.isfinite(errors.error.max() + errors.magnitude.max())):
        errors, failed, nonfinite = _repair(chunk, errors, failed)
    unwritten = first_unwritten(chunk.got, failed) if tolerance.by_ratio else none - 1
    return _facts(errors, failed=failed, nonfinite=nonfinite, unwritten=unwritten)


def _surely(condition: torch.Tensor) -> bool:
    """Tell whether a condition holds; on a GPU give False, because reading the condition would wait for the device."""
    return condition.device.type == "cpu" and bool(condition)


def bounds_of(magnitude: torch.Tensor, tolerance: Tolerance, most: float) -> torch.Tensor:
    """Give the error that each element may have, `most` at most, however large the tolerance is."""
    bound = magnitude * min(tolerance.rtol, most)
    if tolerance.is_sum:
        bound += min(tolerance.added, most)
    return bound.clamp_(min(max(tolerance.atol, torch.finfo(bound.dtype).tiny), most), most)


def score_elements(chunk: Chunk, tolerance: Tolerance) -> Errors:
    """Give the errors of some elements, also of those that are nan or infinite."""
    return judge_chunk(chunk, tolerance)[0]


def judge_chunk(chunk: Chunk, tolerance: Tolerance) -> tuple[Errors, torch.Tensor, torch.Tensor]:
    """Give the errors, which elements fail, and which of them fail because a side is not finite."""
    errors = errors_of(chunk, tolerance)
    failed = ~(errors.score <= 1)
    if chunk.matches is not None:
        return errors, failed, torch.zeros_like(failed)
    return _repair(chunk, errors, failed)


def errors_of(chunk: Chunk, tolerance: Tolerance) -> Errors:
    """Give the errors of some elements; those that are nan or infinite are not judged yet."""
    error = (chunk.got - chunk.expected).abs_() if chunk.error is None else chunk.error
    magnitude = chunk.expected.abs()
    if chunk.matches is not None:
        return Errors(error, magnitude, torch.where(chunk.matches, 0.0, error.clamp(min=2.0)))
    limits = torch.finfo(error.dtype)
    # An infinite expected value has an infinite bound. The upper limit stops such a bound from accepting any value.
    return Errors(error, magnitude, error / bounds_of(magnitude, tolerance, limits.max))


def _repair(chunk: Chunk, errors: Errors, failed: torch.Tensor) -> tuple[Errors, torch.Tensor, torch.Tensor]:
    """Judge nan and infinities, for which the arithmetic is wrong.

    Returns:
        The errors, which elements fail, and which of them fail because a side is not finite.
    """
    finite = torch.isfinite(chunk.expected)
    alike = (chunk.got == chunk.expected) | (chunk.got.isnan() & chunk.expected.isnan())
    failed = failed & ~alike
    error = torch.where(errors.error.isnan(), torch.where(failed, math.inf, 0.0), errors.error)
    score = torch.where(finite & ~error.isinf(), errors.score, error)
    magnitude = torch.where(finite, errors.magnitude, 0.0)
    return Errors(error, magnitude, score), failed, failed & ~(finite & torch.isfinite(chunk.got))


def relative_to(errors: Errors) -> torch.Tensor:
    """Give the relative error of each element; one whose expected value is zero has none."""
    return (errors.error / errors.magnitude).nan_to_num_(nan=0.0, posinf=0.0)


def _facts(errors: Errors, *, failed: torch.Tensor, nonfinite: torch.Tensor, unwritten: torch.Tensor) -> torch.Tensor:
    maxima = (errors.error.max(), relative_to(errors).max(), errors.magnitude.max(), errors.score.max())
    return torch.stack([fact.to(torch.float64) for fact in (failed.sum(), nonfinite.sum(), *maxima, unwritten)])


def first_unwritten(got: torch.Tensor, failed: torch.Tensor) -> torch.Tensor:
    """Give the index of the first window that looks unwritten; -1 where there is none."""
    whole = got.numel() // WINDOW * WINDOW
    if whole == 0:
        return torch.full((), -1, device=got.device)
    values, wrong = got[:whole].view(-1, WINDOW), failed[:whole].view(-1, WINDOW)
    suspicious = (values == values[:, :1]).all(dim=1) & (wrong.sum(dim=1) * 2 >= WINDOW)
    # No `suspicious[first]`: an index that is a tensor is read, and to read it would wait for the device.
    return torch.where(suspicious.any(), suspicious.to(torch.uint8).argmax() * WINDOW, -1)
