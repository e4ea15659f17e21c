"""Data of a measurement: samples, trials, the metadata of trials, and the latency with its record. Pure functions.

`timing.procedure` takes trials in the process with the clock; `timing.summary` turns them into a number in the judge.

Metadata of a trial, by name:

* method ("wall", "cupti", "cuda_events"), cache_state ("cold", "warm"), calls (in all, timed or not).
* launch ("stream", "graph"), launch_reason (why it is no graph).
* spin_ns (delay kernel before each call), enqueue_ns (host time of a launch), empty_pair_ns (two CUDA events with
  nothing between), fallback (reason why no better clock was used).
* waits_inside, side_stream, operations_vary, lines_reset, streams, retaken (samples taken again behind a longer delay),
  extra_samples (beyond the requested number).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from flashinfer_bench.base.printable import to_printable

Stop = Literal["count", "precision", "budget"]
"""Why sampling ended: all samples were taken, the interval was narrow enough, or the time was spent."""
Metadata = dict[str, Any]
"""Metadata of a trial by name; the values are JSON-able."""
WALL: Final = "wall"
"""The clock of a CPU."""
EVENTS_ASKED_FOR: Final = "CUDA events were asked for"
"""The value of "fallback" if the user chose CUDA events."""
FALLING_BACK: Final = "Falling back to CUDA events."
"""Last words of a warning about "fallback". FlashInfer's documentation promises these words. Traces of earlier versions
have these words in "fallback", too."""


Words = Annotated[str, Field(max_length=512), AfterValidator(to_printable)]
Count = Annotated[int, Field(ge=0, le=10**9)]
Nanoseconds = Annotated[int, Field(ge=0, le=10**15)]


@dataclass(frozen=True)
class Sample:
    """One sample of one call, in nanoseconds. If the clock cannot measure a field, it is None, or 0 for
    `work_ns` and `streams`."""

    span_ns: int
    """GPU time: from the start of the call's first operation to the end of its last."""
    enqueue_ns: int
    """Time that the call took on the host."""
    busy_ns: int | None = None
    """Time in which at least one of the call's operations ran."""
    operations: int | None = None
    """Number of GPU operations that the call launched."""
    late: bool = False
    """Whether the GPU ran out of work before the host had enqueued the call, so that the sample includes host time."""
    launched: tuple[tuple[str, int], ...] = ()
    """Name of each operation and its number of launches, sorted."""
    escaped: bool = False
    """Whether the call ran work on a stream that does not wait for the current stream."""
    work_ns: int = 0
    """Sum of the times of the call's operations."""
    streams: int = 0
    """Number of streams that the call's operations ran on."""
    lead_ns: int | None = None
    """Time from the end of the work before the call to the call's first operation. A worker does not report it."""


def latency_ns(sample: Sample, launch_gap_ns: int) -> int:
    """Return the cost of a call: launch overhead and GPU time, or the host's time if it launched nothing.

    GPU times of a clock that does not see operations already include the overhead.
    """
    if sample.operations is None:
        return sample.span_ns
    return sample.span_ns + launch_gap_ns if sample.operations else sample.enqueue_ns


@dataclass(frozen=True)
class Trial:
    """Samples of one set of inputs, or of several interleaved sets."""

    samples: tuple[Sample, ...]
    stop: Stop
    metadata: Metadata = field(default_factory=dict)

    @property
    def spans_ns(self) -> list[int]:
        """GPU times in the order in which they were taken."""
        return [sample.span_ns for sample in self.samples]

    @property
    def busy_ns(self) -> list[int]:
        """Busy times of the samples, if the clock measures them."""
        return [sample.busy_ns for sample in self.samples if sample.busy_ns is not None]

    def dealt(self, sets: int) -> list[Trial]:
        """Split the samples into a trial for each set of inputs. Sets without samples are omitted."""
        return [replace(self, samples=self.samples[at::sets]) for at in range(min(sets, len(self.samples)))]


@dataclass(frozen=True)
class Measured:
    """The latency of one callable over all its trials."""

    latency_ms: float
    """Mean over trials of the median over samples, in milliseconds."""
    trials: list[float]
    """Median of each trial, in milliseconds."""
    record: dict[str, Any]
    """JSON-able: method, cache state, counts, spread, reason why sampling stopped, flags."""
