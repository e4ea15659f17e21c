"""The best of some traces: which passed, which are within error bounds, and which is the fastest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from flashinfer_bench.data.evaluation import as_time
from flashinfer_bench.data.measurement import read_measurement
from flashinfer_bench.data.store.trace_lines import AnyTrace


def passed_of(traces: Iterable[AnyTrace]) -> list[AnyTrace]:
    """Return the traces that passed, without quick looks, which nothing is chosen by."""
    return [trace for trace in traces if trace.is_successful() and not is_quick(trace)]


def find_best(
    traces: Iterable[AnyTrace], axes: Mapping[str, int], atol: float | None, rtol: float | None
) -> AnyTrace | None:
    """Return the passing trace with the highest speed-up, confirmed ones first; None when there is none.

    Args:
        traces: the latest ones of a definition.
        axes: only workloads with these sizes.
        atol, rtol: bounds on the largest errors; None for no bound.
    """
    fitting = [
        trace
        for trace in passed_of(traces)
        if trace.evaluation is not None and trace.evaluation.may_be_best
        if axes.items() <= trace.workload.axes.items() and is_within(trace, atol, rtol) and time_of(trace) is not None
    ]
    return max(fitting, key=rank, default=None)


def is_quick(trace: AnyTrace) -> bool:
    """Tell whether a trace is of a quick look."""
    return trace.evaluation is not None and trace.evaluation.is_quick


def is_within(trace: AnyTrace, atol: float | None, rtol: float | None) -> bool:
    """Tell whether the largest errors of a trace are known, and within bounds."""
    correctness = trace.evaluation.correctness if trace.evaluation else None
    return correctness is not None and (
        (atol is None or correctness.max_absolute_error <= atol)
        and (rtol is None or correctness.max_relative_error <= rtol)
    )


def time_of(trace: AnyTrace) -> float | None:
    """Return the latency of a trace in ms; None where it has none, or one that no call has."""
    performance = trace.evaluation.performance if trace.evaluation else None
    return as_time(performance.latency_ms) if performance else None


def rank(trace: AnyTrace) -> tuple[bool, float, float]:
    """Return what orders traces: whether it is confirmed, the speed-up, then the lower latency."""
    performance, latency = trace.evaluation.performance if trace.evaluation else None, time_of(trace)
    if performance is None or latency is None:
        return (False, 0.0, -math.inf)
    is_confirmed = trace.evaluation is not None and read_measurement(trace.evaluation).is_full
    speedup = performance.speedup_factor if math.isfinite(performance.speedup_factor) else 0.0
    return (is_confirmed, speedup, -latency)
