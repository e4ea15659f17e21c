"""`report` and its sub-commands: tables of the traces of a set, and of changes of times and verdicts.

`report html`, `export` and `merge` write traces as pages, as rows of a file, and as another set.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.files.writing import open_to_replace
from flashinfer_bench.base.install import install_hint
from flashinfer_bench.cli.args import (
    choose_traces,
    describe_issues,
    find_output,
    has_nothing,
    named_folders,
    open_trace_set,
)
from flashinfer_bench.cli.output import FAILED, RAN, write_err, write_json, write_out
from flashinfer_bench.cli.parser import THRESHOLD_HELP, Parser, add_filters, add_flags, add_local, add_names, add_table
from flashinfer_bench.cli.tables import (
    SOL,
    Cells,
    Names,
    choose_columns,
    choose_rows,
    count,
    fill_cell,
    join_sections,
    lay_out,
    list_counts,
)
from flashinfer_bench.cli.verdicts import (
    SOL_CELL,
    best_cells,
    head_of,
    make_grid,
    name_jobs,
    render_best,
    render_summary,
    render_times,
    sol_notes,
    speedup_cell,
    standing_mark,
    standing_notes,
    summary_cells,
    weight_notes,
)
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.sets.results import Result, list_results, parse_time
from flashinfer_bench.data.sets.weights import weights_of
from flashinfer_bench.data.store.layout import TOLERANCES_FILE
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.workload import find_named
from flashinfer_bench.errors import ConfigError, DataSetError, Fault, UsageError
from flashinfer_bench.report.changes import GONE, NEW, VERDICT, find_changes, find_epochs
from flashinfer_bench.report.decision import FASTER, SAME, SLOWER, THRESHOLD, UNKNOWN
from flashinfer_bench.report.export import EXPORT_FORMATS, JSON_FORMATS, make_export
from flashinfer_bench.report.kernelbench import KERNELBENCH
from flashinfer_bench.report.ranking import FAST_P, GROUP_KEYS, count_winners, group_by, rank_by_author
from flashinfer_bench.report.summary import (
    SummaryRow,
    best_by_definition,
    best_by_workload,
    by_workload,
    count_statuses,
    rank_by_workload,
    summarise,
)
from flashinfer_bench.report.trackers import TRACKERS
from flashinfer_bench.report.verdict import to_one_line

BASELINE_FLAG: Final = {
    "--baseline-author AUTHOR": "the baseline is this author's fastest solutions (default: the reference)"
}
MERITS: Final = ("workload", "definition", "latency", "speedup")
NO_TRACES = "note: there are no traces to report; `flashinfer-bench run` makes them"
NONE_PASSED = (
    "note: there is no job whose latest verdict is PASSED; quick looks do not count, and "
    "`flashinfer-bench report summary` says why the others failed"
)
NONE_RANKED: Final = "note: there is no whole verdict to rank; quick looks do not count"
SPARED: Final = ("#fast_1.5", "#fast_2", "#fast_1", "#Wins", "#Roofline")
"""Columns to drop, in this order, while a table is too wide. JSON and the pages have all columns."""
AUTHOR_NOTES: Final = (
    "of fastest: the lowest latency of all authors over the author's, or 0 without a pass, as the mean over all "
    "definitions; it ranks, since no baseline can inflate it",
    "score: mean over definitions of the mean ratio of the best solution, 0 where it failed a workload; speed-up: "
    "geometric mean; fast_p: share of workloads passed with a ratio above p",
)
GROUP_NOTE: Final = (
    "speed-up over the reference: geometric mean of the passed; fast_p: share passed with a speed-up above p"
)
CHANGE_MARK: Final = ">"
"""Marks an epoch that is faster or slower than the previous epoch."""
ORDER: Final = (VERDICT, SLOWER, FASTER, SAME, UNKNOWN, NEW, GONE)
"""Decisions, the most important first."""
CHANGE_NOTE: Final = (
    "ratio: new over old time, with its recorded 95 % interval; `compare` measures interleaved, which is more exact"
)
FIGURES: Final[Cells] = {
    **{f"#fast_{p:g}": f"{{fast_p[{FAST_P.index(p)}]:%}}" for p in (1.0, 1.5, 2.0)},
    "#Roofline": "{roofline_share:%}",
}
AUTHORS: Final[Cells] = {
    "Author": "{author}",
    "#Of fastest": lambda row: fill_cell("{fastest_share:%}", row) + standing_mark(row.standing),
    "#Score": "{score:x}",
    "#Speed-up": "{speedup:speedup}",
    "#Wins": "{win_rate:%}",
    **FIGURES,
    "#Passed": "{passed}/{workloads}",
    SOL: SOL_CELL,
}
GROUPS: Final[Cells] = {
    "#Definitions": "{definitions}",
    "#Solutions": "{solutions}",
    "#Passed": "{passed}/{judged}",
    "#Speed-up": "{speedup:speedup}",
    **FIGURES,
}
WINNERS: Final[Cells] = {"#Best on": "{workloads}/{of}", "#Speed-up": speedup_cell}
WEIGHT_SHARES: Final[Cells] = {"#Of weight": "{weight_share:%}"}
HISTORY: Final[Cells] = {
    "": lambda row: CHANGE_MARK if row.decision in (FASTER, SLOWER) else "",
    "Since (UTC)": lambda row: _format_time(row.begin),
    "Sources": "{digest}",
    "#Passed": "{passed}/{verdicts}",
    "#Latency": "{latency_ms:ms}",
    "#Over before": "{ratio:ratio}",
    "Decision": "{decision}",
    "Changed": "{changed:list}",
}
DIFF: Final[Cells] = {
    "Definition": "{definition}",
    "Solution": "{solution}",
    "Workload": "{workload}",
    "Decision": "{decision}",
    "#Old": "{old_ms:ms}",
    "#New": "{new_ms:ms}",
    "#Ratio": "{ratio:ratio}",
    "Why": "{reason}",
}


def declare_report(parser: Parser) -> None:
    """Add the help and the sub-commands."""
    parser.describe("Make tables of traces.", example="report best --local flashinfer-trace")
    summary = parser.add_command(
        "summary",
        "one row per solution",
        description="One row per solution: workloads passed, latency, speed-up, and the reasons of failures.",
        example="report summary --local flashinfer-trace --op-types gemm",
        execute=execute_summary,
    )
    by = {f"--by {'|'.join(('solution', *GROUP_KEYS))}": "one row for each (default: %(default)s)"}
    add_flags(summary, by | BASELINE_FLAG, by="solution")
    best = parser.add_command(
        "best",
        "the best passing solutions",
        description="The fastest passing solution of each workload, with its ties (overlapping intervals); or the "
        "best\nsolution of each definition. --by takes a group, a ranking (latency or speedup), or both.",
        example="report best --local flashinfer-trace --by definition",
        execute=execute_best,
    )
    text = (
        "one row for each workload, definition, author, op_type or hardware; the first two ranked by latency or speedup"
        " (default: workload latency)"
    )
    best.add_argument("--by", nargs="+", choices=(*MERITS, *GROUP_KEYS), default=[], metavar="WORD", help=text)
    visualize = parser.add_command(
        "visualize",
        "verdicts by status, then the tables of summary and best",
        description="The numbers of verdicts by status; then the tables of `report summary` and `report best`.",
        example="report visualize --local flashinfer-trace",
        execute=execute_visualize,
    )
    table = parser.add_command(
        "table",
        "times of a definition by workload",
        description="The times of a definition's solutions on each workload: a row for each solution, or for each "
        "workload if\nthere are more workloads than solutions.",
        example="report table rmsnorm_h4096 --local flashinfer-trace",
        execute=execute_table,
    )
    add_flags(table, {"DEFINITION": "its name in the set"})
    add_local(table)
    for kind in ("--solutions", "--authors", "--workloads"):
        add_names(table, kind)
    add_table(table)
    for command in (best, table):
        add_flags(command, BASELINE_FLAG)
    for command in (summary, best, visualize, table):
        add_flags(command, {"--uuids": "name workloads by their axes and their uuids"})
    for command in (summary, best, visualize):
        add_local(command)
        add_filters(command, "workloads")
        add_table(command)
    history = parser.add_command(
        "history",
        "times of a definition from run to run",
        description="Show the times of a definition's solutions from run to run. A row has one version of sources and "
        f"libraries;\n{CHANGE_MARK} marks a change of the latency, for example by a new driver.",
        example="report history --definition rmsnorm_h4096 --local flashinfer-trace",
        execute=execute_history,
    )
    history.add_argument("--definition", "--definitions", metavar="NAME", required=True, help="the definition")
    add_flags(history, {"--solutions --solution NAME...": "only these solutions"})
    diff = parser.add_command(
        "diff",
        "what changed from one set to another",
        description="Show which verdicts and times changed from one set of traces to another, with a decision for each:"
        " faster,\nslower, same, or cannot tell. Jobs are the same by definition, solution, workload and hardware.",
        example="report diff flashinfer-trace flashinfer-trace",
        execute=execute_diff,
    )
    sets = {"OLD": "the folder of a trace set", "NEW": "the folder of another trace set, or of the same"}
    add_flags(diff, sets | {"--all": "also list jobs that did not change"})
    for command in (history, diff):
        add_flags(command, {"--threshold X": THRESHOLD_HELP}, threshold=THRESHOLD)
        add_table(command)
    add_local(history)
    declare_html(parser)
    declare_export(parser)
    declare_merge(parser)


def declare_html(parser: Parser) -> None:
    """Add `report html`, its help and its flags."""
    html = parser.add_command(
        "html",
        "pages that work from disk",
        description="Write the verdicts of a set as pages: overview, leaderboard, a page for each definition and "
        "solution, any\ntwo solutions compared. Open DIR/index.html from disk: no network and no server are used "
        "(docs/report.md).\nExit codes: 0 written, 1 a file cannot be written, 2 usage error.",
        example="report html pages --local flashinfer-trace",
        execute=execute_html,
    )
    flags = {
        "DIR": "folder to write: new, empty, or with earlier pages",
        "--title TITLE": "title of the pages (default: the name of the set's folder)",
    }
    add_flags(html, flags | BASELINE_FLAG)
    add_local(html)
    add_filters(html)


def declare_export(parser: Parser) -> None:
    """Add `report export`, its help and its flags."""
    export = parser.add_command(
        "export",
        "one row per trace, for other programs",
        description="Write one row per trace, with flat columns whose names have units (docs/export.md lists them). A "
        "folder gets a\nfile traces.csv, traces.jsonl or traces.parquet; - is stdout. Parquet needs the extra "
        f"`export`.\nFor trackers of benchmarks, {', '.join(TRACKERS)} are JSON of the passed rows; {KERNELBENCH}\n"
        "is eval_results.json of its tasks.\n"
        "Exit codes: 0 written, 1 the file cannot be written or a tracker's has no row, 2 usage error.",
        example="report export traces.csv --local flashinfer-trace",
        execute=execute_export,
    )
    flags = {
        "DIR_OR_FILE": "the file or the folder to write to, or - for stdout",
        f"--format {'|'.join((*EXPORT_FORMATS, *JSON_FORMATS))}": "default: by the ending of the file, else csv",
    }
    add_flags(export, flags)
    add_local(export)
    add_filters(export)


def declare_merge(parser: Parser) -> None:
    """Add `report merge`, its help and its flags."""
    merge = parser.add_command(
        "merge",
        "several sets in one",
        description="Write several trace sets as one, into a new folder. Equal parts are written once. If "
        "the\nsets contradict each other, no file is written. Exit codes: 0 all well, 1 files or blobs are missing, "
        "2 usage error.",
        example="report merge --local flashinfer-trace --local flashinfer-trace/wrong --output merged",
        execute=execute_merge,
    )
    add_local(merge)
    merge.add_argument("--output", metavar="DIR", required=True, help="the folder to write: new or empty")


def execute_summary(args: Namespace) -> int:
    """Print a row for each solution with traces, or for each author, op type or kind of hardware."""
    if args.baseline_author is not None and args.by not in ("solution", "author"):
        raise UsageError("--baseline-author needs --by solution or --by author")
    trace_set, against = _open_against(args)
    results = _choose_results(args, trace_set)
    if args.by == "solution":
        rows = _summarise(args, trace_set, results)
        return _show_solutions(args, rows, _name_workloads(args, trace_set, results), NO_TRACES, against)
    if args.by != "author":
        return _show_table(args, {**_of_group(args.by), **GROUPS}, group_by(results, args.by), [GROUP_NOTE])
    authors = rank_by_author(results, args.baseline_author)
    notes = [f"score, speed-up, wins, fast_p: against {against}", *AUTHOR_NOTES, *standing_notes(authors)]
    return _show_table(args, {**AUTHORS, **_of_hardware(authors)}, authors, notes)


def execute_best(args: Namespace) -> int:
    """Print the best passing solution of each workload or definition. With a group in --by, print the number of best
    solutions in each group."""
    trace_set, against = _open_against(args)
    results = _choose_results(args, trace_set)
    groups = [word for word in GROUP_KEYS if word in args.by]
    if groups and len(args.by) > 1:
        raise UsageError(f"--by {groups[0]}: no other word goes with it")
    if groups:
        winners = count_winners(rank_by_workload(results), groups[0])
        shares = WEIGHT_SHARES if any(row.weighted for row in winners) else {}
        return _show_table(args, {**_of_group(groups[0]), **WINNERS, **shares}, winners, [])
    nothing, names = NONE_PASSED if results else NO_TRACES, _name_workloads(args, trace_set, results)
    if "definition" in args.by:
        solutions = best_by_definition(results, "latency" if "latency" in args.by else "speedup")
        return _show_solutions(args, solutions, names, nothing, against)
    rows = best_by_workload(results, "speedup" if "speedup" in args.by else "latency")
    rows = choose_rows(args, best_cells(rows, names), rows)
    cells = choose_columns(args, best_cells(rows, names))
    return _show(args, rows, partial(render_best, rows, names, cells), nothing)


def execute_visualize(args: Namespace) -> int:
    """Print the counts of verdicts, one row per solution, and the best solution of each workload."""
    trace_set = open_trace_set(args)
    results = _choose_results(args, trace_set)
    statuses, names = count_statuses(results), _name_workloads(args, trace_set, results)
    best = best_by_workload(results)
    best = choose_rows(args, best_cells(best, names), best)
    head, further = [f"{count(sum(statuses.values()), 'verdict')}: {list_counts(statuses)}"], ""
    if best and args.format != "json":
        further = render_best(best, names, choose_columns(args, best_cells(best, names)))
    document: dict[str, Any] = {"counts": statuses, "best": list(map(asdict, best))}
    rows = _summarise(args, trace_set, results)
    return _show_solutions(args, rows, names, NO_TRACES, head=head, further=further, **document)


def execute_table(args: Namespace) -> int:
    """Print the times of a definition's solutions by workload."""
    trace_set, _ = _open_against(args)
    args.definitions = [args.definition]
    results = _choose_results(args, trace_set)
    rows = by_workload(results)
    cells, lines = make_grid(rows, _name_workloads(args, trace_set, results))
    scores: dict[tuple[str, str], SummaryRow] = {}
    if "Solution" in cells:
        scores = {(row.solution, row.hardware): row for row in _summarise(args, trace_set, results)}
        cells = {**cells, SOL: lambda line: fill_cell(SOL_CELL, scores[line.name, line.hardware])}
    lines = choose_rows(args, cells, lines)
    rows = [row for line in lines for row in line.rows.values()]
    shown = choose_columns(args, cells)
    weights = weight_notes(scores.values() if SOL in shown else ())
    return _show(args, rows, lambda: join_sections(render_times(rows, shown, lines), weights), NO_TRACES)


def execute_history(args: Namespace) -> int:
    """Print the epochs of each solution, on each kind of hardware."""
    trace_set = open_trace_set(args)
    chosen = Namespace(definitions=[args.definition], solutions=args.solutions)
    results = list_results(trace_set, choose_traces(trace_set, chosen), latest_only=False)
    epochs = find_epochs([item for item in results if not item.reported.run.quick], args.threshold)
    cells = {"Solution": "{solution}", **_of_hardware(epochs), **HISTORY}
    epochs = choose_rows(args, cells, epochs)
    render = partial(lay_out, choose_columns(args, cells), epochs, spared=("Sources", "#Passed"), notes=[CHANGE_NOTE])
    return _show(args, epochs, render, f"note: there is no whole verdict on {args.definition}")


def execute_diff(args: Namespace) -> int:
    """Print decision → number of jobs, then a row for each changed job."""
    found = list[list[Result]]()
    for folder in map(Path, (args.old, args.new)):
        trace_set = TraceSet.from_path(folder)
        found.append(list_results(trace_set, trace_set.all_traces()))
    changes = find_changes(found[0], found[1], args.threshold)
    names = name_jobs([item.trace for part in found for item in part])
    cells = {**DIFF, "Workload": lambda row: names[row.definition, row.workload]}
    counts = Counter(change.decision for change in changes)
    shown = [change for change in changes if args.all or change.decision not in (SAME, UNKNOWN)]
    shown.sort(key=lambda change: ORDER.index(change.decision))
    shown, rows = choose_rows(args, cells, shown), choose_rows(args, cells, changes)
    head = [f"{count(len(changes), 'job')}: {list_counts({decision: counts[decision] for decision in ORDER})}"]
    notes = [CHANGE_NOTE] if shown else []
    render = partial(lay_out, choose_columns(args, cells), shown, spared=(), notes=notes)
    return _show(args, rows, render, "note: neither set has a verdict", head, counts=counts)


def _open_against(args: Namespace) -> tuple[TraceSet, str]:
    """Return the trace set, whose baseline is --baseline-author if it is given, and a description of the baseline."""
    trace_set, author = open_trace_set(args), args.baseline_author
    if author is None:
        return trace_set, "the reference"
    if author not in (known := sorted({solution.author for solution in trace_set.all_solutions()})):
        raise UsageError(f"--baseline-author: {author!r} has no solution; authors: {', '.join(known) or 'none'}")
    trace_set.baseline_author = author
    return trace_set, f"solutions of {to_one_line(author)}"


def _choose_results(args: Namespace, trace_set: TraceSet) -> list[Result]:
    """Return the latest results that the name flags select."""
    return list_results(trace_set, choose_traces(trace_set, args))


def _summarise(args: Namespace, trace_set: TraceSet, results: Sequence[Result]) -> list[SummaryRow]:
    """Return the rows. The arguments select the expected workloads."""
    pairs = {(item.definition, item.solution) for item in results}
    weights = {name: weights_of(_choose_lines(args, trace_set.workloads.get(name, []))) for name, _ in pairs}
    return summarise(results, {pair: weights[pair[0]] for pair in pairs}, trace_set)


def _choose_lines(args: Namespace, lines: Sequence[Trace]) -> Sequence[Trace]:
    names = getattr(args, "workloads", ())
    if not names:
        return lines
    return [line for name in names for line in find_named(name, lines, attrgetter("workload"))]


def _name_workloads(args: Namespace, trace_set: TraceSet, results: Iterable[Result]) -> Names:
    """Return the names of the workloads of a set and of results."""
    lines = chain.from_iterable(trace_set.workloads.values())
    return name_jobs([*lines, *(item.trace for item in results)], uuids=args.uuids)


def _of_group(key: str) -> dict[str, str]:
    return {key.capitalize().replace("_", " "): "{group}"}


def _of_hardware(rows: Sequence[Any]) -> dict[str, str]:
    return {"Hardware": "{hardware}"} if len({row.hardware for row in rows}) > 1 else {}


def _format_time(text: str) -> str:
    moment = parse_time(text)
    return to_one_line(text) if moment is None else moment.strftime("%Y-%m-%d %H:%M")


def _show_solutions(
    args: Namespace,
    rows: Sequence[SummaryRow],
    names: Names,
    nothing: str,
    against: str = "the reference",
    head: Sequence[str] = (),
    further: str = "",
    **document: Any,
) -> int:
    rows = choose_rows(args, summary_cells(rows), rows)
    cells = choose_columns(args, summary_cells(rows))

    def render() -> str:
        return join_sections(render_summary(rows, names, cells, against), further)

    return _show(args, rows, render, nothing, head, **document)


def _show_table(args: Namespace, cells: Cells, rows: Sequence[Any], notes: Sequence[str]) -> int:
    rows, shown = choose_rows(args, cells, rows), choose_columns(args, cells)
    notes = [*notes, *weight_notes(rows), *sol_notes(rows, shown)]
    render = partial(lay_out, shown, rows, spared=() if args.columns else SPARED, notes=notes)
    return _show(args, rows, render, NONE_RANKED, p=FAST_P)


def _show(
    args: Namespace,
    rows: Sequence[Any],
    render: Callable[[], str],
    nothing: str,
    head: Sequence[str] = (),
    **document: Any,
) -> int:
    """Print the rows of a report in the requested format. If only CPUs judged, a line above the table says so.

    Args:
        args: the command's arguments, including the format.
        rows: dataclasses.
        render: makes the text.
        nothing: the note for an empty list of rows.
        head: lines above the table.
        document: additional entries of the JSON.
    """
    if args.format == "json":
        write_json({**document, "rows": list(map(asdict, rows))})
    elif rows:
        write_out(join_sections(head, head_of(getattr(row, "standing", "") for row in rows), render()))
    else:
        write_err(nothing)
    return RAN


def execute_html(args: Namespace) -> int:
    """Write the pages."""
    missing = [name for name in ("jinja2", "pygments") if find_spec(name) is None]
    if missing:
        raise ConfigError(f"this needs {' and '.join(missing)}: {install_hint('html')}")
    from flashinfer_bench.report.pages.site import write_site  # imports optional libraries

    trace_set, _ = _open_against(args)
    traces = choose_traces(trace_set, args)
    title = args.title or f"Kernels of {trace_set.root.resolve().name if trace_set.root else 'a set'}"
    find_output(args.dir, args)  # refuses links in a set
    try:
        counts = write_site(Path(args.dir), trace_set, traces, title=title)
    except OSError as error:
        raise Fault(f"{args.dir}: cannot be written: {error}") from error
    listed = ", ".join(count(number, noun) for noun, number in counts.items())
    write_out(f"{Path(args.dir) / 'index.html'}: {listed}\n")
    return RAN


def execute_export(args: Namespace) -> int:
    """Write the file."""
    path = Path(args.dir_or_file)
    ending, is_folder = path.suffix.removeprefix("."), args.dir_or_file.endswith("/") or path.is_dir()
    form = args.format or next((form for form in EXPORT_FORMATS if form == ending), None)
    if form is None and ending and not is_folder:
        forms = ", ".join(EXPORT_FORMATS)
        raise UsageError(f"{args.dir_or_file}: .{ending} is none of {forms}; name the file so, or say --format")
    form = form or "csv"
    trace_set = open_trace_set(args)
    traces = choose_traces(trace_set, args)
    if args.dir_or_file == "-" and form == "parquet":
        raise UsageError("Parquet is no text: name a file instead of -")
    path = path / (f"{form}.json" if form in JSON_FORMATS else f"traces.{form}") if is_folder else path
    content, rows, others = make_export(form, trace_set, traces)
    left_out = f"; {others.total()} left out: {list_counts(others)}" if others else ""
    if form in JSON_FORMATS and not rows:
        which = "passed with a time that counts" if form in TRACKERS else "is on a KernelBench task"
        raise Fault(f"{args.dir_or_file}: not written, since no verdict {which}{left_out}")
    if args.dir_or_file == "-":
        write_out(content.decode())
        write_err(*([left_out.removeprefix("; ")] if left_out else []))
        return RAN
    output = find_output(path, args)
    try:
        with os.fdopen(open_to_replace(output.path, root=output.root), "wb") as file:
            file.write(content)
    except OSError as error:
        raise Fault(f"{path}: cannot be written: {error}") from error
    write_err(f"{path}: {count(rows, 'row')}{left_out}")
    return RAN


def execute_merge(args: Namespace) -> int:
    """Write the sets as one set; return 1 if a part of a set was not carried over."""
    from flashinfer_bench.bench.tolerances import merge_tolerances  # takes 0.1 s, and tables do not need this import
    from flashinfer_bench.data.sets.merge import merge_sets

    parts = [TraceSet.from_path(folder) for folder in named_folders(args)]
    errors = [issue for part in parts for issue in part.issues if issue.severity == "error"]
    write_err(*describe_issues(errors))
    if all(map(has_nothing, parts)):
        raise DataSetError("\n".join(f"{part.root}: there is nothing to merge" for part in parts))
    find_output(args.output, args)  # refuses links in a set
    tolerances = merge_tolerances(parts)
    done = merge_sets(parts, Path(args.output), {TOLERANCES_FILE: tolerances} if tolerances else {})
    write_err(*(f"not carried over: {lost}" for lost in done.lost))
    nouns = ("definition", "solution", "workload", "trace", "blob")
    write_out(f"{done.output}: {', '.join(count(getattr(done, f'{noun}s'), noun) for noun in nouns)}\n")
    return FAILED if errors or done.lost else RAN
