"""Text of tables: numbers, columns, widths. A command decides what its table shows."""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TextIO

from rich.cells import cell_len, chop_cells

from flashinfer_bench.base.printable import to_printable

ABSENT: Final = "\u2013"
"""The cell of a number that is missing."""
UNLIMITED: Final = 100_000
"""Width of a file or a pipe, in characters: nothing is folded there."""
NARROWEST: Final = 40
GAP: Final = 2
NARROWEST_COLUMN: Final = 8
FOLDS: Final = (re.compile(r" "), re.compile(r"[-_/.]"), re.compile(r"[a-z0-9](?=[A-Z])"))
"""Places where a name may fold, the best first. The last one is between the words of a class's name."""
UUID_SHOWN: Final = 8
LARGEST_HALF: Final = 0.995
"""Half an interval from here on rounds to 100 %: then the time says little more than that there is one."""


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    heading: str
    is_number: bool = False


Row = Sequence[str] | str
"""The cells of a row, or a line of its own across all columns."""


def render_table(columns: Sequence[Column], rows: Sequence[Row], width: int) -> str:
    """Lay rows out. Names fold where the width is too small, numbers never do."""
    rows = [to_printable(row) if isinstance(row, str) else [to_printable(cell) for cell in row] for row in rows]
    widths = _fit(columns, _natural_widths(columns, rows), width)
    rule = "─" * (sum(widths) + GAP * (len(widths) - 1))
    lines = [*_row_lines(columns, widths, [column.heading for column in columns]), rule]
    for row in rows:
        lines += chop_cells(row, width) if isinstance(row, str) else _row_lines(columns, widths, row)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def natural_width(columns: Sequence[Column], rows: Sequence[Row]) -> int:
    """Return the width that a table needs to show everything unfolded."""
    return sum(_natural_widths(columns, rows)) + GAP * (len(columns) - 1)


def _natural_widths(columns: Sequence[Column], rows: Sequence[Row]) -> list[int]:
    listed = [[column.heading for column in columns], *(row for row in rows if not isinstance(row, str))]
    return [max(map(cell_len, cells)) for cells in zip(*listed, strict=True)]


def _fit(columns: Sequence[Column], widths: Sequence[int], limit: int) -> list[int]:
    """Narrow the widest columns of names until the table fits."""
    fitted = list(widths)
    names = [index for index, column in enumerate(columns) if not column.is_number]
    excess = sum(fitted) + GAP * (len(fitted) - 1) - limit
    while excess > 0 and names:
        widest = max(names, key=lambda index: fitted[index])
        if fitted[widest] <= NARROWEST_COLUMN:
            break
        fitted[widest] -= 1
        excess -= 1
    return fitted


def _row_lines(columns: Sequence[Column], widths: Sequence[int], cells: Sequence[str]) -> list[str]:
    folded = [_fold(cell, width) for cell, width in zip(cells, widths, strict=True)]
    height = max(map(len, folded))
    padded = [[*parts, *[""] * (height - len(parts))] for parts in folded]
    return [
        (" " * GAP).join(_pad(*item) for item in zip(columns, widths, parts, strict=True))
        for parts in zip(*padded, strict=True)
    ]


def _fold(text: str, width: int) -> list[str]:
    """Break a name into lines, after a separator where one is near the end. Later lines are indented further."""
    indent = " " * min(len(text) - len(text.lstrip()) + 2, width // 2)
    lines, prefix = [], ""
    while cell_len(prefix + text) > width:
        head = chop_cells(text, width - len(prefix))[0]
        cuts = (_last_fold(fold, text, len(head)) for fold in FOLDS)
        cut = next((cut for cut in cuts if cut > len(head) // 2), len(head))
        lines.append(prefix + text[:cut])
        text, prefix = text[cut:], indent
    return [*lines, prefix + text]


def _last_fold(fold: re.Pattern[str], text: str, limit: int) -> int:
    return max((found.end() for found in fold.finditer(text) if found.end() <= limit), default=0)


def _pad(column: Column, width: int, text: str) -> str:
    space = " " * (width - cell_len(text))
    return space + text if column.is_number else text + space


def available_width(stream: TextIO, environment: Mapping[str, str] = os.environ) -> int:
    """Return the width to lay out for: $COLUMNS, or the terminal's width. A pipe or a file has no limit."""
    if environment.get("COLUMNS", "").isdigit() or stream.isatty():
        return max(NARROWEST, shutil.get_terminal_size().columns)
    return UNLIMITED


def wrap_line(text: str, width: int, indent: int = 0) -> str:
    """Wrap one long line, its continuation indented further."""
    first, rest = " " * indent, " " * (indent + 2)
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


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
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: "1 job", "3 jobs"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def shorten_uuid(uuid: str) -> str:
    """Return the beginning of a uuid; other names stay whole."""
    head, dash, _ = uuid.partition("-")
    is_hex = len(head) >= UUID_SHOWN and all(char in "0123456789abcdef" for char in head.lower())
    return head[:UUID_SHOWN] if is_hex and (dash or len(head) == 32) else uuid
