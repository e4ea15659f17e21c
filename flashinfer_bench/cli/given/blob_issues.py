"""Finds stored inputs of workloads that are missing or were not fetched, without opening them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from flashinfer_bench.data import LoadIssue, Trace, TraceSet
from flashinfer_bench.data.issue import Severity
from flashinfer_bench.data.store.blobs import BlobStore


def find_blob_issues(trace_set: TraceSet, workloads: Iterable[Trace] | None = None) -> list[LoadIssue]:
    """Return an issue for each blob that cannot be opened: an error, or a warning for a git-lfs pointer.

    Args:
        trace_set: the set to check.
        workloads: check only these (default: all workloads of the set).
    """
    chosen = [trace for group in trace_set.workloads.values() for trace in group] if workloads is None else workloads
    issues: dict[tuple[Path, str], LoadIssue | None] = {}
    for trace in chosen:
        root = trace_set.blob_root(trace.definition, trace.workload.uuid)
        for source in trace.workload.stored_inputs.values():
            if root is None or (root, source.path) in issues:
                continue
            store = BlobStore(root)
            reason = store.why_not_ready(source.path)
            severity: Severity = "warning" if store.is_pointer(source.path) else "error"
            text = f"workload {trace.workload.uuid} of {trace.definition}: {reason}"
            issues[root, source.path] = LoadIssue(severity, root, None, None, text) if reason else None
    return [issue for issue in issues.values() if issue is not None]
