"""How reports are shown: rows as JSON or as a table. Columns that tell nothing or do not fit are left out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from flashinfer_bench.cli.output import write_err, write_json, write_out
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
from flashinfer_bench.report.intervals import MeanRatio

Cells = Sequence[tuple[Column, Callable[[Any], str]]]
"""Columns, and what each shows of a row."""


def show_rows(
    args: argparse.Namespace, rows: Sequence[Any], render: Callable[[int], str], nothing: str, **document: Any
) -> int:
    """Print rows in the form that is asked for, and return the exit code.

    Args:
        args: with the format.
        rows: dataclasses.
        render: makes the text, by the width that there is.
        nothing: the note if there are no rows.
        document: what JSON has beside the rows.
    """
    if args.format == "json":
        write_json({**document, "rows": list(map(asdict, rows))})
    elif rows:
        write_out(render(available_width(sys.stdout)))
    else:
        write_err(nothing)
    return 0


def lay_out(
    cells: Cells, rows: Sequence[Any], width: int, spared: Sequence[str] = (), notes: Sequence[str] = ()
) -> str:
    """Lay rows out, then notes.

    Args:
        cells: the columns; one that tells nothing is left out.
        rows: what the columns show; a text is a line of its own.
        width: in characters.
        spared: headings of columns that are left out, the first first, while the table is too wide.
        notes: lines below the table.
    """
    kept = [column for column, _ in cells]
    lines: list[Row] = [row if isinstance(row, str) else [cell(row) for _, cell in cells] for row in rows]
    shown = zip(*(line for line in lines if not isinstance(line, str)), strict=True)
    empty = [column.heading for column, texts in zip(kept, shown, strict=True) if set(texts) <= {"", ABSENT}]
    for heading in (*empty, *spared):
        places = [place for place, column in enumerate(kept) if column.heading != heading]
        if heading in empty or natural_width(kept, lines) > width:
            kept = [kept[place] for place in places]
            lines = [line if isinstance(line, str) else [line[place] for place in places] for line in lines]
    below = "".join(f"{wrap_line(note, width)}\n" for note in notes)
    return render_table(kept, lines, width) + (f"\n{below}" if below else "")


def format_mean(mean: MeanRatio | None) -> str:
    """Return a ratio with its interval."""
    if mean is None:
        return ABSENT
    if mean.low is None or mean.high is None:
        return format_speedup(mean.value)
    return f"{format_speedup(mean.value)} ({mean.low:.3g}-{mean.high:.3g})"
