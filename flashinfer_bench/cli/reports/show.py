"""How reports are shown: rows as JSON, or as a table whose cells are format strings over the fields of a row."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from string import Formatter
from typing import Any, Final

from flashinfer_bench.cli.output import write_err, write_json, write_out
from flashinfer_bench.cli.render import (
    ABSENT,
    Column,
    available_width,
    format_latency,
    format_speedup,
    natural_width,
    render_table,
    shorten_uuid,
    wrap_line,
)
from flashinfer_bench.cli.verdicts import DAGGER
from flashinfer_bench.data.measurement import NOT_CONFIRMED
from flashinfer_bench.data.sets.results import parse_time
from flashinfer_bench.report.decision import FASTER, SLOWER
from flashinfer_bench.report.intervals import MeanRatio
from flashinfer_bench.report.verdict import to_one_line

CHANGE_MARK: Final = ">"
"""Marks a time that differs from the one before."""
Cells = Mapping[Column, str]
"""Columns, and the format string of each."""


def show_rows(args: Namespace, rows: Sequence[Any], render: Callable[[int], str], nothing: str, **document: Any) -> int:
    """Print rows in the form that is asked for, and return the exit code.

    Args:
        args: with the format.
        rows: dataclasses.
        render: makes the text, by the available width.
        nothing: the note if there are no rows.
        document: further entries of the JSON.
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
        cells: the columns; one without any value is left out.
        rows: dataclasses.
        width: in characters.
        spared: headings of columns that are left out one after the other while the table is too wide.
        notes: lines below the table.
    """
    filled = {one: [_fill(text, row) for row in rows] for one, text in cells.items()}
    columns = [one for one in cells if set(filled[one]) - {"", ABSENT}]

    def lines() -> list[tuple[str, ...]]:
        return list(zip(*(filled[one] for one in columns), strict=True))

    for heading in spared:
        if natural_width(columns, lines()) > width:
            columns = [one for one in columns if one.heading != heading]
    below = "".join(f"{wrap_line(note, width)}\n" for note in notes)
    return render_table(columns, lines(), width) + (f"\n{below}" if below else "")


def _format_mean(mean: MeanRatio) -> str:
    interval = "" if mean.low is None else f" ({mean.low:.3g}-{mean.high:.3g})"
    return format_speedup(mean.value) + interval


def _format_time(text: str) -> str:
    moment = parse_time(text)
    return to_one_line(text) if moment is None else moment.strftime("%Y-%m-%d %H:%M")


FORMATS: Final[Mapping[str, Callable[[Any], str]]] = {
    "": lambda value: to_one_line(str(value)),
    "x": format_speedup,
    "ms": format_latency,
    "%": "{:.1%}".format,
    "mean": _format_mean,
    "uuid": shorten_uuid,
    "time": _format_time,
    "list": lambda words: to_one_line("; ".join(words)),
    "change": lambda decision: CHANGE_MARK if decision in (FASTER, SLOWER) else "",
    "standing": lambda standing: DAGGER if standing == NOT_CONFIRMED else "",
}
"""What may stand behind the colon of a field."""


class _Filling(Formatter):
    """Fills format strings with the fields of rows."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return a field by its format."""
        return ABSENT if value is None else FORMATS[format_spec](value)


def _fill(text: str, row: Any) -> str:
    return _Filling().vformat(text, (), vars(row))
