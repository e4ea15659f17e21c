"""What a set covers: definitions with workloads and with a baseline, workloads that some solution passed."""

from __future__ import annotations

from collections.abc import Sequence

from flashinfer_bench.cli.sets.validate.validation import PASSED, Coverage, TriedJob
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.sets.latest import find_latest
from flashinfer_bench.data.store.trace_lines import kept_of


def find_coverage(trace_set: TraceSet, jobs: Sequence[TriedJob], *, baseline_author: str) -> Coverage:
    """Find what a set lacks.

    Args:
        trace_set: its latest traces count.
        jobs: what has been judged now. References count for no workload.
        baseline_author: whose solutions are baselines.
    """
    passed = {(job.definition, job.workload) for job in jobs if job.check == "benchmark" and job.status == PASSED}
    for traces in trace_set.traces.values():
        latest = find_latest(kept_of(traces))
        passed |= {(trace.definition, trace.workload.uuid) for trace in latest if trace.is_successful()}
    uuids = {name: [trace.workload.uuid for trace in traces] for name, traces in trace_set.workloads.items()}
    not_passed = {name: [uuid for uuid in listed if (name, uuid) not in passed] for name, listed in uuids.items()}
    authors = {name: {item.author for item in trace_set.solutions.get(name, [])} for name in trace_set.definitions}
    return Coverage(
        baseline_author=baseline_author,
        without_workloads=[name for name in trace_set.definitions if not uuids.get(name)],
        without_baseline=[name for name, found in authors.items() if baseline_author not in found],
        not_passed={name: listed for name, listed in not_passed.items() if listed},
    )
