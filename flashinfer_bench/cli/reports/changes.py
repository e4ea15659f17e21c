"""`report history` and `report diff`: how times and verdicts changed."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Final

from flashinfer_bench.cli.args import choose_traces, open_trace_set
from flashinfer_bench.cli.parser import PROGRAM, NameList, Parser, add_format, add_local, share
from flashinfer_bench.cli.render import Column, count
from flashinfer_bench.cli.reports.show import CHANGE_MARK, Cells, lay_out, show_rows
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.sets.results import Result, list_results
from flashinfer_bench.data.store.trace_lines import kept_of
from flashinfer_bench.report.changes import GONE, NEW, VERDICT, find_changes, find_epochs
from flashinfer_bench.report.decision import FASTER, SAME, SLOWER, THRESHOLD, UNKNOWN

ORDER: Final = (VERDICT, SLOWER, FASTER, SAME, UNKNOWN, NEW, GONE)
"""Decisions, the most important first."""
NOTE: Final = "ratio: new over old time, with its recorded 95 % interval; `compare` measures in turn, and knows more"
HISTORY: Final[Cells] = {
    Column(""): "{decision:change}",
    Column("Since (UTC)"): "{begin:time}",
    Column("Sources"): "{digest}",
    Column("Passed", True): "{passed}/{verdicts}",
    Column("Latency", True): "{latency_ms:ms}",
    Column("Over before", True): "{ratio:mean}",
    Column("Decision"): "{decision}",
    Column("Changed"): "{changed:list}",
}
DIFF: Final[Cells] = {
    Column("Definition"): "{definition}",
    Column("Solution"): "{solution}",
    Column("Workload"): "{workload:uuid}",
    Column("Decision"): "{decision}",
    Column("Old", True): "{old_ms:ms}",
    Column("New", True): "{new_ms:ms}",
    Column("Ratio", True): "{ratio:mean}",
    Column("Why"): "{reason}",
}


def declare_history(parser: Parser) -> None:
    """Add the help and the flags of `report history`."""
    parser.describe(
        "Show the times of a definition's solutions from run to run. A row has one version of sources and libraries;\n"
        f"{CHANGE_MARK} marks a change of the latency, so that the effect of a new driver shows.",
        example=f"{PROGRAM} report history --definition rmsnorm_h4096 --local flashinfer-trace",
        execute=execute_history,
    )
    parser.add_argument("--definition", "--definitions", metavar="NAME", required=True, help="the definition")
    parser.add_argument(
        "--solutions", "--solution", nargs="+", action=NameList, metavar="NAME", help="only these solutions"
    )
    _add_threshold(parser)
    add_local(parser)


def declare_diff(parser: Parser) -> None:
    """Add the help and the flags of `report diff`."""
    parser.describe(
        "Show which verdicts and times changed from one set of traces to another, with a decision for each: faster,\n"
        "slower, same, or cannot tell. Jobs are the same by definition, solution, workload and hardware.",
        example=f"{PROGRAM} report diff flashinfer-trace flashinfer-trace",
        execute=execute_diff,
    )
    parser.add_argument("old", metavar="OLD", help="the folder of a trace set")
    parser.add_argument("new", metavar="NEW", help="the folder of another, or of the same")
    parser.add_argument("--all", action="store_true", help="list jobs that did not change, too")
    _add_threshold(parser)


def _add_threshold(parser: Parser) -> None:
    text = "the smallest difference of interest: 2%% or 0.02 (default: 2%%)"
    parser.add_argument("--threshold", type=share, metavar="X", default=THRESHOLD, help=text)
    add_format(parser)


def execute_history(args: Namespace) -> int:
    """Print the epochs of each solution, on each kind of hardware if there are several."""
    trace_set = open_trace_set(args)
    chosen = Namespace(definitions=[args.definition], solutions=args.solutions)
    results = list_results(trace_set, choose_traces(trace_set, chosen), latest_only=False)
    epochs = find_epochs([item for item in results if not item.told.run.quick], args.threshold)
    several = {} if len({epoch.hardware for epoch in epochs}) < 2 else {Column("Hardware"): "{hardware}"}
    cells = {Column("Solution"): "{solution}", **several, **HISTORY}
    render = partial(lay_out, cells, epochs, spared=("Sources", "Passed"), notes=[NOTE])
    return show_rows(args, epochs, render, f"note: there is no whole verdict on {args.definition}")


def execute_diff(args: Namespace) -> int:
    """Print how many jobs have each decision, then a row for each that changed."""
    changes = find_changes(_read_results(args.old), _read_results(args.new), args.threshold)
    counts = Counter(change.decision for change in changes)
    listed = ", ".join(f"{counts[decision]} {decision}" for decision in ORDER if counts[decision])
    shown = [change for change in changes if args.all or change.decision not in (SAME, UNKNOWN)]
    shown.sort(key=lambda change: ORDER.index(change.decision))

    def render(width: int) -> str:
        table = "\n" + lay_out(DIFF, shown, width, notes=[NOTE]) if shown else ""
        return f"{count(len(changes), 'job')}: {listed}\n{table}"

    return show_rows(args, changes, render, "note: neither set has a verdict", counts=counts)


def _read_results(folder: str) -> list[Result]:
    trace_set = TraceSet.from_path(Path(folder))
    return list_results(trace_set, [trace for part in trace_set.traces.values() for trace in kept_of(part)])
