"""Which verdicts of open tasks the set has already. Asked once, when a server starts.

Each line that a server appends names its task (`extra.run.task`). Where the process ended between the line and the
ledger's note of it, the line counts: it is never written twice. A last line that was cut off counts as not written;
the next append moves it aside.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from flashinfer_bench.data import Trace
from flashinfer_bench.data.store.jsonl import read_lines
from flashinfer_bench.serve.ledger import TaskRow

TASK_KEY: Final = "task"
"""The key of `extra.run` that names the task."""
_NAMED: Final = re.compile(rb'"task":\s*"([0-9a-f]{32})"')


def with_task(trace: Trace, task: str) -> Trace:
    """Return the trace with the id of its task."""
    if trace.evaluation is None:
        return trace
    extra = dict(trace.evaluation.extra or {})
    run = extra.get("run")
    extra["run"] = {**(run if isinstance(run, dict) else {}), TASK_KEY: task}
    return trace.model_copy(update={"evaluation": trace.evaluation.model_copy(update={"extra": extra})})


def find_recorded(files: Iterable[Path], tasks: Iterable[TaskRow]) -> dict[str, dict[str, str]]:
    """Return the verdicts that files of traces have of these tasks: task → workload → line.

    Raises:
        OSError: a file cannot be read, so nobody knows.
    """
    asked = {task.id.encode() for task in tasks}
    found: dict[str, dict[str, str]] = {}
    for file in files:
        if not file.exists():
            continue
        for _, line, _ in read_lines(file):
            if asked.isdisjoint(_NAMED.findall(line)):
                continue
            key = _read_key(line)
            if key is not None and key[0].encode() in asked:
                found.setdefault(key[0], {}).setdefault(key[1], line.decode())
    return found


def _read_key(line: bytes) -> tuple[str, str] | None:
    """Return task and workload of a line; None for one that was cut off, or is another thing."""
    try:
        parsed = json.loads(line)
        return str(parsed["evaluation"]["extra"]["run"][TASK_KEY]), str(parsed["workload"]["uuid"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
