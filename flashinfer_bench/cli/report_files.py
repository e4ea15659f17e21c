"""`report html`, `report export` and `report merge`: the traces of sets as pages, as rows of a file, as another set."""

from __future__ import annotations

import os
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.writing import open_to_replace
from flashinfer_bench.cli.args import (
    choose_traces,
    describe_issues,
    find_output,
    has_nothing,
    named_folders,
    open_trace_set,
)
from flashinfer_bench.cli.output import FAILED, RAN, write_err, write_out
from flashinfer_bench.cli.parser import Parser, add_filters, add_flags, add_local
from flashinfer_bench.cli.tables import count
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.store.layout import TOLERANCES_FILE
from flashinfer_bench.errors import ConfigError, DataSetError, Fault, Misuse
from flashinfer_bench.report.export import EXPORT_FORMATS, make_export

BASELINE_FLAG: Final = {
    "--baseline-author AUTHOR": "rank authors (--by author) against this one (default: against the reference)"
}


def declare_html(parser: Parser) -> None:
    """Add `report html`, its help and its flags."""
    html = parser.add_command(
        "html",
        "pages that work from disk",
        description="Write the verdicts of a set as pages: overview, leaderboard, a page for each definition and "
        "solution, any\ntwo solutions compared. Open DIR/index.html from disk: no network and no server are used "
        "(docs/report.md).\nExit codes: 0 written, 1 a file cannot be written, 2 misuse.",
        example="report html pages --local flashinfer-trace",
        execute=execute_html,
    )
    flags = {
        "DIR": "a new or an empty folder, or one with such pages",
        "--title TITLE": "what the pages are called (default: the name of the set's folder)",
    }
    add_flags(html, flags | BASELINE_FLAG)
    add_local(html)
    add_filters(html)


def declare_export(parser: Parser) -> None:
    """Add `report export`, its help and its flags."""
    export = parser.add_command(
        "export",
        "one row a trace, for other programs",
        description="Write one row a trace, with flat columns whose names have units (docs/export.md lists them). A "
        "folder gets a\nfile traces.csv, traces.jsonl or traces.parquet; - is stdout. Parquet needs the extra "
        "`export`.\nExit codes: 0 written, 1 the file cannot be written, 2 misuse.",
        example="report export traces.csv --local flashinfer-trace",
        execute=execute_export,
    )
    flags = {
        "DIR_OR_FILE": "the file or the folder to write to, or - for stdout",
        f"--format {'|'.join(EXPORT_FORMATS)}": "default: by the ending of the file, else csv",
    }
    add_flags(export, flags)
    add_local(export)
    add_filters(export)


def declare_merge(parser: Parser) -> None:
    """Add `report merge`, its help and its flags."""
    merge = parser.add_command(
        "merge",
        "several sets in one",
        description="Write several trace sets as one, into a new folder. What is the same in two is written once; "
        "where they\ncontradict each other, nothing is written. Exit codes: 0 all well, 1 files or blobs are missing, "
        "2 misuse.",
        example="report merge --local flashinfer-trace --local flashinfer-trace/wrong --output merged",
        execute=execute_merge,
    )
    add_local(merge)
    merge.add_argument("--output", metavar="DIR", required=True, help="the folder to write: a new or an empty one")


def execute_html(args: Namespace) -> int:
    """Write the pages."""
    missing = [name for name in ("jinja2", "pygments") if find_spec(name) is None]
    if missing:
        raise ConfigError(f"this needs {' and '.join(missing)}: pip install 'flashinfer-bench[html]'")
    from flashinfer_bench.report.pages.site import write_site  # its libraries are optional

    trace_set = open_trace_set(args)
    traces = choose_traces(trace_set, args)
    title = args.title or f"Kernels of {trace_set.root.resolve().name if trace_set.root else 'a set'}"
    find_output(args.dir, args)  # refuses links in a set
    try:
        counts = write_site(Path(args.dir), trace_set, traces, title=title, baseline_author=args.baseline_author)
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
        raise Misuse(f"{args.dir_or_file}: .{ending} is none of {forms}; name the file so, or say --format")
    form = form or "csv"
    trace_set = open_trace_set(args)
    traces = choose_traces(trace_set, args)
    if args.dir_or_file == "-":
        if form == "parquet":
            raise Misuse("Parquet is no text: name a file instead of -")
        write_out(make_export(form, trace_set, traces)[0].decode())
        return RAN
    path = path / f"traces.{form}" if is_folder else path
    place = find_output(path, args)
    content, rows = make_export(form, trace_set, traces)
    try:
        with os.fdopen(open_to_replace(place.path, root=place.root), "wb") as file:
            file.write(content)
    except OSError as error:
        raise Fault(f"{path}: cannot be written: {error}") from error
    write_err(f"{path}: {count(rows, 'row')}")
    return RAN


def execute_merge(args: Namespace) -> int:
    """Write the sets as one; return 1 if something of them could not be read."""
    from flashinfer_bench.bench.tolerances import merge_tolerances  # a tenth of a second, which no table needs
    from flashinfer_bench.data.store.new_sets import merge_sets

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
