"""Outputs for which zeros would pass, since every expected value is within the absolute tolerance.

An element fails only if its error is above atol and above rtol. So zeros pass if no expected value is above atol. The
rule `norm` rejects these zeros, but skips small outputs, and users can disable the rule. An output is reported only if
`norm` did not check it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flashinfer_bench.data import Trace


@dataclass(frozen=True)
class BlindOutput:
    """An output for which zeros would pass."""

    definition: str
    output: str
    largest: float
    """The largest expected value on the workloads where zeros would pass."""
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
    """Return the outputs for which zeros would pass, ordered by name. Only passed verdicts count."""
    found: defaultdict[tuple[str, str], dict[str, tuple[float, float]]] = defaultdict(dict)
    for trace in filter(Trace.is_successful, traces):
        evaluation: Any = trace.evaluation
        config = _part(evaluation.extra, "run", "config")
        for name, output in _part(getattr(evaluation.correctness, "extra", None), "outputs").items():
            largest, atol = _part(output).get("max_expected"), config.get("atol")
            is_seen = config.get("norm_rule") is True and "error_norm" in output
            if isinstance(largest, float) and isinstance(atol, float) and 0 < largest <= atol and not is_seen:
                found[trace.definition, name][trace.workload.uuid] = (float(largest), float(atol))
    return [
        BlindOutput(definition, output, max(on.values())[0], max(atol for _, atol in on.values()), len(on))
        for (definition, output), on in sorted(found.items())
    ]


def _part(record: Any, *keys: str) -> dict[str, Any]:
    """Return a nested table; empty if it is missing."""
    for key in keys:
        record = record.get(key) if isinstance(record, dict) else None
    return record if isinstance(record, dict) else {}
