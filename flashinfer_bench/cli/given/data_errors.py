"""Finds what is broken in the part of a set that a command was asked for. `run` counts it, and `validate` tells it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.planning.plan import Plan
from flashinfer_bench.cli.given.blob_issues import find_blob_issues
from flashinfer_bench.cli.given.stored_inputs import find_input_issues
from flashinfer_bench.data import Definition, LoadIssue, Trace, TraceSet
from flashinfer_bench.data.definition import normalise_op_type
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.store.layout import DEFINITIONS, SOLUTIONS, TRACES, path_part


@dataclass(frozen=True)
class AskedNames:
    """The filters of a command: names, or None where all are meant."""

    definitions: list[str] | None
    solutions: list[str] | None
    op_types: list[str] | None
    authors: list[str] | None

    @classmethod
    def of(cls, config: BenchmarkConfig) -> AskedNames:
        """Take them from a configuration."""
        return cls(config.definitions, config.solutions, config.op_types, config.authors)


def find_load_errors(trace_set: TraceSet, asked: AskedNames) -> list[LoadIssue]:
    """Return the errors of loading that are about what was asked for. Recorded traces are never asked for."""
    errors = [issue for issue in trace_set.issues if issue.severity == "error"]
    return [issue for issue in errors if _is_asked(issue, trace_set, asked)]


def find_plan_errors(trace_set: TraceSet, plan: Plan) -> list[LoadIssue]:
    """Return what is wrong with the references, the blobs and the stored inputs of a plan's jobs."""
    definitions = {job.definition.name: job.definition for job in plan.jobs}
    lines = {
        (job.definition.name, job.workload.uuid): Trace(definition=job.definition.name, workload=job.workload)
        for job in plan.jobs
    }
    blobs = [issue for issue in find_blob_issues(trace_set, lines.values()) if issue.severity == "error"]
    parameters = (
        issue for issue in find_parameter_issues(trace_set, definitions.values()) if issue.severity == "error"
    )
    return [*parameters, *blobs, *find_input_issues(trace_set, lines.values())]


def take_broken_names(trace_set: TraceSet, asked: AskedNames) -> tuple[AskedNames, list[str]]:
    """Take out of the filters the names whose files are there and cannot be read; return the filters and these."""
    broken = {
        (_parts(issue.file, trace_set)[0], issue.file.stem) for issue in trace_set.issues if issue.severity == "error"
    }
    solutions = [item.name for group in trace_set.solutions.values() for item in group]
    unread: list[str] = []
    kept: list[list[str] | None] = []
    for names, known, folder in (
        (asked.definitions, list(trace_set.definitions), DEFINITIONS),
        (asked.solutions, solutions, SOLUTIONS),
    ):
        lost = [name for name in names or () if name not in known and (folder, path_part(name)) in broken]
        unread += lost
        kept.append(None if names is None else [name for name in names if name not in lost])
    return AskedNames(kept[0], kept[1], asked.op_types, asked.authors), unread


def find_parameter_issues(trace_set: TraceSet, definitions: Iterable[Definition]) -> Iterator[LoadIssue]:
    """Yield a warning for each parameter of a reference that is no input, and an error where no call can work."""
    for definition in definitions:
        name, parameters = definition.name, definition.reference_parameters
        file = trace_set.definition_files.get(name, Path())
        for parameter in parameters or ():
            if parameter not in definition.inputs:
                hint = did_you_mean(parameter, definition.inputs)
                reason = f"parameter {parameter!r} of the reference's run is no input of {name}{hint}"
                yield LoadIssue("warning", file, None, "reference", reason)
        if (why := definition.why_no_call_works) is not None:
            yield LoadIssue("error", file, None, "reference", f"{name}: no call of the reference's run can work: {why}")


def _is_asked(issue: LoadIssue, trace_set: TraceSet, asked: AskedNames) -> bool:
    """Tell whether an issue is about what was asked for, by the path of its file."""
    parts = _parts(issue.file, trace_set)
    if parts[0] == TRACES:
        return False
    filters = (asked.definitions, asked.solutions, asked.op_types, asked.authors)
    if issue.file in trace_set.roots or all(names is None for names in filters):
        return True
    definitions = None if asked.definitions is None else set(map(path_part, asked.definitions))
    if asked.op_types is not None and not {normalise_op_type(one) for one in parts} & {
        normalise_op_type(one) for one in asked.op_types
    }:
        return False
    if definitions is not None and not definitions & set(parts):
        return False
    if parts[0] == SOLUTIONS:
        by_name = asked.solutions is None or parts[-1] in map(path_part, asked.solutions)
        return by_name and (asked.authors is None or bool(set(map(path_part, asked.authors)) & set(parts)))
    if asked.solutions is None or definitions is not None:
        return True
    known = (item for group in trace_set.solutions.values() for item in group)
    theirs = {item.definition for item in known if item.name in asked.solutions}
    return bool(set(map(path_part, theirs)) & set(parts))


def _parts(file: Path, trace_set: TraceSet) -> tuple[str, ...]:
    root = next((root for root in trace_set.roots if file.is_relative_to(root)), None)
    parts = (file if root is None else file.relative_to(root)).with_suffix("").parts if file != root else ()
    return parts or ("",)
