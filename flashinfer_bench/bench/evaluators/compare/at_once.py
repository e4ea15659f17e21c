"""Compare at once: all that is found and the worst element come over in one transfer, or in two.

The first look takes every element for a number. Where one is not, or fails though all have to match, a second look
judges each element. `chunks` finds the same, number for number, in more transfers and up to four times as many
operations; it reads the worst chunk twice, which is cheaper on a CPU where there are many chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from flashinfer_bench.bench.evaluators.compare.chunks import (
    CHUNK_ELEMENTS,
    Chunk,
    Errors,
    errors_of,
    first_unwritten,
    judge_chunk,
    make_reader,
    relative_to,
)
from flashinfer_bench.bench.evaluators.compare.rule import Findings, Tolerance


class Worst(NamedTuple):
    """The element with the largest error in multiples of what it is allowed."""

    expected: float | int
    got: float | int
    error: float


class _Seen(NamedTuple):
    """What a look finds of one chunk."""

    max_abs_error: float
    max_rel_error: float
    max_expected: float
    worst_score: float
    worst_at: float
    """Index in the chunk."""
    worst_expected: float
    worst_got: float
    worst_error: float
    mismatched: float = 0.0
    unwritten_at: float = -1.0
    """Index in the chunk; -1 where no window looks unwritten."""
    nonfinite_mismatched: float = 0.0


def measure_at_once(expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance) -> tuple[Findings, Worst]:
    """Compare two flat tensors that are not empty."""
    size = CHUNK_ELEMENTS.get(expected.device.type, CHUNK_ELEMENTS["cpu"])
    reader = make_reader(expected, got)
    starts = range(0, reader.elements, size)

    def look(at: Callable[[Chunk, Tolerance], Iterator[torch.Tensor]]) -> list[_Seen]:
        numbers = [number for start in starts for number in at(reader.read(start, size), tolerance)]
        return [_Seen(*line) for line in torch.stack(numbers).view(len(starts), -1).tolist()]

    facts = look(_look)
    if not all(_is_enough(fact, tolerance) for fact in facts):
        facts = look(_look_closely)
    worst = max(facts, key=lambda fact: fact.worst_score)
    found = Findings.combine([_find(fact).moved(start) for start, fact in zip(starts, facts, strict=True)])
    return found, Worst(worst.worst_expected, worst.worst_got, worst.worst_error)


def _look(chunk: Chunk, tolerance: Tolerance) -> Iterator[torch.Tensor]:
    """Give the fields of `_Seen`, but for the last, where all elements are finite and match, or may fail."""
    errors = errors_of(chunk, tolerance)
    yield from _find_largest(chunk, errors)
    if tolerance.by_ratio:
        failed = errors.score > 1
        yield failed.sum().to(errors.error.dtype)
        yield first_unwritten(chunk.got, failed).to(errors.error.dtype)


def _is_enough(fact: _Seen, tolerance: Tolerance) -> bool:
    """Tell whether the first look may be believed: a side that is not finite makes an error or a magnitude so."""
    is_finite = math.isfinite(fact.max_abs_error + fact.max_expected)
    return is_finite and (tolerance.by_ratio or fact.worst_score <= 1)


def _look_closely(chunk: Chunk, tolerance: Tolerance) -> Iterator[torch.Tensor]:
    """Give the fields of `_Seen`."""
    errors, failed, nonfinite = judge_chunk(chunk, tolerance)
    yield from _find_largest(chunk, errors)
    mismatched = failed.sum()
    unwritten = first_unwritten(chunk.got, failed) if tolerance.by_ratio else torch.full_like(mismatched, -1)
    yield from (number.to(errors.error.dtype) for number in (mismatched, unwritten, nonfinite.sum()))


def _find_largest(chunk: Chunk, errors: Errors) -> Iterator[torch.Tensor]:
    """Give the first eight fields of `_Seen`, in the type of the errors: it holds each index in a chunk exactly."""
    worst_score, worst_at = errors.score.max(dim=0)
    yield from (errors.error.max(), relative_to(errors).max(), errors.magnitude.max(), worst_score)
    yield worst_at.to(errors.error.dtype)
    yield from (values.take(worst_at) for values in (chunk.expected, chunk.got, errors.error))


def _find(fact: _Seen) -> Findings:
    return Findings(
        mismatched=int(fact.mismatched),
        nonfinite_mismatched=int(fact.nonfinite_mismatched),
        max_abs_error=fact.max_abs_error,
        max_rel_error=fact.max_rel_error,
        max_expected=fact.max_expected,
        worst_score=fact.worst_score,
        worst_at=int(fact.worst_at),
        unwritten_at=int(fact.unwritten_at) if fact.unwritten_at >= 0 else None,
    )
