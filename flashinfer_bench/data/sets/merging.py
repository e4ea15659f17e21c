"""Putting trace sets together: what is the same in two counts once, what contradicts is refused or left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flashinfer_bench.data.issue import LoadIssue
from flashinfer_bench.data.store.checks import check_workload
from flashinfer_bench.data.store.layout import WORKLOADS
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.workload import Workload

if TYPE_CHECKING:
    from flashinfer_bench.data.trace_set import TraceSet


def merge_definitions(merged: TraceSet, part: TraceSet) -> Iterator[str]:
    """Put the definitions of a part into the merged set; yield a line for each that differs."""
    for name, definition in part.definitions.items():
        known = merged.definitions.setdefault(name, definition)
        file = part.definition_files.get(name)
        if file is not None:
            merged.definition_files.setdefault(name, file)
        if known.digest() != definition.digest():
            first = merged.definition_files.get(name, "a set in memory")
            yield f"definition {name!r} differs between {first} and {file or 'a set in memory'}"


def merge_solutions(merged: TraceSet, part: TraceSet) -> Iterator[str]:
    """Put the solutions of a part into the merged set; yield a line for each that differs."""
    known = {item.name: item for group in merged.solutions.values() for item in group}
    for name, group in part.solutions.items():
        for solution in group:
            file = part.solution_files.get(solution.name)
            if solution.name not in known:
                known[solution.name] = solution
                merged.solutions.setdefault(name, []).append(solution)
                if file is not None:
                    merged.solution_files[solution.name] = file
                if (root := part.solution_roots.get(solution.name, part.root)) is not None:
                    merged.solution_roots[solution.name] = root
            elif known[solution.name].digest() != solution.digest():
                first = merged.solution_files.get(solution.name, "a set in memory")
                yield f"solution {solution.name!r} differs between {first} and {file or 'a set in memory'}"


def merge_workloads(merged: TraceSet, part: TraceSet) -> None:
    """Put the workloads of a part into the merged set; what does not fit becomes an issue."""
    for name, workloads in part.workloads.items():
        known = {trace.workload.uuid: trace.workload for trace in merged.workloads.get(name, [])}
        is_new = name in merged.definitions and name not in part.definitions
        for trace in workloads:
            root = part.blob_root(name, trace.workload.uuid)
            reasons = _workload_faults(merged, trace, known.get(trace.workload.uuid), is_checked=not is_new)
            file = (root or Path()) / WORKLOADS
            owner = f"workload {trace.workload.uuid} of {name}"
            merged.issues.extend(LoadIssue("error", file, None, None, f"{owner}: {reason}") for reason in reasons)
            if reasons or trace.workload.uuid in known:
                continue
            merged.workloads.setdefault(name, []).append(trace)
            if root is not None and merged.workload_roots.setdefault(name, root) != root:
                merged.blob_roots[name, trace.workload.uuid] = root


def _workload_faults(merged: TraceSet, trace: Trace, same: Workload | None, *, is_checked: bool) -> list[str]:
    """Say why a workload cannot be merged: its uuid is taken, or a definition that came only now does not fit it."""
    if same is not None and same.digest() != trace.workload.digest():
        return ["its uuid belongs to another workload in another set; this one is left out"]
    if same is not None or is_checked:
        return []
    return [
        f"{'.'.join(place)}: {reason}"
        for place, reason in check_workload(merged.definitions[trace.definition], trace.workload)
    ]


def is_settled(issue: LoadIssue, merged: TraceSet) -> bool:
    """Tell whether an issue was that a definition is missing which the merged set has."""
    if issue.missing_definition is None:
        return False
    return (
        bool(merged.definitions) if issue.missing_definition == "" else issue.missing_definition in merged.definitions
    )
