"""What comparing one output found, and the rule that decides: plain numbers, which `chunks` or `fused` measures.

An element fails where |got - expected| > atol and |got - expected| > rtol * |expected|; where the tolerance is a sum,
it fails where |got - expected| > atol + rtol * |expected|. So where the expected value is zero, atol alone decides.
Integers and booleans have no tolerance. Where the expected value is not finite, only the same kind (nan, +inf, -inf)
matches. A nan or an infinity anywhere else is wrong, whatever the matched ratio.

An output passes where the share of matching elements reaches the required ratio. A ratio below 1 has two more rules: no
error may be over a cap, and no stretch of the output may look unwritten. Where shared zeros are ignored, the ratio has
to be reached once more among the elements that are neither zero on both sides nor nan on both sides (padding often is).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

WINDOW: Final = 32
"""Elements in an aligned window. A window of equal values of which half fail counts as never written. Kernels that
round to few bits give equal values that do not fail. A row or a tile that was skipped gives equal values that do."""


@dataclass(frozen=True)
class Tolerance:
    """What an output must meet."""

    rtol: float
    """Error allowed, as a share of the expected value."""
    atol: float
    """Error allowed, absolute."""
    required_matched_ratio: float = 1.0
    """Share of the elements that must match."""
    max_error_cap: float = 2.0
    """Largest error allowed where the ratio is below 1, in multiples of the largest finite expected magnitude M. Two
    values between -M and M differ by at most 2 M. Rounding errors and near ties stay below this; garbage does not."""
    ignores_shared_zeros: bool = False
    """Whether the ratio must also be reached without the elements that are zero on both sides or nan on both sides."""
    max_absolute_error: float = math.inf
    """Largest error allowed anywhere, whatever else is."""
    is_sum: bool = False
    """Whether an error may be as large as both together, and not only as the larger of the two."""

    @property
    def by_ratio(self) -> bool:
        """Tell whether some elements may fail."""
        return self.required_matched_ratio < 1.0

    @property
    def added(self) -> float:
        """What is added to rtol * |expected|."""
        return self.atol if self.is_sum else 0.0


@dataclass(frozen=True)
class Element:
    """One element of an output and how far off it is."""

    index: tuple[int, ...]
    expected: float | int
    got: float | int
    abs_error: float
    rel_error: float
    """|got - expected| / |expected|; infinite where only the expected value is zero."""


def explain_nonfinite(got: float) -> str | None:
    """Say what the usual cause of a nan or an infinity is where a number was expected; None for a number."""
    if math.isfinite(got):
        return None
    return "an overflow, such as exp of a large number without subtracting the maximum, is the usual cause"


@dataclass(frozen=True)
class Findings:
    """What was measured in a flat output, or in a stretch of one."""

    mismatched: int
    nonfinite_mismatched: int
    max_abs_error: float
    max_rel_error: float
    """Largest relative error of the elements whose expected value is not zero."""
    max_expected: float
    """Largest finite magnitude that was expected."""
    worst_score: float
    """Largest error, in multiples of the error that its element may have."""
    worst_at: int
    """Index of the first element with this score."""
    unwritten_at: int | None
    """Index of the first window that looks unwritten."""

    def moved(self, start: int) -> Findings:
        """Give the findings with the indices that they have where the stretch begins at `start`."""
        unwritten_at = None if self.unwritten_at is None else self.unwritten_at + start
        return replace(self, worst_at=self.worst_at + start, unwritten_at=unwritten_at)

    @staticmethod
    def combine(stretches: Sequence[Findings]) -> Findings:
        """Put the findings of one output's stretches together; they are in the order of the output."""
        worst = max(stretches, key=lambda found: found.worst_score)
        return Findings(
            mismatched=sum(found.mismatched for found in stretches),
            nonfinite_mismatched=sum(found.nonfinite_mismatched for found in stretches),
            max_abs_error=max(found.max_abs_error for found in stretches),
            max_rel_error=max(found.max_rel_error for found in stretches),
            max_expected=max(found.max_expected for found in stretches),
            worst_score=worst.worst_score,
            worst_at=worst.worst_at,
            unwritten_at=next((found.unwritten_at for found in stretches if found.unwritten_at is not None), None),
        )


@dataclass(frozen=True)
class Comparison:
    """One output compared with the expected one."""

    output: str
    tolerance: Tolerance
    elements: int
    mismatched: int
    nonfinite_mismatched: int
    """Elements that are nan or infinite on one side only, or in different ways on both sides."""
    max_abs_error: float
    """Infinite where `nonfinite_mismatched` is not zero."""
    max_rel_error: float
    """Largest of the elements whose expected value is not zero; infinite where `nonfinite_mismatched` is not zero."""
    max_expected: float
    """Largest finite magnitude that was expected."""
    worst: Element | None
    """The element with the largest error in multiples of what it is allowed; None for an empty output."""
    unwritten_at: tuple[int, ...] | None
    """First element of a stretch that looks unwritten; searched only where some elements may fail."""
    shared_zeros: int = 0
    """Elements that are zero on both sides or nan on both sides; counted only where the tolerance ignores them."""
    is_exact: bool = False
    """Whether the dtype has no tolerance, as integers and booleans."""
    pattern: str | None = None
    """What a wrong output looks like; None where nobody has looked, or none is known."""

    @property
    def matched_ratio(self) -> float:
        """Share of matching elements; 1.0 for an empty output."""
        return (self.elements - self.mismatched) / self.elements if self.elements else 1.0

    @property
    def counted_ratio(self) -> float:
        """Share of matching elements without the shared zeros; 1.0 where no element is left."""
        counted = self.elements - self.shared_zeros
        return (counted - self.mismatched) / counted if counted else 1.0

    def problem(self) -> str | None:
        """Say why this output is wrong; None where it is right."""
        what = self._fault()
        seen = f" ({self.pattern})" if self.pattern is not None else ""
        return None if what is None else f"output {self.output!r}: {what}{seen}{self._worst_place()}; {self._demands()}"

    def to_record(self) -> dict[str, Any]:
        """Give the comparison as values that JSON can hold, of bounded size."""
        worst = self.worst
        element = {} if worst is None else {"index": list(worst.index), "expected": worst.expected, "got": worst.got}
        return {
            "elements": self.elements,
            "mismatched": self.mismatched,
            "nonfinite_mismatched": self.nonfinite_mismatched,
            "matched_ratio": self.matched_ratio,
            "required_matched_ratio": self.tolerance.required_matched_ratio,
            "max_absolute_error": self.max_abs_error,
            "max_relative_error": self.max_rel_error,
            "max_expected": self.max_expected,
            "worst": element or None,
        }

    def _fault(self) -> str | None:
        tolerance = self.tolerance
        if self.nonfinite_mismatched == self.elements and self.worst is not None and math.isnan(self.worst.got):
            return f"all {self.elements} elements are nan, as those of an output that was never written are"
        if self.nonfinite_mismatched:
            return f"{self.nonfinite_mismatched} of {self.elements} elements are nan or infinite unlike the reference"
        if self.matched_ratio < tolerance.required_matched_ratio:
            return f"{self.mismatched} of {self.elements} elements differ"
        if self.max_abs_error > tolerance.max_absolute_error:
            return f"the largest error, {self.max_abs_error:.6g}, is over {tolerance.max_absolute_error:g}"
        if not tolerance.by_ratio:
            return None
        if self.counted_ratio < tolerance.required_matched_ratio:
            counted = self.elements - self.shared_zeros
            return f"{self.mismatched} of the {counted} elements that are not zero on both sides differ"
        if self.unwritten_at is not None:
            return f"a stretch of equal, wrong values at {list(self.unwritten_at)} looks unwritten"
        if self.max_abs_error > max(tolerance.max_error_cap * self.max_expected, tolerance.atol):
            cap = f"max_error_cap={tolerance.max_error_cap:g} times the largest expected {self.max_expected:.6g}"
            return f"the largest error, {self.max_abs_error:.6g}, is over {cap}"
        return None

    def _worst_place(self) -> str:
        if self.worst is None:
            return ""
        worst = self.worst
        errors = f"abs error {worst.abs_error:.6g}, rel error {worst.rel_error:.6g}"
        expected, got = (f"{one:.9g}" if isinstance(one, float) else str(one) for one in (worst.expected, worst.got))
        overflow = math.isfinite(worst.expected) and explain_nonfinite(worst.got)
        told = f"; {overflow}" if overflow else ""
        return f"; worst at {list(worst.index)}: expected {expected}, got {got} ({errors}){told}"

    def _demands(self) -> str:
        tolerance = self.tolerance
        ratio = f"matched ratio {self.matched_ratio:.6g}, required {tolerance.required_matched_ratio:g}"
        within = (
            "integers and booleans have no tolerance"
            if self.is_exact
            else f"atol={tolerance.atol:g}, rtol={tolerance.rtol:g}{', added' if tolerance.is_sum else ''}"
        )
        return f"{ratio}, {within}"
