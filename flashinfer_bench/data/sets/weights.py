"""Means over workloads, with the weights of the workloads. If all weights are 1, the results are the plain means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum

from flashinfer_bench.data.trace import Trace

Weighted = Sequence[tuple[float, float]]
"""Values with their weights."""


def weights_of(lines: Iterable[Trace]) -> dict[str, float]:
    """Return uuid → weight of workloads."""
    return {line.workload.uuid: line.workload.weight for line in lines}


def differ(weights: Iterable[float]) -> bool:
    """Return whether weights differ, so that means are weighted."""
    return len(set(weights)) > 1


def weighted_mean(values: Weighted) -> float:
    """Return the arithmetic mean of at least one value."""
    return fsum(value * weight for value, weight in values) / fsum(weight for _, weight in values)
