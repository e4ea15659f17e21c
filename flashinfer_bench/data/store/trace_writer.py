"""Writes results. Each trace is one line, which is on disk when `append` returns. Several runs may write to one set."""

from __future__ import annotations

from pathlib import Path

from flashinfer_bench.data.store.jsonl import append_line, check_append
from flashinfer_bench.data.store.layout import traces_path
from flashinfer_bench.data.trace import Trace


class TraceWriter:
    """Appends traces under one root. The writer follows no link below the root, since the set may be untrusted."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def append(self, trace: Trace, *, author: str, op_type: str) -> Path:
        """Append one trace, and return its file.

        Args:
            trace: a trace with a solution and an evaluation.
            author: the solution's author.
            op_type: the definition's op type.

        Raises:
            Fault: the file cannot be written, and is unchanged.
        """
        path = traces_path(self.root, author=author, op_type=op_type, definition=trace.definition)
        append_line(path, trace.to_json(), root=self.root)
        return path

    def check(self, *, author: str, op_type: str, definition: str) -> None:
        """Refuse a set if a trace cannot be written. The check writes no file.

        Raises:
            DataSetError: the path contains a link, or the file or its folder cannot be written.
        """
        check_append(traces_path(self.root, author=author, op_type=op_type, definition=definition), self.root)
