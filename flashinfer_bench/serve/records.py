"""The disk's side of a server: the ledger and the set's traces, used from one thread.

A verdict is a line of the set first, with the id of its task, then a row of the ledger. A server that starts reads the
lines of tasks that are open, so what happened between the two is neither lost nor written twice.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from flashinfer_bench.base.files.reading import open_to_read
from flashinfer_bench.data import Solution, Trace, TraceSet
from flashinfer_bench.data.store.jsonl import check_append
from flashinfer_bench.data.store.layout import traces_path
from flashinfer_bench.data.store.record import TraceWriter
from flashinfer_bench.errors import Fault
from flashinfer_bench.serve.ledger import Ledger, TaskRow
from flashinfer_bench.serve.recorded import find_recorded, with_task

Value = TypeVar("Value")
RECENT_LINES: Final = 256
"""A trace is known for one that has its line already among so many of the latest."""


class TaskRecords:
    """Keeps tasks and their verdicts; its methods are for the event loop's thread.

    Args:
        ledger: where tasks are kept.
        trace_set: what they are about.
        root: the root that traces are appended to.
    """

    def __init__(self, ledger: Ledger, trace_set: TraceSet, root: Path) -> None:
        self._ledger = ledger
        self._trace_set = trace_set
        self._writer = TraceWriter(root)
        self._written: deque[tuple[Trace, str]] = deque(maxlen=RECENT_LINES)
        """The latest traces with their lines."""
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="serve-disk")

    def close(self) -> None:
        """Close the ledger, after everything that is on its way there."""
        self._disk.submit(self._ledger.close).result()
        self._disk.shutdown()

    async def find_open(self) -> list[tuple[TaskRow, list[str]]]:
        """Return the tasks that are open, each with the workloads that have no verdict yet."""
        return await self._do(self._reconcile)

    async def accept(self, row: TaskRow) -> TaskRow:
        """Keep a task, on disk when this returns. Where its submitter used its key before, return that task."""
        return await self._do(self._ledger.accept, row)

    async def check(self, row: TaskRow) -> None:
        """Refuse a task whose traces could not be written to the set.

        Raises:
            DataSetError: a link in the set stands in the way, or its folder cannot be written.
        """
        await self._do(check_append, self._file_of(row), self._writer.root)

    async def forget(self, task: str) -> None:
        """Remove a task that was not accepted after all."""
        await self._do(self._ledger.forget, task)

    async def record(self, row: TaskRow, trace: Trace, author: str) -> None:
        """Append a trace to the set, then tell the ledger. What the engine judged for two tasks is one line."""
        await self._do(self._record, row, trace, author)

    async def end(self, ended: TaskRow) -> None:
        """Keep how a task ended, unless it is over already."""
        await self._do(self._ledger.end, ended)

    async def read(self, task: str) -> tuple[TaskRow | None, dict[str, str]]:
        """Return a task, or None, with its verdicts: workload → trace as JSON."""
        return await self._do(lambda: (self._ledger.find(task), self._ledger.verdicts(task)))

    async def list_tasks(self, submitter: str | None, most: int) -> list[TaskRow]:
        """Return the latest tasks without their solutions."""
        return await self._do(self._ledger.list_tasks, submitter, most)

    async def clean(self, before: float) -> int:
        """Forget tasks that ended before a time; return how many."""
        return await self._do(self._ledger.clean, before)

    async def _do(self, work: Callable[..., Value], *values: Any) -> Value:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._disk, work, *values)
        except (sqlite3.Error, OSError) as error:
            raise Fault(f"the disk failed the server: {error}") from error

    # From here on: in the disk's thread

    def _record(self, row: TaskRow, trace: Trace, author: str) -> None:
        line = next((told for known, told in self._written if known is trace), None)
        if line is None:
            told = with_task(trace, row.id)
            line = told.to_json()
            op_type = self._trace_set.definitions[row.definition].op_type
            path = self._writer.append(told, author=author, op_type=op_type)
            descriptor = open_to_read(path)
            try:
                os.fsync(descriptor)  # before the ledger says that it is there
            finally:
                os.close(descriptor)
            self._written.append((trace, line))
        self._ledger.keep_verdict(row.id, trace.workload.uuid, line)

    def _reconcile(self) -> list[tuple[TaskRow, list[str]]]:
        """Bring the ledger up to what the set has."""
        rows = self._ledger.open_tasks()
        files = {self._file_of(row) for row in rows}
        for task, lines in find_recorded(sorted(files), rows).items():
            for workload, line in lines.items():
                self._ledger.keep_verdict(task, workload, line)
        done = {row.id: self._ledger.verdicts(row.id).keys() for row in rows}
        return [(row, [workload for workload in row.workloads if workload not in done[row.id]]) for row in rows]

    def _file_of(self, row: TaskRow) -> Path:
        solution = Solution.model_validate_json(row.solution)
        definition = self._trace_set.definitions.get(row.definition)
        op_type = definition.op_type if definition is not None else ""
        return traces_path(self._writer.root, author=solution.author, op_type=op_type, definition=row.definition)
