"""What a comparison came to: a row for each workload, the geometric mean, a decision for each. Pure values.

Times are compared only where they were taken in the same way on the same hardware (`report/comparable.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from flashinfer_bench.examine.compare.ratios import Ratio, decide, is_slower_than, join_ratios
from flashinfer_bench.report.comparable import Difference
from flashinfer_bench.report.decision import Decision

Side = Literal["A", "B"]


@dataclass(frozen=True)
class NoComparison:
    """Why two times cannot be compared."""

    where: str
    """The workload."""
    difference: Difference

    def __str__(self) -> str:
        kind, first, second = self.difference
        return f"cannot be compared: {self.where}: {kind}: A {first}, B {second}"


@dataclass(frozen=True)
class Row:
    """One workload."""

    definition: str
    workload: str
    axes: Mapping[str, int] = field(default_factory=dict)
    label: str = ""
    """Which solutions, where a comparison has several pairs of them."""
    first_ms: float | None = None
    """Mean latency of A."""
    second_ms: float | None = None
    """Mean latency of B."""
    pairs_ms: tuple[tuple[float, float], ...] = ()
    """The latencies of A and B in each pair of blocks, in the order in which they were measured."""
    ratio: Ratio | None = None
    """B over A; None where there is nothing to compare."""
    problem: str = ""
    """Why there is nothing to compare."""
    is_unmeasured: bool = False
    """The budget was spent before there was a pair: nothing is wrong, and nothing can be told yet."""


@dataclass(frozen=True)
class ComparedSides:
    """A and B on all workloads."""

    rows: tuple[Row, ...]
    threshold: float
    """The smallest difference of interest, as a share."""
    how: Literal["measured", "recorded"]
    hardware: str
    seconds: float = 0.0
    """Seconds that were measured, without the start."""

    @property
    def overall(self) -> Ratio | None:
        """The geometric mean over the workloads that could be compared."""
        ratios = [row.ratio for row in self.rows if row.ratio is not None]
        return join_ratios(ratios) if ratios else None

    @property
    def problems(self) -> list[Row]:
        """The workloads that could not be compared."""
        return [row for row in self.rows if row.ratio is None]

    @property
    def is_failed(self) -> bool:
        """Whether a workload could not be compared for another reason than the budget, or none was measured at all."""
        return any(not row.is_unmeasured for row in self.problems) or self.overall is None

    def decide(self, ratio: Ratio) -> Decision:
        """Say what B is beside A."""
        return decide(ratio, self.threshold)

    def slower_than(self, share: float) -> list[str]:
        """Return where B is slower by more than a share: uuids, and "over all"."""
        found = [row.workload for row in self.rows if row.ratio is not None and is_slower_than(row.ratio, share)]
        overall = self.overall
        return found + (["over all"] if overall is not None and is_slower_than(overall, share) else [])
