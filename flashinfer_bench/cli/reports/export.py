"""`report export`: the traces of a set as CSV, JSON lines or Parquet."""

from __future__ import annotations

import argparse
import io
import os
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.writing import open_to_replace
from flashinfer_bench.cli.args import choose_traces, find_output, open_trace_set
from flashinfer_bench.cli.exit_codes import FAILED, RAN
from flashinfer_bench.cli.output import write_err, write_out
from flashinfer_bench.cli.render import count
from flashinfer_bench.errors import Misuse
from flashinfer_bench.report.export import EXPORT_FORMATS, ExportFormat, make_parquet, write_export

STDOUT: Final = "-"
FILE_STEM: Final = "traces"
"""Name of the file that a folder gets, without its ending."""


def execute_export(args: argparse.Namespace) -> int:
    """Write the file."""
    form = _choose_format(args)
    trace_set = open_trace_set(args)
    traces = choose_traces(trace_set, args)
    if args.target == STDOUT:
        if form == "parquet":
            raise Misuse("Parquet is no text: name a file instead of -")
        text = io.StringIO(newline="")
        write_export(text, form, trace_set, traces)
        write_out(text.getvalue())
        return RAN
    path = Path(args.target)
    path = path / f"{FILE_STEM}.{form}" if _is_folder(args.target) else path
    try:
        place = find_output(path, args)
        if form == "parquet":
            content, rows = make_parquet(trace_set, traces)
            with os.fdopen(open_to_replace(place.path, root=place.root), "wb") as binary:
                binary.write(content)
        else:
            with os.fdopen(open_to_replace(place.path, root=place.root), "w", encoding="utf-8", newline="") as file:
                rows = write_export(file, form, trace_set, traces)
    except OSError as error:
        write_err(f"error: {path}: cannot be written: {error}")
        return FAILED
    write_err(f"{path}: {count(rows, 'row')}")
    return RAN


def _choose_format(args: argparse.Namespace) -> ExportFormat:
    if args.format is not None:
        chosen: ExportFormat = args.format
        return chosen
    ending = Path(args.target).suffix.removeprefix(".")
    found: ExportFormat | None = next((form for form in EXPORT_FORMATS if form == ending), None)
    if found is None and ending and not _is_folder(args.target):
        raise Misuse(
            f"{args.target}: .{ending} is none of {', '.join(EXPORT_FORMATS)}; name the file so, or say --format"
        )
    return found or "csv"


def _is_folder(target: str) -> bool:
    return target.endswith("/") or Path(target).is_dir()
