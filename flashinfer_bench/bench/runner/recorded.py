"""Finds the recorded verdicts of the jobs that a resumed run leaves out.

They count in the table of the run, and for --require-passed."""

from __future__ import annotations

from collections.abc import Iterable

from flashinfer_bench.bench.planning.plan import Job, Plan
from flashinfer_bench.bench.planning.resume import is_same, read_fingerprint
from flashinfer_bench.data import Trace
from flashinfer_bench.data.sets.latest import in_order_of_time
from flashinfer_bench.data.store.trace_lines import AnyTrace, to_trace


def find_resumed(full: Plan, plan: Plan, traces: Iterable[AnyTrace]) -> list[Trace]:
    """Return the trace of each job that is in the full plan and not in the resumed one."""
    planned = {_key(job) for job in plan.jobs}
    left_out = {_key(job): job for job in full.jobs if _key(job) not in planned}
    found: dict[tuple[str, str, str], AnyTrace] = {}
    names = {job.definition.name for job in left_out.values()}
    for trace in in_order_of_time(trace for trace in traces if trace.definition in names):
        key = (trace.definition, trace.solution or "", trace.workload.uuid)
        if key in left_out and _is_record_of(trace, left_out[key]) and not _is_less(trace, found.get(key)):
            found[key] = trace
    return [to_trace(found[key]) for key in left_out if key in found]


def _is_record_of(trace: AnyTrace, job: Job) -> bool:
    evaluation = trace.evaluation
    return evaluation is not None and is_same(read_fingerprint(evaluation), job.fingerprint)


def _is_less(trace: AnyTrace, known: AnyTrace | None) -> bool:
    """Tell whether a verdict lacks the baseline that an earlier one has."""
    return known is not None and _has_baseline(known) and not _has_baseline(trace)


def _has_baseline(trace: AnyTrace) -> bool:
    performance = trace.evaluation.performance if trace.evaluation is not None else None
    return performance is not None and performance.reference_latency_ms > 0


def _key(job: Job) -> tuple[str, str, str]:
    return (job.definition.name, job.solution.name, job.workload.uuid)
