"""Exports traces to CSV, JSON lines or Parquet, one row per trace. `data.sets.columns` has the columns."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Literal

from flashinfer_bench.data.sets.columns import COLUMNS, import_export_library, make_frame, make_row
from flashinfer_bench.data.sets.results import list_results
from flashinfer_bench.data.store.trace_lines import AnyTrace

if TYPE_CHECKING:
    from flashinfer_bench.data.trace_set import TraceSet

ExportFormat = Literal["csv", "jsonl", "parquet"]
EXPORT_FORMATS: Final[tuple[ExportFormat, ...]] = ("csv", "jsonl", "parquet")
NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""Text for each number that JSON lacks, as in traces."""
TRUTHS: Final = {True: "true", False: "false"}


def make_export(form: ExportFormat, trace_set: TraceSet, traces: Iterable[AnyTrace]) -> tuple[bytes, int]:
    """Return a file in the format with one row per trace, and the number of rows.

    Raises:
        ConfigError: the format is Parquet, and pandas or pyarrow is not installed.
    """
    if form == "parquet":
        import_export_library("pyarrow")
        frame, buffer = make_frame(trace_set, traces), io.BytesIO()
        frame.to_parquet(buffer, engine="pyarrow", index=False)
        return buffer.getvalue(), len(frame)
    rows = list(map(make_row, list_results(trace_set, traces, latest_only=False)))
    text = io.StringIO(newline="")
    if form == "csv":
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([TRUTHS[one] if isinstance(one, bool) else one for one in row.values()] for row in rows)
        written = text.getvalue().replace("\0", "\\0")  # readers of CSV do not accept NUL
    else:
        written = "".join(f"{json.dumps({name: _finite(one) for name, one in row.items()})}\n" for row in rows)
    return written.encode("utf-8", "backslashreplace"), len(rows)


def _finite(value: Any) -> Any:
    return NOT_FINITE.get(str(value), value) if isinstance(value, float) else value
