"""`report`: its sub-commands; and `report summary`, `best`, `visualize`: tables of the traces that a set holds."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from flashinfer_bench.cli.args import choose_traces, open_trace_set
from flashinfer_bench.cli.parser import PROGRAM, Parser, add_filters, add_format, add_local
from flashinfer_bench.cli.render import Column, count
from flashinfer_bench.cli.reports.changes import declare_diff, declare_history
from flashinfer_bench.cli.reports.files import add_baseline, declare_export, declare_html, declare_merge
from flashinfer_bench.cli.reports.show import Cells, lay_out, show_rows
from flashinfer_bench.cli.verdicts import head_of, render_best, render_summary, standing_notes
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.sets.results import list_results
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.errors import Misuse
from flashinfer_bench.report.ranking import FAST_P, GROUP_KEYS, count_winners, group_by, rank_by_author
from flashinfer_bench.report.summary import (
    SummaryRow,
    best_by_definition,
    best_by_workload,
    count_statuses,
    summarise,
)
from flashinfer_bench.report.verdict import to_one_line

MERITS: Final = ("workload", "definition", "latency", "speedup")
NO_TRACES = "note: there are no traces to report; `flashinfer-bench run` makes them"
NONE_PASSED = (
    "note: there is no job whose latest verdict is PASSED; quick looks do not count, and "
    "`flashinfer-bench report summary` says why the others failed"
)
NONE_RANKED: Final = "note: there is no whole verdict to rank; quick looks do not count"
SPARED: Final = ("fast_1.5", "fast_2", "fast_1", "Wins", "Roofline")
"""Columns that are left out, one after the other, while a table is too wide; JSON and the pages have all."""
AUTHOR_NOTES: Final = (
    "of fastest: mean over all definitions of the lowest latency of anybody over the author's, 0 for what it did not "
    "pass; no baseline can inflate it, so it ranks",
    "score: mean over definitions of the mean ratio of the best solution, 0 where it failed a workload; speed-up: "
    "geometric mean; fast_p: share of workloads passed with a ratio above p",
)
GROUP_NOTE: Final = (
    "speed-up over the reference: geometric mean of the passed; fast_p: share passed with a speed-up above p"
)
FIGURES: Final[Cells] = {
    **{Column(f"fast_{p:g}", True): f"{{fast_p[{FAST_P.index(p)}]:%}}" for p in (1.0, 1.5, 2.0)},
    Column("Roofline", True): "{roofline_share:%}",
}
SPEEDUP: Final[Cells] = {Column("Speed-up", True): "{speedup:mean}"}
AUTHORS: Final[Cells] = {
    Column("Author"): "{author}",
    Column("Of fastest", True): "{fastest_share:%}{standing:standing}",
    Column("Score", True): "{score:x}",
    **SPEEDUP,
    Column("Wins", True): "{win_rate:%}",
    **FIGURES,
    Column("Passed", True): "{passed}/{workloads}",
}
GROUPS: Final[Cells] = {
    Column("Definitions", True): "{definitions}",
    Column("Solutions", True): "{solutions}",
    Column("Passed", True): "{passed}/{judged}",
    **SPEEDUP,
    **FIGURES,
}
WINNERS: Final[Cells] = {Column("Best on", True): "{workloads}/{of}", Column("Speed-up", True): "{speedup:x}"}


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
    text = "one row for each (default: %(default)s)"
    summary.add_argument("--by", choices=("solution", *GROUP_KEYS), default="solution", help=text)
    add_baseline(summary)
    best = commands.add_parser("best", help="the best passing solutions")
    best.describe(
        "The fastest passing solution of each workload, with those whose interval meets its own (ties); or each\n"
        "definition's best solution. --by takes what is ranked, by what, or both.",
        example=f"{PROGRAM} report best --local flashinfer-trace --by definition",
        execute=execute_best,
    )
    text = (
        "one row for each workload, definition, author, op_type or hardware; the first two ranked by latency or speedup"
        " (default: workload latency)"
    )
    best.add_argument("--by", nargs="+", choices=(*MERITS, *GROUP_KEYS), default=[], metavar="WORD", help=text)
    visualize = commands.add_parser("visualize", help="both tables")
    visualize.describe(
        "How many verdicts are there and how many passed; then the tables of `report summary` and `report best`.",
        example=f"{PROGRAM} report visualize --local flashinfer-trace",
        execute=execute_visualize,
    )
    for command in (summary, best, visualize):
        add_local(command)
        add_filters(command, "workloads")
        add_format(command)
    declare_history(commands.add_parser("history", help="times of a definition from run to run"))
    declare_diff(commands.add_parser("diff", help="what changed from one set to another"))
    declare_html(commands.add_parser("html", help="pages that work from disk"))
    declare_export(commands.add_parser("export", help="one row a trace, for other programs"))
    declare_merge(commands.add_parser("merge", help="several sets in one"))


def execute_summary(args: Namespace) -> int:
    """Print one row a solution that has traces, or one for each author, op type or kind of hardware."""
    if args.baseline_author is not None and args.by != "author":
        raise Misuse("--baseline-author needs --by author")
    trace_set = open_trace_set(args)
    traces = choose_traces(trace_set, args)
    if args.by == "solution":
        rows = _summarise(trace_set, traces)
        return show_rows(args, rows, partial(_render, render_summary, rows), NO_TRACES)
    results = list_results(trace_set, traces)
    if args.by != "author":
        return _show_groups(args, args.by, GROUPS, group_by(results, args.by), [GROUP_NOTE])
    authors = rank_by_author(results, args.baseline_author)
    baseline = args.baseline_author
    against = "the reference" if baseline is None else f"solutions of {to_one_line(baseline)}"
    notes = [f"score, speed-up, wins, fast_p: against {against}", *AUTHOR_NOTES, *standing_notes(authors)]
    cells = AUTHORS if len({row.hardware for row in authors}) < 2 else {**AUTHORS, Column("Hardware"): "{hardware}"}
    return _show_table(args, cells, authors, notes)


def execute_best(args: Namespace) -> int:
    """Print the best passing solution of each workload or definition, or how many of these each group has."""
    trace_set = open_trace_set(args)
    traces = choose_traces(trace_set, args)
    groups = [word for word in GROUP_KEYS if word in args.by]
    if groups and len(args.by) > 1:
        raise Misuse(f"--by {groups[0]}: no other word goes with it")
    if groups:
        winners = count_winners(best_by_workload(traces, trace_set=trace_set), groups[0])
        return _show_groups(args, groups[0], WINNERS, winners, [])
    nothing = NONE_PASSED if traces else NO_TRACES
    if "definition" in args.by:
        solutions = best_by_definition(traces, "latency" if "latency" in args.by else "speedup")
        return show_rows(args, solutions, partial(_render, render_summary, solutions), nothing)
    rows = best_by_workload(traces, "speedup" if "speedup" in args.by else "latency", trace_set)
    return show_rows(args, rows, partial(_render, render_best, rows), nothing)


def execute_visualize(args: Namespace) -> int:
    """Print the counts of verdicts, one row a solution, and the best solution of each workload."""
    trace_set = open_trace_set(args)
    traces = choose_traces(trace_set, args)
    rows, statuses = _summarise(trace_set, traces), count_statuses(traces)
    best = best_by_workload(traces, trace_set=trace_set)

    def render(width: int) -> str:
        listed = ", ".join(f"{number} {status}" for status, number in statuses.items())
        tables = _render(render_summary, rows, width) + (f"\n{render_best(best, width)}" if best else "")
        return f"{count(sum(statuses.values()), 'verdict')}: {listed}\n\n{tables}"

    return show_rows(args, rows, render, NO_TRACES, counts=statuses, best=list(map(asdict, best)))


def _summarise(trace_set: TraceSet, traces: Sequence[AnyTrace]) -> list[SummaryRow]:
    pairs = {(trace.definition, trace.solution or "") for trace in traces if trace.evaluation is not None}
    uuids = {name: [trace.workload.uuid for trace in trace_set.workloads.get(name, [])] for name, _ in pairs}
    return summarise(traces, {pair: uuids[pair[0]] for pair in pairs})


def _show_groups(args: Namespace, key: str, cells: Cells, rows: Sequence[Any], notes: Sequence[str]) -> int:
    return _show_table(args, {Column(key.capitalize().replace("_", " ")): "{group}", **cells}, rows, notes)


def _show_table(args: Namespace, cells: Cells, rows: Sequence[Any], notes: Sequence[str]) -> int:
    table = partial(lay_out, cells, spared=SPARED, notes=notes)
    return show_rows(args, rows, partial(_render, table, rows), NONE_RANKED, p=FAST_P)


def _render(table: Callable[[Sequence[Any], int], str], rows: Sequence[Any], width: int) -> str:
    return head_of(getattr(row, "standing", "") for row in rows) + table(rows, width)
