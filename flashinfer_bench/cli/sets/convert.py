"""`convert`: writes a set of another layout or dialect in ours, and says what it could not carry over."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Final

from flashinfer_bench.cli.args import describe_issues, find_output, has_nothing
from flashinfer_bench.cli.output import write_err, write_out
from flashinfer_bench.cli.parser import PROGRAM, Parser, add_format
from flashinfer_bench.cli.render import count
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.store.new_sets import WrittenSet, convert_set
from flashinfer_bench.errors import DataSetError

SHOWN_FILES: Final = 5
"""Files that are passed over are named up to this many."""
INCOMPLETE: Final = 1
"""Exit code where something of the source is not in the output."""


def declare_convert(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Write a trace set in the standard layout: one saved by another engine, a problem's folder, a folder of\n"
        "problems, or definitions dumped from a library. What cannot be carried over is told; nothing in SRC changes.\n"
        "Exit codes: 0 all of it was written, 1 something is missing, 2 misuse.",
        usage="%(prog)s SRC --output DIR [flags]",
        example=f"{PROGRAM} convert problems/ --output my-set",
        execute=execute,
    )
    parser.add_argument("source", metavar="SRC", help="the folder to read")
    parser.add_argument("--output", metavar="DIR", required=True, help="where to write: a folder that is new or empty")
    add_format(parser)


def execute(args: argparse.Namespace) -> int:
    """Read the source, write it, and tell what was written and what was not."""
    root = Path(args.source)
    trace_set = TraceSet.from_path(root)
    for line in describe_issues(trace_set.issues, shown_warnings=len(trace_set.issues)):
        write_err(line)
    if has_nothing(trace_set):
        raise DataSetError(f"{root} holds nothing that can be converted")
    find_output(args.output, args)  # refuses links in a set
    done = convert_set(trace_set, root, Path(args.output))
    for line in _describe_rest(done, errors=sum(issue.severity == "error" for issue in trace_set.issues)):
        write_err(line)
    if args.format == "json":
        write_out(json.dumps(_document(done, trace_set), indent=2) + "\n")
    else:
        write_out(f"{done.output}: {_count(done)}\n")
    return INCOMPLETE if done.lost else 0


def _count(done: WrittenSet) -> str:
    parts = [(done.definitions, "definition"), (done.solutions, "solution"), (done.workloads, "workload")]
    parts += [(done.traces, "trace"), (done.blobs, "blob")]
    return ", ".join(count(number, word) for number, word in parts)


def _describe_rest(done: WrittenSet, errors: int) -> list[str]:
    """Return a line for each blob that is missing, and one for files that are no part of a set."""
    lines = [f"not carried over: {line}" for line in done.lost if not line.startswith("error: ")]
    if errors:
        lines.append(
            f"not carried over: what the {count(errors, 'error')} above {'is' if errors == 1 else 'are'} about"
        )
    if done.passed_over:
        names = ", ".join(str(path) for path in done.passed_over[:SHOWN_FILES])
        more = f" and {len(done.passed_over) - SHOWN_FILES} more" if len(done.passed_over) > SHOWN_FILES else ""
        files = count(len(done.passed_over), "file")
        lines.append(
            f"not carried over: {files} that {'is' if files == '1 file' else 'are'} no part of a set: {names}{more}"
        )
    return lines


def _document(done: WrittenSet, trace_set: TraceSet) -> dict[str, object]:
    return {
        "output": str(done.output),
        "definitions": done.definitions,
        "solutions": done.solutions,
        "workloads": done.workloads,
        "traces": done.traces,
        "blobs": done.blobs,
        "lost": done.lost,
        "passed_over": [str(path) for path in done.passed_over],
        "read_otherwise": [str(issue) for issue in trace_set.issues if issue.severity == "warning"],
    }
