"""Puts trace sets together: what is the same in two counts once, what contradicts is refused or left out.

Also reads the recorded traces of a set again, since other processes may have added some.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flashinfer_bench.data.check import check_workload
from flashinfer_bench.data.issue import LoadIssue
from flashinfer_bench.data.solution import Solution
from flashinfer_bench.data.store.layout import WORKLOADS
from flashinfer_bench.data.store.trace_lines import AnyTrace, TraceList, kept_of
from flashinfer_bench.errors import DataSetError

if TYPE_CHECKING:
    from flashinfer_bench.data.trace_set import TraceSet

IN_MEMORY = "a set in memory"


def merge_into(merged: TraceSet, parts: Sequence[TraceSet]) -> None:
    """Put sets into an empty set.

    Raises:
        DataSetError: two sets have different definitions or different solutions of one name.
    """
    solutions: dict[str, Solution] = {}
    clashes = []
    for part in parts:
        for name, definition in part.definitions.items():
            if merged.definitions.setdefault(name, definition).digest() != definition.digest():
                clashes.append(_clash("definition", name, merged.definition_files, part.definition_files))
        for solution in (item for group in part.solutions.values() for item in group):
            name, root = solution.name, part.solution_root(solution.name)
            if name not in solutions:
                merged.solutions.setdefault(solution.definition, []).append(solution)
                if root is not None and root != merged.root:
                    merged.solution_roots[name] = root
            if solutions.setdefault(name, solution).digest() != solution.digest():
                clashes.append(_clash("solution", name, merged.solution_files, part.solution_files))
        merged.definition_files = {**part.definition_files, **merged.definition_files}
        merged.solution_files = {**part.solution_files, **merged.solution_files}
    if clashes:
        raise DataSetError("the trace sets contradict each other:\n  " + "\n  ".join(clashes))
    for part in parts:
        fresh = [issue for issue in part.issues if issue not in merged.issues]
        merged.issues += [issue for issue in fresh if not _is_settled(issue, merged)]
        _merge_workloads(merged, part)
        for name, traces in part.traces.items():
            merged.traces.setdefault(name, TraceList()).extend(TraceList(kept_of(traces)))


def _clash(what: str, name: str, *files: Mapping[str, Path]) -> str:
    return f"{what} {name!r} differs between {' and '.join(str(one.get(name, IN_MEMORY)) for one in files)}"


def _merge_workloads(merged: TraceSet, part: TraceSet) -> None:
    """Put the workloads of a part into the merged set; what does not fit becomes an issue."""
    for name, workloads in part.workloads.items():
        known = {trace.workload.uuid: trace.workload for trace in merged.workloads.get(name, [])}
        newly_found = merged.definitions[name] if name not in part.definitions and name in merged.definitions else None
        for trace in workloads:
            workload, root = trace.workload, part.blob_root(name, trace.workload.uuid)
            same, reasons = known.get(workload.uuid), list[str]()
            if same is not None and same.digest() != workload.digest():
                reasons = ["its uuid belongs to another workload in another set; this one is left out"]
            elif same is None and newly_found is not None:
                reasons = [f"{'.'.join(steps)}: {reason}" for steps, reason in check_workload(newly_found, workload)]
            file = (root or Path()) / WORKLOADS
            owner = f"workload {workload.uuid} of {name}"
            merged.issues += [LoadIssue("error", file, None, None, f"{owner}: {reason}") for reason in reasons]
            if same is None and not reasons:
                merged.workloads.setdefault(name, []).append(trace)
                if root is not None and root != merged.root:
                    merged.blob_roots[name, workload.uuid] = root


def _is_settled(issue: LoadIssue, merged: TraceSet) -> bool:
    """Tell whether an issue was that a definition is missing which the merged set has."""
    if issue.missing_definition == "":
        return bool(merged.definitions)
    return issue.missing_definition in merged.definitions


def reread_traces(trace_set: TraceSet) -> None:
    """Put the traces on disk in the place of those in memory; traces that are in memory alone stay."""
    fresh: dict[str, list[AnyTrace]] = {}
    for root in trace_set.roots:
        try:
            found = type(trace_set).from_path(root)
        except DataSetError:
            continue  # it is gone: what is in memory stays
        for name, traces in found.traces.items():
            fresh.setdefault(name, []).extend(kept_of(traces))
    for name, known in trace_set.traces.items():
        there = {_key(trace) for trace in fresh.get(name, ())}
        fresh.setdefault(name, []).extend(trace for trace in kept_of(known) if _key(trace) not in there)
    trace_set.traces = {name: TraceList(traces) for name, traces in fresh.items()}


def _key(trace: AnyTrace) -> tuple[object, ...]:
    """Tell traces apart: by their times, too, since a job that is judged twice in a second has two traces of it."""
    found = trace.evaluation
    if found is None:
        return trace.solution, trace.workload.uuid
    times = found.performance
    latency = (times.latency_ms, times.reference_latency_ms) if times is not None else ()
    return trace.solution, trace.workload.uuid, found.timestamp, found.status, found.log, *latency
