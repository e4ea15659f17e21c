"""Decides whether an element is within tolerance, and whether an output passes.

An element fails if |got - expected| > atol and |got - expected| > rtol * |expected|. If the tolerance is a sum, an
element fails if |got - expected| > atol + rtol * |expected|. So if the expected value is zero, atol alone decides.
Integers and booleans have no tolerance. If the expected value is not finite, only the same kind (nan, +inf, -inf)
matches. A nan or an infinity anywhere else makes the output wrong, whatever the matched ratio.

An output passes if the share of matching elements reaches the required ratio. A ratio below 1 has two more rules: no
error may exceed a cap, and no window of the output may seem unwritten. Elements that are zero or nan in both outputs
(shared zeros) are often padding. If the tolerance ignores shared zeros, all other elements alone must reach the ratio,
too.

`outputs` measures the errors. The script of `repro` has copies of `outputs` and of this module, since both need only
torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import torch

WINDOW: Final = 32
"""Elements in an aligned window. A window of equal values counts as unwritten if half of its elements fail. Kernels
that round to few bits also return equal values, but those values do not fail."""


USUAL_CAUSES: Final = "; usual causes: elements never written (nan), an overflow such as exp of a large number"
"""Hint in a message, after a value that is not finite."""


@dataclass(frozen=True)
class Tolerance:
    """The limits for the errors of an output."""

    rtol: float
    """Error allowed, as a share of the expected value."""
    atol: float
    """Absolute error allowed."""
    required_matched_ratio: float = 1.0
    """Share of the elements that must match."""
    max_error_cap: float = 2.0
    """Largest error allowed if the ratio is below 1, in multiples of the largest finite expected magnitude M. Two
    values between -M and M differ by at most 2 M. Rounding errors and near ties stay below this cap; uninitialised
    memory does not."""
    ignores_shared_zeros: bool = False
    """Whether the ratio must also be reached without the shared zeros."""
    max_absolute_error: float = math.inf
    """Largest absolute error allowed for any element, whatever the other settings."""
    is_sum: bool = False
    """Whether the limit of an error is the sum of atol and rtol * |expected|. Otherwise the larger of these two terms
    is the limit."""

    @property
    def by_ratio(self) -> bool:
        """Whether some elements may fail."""
        return self.required_matched_ratio < 1.0


def bounds_of(magnitude: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    """Return the largest allowed error of each element, by its expected magnitude.

    Bounds are finite. The one exception is an infinite magnitude with an rtol of zero: its bound is nan, so every error
    exceeds it.
    """
    limits = torch.finfo(magnitude.dtype)
    most = limits.max
    bound = magnitude * min(tolerance.rtol, most)
    if tolerance.is_sum:
        bound += min(tolerance.atol, most)
    return bound.clamp_(min(max(tolerance.atol, limits.tiny), most), most)


def find_beyond(expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    """Return which elements of two float32 or float64 tensors differ by more than the tolerance."""
    error = (got - expected).abs_()
    alike = (got == expected) | (got.isnan() & expected.isnan())
    return ~(alike | (error <= bounds_of(expected.abs(), tolerance)))


def match_bits(expected: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """Return which elements of two tensors of whole numbers or booleans are equal. Both tensors have the same width."""
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[expected.element_size()]
    return expected.view(bits) == got.view(bits)


@dataclass(frozen=True)
class Element:
    """One element of an output and its errors."""

    index: tuple[int, ...]
    expected: float | int
    got: float | int
    abs_error: float

    @property
    def rel_error(self) -> float:
        """|got - expected| / |expected|; infinite if only the expected value is zero."""
        has_share = self.expected and math.isfinite(self.expected)
        return self.abs_error / abs(self.expected) if has_share else math.inf if self.abs_error else 0.0

    def describe(self) -> str:
        """Return index, values and errors in words."""
        expected, got = (f"{one:.9g}" if isinstance(one, float) else str(one) for one in (self.expected, self.got))
        errors = f"(abs error {self.abs_error:.6g}, rel error {self.rel_error:.6g})"
        cause = USUAL_CAUSES if math.isfinite(self.expected) and not math.isfinite(self.got) else ""
        return f"worst at {list(self.index)}: expected {expected}, got {got} {errors}{cause}"


@dataclass(frozen=True)
class Comparison:
    """The comparison of one output with the expected output. The numbers of an empty output are zero."""

    output: str
    tolerance: Tolerance
    elements: int = 0
    mismatched: int = 0
    nonfinite_mismatched: int = 0
    """Elements that fail because the expected or the actual value is nan or infinite."""
    max_abs_error: float = 0.0
    """Infinite if `nonfinite_mismatched` is not zero."""
    max_rel_error: float = 0.0
    """Largest relative error of the elements whose expected value is not zero; infinite if `nonfinite_mismatched` is
    not zero."""
    max_expected: float = 0.0
    """Largest finite magnitude that was expected."""
    worst: Element | None = None
    """The element with the largest error in multiples of its bound; None for an empty output."""
    unwritten_at: tuple[int, ...] | None = None
    """First element of a window that seems unwritten; searched only if the ratio is below 1."""
    shared_zeros: int = 0
    """Elements that are zero or nan in both outputs; counted only if the tolerance ignores them and an element
    fails."""
    is_exact: bool = False
    """Whether the dtype has no tolerance, such as integers and booleans."""
    pattern: str | None = None
    """Words that describe how the output is wrong; None if no pattern was found."""

    @property
    def matched_ratio(self) -> float:
        """Share of matching elements; 1.0 for an empty output."""
        return (self.elements - self.mismatched) / self.elements if self.elements else 1.0

    @property
    def counted_ratio(self) -> float:
        """Share of matching elements without the shared zeros; 1.0 if no element is left."""
        counted = self.elements - self.shared_zeros
        return (counted - self.mismatched) / counted if counted else 1.0

    def problem(self) -> str | None:
        """Return why this output is wrong; None if it is right."""
        fault = self._fault()
        if fault is None:
            return None
        seen = f" ({self.pattern})" if self.pattern is not None else ""
        worst = f"; {self.worst.describe()}" if self.worst is not None else ""
        worst = worst.removesuffix(USUAL_CAUSES) if seen.startswith(" (got ") else worst  # the pattern is the cause
        limits, required = self.tolerance, self.tolerance.required_matched_ratio
        within = f"atol={limits.atol:g}, rtol={limits.rtol:g}{', added' if limits.is_sum else ''}"
        within = "integers and booleans have no tolerance" if self.is_exact else within
        demands = f"matched ratio {self.matched_ratio:.6g}, required {required:g}, {within}"
        return f"output {self.output!r}: {fault}{seen}{worst}; {demands}"

    def to_record(self) -> dict[str, Any]:
        """Return the comparison as values that JSON can hold, of bounded size."""
        worst = self.worst
        return {
            "elements": self.elements,
            "mismatched": self.mismatched,
            "nonfinite_mismatched": self.nonfinite_mismatched,
            "matched_ratio": self.matched_ratio,
            "required_matched_ratio": self.tolerance.required_matched_ratio,
            "max_absolute_error": self.max_abs_error,
            "max_relative_error": self.max_rel_error,
            "max_expected": self.max_expected,
            "worst": worst and {"index": list(worst.index), "expected": worst.expected, "got": worst.got},
        }

    def _fault(self) -> str | None:
        limits, largest = self.tolerance, f"the largest error, {self.max_abs_error:.6g}, is over"
        if self.nonfinite_mismatched:
            if self.nonfinite_mismatched == self.elements and self.worst is not None and math.isnan(self.worst.got):
                return f"all {self.elements} elements are nan, as those of an output that was never written are"
            return f"{self.nonfinite_mismatched} of {self.elements} elements are nan or infinite unlike the reference"
        if self.matched_ratio < limits.required_matched_ratio:
            return f"{self.mismatched} of {self.elements} elements differ"
        if self.max_abs_error > limits.max_absolute_error:
            return f"{largest} {limits.max_absolute_error:g}"
        if not limits.by_ratio:
            return None
        if self.counted_ratio < limits.required_matched_ratio:
            counted = self.elements - self.shared_zeros
            return f"{self.mismatched} of the {counted} elements that are not zero on both sides differ"
        if self.unwritten_at is not None:
            return f"a stretch of equal, wrong values at {list(self.unwritten_at)} looks unwritten"
        if self.max_abs_error > max(limits.max_error_cap * self.max_expected, limits.atol):
            times = f"times the largest expected {self.max_expected:.6g}"
            return f"{largest} max_error_cap={limits.max_error_cap:g} {times}"
        return None
