"""Turns samples into the number that people act on, with its record. Pure functions.

Latency is the cost of one more call in a full queue: launch overhead plus GPU time. GPU time extends from the call's
first operation to the end of its last operation. The latency of a trial is the median over its samples. The latency of
a measurement is the mean over its trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import Final

from flashinfer_bench.timing.flags import find_flags
from flashinfer_bench.timing.measurement import WALL, Measured, Trial, latency_ns
from flashinfer_bench.timing.nvml import GpuState
from flashinfer_bench.timing.statistics import count_together, describe, interval_of_trials, trimmed_mean

STATES: Final = ("sm_mhz", "memory_mhz", "power_w", "temperature_c", "other_processes")


def summarise(
    trials: Sequence[Trial],
    *,
    launch_gap_ns: int = 0,
    before: GpuState | None = None,
    after: GpuState | None = None,
    keep_samples: bool = False,
) -> Measured:
    """Return the latency over all trials, with its record.

    Args:
        trials: at least one. They were sampled together, so they have the same metadata.
        launch_gap_ns: launch overhead that is added to every GPU time; see `Clock.launch_gap_ns`.
        before: the GPU before the first trial.
        after: the GPU after the last trial.
        keep_samples: whether every sample is put into the record.
    """
    latencies_ns = [[latency_ns(sample, launch_gap_ns) for sample in trial.samples] for trial in trials]
    medians_ms = [median(own) / 1e6 for own in latencies_ns]
    samples = [one for trial in trials for one in trial.samples]
    record = {**trials[0].metadata, "trials": len(trials), "samples": len(samples), "stop": trials[0].stop}
    batch = count_together([sample.span_ns for sample in samples], record.get("method", WALL))
    interval = interval_of_trials(latencies_ns, batch)
    record |= {f"{name}_ms": _ms(value) for name, value in describe(latencies_ns).items()}
    if interval is not None:
        record["interval95_ms"] = [_ms(bound) for bound in interval]
    counts = [sample.operations for sample in samples if sample.operations is not None]
    busy_ns = [trial.busy_ns for trial in trials if trial.busy_ns]
    if counts and busy_ns:
        record |= {"busy_ms": _ms(fmean(map(trimmed_mean, busy_ns))), "launch_gap_ns": launch_gap_ns}
        record["operations"] = int(median(counts))
    if late := sum(sample.late for sample in samples):
        record["late"] = late
    if flags := find_flags(record, samples, before, after):
        record["flags"] = flags
    if before is not None and after is not None:
        record["gpu"] = {name: [getattr(before, name), getattr(after, name)] for name in STATES}
        if slowed_by := sorted({*before.slowed_by, *after.slowed_by}):
            record["gpu"]["slowed_by"] = slowed_by
    if keep_samples:
        record["samples_ns"] = {
            kind: [[getattr(sample, f"{kind}_ns") for sample in trial.samples] for trial in trials]
            for kind in ("span", "busy", "enqueue")
        }
    return Measured(fmean(medians_ms), medians_ms, record)


def _ms(nanoseconds: float) -> float:
    return round(nanoseconds / 1e6, 9)
