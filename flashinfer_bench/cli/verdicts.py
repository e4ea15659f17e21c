"""Tables of verdicts, for `run`, `submit` and `report`: solutions, why they failed, the best of each workload."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from string import ascii_lowercase
from typing import Any, Final

from flashinfer_bench.cli.render import (
    ABSENT,
    Column,
    count,
    format_half,
    format_latency,
    format_speedup,
    join_sections,
    render_table,
    shorten_uuid,
)
from flashinfer_bench.data.measurement import INDICATIVE, NOT_CONFIRMED
from flashinfer_bench.report.ranking import AuthorRow
from flashinfer_bench.report.summary import FailureGroup, SummaryRow
from flashinfer_bench.report.timing import describe_bounds, describe_flag, describe_ways, flags_of

DEFINITION, SOLUTION = Column("Definition"), Column("Solution")
LATENCY, SPEEDUP = Column("Latency", True), Column("Speed-up", True)
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
HasStanding = SummaryRow | AuthorRow


def render_summary(rows: Sequence[SummaryRow], width: int | None = None) -> str:
    """Lay out a row for each solution, then the reasons of all failures, then notes on the numbers."""
    own: dict[Column, Callable[[Any], str]] = {
        SOLUTION: lambda row: row.solution,
        Column("Passed", True): lambda row: f"{row.passed}/{row.judged}" if row.judged else ABSENT,
    }
    if any(row.pending for row in rows):
        own[Column("Not judged", True)] = lambda row: str(row.pending or "")
    failures = [
        line
        for row in rows
        if row.failures
        for line in (
            f"  {row.definition} / {row.solution}",
            *(f"    {describe_failure(group, row.judged)}" for group in row.failures),
        )
    ]
    notes = [SUMMARY_NOTE] if any(row.latency_ms is not None for row in rows) else []
    below = ["Failures", *failures] if failures else []
    return join_sections(_render(rows, own, width), below, [*notes, *_notes(rows)])


def render_best(rows: Sequence[SummaryRow], width: int | None = None) -> str:
    """Lay out the best passing trace of each workload."""
    own: dict[Column, Callable[[Any], str]] = {
        Column("Workload"): lambda row: shorten_uuid(row.workload),
        Column("Axes"): lambda row: " ".join(f"{name}={size}" for name, size in row.axes.items()) or ABSENT,
        SOLUTION: lambda row: row.solution,
    }
    return join_sections(_render(rows, own, width), _notes(rows))


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


def _render(rows: Sequence[SummaryRow], own: dict[Column, Callable[[Any], str]], width: int | None) -> str:
    """Lay out rows, with a line below each for every solution that ties with it."""
    letters = _letters(rows)
    cells: dict[Column, Callable[[Any], str]] = {
        DEFINITION: lambda row: row.definition,
        **own,
        LATENCY: lambda row: _marked(_latency(row), row),
        SPEEDUP: lambda row: _marked(format_speedup(row.speedup), row),
    }
    if len({row.hardware for row in rows if row.hardware}) > 1:
        cells[Column("Hardware")] = lambda row: row.hardware or ABSENT
    if letters:
        cells[Column("Flags")] = lambda row: " ".join(letters[one] for one in row.timing.flags if one in letters)
    lines: list[list[str]] = []
    for row in rows:
        lines.append([cell(row) for cell in cells.values()])
        below = [
            {SOLUTION: f"{TIE_MARK} {tie.solution}", LATENCY: _latency(tie), SPEEDUP: format_speedup(tie.speedup)}
            for tie in row.ties[:MOST_TIES]
        ]
        if len(row.ties) > MOST_TIES:
            below.append({SOLUTION: f"{TIE_MARK} and {len(row.ties) - MOST_TIES} more"})
        lines += [[({DEFINITION: row.definition} | tie).get(column, "") for column in cells] for tie in below]
    return render_table(list(cells), lines, width)


def _notes(rows: Sequence[SummaryRow]) -> list[str]:
    """Return notes that say what marks mean, how the times were taken, and what their flags mean."""
    timings = [row.timing for row in rows]
    return [
        *([TIE_NOTE] if any(row.ties for row in rows) else []),
        *standing_notes(rows),
        *(line for line in (describe_ways(timings), describe_bounds(timings)) if line is not None),
        *(f"{letter} {describe_flag(flag, timings)}" for flag, letter in _letters(rows).items()),
        *dict.fromkeys(f"{TIMING_MARK} {row.timing_caveat}" for row in rows if row.timing_caveat is not None),
    ]


def _letters(rows: Sequence[SummaryRow]) -> dict[str, str]:
    return dict(zip(flags_of(row.timing for row in rows), ascii_lowercase, strict=False))


def _marked(text: str, row: SummaryRow) -> str:
    return text if text == ABSENT or row.timing_caveat is None else f"{text}{TIMING_MARK}"


def _latency(row: SummaryRow) -> str:
    if row.latency_ms is None:
        return ABSENT
    half = "" if row.interval_share is None else format_half(row.interval_share)
    return format_latency(row.latency_ms) + half + standing_mark(row)
