"""Text of tables and numbers. A command decides what its table shows; the tables of verdicts are in `verdicts.py`.

Tables are laid out here and not by rich, whose table takes a second for 3,000 rows.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import zip_longest
from typing import Any, Final, TextIO

from flashinfer_bench.base.printable import to_printable
from flashinfer_bench.cli.output import write_json, write_out

ABSENT: Final = "\u2013"
"""The cell of a number that is missing."""
UNLIMITED: Final = 100_000
"""Width of a file or a pipe, in characters: nothing is folded there."""
NARROWEST: Final = 40
NARROWEST_COLUMN: Final = 8
GAP: Final = "  "
UUID_SHOWN: Final = 8
UUID: Final = re.compile("[0-9a-f]{8}([0-9a-f]{24}|-[0-9a-f-]+)", re.IGNORECASE)
LARGEST_HALF: Final = 0.995
"""Half an interval from here on rounds to 100 %: then the time says little more than that there is one."""
SHOWN_NAMES: Final = 3
SHOWN_LINES: Final = 20


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    heading: str
    is_number: bool = False


Row = Sequence[str] | str
"""The cells of a row, or a line of its own across all columns."""


def render_table(columns: Sequence[Column], rows: Sequence[Row], width: int | None = None) -> str:
    """Lay rows out, usually for stdout. Names fold where the width is too small, numbers never do."""
    width = available_width(sys.stdout) if width is None else width
    cells: list[Row] = [row if isinstance(row, str) else list(map(to_printable, row)) for row in rows]
    widths = _natural_widths(columns, cells)
    names = [index for index, column in enumerate(columns) if not column.is_number]
    while names and sum(widths) + len(GAP) * (len(widths) - 1) > width:
        widest = max(names, key=lambda index: widths[index])
        if widths[widest] <= NARROWEST_COLUMN:
            break
        widths[widest] -= 1

    def lay_out(row: Sequence[str]) -> list[str]:
        folded = zip_longest(*(_fold(*item) for item in zip(row, widths, strict=True)), fillvalue="")
        return [GAP.join(_pad(*item) for item in zip(columns, parts, widths, strict=True)).rstrip() for parts in folded]

    lines = [*lay_out([column.heading for column in columns]), "─" * (sum(widths) + len(GAP) * (len(widths) - 1))]
    for row in cells:
        lines += textwrap.wrap(to_printable(row), width) if isinstance(row, str) else lay_out(row)
    return "".join(f"{line}\n" for line in lines)


def render_rows(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """Lay rows of a document out; no text if there are none.

    Args:
        rows: of a list, the length is shown, and of a table within, its items.
        columns: heading → key of the rows.
    """
    numbers = {key for row in rows[:1] for key, value in row.items() if isinstance(value, int | float | list)}
    shown = [Column(heading, key in numbers) for heading, key in columns.items()]
    cells = [[_as_text(row[key]) for key in columns.values()] for row in rows]
    return render_table(shown, cells) if rows else ""


def natural_width(columns: Sequence[Column], rows: Sequence[Row]) -> int:
    """Return the width that a table needs to show everything unfolded."""
    return sum(_natural_widths(columns, rows)) + len(GAP) * (len(columns) - 1)


def available_width(stream: TextIO) -> int:
    """Return the width to lay out for: $COLUMNS, or the terminal's width. A pipe or a file has no limit."""
    if os.environ.get("COLUMNS", "").isdigit() or stream.isatty():
        return max(NARROWEST, shutil.get_terminal_size().columns)
    return UNLIMITED


def wrap_line(text: str, width: int, indent: int = 0) -> str:
    """Wrap one long line, its continuation indented further."""
    first, rest = " " * indent, " " * (indent + 2)
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def join_sections(*parts: str | Sequence[str]) -> str:
    """Join texts and lists of lines, with an empty line between two; empty ones are left out."""
    texts = [part if isinstance(part, str) else "".join(f"{line}\n" for line in part) for part in parts]
    return "\n".join(filter(None, texts))


def write_result(args: Namespace, document: object, *parts: str | Sequence[str]) -> None:
    """Write a result to stdout: as JSON where the command's --format says so, else the parts of its text."""
    if args.format == "json":
        write_json(document)
    else:
        write_out(join_sections(*parts))


def format_latency(latency_ms: float | None) -> str:
    """Return milliseconds with three significant digits."""
    if latency_ms is None:
        return ABSENT
    return f"{latency_ms:.0f} ms" if latency_ms >= 99.95 else f"{latency_ms:#.3g} ms"


def format_half(share: float) -> str:
    """Return half an interval as it stands behind its time."""
    return f" ±{100 * share:.2g}%" if share < LARGEST_HALF else " ±100% or more"


def format_speedup(speedup: float | None) -> str:
    """Return how many times as fast as the reference."""
    if speedup is None:
        return ABSENT
    if speedup >= 100:
        return f"{speedup:.0f}x"
    return f"{speedup:.2f}x" if speedup >= 0.1 else f"{speedup:.2g}x"


def format_duration(seconds: float) -> str:
    """Return minutes and seconds, with hours where there are any."""
    return str(timedelta(seconds=round(seconds))).removeprefix("0:").removeprefix("0")


def count(number: int, noun: str) -> str:
    """Return a number with its noun: "1 job", "3 jobs"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def some(names: Sequence[str], shown: int = SHOWN_NAMES) -> str:
    """Return the first names of a list, and how many others it has."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"{', '.join(names[:shown])}{more}"


def shorten(lines: Sequence[str], shown: int = SHOWN_LINES) -> list[str]:
    """Return the first and the last lines of a text, and how many lie between."""
    half, more = shown // 2, len(lines) - shown
    return [*lines[:half], f"… {more} more lines", *lines[-half:]] if more > 0 else [*lines]


def shorten_uuid(uuid: str) -> str:
    """Return the beginning of a uuid; other names stay whole."""
    return uuid[:UUID_SHOWN] if UUID.fullmatch(uuid) else uuid


def _natural_widths(columns: Sequence[Column], rows: Sequence[Row]) -> list[int]:
    listed = [[column.heading for column in columns], *(row for row in rows if not isinstance(row, str))]
    return [max(map(len, cells)) for cells in zip(*listed, strict=True)]


def _as_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(len(value) if isinstance(value, list) else value)


def _fold(text: str, width: int) -> list[str]:
    return [text] if len(text) <= width else textwrap.wrap(text, width)


def _pad(column: Column, text: str, width: int) -> str:
    return text.rjust(width) if column.is_number else text.ljust(width)
