"""The time that is reported for a kernel: what its worker claims, checked, refused, or raised to a bound. Pure.

`report_time` makes the number: the summary of the samples, its `setup`, the bound from outside. A worker that a
solution has taken over can report any sample. So a report has to fit the clock that was asked for and the time that
passed outside. On a GPU the session's own times bound a latency (`chain.py`, `batches.py`); on a CPU such a time stands
beside it.
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
"""On a CPU a latency below this share of the mean time of a call from outside is flagged, if that is as many
milliseconds: most of a shorter time is that of the request itself."""
CREDITED_SHARE: Final = 0.79
"""A latency is reported as no less than this share of the cost of a call in a batch. A GPU that computes without a
pause may be a quarter slower than one that idles before each call."""
CHAIN_SHARE: Final = 0.95
"""The same share of the cost of a call in a chain, which is timed more exactly."""
HOST_CHAIN_SHARE: Final = 0.85
"""The same if the host launches each call in its turn: the host's time varies."""
LEAST_SHARE: Final = 0.75
"""A latency below this share of an outside time is not confirmed."""
REFUSED_SHARE: Final = 0.5
"""Below this share of a batch's time it is refused. Honest calls of many operations come near it: the operations of a
long graph start later than those of one call's graph."""
CHAIN_REFUSED_SHARE: Final = 0.25
"""The same for a chain, where inputs are cold, and for batches after it. Both raise the latency all the same."""
FORGED_SHARE: Final = 0.1
"""Below this share nothing is measured again: no machine changes its speed tenfold between samples and batches."""
SETTLED: Final = 1_000_000, 9
"""Reported nanoseconds and timed calls from which on the calls' own requests can confirm a latency: the rest of a
request is little then."""


Bound = Callable[[float, dict[str, Any]], float]
"""Takes a latency in milliseconds and the measurement's record, which gets what bounds it; returns what is reported."""


class ClaimContradicted(SolutionFailure):
    """Outside times are far longer than a report allows; so they are if a machine changes its speed."""


@dataclass(frozen=True)
class Claimed:
    """What a worker reports of a call."""

    latency_ns: float
    """`setup` included."""
    waits_inside: bool = False
    """It waits for the GPU."""
    operations: int = 1
    """Operations that it launches on a GPU."""
    uses_side_stream: bool = False
    """It uses streams that nothing waits for."""


@dataclass(frozen=True)
class Confirmation:
    """Result of holding a reported latency against a chain, batches, or requests."""

    bound: str
    """What bounds the latency: "samples", "chain" or "batch"."""
    least_ns: float = 0.0
    """Least latency that is reported."""
    why_not: str | None = None
    """Why the latency is not confirmed; None if it is."""
    record: dict[str, Any] = field(default_factory=dict)
    """Further fields of a measurement's record, whose keys say burst for batch and relay for chain."""
    most_ns: float = math.inf
    """Most that a call costs."""

    def leaves_open(self, claimed_ns: float) -> bool:
        """Tell whether batches could raise what a call is reported as."""
        return CREDITED_SHARE * self.most_ns > max(claimed_ns, self.least_ns)

    def with_batches(self, found: Confirmation) -> Confirmation:
        """Return what this and batches say together."""
        least_ns, why_not = max(self.least_ns, found.least_ns), found.why_not or self.why_not
        return Confirmation(found.bound, least_ns, why_not, {**self.record, **found.record})


def check_clock(traits: ClockTraits, timing: TimingSettings | None) -> None:
    """Hold the clock that a worker says it uses against what was asked for; None on a CPU.

    Raises:
        SolutionFailure: RUNTIME_ERROR; it is another.
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
    """Hold the samples of a request against what was asked for and the time that passed outside; return them.

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
        SolutionFailure: RUNTIME_ERROR; its latency is nothing.
    """
    typical_ns = median(latency_ns(sample, 0) for sample in trial.samples)
    if typical_ns < 1:
        raise _refused(f"the worker claims {typical_ns:g} ns a call, which is less than an empty call takes")
    return trial


def find_doubt(
    claimed_ns: float, call_ns: float, where: str, tried: str, *, host: str | None, refused_below_ns: float
) -> str | None:
    """Return why a reported latency is not confirmed by an outside time; None if it is.

    Args:
        claimed_ns: latency of one call, `setup` included.
        call_ns: cost of one call, as timed from outside.
        where: a "batch" or a "chain".
        tried: how often that was timed, for the message.
        host: why the host may be what takes the time; None if it does not.
        refused_below_ns: a latency below this is refused.

    Raises:
        ClaimContradicted: RUNTIME_ERROR; the calls take far longer than the report allows.
        SolutionFailure: the same, and no machine changes its speed so much.
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
    """Hold a reported latency against the requests that made timed calls; None if only batches can tell.

    A request makes calls one by one, and its time holds all that goes before each, which a worker may leave out. So
    nothing is taken off, and no call can cost more than its share.

    Args:
        claimed_ns: latency of one call, `setup` included.
        costs_ns: share of each timed call.
    """
    slow_ns, fewest = SETTLED
    if claimed_ns < slow_ns or len(costs_ns) < fewest or claimed_ns < CREDITED_SHARE * median(costs_ns):
        return None
    return Confirmation("samples", record={"burst_calls": 0, "request_ms": median(costs_ns) / 1e6})


def report_time(measured: Measured, setup_ns: float | None, bound: Bound | None, *, same_inputs: bool) -> Measured:
    """Return the latency that is reported, with its record.

    Args:
        measured: the summary of the samples.
        setup_ns: time of `setup` for each call, which counts; None without one.
        bound: holds the claim against times from outside; None if nothing does.
        same_inputs: the calls had inputs of the same values.
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
    """Put the mean time of a call from outside into a measurement's record on a CPU. It bounds nothing.

    Args:
        costs_ns: share of each timed call in the time from its request to the answer.
        claimed_ms: latency of one call, `setup` included; it is returned.
        record: the measurement's.
    """
    (share, least_ms), outside_ms = DOUBTED, fmean(costs_ns) / 1e6
    record |= {"bound": "none", "outside_ms": outside_ms}
    add_flags(record, unconfirmed=outside_ms >= least_ms and claimed_ms < share * outside_ms)
    return claimed_ms


def raise_claim(claimed_ms: float, record: dict[str, Any], found: Confirmation, floor_ms: float = 0.0) -> float:
    """Return the latency that is reported; the record gets what bounds it.

    Args:
        claimed_ms: latency of one call, `setup` included; "claimed_ms" of the record if another is reported.
        record: the measurement's.
        found: what the session's own times say.
        floor_ms: no right call takes less.
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
    """Add the flags that hold to a measurement's record."""
    found = [*record.get("flags", []), *(name for name, holds in flags.items() if holds)]
    if found:
        record["flags"] = found


def _out_of_protocol(what: str) -> SolutionFailure:
    return _refused(f"the process answered out of protocol during the measurement: {what}")


def _refused(message: str) -> SolutionFailure:
    return SolutionFailure("RUNTIME_ERROR", message)
