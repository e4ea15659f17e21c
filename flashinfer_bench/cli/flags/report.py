"""The flags and the help of `report` and its sub-commands."""

from __future__ import annotations

from typing import Final

from flashinfer_bench.cli.flags.engine_words import EXPORT_FORMATS, GROUP_KEYS, THRESHOLD
from flashinfer_bench.cli.parser import NameList, Parser, share
from flashinfer_bench.cli.parser import PROGRAM, add_filters, add_format, add_local, add_names

ROWS: Final = ("workload", "definition")
MERITS: Final = ("latency", "speedup")
BY_HELP = "one row for each (default: %(default)s)"
CHANGE_MARK: Final = ">"
"""Marks an epoch whose times differ from those before."""


def declare_report(parser: Parser) -> None:
    """Add the help and the sub-commands."""
    parser.describe("Make tables of traces.", example=f"{PROGRAM} report best --local flashinfer-trace")
    commands = parser.add_commands()
    summary = commands.add_parser("summary", help="one row a solution")
    summary.describe(
        "One row a solution: workloads passed, latency, speed-up, and why it failed where it failed.",
        example=f"{PROGRAM} report summary --local flashinfer-trace --op-types gemm",
        execute="report:execute_summary",
    )
    best = commands.add_parser("best", help="the best passing solutions")
    best.describe(
        "The fastest passing solution of each workload, with those whose interval meets its own (ties); or each\n"
        "definition's best solution. --by takes what is ranked, by what, or both.",
        example=f"{PROGRAM} report best --local flashinfer-trace --by definition",
        execute="report:execute_best",
    )
    summary.add_argument("--by", choices=("solution", *GROUP_KEYS), default="solution", help=BY_HELP)
    text = (
        "one row for each workload, definition, author, op_type or hardware; the first two ranked by latency or speedup"
    )
    text += " (default: workload latency)"
    best.add_argument("--by", nargs="+", choices=(*ROWS, *GROUP_KEYS, *MERITS), default=[], metavar="WORD", help=text)
    summary.add_argument(
        "--baseline-author", metavar="AUTHOR", help="with --by author: rank against this one (default: the reference)"
    )
    visualize = commands.add_parser("visualize", help="both tables")
    visualize.describe(
        "How many verdicts are there and how many passed; then the tables of `report summary` and `report best`.",
        example=f"{PROGRAM} report visualize --local flashinfer-trace",
        execute="report:execute_visualize",
    )
    for command in (summary, best, visualize):
        add_local(command)
        add_filters(command)
        add_names(command, "--workloads", "only these workloads: uuids, or beginnings of uuids")
        add_format(command)
    declare_history(commands.add_parser("history", help="times of a definition from run to run"))
    declare_diff(commands.add_parser("diff", help="what changed from one set to another"))
    declare_html(commands.add_parser("html", help="pages that work from disk"))
    declare_export(commands.add_parser("export", help="one row a trace, for other programs"))
    merge = commands.add_parser("merge", help="several sets in one")
    merge.describe(
        "Write several trace sets as one, into a new folder. What is the same in two is written once; where they\n"
        "contradict each other, nothing is written. Exit codes: 0 all well, 1 files or blobs are missing, 2 misuse.",
        example=f"{PROGRAM} report merge --local flashinfer-trace --local flashinfer-trace/wrong --output merged",
        execute="reports.merge:execute_merge",
    )
    add_local(merge)
    merge.add_argument("--output", metavar="DIR", required=True, help="the folder to write: a new or an empty one")


def declare_history(parser: Parser) -> None:
    """Add the help and the flags of `report history`."""
    parser.describe(
        "Show the times of a definition's solutions from run to run. A row has one version of sources and libraries;\n"
        f"{CHANGE_MARK} marks a change of the latency, so that the effect of a new driver shows.",
        example=f"{PROGRAM} report history --definition rmsnorm_h4096 --local flashinfer-trace",
        execute="reports.changes:execute_history",
    )
    parser.add_argument("--definition", "--definitions", metavar="NAME", required=True, help="the definition")
    parser.add_argument(
        "--solutions", "--solution", nargs="+", action=NameList, metavar="NAME", help="only these solutions"
    )
    _add_threshold(parser)
    add_local(parser)
    add_format(parser)


def declare_diff(parser: Parser) -> None:
    """Add the help and the flags of `report diff`."""
    parser.describe(
        "Show which verdicts and times changed from one set of traces to another, with a decision for each: faster,\n"
        "slower, same, or cannot tell. Jobs are the same by definition, solution, workload and hardware.",
        example=f"{PROGRAM} report diff flashinfer-trace flashinfer-trace",
        execute="reports.changes:execute_diff",
    )
    parser.add_argument("old", metavar="OLD", help="the folder of a trace set")
    parser.add_argument("new", metavar="NEW", help="the folder of another, or of the same")
    parser.add_argument("--all", action="store_true", help="list jobs that did not change, too")
    _add_threshold(parser)
    add_format(parser)


def _add_threshold(parser: Parser) -> None:
    text = "the smallest difference of interest: 2%% or 0.02 (default: 2%%)"
    parser.add_argument("--threshold", type=share, metavar="X", default=THRESHOLD, help=text)


def declare_html(parser: Parser) -> None:
    """Add the help and the flags of `report html`."""
    parser.describe(
        "Write the verdicts of a set as pages: overview, leaderboard, a page for each definition and solution, any\n"
        "two solutions compared. Open DIR/index.html from disk: no network and no server are used (docs/report.md).\n"
        "Exit codes: 0 written, 1 a file cannot be written, 2 misuse.",
        example=f"{PROGRAM} report html pages --local flashinfer-trace",
        execute="reports.html:execute_html",
    )
    parser.add_argument("folder", metavar="DIR", help="a new or an empty folder, or one with such pages")
    parser.add_argument("--title", help="what the pages are called (default: the name of the set's folder)")
    parser.add_argument(
        "--baseline-author", metavar="AUTHOR", help="rank authors against this one (default: against the reference)"
    )
    add_local(parser)
    add_filters(parser)


def declare_export(parser: Parser) -> None:
    """Add the help and the flags of `report export`."""
    parser.describe(
        "Write one row a trace, with flat columns whose names have units (docs/export.md lists them). A folder gets a\n"
        "file traces.csv, traces.jsonl or traces.parquet; - is stdout. Parquet needs the extra `export`.\n"
        "Exit codes: 0 written, 1 the file cannot be written, 2 misuse.",
        example=f"{PROGRAM} report export traces.csv --local flashinfer-trace",
        execute="reports.export:execute_export",
    )
    parser.add_argument("target", metavar="DIR_OR_FILE", help="the file or the folder to write to, or - for stdout")
    form = "default: by the ending of the file, else csv"
    parser.add_argument("--format", choices=EXPORT_FORMATS, help=form)
    add_local(parser)
    add_filters(parser)
