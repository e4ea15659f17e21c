"""How a time was measured, as a trace says it: the record `evaluation.extra["measurement"]`, as reports read it.

`timing.summary` makes the record, of facts that `timing.facts` declares. Traces come from foreign files too, and the
record has had several forms. So nothing in it is trusted: a value of another form than expected counts as not given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flashinfer_bench.data.store.trace_lines import AnyEvaluation


class Measurement(BaseModel):
    """What a measurement's record says; an empty text, an empty list or None where it does not say."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    method: str = ""
    """The clock: "cupti", "cuda_events" or "wall"."""
    cache_state: str = ""
    """"cold" or "warm"."""
    launch: str = ""
    """"stream" or "graph"; empty where the method knows no difference."""
    fallback: str = ""
    """Why no better clock was used."""
    flags: list[str] = Field(default_factory=list)
    """What a reader should know before acting on the number; see `timing.flags`."""
    meaningful: bool = True
    """False where the time says nothing about the kernel, as under Triton's interpreter."""
    reason: str = ""
    """Why the time is not meaningful."""
    samples: float | None = None
    """Number of readings."""
    precision: float | None = None
    """Share of its time to which each trial was to be known."""
    precision_reached: float | None = None
    """Share to which the worst of them is known; None where there are too few readings to tell."""
    late: float | None = None
    """Number of readings that hold the host's time."""
    median_ms: float | None = None
    q25_ms: float | None = None
    q75_ms: float | None = None
    std_ms: float | None = None
    latency_ms: float | None = None
    """What an older form has instead of `median_ms`."""
    kernel_ms: float | None = None
    """Time of `run` alone, where the solution has a `setup`; the latency has both."""
    setup_ms: float | None = None
    """Time of `setup`."""
    confirmed: bool | None = None
    """Whether bursts, timed from outside, agree with the latency; None where none were made."""
    burst_ms: float | None = None
    """What one call cost in a burst; None where bursts did not resolve it, or where none were needed."""
    burst_resolution_ms: float | None = None
    """What a burst cannot tell from nothing, for one call."""
    not_confirmed: str = ""
    """Why the latency is not confirmed."""
    trials_ms: list[float] = Field(default_factory=list)
    """Median of each trial."""
    samples_ns: list[float] | list[list[float]] = Field(default_factory=list)
    """Every reading, in two older forms; the present form is a table, which no report reads."""

    @property
    def readings_ns(self) -> list[float]:
        """The readings of all trials, where the record has an older form."""
        return [reading for part in self.samples_ns for reading in (part if isinstance(part, list) else [part])]

    @property
    def spread(self) -> float:
        """The interquartile range over the median; 0 where the record does not tell it."""
        if not self.median_ms or self.q25_ms is None or self.q75_ms is None:
            return 0.0
        return (self.q75_ms - self.q25_ms) / self.median_ms


def read_measurement(evaluation: AnyEvaluation) -> Measurement:
    """Return how the solution was timed; all of it "not given" where the trace has no record."""
    return parse_measurement(evaluation.extra)


def parse_measurement(extra: Mapping[str, Any] | None) -> Measurement:
    """Return how the solution was timed, by the `extra` of its evaluation."""
    record = (extra or {}).get("measurement")
    fields = dict(record) if isinstance(record, Mapping) else {}
    try:
        return Measurement.model_validate(fields)
    except ValidationError as error:
        wrong = {problem["loc"][0] for problem in error.errors()}
        return Measurement.model_validate({name: value for name, value in fields.items() if name not in wrong})
