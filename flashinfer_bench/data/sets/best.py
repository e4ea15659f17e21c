"""The best of some traces: which passed, which are within error bounds, and which is the fastest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from flashinfer_bench.data.evaluation import as_time
from flashinfer_bench.data.measurement import read_measurement
from flashinfer_bench.data.store.trace_lines import AnyTrace


def passed_of(traces: Iterable[AnyTrace]) -> list[AnyTrace]:
    """Return the traces that passed, without quick looks, which nothing is chosen by."""
    return [trace for trace in traces if trace.is_successful() and trace.evaluation and not trace.evaluation.is_quick]


def is_within(trace: AnyTrace, atol: float | None, rtol: float | None) -> bool:
    """Tell whether the largest errors of a trace are known, and within bounds."""
    correctness = trace.evaluation.correctness if trace.evaluation else None
    return correctness is not None and (
        (atol is None or correctness.max_absolute_error <= atol)
        and (rtol is None or correctness.max_relative_error <= rtol)
    )


def find_best(
    traces: Iterable[AnyTrace], axes: Mapping[str, int], atol: float | None, rtol: float | None
) -> AnyTrace | None:
    """Return the passing trace with the highest speed-up, confirmed ones first; None when there is none.

    Args:
        traces: the latest ones of a definition.
        axes: only workloads with these sizes.
        atol, rtol: bounds on the largest errors; None for no bound.
    """
    ranked: list[tuple[tuple[bool, float, float], AnyTrace]] = []
    for trace in passed_of(traces):
        evaluation, performance = trace.evaluation, trace.evaluation.performance if trace.evaluation else None
        latency = as_time(performance.latency_ms) if performance is not None else None
        if evaluation is None or performance is None or latency is None or not evaluation.may_be_best:
            continue
        if axes.items() <= trace.workload.axes.items() and is_within(trace, atol, rtol):
            speedup = performance.speedup_factor if math.isfinite(performance.speedup_factor) else 0.0
            ranked.append(((read_measurement(evaluation).is_full, speedup, -latency), trace))
    return max(ranked, key=lambda item: item[0])[1] if ranked else None
