"""Traces as files for other programs: CSV, JSON lines, Parquet. One row a trace; `data.sets.columns` lists columns."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

from flashinfer_bench.data.sets.columns import (
    COLUMNS,
    import_export_library,
    make_frame,
    make_row,
)
from flashinfer_bench.data.sets.results import list_results
from flashinfer_bench.data.store.trace_lines import AnyTrace

if TYPE_CHECKING:
    from flashinfer_bench.data.trace_set import TraceSet

ExportFormat = Literal["csv", "jsonl", "parquet"]
EXPORT_FORMATS: Final[tuple[ExportFormat, ...]] = ("csv", "jsonl", "parquet")
NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""How JSON lines write numbers that JSON does not have: as the traces do."""


def write_export(target: TextIO, form: ExportFormat, trace_set: TraceSet, traces: Iterable[AnyTrace]) -> int:
    """Write rows as CSV or JSON lines, one by one, and return their number."""
    results = list_results(trace_set, traces, latest_only=False)
    writer = csv.writer(target, lineterminator="\n")
    if form == "csv":
        writer.writerow([column.name for column in COLUMNS])
    for row in map(make_row, results):
        if form == "csv":
            writer.writerow(map(_cell, row.values()))
        else:
            told = {name: _json_value(value) for name, value in row.items()}
            target.write(json.dumps(told, separators=(",", ":"), allow_nan=False) + "\n")
    return len(results)


def make_parquet(trace_set: TraceSet, traces: Iterable[AnyTrace]) -> tuple[bytes, int]:
    """Return rows as a Parquet file, and their number.

    Raises:
        ConfigError: pandas or pyarrow is not installed.
    """
    import_export_library("pyarrow")
    frame = make_frame(trace_set, traces)
    buffer = io.BytesIO()
    frame.to_parquet(buffer, engine="pyarrow", index=False)
    return buffer.getvalue(), len(frame)


def _cell(value: Any) -> Any:
    """Return a value as CSV has it: "" for an absent one, escapes for what no reader takes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")
    return "" if value is None else value


def _json_value(value: Any) -> Any:
    return NOT_FINITE.get(str(value), value) if isinstance(value, float) else value
