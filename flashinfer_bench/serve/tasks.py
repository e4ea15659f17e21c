"""Tasks from acceptance to their end: the store has a task before its client hears of it, the set each verdict once.

    accept ──▶ store (committed) ──▶ engine ──▶ trace ──▶ line in the set ──▶ store ──▶ who waits
                     ▲                                                          │
                     └── the next server, if this one ends before the task ◀────┘

`store.py` has the disk's side. Everything here belongs to the event loop; the disk is used in one thread, and the
engine is handed tasks in another.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from flashinfer_bench.errors import EngineClosed, Fault, FlashInferBenchError, QueueFull
from flashinfer_bench.report.summary import measured_speedup
from flashinfer_bench.serve.limits import ServeLimits
from flashinfer_bench.serve.store import OPEN, TaskRow, TaskStore

_log = logging.getLogger(__name__)
Value = TypeVar("Value")
Event = dict[str, Any]
NAMES: Final = {"id": "task_id", "state": "status", "solution_name": "solution", "workloads": "workload_uuids"}
FULL_RETRY_S: Final = 5
"""Seconds after which a client that was refused for lack of room is asked to come again."""
AGAIN_S: Final = 2.0
"""Seconds between two tries to write down how a task ended, or to submit a task of an earlier server."""
REQUEUE_S: Final = 10.0
"""Seconds that cancelled jobs have to leave the engine after the drain."""


@dataclass
class LiveTask:
    """A task that is not over, as requests see it."""

    row: TaskRow
    missing: list[str]
    """Workloads without a recorded verdict."""
    handle: Task | None = None
    """None until the engine has it."""
    ended: TaskRow | None = None
    """The row as it is when the task is over. The task stays live until the store has that, too."""
    is_requeued: bool = False
    """The server ends; the next one goes on with the task."""
    follower: asyncio.Task[None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the next change; then there is another one."""

    @property
    def shown(self) -> TaskRow:
        """The row as its client sees it."""
        is_judging = self.handle is not None and self.handle.state == "running"
        is_running = is_judging or len(self.missing) < len(self.row.workloads)
        return self.ended or replace(self.row, state="running" if is_running else "pending")

    def notify(self) -> None:
        """Wake who waits for a change."""
        woken, self.changed = self.changed, asyncio.Event()
        woken.set()

    def requeue(self) -> None:
        """Leave the task to the next server."""
        self.is_requeued = True
        if self.handle is not None:
            self.handle.cancel()


class TaskService:
    """Accepts tasks, follows them, and answers for them.

    Args:
        engine: judges.
        store: where tasks are kept.
        limits: what is refused.
    """

    def __init__(self, engine: Engine, store: TaskStore, limits: ServeLimits) -> None:
        self._engine = engine
        self._store = store
        self.limits = limits
        self.is_draining = False
        """It takes no more tasks."""
        self._is_closing = False
        """Nothing more will happen here: nobody need wait."""
        self.ended: Counter[str] = Counter()
        """Tasks by how they ended, since this server started."""
        self._live: dict[str, LiveTask] = {}
        self._waiting = 0
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="serve-disk")
        self._resubmitting: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Go on with the tasks that an earlier server left open; return how many."""
        await self._clean()
        found = await self._on_disk(self._store.open_tasks)
        self._live = {row.id: LiveTask(row, missing) for row, missing in found}
        self._resubmitting = asyncio.create_task(self._resubmit())
        return len(found)

    async def drain(self, limit_s: float) -> int:
        """Take no more tasks, let jobs that run end within the limit, and requeue the rest; return how many."""
        self.is_draining = True
        if self._resubmitting is not None:
            self._resubmitting.cancel()
        for wait_s in (limit_s, REQUEUE_S):
            for live in self._live.values():
                if live.shown.state == "pending" or wait_s == REQUEUE_S:
                    live.requeue()
            if running := [live.follower for live in self._live.values() if live.follower is not None]:
                await asyncio.wait(running, timeout=wait_s)
        self._is_closing = True
        for live in self._live.values():
            live.notify()
        return len(self._live)

    def close(self) -> None:
        """Close the store, after everything that is on its way there."""
        self._disk.submit(self._store.close).result()
        self._disk.shutdown()

    async def accept(self, row: TaskRow, solution: Solution) -> TaskRow:
        """Keep a task and give it to the engine; a key that was used before gives the task of then.

        Raises:
            HTTPException: there is no room, the server ends, or the key belongs to another request.
            FlashInferBenchError: the engine or the set does not take it.
        """
        own = sum(live.row.submitter == row.submitter for live in self._live.values())
        if self.is_draining:
            raise come_again(503, "the server ends; it takes no more tasks")
        if len(self._live) >= self.limits.open_tasks:
            raise come_again(503, f"{len(self._live)} tasks are open")
        if own >= self.limits.open_tasks_each:
            raise come_again(429, f"{row.submitter!r} has {own} open tasks")
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
            HTTPException: there is no such task.
        """
        row, traces = await self._read(task)
        found = {"traces": [json.loads(traces[uuid]) for uuid in row.workloads if uuid in traces]} if traces else {}
        return {**_describe(row), **found}

    async def list_tasks(self, submitter: str | None) -> list[dict[str, Any]]:
        """Return the latest tasks, without their traces."""
        live = dict(self._live)  # as of before the store is read: a task may end meanwhile
        rows = await self._on_disk(self._store.list_tasks, submitter, self.limits.listed)
        return [_describe(_shown(row, live.get(row.id))) for row in rows]

    async def wait(self, tasks: Sequence[str], timeout_s: float) -> None:
        """Return when all of these tasks are over, the time is over, or the server ends."""

        async def end_of(live: LiveTask) -> None:
            while not live.ended and not self._is_closing:
                await live.changed.wait()

        with self.place_to_wait(), contextlib.suppress(asyncio.TimeoutError):
            ends = [end_of(self._live[task]) for task in tasks if task in self._live]
            await asyncio.wait_for(asyncio.gather(*ends), min(timeout_s, self.limits.poll_s))

    async def events(self, task: str) -> AsyncIterator[Event | None]:
        """Yield the events of a task, past and to come, until it is over; None from time to time."""
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
        """Give up a task; what is recorded of it stays. A task that is over stays as it is."""
        live = self._live.get(task)
        if live is not None and not live.ended:
            if live.handle is not None:
                live.handle.cancel()
            await self._end(live, "cancelled")
        return await self.read(task)

    def count_open(self) -> Mapping[str, int]:
        """Return how many tasks are pending, and how many are running."""
        return Counter(live.shown.state for live in self._live.values() if not live.ended)

    @contextlib.contextmanager
    def place_to_wait(self) -> Iterator[None]:
        """Count a request that waits.

        Raises:
            HTTPException: too many wait already.
        """
        if self._waiting >= self.limits.polls:
            raise come_again(429, f"{self._waiting} requests wait for tasks already")
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    # From here on: how

    async def _on_disk(self, work: Callable[..., Value], *values: Any) -> Value:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._disk, work, *values)
        except (sqlite3.Error, OSError) as error:
            raise Fault(f"the disk failed the server: {error}") from error

    async def _read(self, task: str) -> tuple[TaskRow, dict[str, str]]:
        live = self._live.get(task)  # before the store is read: the task may end meanwhile
        row, traces = await self._on_disk(self._store.read, task)
        if row is None:
            raise HTTPException(404, f"there is no task {task[:100]}; old ones are forgotten")
        return _shown(row, live), traces

    async def _clean(self) -> None:
        await self._on_disk(self._store.clean, time.time() - self.limits.keep_days * 86400)

    async def _submit(self, live: LiveTask, solution: Solution) -> None:
        """Hand a task to the engine, and follow it, unless the next server is to do that."""
        if live.is_requeued:
            return
        row = live.row
        asked: dict[str, Any] = {"priority": row.priority, "submitter": row.submitter, "confirm": row.confirm}
        live.handle = await asyncio.to_thread(self._engine.submit, solution, live.missing, save_results=False, **asked)
        live.follower = asyncio.create_task(self._follow(live, live.handle))

    async def _follow(self, live: LiveTask, handle: Task) -> None:
        """Record the traces of a task as they come, then its end."""
        error: str | None = None
        try:
            async for trace in handle:
                uuid = trace.workload.uuid
                if uuid in live.missing and not live.ended:
                    await self._on_disk(self._store.record, live.row, trace)
                    live.missing.remove(uuid)
                    live.notify()
        except EngineClosed:
            live.is_requeued = True
        except FlashInferBenchError as failure:
            error = str(failure)
        except Exception as failure:  # round one task: the others go on
            _log.exception("task %s: it was given up", live.row.id)
            error = f"the server failed: {failure}"
        handle.cancel()  # what could not be recorded need not be judged
        if live.ended or (live.is_requeued and live.missing):
            return
        reasons = "\n".join(dict.fromkeys(str(fault.message) for fault in handle.faults)) or error
        # A task that the engine has completed without some jobs has left them out.
        is_completed = not live.missing or (error is None and handle.state == "completed")
        await self._end(live, "completed" if is_completed else "failed", reasons if live.missing else None)

    async def _end(self, live: LiveTask, state: str, error: str | None = None) -> None:
        """End a task, also in the store. While the disk fails its end is in memory only."""
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
                _log.exception("task %s: its end cannot be written; tried again every %g s", live.row.id, AGAIN_S)
                await asyncio.sleep(AGAIN_S)

    async def _resubmit(self) -> None:
        """Give the engine what an earlier server left, in the order of then."""
        for live in list(self._live.values()):
            solution = Solution.model_validate_json(live.row.solution)
            if not live.missing:
                await self._end(live, "completed")
            while live.handle is None and not live.ended:
                try:
                    await self._submit(live, solution)
                except QueueFull:
                    await asyncio.sleep(AGAIN_S)
                except FlashInferBenchError as error:
                    await self._end(live, "failed", str(error))


def come_again(status: int, reason: str) -> HTTPException:
    """Return the refusal of a request that may come again."""
    return HTTPException(status, f"{reason}; come again", {"Retry-After": str(FULL_RETRY_S)})


def _shown(row: TaskRow, live: LiveTask | None) -> TaskRow:
    """Return a task as the store has it, and while it is open there as the server knows it."""
    if row.state != OPEN:
        return row
    return live.shown if live is not None else replace(row, state="pending")


def _describe(row: TaskRow) -> dict[str, Any]:
    """Return the document of a task: its row under the names of the routes, without the sources."""
    left_out = {"key", "request", "solution", *(["error"] if row.error is None else [])}
    return {NAMES.get(name, name): value for name, value in vars(row).items() if name not in left_out}


def _verdict_event(trace: Trace) -> Event:
    """Describe a verdict in one line."""
    event: Event = {"event": "verdict", "workload_uuid": trace.workload.uuid}
    if (evaluation := trace.evaluation) is not None:
        event["status"] = evaluation.status.value
        event["latency_ms"] = evaluation.performance.latency_ms if evaluation.performance is not None else None
        event["speedup"] = measured_speedup(evaluation)
    return event
