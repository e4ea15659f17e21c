"""The flags of a measurement: what a reader should know before acting on its number. Each is declared once, here."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Final

from flashinfer_bench.timing.facts import join_facts
from flashinfer_bench.timing.measurement import Trial, latency_ns
from flashinfer_bench.timing.statistics import FEWEST_BATCHES, WALL, count_together

if TYPE_CHECKING:  # reports name flags without NVML
    from flashinfer_bench.timing.gpu_state import GpuState

FLAGS: Final = {
    "no_gpu_work": "the call launched nothing on the GPU, so the host's time counts",
    "host_bound": "the host takes longer to launch the call than the GPU to run it",
    "waits_inside": "the call waits for the GPU before it returns",
    "side_stream": "the call uses a stream that does not wait for the current one",
    "persisting_l2": "the call leaves persisting lines in the L2, which were reset before each reading",
    "noisy": "the readings leave more open than the difference between two workers would",
    "too_few_samples": "there are too few readings to tell a spread",
    "throttled": "the GPU was slowed down by power or heat",
    "mixed_methods": "the better clock was lost in some trials only",
    "mixed_launches": "only some trials could be timed as replays of CUDA graphs",
    "operations_vary": "the call did not launch the same operations each time: it may keep results of earlier calls",
    "contradictory": "operations are said to have run for longer than the call took",
    "other_processes": "other processes were on the GPU",
    "unconfirmed": "what was timed from outside could not confirm the time",
    "same_inputs": "the inputs could not be varied from call to call",
    "constant_output": "an output was the same on all inputs",
    "regimes_left_out": "calls on unusual inputs were left out, since the reference or the solution is slow or large",
}
"""Each flag, and what it tells a reader; reports name flags in this order. `find_flags` says when each is raised."""
LATE_SHARE: Final = 0.25
"""A call is host-bound if a larger share of its readings is late."""


def find_flags(
    trials: Sequence[Trial], *, is_noisy: bool, before: GpuState | None, after: GpuState | None
) -> list[str]:
    """Return the flags of a measurement.

    Args:
        trials: its trials, at least one.
        is_noisy: its readings leave more open than the spread between workers (`between_workers.is_noisy`).
        before: the GPU before the first trial.
        after: the GPU after the last one.
    """
    samples = [sample for trial in trials for sample in trial.samples]
    facts = join_facts([trial.facts for trial in trials])
    span_ns = median(latency_ns(sample, 0) for sample in samples)
    batch = count_together([sample.span_ns for sample in samples], facts.get("method", WALL))
    on_gpu = facts.get("method") != WALL
    states = [state for state in (before, after) if state is not None]
    empty = any(sample.operations == 0 for sample in samples)
    waits = bool(facts.get("waits_inside")) or sum(sample.late for sample in samples) > LATE_SHARE * len(samples)
    found = {
        "no_gpu_work": empty,
        "host_bound": on_gpu and not empty and (waits or facts.get("enqueue_ns", 0) > span_ns),
        "waits_inside": bool(facts.get("waits_inside")),
        "mixed_methods": len({trial.facts.get("method") for trial in trials}) > 1,
        "mixed_launches": len({trial.facts["launch"] for trial in trials if "launch" in trial.facts}) > 1,
        "operations_vary": any(_varies(trial) for trial in trials),
        "contradictory": any(sample.busy_ns is not None and sample.busy_ns > sample.span_ns for sample in samples),
        "side_stream": bool(facts.get("side_stream")),
        "persisting_l2": bool(facts.get("lines_reset")),
        "noisy": is_noisy,
        "too_few_samples": len(samples) < FEWEST_BATCHES * batch,
        "throttled": any(state.slowed_by for state in states),
        "other_processes": any(state.other_processes for state in states),
    }
    return [name for name, holds in found.items() if holds]  # the session adds the last four


def _varies(trial: Trial) -> bool:
    """Say whether calls on the same inputs launched different things."""
    return bool(trial.facts.get("operations_vary")) or len({sample.operations for sample in trial.samples}) > 1
