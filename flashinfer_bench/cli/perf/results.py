"""The results of cases: a row for each backend, as the lines that FlashInfer's documents show and as a JSON document.

A row is the document of the JSON lines; `files` makes the CSV of it. Times come from the trace's measurement, which is
in the row as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from flashinfer_bench.cli.perf.cases import Request
from flashinfer_bench.data import Evaluation, EvaluationStatus
from flashinfer_bench.data.measurement import Measurement, read_measurement
from flashinfer_bench.report.verdict import reason_of, to_one_line
from flashinfer_bench.roofline.peaks import describe_time
from flashinfer_bench.routines.case.materials import describe_case
from flashinfer_bench.routines.case.spec import TORCH
from flashinfer_bench.routines.case.support import LIBRARY, Platform, resolve_backend
from flashinfer_bench.timing.flags import LATE_SHARE

FORMAT_VERSION: Final = 1
"""Version of the JSON lines. 1: the first."""
CUPTI_DEPRECATED: Final = (
    "[WARNING] --use_cupti is deprecated and will be removed in a future release. CUPTI is now enabled by default."
)
TORCH_RUNS: Final = f"[INFO] The backend torch needs neither a GPU nor FlashInfer: --backends {TORCH} runs here."
OF_THE_SESSION: Final = "what holds for the whole session goes on the command line"
NAME_WIDTH: Final = 15
ROOFLINE: Final = {"floor_ms": "roofline_ms", **{name: f"roofline_{name}" for name in ("share", "bound", "peak")}}
"""The name of a fact → its name in a row."""
Row = dict[str, Any]


def make_row(request: Request, backend: str, place: Platform, status: str, reason: str = "") -> Row:
    """Return the row of a backend, or of a whole case, that has no verdict: it is skipped or has failed."""
    case, material, resolved = request.case, request.material, backend
    if case is not None and status != "skipped":
        resolved = resolve_backend(request.named, backend, case, place.capability)
    return {
        "version": FORMAT_VERSION,
        "routine": request.named,
        "backend": backend,
        "resolved_backend": resolved,
        "status": status,
        "reason": to_one_line(reason),
        "median_ms": None,
        "std_ms": None,
        "flags": {name: value for name, value in vars(request.args).items() if name != "routine"},
        "case": dict(case.columns) if case is not None else {},
        "facts": {},
        "measurement": {},
        "definition": material.definition.name if material is not None else None,
        "device": place.device,
        "compute_capability": place.capability,
        "versions": dict(place.versions),
        "testlist_line": request.line,
        "caveat": "",
    }


def make_judged(
    request: Request, backend: str, place: Platform, evaluation: Evaluation | None, device: str | None = None
) -> Row:
    """Return the row of a verdict; of the device that the trace names where none is given."""
    assert evaluation is not None  # a verdict has one
    measured = read_measurement(evaluation)
    median = measured.kernel_ms if measured.kernel_ms is not None else measured.median_ms
    if median is None and evaluation.performance is not None:
        median = evaluation.performance.latency_ms
    status, reason = "passed", ""
    if evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL:
        status, reason = "mismatch", reason_of(evaluation)
    elif evaluation.status is not EvaluationStatus.PASSED:
        status, reason = "failed", f"{evaluation.status.value}: {reason_of(evaluation)}"
    elif median is None:
        status, reason = "failed", "the trace holds no measurement"
    facts: dict[str, Any] = {}
    if evaluation.correctness is not None:
        facts["max_absolute_error"] = evaluation.correctness.max_absolute_error
        facts["max_relative_error"] = evaluation.correctness.max_relative_error
    if median is not None:
        found = describe_time(request.made_case.cost, evaluation.environment.hardware, median) or {}
        facts |= {"too_fast": ""} if "share" in found else {}
        facts |= {ROOFLINE.get(name, name): fact for name, fact in found.items()}
    record = (evaluation.extra or {}).get("measurement")
    return {
        **make_row(request, backend, place, status, reason),
        "median_ms": median,
        "std_ms": math.nan if measured.std_ms is None and median is not None else measured.std_ms,
        "facts": facts,
        "measurement": dict(record) if isinstance(record, dict) else {},
        "device": device or evaluation.environment.hardware,
        "caveat": _caveat(measured),
    }


def _caveat(measured: Measurement) -> str:
    """Say why the time means nothing, or little.

    The host may be slower than the kernels that it launches: this is told only where it launched too late in more than
    LATE_SHARE of the samples, so that the time is the host's.
    """
    if not measured.meaningful:
        return measured.reason or "the time means nothing"
    late = (measured.late or 0) > LATE_SHARE * (measured.samples or math.inf)
    return ", ".join(flag for flag in measured.flags if flag != "host_bound" or late)


def is_failure(row: Row) -> bool:
    """Tell whether a row makes the session fail. A mismatch does if the flags make it an error."""
    flags = row["flags"]
    is_error = row["status"] == "mismatch" and flags["refcheck"] and not flags["allow_output_mismatch"]
    return row["status"] == "failed" or bool(is_error)


def introduce(request: Request, place: Platform) -> Iterator[str]:
    """Yield the lines about a case that stand before those of its backends."""
    if request.text:
        yield f"[INFO] Line {request.line}: {request.text}"
    if request.swept:
        yield f"[INFO] Case: {request.swept}"
    if request.problem is not None:
        yield f"[ERROR] Error running test: {request.text}"
        yield from (f"[ERROR] Error: {line}" for line in request.problem.splitlines())
        return
    if request.ignored:
        yield f"[WARNING] Line {request.line}: without effect: {', '.join(request.ignored)}; {OF_THE_SESSION}"
    case, args, name = request.made_case, request.args, request.named
    if args.verbose >= 1:
        yield f"[INFO] args = {args}"
        yield f"[INFO] Running test{''.join(part[:1].upper() + part[1:] for part in name.split('_'))}"
        yield f"[INFO] FlashInfer version: {place.versions.get(LIBRARY, 'not installed')}"
    if args.verbose >= 2:
        yield f"[VVERBOSE] gpu_name = '{place.device.replace(' ', '_')}'"
    if args.use_cupti:
        yield CUPTI_DEPRECATED
    if args.generate_repro_command:
        yield f"[INFO] To reproduce this test case, run the following command: {args.repro_command}"
    for typed, meant in request.renamed.items():
        yield f"[INFO] {typed} for routine {name} means {meant}"
    yield from (f"[WARNING] {reason}" for reason in request.skipped.values())
    if not request.backends:
        yield "[ERROR] No backends to test. Exiting."
        if TORCH not in args.backends:
            yield TORCH_RUNS
        return
    if args.verbose >= 1:
        yield from (f"[VERBOSE] {line}" for line in case.notes)
    if args.verbose >= 2:
        yield from (f"[VVERBOSE] {line}" for line in describe_case(case, request.made.definition.reference))


def report(row: Row) -> Iterator[str]:
    """Yield the lines about a backend. A wrong output has a time if the flags do not forbid that."""
    name, flags, facts, record = row["backend"], row["flags"], row["facts"], row["measurement"]
    if row["status"] == "mismatch":
        label = "ERROR" if flags["refcheck"] else "WARNING"
        yield f"[{label}] Output tensor mismatch between backends {TORCH} and {name}: {row['reason']}"
    elif row["status"] == "failed":
        yield f"[ERROR] {name} for routine {row['routine']} failed"
        yield f"[ERROR] Error: {row['reason']}"
    if row["status"] == "skipped" or row["median_ms"] is None or is_failure(row):
        return
    yield perf_line(row)
    if record.get("setup_ms") is not None:
        yield f"[INFO] {name}: setup takes {record['setup_ms']:.3f} ms before a call; it is not in the time"
    if record.get("fallback") and not flags["use_cuda_events"]:
        yield f"[WARNING] {record['fallback']}"
    yield from (f"[WARNING] {name}: {what}" for what in (row["caveat"], facts.get("too_fast")) if what)
    if flags["verbose"] >= 2:
        method = ", ".join(record[key] for key in ("method", "cache_state") if key in record)
        yield f"[VVERBOSE] {name}: {row['median_ms'] * 1e3:.3f} us by {method or 'an unknown method'}"
        if "roofline_share" in facts:
            share, bound = facts["roofline_share"], facts["roofline_bound"]
            yield f"[VVERBOSE] {name}: {share:.1%} of the roofline of {facts['roofline_peak']}, {bound} bound"


def perf_line(row: Row) -> str:
    """Return the [PERF] line of a row with a time, which other programs parse."""
    facts = row["facts"]
    return (
        f"[PERF] {row['backend'].ljust(NAME_WIDTH)}:: median time {row['median_ms']:.3f} ms; "
        f"std {row['std_ms']:.3f} ms; achieved tflops {facts.get('tflops', 0.0):.3f} TFLOPs/sec; "
        f"achieved tb_per_sec {facts.get('tb_per_sec', 0.0):.3f} TB/sec"
    )
