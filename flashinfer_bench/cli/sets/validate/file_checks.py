"""The checks that read: layout, definition, workload, solution and trace. No code of the set is run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from flashinfer_bench.bench.evaluators.inputs.constraints import find_broken_by_axes, find_strange_names
from flashinfer_bench.cli.sets.validate.chosen import Chosen
from flashinfer_bench.cli.sets.validate.validation import Check, CheckedIssue
from flashinfer_bench.cli.settings import find_tolerance_issues
from flashinfer_bench.data import LoadIssue, TraceSet
from flashinfer_bench.data.check import find_entry_issues, find_input_issues, find_reference_issues
from flashinfer_bench.data.evaluation import as_time
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.store import layout
from flashinfer_bench.data.store.layout import TOLERANCES_FILE
from flashinfer_bench.data.store.trace_lines import AnyTrace, kept_of

FOLDERS: Final[Mapping[str, Check]] = {
    layout.DEFINITIONS: "definition",
    TOLERANCES_FILE: "definition",
    layout.WORKLOADS: "workload",
    layout.BLOB: "workload",
    layout.SOLUTIONS: "solution",
    layout.TRACES: "trace",
}
"""What lies in the root → the check that tells of it."""
SHOWN_NAMES: Final = 3


def check_files(trace_set: TraceSet, chosen: Chosen, checks: list[Check]) -> list[CheckedIssue]:
    """Return what the checks find in the files of a set, and in what was read from them.

    Args:
        trace_set: all of it, with the issues of loading.
        chosen: the part that is asked for.
        checks: those that are asked for.
    """
    found = [CheckedIssue.of(_check_of(issue, trace_set), issue) for issue in trace_set.issues if chosen.keeps(issue)]
    found += [CheckedIssue.of("definition", issue) for issue in find_tolerance_issues(trace_set) if chosen.keeps(issue)]
    for check, find_issues in _FURTHER.items():
        if check in checks:
            found += [CheckedIssue.of(check, issue) for issue in find_issues(chosen.trace_set)]
    return [issue for issue in found if issue.check in checks]


def _check_of(issue: LoadIssue, trace_set: TraceSet) -> Check:
    """Tell which check an issue of loading belongs to, by where its file lies."""
    if issue.is_about_place:
        return "layout"
    for root in trace_set.roots:
        if issue.file != root and issue.file.is_relative_to(root):
            return FOLDERS.get(issue.file.relative_to(root).parts[0], "layout")
    return "layout"


def find_constraint_issues(trace_set: TraceSet) -> Iterator[LoadIssue]:
    """Yield a warning for each constraint that is never checked, because it has names that the definition lacks."""
    for name, definition in trace_set.definitions.items():
        file = trace_set.definition_files.get(name, trace_set.root or Path())
        for constraint, strange in find_strange_names(definition).items():
            hint = did_you_mean(strange[0], [*definition.axes, *definition.inputs]) if len(strange) == 1 else ""
            told = f"{name}: constraint {constraint!r} is never checked: no axis and no input has the name"
            yield LoadIssue("warning", file, None, "constraints", f"{told} {', '.join(strange)}{hint}")


def find_axis_issues(trace_set: TraceSet) -> Iterator[LoadIssue]:
    """Yield a warning for each workload whose axes break a constraint."""
    for name, lines in trace_set.workloads.items():
        definition = trace_set.definitions.get(name)
        if definition is None:
            continue
        for trace in lines:
            broken = find_broken_by_axes(definition, trace.workload)
            if broken:
                root = trace_set.blob_root(name, trace.workload.uuid) or Path()
                file = layout.workloads_path(root, op_type=definition.op_type, definition=name)
                told = f"workload {trace.workload.uuid} of {name}: constraint {'; '.join(broken.values())}"
                yield LoadIssue("warning", _or_folder(file), None, None, f"{told}: it is judged nevertheless")


def find_trace_issues(trace_set: TraceSet) -> Iterator[LoadIssue]:
    """Yield a warning for each kind of trace that says nothing of what the set holds now, or cannot be right."""
    for name in trace_set.definitions:
        traces = list(kept_of(trace_set.traces.get(name, [])))
        if not traces:
            continue
        solutions = [item.name for item in trace_set.solutions.get(name, [])]
        workloads = {trace.workload.uuid: trace.workload for trace in trace_set.workloads.get(name, [])}
        file = (trace_set.root or Path()) / layout.TRACES
        reasons = [
            *_of_unknown("solution", Counter(trace.solution or "" for trace in traces), solutions),
            *_of_unknown("workload", Counter(trace.workload.uuid for trace in traces), workloads),
        ]
        changed = [
            trace
            for trace in traces
            if trace.workload.uuid in workloads and trace.workload.axes != workloads[trace.workload.uuid].axes
        ]
        if changed:
            reasons.append(f"{_count(changed)} other sizes than the workload of the same uuid has now")
        timeless = [trace for trace in traces if _is_timeless(trace)]
        if timeless:
            names = _some(sorted({trace.solution or "" for trace in timeless}))
            reasons.append(f"{_count(timeless)} PASSED with a latency that no call has, such as 0 or infinity: {names}")
        yield from (LoadIssue("warning", file, None, None, f"{name}: {reason}") for reason in reasons)


def _of_unknown(kind: str, counts: Mapping[str, int], known: Mapping[str, object] | list[str]) -> Iterator[str]:
    unknown = [name for name in counts if name not in known]
    if unknown:
        total = sum(counts[name] for name in unknown)
        hint = did_you_mean(unknown[0], known) if len(unknown) == 1 else ""
        what = f"{kind} {unknown[0]!r}" if len(unknown) == 1 else f"{len(unknown)} {kind}s ({_some(unknown)})"
        yield f"{total} trace{'s' if total != 1 else ''} of {what}, not there for this definition{hint}"


def _or_folder(file: Path) -> Path:
    """Return a file, or the folder that it would lie in where the set names its files otherwise."""
    return file if file.is_file() else file.parent.parent


def _is_timeless(trace: AnyTrace) -> bool:
    performance = trace.evaluation.performance if trace.evaluation is not None else None
    return performance is not None and as_time(performance.latency_ms) is None


def _count(traces: list[AnyTrace]) -> str:
    return f"{len(traces)} traces have" if len(traces) != 1 else "1 trace has"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return f"{', '.join(names[:SHOWN_NAMES])}{more}"


def _find_workload_issues(trace_set: TraceSet) -> list[LoadIssue]:
    jobs = [(name, line.workload) for name, group in trace_set.workloads.items() for line in group]
    return [*find_input_issues(trace_set, jobs), *find_axis_issues(trace_set)]


_FURTHER: Final[Mapping[Check, Callable[[TraceSet], list[LoadIssue]]]] = {
    "definition": lambda trace_set: [
        *find_reference_issues(trace_set, trace_set.definitions.values()),
        *find_constraint_issues(trace_set),
    ],
    "workload": _find_workload_issues,
    "solution": lambda trace_set: list(find_entry_issues(trace_set)),
    "trace": lambda trace_set: list(find_trace_issues(trace_set)),
}
"""Check → what it looks for beside the issues of loading."""
