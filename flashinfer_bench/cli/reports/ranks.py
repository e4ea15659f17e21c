"""`report summary --by` and `report best --by`: rows by author, op type and hardware."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from flashinfer_bench.cli.render import ABSENT, Column, format_speedup
from flashinfer_bench.cli.reports.show import Cells, format_mean, lay_out, show_rows
from flashinfer_bench.cli.verdicts import head_of, standing_mark, standing_notes
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.measurement import CONFIRMED, INDICATIVE
from flashinfer_bench.data.sets.results import list_results
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.errors import Misuse
from flashinfer_bench.report.best import best_by_workload
from flashinfer_bench.report.ranking import (
    FAST_P,
    AuthorRow,
    GroupRow,
    WinnersRow,
    count_winners,
    group_by,
    rank_by_author,
)
from flashinfer_bench.report.verdict import to_one_line

SHOWN_P: Final = (1.0, 1.5, 2.0)
"""The p of fast_p that tables show; JSON has all."""
HEADINGS: Final = {"author": "Author", "op_type": "Op type", "hardware": "Hardware"}
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
NOTHING: Final = "note: there is no whole verdict to rank; quick looks do not count"


def _group(row: GroupRow | WinnersRow) -> str:
    return to_one_line(row.group) or ABSENT


def _confirmed(row: WinnersRow) -> str:
    return "" if INDICATIVE in row.standings else str(row.standings.get(CONFIRMED, 0))


def _share(share: float | None) -> str:
    return ABSENT if share is None else f"{share:.1%}"


def _fast_p(p: float, row: AuthorRow | GroupRow) -> str:
    return _share(row.fast_p[FAST_P.index(p)])


SPEEDUP: Final = (Column("Speed-up", True), lambda row: format_mean(row.speedup))
FIGURES: Final[Cells] = (
    *((Column(f"fast_{p:g}", True), partial(_fast_p, p)) for p in SHOWN_P),
    (Column("Roofline", True), lambda row: _share(row.roofline_share)),
)
AUTHORS: Final[Cells] = (
    (Column("Author"), lambda row: to_one_line(row.author)),
    (Column("Of fastest", True), lambda row: _share(row.fastest_share) + standing_mark(row)),
    (Column("Score", True), lambda row: format_speedup(row.score)),
    SPEEDUP,
    (Column("Wins", True), lambda row: _share(row.win_rate)),
    *FIGURES,
    (Column("Passed", True), lambda row: f"{row.passed}/{row.workloads}"),
    (Column("Hardware"), lambda row: to_one_line(row.hardware)),
)
GROUPS: Final[Cells] = (
    (Column("Definitions", True), lambda row: str(row.definitions)),
    (Column("Solutions", True), lambda row: str(row.solutions)),
    (Column("Passed", True), lambda row: f"{row.passed}/{row.judged}"),
    SPEEDUP,
    *FIGURES,
)
WINNERS: Final[Cells] = (
    (Column("Best on", True), lambda row: f"{row.workloads}/{row.of}"),
    (Column("Confirmed", True), _confirmed),
    (Column("Speed-up", True), lambda row: format_speedup(row.speedup)),
    (Column("Leading authors"), lambda row: ", ".join(f"{to_one_line(name)} {times}" for name, times in row.leaders)),
)


def show_groups(args: argparse.Namespace, trace_set: TraceSet, traces: Sequence[AnyTrace]) -> int:
    """Print `report summary --by author|op_type|hardware`."""
    results = list_results(trace_set, traces)
    if args.by != "author":
        cells = ((Column(HEADINGS[args.by]), _group), *GROUPS)
        return _show(args, group_by(results, args.by), cells, [GROUP_NOTE])
    try:
        rows = rank_by_author(results, args.baseline_author)
    except ValueError as error:
        raise Misuse(f"--baseline-author: {error}") from None
    baseline = args.baseline_author
    against = "the reference" if baseline is None else f"solutions of {to_one_line(baseline)}"
    notes = [f"score, speed-up, wins, fast_p: against {against}", *AUTHOR_NOTES, *standing_notes(rows)]
    is_several = len({row.hardware for row in rows}) > 1
    return _show(args, rows, AUTHORS if is_several else AUTHORS[:-1], notes, [row.standing for row in rows])


def show_best_groups(args: argparse.Namespace, trace_set: TraceSet, traces: Sequence[AnyTrace]) -> int:
    """Print `report best --by author|op_type|hardware`."""
    rows = count_winners(best_by_workload(traces, trace_set=trace_set), args.by)
    standings = [standing for row in rows for standing in row.standings]
    return _show(args, rows, ((Column(HEADINGS[args.by]), _group), *WINNERS), [], standings)


def _show(
    args: argparse.Namespace, rows: Sequence[Any], cells: Cells, notes: Sequence[str], standings: Sequence[str] = ()
) -> int:
    def render(width: int) -> str:
        return head_of(standings) + lay_out(cells, rows, width, SPARED, notes)

    return show_rows(args, rows, render, NOTHING, p=FAST_P)
