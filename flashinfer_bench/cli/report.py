"""`report summary`, `best`, `visualize`: tables of the traces that a set holds."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from flashinfer_bench.cli.args import choose_traces, open_trace_set
from flashinfer_bench.cli.parser import PROGRAM, NameList, Parser, add_filters, add_format, add_local, add_names, share
from flashinfer_bench.cli.render import count
from flashinfer_bench.cli.reports.changes import CHANGE_MARK
from flashinfer_bench.cli.reports.ranks import show_best_groups, show_groups
from flashinfer_bench.cli.reports.show import show_rows
from flashinfer_bench.cli.verdicts import head_of, render_best, render_summary
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.errors import Misuse
from flashinfer_bench.report.best import best_by_definition, best_by_workload
from flashinfer_bench.report.decision import THRESHOLD
from flashinfer_bench.report.export import EXPORT_FORMATS
from flashinfer_bench.report.ranking import GROUP_KEYS
from flashinfer_bench.report.summary import SummaryRow, count_statuses, summarise

ROWS: Final = ("workload", "definition")
MERITS: Final = ("latency", "speedup")
BY_HELP = "one row for each (default: %(default)s)"
NO_TRACES = "note: there are no traces to report; `flashinfer-bench run` makes them"

NONE_PASSED = (
    "note: there is no job whose latest verdict is PASSED; quick looks do not count, and "
    "`flashinfer-bench report summary` says why the others failed"
)


def declare_report(parser: Parser) -> None:
    """Add the help and the sub-commands."""
    parser.describe("Make tables of traces.", example=f"{PROGRAM} report best --local flashinfer-trace")
    commands = parser.add_commands()
    summary = commands.add_parser("summary", help="one row a solution")
    summary.describe(
        "One row a solution: workloads passed, latency, speed-up, and why it failed where it failed.",
        example=f"{PROGRAM} report summary --local flashinfer-trace --op-types gemm",
        execute=execute_summary,
    )
    best = commands.add_parser("best", help="the best passing solutions")
    best.describe(
        "The fastest passing solution of each workload, with those whose interval meets its own (ties); or each\n"
        "definition's best solution. --by takes what is ranked, by what, or both.",
        example=f"{PROGRAM} report best --local flashinfer-trace --by definition",
        execute=execute_best,
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
        execute=execute_visualize,
    )
    for command in (summary, best, visualize):
        add_local(command)
        add_filters(command)
        add_names(command, "--workloads")
        add_format(command)
    _declare_history(commands.add_parser("history", help="times of a definition from run to run"))
    _declare_diff(commands.add_parser("diff", help="what changed from one set to another"))
    _declare_html(commands.add_parser("html", help="pages that work from disk"))
    _declare_export(commands.add_parser("export", help="one row a trace, for other programs"))
    merge = commands.add_parser("merge", help="several sets in one")
    merge.describe(
        "Write several trace sets as one, into a new folder. What is the same in two is written once; where they\n"
        "contradict each other, nothing is written. Exit codes: 0 all well, 1 files or blobs are missing, 2 misuse.",
        example=f"{PROGRAM} report merge --local flashinfer-trace --local flashinfer-trace/wrong --output merged",
        execute="reports.merge:execute_merge",
    )
    add_local(merge)
    merge.add_argument("--output", metavar="DIR", required=True, help="the folder to write: a new or an empty one")


def _declare_history(parser: Parser) -> None:
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


def _declare_diff(parser: Parser) -> None:
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


def _declare_html(parser: Parser) -> None:
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


def _declare_export(parser: Parser) -> None:
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


def execute_summary(args: argparse.Namespace) -> int:
    """Print one row a solution that has traces."""
    if args.baseline_author is not None and args.by != "author":
        raise Misuse("--baseline-author needs --by author")
    trace_set = open_trace_set(args)
    traces = choose_traces(trace_set, args)
    if args.by in GROUP_KEYS:
        return show_groups(args, trace_set, traces)
    rows = _summarise(trace_set, traces)
    return show_rows(args, rows, partial(_render, render_summary, rows), NO_TRACES)


def execute_best(args: argparse.Namespace) -> int:
    """Print the best passing solution of each workload or definition."""
    trace_set = open_trace_set(args)
    traces = choose_traces(trace_set, args)
    groups = [word for word in args.by if word in GROUP_KEYS]
    if groups:
        if len(args.by) > 1:
            raise Misuse(f"--by {groups[0]}: no other word goes with it")
        args.by = groups[0]
        return show_best_groups(args, trace_set, traces)
    nothing = NONE_PASSED if traces else NO_TRACES
    if "definition" in args.by:
        solutions = best_by_definition(traces, "latency" if "latency" in args.by else "speedup")
        return show_rows(args, solutions, partial(_render, render_summary, solutions), nothing)
    rows = best_by_workload(traces, "speedup" if "speedup" in args.by else "latency", trace_set)
    return show_rows(args, rows, partial(_render, render_best, rows), nothing)


def execute_visualize(args: argparse.Namespace) -> int:
    """Print the counts of verdicts, one row a solution, and the best solution of each workload."""
    trace_set = open_trace_set(args)
    traces = choose_traces(trace_set, args)
    rows, best, statuses = (
        _summarise(trace_set, traces),
        best_by_workload(traces, trace_set=trace_set),
        count_statuses(traces),
    )

    def render(width: int) -> str:
        told = ", ".join(f"{number} {status}" for status, number in statuses.items())
        tables = _render(render_summary, rows, width) + (f"\n{render_best(best, width)}" if best else "")
        return f"{count(sum(statuses.values()), 'verdict')}: {told}\n\n{tables}"

    return show_rows(args, rows, render, NO_TRACES, counts=statuses, best=list(map(asdict, best)))


def _summarise(trace_set: TraceSet, traces: Sequence[AnyTrace]) -> list[SummaryRow]:
    pairs = {(trace.definition, trace.solution or "") for trace in traces if trace.evaluation is not None}
    uuids = {name: [trace.workload.uuid for trace in trace_set.workloads.get(name, [])] for name, _ in pairs}
    return summarise(traces, {pair: uuids[pair[0]] for pair in pairs})


def _render(table: Callable[[Sequence[Any], int], str], rows: Sequence[Any], width: int) -> str:
    return head_of(row.standing for row in rows) + table(rows, width)
