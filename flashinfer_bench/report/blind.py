"""Outputs for which zeros would pass: every expected value is within the absolute tolerance.

An element fails only if its error is above atol and above rtol; where no expected value is above atol, no zero fails.
The rule `norm` sees such zeros, so only outputs that it did not look at are told: small ones, and where it was off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flashinfer_bench.data import EvaluationStatus, Trace


@dataclass(frozen=True)
class BlindOutput:
    """An output that zeros would pass for."""

    definition: str
    output: str
    largest: float
    """The largest value that was expected on these workloads."""
    atol: float
    workloads: int
    """Number of the definition's workloads on which zeros would pass."""

    def __str__(self) -> str:
        where = f"{self.workloads} {'workload' if self.workloads == 1 else 'workloads'}"
        return (
            f"zeros would pass as output {self.output!r} of {self.definition} on {where}: no expected value is above "
            f"atol={self.atol:g}, the largest is {self.largest:.3g}; give the definition a smaller atol"
        )


def find_blind(traces: Iterable[Trace]) -> list[BlindOutput]:
    """Return the outputs of passed verdicts that zeros would have passed for, too, in the order of their names."""
    found: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
    for trace in traces:
        evaluation = trace.evaluation
        if evaluation is None or evaluation.status is not EvaluationStatus.PASSED or evaluation.correctness is None:
            continue
        config = _part(evaluation.extra, "run", "config")
        atol = _number(config.get("atol"))
        outputs = _part(evaluation.correctness.extra, "outputs")
        for name in outputs:
            if config.get("norm_rule") is True and "error_norm" in _part(outputs, name):
                continue
            largest = _number(_part(outputs, name).get("max_expected"))
            if atol is not None and largest is not None and 0 < largest <= atol:
                found.setdefault((trace.definition, name), {})[trace.workload.uuid] = (largest, atol)
    return [
        BlindOutput(
            definition=definition,
            output=output,
            largest=max(largest for largest, _ in on.values()),
            atol=max(atol for _, atol in on.values()),
            workloads=len(on),
        )
        for (definition, output), on in sorted(found.items())
    ]


def _part(record: Any, *keys: str) -> Mapping[str, Any]:
    """Return a table within a table; an empty one where there is none."""
    for key in keys:
        record = record.get(key) if isinstance(record, Mapping) else None
    return record if isinstance(record, Mapping) else {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
