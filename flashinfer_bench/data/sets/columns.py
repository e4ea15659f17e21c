"""The columns of an exported set: one row a trace. `COLUMNS` is their only list; docs/export.md is made of it.

A column is never renamed and never changes its unit or type; new ones come at the end. An absent value is None. pandas
is optional; `make_frame` alone imports it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal

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


@dataclass(frozen=True)
class ExportColumn:
    """One column: its name, what it holds, and how it is read."""

    name: str
    kind: Kind
    meaning: str
    """For the reference; a sentence without its full stop."""
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
        values = library.Series([column.read(item) for item in results], dtype="object")
        if column.kind == "time":
            values = library.to_datetime(values, utc=True, errors="coerce", format="ISO8601")
        columns[column.name] = values.astype(DTYPES_OF_FRAMES[column.kind])
    return library.DataFrame(columns)


def _axes(result: Result) -> str:
    return json.dumps(dict(result.trace.workload.axes))


def _timestamp(result: Result) -> str | None:
    moment = parse_time(result.evaluation.timestamp)
    return moment.isoformat() if moment is not None else None


def _bound(index: int) -> Callable[[Result], float | None]:
    def read(result: Result) -> float | None:
        bounds = result.measurement.interval95_ms
        return bounds[index] if len(bounds) == 2 else None

    return read


def _timed(read: Callable[[Result], Any]) -> Callable[[Result], Any]:
    """Read only if there is a time: a flag of nothing says nothing."""
    return lambda result: read(result) if result.evaluation.performance is not None else None


def _error(name: str) -> Callable[[Result], float | None]:
    return lambda result: getattr(result.evaluation.correctness, name, None)


def _library(name: str) -> Callable[[Result], str | None]:
    return lambda result: result.evaluation.environment.libs.get(name)


def _seed(result: Result) -> str | None:
    seed = result.told.run.seed
    return str(seed) if seed is not None else None


def _flags(result: Result) -> str:
    return " ".join(result.measurement.flags)


_ROWS: Final[tuple[tuple[str, Kind, str, str | Callable[[Result], Any]], ...]] = (
    ("definition", "text", "name of the definition", "trace.definition"),
    ("op_type", "text", "family of the definition", lambda result: result.op_type or None),
    ("workload", "text", "uuid of the workload", "workload"),
    ("axes", "text", 'sizes of the workload\'s axes as a JSON table, such as `{"batch_size": 4}`', _axes),
    ("solution", "text", "name of the solution", "trace.solution"),
    ("author", "text", "author of the solution", lambda result: result.author if result.language else None),
    ("language", "text", "language of the solution", lambda result: result.language or None),
    ("hardware", "text", "name of the device", "hardware"),
    ("status", "text", "the verdict", "status"),
    ("is_passed", "truth", "whether it passed", "is_passed"),
    (
        "is_latest",
        "truth",
        "whether this trace counts of its definition, solution, workload and hardware",
        "is_latest",
    ),
    ("is_quick", "truth", "whether it is a quick look", "told.run.quick"),
    ("timestamp", "time", "when it was judged, UTC", _timestamp),
    ("latency_ms", "number", "milliseconds of one call", "latency_ms"),
    (
        "latency_low_ms",
        "number",
        "lower bound of the latency's 95 % interval in milliseconds; `interval` says what it holds for",
        _bound(0),
    ),
    ("latency_high_ms", "number", "upper bound of that interval, in milliseconds", _bound(1)),
    ("median_ms", "number", "median of all readings in milliseconds", "measurement.median_ms"),
    ("q25_ms", "number", "first quartile of the readings in milliseconds", "measurement.q25_ms"),
    ("q75_ms", "number", "third quartile of the readings in milliseconds", "measurement.q75_ms"),
    ("std_ms", "number", "standard deviation of the readings in milliseconds", "measurement.std_ms"),
    ("min_ms", "number", "lowest reading in milliseconds", "measurement.min_ms"),
    ("max_ms", "number", "highest reading in milliseconds", "measurement.max_ms"),
    ("samples", "count", "number of readings", "measurement.samples"),
    ("trials", "count", "number of trials", "measurement.trials"),
    ("reference_latency_ms", "number", "milliseconds of one call of the reference", "reference_ms"),
    ("speedup", "number", "reference_latency_ms / latency_ms, without a unit", "speedup"),
    ("kernel_ms", "number", "milliseconds of `run` alone, beside `setup`", "measurement.kernel_ms"),
    ("setup_ms", "number", "milliseconds of `setup`", "measurement.setup_ms"),
    ("burst_ms", "number", "milliseconds of one call in a burst, timed outside", "measurement.burst_ms"),
    ("relay_ms", "number", "milliseconds of one call in a relay, timed outside", "measurement.relay_ms"),
    ("is_confirmed", "truth", "whether these agree with the latency", "measurement.is_confirmed"),
    (
        "is_meaningful",
        "truth",
        "whether the latency says something of the kernel",
        _timed(attrgetter("measurement.meaningful")),
    ),
    ("flags", "text", "flags of the measurement with blanks between them", _timed(_flags)),
    ("method", "text", "the clock: cupti, cuda_events or wall", "measurement.method"),
    ("cache_state", "text", "cold or warm", "measurement.cache_state"),
    ("launch", "text", "stream or graph", "measurement.launch"),
    ("max_absolute_error", "number", "largest absolute error of an element", _error("max_absolute_error")),
    ("max_relative_error", "number", "largest relative error of an element", _error("max_relative_error")),
    ("flops", "number", "floating-point operations of one call", "told.roofline.flops"),
    ("bytes", "number", "bytes that one call has to move", "told.roofline.bytes"),
    ("tflops", "number", "10^12 operations a second", "told.roofline.tflops"),
    ("tb_per_sec", "number", "10^12 bytes a second", "told.roofline.tb_per_sec"),
    ("roofline_share", "number", "share of the roofline, from 0 to 1", "told.roofline.share"),
    ("evaluator", "text", "the evaluator that judged", "told.evaluator"),
    (
        "solution_digest",
        "text",
        "digest of what decides a verdict of the solution",
        "told.run.fingerprint.solution",
    ),
    ("definition_digest", "text", "digest of the definition", "told.run.fingerprint.definition"),
    ("seed", "text", "seed of the inputs", _seed),
    ("engine_version", "text", "version of flashinfer_bench", _library("flashinfer_bench")),
    ("torch_version", "text", "version of torch", _library("torch")),
    ("triton_version", "text", "version of Triton", _library("triton")),
    ("cuda_version", "text", "version of CUDA that torch was built with", _library("cuda")),
    ("driver_version", "text", "version of the GPU's driver", _library("driver")),
    ("log", "text", "what the solution printed, and why it failed", "evaluation.log"),
    (
        "interval",
        "text",
        "`workers`, or `one worker, widened`: it holds for a re-run in a new worker; absent: for one worker's readings",
        "measurement.interval",
    ),
    ("assurance", "text", "level at which the latency was bound: `standard` or `full`", "measurement.assurance"),
    (
        "bound",
        "text",
        "what bounds the latency: `samples`, `chain`, `batch`, `floor` or `none`",
        "measurement.bound",
    ),
    (
        "confirmed",
        "truth",
        "whether the verdict is of full assurance: if any of a workload is, no other takes first place",
        _timed(attrgetter("measurement.is_full")),
    ),
)
"""Name, kind, meaning and source of each."""
COLUMNS: Final = tuple(ExportColumn(*row) for row in _ROWS)
