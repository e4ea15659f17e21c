"""From a folder to a `TraceSet`: what `TraceSet.from_path` does, for callers that have a path in hand."""

from __future__ import annotations

from pathlib import Path

from flashinfer_bench.data.issue import LoadIssue
from flashinfer_bench.data.trace_set import TraceSet

__all__ = ["LoadIssue", "load_trace_set"]


def load_trace_set(root: Path | str) -> TraceSet:
    """Load the set under a folder; everything wrong in it is in `TraceSet.issues`, and the rest is usable.

    Raises:
        DataSetError: the folder is not there.
    """
    return TraceSet.from_path(root)
