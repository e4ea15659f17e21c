"""The trace: one line of a workloads or traces file. A trace is a workload, with or without a solution and an
evaluation."""

from __future__ import annotations

from pydantic import model_validator

from flashinfer_bench.data.evaluation import Correctness, Environment, Evaluation, EvaluationStatus, Performance
from flashinfer_bench.data.model import DataModel, NonEmpty
from flashinfer_bench.data.workload import Workload

__all__ = ["Correctness", "Environment", "Evaluation", "EvaluationStatus", "Performance", "Trace"]


class Trace(DataModel):
    """A workload of a definition, with the verdict on a solution."""

    always_written = ("solution", "evaluation")

    definition: NonEmpty
    """Name of the definition."""
    workload: Workload
    """The judged workload."""
    solution: NonEmpty | None = None
    """Name of the solution; null in a workloads file."""
    evaluation: Evaluation | None = None
    """The verdict; null in a workloads file."""

    @model_validator(mode="after")
    def _both_or_neither(self) -> Trace:
        if (self.solution is None) != (self.evaluation is None):
            present, absent = ("solution", "evaluation") if self.evaluation is None else ("evaluation", "solution")
            raise ValueError(f"there is a {present} but no {absent}; a trace has both, a workload neither")
        return self

    def is_workload_trace(self) -> bool:
        """Return whether the trace is a workload without a verdict."""
        return self.solution is None and self.evaluation is None

    def is_successful(self) -> bool:
        """Return whether the solution passed."""
        return self.evaluation is not None and self.evaluation.status is EvaluationStatus.PASSED
