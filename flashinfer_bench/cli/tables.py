"""Renders tables and numbers as text. Commands decide what tables show.

A table maps the heading of each column to a format string or a function. A format string has fields of a row, such as
`{latency_ms:ms}`; a function takes the row. The column of a heading that begins with `#` has numbers. This column is
right-aligned, and only the heading is folded. rich is too slow for tables of thousands of rows, so this module renders
them.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import chain, zip_longest
from string import Formatter
from typing import Any, Final

from flashinfer_bench.base.printable import to_printable
from flashinfer_bench.cli.output import write_json, write_out
from flashinfer_bench.errors import UsageError
from flashinfer_bench.report.decision import half_share

ABSENT: Final = "\u2013"
"""The cell of a missing number."""
DAGGER: Final = "†"
"""Marks a GPU result that is not confirmed."""
NUMBER_MARK: Final = "#"
UNLIMITED: Final = 100_000
"""Width of a file or a pipe, in characters. No line is long enough to be folded at this width."""
NARROWEST: Final = 40
NARROWEST_COLUMN: Final = 8
LONGEST_NAME: Final = 24
"""Largest width of a name in a table of several blocks, in characters; longer names are folded."""
GAP: Final = "  "
UUID_SHOWN: Final = 8
UUID: Final = re.compile("[0-9a-f]{8}([0-9a-f]{24}|-[0-9a-f-]+)", re.IGNORECASE)
NUMBER: Final = re.compile(r"(-?\d[\d.]*(?:e[-+]?\d+)?)( ms)?")
"""The number in a cell. The second group says whether the number is a time."""
LARGEST_HALF: Final = 0.995
"""Intervals with at least this relative half width are shown as "±100% or more"."""
SHOWN_NAMES: Final = 3
SHOWN_LINES: Final = 20
SOL: Final = "#SOL score"
COMPILE: Final = "#Over torch.compile"
ON_REQUEST: Final = (SOL, COMPILE)
"""Headings of columns that are shown only if --columns names them."""
Names = Mapping[tuple[str, str], str]
"""(definition, uuid) of a workload → name of the workload."""
Cells = Mapping[str, str | Callable[[Any], str]]
"""Heading of a column → format string or function of the cells."""


def lay_out(
    cells: Cells, rows: Iterable[Any], *, spared: Sequence[str] | None = None, notes: Sequence[str] = ()
) -> str:
    """Render rows for stdout, then notes. The table is omitted without rows.

    Args:
        rows: dictionaries, or objects with fields.
        spared: headings of columns to drop in this order while the table is too wide. With `spared`, columns without
            any value are dropped, too.
        notes: lines below the table.
    """
    filled = _fill(cells, list(rows))
    if spared is not None:
        filled = {heading: column for heading, column in filled.items() if set(column) - {"", ABSENT}}
    for heading in spared or ():
        if _total([_width_of(*item) for item in filled.items()]) > available_width():
            filled.pop(heading, None)
    return join_sections(_render_columns(filled), list(map(wrap_line, notes)))


def _fill(cells: Cells, rows: Sequence[Any]) -> dict[str, list[str]]:
    """Return heading → the cells of the column."""
    return {heading: [fill_cell(cell, row) for row in rows] for heading, cell in cells.items()}


def _render_columns(filled: Mapping[str, Sequence[str]]) -> str:
    rows = list(zip(*filled.values(), strict=True))
    return render_table(list(filled), rows) if rows else ""


def render_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Render cells for stdout. Names are folded if the width is too small."""
    width, lines = available_width(), [list(map(to_printable, row)) for row in rows]
    widths = [_width_of(heading, [line[at] for line in lines]) for at, heading in enumerate(headings)]
    least = [NARROWEST_COLUMN] * len(widths)
    for at, heading in enumerate(headings):
        if heading.startswith(NUMBER_MARK):
            least[at] = max([NARROWEST_COLUMN, *(len(line[at]) for line in lines)])
    while _total(widths) > width:
        foldable = [at for at, size in enumerate(widths) if size > least[at]]
        if not foldable:
            break
        widths[max(foldable, key=widths.__getitem__)] -= 1

    def pad(heading: str, text: str, size: int) -> str:
        return text.rjust(size) if heading.startswith(NUMBER_MARK) else text.ljust(size)

    shown, rule = list[str](), ["─" * _total(widths)]  # the rule is below the headings
    for line in ([heading.removeprefix(NUMBER_MARK) for heading in headings], *lines):
        sized = zip(line, widths, strict=True)
        folded = [[cell] if len(cell) <= size else textwrap.wrap(cell, size) for cell, size in sized]
        shown += [GAP.join(map(pad, headings, parts, widths)).rstrip() for parts in zip_longest(*folded, fillvalue="")]
        shown += rule
        rule = []
    return "".join(f"{line}\n" for line in shown)


def render_blocks(cells: Cells, rows: Sequence[Any]) -> str:
    """Render rows as several tables, one below the other. Each table has the first column, and as many of the next
    columns as fit the width."""
    (first, names), *others = _fill(cells, rows).items()
    start = min(_width_of(first, names), LONGEST_NAME)
    blocks, used = [{first: names}], start
    for heading, column in others:
        size = _width_of(heading[:LONGEST_NAME], column)
        if used + len(GAP) + size > available_width() and len(blocks[-1]) > 1:
            blocks, used = [*blocks, {first: names}], start
        blocks[-1][heading] = column
        used += len(GAP) + size
    return join_sections(*map(_render_columns, blocks))


def available_width() -> int:
    """Return the width of stdout: $COLUMNS, or the terminal's width. A pipe or a file has no limit."""
    if os.environ.get("COLUMNS", "").isdigit() or sys.stdout.isatty():
        return max(NARROWEST, shutil.get_terminal_size().columns)
    return UNLIMITED


def wrap_line(text: str, indent: int = 0) -> str:
    """Wrap one long line to the width of stdout. Its continuation has a larger indent."""
    first, rest = " " * indent, " " * (indent + 2)
    return textwrap.fill(text, available_width(), initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def join_sections(*parts: str | Sequence[str]) -> str:
    """Join texts and lists of lines that are not empty, with an empty line between them."""
    texts = [part if isinstance(part, str) else "".join(f"{line}\n" for line in part) for part in parts]
    return "\n".join(filter(None, texts))


def choose_rows(args: Namespace, cells: Cells, rows: Iterable[Any]) -> list[Any]:
    """Return the rows in the order of --sort, at most --top rows.

    Times and names are in ascending order. All numbers except times are in descending order. Rows with equal cells keep
    their order.

    Raises:
        UsageError: the table has no column of --sort, or --top is below 1.
    """
    if args.top is not None and args.top < 1:
        raise UsageError(f"--top: must be at least 1, not {args.top}")
    if args.sort is None:
        return list(rows)[: args.top]
    heading = _find_heading(cells, "sort", args.sort)

    def rank(row: Any) -> tuple[bool, float, str]:
        cell = fill_cell(cells[heading], row)
        if not heading.startswith(NUMBER_MARK):
            return not cell, 0.0, cell.lower()
        found = NUMBER.search(cell)
        return found is None, float(found[1]) * (1 if found[2] else -1) if found else 0.0, ""

    return sorted(rows, key=rank)[: args.top]


def choose_columns(args: Namespace, cells: Cells) -> Cells:
    """Return the columns of --columns, in the order of the flag. Without the flag, return the default columns.

    Raises:
        UsageError: the table has no column of --columns.
    """
    wanted = [_find_heading(cells, "columns", word) for word in args.columns or ()]
    return {heading: cells[heading] for heading in wanted} or default_columns(cells)


def default_columns(cells: Cells) -> Cells:
    """Return all columns except `ON_REQUEST`."""
    return {heading: cell for heading, cell in cells.items() if heading not in ON_REQUEST}


def write_result(args: Namespace, document: object, *parts: str | Sequence[str]) -> None:
    """Write a result to stdout: the document with --format json, else the parts of the text."""
    if args.format == "json":
        write_json(document)
    else:
        write_out(join_sections(*parts))


def format_latency(latency_ms: float | None, half: float | None = None) -> str:
    """Return a latency in milliseconds with three significant digits, and the half width of its interval in percent."""
    if latency_ms is None:
        return ABSENT
    text = f"{latency_ms:.0f} ms" if latency_ms >= 99.95 else f"{latency_ms:#.3g} ms"
    return text + _format_half(half)


def format_speedup(speedup: float | None, bounds: tuple[float, float] | None = None) -> str:
    """Return a speed-up as text, followed by the half width of its interval in percent."""
    if speedup is None:
        return ABSENT
    text = f"{speedup:.0f}x" if speedup >= 100 else f"{speedup:.2f}x" if speedup >= 0.1 else f"{speedup:.2g}x"
    return text + _format_half(bounds and half_share(*bounds))


def _format_half(half: float | None) -> str:
    if half is None:
        return ""
    return f" ±{100 * half:.2g}%" if half < LARGEST_HALF else " ±100% or more"


def format_duration(seconds: float) -> str:
    """Return minutes and seconds, preceded by hours from one hour on."""
    return str(timedelta(seconds=round(seconds))).removeprefix("0:").removeprefix("0")


def count(number: int, noun: str) -> str:
    """Return a number with its noun: "1 job", "3 jobs"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def list_counts(counts: Mapping[str, int]) -> str:
    """Return the numbers above zero with their names: "3 PASSED, 1 TIMEOUT"."""
    return ", ".join(f"{number} {word}" for word, number in counts.items() if number > 0)


def some(names: Sequence[str], shown: int = SHOWN_NAMES, more: str = " and {} more") -> str:
    """Return the first names of a list. If names are left, `more` follows with their number."""
    return ", ".join(names[:shown]) + (more.format(len(names) - shown) if len(names) > shown else "")


def indent_text(text: str, depth: int, shown: int = SHOWN_LINES) -> list[str]:
    """Return the first and last non-empty lines of a text, indented, with the number of lines between them."""
    lines = [f"{' ' * depth}{to_printable(line.rstrip())}" for line in text.splitlines() if line.strip()]
    half, more = shown // 2, len(lines) - shown
    return [*lines[:half], f"… {more} more lines", *lines[-half:]] if more > 0 else lines


def shorten_uuid(uuid: str) -> str:
    """Return the first characters of a uuid. A name that is no uuid is returned whole."""
    return uuid[:UUID_SHOWN] if UUID.fullmatch(uuid) else uuid


def name_workloads(workloads: Iterable[tuple[str, str, Mapping[str, int]]], *, uuids: bool = False) -> Names:
    """Return the names of workloads: the axes that differ between workloads of one definition, such as "batch_size=7".

    If two workloads have equal axes, or if `uuids` is true, the first characters of the uuid follow. If no axis
    differs, these characters are the whole name. If an author wrote a word instead of a uuid, the word is the name.

    Args:
        workloads: definition, uuid and axes of each workload.
        uuids: always add the uuid.
    """
    groups, names = defaultdict[str, dict[str, Mapping[str, int]]](dict), dict[tuple[str, str], str]()
    for definition, uuid, axes in workloads:
        if UUID.fullmatch(uuid):
            groups[definition][uuid] = axes
        else:
            names[definition, uuid] = uuid
    for definition, group in groups.items():
        called = dict.fromkeys(group, "")
        for axis in dict.fromkeys(chain.from_iterable(group.values())):
            longer = {uuid: f"{name} {axis}={group[uuid].get(axis)}".strip() for uuid, name in called.items()}
            if len(set(longer.values())) > len(set(called.values())):  # the longer names are more distinct
                called = longer
        counts = Counter(called.values())
        for uuid, name in called.items():
            alone = name and counts[name] == 1 and not uuids
            names[definition, uuid] = name if alone else f"{name} {shorten_uuid(uuid)}".strip()
    return names


def _as_text(value: Any) -> str:
    """Return any value as a cell. A list is shown as its length, and a mapping as items."""
    if isinstance(value, Mapping):
        return " ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(len(value) if isinstance(value, list) else value)


def _format_ratio(mean: Any) -> str:
    return format_speedup(mean.value) + ("" if mean.low is None else f" ({mean.low:.3g}-{mean.high:.3g})")


FORMATS: Final[Mapping[str, Callable[[Any], str]]] = {
    "": _as_text,
    "x": format_speedup,
    "ms": format_latency,
    "%": "{:.1%}".format,
    "ratio": _format_ratio,
    "speedup": lambda mean: format_speedup(mean.value, mean.interval),
    "list": "; ".join,
}
"""Format after the colon of a field → function."""


class _Filling(Formatter):
    """Fills format strings with the fields of rows."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return a field in its format."""
        return ABSENT if value is None else FORMATS[format_spec](value)


def fill_cell(cell: str | Callable[[Any], str], row: Any) -> str:
    """Return the text of a cell for a row."""
    if callable(cell):
        return cell(row)
    return _Filling().vformat(cell, (), row if isinstance(row, dict) else vars(row))


def _plain(heading: str) -> str:
    return re.sub(r"[^a-z0-9.=]", "", heading.lower())


def _find_heading(cells: Cells, flag: str, word: str) -> str:
    for heading in cells:
        if heading and _plain(heading) == _plain(word):
            return heading
    known = [heading.removeprefix(NUMBER_MARK).lower().replace(" ", "-") for heading in cells if heading]
    raise UsageError(f"--{flag}: the table has no column {word!r}; it has {', '.join(known)}")


def _width_of(heading: str, cells: Sequence[str]) -> int:
    return max(map(len, (heading.removeprefix(NUMBER_MARK), *cells)))


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)
