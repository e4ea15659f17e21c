"""The evaluation: the verdict on one job, with what was measured. Which parts there are follows from the status.

    PASSED                 correctness and performance
    INCORRECT_NUMERICAL    correctness
    all others             neither

NaN and infinities are written as the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, model_validator

from flashinfer_bench.data.model import DataModel, NonEmpty


class EvaluationStatus(str, Enum):
    """The verdict."""

    PASSED = "PASSED"
    INCORRECT_SHAPE = "INCORRECT_SHAPE"
    INCORRECT_NUMERICAL = "INCORRECT_NUMERICAL"
    INCORRECT_DTYPE = "INCORRECT_DTYPE"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    COMPILE_ERROR = "COMPILE_ERROR"
    TIMEOUT = "TIMEOUT"


HAS_CORRECTNESS: Final = frozenset({EvaluationStatus.PASSED, EvaluationStatus.INCORRECT_NUMERICAL})
"""Statuses whose evaluations carry a `Correctness`."""
HAS_PERFORMANCE: Final = frozenset({EvaluationStatus.PASSED})
"""Statuses whose evaluations carry a `Performance`."""


LEAST_LATENCY_MS: Final = 1e-6
"""A nanosecond: no call takes less."""
MOST_LATENCY_MS: Final = 1e10
"""Four months: no call takes more."""


def _refuse_negative(value: float) -> float:
    if value < 0:
        raise ValueError("an error is not negative")
    return value


NotNegative = Annotated[float, AfterValidator(_refuse_negative)]
"""A size of an error; it may be nan."""


class Correctness(DataModel):
    """How far the outputs were from the expected ones."""

    always_written = ("max_relative_error", "max_absolute_error", "extra")

    max_relative_error: NotNegative = 0.0
    """Largest |got - expected| / |expected| of an element; can be huge near zero."""
    max_absolute_error: NotNegative = 0.0
    """Largest |got - expected| of an element."""
    extra: dict[str, Any] | None = None
    """What the evaluator found beside these."""


def as_time(latency_ms: float) -> float | None:
    """Return a recorded latency, in ms, where a call can take as long; None for 0, nan, infinity and the like."""
    return latency_ms if LEAST_LATENCY_MS <= latency_ms <= MOST_LATENCY_MS else None


class Performance(DataModel):
    """How fast the solution was."""

    always_written = ("latency_ms", "reference_latency_ms", "speedup_factor")

    latency_ms: Annotated[float, Field(ge=0)] = 0.0
    """Mean over trials of the median over iterations."""
    reference_latency_ms: Annotated[float, Field(ge=0)] = 0.0
    """The same for the reference; 0.0 when the reference was not measured."""
    speedup_factor: Annotated[float, Field(ge=0)] = 0.0
    """reference_latency_ms / latency_ms; 0.0 when the reference was not measured."""


class Environment(DataModel):
    """Where it ran."""

    always_written = ("libs",)

    hardware: NonEmpty
    """Name of the device."""
    libs: dict[str, str] = Field(default_factory=dict)
    """Package or driver to its version."""


class Evaluation(DataModel):
    """The verdict on one solution for one workload."""

    always_written = ("log", "correctness", "performance")

    status: EvaluationStatus
    """The verdict."""
    log: str = ""
    """What the solution printed, and why it failed."""
    timestamp: str
    """When, in ISO 8601."""
    environment: Environment
    """Where."""
    correctness: Correctness | None = None
    """Present for PASSED and INCORRECT_NUMERICAL."""
    performance: Performance | None = None
    """Present for PASSED."""
    extra: dict[str, Any] | None = None
    """What the public schema has no place for: seed, tolerances, digests, how time was taken."""

    @model_validator(mode="after")
    def _parts_fit_status(self) -> Evaluation:
        for part, value, owners in (
            ("correctness", self.correctness, HAS_CORRECTNESS),
            ("performance", self.performance, HAS_PERFORMANCE),
        ):
            if (value is not None) != (self.status in owners):
                verb = "needs" if self.status in owners else "has no"
                raise ValueError(f"status {self.status.value} {verb} {part}")
        return self
