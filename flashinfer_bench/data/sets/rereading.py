"""Reads the recorded traces of a set again: other processes may have added some since it was loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flashinfer_bench.data.store.read import read_files
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.data.store.trace_list import TraceList, kept_of
from flashinfer_bench.errors import DataSetError

if TYPE_CHECKING:
    from flashinfer_bench.data.trace_set import TraceSet


def reread_traces(trace_set: TraceSet) -> None:
    """Put the traces on disk in the place of those in memory; traces that are in memory alone stay."""
    fresh: dict[str, list[AnyTrace]] = {}
    for root in trace_set.roots:
        for name, traces in _read(root).items():
            fresh.setdefault(name, []).extend(kept_of(traces))
    for name, known in trace_set.traces.items():
        there = {_key(trace) for trace in fresh.get(name, ())}
        fresh.setdefault(name, []).extend(trace for trace in kept_of(known) if _key(trace) not in there)
    trace_set.traces = {name: TraceList.of(traces) for name, traces in fresh.items()}


def _read(root: Path) -> Mapping[str, TraceList]:
    try:
        return read_files(root).traces
    except DataSetError:
        return {}  # it is gone: what is in memory stays


def _key(trace: AnyTrace) -> tuple[object, ...]:
    """Tell traces apart: by their times, too, since a job that is judged twice in a second has two traces of it."""
    found = trace.evaluation
    if found is None:
        return trace.solution, trace.workload.uuid
    times = found.performance
    latency = (times.latency_ms, times.reference_latency_ms) if times is not None else ()
    return trace.solution, trace.workload.uuid, found.timestamp, found.status, found.log, *latency
