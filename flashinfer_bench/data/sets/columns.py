"""The columns of an exported set: one row a trace. docs/export.md says what each means.

A column is never renamed and never changes its unit or type; new ones come at the end. An absent value is None. pandas
is optional; `make_frame` alone imports it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from flashinfer_bench.data.sets.latest import parse_time
from flashinfer_bench.data.sets.results import Result, list_results
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    import pandas

    from flashinfer_bench.data.trace_set import TraceSet

Kind = Literal["text", "number", "count", "truth", "time"]
"""A number is a 64-bit float, a count a 64-bit whole number, a time in UTC."""
LARGEST_COUNT: Final = 2**63 - 1
DTYPES_OF_FRAMES: Final[dict[Kind, str]] = {
    "text": "string",
    "number": "float64",
    "count": "Int64",
    "truth": "boolean",
    "time": "datetime64[ns, UTC]",
}
"""Kind of a column → its dtype in pandas. An absent number is NaN; any other absent value is NA or NaT."""


class ExportColumn(NamedTuple):
    """One column: its name, the kind of its values, and how they are read."""

    name: str
    kind: Kind
    source: str | Callable[[Result], Any]
    """An attribute of a result, with dots; or what reads it."""

    def read(self, result: Result) -> Any:
        """Return the value of a result; None where it is absent."""
        if not isinstance(self.source, str):
            return self.source(result)
        value = attrgetter(self.source)(result)
        if self.kind == "count":
            return int(value) if value is not None and abs(value) <= LARGEST_COUNT else None
        return None if value == "" and self.source.startswith(("told.", "measurement.")) else value


def make_row(result: Result) -> dict[str, Any]:
    """Return the row of a result, by the names of the columns."""
    return {column.name: column.read(result) for column in COLUMNS}


def import_export_library(name: str) -> Any:
    """Import pandas or pyarrow, or say which extra brings it.

    Raises:
        ConfigError: it is not installed.
    """
    import importlib  # heavy and optional libraries alone come this way

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"this needs {name}, which cannot be imported ({error}); install it by "
            "`pip install 'flashinfer-bench[export]'`; CSV and JSON lines need neither pandas nor pyarrow"
        ) from None


def make_frame(trace_set: TraceSet, traces: Iterable[AnyTrace]) -> pandas.DataFrame:
    """Make the frame: one row a trace, in the order of the files, with the columns of `COLUMNS`.

    Raises:
        ConfigError: pandas is not installed.
    """
    library = import_export_library("pandas")
    results = list_results(trace_set, traces, latest_only=False)
    columns = {}
    for column in COLUMNS:
        values, dtype = [column.read(item) for item in results], DTYPES_OF_FRAMES[column.kind]
        if column.kind == "time":
            times = library.Series(values, dtype="object")
            columns[column.name] = library.to_datetime(times, utc=True, errors="coerce", format="ISO8601").astype(dtype)
        else:
            columns[column.name] = library.Series(values, dtype=dtype)
    return library.DataFrame(columns)


def _timestamp(result: Result) -> str | None:
    moment = parse_time(result.evaluation.timestamp)
    return moment.isoformat() if moment is not None else None


def _timed(result: Result, value: Any) -> Any:
    """Return a value only if there is a time: a flag of nothing says nothing."""
    return value if result.evaluation.performance is not None else None


COLUMNS: Final[tuple[ExportColumn, ...]] = tuple(
    itertools.starmap(
        ExportColumn,
        (
            ("definition", "text", "trace.definition"),
            ("op_type", "text", lambda result: result.op_type or None),
            ("workload", "text", "workload"),
            ("axes", "text", lambda result: json.dumps(dict(result.trace.workload.axes))),
            ("solution", "text", "trace.solution"),
            ("author", "text", lambda result: result.author if result.language else None),
            ("language", "text", lambda result: result.language or None),
            ("hardware", "text", "hardware"),
            ("status", "text", "status"),
            ("is_passed", "truth", "is_passed"),
            ("is_latest", "truth", "is_latest"),
            ("is_quick", "truth", "told.run.quick"),
            ("timestamp", "time", _timestamp),
            ("latency_ms", "number", "latency_ms"),
            ("latency_low_ms", "number", lambda result: (result.measurement.bounds or (None, None))[0]),
            ("latency_high_ms", "number", lambda result: (result.measurement.bounds or (None, None))[1]),
            ("median_ms", "number", "measurement.median_ms"),
            ("q25_ms", "number", "measurement.q25_ms"),
            ("q75_ms", "number", "measurement.q75_ms"),
            ("std_ms", "number", "measurement.std_ms"),
            ("min_ms", "number", "measurement.min_ms"),
            ("max_ms", "number", "measurement.max_ms"),
            ("samples", "count", "measurement.samples"),
            ("trials", "count", "measurement.trials"),
            ("reference_latency_ms", "number", "reference_ms"),
            ("speedup", "number", "speedup"),
            ("kernel_ms", "number", "measurement.kernel_ms"),
            ("setup_ms", "number", "measurement.setup_ms"),
            ("burst_ms", "number", "measurement.burst_ms"),
            ("relay_ms", "number", "measurement.relay_ms"),
            ("is_confirmed", "truth", "measurement.is_confirmed"),
            ("is_meaningful", "truth", lambda result: _timed(result, result.measurement.meaningful)),
            ("flags", "text", lambda result: _timed(result, " ".join(result.measurement.flags))),
            ("method", "text", "measurement.method"),
            ("cache_state", "text", "measurement.cache_state"),
            ("launch", "text", "measurement.launch"),
            (
                "max_absolute_error",
                "number",
                lambda result: getattr(result.evaluation.correctness, "max_absolute_error", None),
            ),
            (
                "max_relative_error",
                "number",
                lambda result: getattr(result.evaluation.correctness, "max_relative_error", None),
            ),
            ("flops", "number", "told.roofline.flops"),
            ("bytes", "number", "told.roofline.bytes"),
            ("tflops", "number", "told.roofline.tflops"),
            ("tb_per_sec", "number", "told.roofline.tb_per_sec"),
            ("roofline_share", "number", "told.roofline.share"),
            ("evaluator", "text", "told.evaluator"),
            ("solution_digest", "text", "told.run.fingerprint.solution"),
            ("definition_digest", "text", "told.run.fingerprint.definition"),
            ("seed", "text", lambda result: None if result.told.run.seed is None else str(result.told.run.seed)),
            ("engine_version", "text", lambda result: result.evaluation.environment.libs.get("flashinfer_bench")),
            ("torch_version", "text", lambda result: result.evaluation.environment.libs.get("torch")),
            ("triton_version", "text", lambda result: result.evaluation.environment.libs.get("triton")),
            ("cuda_version", "text", lambda result: result.evaluation.environment.libs.get("cuda")),
            ("driver_version", "text", lambda result: result.evaluation.environment.libs.get("driver")),
            ("log", "text", "evaluation.log"),
            ("interval", "text", "measurement.interval"),
            ("assurance", "text", "measurement.assurance"),
            ("bound", "text", "measurement.bound"),
            ("confirmed", "truth", lambda result: _timed(result, result.measurement.is_full)),
        ),
    )
)
