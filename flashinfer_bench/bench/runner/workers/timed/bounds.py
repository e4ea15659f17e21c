"""What becomes of a latency that a worker reports: checked, confirmed, doubted, refused, or raised to a bound. Pure.

A worker that a solution has taken over can report any sample. So a report has to fit the clock that was asked for and
the time that passed outside. On a GPU the session's own times bound a latency (`chain.py`, `batches.py`); on a CPU such
a time stands beside it.
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


class ClaimContradicted(SolutionFailure):
    """Outside times are far longer than a report allows; so they are if a machine changes its speed."""


@dataclass(frozen=True)
class ReadingsAsked:
    """What a trial was asked for."""

    device_type: str
    timing: TimingSettings = USUAL


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
    """Result of holding a reported latency against chains, batches, or requests."""

    batch_ns: float | None = None
    """Cost of one call in a batch; None if batches do not resolve it, or none was made."""
    resolution_ns: float | None = None
    """Least cost of a call that a batch resolves; None if no batch was made."""
    why_not: str | None = None
    """Why the latency is not confirmed; None if it is."""
    calls: int = 0
    """Calls of all batches, those of the first one included, which is not timed."""
    request_ns: float | None = None
    """Time of one timed call from outside, if that confirmed the report."""
    chain_ns: float | None = None
    """Cost of one call in a chain; None if none was run."""
    chain_calls: int = 0
    """Calls of all chains."""
    chain_share: float = 1.0
    """A latency is reported as no less than this share of that cost."""

    @property
    def least_ns(self) -> float:
        """Least latency that is reported, as far as chains say."""
        return self.chain_share * (self.chain_ns or 0.0)

    def to_record(self) -> dict[str, Any]:
        """Return it as fields of a measurement's record, whose keys say burst for batch and relay for chain."""
        has_batch, has_chain = bool(self.calls or self.batch_ns is not None), self.chain_ns is not None
        record: dict[str, Any] = {"bound": "batch" if has_batch else "chain" if has_chain else "samples"}
        if has_chain:
            record["relay_calls"] = self.chain_calls
        if not has_chain or self.calls:
            record["burst_calls"] = self.calls
        times_ns = {"burst": self.batch_ns, "burst_resolution": self.resolution_ns}
        times_ns |= {"request": self.request_ns, "relay": self.chain_ns}
        record |= {f"{name}_ms": time_ns / 1e6 for name, time_ns in times_ns.items() if time_ns is not None}
        return record if self.why_not is None else {**record, "why_unconfirmed": self.why_not}


def check_clock(traits: ClockTraits, asked: ReadingsAsked) -> None:
    """Hold the clock that a worker says it uses against what was asked for.

    Raises:
        SolutionFailure: RUNTIME_ERROR; it is another.
    """
    methods: tuple[str, ...] = ("wall",)
    if asked.device_type == "cuda":
        methods = ("cupti", "cuda_events") if asked.timing.clock == "auto" else ("cuda_events",)
    cache_state = asked.timing.l2_cache if asked.device_type == "cuda" else "warm"
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
    if sum(one.span_ns for one in readings) > wall_ns * CLOCK_SLACK:
        raise _refused("the worker's readings add up to more than the time that passed outside it")
    if len(readings) != count:
        raise _out_of_protocol(f"{len(readings)} readings of {count} calls")
    if any(
        (value is not None) != traits.sees_operations for one in readings for value in (one.busy_ns, one.operations)
    ):
        raise _out_of_protocol("no operations" if traits.sees_operations else "operations that the clock cannot see")
    return [one.to_sample() for one in readings]


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
    return Confirmation(request_ns=median(costs_ns))


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
    """Return the latency that is reported; if that is more than the worker's, the record gets that as `claimed_ms`.

    Args:
        claimed_ms: latency of one call, `setup` included.
        record: the measurement's. Its `burst_ms` is the cost of a call in a batch, if batches resolve it. Its `bound`
            becomes "floor" if that is what raises the latency.
        least_ms: least latency that is reported, as far as chains say.
        floor_ms: no right call takes less.
    """
    outside_ms: float = max(claimed_ms, CREDITED_SHARE * record.get("burst_ms", 0.0), least_ms)
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
