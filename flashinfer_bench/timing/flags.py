"""The flags of a measurement: warnings to read before acting on its number.

To add a flag, add its text to FLAGS, its condition to `find_flags`, and a row to the table in `docs/numbers.md`. If a
flag has no condition in `find_flags`, the session or the host raises it, since these processes know the condition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from flashinfer_bench.timing.measurement import WALL, Sample, latency_ns

if TYPE_CHECKING:  # reports need FLAGS, and may run without NVML's package
    from flashinfer_bench.timing.nvml import GpuState

LATE_SHARE: Final = 0.25
"""A call is host-bound if more than this share of its samples is late."""
BELOW_FLOOR: Final = "below_floor"
FLAGS: Final = {
    "no_gpu_work": "the call launched nothing on the GPU, so the host's time counts",
    "host_bound": "the host takes longer to launch the call than the GPU to run it",
    "waits_inside": "the call waits for the GPU before it returns",
    "side_stream": "the call uses a stream that does not wait for the current one",
    "persisting_l2": "the call leaves persisting lines in the L2; they were reset before each sample",
    "noisy": "the samples scatter widely, so a re-run may differ by more than usual",
    "too_few_samples": "there are too few samples to estimate a spread",
    "throttled": "the GPU was slowed down by power or heat",
    "operations_vary": "the call did not launch the same operations each time: it may keep results of earlier calls",
    "contradictory": "the reported run time of operations exceeds the duration of the call",
    "other_processes": "other processes were on the GPU",
    "unconfirmed": "the measurement from outside could not confirm the time",
    "same_inputs": "the inputs could not be varied from call to call",
    "constant_output": "an output was the same on all inputs",
    "library_calls": "all kernels of the call are a library's: cuBLAS, cuDNN, FlashInfer or torch",
    "unknown_kernels": "library calls are refused, but the clock does not tell all kernels of this call",
    "regimes_left_out": "calls on unusual inputs were skipped, since the reference or the solution is slow or large",
    BELOW_FLOOR: "the time is below the floor of the roofline, so it has no speed-of-light score",
}
"""Name of each flag → its text, in the order in which reports name flags."""


def find_flags(
    record: Mapping[str, Any], samples: Sequence[Sample], before: GpuState | None, after: GpuState | None
) -> list[str]:
    """Return the flags that a measurement and the GPU's state show.

    Args:
        record: the record of the measurement, with the metadata of its samples.
        samples: all samples, at least one.
        before: the GPU before the first sample.
        after: the GPU after the last sample.
    """
    states = [state for state in (before, after) if state is not None]
    is_empty, is_late = any(one.operations == 0 for one in samples), record.get("late", 0) > LATE_SHARE * len(samples)
    host_takes_longer = record.get("enqueue_ns", 0) > median(latency_ns(one, 0) for one in samples)
    host_binds = is_late or record.get("waits_inside") or host_takes_longer
    result = {
        "no_gpu_work": is_empty,
        "host_bound": record.get("method", WALL) != WALL and not is_empty and host_binds,
        "waits_inside": record.get("waits_inside"),
        "side_stream": record.get("side_stream"),
        "persisting_l2": record.get("lines_reset"),
        "too_few_samples": "interval95_ms" not in record,
        "throttled": any(state.slowed_by for state in states),
        "operations_vary": record.get("operations_vary"),
        "contradictory": any(one.busy_ns is not None and one.busy_ns > one.span_ns for one in samples),
        "other_processes": any(state.other_processes for state in states),
    }
    return [name for name in FLAGS if result.get(name)]
