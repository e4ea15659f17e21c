"""From trials to the number that people act on, with what it stands on. Pure.

Latency is what one more call costs in a full queue: the machine's launch gap, the same for every call, and the span
from the call's first operation to the end of its last. Median over the readings of a trial, mean over trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any, Final

from flashinfer_bench.timing.gpu_state import GpuState
from flashinfer_bench.timing.measurement import Facts, Measured, Sample, Stop, Trial
from flashinfer_bench.timing.statistics import summarise_trials, trimmed_mean

NOISY_SPREAD: Final = 0.05
NOISE_FLOOR_NS: Final = 100
"""CUPTI's times come in steps of 32 ns; a spread of a few steps says nothing."""
FEW_SAMPLES: Final = 9
LATE_SHARE: Final = 0.25
STOPS: Final[tuple[Stop, ...]] = ("count", "precision", "budget")
PER_TRIAL: Final = frozenset({"lead_ns", "spin_ns", "enqueue_ns", "calls", "retaken", "empty_pair_ns"})
"""Facts whose median is told."""
IN_ALL: Final = frozenset({"extra_samples"})
"""Facts whose sum is told, as the count of all samples is."""
AGREED: Final = frozenset({"graphs", "output_places"})
"""Facts that are told where they hold for all trials."""


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
        launch_gap_ns: added to every span of GPU work; see `Clock.launch_gap_ns`.
        before: the GPU before the first trial.
        after: the GPU after the last one.
        keep_samples: put every reading into the record.
    """
    latencies_ns = [[latency_ns(sample, launch_gap_ns) for sample in trial.samples] for trial in trials]
    medians_ms = [median(values) / 1e6 for values in latencies_ns]
    samples = [sample for trial in trials for sample in trial.samples]
    statistics = summarise_trials(latencies_ns)
    record: dict[str, Any] = {
        **shared_facts([trial.facts for trial in trials]),
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
    flags = find_flags(trials, spread=statistics.spread, before=before, after=after)
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


def latency_ns(sample: Sample, launch_gap_ns: int) -> int:
    """Return what a call costs: launch gap and span, or the host's time where the GPU had nothing to do.

    A clock that does not see operations has the gap in its spans.
    """
    if sample.operations is None:
        return sample.span_ns
    return sample.span_ns + launch_gap_ns if sample.operations else sample.enqueue_ns


def shared_facts(facts: Sequence[Facts]) -> dict[str, Any]:
    """Return the facts of all trials as one table: counts and times as medians or sums, the rest as the last has it."""
    numbers = PER_TRIAL | IN_ALL
    shared: dict[str, Any] = {name: value for table in facts for name, value in table.items() if name not in numbers}
    for name in AGREED & shared.keys():
        if any(table.get(name) != shared[name] for table in facts):
            del shared[name]
    for name in sorted(numbers):
        values = [float(table[name]) for table in facts if isinstance(table.get(name), (int, float))]
        if values:
            shared[name] = int(sum(values) if name in IN_ALL else median(values))
    return shared


def find_flags(trials: Sequence[Trial], *, spread: float, before: GpuState | None, after: GpuState | None) -> list[str]:
    """Return what a reader should know before acting on the number."""
    samples = [sample for trial in trials for sample in trial.samples]
    facts = shared_facts([trial.facts for trial in trials])
    span_ns = median(latency_ns(sample, 0) for sample in samples)
    on_gpu = facts.get("method") != "wall"
    states = [state for state in (before, after) if state is not None]
    empty = any(sample.operations == 0 for sample in samples)
    waits = bool(facts.get("waits_inside")) or sum(s.late for s in samples) > LATE_SHARE * len(samples)
    found = {
        "no_gpu_work": empty,
        "host_bound": on_gpu and not empty and (waits or facts.get("enqueue_ns", 0) > span_ns),
        "waits_inside": bool(facts.get("waits_inside")),
        "mixed_methods": len({trial.facts.get("method") for trial in trials}) > 1,
        "mixed_launches": len({trial.facts["launch"] for trial in trials if "launch" in trial.facts}) > 1,
        "operations_vary": any(_vary(trial) for trial in trials),
        "contradictory": any(sample.busy_ns is not None and sample.busy_ns > sample.span_ns for sample in samples),
        "side_stream": bool(facts.get("side_stream")),
        "persisting_l2": bool(facts.get("lines_reset")),
        "noisy": spread > NOISY_SPREAD and spread * span_ns > NOISE_FLOOR_NS,
        "too_few_samples": len(samples) < FEW_SAMPLES,
        "throttled": any(state.slowed_by for state in states),
        "other_processes": any(state.other_processes for state in states),
    }
    return [name for name, holds in found.items() if holds]


def _vary(trial: Trial) -> bool:
    """Say whether calls on the same inputs launched different things."""
    return bool(trial.facts.get("operations_vary")) or len({sample.operations for sample in trial.samples}) > 1


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
