"""The evaluation: the verdict on one job, with its measurements. The status decides which parts are present.

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
"""Lower limit of a latency, in ms: one nanosecond."""
MOST_LATENCY_MS: Final = 1e10
"""Upper limit of a latency, in ms: four months."""


def _refuse_negative(value: float) -> float:
    if value < 0:
        raise ValueError("an error is not negative")
    return value


NotNegative = Annotated[float, AfterValidator(_refuse_negative)]
"""The magnitude of an error, or nan."""


class Correctness(DataModel):
    """The errors of the outputs."""

    always_written = ("max_relative_error", "max_absolute_error", "extra")

    max_relative_error: NotNegative = 0.0
    """Largest |got - expected| / |expected| of an element; can be huge near zero."""
    max_absolute_error: NotNegative = 0.0
    """Largest |got - expected| of an element."""
    extra: dict[str, Any] | None = None
    """Additional results of the evaluator."""


def as_time(latency_ms: float) -> float | None:
    """Return a recorded latency, in ms, if it is within the limits of a call; None for any other value, such as 0, nan
    or infinity."""
    return latency_ms if LEAST_LATENCY_MS <= latency_ms <= MOST_LATENCY_MS else None


class Performance(DataModel):
    """The latencies of a job."""

    always_written = ("latency_ms", "reference_latency_ms", "speedup_factor")

    latency_ms: Annotated[float, Field(ge=0)] = 0.0
    """Mean over trials of the median over iterations."""
    reference_latency_ms: Annotated[float, Field(ge=0)] = 0.0
    """Mean over trials of the reference's median over iterations; 0.0 if the reference was not measured."""
    speedup_factor: Annotated[float, Field(ge=0)] = 0.0
    """reference_latency_ms / latency_ms; 0.0 if the reference was not measured."""


class Environment(DataModel):
    """The device and the versions of a job."""

    always_written = ("libs",)

    hardware: NonEmpty
    """Name of the device."""
    libs: dict[str, str] = Field(default_factory=dict)
    """Package or driver → its version."""


class Evaluation(DataModel):
    """The verdict on one solution for one workload."""

    always_written = ("log", "correctness", "performance")

    status: EvaluationStatus
    """The verdict."""
    log: str = ""
    """The output of the solution, and the reason of a failure."""
    timestamp: str
    """Time of the verdict, in ISO 8601."""
    environment: Environment
    """The device and the versions."""
    correctness: Correctness | None = None
    """Present if the status is PASSED or INCORRECT_NUMERICAL."""
    performance: Performance | None = None
    """Present if the status is PASSED."""
    extra: dict[str, Any] | None = None
    """Data without a field in the public schema: seed, tolerances, digests, measurement."""

    @model_validator(mode="after")
    def _parts_fit_status(self) -> Evaluation:
        for part, value, owners in (
            ("correctness", self.correctness, HAS_CORRECTNESS),
            ("performance", self.performance, HAS_PERFORMANCE),
        ):
            if (value is not None) != (self.status in owners):
                word = "needs" if self.status in owners else "has no"
                raise ValueError(f"status {self.status.value} {word} {part}")
        return self
