"""What a worker claims of its samples, held against what the session knows itself. Pure.

A worker that a solution has taken over can claim any sample. So a claim has to fit the clock that was asked for and
the time that passed outside. On a GPU what the session times bounds a latency (`chain.py`, `batches.py`); on a CPU that
time stands beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Final

from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.timing.measurement import Sample, Trial, latency_ns
from flashinfer_bench.timing.settings import USUAL, TimingSettings
from flashinfer_bench.worker.protocol import Called, ClockTraits

CLOCK_SLACK: Final = 1.02
DOUBTED: Final = 1 / 3, 0.2
"""On a CPU a latency below this share of the mean time of a call from outside is flagged, if that is as many
milliseconds: most of a shorter time is what the request itself takes."""

CREDITED_SHARE: Final = 0.79
"""A latency is reported as no less than this share of the cost of a call in a batch: a claim below earns nothing. A GPU
that computes without a pause may be a quarter slower than one that idles before each call."""
CHAIN_SHARE: Final = 0.95
"""The same share of the cost of a call in a chain, which is timed more exactly."""
HOST_CHAIN_SHARE: Final = 0.85
"""The same if the host launches each call in its turn: what the host takes varies. With a smaller share a worker that
says so gains more."""


@dataclass(frozen=True)
class ReadingsAsked:
    """What a trial was asked for."""

    device_type: str
    timing: TimingSettings = USUAL

    @property
    def methods(self) -> tuple[str, ...]:
        """The clocks that may have been used."""
        if self.device_type != "cuda":
            return ("wall",)
        return ("cupti", "cuda_events") if self.timing.clock == "auto" else ("cuda_events",)

    @property
    def cache_state(self) -> str:
        """How the caches are before each call."""
        return self.timing.l2_cache if self.device_type == "cuda" else "warm"


def check_clock(traits: ClockTraits, asked: ReadingsAsked) -> None:
    """Hold the clock that a worker says it uses against what was asked for.

    Raises:
        SolutionFailure: RUNTIME_ERROR; it is another.
    """
    holds = {
        f"the method {traits.method!r}": traits.method not in asked.methods,
        f"the cache state {traits.cache_state!r}": traits.cache_state != asked.cache_state,
        "a clock that contradicts its method": (traits.fills_queue, traits.sees_operations)
        != (traits.method != "wall", traits.method == "cupti"),
    }
    _refuse_what_holds(holds)


def check_readings(called: Called, count: int, traits: ClockTraits, *, wall_ns: float) -> list[Sample]:
    """Hold the readings of a request against what was asked for and the time that passed outside; return them.

    Args:
        called: the worker's answer.
        count: calls that the request asked for.
        traits: the clock that is used.
        wall_ns: time from the request to its answer, by the session's clock.

    Raises:
        SolutionFailure: RUNTIME_ERROR; they cannot be.
    """
    readings = called.readings
    if readings is None:
        raise _refused("the process answered out of protocol during the measurement: there are no readings")
    if sum(readings.span_ns) > wall_ns * CLOCK_SLACK:
        raise _refused("the worker's readings add up to more than the time that passed outside it")
    series = (readings.busy_ns, readings.operations)
    holds = {
        f"{len(readings.span_ns)} readings of {count} calls": len(readings.span_ns) != count,
        "operations that the clock cannot see": not traits.sees_operations and any(one is not None for one in series),
        "no operations": traits.sees_operations and any(one is None for one in series),
    }
    _refuse_what_holds(holds)
    return readings.samples()


def check_trial(trial: Trial) -> Trial:
    """Return the trial.

    Raises:
        SolutionFailure: RUNTIME_ERROR; its latency is nothing.
    """
    typical_ns = median(latency_ns(sample, 0) for sample in trial.samples)
    if typical_ns < 1:
        raise _refused(f"the worker claims {typical_ns:g} ns a call, which is less than an empty call takes")
    return trial


def tell_outside(claimed_ms: float, record: dict[str, Any], costs_ns: Sequence[float]) -> None:
    """Put the mean time of a call from outside into a measurement's record on a CPU. It bounds nothing.

    Args:
        claimed_ms: latency of one call, `setup` included.
        record: the measurement's.
        costs_ns: share of each timed call in the time from its request to the answer.
    """
    (share, least_ms), outside_ms = DOUBTED, fmean(costs_ns) / 1e6
    record |= {"bound": "none", "outside_ms": outside_ms}
    add_flags(record, unconfirmed=outside_ms >= least_ms and claimed_ms < share * outside_ms)


def raise_claim(claimed_ms: float, record: dict[str, Any], least_ms: float = 0.0, floor_ms: float = 0.0) -> float:
    """Return the latency that is reported for a claim; if that is more, the record gets the claim as `claimed_ms`.

    Args:
        claimed_ms: latency of one call, `setup` included.
        record: the measurement's. Its `burst_ms` is the cost of a call in a batch, if batches resolve it. Its `bound`
            becomes "floor" if that is what raises the claim.
        least_ms: least latency that is reported, as far as chains say.
        floor_ms: no right call takes less.
    """
    outside_ms: float = max(CREDITED_SHARE * record.get("burst_ms", 0.0), least_ms)
    reported_ms = max(claimed_ms, outside_ms, floor_ms)
    if reported_ms > claimed_ms:
        record["claimed_ms"] = claimed_ms
    if reported_ms > max(claimed_ms, outside_ms):
        record["bound"] = "floor"
    return reported_ms


def _refuse_what_holds(holds: dict[str, bool]) -> None:
    what = next((what for what, is_so in holds.items() if is_so), None)
    if what is not None:
        raise _refused(f"the process answered out of protocol during the measurement: {what}")


def _refused(message: str) -> SolutionFailure:
    return SolutionFailure("RUNTIME_ERROR", message)


def add_flags(record: dict[str, Any], **flags: bool) -> None:
    """Add the flags that hold to a measurement's record."""
    found = [*record.get("flags", []), *(name for name, holds in flags.items() if holds)]
    if found:
        record["flags"] = found
