"""What a measurement hands to whoever judges it: readings, trials, and the one number with where it came from.

Pure values: taken by `timing.recipe` where the code ran, checked and summarised where it is judged.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

Stop = Literal["count", "precision", "budget"]
"""Why sampling ended: all readings were taken, the interval was narrow enough, or the time was spent."""
Facts = dict[str, int | float | str | bool]
"""Facts by name, as they are told; `timing.facts` declares them."""
EVENTS_ASKED_FOR: Final = "CUDA events were asked for"
"""The fact "fallback" of a measurement whose user chose CUDA events."""
FALLING_BACK: Final = "Falling back to CUDA events."
"""Words at the end of the fact "fallback" where CUPTI does not work, as the documents promise."""


def reason_of_fallback(fallback: str) -> str:
    """Return the fact "fallback" without the words at its end."""
    return fallback.removesuffix(FALLING_BACK).rstrip(" .")


@dataclass(frozen=True)
class Sample:
    """One reading of one call, in nanoseconds."""

    span_ns: int
    """From the start of the call's first operation to the end of its last."""
    enqueue_ns: int
    """Time that the call took on the host."""
    busy_ns: int | None = None
    """Time in which at least one of its operations ran; None where the clock does not see operations."""
    operations: int | None = None
    """GPU operations that it launched; None where the clock does not see them."""
    late: bool = False
    """The GPU ran out of work before the host had enqueued the call, so the reading holds the host's time, too."""
    lead_ns: int | None = None
    """Time from the end of the work before the call to its first operation."""
    launched: tuple[tuple[str, int], ...] = ()
    """What it launched, sorted: the name of each operation, and the number of its launches."""
    escaped: bool = False
    """It ran work on a stream that does not wait for the current one."""
    work_ns: int = 0
    """The times of all its operations, added up; 0 where the clock does not see them."""
    streams: int = 0
    """Number of streams that its operations ran on; 0 where the clock does not see them, or there are none."""

    @property
    def overlaps(self) -> bool:
        """Say whether some of its operations ran at the same time."""
        return self.work_ns > (self.busy_ns or 0)


def latency_ns(sample: Sample, launch_gap_ns: int) -> int:
    """Return what a call costs: launch gap and span, or the host's time where the GPU had nothing to do.

    The spans of a clock that does not see operations hold the gap already.
    """
    if sample.operations is None:
        return sample.span_ns
    return sample.span_ns + launch_gap_ns if sample.operations else sample.enqueue_ns


@dataclass(frozen=True)
class Trial:
    """Readings of one set of inputs; or of several, which the calls have by turns."""

    samples: tuple[Sample, ...]
    stop: Stop
    facts: Facts = field(default_factory=dict)
    """How the readings came about: method, cache state, launch, counts."""

    @property
    def spans_ns(self) -> list[int]:
        """The spans in the order in which they were taken."""
        return [sample.span_ns for sample in self.samples]

    def dealt(self, sets: int) -> list[Trial]:
        """Return a trial for each set of inputs that has readings."""
        return [replace(self, samples=self.samples[at::sets]) for at in range(min(sets, len(self.samples)))]


@dataclass(frozen=True)
class Measured:
    """The latency of one callable over all its trials."""

    latency_ms: float
    """Mean over trials of the median over iterations, in milliseconds."""
    trials: list[float]
    """Median of each trial, in milliseconds."""
    record: dict[str, Any]
    """JSON-able: method, cache state, counts, spread, why sampling stopped, whether the number means anything."""
