"""The lines of `perf`: [INFO], [VERBOSE], [VVERBOSE], [PERF], [WARNING] and [ERROR], as other programs parse them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from flashinfer_bench.cli.perf.cases import Request
from flashinfer_bench.cli.perf.rows import PerfRow
from flashinfer_bench.routines.case.materials import describe_case
from flashinfer_bench.routines.case.spec import TORCH
from flashinfer_bench.routines.case.support import LIBRARY, Platform

CUPTI_DEPRECATED: Final = (
    "[WARNING] --use_cupti is deprecated and will be removed in a future release. CUPTI is now enabled by default."
)
NO_BACKENDS: Final = "[ERROR] No backends to test. Exiting."
TORCH_RUNS: Final = f"[INFO] The backend torch needs neither a GPU nor FlashInfer: --backends {TORCH} runs here."
OF_THE_SESSION: Final = "what holds for the whole session goes on the command line"
NAME_WIDTH: Final = 15


def introduce(request: Request, place: Platform) -> Iterator[str]:
    """Yield the lines about a case before it is run."""
    if request.text:
        yield f"[INFO] Line {request.line}: {request.text}"
    if request.swept:
        yield f"[INFO] Case: {request.swept}"
    if request.ignored and request.problem is None:
        yield f"[WARNING] Line {request.line}: without effect: {', '.join(request.ignored)}; {OF_THE_SESSION}"
    if request.problem is not None:
        yield f"[ERROR] Error running test: {request.text}"
        yield from (f"[ERROR] Error: {line}" for line in request.problem.splitlines())
        return
    assert request.routine is not None  # a request without a problem has one
    assert request.case is not None
    args, level = request.args, request.args.verbose
    if level >= 1:
        yield f"[INFO] args = {args}"
        yield f"[INFO] Running {test_name(request.routine.name)}"
        yield f"[INFO] FlashInfer version: {place.versions.get(LIBRARY, 'not installed')}"
    if level >= 2:
        yield f"[VVERBOSE] gpu_name = '{place.device.replace(' ', '_')}'"
    if args.use_cupti:
        yield CUPTI_DEPRECATED
    if args.generate_repro_command:
        yield f"[INFO] To reproduce this test case, run the following command: {args.repro_command}"
    for typed, name in request.renamed.items():
        yield f"[INFO] {typed} for routine {request.routine.name} means {name}"
    yield from (f"[WARNING] {reason}" for reason in request.skipped.values())
    if not request.backends and not request.ranked:
        yield NO_BACKENDS
        if TORCH not in {*request.args.backends, *request.case.refusals}:
            yield TORCH_RUNS
        return
    if level >= 1:
        yield from (f"[VERBOSE] {line}" for line in request.case.notes)
    if level >= 2:
        yield from (f"[VVERBOSE] {line}" for line in describe_case(request.case))


def test_name(routine: str) -> str:
    """Return the name that FlashInfer's documents give to the run of a routine, such as testRmsnormQuant."""
    parts = routine.split("_")
    return (
        f"test{routine}" if len(parts) == 1 and not routine.islower() else f"test{''.join(map(str.capitalize, parts))}"
    )


def report(row: PerfRow) -> Iterator[str]:
    """Yield the lines about a backend after it was run."""
    args = row.request.args
    if row.outcome == "skipped":
        return
    if row.outcome == "mismatch":
        label = "ERROR" if args.refcheck else "WARNING"
        yield f"[{label}] Output tensor mismatch between backends torch and {row.backend}: {row.reason}"
    elif row.outcome == "failed":
        yield f"[ERROR] {row.backend} for routine {row.request.routine.name if row.request.routine else '?'} failed"
        yield f"[ERROR] Error: {row.reason}"
    if shows_time(row):
        yield perf_line(row)
        if row.timing is not None and row.timing.setup_ms is not None:
            yield f"[INFO] {row.backend}: setup takes {row.timing.setup_ms:.3f} ms before a call; it is not in the time"
        if row.record.get("fallback") and not args.use_cuda_events:
            yield f"[WARNING] {row.record['fallback']}"
        if row.timing is not None and row.timing.caveat:
            yield f"[WARNING] {row.backend}: {row.timing.caveat}"
        if row.facts.get("too_fast"):
            yield f"[WARNING] {row.backend}: {row.facts['too_fast']}"
        if args.verbose >= 2:
            yield from _details(row)


def shows_time(row: PerfRow) -> bool:
    """Tell whether a row's time is shown. That of a wrong output is shown if the flags do not make it an error."""
    is_tolerated = not row.request.args.refcheck or row.request.args.allow_output_mismatch
    return row.timing is not None and (row.outcome == "passed" or (row.outcome == "mismatch" and is_tolerated))


def perf_line(row: PerfRow) -> str:
    """Return the [PERF] line, which other programs parse."""
    assert row.timing is not None  # the caller has checked that it is timed
    name = row.backend.ljust(max(NAME_WIDTH, len(row.backend)))
    return (
        f"[PERF] {name}:: median time {row.timing.median_ms:.3f} ms; std {row.timing.std_ms:.3f} ms; "
        f"achieved tflops {row.facts.get('tflops', 0.0):.3f} TFLOPs/sec; "
        f"achieved tb_per_sec {row.facts.get('tb_per_sec', 0.0):.3f} TB/sec"
    )


def _details(row: PerfRow) -> Iterator[str]:
    record = row.record
    method = ", ".join(str(record[key]) for key in ("method", "cache_state") if key in record)
    assert row.timing is not None
    yield f"[VVERBOSE] {row.backend}: {row.timing.median_ms * 1e3:.3f} us by {method or 'an unknown method'}"
    if "roofline_share" in row.facts:
        share, bound = row.facts["roofline_share"], row.facts["roofline_bound"]
        yield f"[VVERBOSE] {row.backend}: {share:.1%} of the roofline of {row.facts['roofline_peak']}, {bound} bound"
