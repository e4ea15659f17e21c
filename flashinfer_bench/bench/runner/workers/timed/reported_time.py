"""The reported time of a kernel. The worker's samples are checked, and the latency is refused, or raised to a bound.
Pure.

`report_time` makes the number from the summary of the samples, the time of `setup`, and the bound from outside. A
solution that controls its worker can report any sample. So a report must fit the requested clock and the time that
passed outside. On a GPU the session's own times bound a latency (`chain.py`, `batches.py`). On a CPU the session's own
time is only recorded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, Final

from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.timing.measurement import Measured, Sample, Trial, latency_ns
from flashinfer_bench.timing.settings import TimingSettings
from flashinfer_bench.worker.protocol import Called, ClockTraits

CLOCK_SLACK: Final = 1.02
DOUBTED: Final = 1 / 3, 0.2
"""A share, and a limit in milliseconds. On a CPU a latency below this share of a call's mean time from outside is
flagged. A mean below the limit does not count, since it is mostly the time of the request."""
CREDITED_SHARE: Final = 0.79
"""The reported latency is at least this share of a call's cost in a batch. A GPU without pauses can be a quarter slower
than a GPU that idles before each call."""
CHAIN_SHARE: Final = 0.95
"""Like CREDITED_SHARE, but for a chain, which is timed more exactly."""
HOST_CHAIN_SHARE: Final = 0.85
"""Like CHAIN_SHARE, but for chains whose calls the host launches one by one. The host's time varies."""
LEAST_SHARE: Final = 0.75
"""A latency below this share of an outside time is not confirmed."""
REFUSED_SHARE: Final = 0.5
"""A latency below this share of a batch's time is refused. Honest calls of many operations come near this share, since
the operations of a long graph start later."""
CHAIN_REFUSED_SHARE: Final = 0.25
"""Like REFUSED_SHARE, but for a chain, where inputs are cold, and for batches after a chain. Chains and batches raise
the latency in any case."""
FORGED_SHARE: Final = 0.1
"""A latency below this share of an outside time is refused without another measurement: no machine changes its speed
tenfold between two timings."""
SETTLED: Final = 1_000_000, 9
"""The calls' own requests can confirm a latency of at least this many nanoseconds, from at least this many timed calls.
The overhead of a request is small then."""


Bound = Callable[[float, dict[str, Any]], float]
"""Takes a latency in milliseconds and the measurement's record; adds the bound to the record, and returns the latency
to report."""


class ClaimContradicted(SolutionFailure):
    """Outside times are far longer than a report allows. A change of the machine's speed can cause this, too."""


@dataclass(frozen=True)
class Claimed:
    """A worker's report of a call."""

    latency_ns: float
    """Including `setup`."""
    waits_inside: bool = False
    """The call waits for the GPU."""
    operations: int = 1
    """Number of operations that the call launches on a GPU."""
    uses_side_stream: bool = False
    """The call uses a stream that does not wait for the current stream."""


@dataclass(frozen=True)
class Confirmation:
    """Result of checking a reported latency against a chain, batches, or requests."""

    bound: str
    """Source of the bound: "samples", "chain" or "batch"."""
    least_ns: float = 0.0
    """Least latency that is reported."""
    why_not: str | None = None
    """Why the latency is not confirmed; None for a confirmed latency."""
    record: dict[str, Any] = field(default_factory=dict)
    """Additional fields of a measurement's record. Their keys say burst for batch and relay for chain."""
    most_ns: float = math.inf
    """Upper bound of a call's cost."""

    def leaves_open(self, claimed_ns: float) -> bool:
        """Return whether batches could raise the reported latency."""
        return CREDITED_SHARE * self.most_ns > max(claimed_ns, self.least_ns)

    def with_batches(self, found: Confirmation) -> Confirmation:
        """Return this result combined with the result of batches."""
        least_ns, why_not = max(self.least_ns, found.least_ns), found.why_not or self.why_not
        return Confirmation(found.bound, least_ns, why_not, {**self.record, **found.record})


def check_clock(traits: ClockTraits, timing: TimingSettings | None) -> None:
    """Check that a worker reports the requested clock. `timing` is None on a CPU.

    Raises:
        SolutionFailure: the worker reports a different clock (RUNTIME_ERROR).
    """
    methods: tuple[str, ...] = ("wall",)
    cache_state = "warm"
    if timing is not None:
        methods, cache_state = ("cuda_events",), timing.l2_cache
        methods = ("cupti", *methods) if timing.clock == "auto" else methods
    if traits.method not in methods:
        raise _out_of_protocol(f"the method {traits.method!r}")
    if traits.cache_state != cache_state:
        raise _out_of_protocol(f"the cache state {traits.cache_state!r}")
    if (traits.fills_queue, traits.sees_operations) != (traits.method != "wall", traits.method == "cupti"):
        raise _out_of_protocol("a clock that contradicts its method")


def check_readings(called: Called, count: int, traits: ClockTraits, *, wall_ns: float) -> list[Sample]:
    """Check the samples of a request against the requested calls and the time that passed outside; return them.

    Args:
        count: number of requested calls.
        traits: the clock in use.
        wall_ns: time from the request to its answer, by the session's clock.

    Raises:
        SolutionFailure: the samples are impossible (RUNTIME_ERROR).
    """
    readings = called.readings
    if readings is None:
        raise _out_of_protocol("there are no readings")
    if sum(readings.span_ns) > wall_ns * CLOCK_SLACK:
        raise _refused("the worker's readings add up to more than the time that passed outside it")
    if len(readings.span_ns) != count:
        raise _out_of_protocol(f"{len(readings.span_ns)} readings of {count} calls")
    if {(value is not None) for value in (*readings.busy_ns, *readings.operations)} != {traits.sees_operations}:
        raise _out_of_protocol("no operations" if traits.sees_operations else "operations that the clock cannot see")
    return readings.to_samples()


def check_trial(trial: Trial) -> Trial:
    """Return the trial.

    Raises:
        SolutionFailure: the latency is shorter than an empty call (RUNTIME_ERROR).
    """
    typical_ns = median(latency_ns(sample, 0) for sample in trial.samples)
    if typical_ns < 1:
        raise _refused(f"the worker claims {typical_ns:g} ns a call, which is less than an empty call takes")
    return trial


def find_doubt(
    claimed_ns: float, call_ns: float, where: str, tried: str, *, host: str | None, refused_below_ns: float
) -> str | None:
    """Return why an outside time does not confirm a reported latency; None if it does.

    Args:
        claimed_ns: latency of one call, including `setup`.
        call_ns: cost of one call, timed from outside.
        where: a "batch" or a "chain".
        tried: number of outside timings, for the message.
        host: why the host may cause the delay; None if it cannot.
        refused_below_ns: latencies below this are refused.

    Raises:
        ClaimContradicted: the calls take far longer than the report allows (RUNTIME_ERROR).
        SolutionFailure: a change of the machine's speed cannot explain the difference.
    """
    if claimed_ns >= LEAST_SHARE * call_ns:
        return None
    cost = f"a call in a {where} takes {call_ns / 1e6:.6g} ms"
    if host is not None:
        return f"{cost}, and the host may be what holds it up: {host}"
    if claimed_ns >= refused_below_ns:
        return cost
    failure = SolutionFailure if claimed_ns < FORGED_SHARE * call_ns else ClaimContradicted
    claimed = f"the worker claims {claimed_ns / 1e6:.6g} ms a call"
    raise failure("RUNTIME_ERROR", f"{claimed}; {cost}, as timed from outside ({tried})")


def settle_by_requests(claimed_ns: float, costs_ns: Sequence[float]) -> Confirmation | None:
    """Check a reported latency against the requests of the timed calls; None if only batches can decide.

    A request makes calls one after another. The request's time includes all work before each call. So no call can cost
    more than its share of the request's time.

    Args:
        claimed_ns: latency of one call, including `setup`.
        costs_ns: time of each timed call: its share of the request's time.
    """
    slow_ns, fewest = SETTLED
    if claimed_ns < slow_ns or len(costs_ns) < fewest or claimed_ns < CREDITED_SHARE * median(costs_ns):
        return None
    return Confirmation("samples", record={"burst_calls": 0, "request_ms": median(costs_ns) / 1e6})


def report_time(measured: Measured, setup_ns: float | None, bound: Bound | None, *, same_inputs: bool) -> Measured:
    """Return the latency to report, with its record.

    Args:
        measured: the summary of the samples.
        setup_ns: time of `setup` for each call, which is added to the latency; None without `setup`.
        bound: checks the claim against times from outside; None without such times.
        same_inputs: whether all calls had the same input values.
    """
    record, latency_ms, medians_ms = dict(measured.record), measured.latency_ms, measured.trials
    if setup_ns is not None:
        setup_ms = setup_ns / 1e6
        record |= {"kernel_ms": latency_ms, "setup_ms": setup_ms}
        latency_ms, medians_ms = latency_ms + setup_ms, [value + setup_ms for value in medians_ms]
    if bound is not None:
        latency_ms = bound(latency_ms, record)
    add_flags(record, unconfirmed="why_unconfirmed" in record, same_inputs=same_inputs)
    return Measured(latency_ms, medians_ms, record)


def tell_outside(costs_ns: Sequence[float], claimed_ms: float, record: dict[str, Any]) -> float:
    """Record the mean time of a call from outside, on a CPU. This time is no bound.

    Args:
        costs_ns: time of each timed call: its share of the time from the request to the answer.
        claimed_ms: latency of one call, including `setup`; it is returned.
    """
    (share, least_ms), outside_ms = DOUBTED, fmean(costs_ns) / 1e6
    record |= {"bound": "none", "outside_ms": outside_ms}
    add_flags(record, unconfirmed=outside_ms >= least_ms and claimed_ms < share * outside_ms)
    return claimed_ms


def raise_claim(claimed_ms: float, record: dict[str, Any], found: Confirmation, floor_ms: float = 0.0) -> float:
    """Return the latency to report: the claim, or its bound if that is higher. Record the bound.

    Args:
        claimed_ms: latency of one call, including `setup`; stored as "claimed_ms" if the reported latency is higher.
        found: result of the session's own times.
        floor_ms: shortest time of a right call.
    """
    record |= {"bound": found.bound, **found.record}
    if found.why_not is not None:
        record["why_unconfirmed"] = found.why_not
    outside_ms = max(claimed_ms, found.least_ns / 1e6)
    if floor_ms > outside_ms:
        record["bound"] = "floor"
    if max(outside_ms, floor_ms) > claimed_ms:
        record["claimed_ms"] = claimed_ms
    return max(outside_ms, floor_ms)


def add_flags(record: dict[str, Any], **flags: bool) -> None:
    """Add the flags whose value is True to a measurement's record."""
    found = [*record.get("flags", []), *(name for name, holds in flags.items() if holds)]
    if found:
        record["flags"] = found


def _out_of_protocol(what: str) -> SolutionFailure:
    return _refused(f"the process answered out of protocol during the measurement: {what}")


def _refused(message: str) -> SolutionFailure:
    return SolutionFailure("RUNTIME_ERROR", message)
