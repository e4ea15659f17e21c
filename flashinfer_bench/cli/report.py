"""`report summary`, `best`, `visualize`: tables of the traces that a set holds."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from flashinfer_bench.cli.given.choice import choose_traces
from flashinfer_bench.cli.given.sets import open_trace_set
from flashinfer_bench.cli.reports.ranks import show_best_groups, show_groups
from flashinfer_bench.cli.screen.output import write_err, write_out
from flashinfer_bench.cli.screen.tables import available_width, count
from flashinfer_bench.cli.screen.verdicts import head_of, render_best, render_summary
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.errors import Misuse
from flashinfer_bench.report.best import BestRow, Merit, best_by_definition, best_by_workload
from flashinfer_bench.report.ranking import GROUP_KEYS
from flashinfer_bench.report.summary import PairKey, SummaryRow, count_statuses, summarise

NO_TRACES = "note: there are no traces to report; `flashinfer-bench run` makes them"

NONE_PASSED = (
    "note: there is no job whose latest verdict is PASSED; quick looks do not count, and "
    "`flashinfer-bench report summary` says why the others failed"
)


def execute_summary(args: argparse.Namespace) -> int:
    """Print one row a solution that has traces."""
    if args.baseline_author is not None and args.by != "author":
        raise Misuse("--baseline-author needs --by author")
    trace_set = open_trace_set(args)
    traces = choose_traces(trace_set, args)
    if args.by in GROUP_KEYS:
        return show_groups(args, trace_set, traces)
    rows = summarise(traces, _expected(trace_set, traces), with_bursts=args.format == "json")
    if args.format == "json":
        _write_json(rows)
    elif rows:
        write_out(head_of(row.standing for row in rows) + render_summary(rows, available_width(sys.stdout)))
    else:
        write_err(NO_TRACES)
    return 0


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
    by_definition = "definition" in args.by
    merit: Merit = "speedup" if "speedup" in args.by or (by_definition and "latency" not in args.by) else "latency"
    rows = None if by_definition else best_by_workload(traces, merit)
    definition_rows = best_by_definition(traces, merit) if by_definition else []
    width = available_width(sys.stdout)
    if args.format == "json":
        _write_json(rows if rows is not None else definition_rows)
    elif rows:
        write_out(head_of(row.standing for row in rows) + render_best(rows, width))
    elif definition_rows:
        write_out(head_of(row.standing for row in definition_rows) + render_summary(definition_rows, width))
    else:
        write_err(NONE_PASSED if traces else NO_TRACES)
    return 0


def execute_visualize(args: argparse.Namespace) -> int:
    """Print the counts of verdicts, one row a solution, and the best solution of each workload."""
    trace_set = open_trace_set(args)
    traces = choose_traces(trace_set, args)
    rows = summarise(traces, _expected(trace_set, traces), with_bursts=args.format == "json")
    best = best_by_workload(traces)
    statuses = count_statuses(traces)
    if args.format == "json":
        document = {"counts": statuses, "rows": list(map(asdict, rows)), "best": list(map(asdict, best))}
        write_out(json.dumps(document, indent=2) + "\n")
    elif rows:
        width = available_width(sys.stdout)
        told = ", ".join(f"{number} {status}" for status, number in statuses.items())
        head = head_of(row.standing for row in rows)
        write_out(f"{count(sum(statuses.values()), 'verdict')}: {told}\n\n{head}{render_summary(rows, width)}")
        write_out(f"\n{render_best(best, width)}" if best else "")
    else:
        write_err(NO_TRACES)
    return 0


def _expected(trace_set: TraceSet, traces: Sequence[AnyTrace]) -> dict[PairKey, list[str]]:
    pairs = {(trace.definition, trace.solution or "") for trace in traces if trace.evaluation is not None}
    uuids = {name: [trace.workload.uuid for trace in trace_set.workloads.get(name, [])] for name, _ in pairs}
    return {pair: uuids[pair[0]] for pair in pairs}


def _write_json(rows: Sequence[SummaryRow] | Sequence[BestRow]) -> None:
    write_out(json.dumps({"rows": [asdict(row) for row in rows]}, indent=2) + "\n")
