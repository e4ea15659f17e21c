"""What is looked at, from what somebody names: objects, names in a trace set, or JSON files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from flashinfer_bench.data import Definition, Solution, Trace, TraceSet, Workload, load_json_file
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.errors import DataSetError
from flashinfer_bench.examine.inspect.start import InspectSubject

LEAST_PREFIX: Final = 4
"""The beginning of a uuid stands for it from so many characters on."""
SHOWN: Final = 8


def resolve_subject(
    trace_set: TraceSet, solution: Solution | Path | str, workload: Workload | Path | str, definition: str | None = None
) -> InspectSubject:
    """Return what is looked at.

    Args:
        trace_set: has the definition, and what is named.
        solution: a name, or a JSON file.
        workload: a uuid or a unique beginning of one, or a JSON file with a workload or a workload's line.
        definition: its name; None for the one that the solution is of.

    Raises:
        DataSetError: something of it is not there, or does not fit, or inputs would be made by code of another set than
            the first.
    """
    found = solution if isinstance(solution, Solution) else find_solution(trace_set, solution, definition)
    name = definition or found.definition
    if name != found.definition:
        raise DataSetError(f"{found.name} is a solution of {found.definition}, not of {name}")
    if name not in trace_set.definitions:
        raise DataSetError(f"the trace set has no definition {name!r}{did_you_mean(name, trace_set.definitions)}")
    chosen = workload if isinstance(workload, Workload) else find_workload(trace_set, name, workload)
    if chosen.has_custom_inputs and not trace_set.is_of_first_root(name, chosen.uuid):
        raise DataSetError(
            f"the code that makes inputs of {name} is not the first set's own; name the set that has it first"
        )
    root = trace_set.blob_root(name, chosen.uuid) or trace_set.root or Path.cwd()
    return InspectSubject(trace_set.definitions[name], found, chosen, root, trace_set)


def find_solution(trace_set: TraceSet, named: Path | str, definition: str | None) -> Solution:
    """Return the solution of that name, or the one in that file."""
    if is_file(named):
        return load_json_file(Solution, named)
    there = [item for group in trace_set.solutions.values() for item in group]
    fitting = [item for item in there if item.name == named and definition in (None, item.definition)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise DataSetError(f"several definitions have a solution {named!r}; name one of them")
    names = [item.name for item in there if definition in (None, item.definition)]
    raise DataSetError(f"the trace set has no solution {str(named)!r}{did_you_mean(str(named), names)}")


def find_workload(trace_set: TraceSet, definition: str, named: Path | str) -> Workload:
    """Return the definition's workload of that uuid, or the one in that file."""
    if is_file(named):
        return read_workload(Path(named), trace_set.definitions[definition])
    there = [trace.workload for trace in trace_set.workloads.get(definition, [])]
    text = str(named)
    equal = [one for one in there if one.uuid == text]
    fitting = equal or [one for one in there if len(text) >= LEAST_PREFIX and one.uuid.startswith(text)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise DataSetError(f"several workloads of {definition} begin with {text!r}; give more of the uuid")
    uuids = [one.uuid for one in there]
    shown = ", ".join(uuids[:SHOWN]) + (", …" if len(uuids) > SHOWN else "")
    raise DataSetError(f"{definition} has no workload {text!r}; it has: {shown or 'none'}")


def read_workload(file: Path, definition: Definition) -> Workload:
    """Read a workload, alone or in a workload's line."""
    try:
        return load_json_file(Workload, file)
    except DataSetError as error:
        try:
            trace = load_json_file(Trace, file)
        except DataSetError:
            raise error from None
    if trace.definition != definition.name:
        raise DataSetError(f"{file} holds a workload of {trace.definition}, not of {definition.name}")
    return trace.workload


def is_file(named: Path | str) -> bool:
    """Tell whether a file is meant, and no name."""
    return isinstance(named, Path) or named.endswith((".json", ".jsonl"))
