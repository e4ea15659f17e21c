"""Opens the trace sets of a command, tells what is wrong in them, and refuses sets with nothing to work on."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from flashinfer_bench.cli.given.wildcards import expand_wildcards
from flashinfer_bench.cli.screen.output import write_err
from flashinfer_bench.data import LoadIssue, TraceSet
from flashinfer_bench.data.entry import check_entry
from flashinfer_bench.data.names import nearest_name
from flashinfer_bench.data.store.layout import DEFINITIONS, definition_names
from flashinfer_bench.env import DATASET_VARIABLE
from flashinfer_bench.errors import DataSetError, Misuse

SHOWN_WARNINGS: Final = 20


def open_trace_set(args: argparse.Namespace, *, environment: Mapping[str, str] = os.environ) -> TraceSet:
    """Load and merge the sets that the command names, print what is wrong in them, and refuse an empty one."""
    trace_set = load_trace_set(args, environment=environment)
    is_empty = not trace_set.definitions
    errors_only = is_empty or getattr(args, "quiet", False)
    issues = [issue for issue in trace_set.issues if issue.severity == "error" or not errors_only]
    for line in describe_issues(issues):
        write_err(line)
    if is_empty:
        broken = [one.file for one in issues if one.severity == "error"]
        raise DataSetError("\n".join(_describe_empty(root, broken) for root in trace_set.roots))
    return trace_set


def load_trace_set(args: argparse.Namespace, *, environment: Mapping[str, str] = os.environ) -> TraceSet:
    """Load and merge the sets that the command names. The result lists the problems of their files as `issues`."""
    folders = named_folders(args, environment)
    opened = [_try_to_load(folder) for folder in folders]
    loaded = [found for found in opened if isinstance(found, TraceSet)]
    problems = [
        f"{found}{_hint_of_flag(folder, loaded) or _hint_of_folder(folder)}"
        for folder, found in zip(folders, opened, strict=True)
        if isinstance(found, DataSetError)
    ]
    if problems:
        raise DataSetError("\n".join(problems))
    trace_set = loaded[0] if len(loaded) == 1 else TraceSet.merge(loaded)
    expand_wildcards(args, trace_set)
    return trace_set


def _try_to_load(folder: Path) -> TraceSet | DataSetError:
    try:
        return TraceSet.from_path(folder)
    except DataSetError as error:
        return error


def _hint_of_flag(folder: Path, loaded: Sequence[TraceSet]) -> str:
    """Say which flag was forgotten before a word that is no folder, but a name of the sets that are there."""
    word = str(folder)
    if any(word in trace_set.definitions for trace_set in loaded):
        return f"; for the definition of that name: --definitions {word}"
    named = (item.name for trace_set in loaded for group in trace_set.solutions.values() for item in group)
    return f"; for the solution of that name: --solutions {word}" if word in named else ""


def _hint_of_folder(folder: Path) -> str:
    """Return the set beside a folder that is not there, if one has nearly its name."""
    try:
        beside = [item for item in folder.parent.iterdir() if (item / DEFINITIONS).is_dir()]
    except OSError:
        return ""
    near = nearest_name(folder.name, [item.name for item in beside]) if not folder.exists() else None
    return f"; did you mean {str(folder.parent / near)!r}?" if near is not None else ""


def named_folders(args: argparse.Namespace, environment: Mapping[str, str]) -> list[Path]:
    """Return the folders that --local or the environment names, each once."""
    named: list[str] = args.local or [environment.get(DATASET_VARIABLE, "")]
    if not is_set_named(args, environment):
        raise Misuse(f"no trace set: give --local PATH, or set {DATASET_VARIABLE}")
    return list(dict.fromkeys(Path(path) for path in named))


def is_set_named(args: argparse.Namespace, environment: Mapping[str, str]) -> bool:
    """Tell whether the command or the environment names a folder."""
    return bool(args.local or environment.get(DATASET_VARIABLE))


def describe_issues(issues: Sequence[LoadIssue], shown_warnings: int = SHOWN_WARNINGS) -> list[str]:
    """Return a line for each error and for each of the first warnings, then one with the number of other warnings."""
    errors = [issue for issue in issues if issue.severity == "error"]
    warnings = [issue for issue in issues if issue.severity == "warning"]
    lines = _lines([*errors, *islice(warnings, shown_warnings)])
    if len(warnings) > shown_warnings:
        more = len(warnings) - shown_warnings
        lines.append(f"warning: {more} more warnings; `flashinfer-bench validate` shows all of them")
    return lines


def find_entry_issues(trace_set: TraceSet) -> list[LoadIssue]:
    """Return a warning for each entry point whose text shows that it will end in COMPILE_ERROR."""
    issues = []
    for group in trace_set.solutions.values():
        for solution in group:
            file = trace_set.solution_files.get(solution.name)
            if file is None or not solution.get_entry_source().content.strip():
                continue  # the loader has warned of an empty source
            reasons = check_entry(solution, trace_set.definitions.get(solution.definition))
            issues += [LoadIssue("warning", file, None, None, f"{solution.name}: {reason}") for reason in reasons]
    return issues


def has_nothing(trace_set: TraceSet) -> bool:
    """Tell whether a set is empty."""
    return not any((trace_set.definitions, trace_set.solutions, trace_set.workloads, trace_set.traces))


def _describe_empty(root: Path, broken: Iterable[Path]) -> str:
    if definition_names(root, broken):
        return f"{root}: none of its definitions can be used"
    if (root.absolute().parent / DEFINITIONS).is_dir():
        return f"{root}: no definition here; did you mean {root.absolute().parent}?"
    return f"{root}: no definition here; a trace set has {DEFINITIONS}/<op_type>/<definition>.json"


def _lines(issues: Iterable[LoadIssue]) -> list[str]:
    return [" ".join(str(issue).split("\n")) for issue in issues]
