"""Verdicts as text, for `run`, `submit` and `report`: a verdict in one line; tables of solutions and of the best
traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import zip_longest
from operator import attrgetter
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flashinfer_bench.cli.tables import (
    ABSENT,
    COMPILE,
    DAGGER,
    SOL,
    UUID,
    Cells,
    Names,
    count,
    default_columns,
    fill_cell,
    format_latency,
    format_speedup,
    join_sections,
    name_workloads,
    render_blocks,
    render_table,
    shorten_uuid,
    some,
    wrap_line,
)
from flashinfer_bench.data.measurement import INDICATIVE, NOT_CONFIRMED
from flashinfer_bench.data.sets.results import Result
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.report.intervals import interval_of, mean_speedup
from flashinfer_bench.report.summary import SummaryRow, WorkloadRow
from flashinfer_bench.report.timing import Timing, describe_bounds, describe_flag, describe_ways, join_timings
from flashinfer_bench.report.verdict import reason_of, to_one_line

if TYPE_CHECKING:
    from flashinfer_bench.bench.events import JobFaulted
    from flashinfer_bench.bench.planning.plan import Job

ENDED: Final = {"LEFT_OUT": "not judged", "FAULT": "without a verdict"}
"""Result of a job that has no status → wording in the result of a run."""
SUMMARY_NOTE: Final = "latency: median over the passed workloads; speed-up over {}: geometric mean"
WEIGHT_NOTE: Final = "means are weighted by workload weights; medians and counts are not"
RANKED: Final = "#GPU MODE score"
RANKED_NOTE: Final = (
    "GPU MODE score: mean of the timed workloads by the problem's ranking_by, or the last; lower is better"
)
SOL_CELL: Final = "{sol_score}"
SOL_NOTE: Final = "SOL score: 0.5 at the baseline, 1 at the floor, 0 for a failure; arithmetic mean; baseline, peak: {}"
TIMING_MARK: Final = "*"
TIE_MARK: Final = "="
TIE_CELLS: Final = ("#Latency", "#Speed-up", "Flags")
"""Columns that are filled in the line of a tie."""
MOST_TIES: Final = 4
"""Maximum number of lines for ties below a row. JSON has all ties."""
TIE_NOTE: Final = f"{TIE_MARK} a tie: its interval meets that of the row above, so which is faster cannot be told"
BEST_MARK: Final = "<"
GRID_NOTES: Final = {
    BEST_MARK: "the fastest on its workload",
    TIE_MARK: "a tie: its interval meets that of the fastest, so which is faster cannot be told",
}
STANDING_NOTE: Final = f"{DAGGER} {NOT_CONFIRMED}: not judged at full assurance; a confirmed result comes before it"
PRINTED: Final = "printed_bytes"
"""Key in `extra` of a verdict whose solution printed in its calls."""


_Columns = dict[str, str | Callable[[Any], str]]
"""Columns of a table that can be added to; see `Cells`."""


class Line(NamedTuple):
    """A line of a table of times by workload."""

    name: str
    hardware: str
    rows: dict[str, WorkloadRow]
    """Heading of a column → the row with the time."""


def describe_job(job: Job, names: Names) -> str:
    """Return the names of definition, solution and workload of a job."""
    uuid = job.workload.uuid
    called = names.get((job.definition.name, uuid)) or shorten_uuid(uuid)
    return to_one_line(f"{job.definition.name} / {job.solution.name} / {called}")


def describe_fault(fault: JobFaulted, names: Names) -> str:
    """Return the message of a fault, with names of workloads instead of uuids."""
    definition = fault.job.definition.name
    return UUID.sub(lambda found: names.get((definition, found[0]), found[0]), fault.message)


def name_jobs(jobs: Iterable[Job | AnyTrace], *, uuids: bool = False) -> Names:
    """Return the names of the workloads of jobs and traces; see `name_workloads`."""
    called = ((one, str(getattr(one.definition, "name", one.definition))) for one in jobs)
    return name_workloads(((name, one.workload.uuid, one.workload.axes) for one, name in called), uuids=uuids)


def describe_verdict(result: Result) -> str:
    """Return the status, followed by the numbers of a pass or the reason of a failure."""
    evaluation, status = result.evaluation, result.status
    if evaluation.performance is None:
        return ": ".join(filter(None, (status, reason_of(evaluation))))
    if not evaluation.performance.latency_ms:
        return f"{status} (not timed)"
    speedup, interval = mean_speedup([result]), interval_of(result)
    half = interval.half_share if interval is not None and interval.kind else None
    return "".join(
        (
            f"{status} {format_latency(evaluation.performance.latency_ms, half)}",
            f", {format_speedup(speedup.value, speedup.interval)}" if speedup is not None else "",
            "" if result.measurement.meaningful else " (not a meaningful time)",
            " (it prints in its calls, which costs time)" if (evaluation.extra or {}).get(PRINTED) else "",
        )
    )


def summary_cells(rows: Sequence[SummaryRow]) -> Cells:
    """Return the columns of a table with a row for each solution."""
    own: _Columns = {
        "Solution": "{solution}",
        "#Passed": lambda row: f"{row.passed}/{row.judged + row.pending}" if row.judged else ABSENT,
    }
    if any(row.pending for row in rows):
        own["#Not judged"] = lambda row: str(row.pending or "")
    cells = _add_figures(rows, own)
    return {**cells, RANKED: "{ranked_ms:ms}"} if any(row.ranked_ms for row in rows) else cells


def best_cells(rows: Sequence[WorkloadRow], names: Names) -> Cells:
    """Return the columns of a table with the best passing trace of each workload."""
    own: _Columns = {"Workload": lambda row: names[row.definition, row.workload]}
    if not all("=" in names[row.definition, row.workload] for row in rows):
        own["Axes"] = lambda row: " ".join(f"{name}={size}" for name, size in row.axes.items()) or ABSENT
    return _add_figures(rows, own | {"Solution": "{solution}"})


def render_summary(
    rows: Sequence[SummaryRow], names: Names, cells: Cells | None = None, against: str = "the reference"
) -> str:
    """Render a row for each solution, then the reasons of all failures, then notes on the numbers.

    Args:
        names: the names of the rows' workloads.
        cells: the columns to render; None for the default columns.
        against: the baseline of the speed-ups.
    """
    failures = ["Failures"]
    for row in (row for row in rows if row.failures):
        failures.append(f"  {row.definition} / {row.solution}")
        for group in row.failures:
            shown = some([names[row.definition, uuid] for uuid in group.workloads], more=", …")
            where = f"{len(group.workloads)} of {count(row.judged, 'workload')} ({shown})"
            if len(group.workloads) == row.judged:
                where = f"all {row.judged} workloads" if row.judged > 1 else f"workload {shown}"
            reason = group.reason or "no reason recorded"
            failures.append(f"    {group.status} on {where}: {'' if group.is_exact else 'for example, '}{reason}")
    cells = cells or default_columns(summary_cells(rows))
    notes = [SUMMARY_NOTE.format(against)] if any(row.latency_ms is not None for row in rows) else []
    notes += [RANKED_NOTE] if RANKED in cells else []
    return _render(rows, cells, failures[1:] and failures, [*notes, *weight_notes(rows)])


def render_best(rows: Sequence[WorkloadRow], names: Names, cells: Cells | None = None) -> str:
    """Render the best passing trace of each workload; see `render_summary`."""
    return _render(rows, cells or default_columns(best_cells(rows, names)))


def render_verdicts(rows: Sequence[WorkloadRow], names: Names, by: str) -> str:
    """Render a row for each verdict on one solution or one workload; `by` is "Workload" or "Solution"."""
    own: _Columns = {
        "Workload": lambda row: names[row.definition, row.workload],
        "Solution": "{solution}",
    }
    cells = dict(default_columns(_add_figures(rows, {by: own[by], "Status": "{status}"})))
    del cells["Definition"]
    if any(row.failures for row in rows):
        cells["Reason"] = lambda row: row.failures[0].reason if row.failures else ""
    return _render(rows, cells) if rows else ""


def make_grid(rows: Sequence[WorkloadRow], names: Names) -> tuple[Cells, list[Line]]:
    """Return the columns and lines of a table of one definition's times. `rows` are the result of `by_workload`.

    Each line is a solution, and each column is a workload. If there are more workloads than solutions, the table is
    transposed.
    """
    solutions = list(dict.fromkeys(row.solution for row in rows))
    ordered = sorted(rows, key=lambda row: ([*row.axes.items()], row.workload))
    workloads = list(dict.fromkeys(names[row.definition, row.workload] for row in ordered))
    is_turned = len(workloads) > len(solutions)
    downs, columns = (workloads, solutions) if is_turned else (solutions, workloads)
    found: dict[tuple[str, str], dict[str, WorkloadRow]] = {}
    for row in rows:
        pair = row.solution, names[row.definition, row.workload]
        down, column = reversed(pair) if is_turned else pair
        found.setdefault((down, row.hardware), {})[column] = row
    lines = [Line(*key, found[key]) for key in sorted(found, key=lambda key: (key[1], downs.index(key[0])))]
    cells: _Columns = {"Workload" if is_turned else "Solution": attrgetter("name")}
    for column in columns:
        cells[f"#{column}"] = partial(_time_in, column)
    if len({line.hardware for line in lines}) > 1:
        cells["Hardware"] = attrgetter("hardware")
    if letters := _letters(rows):
        cells["Flags"] = lambda line: ", ".join(
            flag for flag in join_timings([row.timing for row in line.rows.values()]).flags if flag in letters
        )
    return cells, lines


def render_grid(rows: Sequence[WorkloadRow], cells: Cells, lines: Sequence[Line]) -> str:
    """Render the table of `make_grid`, and the meaning of the marks."""
    marks = {BEST_MARK: any(row.is_best for row in rows), TIE_MARK: any(row.is_tie for row in rows)}
    return join_sections(render_blocks(cells, lines), [f"{mark} {GRID_NOTES[mark]}" for mark in marks if marks[mark]])


def render_times(rows: Sequence[WorkloadRow], cells: Cells, lines: Sequence[Line]) -> str:
    """Render the table of `make_grid` with all notes."""
    notes = [*sol_notes(rows, cells), *_notes(rows, in_words=True)]
    return join_sections(_head(rows), render_grid(rows, cells, lines), notes)


def speedup_cell(row: Any) -> str:
    """Return the speed-up of a row, with the interval of the speed-up."""
    return format_speedup(row.speedup, row.speedup_interval95)


def head_of(standings: Iterable[str]) -> list[str]:
    """Return the line above a table whose results are all from CPUs; no line for a table with results of GPUs."""
    return [INDICATIVE] if set(standings) - {""} == {INDICATIVE} else []


def standing_mark(standing: str) -> str:
    """Return the mark of an unconfirmed GPU result; empty for CPU results and confirmed results."""
    return DAGGER if standing == NOT_CONFIRMED else ""


def standing_notes(rows: Iterable[Any]) -> list[str]:
    """Return the footnote of `standing_mark`, if a row has the mark."""
    return [STANDING_NOTE] if any(standing_mark(row.standing) for row in rows) else []


def weight_notes(rows: Iterable[Any]) -> list[str]:
    """Return a note if means are weighted."""
    return [WEIGHT_NOTE] if any(row.weighted for row in rows) else []


def sol_notes(rows: Sequence[Any], cells: Cells) -> list[str]:
    """Return a note if a table has the column of speed-of-light scores."""
    basis = {text for row in rows if SOL in cells for text in row.sol_basis}
    return [SOL_NOTE.format("; ".join(sorted(basis)))] if basis else []


def _add_figures(rows: Sequence[SummaryRow], own: Cells) -> Cells:
    """Return the columns of a table: the definition, then the columns of `own`, then the figures."""
    letters = _letters(_with_ties(rows))
    cells: _Columns = {
        "Definition": "{definition}",
        **own,
        "#Latency": lambda row: _latency(row) + _caveat_mark(row, row.latency_ms),
        "#Speed-up": lambda row: speedup_cell(row) + _caveat_mark(row, row.speedup),
    }
    cells[SOL], cells[COMPILE] = SOL_CELL, "{compile_speedup:x}"
    if len({row.hardware for row in rows if row.hardware}) > 1:
        cells["Hardware"] = lambda row: row.hardware or ABSENT
    if letters:
        cells["Flags"] = lambda row: " ".join(letters[one] for one in row.timing.flags if one in letters)
    return cells


def _render(rows: Sequence[SummaryRow], cells: Cells, details: Sequence[str] = (), notes: Sequence[str] = ()) -> str:
    """Render rows, then details and notes. Below each row there is a line for every solution that ties with the
    row."""
    lines: list[list[str]] = []
    for row in rows:
        lines.append([fill_cell(cell, row) for cell in cells.values()])
        names = [f"{TIE_MARK} {tie.solution}" for tie in row.ties[:MOST_TIES]]
        if len(row.ties) > MOST_TIES:
            names.append(f"{TIE_MARK} and {len(row.ties) - MOST_TIES} more")
        for name, tie in zip_longest(names, row.ties[:MOST_TIES]):
            shown = {one: fill_cell(cells[one], tie) for one in TIE_CELLS if tie and one in cells}
            below = {"Definition": row.definition, "Solution": name, **shown}
            lines.append([below.get(heading, "") for heading in cells])
    notes = [*notes, *sol_notes(rows, cells), *_notes(rows)]
    return join_sections(_head(rows), render_table(list(cells), lines), details, notes)


def _time_in(column: str, line: Line) -> str:
    row = line.rows.get(column)
    if row is None:
        return f"{ABSENT} "
    if row.latency_ms is None:
        return f"{row.status} "
    mark = BEST_MARK if row.is_best else TIE_MARK if row.is_tie else " "
    return format_latency(row.latency_ms) + standing_mark(row.standing) + _caveat_mark(row, row.latency_ms) + mark


def _latency(row: SummaryRow) -> str:
    return format_latency(row.latency_ms, row.interval_share) + standing_mark(row.standing)


def _caveat_mark(row: SummaryRow, number: float | None) -> str:
    return "" if number is None or row.timing_caveat is None else TIMING_MARK


def _head(rows: Sequence[SummaryRow]) -> list[str]:
    """Return a line for each flag that all rows with a meaningful time have."""
    rows = _with_ties(rows)
    timing, timed = join_timings([row.timing for row in rows]), _timings_of(rows)
    which = "all rows" if len(timed) == len(rows) else "all rows with a meaningful time"
    return [wrap_line(f"{which}: {describe_flag(flag, timing)}") for flag in _common_flags(rows)]


def _notes(rows: Sequence[SummaryRow], *, in_words: bool = False) -> list[str]:
    """Return notes about marks, clocks, bounds and flags. Each flag has a letter unless `in_words` is true."""
    has_ties, rows = any(row.ties for row in rows), _with_ties(rows)
    timing = join_timings([row.timing for row in rows])
    return [
        *([TIE_NOTE] if has_ties else []),
        *standing_notes(rows),
        *(line for line in (describe_ways(timing), describe_bounds(timing)) if line is not None),
        *(
            wrap_line(("" if in_words else f"{letter} ") + describe_flag(flag, timing))
            for flag, letter in _letters(rows).items()
        ),
        *dict.fromkeys(f"{TIMING_MARK} {row.timing_caveat}" for row in rows if row.timing_caveat is not None),
    ]


def _with_ties(rows: Sequence[SummaryRow]) -> list[SummaryRow]:
    """Return the rows, each followed by its shown ties."""
    return [one for row in rows for one in (row, *row.ties[:MOST_TIES])]


def _common_flags(rows: Sequence[SummaryRow]) -> list[str]:
    """Return the flags that all rows with a meaningful time have, if there are at least two such rows."""
    timed = _timings_of(rows)
    return [
        flag for flag in join_timings(timed).flags if len(timed) > 1 and all(flag in timing.flags for timing in timed)
    ]


def _timings_of(rows: Sequence[SummaryRow]) -> list[Timing]:
    """Return the timings of the rows with a meaningful time."""
    return [row.timing for row in rows if row.latency_ms is not None and row.timing_caveat is None]


def _letters(rows: Sequence[SummaryRow]) -> dict[str, str]:
    """Return flag → letter in the table, without the flags that all rows have."""
    common = _common_flags(rows)
    flags = [flag for flag in join_timings([row.timing for row in rows]).flags if flag not in common]
    return dict(zip(flags, ascii_lowercase, strict=False))
