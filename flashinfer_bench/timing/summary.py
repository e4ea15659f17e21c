"""From trials to the number that people act on, with what it stands on. Pure.

Latency is what one more call costs in a full queue. It is the sum of two times: the machine's launch gap, which is the
same for every call, and the span from the call's first operation to the end of its last. Of a trial the median over its
readings counts, of several trials the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any, Final

from flashinfer_bench.timing.between_workers import default_spread, is_noisy
from flashinfer_bench.timing.facts import join_facts
from flashinfer_bench.timing.flags import find_flags
from flashinfer_bench.timing.gpu_state import GpuState
from flashinfer_bench.timing.measurement import Measured, Stop, Trial, latency_ns
from flashinfer_bench.timing.statistics import WALL, count_together, summarise_trials, trimmed_mean

STOPS: Final[tuple[Stop, ...]] = ("count", "precision", "budget")
"""The reasons to stop, the most welcome first."""


def summarise(
    trials: Sequence[Trial],
    *,
    launch_gap_ns: int = 0,
    before: GpuState | None = None,
    after: GpuState | None = None,
    keep_samples: bool = False,
) -> Measured:
    """Return the latency over all trials, and how it came about.

    Args:
        trials: at least one, in the order in which they were taken.
        launch_gap_ns: nanoseconds that are added to every span of GPU work; see `Clock.launch_gap_ns`.
        before: the GPU before the first trial.
        after: the GPU after the last one.
        keep_samples: put every reading into the record.
    """
    latencies_ns = [[latency_ns(sample, launch_gap_ns) for sample in trial.samples] for trial in trials]
    medians_ms = [median(values) / 1e6 for values in latencies_ns]
    samples = [sample for trial in trials for sample in trial.samples]
    facts = join_facts([trial.facts for trial in trials])
    batch = count_together([sample.span_ns for sample in samples], facts.get("method", WALL))
    statistics = summarise_trials(latencies_ns, batch)
    record: dict[str, Any] = {
        **facts,
        "trials": len(trials),
        "samples": statistics.count,
        "stop": max((trial.stop for trial in trials), key=STOPS.index),
        "mean_ms": _ms(statistics.mean),
        "std_ms": _ms(statistics.std),
        "min_ms": _ms(statistics.minimum),
        "q25_ms": _ms(statistics.q25),
        "median_ms": _ms(statistics.median),
        "q75_ms": _ms(statistics.q75),
        "max_ms": _ms(statistics.maximum),
    }
    if statistics.interval is not None:
        record["interval95_ms"] = [_ms(bound) for bound in statistics.interval]
    record |= _operations(trials, launch_gap_ns)
    late = sum(sample.late for sample in samples)
    if late:
        record["late"] = late
    spread = default_spread("cpu" if record.get("method") == WALL else "cuda")
    scatters = is_noisy(fmean(medians_ms) * 1e6, statistics.interval, spread)
    flags = find_flags(trials, is_noisy=scatters, before=before, after=after)
    if flags:
        record["flags"] = flags
    if before is not None and after is not None:
        record["gpu"] = describe_states(before, after)
    if keep_samples:
        record["samples_ns"] = {
            "span": [[sample.span_ns for sample in trial.samples] for trial in trials],
            "busy": [[sample.busy_ns for sample in trial.samples] for trial in trials],
            "enqueue": [[sample.enqueue_ns for sample in trial.samples] for trial in trials],
        }
    return Measured(latency_ms=fmean(medians_ms), trials=medians_ms, record=record)


def describe_states(before: GpuState, after: GpuState) -> dict[str, Any]:
    """Return two looks at a GPU as pairs, before and after; None stands for what is not known."""
    names = ("sm_mhz", "memory_mhz", "power_w", "temperature_c", "other_processes")
    pairs: dict[str, Any] = {name: [getattr(before, name), getattr(after, name)] for name in names}
    slowed_by = sorted({*before.slowed_by, *after.slowed_by})
    return {**pairs, "slowed_by": slowed_by} if slowed_by else pairs


def _operations(trials: Sequence[Trial], launch_gap_ns: int) -> dict[str, Any]:
    """Return what only a clock that sees operations can tell."""
    busy_ns = [[sample.busy_ns for sample in trial.samples if sample.busy_ns is not None] for trial in trials]
    counts = [sample.operations for trial in trials for sample in trial.samples if sample.operations is not None]
    if not counts or not any(busy_ns):
        return {}
    return {
        "busy_ms": _ms(fmean(trimmed_mean(values) for values in busy_ns if values)),
        "launch_gap_ns": launch_gap_ns,
        "operations": int(median(counts)),
    }


def _ms(nanoseconds: float) -> float:
    return round(nanoseconds / 1e6, 9)
