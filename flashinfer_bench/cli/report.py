"""`report summary` and `report best`: tables of the traces that a set holds."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from flashinfer_bench.cli.given.choice import choose_traces
from flashinfer_bench.cli.given.sets import open_trace_set
from flashinfer_bench.cli.parser import Parser
from flashinfer_bench.cli.screen.output import write_err, write_out
from flashinfer_bench.cli.screen.tables import available_width
from flashinfer_bench.cli.screen.verdicts import render_best, render_summary
from flashinfer_bench.cli.shared_flags import PROGRAM, add_filters, add_format, add_local
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.report.best import BestRow, best_by_definition, best_by_workload
from flashinfer_bench.report.summary import PairKey, SummaryRow, summarise

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
        "The passing trace with the highest speed-up of each workload, or each definition's best solution.",
        example=f"{PROGRAM} report best --local flashinfer-trace --by definition",
        execute=execute_best,
    )
    best.add_argument(
        "--by", choices=("workload", "definition"), default="workload", help="one row for each (default: %(default)s)"
    )
    for command in (summary, best):
        add_local(command)
        add_filters(command)
        add_format(command)


def execute_summary(args: argparse.Namespace) -> int:
    """Print one row a solution that has traces."""
    trace_set = open_trace_set(args)
    traces = choose_traces(trace_set, args)
    rows = summarise(traces, _expected(trace_set, traces), with_bursts=args.format == "json")
    if args.format == "json":
        _write_json(rows)
    elif rows:
        write_out(render_summary(rows, available_width(sys.stdout)))
    else:
        write_err(NO_TRACES)
    return 0


def execute_best(args: argparse.Namespace) -> int:
    """Print the best passing solution of each workload or definition."""
    traces = choose_traces(open_trace_set(args), args)
    rows = best_by_workload(traces) if args.by == "workload" else None
    definition_rows = best_by_definition(traces) if rows is None else []
    width = available_width(sys.stdout)
    if args.format == "json":
        _write_json(rows if rows is not None else definition_rows)
    elif rows:
        write_out(render_best(rows, width))
    elif definition_rows:
        write_out(render_summary(definition_rows, width))
    else:
        write_err(NONE_PASSED if traces else NO_TRACES)
    return 0


def _expected(trace_set: TraceSet, traces: Sequence[AnyTrace]) -> dict[PairKey, int]:
    pairs = {(trace.definition, trace.solution or "") for trace in traces if trace.evaluation is not None}
    return {pair: len(trace_set.workloads.get(pair[0], [])) for pair in pairs}


def _write_json(rows: Sequence[SummaryRow] | Sequence[BestRow]) -> None:
    write_out(json.dumps({"rows": [asdict(row) for row in rows]}, indent=2) + "\n")
