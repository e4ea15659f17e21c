"""The columns of an exported set, with one row per trace. docs/export.md describes each column.

A column never changes its name, unit or type. New columns are added at the end. A missing value is None. Only
`make_frame` imports pandas, which is optional.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from flashinfer_bench.base.install import install_hint
from flashinfer_bench.data.sets.results import Result, list_results, parse_time
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    import pandas

    from flashinfer_bench.data.trace_set import TraceSet

Kind = Literal["text", "number", "count", "truth", "time"]
"""A number is a 64-bit float, a count is a 64-bit integer, and a time is in UTC."""
LARGEST_COUNT: Final = 2**63 - 1
DTYPES_OF_FRAMES: Final[Mapping[Kind, str]] = {
    "text": "string",
    "number": "float64",
    "count": "Int64",
    "truth": "boolean",
    "time": "datetime64[ns, UTC]",
}
"""Kind of a column → its dtype in pandas. A missing number is NaN. Missing values of the other kinds are NA or NaT."""
RUNS: Final[tuple[tuple[Kind, tuple[str, ...]], ...]] = (
    ("text", ("definition", "op_type", "workload", "axes", "solution", "author", "language", "hardware", "status")),
    ("truth", ("is_passed", "is_latest", "is_quick")),
    ("time", ("timestamp",)),
    ("number", ("latency_ms", "latency_low_ms", "latency_high_ms")),
    ("number", ("median_ms", "q25_ms", "q75_ms", "std_ms", "min_ms", "max_ms")),
    ("count", ("samples", "trials")),
    ("number", ("reference_latency_ms", "speedup", "kernel_ms", "setup_ms", "burst_ms", "relay_ms")),
    ("truth", ("is_confirmed", "is_meaningful")),
    ("text", ("flags", "method", "cache_state", "launch")),
    ("number", ("max_absolute_error", "max_relative_error")),
    ("number", ("flops", "bytes", "tflops", "tb_per_sec", "roofline_share")),
    ("text", ("evaluator", "solution_digest", "definition_digest", "seed")),
    ("text", ("engine_version", "torch_version", "triton_version", "cuda_version", "driver_version")),
    ("text", ("log", "interval", "assurance", "bound")),
    ("truth", ("confirmed",)),
    ("number", ("floor_ms", "sol_score")),
    ("text", ("peak", "sol_baseline")),
    ("text", ("library_kernels", "kernels", "compile_mode")),
    ("number", ("compile_ms", "compile_speedup")),
    ("count", ("graph_breaks",)),
)
COLUMNS: Final[Mapping[str, Kind]] = {name: kind for kind, names in RUNS for name in names}
"""Name of a column → its kind, in the order of the columns."""


def _lib(package: str) -> Callable[[Result], Any]:
    return lambda result: result.evaluation.environment.libs.get(package)


def _timestamp(result: Result) -> str | None:
    moment = parse_time(result.evaluation.timestamp)
    return moment.isoformat() if moment is not None else None


READERS: Final[Mapping[str, Callable[[Result], Any]]] = {
    "axes": lambda result: json.dumps(dict(result.trace.workload.axes)),
    "author": lambda result: result.author if result.language else None,
    "is_quick": lambda result: result.reported.run.quick,
    "timestamp": _timestamp,
    "latency_low_ms": lambda result: (result.measurement.bounds or (None,))[0],
    "latency_high_ms": lambda result: (result.measurement.bounds or (None,))[-1],
    "reference_latency_ms": lambda result: result.reference_ms,
    "is_meaningful": lambda result: result.measurement.meaningful,
    "flags": lambda result: " ".join(result.measurement.flags),
    "roofline_share": lambda result: result.reported.roofline.share,
    "solution_digest": lambda result: result.reported.run.solution_digest or None,
    "definition_digest": lambda result: result.reported.run.fingerprint.get("definition"),
    "seed": lambda result: None if result.reported.run.seed is None else str(result.reported.run.seed),
    "engine_version": _lib("flashinfer_bench"),
    "torch_version": _lib("torch"),
    "triton_version": _lib("triton"),
    "cuda_version": _lib("cuda"),
    "driver_version": _lib("driver"),
    "log": lambda result: result.evaluation.log,
    "confirmed": lambda result: result.measurement.is_full,
    "compile_mode": lambda result: result.reported.baseline_compile.mode or None,
    "kernels": lambda result: json.dumps(result.measurement.kernels) if result.measurement.kernels else None,
}
"""Column → function that returns the column's value. Every other column is a field of the result or of its parts."""
OF_TIMES: Final = frozenset({"is_meaningful", "flags", "confirmed", "library_kernels"})
"""Columns about the latency. Their values are None in a row without a performance."""


def make_row(result: Result) -> dict[str, Any]:
    """Return column → value for a result."""
    evaluation = result.evaluation
    reported = result.reported
    parts = (
        result,
        reported.measurement,
        reported.roofline,
        reported,
        reported.baseline_compile,
        evaluation.correctness,
    )
    row = {}
    for name, kind in COLUMNS.items():
        if name in READERS:
            value = READERS[name](result)
        else:
            value = next((getattr(part, name) for part in parts if hasattr(part, name)), None)
            value = None if value == "" else value
        if (name in OF_TIMES and evaluation.performance is None) or (
            kind == "count" and abs(value or 0) > LARGEST_COUNT
        ):
            value = None
        row[name] = int(value) if kind == "count" and value is not None else value
    return row


def import_export_library(name: str) -> Any:
    """Import pandas or pyarrow. The error for a missing library names the extra that installs it.

    Raises:
        ConfigError: the library is not installed.
    """
    import importlib  # only large, optional libraries are imported this way

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"this needs {name}, which cannot be imported ({error}); CSV and JSON lines need neither "
            f"pandas nor pyarrow; {install_hint('export')}"
        ) from None


def make_frame(trace_set: TraceSet, traces: Iterable[AnyTrace]) -> pandas.DataFrame:
    """Return the frame with one row per trace, in the order of the files, with the columns of `COLUMNS`.

    Raises:
        ConfigError: pandas is not installed.
    """
    library = import_export_library("pandas")
    rows = list(map(make_row, list_results(trace_set, traces, latest_only=False)))
    frame = {name: library.Series([row[name] for row in rows], dtype="object") for name in COLUMNS}
    for name, kind in COLUMNS.items():
        if kind == "time":
            frame[name] = library.to_datetime(frame[name], utc=True, errors="coerce", format="ISO8601")
        frame[name] = frame[name].astype(DTYPES_OF_FRAMES[kind])
    return library.DataFrame(frame)
