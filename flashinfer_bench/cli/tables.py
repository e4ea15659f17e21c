"""Text of tables: numbers, columns, widths. What stands in a table is the business of the command that shows it."""

from __future__ import annotations

import io
import os
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TextIO

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

ABSENT: Final = "\u2013"
"""What a table has where there is no number."""
UNLIMITED: Final = 100_000
"""Width of a file or a pipe: nothing is folded there."""
NARROWEST: Final = 40
GAP: Final = 2
"""Between columns: one of padding, one where the box would have its line."""
UUID_SHOWN: Final = 8


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    heading: str
    is_number: bool = False


def render_table(columns: Sequence[Column], rows: Iterable[Sequence[str]], width: int) -> str:
    """Lay rows out; names fold where the width is too small for them, numbers never do."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(
            Text(column.heading),
            justify="right" if column.is_number else "left",
            no_wrap=column.is_number,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, legacy_windows=False).print(table)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def natural_width(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> int:
    """Return the width that a table needs to show everything unfolded."""
    listed = [[column.heading for column in columns], *rows]
    return sum(max(map(cell_len, cells)) for cells in zip(*listed, strict=True)) + GAP * len(columns)


def available_width(stream: TextIO, environment: Mapping[str, str] = os.environ) -> int:
    """Return the width to lay out for: the terminal's, or $COLUMNS; a pipe or a file has no limit."""
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


def format_speedup(speedup: float | None) -> str:
    """Return how many times as fast as the reference."""
    if speedup is None:
        return ABSENT
    return f"{speedup:.0f}x" if speedup >= 100 else f"{speedup:.2f}x"


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
