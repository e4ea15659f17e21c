"""`report summary --by` and `report best --by`: rows by author, op type and hardware."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from flashinfer_bench.cli.screen.output import write_err, write_out
from flashinfer_bench.cli.screen.tables import ABSENT, Column, available_width, format_speedup, render_table, wrap_line
from flashinfer_bench.data import TraceSet
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
AUTHOR_NOTE: Final = (
    "score: mean over definitions of the best solution's geometric mean, 0 where it failed a workload; fast_p: share "
    "of workloads passed with a ratio above p; of fastest: the set's lowest latency over the author's"
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
    """Lay out a row for each author."""
    several = len({row.hardware for row in rows}) > 1
    headings = [Column("Author"), *(Column(text, True) for text in ("Score", "Speed-up", "Wins", *_fast_headings()))]
    headings += [Column("Roofline", True), Column("Of fastest", True), Column("Passed", True)]
    headings += [Column("Hardware")] if several else []
    cells = [
        [
            to_one_line(row.author),
            format_speedup(row.score),
            format_mean(row.speedup),
            format_share(row.win_rate),
            *_fast_cells(row.fast_p),
            format_share(row.roofline_share),
            format_share(row.fastest_share),
            f"{row.passed}/{row.workloads}",
            *([to_one_line(row.hardware)] if several else []),
        ]
        for row in rows
    ]
    against = "the reference" if baseline_author is None else f"solutions of {to_one_line(baseline_author)}"
    notes = f"{wrap_line(f'against {against}', width)}\n{wrap_line(AUTHOR_NOTE, width)}\n"
    return f"{render_table(headings, cells, width)}\n{notes}"


def render_groups(rows: Sequence[GroupRow], heading: str, width: int) -> str:
    """Lay out a row for each op type or kind of hardware."""
    names = ("Definitions", "Solutions", "Passed", "Speed-up", *_fast_headings(), "Roofline")
    cells = [
        [
            to_one_line(row.group) or ABSENT,
            str(row.definitions),
            str(row.solutions),
            f"{row.passed}/{row.judged}",
            format_mean(row.speedup),
            *_fast_cells(row.fast_p),
            format_share(row.roofline_share),
        ]
        for row in rows
    ]
    return render_table([Column(heading), *(Column(name, True) for name in names)], cells, width)


def render_winners(rows: Sequence[WinnersRow], heading: str, width: int) -> str:
    """Lay out how many workloads each group has the best solution of."""
    headings = [Column(heading), Column("Best on", True), Column("Speed-up", True), Column("Leading authors")]
    cells = [
        [
            to_one_line(row.group) or ABSENT,
            f"{row.workloads}/{row.of}",
            format_speedup(row.speedup),
            ", ".join(f"{to_one_line(author)} {times}" for author, times in row.leaders),
        ]
        for row in rows
    ]
    return render_table(headings, cells, width)


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


def _fast_headings() -> list[str]:
    return [f"fast_{p:g}" for p in SHOWN_P]


def _fast_cells(shares: Sequence[float]) -> list[str]:
    return [format_share(shares[FAST_P.index(p)]) for p in SHOWN_P]


def _show(args: argparse.Namespace, rows: Sequence[object], text: str) -> int:
    if args.format == "json":
        write_out(json.dumps({"p": FAST_P, "rows": rows}, indent=2) + "\n")
    elif text:
        write_out(text)
    else:
        write_err(NOTHING)
    return 0
