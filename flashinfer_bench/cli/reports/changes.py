"""`report history` and `report diff`: how times and verdicts changed."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final

from flashinfer_bench.cli.args import choose_traces, open_trace_set
from flashinfer_bench.cli.output import write_err, write_out
from flashinfer_bench.cli.render import (
    Column,
    Row,
    available_width,
    count,
    format_latency,
    render_table,
    shorten_uuid,
    wrap_line,
)
from flashinfer_bench.cli.reports.ranks import fit_table, format_mean
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.sets.latest import parse_time
from flashinfer_bench.data.sets.results import Result, list_results
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.data.store.trace_list import kept_of
from flashinfer_bench.report.changes import (
    GONE,
    NEW,
    VERDICT,
    Change,
    Epoch,
    find_changes,
    find_epochs,
)
from flashinfer_bench.report.decision import FASTER, SAME, SLOWER, UNKNOWN
from flashinfer_bench.report.verdict import to_one_line

CHANGE_MARK: Final = ">"
"""Marks an epoch whose times differ from those before."""
HISTORY: Final = ("", "Since (UTC)", "Sources", "Passed", "Latency", "Over before", "Decision", "Changed")
DIFF: Final = ("Definition", "Solution", "Workload", "Decision", "Old", "New", "Ratio", "Why")
SPARED: Final = ("Sources", "Passed")
"""Columns of a history that are left out where there is no room; JSON has them."""
NOTE: Final = "ratio: new over old time, with its recorded 95 % interval; `compare` measures in turn, and knows more"


def execute_history(args: argparse.Namespace) -> int:
    """Print the epochs."""
    trace_set = open_trace_set(args)
    chosen = argparse.Namespace(definitions=[args.definition], solutions=args.solutions)
    results = list_results(trace_set, choose_traces(trace_set, chosen), latest_only=False)
    epochs = find_epochs([item for item in results if not item.told.run.quick], args.threshold)
    if args.format == "json":
        write_out(json.dumps({"rows": [asdict(epoch) for epoch in epochs]}, indent=2) + "\n")
    elif epochs:
        write_out(render_history(epochs, available_width(sys.stdout)))
    else:
        write_err(f"note: there is no whole verdict on {args.definition}")
    return 0


def execute_diff(args: argparse.Namespace) -> int:
    """Print the changes."""
    old, new = (_results(Path(folder)) for folder in (args.old, args.new))
    changes = find_changes(old, new, args.threshold)
    counts = Counter(change.decision for change in changes)
    if args.format == "json":
        write_out(json.dumps({"counts": counts, "rows": [asdict(change) for change in changes]}, indent=2) + "\n")
    elif changes:
        shown = [change for change in changes if args.all or change.decision not in (SAME, UNKNOWN)]
        write_out(render_diff(shown, counts, available_width(sys.stdout)))
    else:
        write_err("note: neither set has a verdict")
    return 0


def render_history(epochs: Sequence[Epoch], width: int) -> str:
    """Lay out a line for each solution, on each kind of hardware if there are several, and below it its epochs."""
    columns = [Column(text, text in ("Passed", "Latency", "Over before")) for text in HISTORY]
    is_several = len({epoch.hardware for epoch in epochs}) > 1
    rows: list[Row] = []
    for (solution, hardware), items in groupby(epochs, attrgetter("solution", "hardware")):
        rows.append(f"{solution} on {hardware}" if is_several else solution)
        rows += map(_history_cells, items)
    return f"{fit_table(columns, rows, SPARED, width)}\n{wrap_line(NOTE, width)}\n"


def _history_cells(epoch: Epoch) -> list[str]:
    moment = parse_time(epoch.begin)
    return [
        CHANGE_MARK if epoch.decision in (FASTER, SLOWER) else "",
        moment.strftime("%Y-%m-%d %H:%M") if moment is not None else to_one_line(epoch.begin),
        to_one_line(epoch.digest),
        f"{epoch.passed}/{epoch.verdicts}",
        format_latency(epoch.latency_ms),
        format_mean(epoch.ratio),
        epoch.decision,
        to_one_line("; ".join(epoch.changed)),
    ]


def render_diff(changes: Sequence[Change], counts: Counter[str], width: int) -> str:
    """Lay out how many jobs have each decision, then a row for each of `changes`."""
    order = (VERDICT, SLOWER, FASTER, SAME, UNKNOWN, NEW, GONE)
    told = ", ".join(f"{counts[decision]} {decision}" for decision in order if counts[decision])
    head = f"{count(counts.total(), 'job')}: {told}\n"
    if not changes:
        return head
    headings = [Column(text, text in ("Old", "New", "Ratio")) for text in DIFF]
    rows = [
        [
            change.definition,
            change.solution,
            shorten_uuid(change.workload),
            change.decision,
            change.old_status if change.decision == VERDICT else format_latency(change.old_ms),
            change.new_status if change.decision == VERDICT else format_latency(change.new_ms),
            format_mean(change.ratio),
            change.reason,
        ]
        for change in sorted(changes, key=lambda item: order.index(item.decision))
    ]
    return f"{head}\n{render_table(headings, rows, width)}\n{wrap_line(NOTE, width)}\n"


def _results(folder: Path) -> list[Result]:
    trace_set = TraceSet.from_path(folder)
    traces: list[AnyTrace] = [trace for part in trace_set.traces.values() for trace in kept_of(part)]
    return list_results(trace_set, traces)
