"""Tasks from acceptance to their end. A task is stored before its client is answered, and each verdict is written once.

    accept ──▶ store (committed) ──▶ engine ──▶ trace ──▶ line in the set ──▶ store ──▶ waiting requests
                     ▲                                                          │
                     └── the next server, if this one ends before the task ◀────┘

`store.py` writes to disk. This module runs in the event loop. One thread accesses the disk, and another thread submits
tasks to the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from fastapi import HTTPException

from flashinfer_bench.bench.engine import Engine
from flashinfer_bench.bench.task import Task
from flashinfer_bench.data import Solution, Trace
from flashinfer_bench.data.sets.results import list_results
from flashinfer_bench.errors import Fault, FlashInferBenchError, QueueFull
from flashinfer_bench.report.intervals import mean_speedup
from flashinfer_bench.serve.limits import ServeLimits
from flashinfer_bench.serve.store import OPEN, TaskRow, TaskStore

_log = logging.getLogger(__name__)
Value = TypeVar("Value")
Event = dict[str, Any]
NAMES: Final = {"id": "task_id", "state": "status", "solution_name": "solution", "workloads": "workload_uuids"}
FULL_RETRY_S: Final = 5
"""Seconds that a refused client should wait before it retries."""
RETRY_S: Final = 2.0
"""Seconds between two attempts to store the end of a task, or to submit a task of an earlier server."""
REQUEUE_S: Final = 10.0
"""Seconds for cancelled jobs to leave the engine after the drain."""


@dataclass
class LiveTask:
    """An open task, as requests read it."""

    row: TaskRow
    missing: list[str]
    """Workloads without a recorded verdict."""
    handle: Task | None = None
    """None until the engine has the task."""
    ended: TaskRow | None = None
    """The row of the ended task. The task stays live until the store has this row, too."""
    follower: asyncio.Task[None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the next change and then replaced by a new event."""

    @property
    def shown(self) -> TaskRow:
        """The task's row with its current state, for clients."""
        is_judging = self.handle is not None and self.handle.state == "running"
        is_running = is_judging or len(self.missing) < len(self.row.workloads)
        return self.ended or replace(self.row, state="running" if is_running else "pending")

    def notify(self) -> None:
        """Wake the requests that wait for a change."""
        woken, self.changed = self.changed, asyncio.Event()
        woken.set()


class TaskService:
    """Accepts tasks, follows them, and returns their states.

    Args:
        engine: the engine for the jobs.
        store: the store of the tasks.
        limits: the limits of requests.
    """

    def __init__(self, engine: Engine, store: TaskStore, limits: ServeLimits) -> None:
        self._engine = engine
        self._store = store
        self.limits = limits
        self.is_draining = False
        """Whether it accepts no more tasks."""
        self._is_closing = False
        """Whether the server has drained, so that waiting requests end."""
        self.ended: Counter[str] = Counter()
        """Ended tasks since this server's start, by status."""
        self._live: dict[str, LiveTask] = {}
        self._waiting = 0
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="serve-disk")
        self._resubmitting: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Resume the open tasks of an earlier server; return their number."""
        await self._clean()
        found = await self._on_disk(self._store.open_tasks)
        self._live = {row.id: LiveTask(row, missing) for row, missing in found}
        self._resubmitting = asyncio.create_task(self._resubmit())
        return len(found)

    async def drain(self, limit_s: float) -> int:
        """Accept no more tasks, let running jobs end within the limit, and requeue the other jobs. Return the number of
        tasks that are still open."""
        self.is_draining = True
        if self._resubmitting is not None:
            self._resubmitting.cancel()
        for wait_s in (limit_s, REQUEUE_S):
            for live in self._live.values():
                if live.handle is not None and (wait_s == REQUEUE_S or live.shown.state == "pending"):
                    live.handle.cancel()
            if running := [live.follower for live in self._live.values() if live.follower is not None]:
                await asyncio.wait(running, timeout=wait_s)
        self._is_closing = True
        for live in self._live.values():
            live.notify()
        return len(self._live)

    def close(self) -> None:
        """Close the store after all pending writes."""
        self._disk.submit(self._store.close).result()
        self._disk.shutdown()

    async def accept(self, row: TaskRow, solution: Solution) -> TaskRow:
        """Store a task and submit it to the engine. A repeated key returns the first task with the key.

        Raises:
            HTTPException: there is no capacity, the server ends, or the key belongs to another request.
            FlashInferBenchError: the engine or the set refuses the task.
        """
        own = sum(live.row.submitter == row.submitter for live in self._live.values())
        if self.is_draining:
            raise retry_later(503, "the server ends; it takes no more tasks")
        if len(self._live) >= self.limits.open_tasks:
            raise retry_later(503, f"{len(self._live)} tasks are open")
        if own >= self.limits.open_tasks_each:
            raise retry_later(429, f"{row.submitter!r} has {own} open tasks")
        live = self._live[row.id] = LiveTask(row, list(row.workloads))
        try:
            kept = await self._on_disk(self._store.accept, row)
            if kept.id == row.id:
                await self._submit(live, solution)
                _log.info("task %s: accepted", row.id)
                return row
        except FlashInferBenchError:
            del self._live[row.id]
            await self._on_disk(self._store.forget, row.id)
            raise
        del self._live[row.id]
        if kept.request != row.request:
            raise HTTPException(422, "this Idempotency-Key belongs to another request")
        return kept

    async def read(self, task: str) -> dict[str, Any]:
        """Return the document of a task.

        Raises:
            HTTPException: the task does not exist.
        """
        row, traces = await self._read(task)
        found = {"traces": [json.loads(traces[uuid]) for uuid in row.workloads if uuid in traces]} if traces else {}
        before = itertools.takewhile(lambda one: one != task, list(self._live))
        ahead = {"tasks_ahead": sum(not self._live[one].ended for one in before)} if row.state == "pending" else {}
        return {**_describe(row), **ahead, **found}

    async def list_tasks(self, submitter: str | None) -> list[dict[str, Any]]:
        """Return the latest tasks, without their traces."""
        live = dict(self._live)  # before the store is read, since a task may end at the same time
        rows = await self._on_disk(self._store.list_tasks, submitter, self.limits.listed)
        return [_describe(_shown(row, live.get(row.id))) for row in rows]

    async def wait(self, tasks: Sequence[str], timeout_s: float) -> None:
        """Return when all of these tasks are over, the timeout has passed, or the server ends."""

        async def end_of(live: LiveTask) -> None:
            while not live.ended and not self._is_closing:
                await live.changed.wait()

        with self.limit_waiting(), contextlib.suppress(asyncio.TimeoutError):
            ends = [end_of(self._live[task]) for task in tasks if task in self._live]
            await asyncio.wait_for(asyncio.gather(*ends), min(timeout_s, self.limits.poll_s))

    async def events(self, task: str) -> AsyncIterator[Event | None]:
        """Yield the past and future events of a task until it is over; None as a keep-alive."""
        seen: set[str] = set()
        while True:
            live = self._live.get(task)
            changed = live.changed if live is not None else None  # before the store is read
            row, traces = await self._read(task)
            for uuid, trace in traces.items():
                if uuid not in seen:
                    yield _verdict_event(Trace.model_validate_json(trace))
            seen |= traces.keys()
            if row.ended_at is not None:
                yield {"event": "end", "status": row.state, "error": row.error}
            if changed is None or row.ended_at is not None or self._is_closing:
                return
            try:
                await asyncio.wait_for(changed.wait(), self.limits.poll_s / 4)
            except asyncio.TimeoutError:
                yield None

    async def cancel(self, task: str) -> dict[str, Any]:
        """Cancel a task. Its records stay, and a task that is over does not change."""
        live = self._live.get(task)
        if live is not None and not live.ended:
            if live.handle is not None:
                live.handle.cancel()
            await self._end(live, "cancelled")
        return await self.read(task)

    def count_open(self) -> Mapping[str, int]:
        """Return the numbers of pending and running tasks."""
        return Counter(live.shown.state for live in self._live.values() if not live.ended)

    @contextlib.contextmanager
    def limit_waiting(self) -> Iterator[None]:
        """Count a waiting request.

        Raises:
            HTTPException: too many requests wait.
        """
        if self._waiting >= self.limits.polls:
            raise retry_later(429, f"{self._waiting} requests wait for tasks already")
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    # Private: access to the disk and to the engine.

    async def _on_disk(self, work: Callable[..., Value], *values: Any) -> Value:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._disk, work, *values)
        except (sqlite3.Error, OSError) as error:
            raise Fault(f"the disk failed the server: {error}") from error

    async def _read(self, task: str) -> tuple[TaskRow, dict[str, str]]:
        live = self._live.get(task)  # before the store is read, since the task may end at the same time
        row, traces = await self._on_disk(self._store.read, task)
        if row is None:
            raise HTTPException(404, f"there is no task {task[:100]}; old tasks are deleted")
        return _shown(row, live), traces

    async def _clean(self) -> None:
        await self._on_disk(self._store.clean, time.time() - self.limits.keep_days * 86400)

    async def _submit(self, live: LiveTask, solution: Solution) -> None:
        """Submit a task to the engine and follow it, unless the next server must do that."""
        if self.is_draining:
            return
        row = live.row
        asked: dict[str, Any] = {"priority": row.priority, "submitter": row.submitter, "confirm": row.confirm}
        live.handle = await asyncio.to_thread(self._engine.submit, solution, live.missing, save_results=False, **asked)
        live.follower = asyncio.create_task(self._follow(live, live.handle))

    async def _follow(self, live: LiveTask, handle: Task) -> None:
        """Record the traces of a task as they arrive, then its end. A drain leaves incomplete tasks to the next
        server."""
        error: str | None = None
        try:
            async for trace in handle:
                uuid = trace.workload.uuid
                if uuid in live.missing and not live.ended:
                    await self._on_disk(self._store.record, live.row, trace)
                    live.missing.remove(uuid)
                    live.notify()
        except FlashInferBenchError as failure:
            error = str(failure)
        except Exception as failure:  # a failure of one task must not end the other tasks
            _log.exception("task %s: it was given up", live.row.id)
            error = f"the server failed: {failure}"
        handle.cancel()  # a verdict that cannot be recorded need not be made
        # If the engine completed a task without some of its jobs, it skipped these jobs.
        is_completed = not live.missing or (error is None and handle.state == "completed")
        if live.ended or (self.is_draining and not is_completed):
            return
        reasons = "\n".join(dict.fromkeys(str(fault.message) for fault in handle.faults)) or error
        await self._end(live, "completed" if is_completed else "failed", reasons if live.missing else None)

    async def _end(self, live: LiveTask, state: str, error: str | None = None) -> None:
        """End a task, also in the store. While the disk fails, the end of the task is recorded in memory only."""
        live.ended = replace(live.row, state=state, error=error, ended_at=time.time())
        self.ended[state] += 1
        live.notify()
        _log.info("task %s: %s", live.row.id, state)
        while live.row.id in self._live and not self._is_closing:
            try:
                await self._on_disk(self._store.end, live.ended)
                del self._live[live.row.id]
                await self._clean()
            except Fault:
                _log.exception("task %s: its end cannot be written; tried again every %g s", live.row.id, RETRY_S)
                await asyncio.sleep(RETRY_S)

    async def _resubmit(self) -> None:
        """Submit the tasks of an earlier server to the engine, in their order."""
        for live in list(self._live.values()):
            solution = Solution.model_validate_json(live.row.solution)
            if not live.missing:
                await self._end(live, "completed")
            while live.handle is None and not live.ended:
                try:
                    await self._submit(live, solution)
                except QueueFull:
                    await asyncio.sleep(RETRY_S)
                except FlashInferBenchError as error:
                    await self._end(live, "failed", str(error))


def retry_later(status: int, reason: str) -> HTTPException:
    """Return the refusal of a request that may be retried."""
    return HTTPException(status, f"{reason}; come again", {"Retry-After": str(FULL_RETRY_S)})


def _shown(row: TaskRow, live: LiveTask | None) -> TaskRow:
    """Return a task from the store. While the task is open, its state comes from memory."""
    if row.state != OPEN:
        return row
    return live.shown if live is not None else replace(row, state="pending")


def _describe(row: TaskRow) -> dict[str, Any]:
    """Return the document of a task: its row with the names that clients know, without the sources."""
    left_out = {"key", "request", "solution", *(["error"] if row.error is None else [])}
    return {NAMES.get(name, name): value for name, value in vars(row).items() if name not in left_out}


def _verdict_event(trace: Trace) -> Event:
    """Describe a verdict in one line."""
    event: Event = {"event": "verdict", "workload_uuid": trace.workload.uuid}
    if (evaluation := trace.evaluation) is not None:
        event["status"] = evaluation.status.value
        event["latency_ms"] = evaluation.performance.latency_ms if evaluation.performance is not None else None
        speedup = mean_speedup(list_results(None, [trace]))
        event["speedup"] = speedup and speedup.value
    return event
