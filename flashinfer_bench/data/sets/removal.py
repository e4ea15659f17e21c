"""Removes solutions and traces from the files of a set. Other processes may append traces meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flashinfer_bench.base.files.writing import open_folder
from flashinfer_bench.data.generated import is_generated
from flashinfer_bench.data.issue import Location
from flashinfer_bench.data.measurement import read_reported
from flashinfer_bench.data.store.jsonl import remove_lines
from flashinfer_bench.data.store.layout import TRACES, find_files
from flashinfer_bench.data.store.parse import parse_line
from flashinfer_bench.data.store.trace_lines import AnyTrace, read_trace_line
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.errors import DataSetError


def remove_traces(trace_set: TraceSet, is_unwanted: Callable[[AnyTrace], bool]) -> dict[Path, int]:
    """Remove traces from the files of all roots; return changed file → number of removed traces.

    Lines that cannot be read stay.

    Raises:
        Fault: a file cannot be read or written.
    """
    found = {}
    for root in trace_set.roots:
        for file in find_files(root / TRACES, (".jsonl",), lambda *_: None):
            location = Location(file)

            def is_unwanted_line(line: bytes, location: Location = location) -> bool:
                trace = read_trace_line(line) or parse_line(Trace, line, location, [])
                return trace is not None and is_unwanted(trace)

            found[file] = remove_lines(file, is_unwanted_line, root=root)
    return {file: number for file, number in found.items() if number}


def remove_solution(trace_set: TraceSet, name: str) -> Path | None:
    """Remove the file of a solution, and return the file's path; None if the set has no such solution.

    Raises:
        DataSetError: the file has more than one solution, or cannot be removed.
    """
    file = trace_set.solution_files.get(name)
    if file is None:
        return None
    if list(trace_set.solution_files.values()).count(file) > 1:
        raise DataSetError(f"{file} has other solutions, too; remove {name!r} there")
    try:
        with open_folder(file.parent, trace_set.root_of(file), makes=False) as folder:
            folder.remove(file.name)
    except OSError as error:
        raise DataSetError(f"{file} cannot be removed: {error.strerror}") from error
    return file


def find_orphans(trace_set: TraceSet) -> Callable[[AnyTrace], bool]:
    """Return a function that returns whether the set lacks a trace's definition, workload or solution.

    The set may lack solutions from a server, and workloads that were made from the user's sizes.
    """
    solutions = {(item.definition, item.name) for item in trace_set.all_solutions()}
    workloads = {(name, line.workload.uuid) for name, lines in trace_set.workloads.items() for line in lines}

    def is_orphan(trace: AnyTrace) -> bool:
        name = trace.definition
        has_workload = (name, trace.workload.uuid) in workloads or is_generated(trace)
        is_placed = name in trace_set.definitions and has_workload
        return not (is_placed and ((name, trace.solution) in solutions or is_served(trace)))

    return is_orphan


def is_served(trace: AnyTrace) -> bool:
    """Return whether a server judged the trace's solution. The server's task then has the sources."""
    return trace.evaluation is not None and bool(read_reported(trace.evaluation).run.task)
