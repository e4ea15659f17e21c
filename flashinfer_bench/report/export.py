"""Exports traces to a file of another program: CSV, JSON lines or Parquet with one row per trace, or JSON of a tracker.

`data.sets.columns` has the columns of a row.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from flashinfer_bench.data.sets.columns import COLUMNS, import_export_library, make_frame, make_row
from flashinfer_bench.data.sets.results import list_results
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.report.kernelbench import KERNELBENCH, make_eval_results
from flashinfer_bench.report.trackers import TRACKERS, track

if TYPE_CHECKING:
    from flashinfer_bench.data.trace_set import TraceSet

EXPORT_FORMATS: Final = ("csv", "jsonl", "parquet")
JSON_FORMATS: Final = (*TRACKERS, KERNELBENCH)
"""Formats of trackers. Only the latest verdicts that count are rows."""
NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""Text for each number that JSON lacks, as in traces."""
TRUTHS: Final = {True: "true", False: "false"}


def make_export(form: str, trace_set: TraceSet, traces: Iterable[AnyTrace]) -> tuple[bytes, int, Counter[str]]:
    """Return a file in the format, the number of its rows, and reason → number of omitted verdicts.

    Raises:
        ConfigError: the format is Parquet, and pandas or pyarrow is not installed.
        UsageError: KernelBench's format has no place for all tasks.
    """
    if form == "parquet":
        import_export_library("pyarrow")
        frame, buffer = make_frame(trace_set, traces), io.BytesIO()
        frame.to_parquet(buffer, engine="pyarrow", index=False)
        return buffer.getvalue(), len(frame), Counter()
    if form in JSON_FORMATS:
        results = list_results(trace_set, traces)
        document, count, left_out = make_eval_results(results) if form == KERNELBENCH else track(form, results)
        return json.dumps(document, indent=1, allow_nan=False).encode() + b"\n", count, left_out
    rows = list(map(make_row, list_results(trace_set, traces, latest_only=False)))
    text = io.StringIO(newline="")
    if form == "csv":
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([TRUTHS[one] if isinstance(one, bool) else one for one in row.values()] for row in rows)
        written = text.getvalue().replace("\0", "\\0")  # readers of CSV do not accept NUL
    else:
        written = "".join(f"{json.dumps({name: _finite(one) for name, one in row.items()})}\n" for row in rows)
    return written.encode("utf-8", "backslashreplace"), len(rows), Counter()


def _finite(value: Any) -> Any:
    return NOT_FINITE.get(str(value), value) if isinstance(value, float) else value
