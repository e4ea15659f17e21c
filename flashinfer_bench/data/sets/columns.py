"""The columns of an exported set: one row a trace. `COLUMNS` is their only list; docs/export.md is made of it.

A column is never renamed and never changes its unit or type; new ones come at the end. An absent value is None.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from flashinfer_bench.data.evaluation import EvaluationStatus, as_time
from flashinfer_bench.data.sets.latest import find_latest, parse_time
from flashinfer_bench.data.sets.told import ToldTrace, tell
from flashinfer_bench.data.store.trace_lines import AnyEvaluation, AnyTrace
from flashinfer_bench.data.store.trace_list import kept_of

if TYPE_CHECKING:
    from flashinfer_bench.data.trace_set import TraceSet

Kind = Literal["text", "number", "count", "truth", "time"]
"""A number is a 64-bit float, a count a 64-bit whole number, a time in UTC."""
LARGEST_COUNT: Final = 2**63 - 1


class JudgedTrace(NamedTuple):
    """A trace with what its columns are read from."""

    trace: AnyTrace
    evaluation: AnyEvaluation
    told: ToldTrace
    op_type: str | None
    author: str | None
    language: str | None
    is_latest: bool


@dataclass(frozen=True)
class ExportColumn:
    """One column: its name, what it holds, and how it is read."""

    name: str
    kind: Kind
    meaning: str
    """For the reference; a sentence without its full stop."""
    read: Callable[[JudgedTrace], Any]


def list_judged(trace_set: TraceSet, traces: Iterable[AnyTrace] | None = None) -> Iterator[JudgedTrace]:
    """Yield the traces that hold a verdict, in the order of the files, with what belongs to them.

    Args:
        trace_set: where definitions and solutions are looked up.
        traces: only these; None for all of the set.
    """
    chosen = [item for part in trace_set.traces.values() for item in kept_of(part)] if traces is None else list(traces)
    latest = {id(trace) for trace in find_latest(chosen)}
    solutions = {item.name: item for group in trace_set.solutions.values() for item in group}
    for trace in chosen:
        if trace.evaluation is None:
            continue
        definition, solution = trace_set.definitions.get(trace.definition), solutions.get(trace.solution or "")
        yield JudgedTrace(
            trace,
            trace.evaluation,
            tell(trace.evaluation),
            op_type=definition.op_type if definition else None,
            author=solution.author if solution else None,
            language=solution.spec.language.value if solution else None,
            is_latest=id(trace) in latest,
        )


def make_row(judged: JudgedTrace) -> dict[str, Any]:
    """Return the row of a trace, by the names of the columns."""
    return {column.name: column.read(judged) for column in COLUMNS}


def _latency(judged: JudgedTrace) -> float | None:
    performance = judged.evaluation.performance
    return as_time(performance.latency_ms) if performance is not None else None


def _reference(judged: JudgedTrace) -> float | None:
    performance = judged.evaluation.performance
    return as_time(performance.reference_latency_ms) if performance is not None else None


def _speedup(judged: JudgedTrace) -> float | None:
    latency, reference = _latency(judged), _reference(judged)
    return reference / latency if latency and reference else None


def _bound(index: int) -> Callable[[JudgedTrace], float | None]:
    def read(judged: JudgedTrace) -> float | None:
        interval = judged.told.interval.interval95_ms
        return interval[index] if interval is not None else None

    return read


def _measured(name: str) -> Callable[[JudgedTrace], Any]:
    return lambda judged: getattr(judged.told.measurement, name)


def _named(name: str) -> Callable[[JudgedTrace], Any]:
    return lambda judged: getattr(judged.told.measurement, name) or None


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and abs(value) <= LARGEST_COUNT else None


def _error(name: str) -> Callable[[JudgedTrace], float | None]:
    return lambda judged: getattr(judged.evaluation.correctness, name, None)


def _library(name: str) -> Callable[[JudgedTrace], str | None]:
    return lambda judged: judged.evaluation.environment.libs.get(name)


def _timed(read: Callable[[JudgedTrace], Any]) -> Callable[[JudgedTrace], Any]:
    """Read only where there is a time: a flag of nothing says nothing."""
    return lambda judged: read(judged) if judged.evaluation.performance is not None else None


def _is_time(judged: JudgedTrace) -> str | None:
    moment = parse_time(judged.evaluation.timestamp)
    return moment.isoformat() if moment is not None else None


COLUMNS: Final[tuple[ExportColumn, ...]] = (
    ExportColumn("definition", "text", "name of the definition", lambda judged: judged.trace.definition),
    ExportColumn("op_type", "text", "family of the definition", lambda judged: judged.op_type),
    ExportColumn("workload", "text", "uuid of the workload", lambda judged: judged.trace.workload.uuid),
    ExportColumn(
        "axes",
        "text",
        'sizes of the workload\'s axes as a JSON table, such as `{"batch_size": 4}`',
        lambda judged: json.dumps(dict(judged.trace.workload.axes)),
    ),
    ExportColumn("solution", "text", "name of the solution", lambda judged: judged.trace.solution),
    ExportColumn("author", "text", "author of the solution", lambda judged: judged.author),
    ExportColumn("language", "text", "language of the solution", lambda judged: judged.language),
    ExportColumn("hardware", "text", "name of the device", lambda judged: judged.evaluation.environment.hardware),
    ExportColumn("status", "text", "the verdict", lambda judged: judged.evaluation.status.value),
    ExportColumn(
        "is_passed", "truth", "whether it passed", lambda judged: judged.evaluation.status is EvaluationStatus.PASSED
    ),
    ExportColumn(
        "is_latest",
        "truth",
        "whether this trace counts of its definition, solution, workload and hardware",
        lambda judged: judged.is_latest,
    ),
    ExportColumn("is_quick", "truth", "whether it is a quick look", lambda judged: judged.told.run.quick),
    ExportColumn("timestamp", "time", "when it was judged, UTC", _is_time),
    ExportColumn("latency_ms", "number", "milliseconds of one call", _latency),
    ExportColumn(
        "latency_low_ms",
        "number",
        "lower bound of the latency's 95 % interval in milliseconds; `interval` says what it holds for",
        _bound(0),
    ),
    ExportColumn("latency_high_ms", "number", "upper bound of that interval, in milliseconds", _bound(1)),
    ExportColumn("median_ms", "number", "median of all readings in milliseconds", _measured("median_ms")),
    ExportColumn("q25_ms", "number", "first quartile of the readings in milliseconds", _measured("q25_ms")),
    ExportColumn("q75_ms", "number", "third quartile of the readings in milliseconds", _measured("q75_ms")),
    ExportColumn("std_ms", "number", "standard deviation of the readings in milliseconds", _measured("std_ms")),
    ExportColumn("min_ms", "number", "lowest reading in milliseconds", lambda judged: judged.told.interval.min_ms),
    ExportColumn("max_ms", "number", "highest reading in milliseconds", lambda judged: judged.told.interval.max_ms),
    ExportColumn("samples", "count", "number of readings", lambda judged: _whole(judged.told.measurement.samples)),
    ExportColumn("trials", "count", "number of trials", lambda judged: _whole(judged.told.interval.trials)),
    ExportColumn("reference_latency_ms", "number", "milliseconds of one call of the reference", _reference),
    ExportColumn("speedup", "number", "reference_latency_ms / latency_ms, without a unit", _speedup),
    ExportColumn("kernel_ms", "number", "milliseconds of `run` alone, beside `setup`", _measured("kernel_ms")),
    ExportColumn("setup_ms", "number", "milliseconds of `setup`", _measured("setup_ms")),
    ExportColumn("burst_ms", "number", "milliseconds of one call in a burst, timed outside", _measured("burst_ms")),
    ExportColumn("relay_ms", "number", "milliseconds of one call in a relay, timed outside", _measured("relay_ms")),
    ExportColumn("is_confirmed", "truth", "whether these agree with the latency", _measured("is_confirmed")),
    ExportColumn(
        "is_meaningful", "truth", "whether the latency says something of the kernel", _timed(_measured("meaningful"))
    ),
    ExportColumn(
        "flags",
        "text",
        "flags of the measurement with blanks between them",
        _timed(lambda judged: " ".join(judged.told.measurement.flags)),
    ),
    ExportColumn("method", "text", "the clock: cupti, cuda_events or wall", _named("method")),
    ExportColumn("cache_state", "text", "cold or warm", _named("cache_state")),
    ExportColumn("launch", "text", "stream or graph", _named("launch")),
    ExportColumn("max_absolute_error", "number", "largest absolute error of an element", _error("max_absolute_error")),
    ExportColumn("max_relative_error", "number", "largest relative error of an element", _error("max_relative_error")),
    ExportColumn("flops", "number", "floating-point operations of one call", lambda judged: judged.told.roofline.flops),
    ExportColumn("bytes", "number", "bytes that one call has to move", lambda judged: judged.told.roofline.bytes),
    ExportColumn("tflops", "number", "10^12 operations a second", lambda judged: judged.told.roofline.tflops),
    ExportColumn("tb_per_sec", "number", "10^12 bytes a second", lambda judged: judged.told.roofline.tb_per_sec),
    ExportColumn(
        "roofline_share", "number", "share of the roofline, from 0 to 1", lambda judged: judged.told.roofline.share
    ),
    ExportColumn("evaluator", "text", "the evaluator that judged", lambda judged: judged.told.evaluator or None),
    ExportColumn(
        "solution_digest",
        "text",
        "digest of what decides a verdict of the solution",
        lambda judged: judged.told.run.fingerprint.solution or None,
    ),
    ExportColumn(
        "definition_digest",
        "text",
        "digest of the definition",
        lambda judged: judged.told.run.fingerprint.definition or None,
    ),
    ExportColumn("seed", "text", "seed of the inputs", lambda judged: _as_text(judged.told.run.seed)),
    ExportColumn("engine_version", "text", "version of flashinfer_bench", _library("flashinfer_bench")),
    ExportColumn("torch_version", "text", "version of torch", _library("torch")),
    ExportColumn("triton_version", "text", "version of Triton", _library("triton")),
    ExportColumn("cuda_version", "text", "version of CUDA that torch was built with", _library("cuda")),
    ExportColumn("driver_version", "text", "version of the GPU's driver", _library("driver")),
    ExportColumn("log", "text", "what the solution printed, and why it failed", lambda judged: judged.evaluation.log),
    ExportColumn(
        "interval",
        "text",
        "`workers`, or `one worker, widened`: it holds for a re-run in a new worker; absent: for one worker's readings",
        lambda judged: judged.told.interval.interval or None,
    ),
    ExportColumn(
        "assurance", "text", "level at which the latency was bound: `standard` or `full`", _named("assurance")
    ),
    ExportColumn(
        "bound",
        "text",
        "what bounds the latency: `samples`, `chain`, `batch`, `floor` or `none`",
        _named("bound"),
    ),
    ExportColumn(
        "confirmed",
        "truth",
        "whether the verdict is of full assurance: if any of a workload is, no other takes first place",
        _timed(_measured("is_full")),
    ),
)


def _as_text(value: int | None) -> str | None:
    return str(value) if value is not None else None
