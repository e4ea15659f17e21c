"""What a comparison came to: a row for each workload, the geometric mean, a decision for each. Pure values.

Times are compared only where they were taken in the same way on the same hardware; `find_difference` names what
differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from flashinfer_bench.bench.planning.resume import find_fingerprint
from flashinfer_bench.data.measurement import read_measurement
from flashinfer_bench.data.store.trace_lines import AnyEvaluation
from flashinfer_bench.examine.compare.ratios import (
    Decision,
    Ratio,
    decide,
    is_slower_than,
    join_ratios,
)
from flashinfer_bench.report.verdict import to_one_line

Side = Literal["A", "B"]
KINDS: Final = {
    "hardware": "other hardware",
    "cache state": "another state of the caches",
    "method": "another clock",
    "protocol": "another way to call and time",
    "sandbox": "other walls",
    "timing": "other settings of the timing",
}
"""What has to be equal, and what it is where it is not."""


@dataclass(frozen=True)
class NoComparison:
    """Why two times cannot be compared."""

    reason: str

    def __str__(self) -> str:
        return f"cannot be compared: {self.reason}"


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

    def decide(self, ratio: Ratio) -> Decision:
        """Say what B is beside A."""
        return decide(ratio, self.threshold)

    def slower_than(self, share: float) -> list[str]:
        """Return where B is slower by more than a share: uuids, and "over all"."""
        found = [row.workload for row in self.rows if row.ratio is not None and is_slower_than(row.ratio, share)]
        overall = self.overall
        return found + (["over all"] if overall is not None and is_slower_than(overall, share) else [])


def marks_of(evaluation: AnyEvaluation) -> dict[str, str]:
    """Return what two times have to have in common; a mark is left out where the trace does not say."""
    measurement = read_measurement(evaluation)
    _, fingerprint = find_fingerprint(evaluation.extra)
    known = fingerprint or {}
    marks = {
        "hardware": evaluation.environment.hardware,
        "cache state": measurement.cache_state,
        "method": measurement.method,
        **{key: str(known.get(key, "usual" if key == "timing" else "")) for key in ("protocol", "sandbox", "timing")},
    }
    if not fingerprint:
        marks = {key: mark for key, mark in marks.items() if key != "timing"}
    return {key: to_one_line(mark) for key, mark in marks.items() if mark}


def find_difference(first: Mapping[str, str], second: Mapping[str, str], *, where: str) -> str | None:
    """Name the first mark that differs; None where all that both tell are equal."""
    for key, kind in KINDS.items():
        if key in first and key in second and first[key] != second[key]:
            return f"{where}: {kind}: A {first[key]}, B {second[key]}"
    return None
