"""The evaluation: the verdict on one job, with what was measured. Which parts there are follows from the status.

    PASSED                 correctness and performance
    INCORRECT_NUMERICAL    correctness
    all others             neither

NaN and infinities are written as the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from flashinfer_bench.data.model import DataModel


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


WAITS_INSIDE: Final = "waits_inside"
"""The flag of a measurement whose call waits for the GPU before it returns."""
RAISED: Final = "claimed_ms"
"""The key of a measurement whose latency was raised: what the worker had reported."""
LEAST_REPORTED: Final = 0.9
"""A latency is never the best if its worker reported less than this share of it: outside times of honest calls come
within a tenth."""
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

    hardware: Annotated[str, StringConstraints(min_length=1)]
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

    @property
    def is_quick(self) -> bool:
        """Whether it is of a quick look (`--quick`): too few readings to compare it with others, or to keep it."""
        return says_quick((self.extra or {}).get("run"))

    @property
    def may_be_best(self) -> bool:
        """Whether it may be called the best: no quick look, not `both_wait`, and not `was_raised`."""
        return not self.is_quick and not both_wait(self.extra) and not was_raised(self.extra, self.performance)

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


def both_wait(extra: object) -> bool:
    """Tell whether solution and reference both wait for the GPU inside a call: the host's time decides their ratio."""
    records = [extra.get(name) for name in ("measurement", "baseline")] if isinstance(extra, Mapping) else [None]
    flags = [record.get("flags") if isinstance(record, Mapping) else None for record in records]
    return all(isinstance(one, Sequence) and WAITS_INSIDE in one for one in flags)


def was_raised(extra: object, performance: Any) -> bool:
    """Tell whether a worker reported far less than what was timed from outside, or the floor, allows.

    Args:
        extra: of an evaluation.
        performance: the same; None if it has none.
    """
    record = extra.get("measurement") if isinstance(extra, Mapping) else None
    claimed_ms = record.get(RAISED) if isinstance(record, Mapping) else None
    is_number = isinstance(claimed_ms, int | float) and performance is not None
    return is_number and claimed_ms < LEAST_REPORTED * performance.latency_ms


def says_quick(run: object) -> bool:
    """Tell whether `extra.run` of an evaluation says that it is of a quick look."""
    return isinstance(run, Mapping) and run.get("quick") is True
