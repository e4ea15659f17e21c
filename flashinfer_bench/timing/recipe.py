"""How a trial is taken, top to bottom: warm up → sample in growing batches → stop at the count or at the budget.

It runs where the code runs: in the worker for a solution, in the device session for the reference. What the samples
mean is decided elsewhere; here they are only taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean, median
from time import perf_counter
from typing import Any, Literal

from flashinfer_bench.timing.clocks import Clock, Launch
from flashinfer_bench.timing.measurement import Measured

Stop = Literal["count", "budget"]


@dataclass(frozen=True)
class Trial:
    """The readings of one trial."""

    samples_ns: list[int]
    stop: Stop
    facts: dict[str, Any]


def sample_trial(
    supply: Callable[[int], Launch],
    clock: Clock,
    *,
    warmup_runs: int,
    iterations: int,
    budget_s: float,
    now: Callable[[], float] = perf_counter,
) -> Trial:
    """Take one trial.

    Args:
        supply: gives the launch for the i-th call of the trial; it is called outside of every sample.
        clock: how readings are taken.
        warmup_runs: untimed calls first.
        iterations: readings wanted.
        budget_s: no further batch is begun once so much wall time is spent; at least one reading is taken.
        now: the host's clock, in seconds.
    """
    start = now()
    warmed = 0
    while warmed < warmup_runs and (warmed == 0 or now() - start < budget_s / 4):
        count = min(max(warmed, 1), warmup_runs - warmed)
        clock.warm_up(supply(warmed), count)
        warmed += count
    samples: list[int] = []
    sampling = now()
    while len(samples) < iterations:
        left_s = budget_s - (now() - start)
        if samples and left_s <= 0:
            break
        batch = batch_size(taken=len(samples), wanted=iterations, sampling_s=now() - sampling, left_s=left_s)
        samples += clock.sample([supply(warmed + len(samples) + i) for i in range(batch)])
    stop: Stop = "count" if len(samples) == iterations else "budget"
    facts = {"method": clock.method, "cache_state": clock.cache_state, "warmup_runs": warmed, **clock.facts()}
    return Trial(samples, stop, facts)


def batch_size(*, taken: int, wanted: int, sampling_s: float, left_s: float) -> int:
    """Return how many readings to take next: one first, then what the rate so far lets fit into the budget."""
    if taken == 0:
        return 1 if wanted > 1 else wanted
    if left_s * taken >= (wanted - taken) * sampling_s:
        return wanted - taken
    return max(1, int(left_s * taken / sampling_s)) if left_s > 0 else 1


def summarise(trials: list[Trial]) -> Measured:
    """Return the latency: the mean over trials of the median over readings, with how it came about."""
    medians_ns = [median(trial.samples_ns) for trial in trials]
    latency_ms = mean(medians_ns) / 1e6
    everything = sorted(sample for trial in trials for sample in trial.samples_ns)
    record = {
        **trials[-1].facts,
        "trials": len(trials),
        "samples": len(everything),
        "stop": "count" if all(trial.stop == "count" for trial in trials) else "budget",
        "min_ms": everything[0] / 1e6,
        "max_ms": everything[-1] / 1e6,
        "q25_ms": everything[len(everything) // 4] / 1e6,
        "q75_ms": everything[(3 * len(everything)) // 4] / 1e6,
    }
    return Measured(latency_ms=latency_ms, trials=[value / 1e6 for value in medians_ns], record=record)
