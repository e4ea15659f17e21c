"""What a worker claims of a measurement, compared with what the session knows itself. Pure.

A worker that a solution has taken over can claim any reading. So a claim has to fit the clock that was asked for, the
time that passed in the session, and the CPU time of calls by the system's account.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.timing.measurement import latency_ns
from flashinfer_bench.timing.recipe import most_readings
from flashinfer_bench.timing.settings import USUAL, TimingSettings
from flashinfer_bench.worker.protocol import Sampled

CLOCK_SLACK: Final = 1.02
"""Readings may add up to this times the session's own time: two clocks differ a little."""
EMPTY_CALL_NS: Final = 50
"""A smaller reading on a CPU is false: reading the clock twice and calling an empty Python function take longer."""
PLAUSIBLE_RATIO: Final = 20
"""A single call may cost this times the claimed latency: its caches are cold, and the times of threads add up."""
CALL_SLACK_NS: Final = 1_000_000
"""A request to a worker and its answer may cost this much CPU time on a busy machine."""
SLACK_NS_PER_BYTE: Final = 2.0
"""A single call may cost this much more for each byte of inputs and outputs: reading and copying at 0.5 GB/s."""


@dataclass(frozen=True)
class ReadingsAsked:
    """What a trial was asked for."""

    device_type: str
    iterations: int
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


def check_readings(sampled: Sampled, wanted: ReadingsAsked, *, wall_ns: float) -> None:
    """Compare readings with what was asked for, and with the time that passed in the session.

    Raises:
        SolutionFailure: RUNTIME_ERROR where they are impossible.
    """
    count = len(sampled.span_ns)
    if sum(sampled.span_ns) > wall_ns * CLOCK_SLACK:
        raise _refused("the worker's readings add up to more than the time that passed outside it")
    most = most_readings(wanted.iterations) if wanted.device_type == "cuda" else max(1, wanted.iterations)
    if count > most:
        raise _refused(f"the worker claims {count} readings, and {most} are the most that a trial takes")
    contradiction = find_contradiction(sampled, wanted)
    if contradiction is not None:
        raise _refused(f"the process answered out of protocol during the measurement: {contradiction}")
    floor_ns = 1 if wanted.device_type == "cuda" else EMPTY_CALL_NS
    typical_ns = median(latency_ns(sample, 0) for sample in sampled.trial().samples)
    if typical_ns < floor_ns:
        raise _refused(f"the worker claims {typical_ns:g} ns a call, which is less than an empty call takes")


def find_contradiction(sampled: Sampled, wanted: ReadingsAsked) -> str | None:
    """Say what an honest worker cannot have answered; None where all may be true."""
    facts, count = sampled.facts, len(sampled.span_ns)
    sees = facts.method == "cupti"
    on_cpu = wanted.device_type != "cuda"
    series = (sampled.busy_ns, sampled.operations)
    holds = {
        f"the method {facts.method!r}": facts.method not in wanted.methods,
        f"the cache state {facts.cache_state!r}": facts.cache_state != wanted.cache_state,
        "operations that the clock cannot see": not sees and any(one is not None for one in series),
        "no operations": sees and any(one is None for one in series),
        "facts that only a GPU has": on_cpu and bool(facts.of_gpus()),
        "a graph that was not asked for": facts.launch == "graph" and not wanted.timing.cuda_graphs,
        "no reason for its fall-back": facts.method == "cuda_events"
        and "cupti" in wanted.methods
        and not facts.fallback,
        "fewer calls than readings": facts.calls < count,
        "a false count of extra readings": facts.extra_samples is not None
        and facts.extra_samples != count - wanted.iterations,
    }
    return next((what for what, is_so in holds.items() if is_so), None)


def find_implausible(claimed_ns: float, costs_ns: Sequence[int], moved_bytes: int) -> str | None:
    """Say why a latency on a CPU is certainly false; None where it may be true.

    Args:
        claimed_ns: the latency by the worker's clock.
        costs_ns: processor time that single calls took by the system's account, request and answer included.
        moved_bytes: bytes of a call's inputs and outputs.
    """
    if not costs_ns:
        return None
    least_ns = min(costs_ns) - CALL_SLACK_NS - moved_bytes * SLACK_NS_PER_BYTE
    if least_ns <= claimed_ns * PLAUSIBLE_RATIO:
        return None
    return (
        f"the worker claims {claimed_ns / 1e6:.6g} ms a call; {len(costs_ns)} calls on other inputs took "
        f"{min(costs_ns) / 1e6:.6g} ms of processor time and more, as seen from outside"
    )


def _refused(message: str) -> SolutionFailure:
    return SolutionFailure("RUNTIME_ERROR", message)
