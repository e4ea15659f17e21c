"""`report summary --by` and `report best --by`: rows by author, op type and hardware."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from flashinfer_bench.cli.output import write_err, write_out
from flashinfer_bench.cli.render import (
    ABSENT,
    Column,
    Row,
    available_width,
    format_speedup,
    natural_width,
    render_table,
    wrap_line,
)
from flashinfer_bench.cli.verdicts import head_of, standing_mark, standing_notes
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.measurement import CONFIRMED, INDICATIVE
from flashinfer_bench.data.sets.results import list_results
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.errors import Misuse
from flashinfer_bench.report.best import best_by_workload
from flashinfer_bench.report.intervals import MeanRatio
from flashinfer_bench.report.ranking import FAST_P, count_winners, group_by, rank_by_author
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
Cells = tuple[str, Callable[[Any], str]]
"""Heading of a column, and what it shows of a row."""


def show_groups(args: argparse.Namespace, trace_set: TraceSet, traces: Sequence[AnyTrace]) -> int:
    """Print `report summary --by author|op_type|hardware`."""
    results = list_results(trace_set, traces)
    if args.by != "author":
        return _show(args, group_by(results, args.by), _group_columns(HEADINGS[args.by]), [GROUP_NOTE])
    try:
        rows = rank_by_author(results, args.baseline_author)
    except ValueError as error:
        raise Misuse(f"--baseline-author: {error}") from None
    against = "the reference"
    if args.baseline_author is not None:
        against = f"solutions of {to_one_line(args.baseline_author)}"
    notes = [f"score, speed-up, wins, fast_p: against {against}", *AUTHOR_NOTES, *standing_notes(rows)]
    is_several = len({row.hardware for row in rows}) > 1
    columns = AUTHOR_COLUMNS if is_several else AUTHOR_COLUMNS[:-1]
    return _show(args, rows, columns, notes, [row.standing for row in rows])


def show_best_groups(args: argparse.Namespace, trace_set: TraceSet, traces: Sequence[AnyTrace]) -> int:
    """Print `report best --by author|op_type|hardware`."""
    rows = count_winners(best_by_workload(traces, trace_set=trace_set), args.by)
    standings = [standing for row in rows for standing in row.standings]
    columns = [
        (HEADINGS[args.by], lambda row: to_one_line(row.group) or ABSENT),
        ("Best on", lambda row: f"{row.workloads}/{row.of}"),
        ("Confirmed", lambda row: "" if INDICATIVE in row.standings else str(row.standings.get(CONFIRMED, 0))),
        ("Speed-up", lambda row: format_speedup(row.speedup)),
        ("Leading authors", lambda row: ", ".join(f"{to_one_line(name)} {times}" for name, times in row.leaders)),
    ]
    return _show(args, rows, columns, [], standings)


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


def fit_table(columns: Sequence[Column], rows: Sequence[Row], spared: Sequence[str], width: int) -> str:
    """Lay rows out, without columns that tell nothing, and without the first of `spared` while it is too wide."""
    kept, lines = list(columns), list(rows)
    cells = zip(*(line for line in rows if not isinstance(line, str)), strict=True)
    empty = [column.heading for column, shown in zip(columns, cells, strict=True) if set(shown) <= {"", ABSENT}]
    for heading in (*empty, *spared):
        places = [place for place, column in enumerate(kept) if column.heading != heading]
        if heading in empty or natural_width(kept, lines) > width:
            kept = [kept[place] for place in places]
            lines = [line if isinstance(line, str) else [line[place] for place in places] for line in lines]
    return render_table(kept, lines, width)


def _fast_p(p: float, row: Any) -> str:
    return format_share(row.fast_p[FAST_P.index(p)])


FIGURES: Final[tuple[Cells, ...]] = (
    *((f"fast_{p:g}", partial(_fast_p, p)) for p in SHOWN_P),
    ("Roofline", lambda row: format_share(row.roofline_share)),
)
AUTHOR_COLUMNS: Final[tuple[Cells, ...]] = (
    ("Author", lambda row: to_one_line(row.author)),
    ("Of fastest", lambda row: format_share(row.fastest_share) + standing_mark(row)),
    ("Score", lambda row: format_speedup(row.score)),
    ("Speed-up", lambda row: format_mean(row.speedup)),
    ("Wins", lambda row: format_share(row.win_rate)),
    *FIGURES,
    ("Passed", lambda row: f"{row.passed}/{row.workloads}"),
    ("Hardware", lambda row: to_one_line(row.hardware)),
)


def _group_columns(heading: str) -> list[Cells]:
    return [
        (heading, lambda row: to_one_line(row.group) or ABSENT),
        ("Definitions", lambda row: str(row.definitions)),
        ("Solutions", lambda row: str(row.solutions)),
        ("Passed", lambda row: f"{row.passed}/{row.judged}"),
        ("Speed-up", lambda row: format_mean(row.speedup)),
        *FIGURES,
    ]


def _show(
    args: argparse.Namespace,
    rows: Sequence[Any],
    columns: Sequence[Cells],
    notes: Sequence[str],
    standings: Sequence[str] = (),
) -> int:
    """Print rows as JSON or as a table; columns that tell nothing are left out."""
    if args.format == "json":
        write_out(json.dumps({"p": FAST_P, "rows": list(map(asdict, rows))}, indent=2) + "\n")
        return 0
    if not rows:
        write_err(NOTHING)
        return 0
    width = available_width(sys.stdout)
    texts = ("Author", "Op type", "Hardware", "Leading authors")
    headings = [Column(heading, heading not in texts) for heading, _ in columns]
    lines = [[cell(row) for _, cell in columns] for row in rows]
    below = "".join(f"{wrap_line(note, width)}\n" for note in notes)
    write_out(head_of(standings) + fit_table(headings, lines, SPARED, width) + (f"\n{below}" if below else ""))
    return 0
