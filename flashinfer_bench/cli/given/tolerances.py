"""Tells what sets and workloads say of how they are judged, and what is wrong with it. It needs the configuration."""

from __future__ import annotations

from collections.abc import Iterator

from flashinfer_bench.bench.tolerances import SetTolerances, find_tolerances, own_tolerance, read_own_tolerances
from flashinfer_bench.cli.render import count
from flashinfer_bench.data import LoadIssue, TraceSet
from flashinfer_bench.data.store.layout import TOLERANCES_FILE, definition_names
from flashinfer_bench.errors import ConfigError


def describe_tolerances(trace_set: TraceSet) -> list[str]:
    """Return a line for each root with a tolerances file, and one for each unknown name in such a file.

    Raises:
        ConfigError: a file cannot be used.
    """
    lines = []
    for found in find_tolerances(trace_set):
        judged = "is judged" if len(found.sections) == 1 else "are judged"
        if found.sections:
            lines.append(f"note: {found.file} says how {count(len(found.sections), 'definition')} {judged}")
        lines += [
            f"warning: {found.file}: {name}: {_describe_foreign(name, trace_set)}"
            for name in _list_foreign(found, trace_set)
        ]
    return [*lines, *_describe_workload_tolerances(trace_set)]


def _describe_workload_tolerances(trace_set: TraceSet) -> Iterator[str]:
    """Yield how many workloads say how they are judged, and of how many others this does not count."""
    own, foreign = 0, 0
    for name, lines in trace_set.workloads.items():
        for workload in (line.workload for line in lines if line.workload.tolerance is not None):
            counts = own_tolerance(trace_set, name, workload) is not None
            own, foreign = own + counts, foreign + (not counts)
    if own:
        verb = "states its" if own == 1 else "state their"
        yield f"note: {count(own, 'workload')} {verb} own tolerance (config show --definition NAME)"
    if foreign:
        verb = "is" if foreign == 1 else "are"
        why = "not of the set that has its definition, so its tolerance does not count"
        yield f"warning: {count(foreign, 'workload')} with a tolerance {verb} {why}"


def find_tolerance_issues(trace_set: TraceSet) -> list[LoadIssue]:
    """Return the problems of the tolerances files of the roots."""
    issues = []
    for root in trace_set.roots:
        file = root / TOLERANCES_FILE
        try:
            found = read_own_tolerances(root, trace_set)
        except ConfigError as error:
            reasons = [line.removeprefix(f"{file}: ") for line in str(error).splitlines()]
            issues += [LoadIssue("error", file, None, None, reason) for reason in reasons]
            continue
        foreign = _list_foreign(found, trace_set)
        issues += [LoadIssue("warning", file, None, name, _describe_foreign(name, trace_set)) for name in foreign]
    return issues


def _list_foreign(found: SetTolerances, trace_set: TraceSet) -> list[str]:
    """Return the names of a file that its set does not have, but for definitions whose own files are broken."""
    broken = definition_names(found.file.parent, (one.file for one in trace_set.issues if one.severity == "error"))
    return [name for name in found.unknown if name not in broken]


def _describe_foreign(name: str, trace_set: TraceSet) -> str:
    hint = "; what a set says counts for its own definitions only" if name in trace_set.definitions else ""
    return f"this set has no such definition{hint}"
