"""What becomes of a claimed latency: by which shares of an outside time it is confirmed, doubted or refused. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from flashinfer_bench.bench.runner.workers.timed.readings import CREDITED_SHARE
from flashinfer_bench.errors import SolutionFailure

LEAST_SHARE: Final = 0.75
"""A claimed latency below this share of a batch's is not confirmed: a GPU that computes without a pause spends its
power, and is up to a quarter slower than one that idles before each call."""
REFUSED_SHARE: Final = 0.5
"""Below this share it is refused. Honest calls of many operations come near it: the operations of a long graph start
later than those of one call's graph."""
CHAIN_REFUSED_SHARE: Final = 0.25
"""The same for a chain, where inputs are cold, and for batches after it. Both raise the latency all the same."""
FORGED_SHARE: Final = 0.1
"""Below this share nothing is measured again: no machine changes its speed tenfold between samples and batches."""
SETTLED: Final = 1_000_000, 9
"""Claimed nanoseconds and timed calls from which on the calls' own requests can confirm a claim: what a request takes
beside its calls is little then."""


class ClaimContradicted(SolutionFailure):
    """Batches take longer than a claim allows. A machine whose speed changes does this to an honest claim, too."""


@dataclass(frozen=True)
class Claimed:
    """What a worker claims of a call."""

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
    """Result of holding a claimed latency against chains, batches, or requests."""

    batch_ns: float | None
    """Cost of one call in a batch; None if batches do not resolve it, or none was made."""
    resolution_ns: float | None
    """Least cost of a call that a batch resolves; None if no batch was made."""
    why_not: str | None = None
    """Why the latency is not confirmed; None if it is."""
    calls: int = 0
    """Calls of all batches, those of the first one included, which is not timed."""
    request_ns: float | None = None
    """Time of one timed call from outside, if that confirmed the claim."""
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

    @property
    def bound(self) -> str:
        """What bounds the latency from outside: "batch", "chain", or "samples", the requests that took its samples."""
        if self.calls or self.batch_ns is not None:
            return "batch"
        return "chain" if self.chain_ns is not None else "samples"

    def to_record(self) -> dict[str, Any]:
        """Return it as fields of a measurement's record, whose keys say burst for batch and relay for chain."""
        times_ns = {"burst": self.batch_ns, "burst_resolution": self.resolution_ns}
        times_ns |= {"request": self.request_ns, "relay": self.chain_ns}
        record: dict[str, Any] = {"bound": self.bound}
        if self.chain_ns is not None:
            record["relay_calls"] = self.chain_calls
        if self.chain_ns is None or self.calls:
            record["burst_calls"] = self.calls
        record |= {f"{name}_ms": time_ns / 1e6 for name, time_ns in times_ns.items() if time_ns is not None}
        return record if self.why_not is None else {**record, "why_unconfirmed": self.why_not}


def find_doubt(
    claimed_ns: float, call_ns: float, where: str, tried: str, *, host: str | None, refused_below_ns: float
) -> str | None:
    """Return why a claimed latency is not confirmed by an outside time; None if it is.

    Args:
        claimed_ns: latency of one call, `setup` included.
        call_ns: cost of one call, as timed from outside.
        where: a "batch" or a "chain".
        tried: how often that was timed, for the message.
        host: why the host may be what takes the time; None if it does not.
        refused_below_ns: a claim below this is refused.

    Raises:
        ClaimContradicted: RUNTIME_ERROR; the calls take far longer than the claim allows.
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
    """Hold a claimed latency against the time of the requests that made timed calls; None if only batches can tell.

    A request makes calls one by one, and its time holds all that goes before each, such as flush and spin, which a
    worker may leave out. So nothing is taken off, and no call can cost more than its share. A claim near the
    usual share is confirmed.

    Args:
        claimed_ns: latency of one call, `setup` included.
        costs_ns: the share of each timed call.
    """
    slow_ns, fewest = SETTLED
    if claimed_ns < slow_ns or len(costs_ns) < fewest or claimed_ns < CREDITED_SHARE * median(costs_ns):
        return None
    return Confirmation(None, None, request_ns=median(costs_ns))
