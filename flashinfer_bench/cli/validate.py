"""`validate`: shows everything that is wrong with a trace set."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import Any

from flashinfer_bench.cli.given.blob_issues import find_blob_issues
from flashinfer_bench.cli.given.sets import (
    describe_issues,
    find_entry_issues,
    find_tolerance_issues,
    has_nothing,
    load_trace_set,
)
from flashinfer_bench.cli.parser import Parser
from flashinfer_bench.cli.screen.output import write_out
from flashinfer_bench.cli.screen.tables import count
from flashinfer_bench.cli.shared_flags import PROGRAM, add_format, add_local
from flashinfer_bench.data import LoadIssue, TraceSet
from flashinfer_bench.errors import Misuse


def declare_validate(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Show every error and warning of a trace set: file, line, field, reason.\n"
        "Errors: exit code 2; warnings alone: 0.",
        example=f"{PROGRAM} validate --local flashinfer-trace",
        execute=execute,
    )
    add_local(parser)
    add_format(parser)


def execute(args: argparse.Namespace) -> int:
    """Print all errors and warnings; return 2 if there are errors."""
    trace_set = load_trace_set(args)
    for find_issues in (find_tolerance_issues, find_entry_issues, find_blob_issues):
        trace_set.issues += find_issues(trace_set)
    if has_nothing(trace_set):
        trace_set.issues = [_as_error(issue) for issue in trace_set.issues]
    errors = sum(issue.severity == "error" for issue in trace_set.issues)
    if args.format == "json":
        write_out(json.dumps(_document(trace_set), indent=2) + "\n")
    else:
        lines = describe_issues(trace_set.issues, shown_warnings=len(trace_set.issues))
        write_out("".join(f"{line}\n" for line in [*lines, _count(trace_set, errors)]))
    return Misuse.exit_code if errors else 0


def _as_error(issue: LoadIssue) -> LoadIssue:
    """Turn the warning that a root has no definitions into an error: all roots are empty."""
    return replace(issue, severity="error") if issue.missing_definition == "" else issue


def _count(trace_set: TraceSet, errors: int) -> str:
    there = [
        count(len(trace_set.definitions), "definition"),
        count(sum(map(len, trace_set.solutions.values())), "solution"),
        count(sum(map(len, trace_set.workloads.values())), "workload"),
        count(sum(map(len, trace_set.traces.values())), "trace"),
    ]
    wrong = f"{count(errors, 'error')}, {count(len(trace_set.issues) - errors, 'warning')}"
    return f"{', '.join(there)}: {wrong}"


def _document(trace_set: TraceSet) -> dict[str, Any]:
    return {
        "roots": [str(root) for root in trace_set.roots],
        "definitions": len(trace_set.definitions),
        "issues": [_issue(issue) for issue in trace_set.issues],
    }


def _issue(issue: LoadIssue) -> dict[str, Any]:
    place = {"file": str(issue.file), "line": issue.line, "field": issue.field}
    return {"severity": issue.severity, **place, "reason": issue.reason}
