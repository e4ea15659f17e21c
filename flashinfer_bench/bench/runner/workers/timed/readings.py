"""What a worker claims of its readings, held against what the session knows itself. Pure.

A worker that a solution has taken over can claim any reading. So a claim has to fit the clock that was asked for and
the time that passed outside. Whether a latency can be is settled by bursts that the session times (`bursts.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.timing.measurement import Sample, Trial, latency_ns
from flashinfer_bench.timing.settings import USUAL, TimingSettings
from flashinfer_bench.worker.protocol import Called, ClockTraits

CLOCK_SLACK: Final = 1.02
EMPTY_CALL_NS: Final = 50
"""Two looks at the clock and a call of a Python function that does nothing take longer."""

CREDITED_SHARE: Final = {"cpu": 0.9, "cuda": 0.79}
"""A latency is told as no less than this share of what a call costs in a burst, by the kind of device: a claim below
earns nothing. A GPU that computes without a pause may be a quarter slower than one that rests before each call."""
RELAY_SHARE: Final = {"cpu": 0.97, "cuda": 0.95}
"""The same share of what a call costs in a relay, which is timed more exactly."""
HOST_RELAY_SHARE: Final = 0.85
"""The same on a GPU where the host launches each call in its turn: what the host takes varies. Honest calls of 0.4 ms
and more came to 1.09 times what they claimed, on one host of two to 1.6 (H100); with a smaller share who says so gains
more."""


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
        SolutionFailure: RUNTIME_ERROR where it is another.
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
        SolutionFailure: RUNTIME_ERROR where they cannot be.
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


def check_trial(trial: Trial, asked: ReadingsAsked) -> Trial:
    """Hold a trial's latency against what an empty call takes; return the trial.

    Raises:
        SolutionFailure: RUNTIME_ERROR where it is below that.
    """
    floor_ns = 1 if asked.device_type == "cuda" else EMPTY_CALL_NS
    typical_ns = median(latency_ns(sample, 0) for sample in trial.samples)
    if typical_ns < floor_ns:
        raise _refused(f"the worker claims {typical_ns:g} ns a call, which is less than an empty call takes")
    return trial


def raise_claim(claimed_ms: float, record: dict[str, Any], device_type: str, least_ms: float = 0.0) -> float:
    """Return the latency that a claim is told as; where that is more, the record gets the claim as `claimed_ms`.

    Args:
        claimed_ms: latency of one call, `setup` included.
        record: the measurement's; `burst_ms` is what a call costs in a burst, as far as bursts tell.
        device_type: cpu or cuda.
        least_ms: what it is told as at the least, as far as relays and the least call that can be right say.
    """
    burst_ms: float = record.get("burst_ms", 0.0)
    least_ms = max(CREDITED_SHARE[device_type] * burst_ms, least_ms)
    if claimed_ms >= least_ms:
        return claimed_ms
    record["claimed_ms"] = claimed_ms
    return least_ms


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
