"""`report history` and `report diff`: how times and verdicts changed."""

from __future__ import annotations

import argparse
from collections import Counter
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final

from flashinfer_bench.cli.args import choose_traces, open_trace_set
from flashinfer_bench.cli.render import Column, count, format_latency, shorten_uuid
from flashinfer_bench.cli.reports.show import Cells, format_mean, lay_out, show_rows
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.sets.latest import parse_time
from flashinfer_bench.data.sets.results import Result, list_results
from flashinfer_bench.data.store.trace_lines import AnyTrace, kept_of
from flashinfer_bench.report.changes import GONE, NEW, VERDICT, Epoch, find_changes, find_epochs
from flashinfer_bench.report.decision import FASTER, SAME, SLOWER, UNKNOWN
from flashinfer_bench.report.verdict import to_one_line

CHANGE_MARK: Final = ">"
"""Marks an epoch whose times differ from those before."""
SPARED: Final = ("Sources", "Passed")
"""Columns of a history that are left out where there is no room; JSON has them."""
ORDER: Final = (VERDICT, SLOWER, FASTER, SAME, UNKNOWN, NEW, GONE)
"""Decisions, the most important first."""
NOTE: Final = "ratio: new over old time, with its recorded 95 % interval; `compare` measures in turn, and knows more"


def _since(epoch: Epoch) -> str:
    moment = parse_time(epoch.begin)
    return moment.strftime("%Y-%m-%d %H:%M") if moment is not None else to_one_line(epoch.begin)


HISTORY: Final[Cells] = (
    (Column(""), lambda epoch: CHANGE_MARK if epoch.decision in (FASTER, SLOWER) else ""),
    (Column("Since (UTC)"), _since),
    (Column("Sources"), lambda epoch: to_one_line(epoch.digest)),
    (Column("Passed", True), lambda epoch: f"{epoch.passed}/{epoch.verdicts}"),
    (Column("Latency", True), lambda epoch: format_latency(epoch.latency_ms)),
    (Column("Over before", True), lambda epoch: format_mean(epoch.ratio)),
    (Column("Decision"), lambda epoch: epoch.decision),
    (Column("Changed"), lambda epoch: to_one_line("; ".join(epoch.changed))),
)
DIFF: Final[Cells] = (
    (Column("Definition"), lambda change: change.definition),
    (Column("Solution"), lambda change: change.solution),
    (Column("Workload"), lambda change: shorten_uuid(change.workload)),
    (Column("Decision"), lambda change: change.decision),
    (Column("Old", True), lambda one: one.old_status if one.decision == VERDICT else format_latency(one.old_ms)),
    (Column("New", True), lambda one: one.new_status if one.decision == VERDICT else format_latency(one.new_ms)),
    (Column("Ratio", True), lambda change: format_mean(change.ratio)),
    (Column("Why"), lambda change: change.reason),
)


def execute_history(args: argparse.Namespace) -> int:
    """Print a line for each solution, on each kind of hardware if there are several, and below it its epochs."""
    trace_set = open_trace_set(args)
    chosen = argparse.Namespace(definitions=[args.definition], solutions=args.solutions)
    results = list_results(trace_set, choose_traces(trace_set, chosen), latest_only=False)
    epochs = find_epochs([item for item in results if not item.told.run.quick], args.threshold)
    is_several = len({epoch.hardware for epoch in epochs}) > 1
    rows: list[Epoch | str] = []
    for (solution, hardware), items in groupby(epochs, attrgetter("solution", "hardware")):
        rows += [f"{solution} on {hardware}" if is_several else solution, *items]
    render = partial(lay_out, HISTORY, rows, spared=SPARED, notes=[NOTE])
    return show_rows(args, epochs, render, f"note: there is no whole verdict on {args.definition}")


def execute_diff(args: argparse.Namespace) -> int:
    """Print how many jobs have each decision, then a row for each that changed."""
    changes = find_changes(_results(args.old), _results(args.new), args.threshold)
    counts = Counter(change.decision for change in changes)
    told = ", ".join(f"{counts[decision]} {decision}" for decision in ORDER if counts[decision])
    shown = [change for change in changes if args.all or change.decision not in (SAME, UNKNOWN)]
    shown.sort(key=lambda change: ORDER.index(change.decision))

    def render(width: int) -> str:
        table = "\n" + lay_out(DIFF, shown, width, notes=[NOTE]) if shown else ""
        return f"{count(len(changes), 'job')}: {told}\n{table}"

    return show_rows(args, changes, render, "note: neither set has a verdict", counts=counts)


def _results(folder: str) -> list[Result]:
    trace_set = TraceSet.from_path(Path(folder))
    traces: list[AnyTrace] = [trace for part in trace_set.traces.values() for trace in kept_of(part)]
    return list_results(trace_set, traces)
