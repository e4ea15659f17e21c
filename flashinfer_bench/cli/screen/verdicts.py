"""Text of verdicts: the summary table, the reasons of failures, the best solutions. Used by `run` and by `report`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from string import ascii_lowercase
from typing import Final, TypeVar

from flashinfer_bench.cli.screen.tables import (
    ABSENT,
    Column,
    Row,
    count,
    format_half,
    format_latency,
    format_speedup,
    natural_width,
    render_table,
    shorten_uuid,
    wrap_line,
)
from flashinfer_bench.data.measurement import INDICATIVE, NOT_CONFIRMED
from flashinfer_bench.report.best import BestRow
from flashinfer_bench.report.ranking import AuthorRow
from flashinfer_bench.report.summary import FailureGroup, SummaryRow, Tie
from flashinfer_bench.report.timing import describe_bounds, describe_flag, describe_ways, flags_of

SUMMARY_NOTE: Final = "latency: median over the passed workloads; speed-up over the reference: geometric mean"
TIMING_MARK: Final = "*"
TIE_MARK: Final = "="
MOST_TIES: Final = 4
"""Lines below a row for solutions that tie with it; JSON has all of them."""
TIE_NOTE: Final = f"{TIE_MARK} a tie: its interval meets that of the row above, so which is faster cannot be told"
DAGGER: Final = "†"
"""Marks a result of a GPU that is not confirmed."""
STANDING_NOTE: Final = f"{DAGGER} {NOT_CONFIRMED}: not judged at full assurance; a confirmed result comes before it"
SHOWN_UUIDS: Final = 3
Cell = TypeVar("Cell")
HasStanding = SummaryRow | BestRow | Tie | AuthorRow


def render_summary(rows: Sequence[SummaryRow], width: int) -> str:
    """Lay out a row for each solution, then the reasons of all failures, then notes on the numbers."""
    cells = [_summary_cells(row) for row in rows]
    headings = [Column("Solution"), *(Column(text, True) for text in ("Passed", "Not judged", "Latency", "Speed-up"))]
    hardware = {row.hardware for row in rows if row.hardware}
    if len(hardware) > 1:
        headings.append(Column("Hardware"))
        cells = [[*line, row.hardware or ABSENT] for line, row in zip(cells, rows, strict=True)]
    if not any(row.pending for row in rows):
        headings, cells = _without(2, headings), [_without(2, line) for line in cells]
    headings, cells = _with_flags(rows, headings, cells)
    table = _by_definition(*_with_ties(rows, headings, cells), width)
    notes = [SUMMARY_NOTE] if any(row.latency_ms is not None for row in rows) else []
    notes += [*_tie_notes(rows), *standing_notes(rows), *_timing_notes(rows), *_caveats(rows)]
    texts = [table, *_render_failures(rows, width), "".join(f"{wrap_line(note, width)}\n" for note in notes)]
    return "\n".join(filter(None, texts))


def render_best(rows: Sequence[BestRow], width: int) -> str:
    """Lay out the best passing trace of each workload."""
    headings = [
        Column("Workload"),
        Column("Axes"),
        Column("Solution"),
        Column("Latency", True),
        Column("Speed-up", True),
    ]
    cells = [
        [shorten_uuid(row.workload), _axes(row), row.solution, *_timing_cells(row.latency_ms, row.speedup, row)]
        for row in rows
    ]
    if len({row.hardware for row in rows}) > 1:
        headings.append(Column("Hardware"))
        cells = [[*line, row.hardware] for line, row in zip(cells, rows, strict=True)]
    headings, cells = _with_flags(rows, headings, cells)
    table = _by_definition(*_with_ties(rows, headings, cells), width)
    notes = (*_tie_notes(rows), *standing_notes(rows), *_timing_notes(rows), *_caveats(rows))
    return "\n".join(filter(None, [table, "".join(f"{wrap_line(note, width)}\n" for note in notes)]))


def head_of(standings: Iterable[str]) -> str:
    """Return what stands above a table of a set that only CPUs judged; empty for any other."""
    return f"{INDICATIVE}\n\n" if set(standings) - {""} == {INDICATIVE} else ""


def standing_mark(row: HasStanding) -> str:
    """Return what stands behind a figure that is not confirmed."""
    return DAGGER if row.standing == NOT_CONFIRMED else ""


def standing_notes(rows: Iterable[HasStanding]) -> list[str]:
    """Return the footnote of that mark, if a row has it."""
    return [STANDING_NOTE] if any(map(standing_mark, rows)) else []


def describe_failure(group: FailureGroup, judged: int) -> str:
    """Return a line for a group of failures: status, number of workloads, reason."""
    shown = ", ".join(shorten_uuid(uuid) for uuid in group.workloads[:SHOWN_UUIDS])
    more = ", …" if len(group.workloads) > SHOWN_UUIDS else ""
    if len(group.workloads) == judged:
        where = f"all {count(judged, 'workload')}" if judged > 1 else f"its workload {shown}"
    else:
        where = f"{len(group.workloads)} of {count(judged, 'workload')} ({shown}{more})"
    reason = group.reason or "no reason recorded"
    return f"{group.status} on {where}: {'' if group.is_exact else 'for example, '}{reason}"


def _by_definition(
    definitions: Sequence[str], headings: Sequence[Column], cells: Sequence[Sequence[str]], width: int
) -> str:
    """Show the definition in a column of its own where there is room, else in a line above its rows."""
    flat: list[Row] = [[definition, *line] for definition, line in zip(definitions, cells, strict=True)]
    columns = [Column("Definition"), *headings]
    if not cells or natural_width(columns, flat) <= width:
        return render_table(columns, flat, width)
    lines: list[Row] = []
    previous = None
    for definition, line in zip(definitions, cells, strict=True):
        if definition != previous:
            lines.append(definition)
        lines.append([f"  {line[0]}", *line[1:]])
        previous = definition
    return render_table(headings, lines, width)


def _summary_cells(row: SummaryRow) -> list[str]:
    return [
        row.solution,
        f"{row.passed}/{row.judged}" if row.judged else ABSENT,
        str(row.pending) if row.pending else "",
        *_timing_cells(row.latency_ms, row.speedup, row),
    ]


def _timing_cells(latency_ms: float | None, speedup: float | None, row: SummaryRow | BestRow) -> list[str]:
    mark = "" if row.timing_caveat is None else TIMING_MARK
    latency, times = format_latency(latency_ms) + _half_interval(row), format_speedup(speedup)
    latency += standing_mark(row) if latency != ABSENT else ""
    return [text if text == ABSENT else f"{text}{mark}" for text in (latency, times)]


def _with_flags(
    rows: Sequence[SummaryRow] | Sequence[BestRow], headings: list[Column], cells: list[list[str]]
) -> tuple[list[Column], list[list[str]]]:
    """Add a column with a letter for each flag, where any time has one."""
    letters = _letters(rows)
    if not letters:
        return headings, cells
    marks = [" ".join(letters[flag] for flag in row.timing.flags if flag in letters) for row in rows]
    return [*headings, Column("Flags")], [[*line, mark] for line, mark in zip(cells, marks, strict=True)]


def _letters(rows: Iterable[SummaryRow | BestRow]) -> dict[str, str]:
    return dict(zip(flags_of(row.timing for row in rows), ascii_lowercase, strict=False))


def _timing_notes(rows: Sequence[SummaryRow] | Sequence[BestRow]) -> list[str]:
    """Return notes that say how the times were taken and what their flags mean."""
    timings = [row.timing for row in rows]
    notes = [line for line in (describe_ways(timings), describe_bounds(timings)) if line is not None]
    return notes + [f"{letter} {describe_flag(flag, timings)}" for flag, letter in _letters(rows).items()]


def _caveats(rows: Iterable[SummaryRow | BestRow]) -> list[str]:
    reasons = dict.fromkeys(row.timing_caveat for row in rows if row.timing_caveat is not None)
    return [f"{TIMING_MARK} {reason}" for reason in reasons]


def _render_failures(rows: Iterable[SummaryRow], width: int) -> list[str]:
    failed = [row for row in rows if row.failures]
    if not failed:
        return []
    lines = ["Failures"]
    for row in failed:
        lines.append(wrap_line(f"{row.definition} / {row.solution}", width, 2))
        lines += [wrap_line(describe_failure(group, row.judged), width, 4) for group in row.failures]
    return ["\n".join([*lines, ""])]


def _half_interval(row: SummaryRow | BestRow) -> str:
    """Return half the interval of a latency, where it holds for another worker, too."""
    if isinstance(row, SummaryRow):
        return "" if row.interval_share is None else format_half(row.interval_share)
    return "" if row.interval is None or not row.interval.kind else format_half(row.interval.half_share)


def _with_ties(
    rows: Sequence[SummaryRow | BestRow], headings: Sequence[Column], cells: Sequence[Sequence[str]]
) -> tuple[list[str], Sequence[Column], list[Sequence[str]]]:
    """Return definitions, headings and cells, with a line below each row for each solution that ties with it."""
    places = {column.heading: place for place, column in enumerate(headings)}
    definitions: list[str] = []
    lines: list[Sequence[str]] = []
    for row, line in zip(rows, cells, strict=True):
        lines.append(line)
        shown = row.ties if len(row.ties) <= MOST_TIES else row.ties[: MOST_TIES - 1]
        for tie in shown:
            other = [""] * len(headings)
            other[places["Solution"]] = f"{TIE_MARK} {tie.solution}"
            half = "" if tie.half_share is None else format_half(tie.half_share)
            other[places["Latency"]] = format_latency(tie.latency_ms) + half + standing_mark(tie)
            other[places["Speed-up"]] = format_speedup(tie.speedup)
            lines.append(other)
        if len(shown) < len(row.ties):
            more = [""] * len(headings)
            more[places["Solution"]] = f"{TIE_MARK} and {len(row.ties) - len(shown)} more"
            lines.append(more)
        definitions += [row.definition] * (len(lines) - len(definitions))
    return definitions, headings, lines


def _tie_notes(rows: Sequence[SummaryRow] | Sequence[BestRow]) -> list[str]:
    return [TIE_NOTE] if any(row.ties for row in rows) else []


def _axes(row: BestRow) -> str:
    return " ".join(f"{name}={size}" for name, size in row.axes.items()) or ABSENT


def _without(index: int, items: Sequence[Cell]) -> list[Cell]:
    return [item for position, item in enumerate(items) if position != index]
