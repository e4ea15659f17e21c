"""`report summary --by` and `report best --by`: rows by author, op type and hardware."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from flashinfer_bench.cli.output import write_err, write_out
from flashinfer_bench.cli.render import (
    ABSENT,
    Column,
    available_width,
    format_speedup,
    natural_width,
    render_table,
    wrap_line,
)
from flashinfer_bench.cli.verdicts import head_of, standing_mark, standing_notes
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.measurement import CONFIRMED
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.errors import Misuse
from flashinfer_bench.report.best import best_by_workload
from flashinfer_bench.report.ranking import FAST_P, AuthorRow, GroupRow, group_by, rank_by_author
from flashinfer_bench.report.results import MeanRatio, list_results
from flashinfer_bench.report.verdict import to_one_line
from flashinfer_bench.report.winners import WinnersRow, count_winners

SHOWN_P: Final = (1.0, 1.5, 2.0)
"""The p of fast_p that tables show; JSON has all."""
HEADINGS: Final = {"author": "Author", "op_type": "Op type", "hardware": "Hardware"}
ColumnCells = tuple[Column, list[str]]
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


def show_groups(args: argparse.Namespace, trace_set: TraceSet, traces: Sequence[AnyTrace]) -> int:
    """Print `report summary --by author|op_type|hardware`."""
    results = list_results(trace_set, traces)
    width = available_width(sys.stdout)
    if args.by == "author":
        try:
            authors = rank_by_author(results, args.baseline_author)
        except ValueError as error:
            raise Misuse(f"--baseline-author: {error}") from None
        text = render_authors(authors, args.baseline_author, width) if authors else ""
        return _show(args, [asdict(row) for row in authors], text)
    groups = group_by(results, args.by)
    return _show(
        args, [asdict(row) for row in groups], render_groups(groups, HEADINGS[args.by], width) if groups else ""
    )


def show_best_groups(args: argparse.Namespace, trace_set: TraceSet, traces: Sequence[AnyTrace]) -> int:
    """Print `report best --by author|op_type|hardware`."""
    authors = {item.name: item.author for group in trace_set.solutions.values() for item in group}
    op_types = {name: definition.op_type for name, definition in trace_set.definitions.items()}
    rows = count_winners(best_by_workload(traces), args.by, authors, op_types)
    text = render_winners(rows, HEADINGS[args.by], available_width(sys.stdout)) if rows else ""
    return _show(args, [asdict(row) for row in rows], text)


def render_authors(rows: Sequence[AuthorRow], baseline_author: str | None, width: int) -> str:
    """Lay out a row for each author; some columns are left out where the width is too small."""
    wide = [
        (Column("Author"), [to_one_line(row.author) for row in rows]),
        (Column("Of fastest", True), [format_share(row.fastest_share) + standing_mark(row) for row in rows]),
        (Column("Score", True), [format_speedup(row.score) for row in rows]),
        (Column("Speed-up", True), [format_mean(row.speedup) for row in rows]),
        (Column("Wins", True), [format_share(row.win_rate) for row in rows]),
        *_fast_columns(rows),
        (Column("Roofline", True), [format_share(row.roofline_share) for row in rows]),
        (Column("Passed", True), [f"{row.passed}/{row.workloads}" for row in rows]),
        (Column("Hardware"), [to_one_line(row.hardware) for row in rows]),
    ]
    against = "the reference" if baseline_author is None else f"solutions of {to_one_line(baseline_author)}"
    notes = [f"score, speed-up, wins, fast_p: against {against}", *AUTHOR_NOTES, *standing_notes(rows)]
    below = "".join(f"{wrap_line(note, width)}\n" for note in notes)
    return f"{head_of(row.standing for row in rows)}{_render(wide, width)}\n{below}"


def render_groups(rows: Sequence[GroupRow], heading: str, width: int) -> str:
    """Lay out a row for each op type or kind of hardware; some columns are left out where the width is too small."""
    wide = [
        (Column(heading), [to_one_line(row.group) or ABSENT for row in rows]),
        (Column("Definitions", True), [str(row.definitions) for row in rows]),
        (Column("Solutions", True), [str(row.solutions) for row in rows]),
        (Column("Passed", True), [f"{row.passed}/{row.judged}" for row in rows]),
        (Column("Speed-up", True), [format_mean(row.speedup) for row in rows]),
        *_fast_columns(rows),
        (Column("Roofline", True), [format_share(row.roofline_share) for row in rows]),
    ]
    return f"{_render(wide, width)}\n{wrap_line(GROUP_NOTE, width)}\n"


def render_winners(rows: Sequence[WinnersRow], heading: str, width: int) -> str:
    """Lay out how many workloads each group has the best solution of."""
    headings = [Column(heading), Column("Best on", True), Column("Confirmed", True), Column("Speed-up", True)]
    headings.append(Column("Leading authors"))
    cells = [
        [
            to_one_line(row.group) or ABSENT,
            f"{row.workloads}/{row.of}",
            str(row.standings.get(CONFIRMED, 0)),
            format_speedup(row.speedup),
            ", ".join(f"{to_one_line(author)} {times}" for author, times in row.leaders),
        ]
        for row in rows
    ]
    head = head_of(standing for row in rows for standing in row.standings)
    if head:
        del headings[2]
        cells = [[*line[:2], *line[3:]] for line in cells]
    return head + render_table(headings, cells, width)


def format_mean(mean: MeanRatio | None) -> str:
    """Return a ratio with its interval."""
    if mean is None:
        return ABSENT
    if mean.low is None or mean.high is None:
        return format_speedup(mean.value)
    return f"{format_speedup(mean.value)} ({mean.low:.3g}-{mean.high:.3g})"


def format_share(share: float | None) -> str:
    """Return a share in percent."""
    return ABSENT if share is None else f"{share:.1%}"


def _fast_columns(rows: Sequence[AuthorRow] | Sequence[GroupRow]) -> list[ColumnCells]:
    return [(Column(f"fast_{p:g}", True), [format_share(row.fast_p[FAST_P.index(p)]) for row in rows]) for p in SHOWN_P]


def _render(wide: Sequence[ColumnCells], width: int) -> str:
    """Lay columns out, without those that tell nothing, and without some that can be spared where there is no room."""
    kept = list(wide)
    for column in wide[1:]:
        heading, cells = column[0].heading, set(column[1])
        if (heading == "Roofline" and cells == {ABSENT}) or (heading == "Hardware" and len(cells) == 1):
            kept.remove(column)
    for heading in SPARED:
        headings, lines = _turned(kept)
        if natural_width(headings, lines) > width:
            kept = [column for column in kept if column[0].heading != heading]
    return render_table(*_turned(kept), width)


def _turned(columns: Sequence[ColumnCells]) -> tuple[list[Column], list[list[str]]]:
    return [column for column, _ in columns], list(map(list, zip(*(cells for _, cells in columns), strict=True)))


def _show(args: argparse.Namespace, rows: Sequence[object], text: str) -> int:
    if args.format == "json":
        write_out(json.dumps({"p": FAST_P, "rows": rows}, indent=2) + "\n")
    elif text:
        write_out(text)
    else:
        write_err(NOTHING)
    return 0
