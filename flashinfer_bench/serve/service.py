"""Tasks from acceptance to their end: the ledger has a task before its client hears of it, the set each verdict once.

    accept ──▶ ledger (committed) ──▶ engine ──▶ trace ──▶ line in the set ──▶ ledger ──▶ who waits
                     ▲                                                            │
                     └── the next server, where this one ends before the task ◀───┘

`records.py` has the disk's side. Everything here belongs to the event loop; the engine is handed tasks in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

from flashinfer_bench.data import Solution, Trace, TraceSet
from flashinfer_bench.errors import EngineClosed, Fault, FlashInferBenchError, Misuse, QueueFull
from flashinfer_bench.serve.bodies import Submission
from flashinfer_bench.serve.documents import END, end_event, task_document, verdict_event
from flashinfer_bench.serve.door import ServedEngine
from flashinfer_bench.serve.ledger import OPEN, TaskRow
from flashinfer_bench.serve.limits import ServeLimits
from flashinfer_bench.serve.live import CANCELLED, PENDING, LiveTask
from flashinfer_bench.serve.records import TaskRecords
from flashinfer_bench.serve.refusal import Refusal

_log = logging.getLogger(__name__)
Value = TypeVar("Value")
FULL_RETRY_S: Final = 5
"""Seconds after which a client that was refused for lack of room is asked to come again."""
RESUBMIT_S: Final = 1.0
"""Seconds after which a task of an earlier server is submitted again, where the engine's queue was full."""
KEEP_S: Final = 2.0
"""Seconds between two tries to write down how tasks ended, while the disk fails."""
CLEAN_S: Final = 3600.0
"""Seconds between two looks for ended tasks that are too old to be kept."""
GIVE_BACK_S: Final = 10.0
"""Seconds that cancelled jobs have to leave the engine after the drain; what is left then is not waited for."""


class TaskService:
    """Accepts tasks, follows them, and answers for them.

    Args:
        engine: judges.
        trace_set: what tasks are about.
        records: where they are kept.
        limits: what is refused.
    """

    def __init__(self, engine: ServedEngine, trace_set: TraceSet, records: TaskRecords, limits: ServeLimits) -> None:
        self.engine = engine
        self.trace_set = trace_set
        self.limits = limits
        self.is_draining = False
        """It takes no more tasks."""
        self.is_closing = False
        """Nothing more will happen here: nobody need wait."""
        self.ended: Counter[str] = Counter()
        """Tasks by how they ended, since this server started."""
        self.verdicts: Counter[str] = Counter()
        """Recorded verdicts by status, since this server started."""
        self._records = records
        self._live: dict[str, LiveTask] = {}
        self._accepting: Counter[str] = Counter()
        """Submissions by submitter that are on their way to the ledger."""
        self._waiting = 0
        self._submitting = ThreadPoolExecutor(1, thread_name_prefix="serve-submit")
        self._loops: list[asyncio.Task[None]] = []

    # What a server does in its life

    async def start(self) -> int:
        """Go on with the tasks that an earlier server left open; return how many."""
        found = await self._records.find_open()
        self._live = {row.id: LiveTask(row, missing) for row, missing in found}
        loops = (self._resubmit(), self._keep_ends(), self._clean())
        self._loops = [asyncio.create_task(loop) for loop in loops]
        return len(found)

    async def drain(self, limit_s: float) -> int:
        """Take no more tasks, let jobs that run end within the limit, and give the rest back; return how many."""
        self.is_draining = True
        for loop in self._loops:
            loop.cancel()
        open_tasks = [live for live in self._live.values() if not live.is_over]
        for live in open_tasks:
            if live.handle is None or live.handle.state == "pending":
                self._give_back(live)
        await _wait_for([live.follower for live in open_tasks], limit_s)
        for live in list(self._live.values()):
            self._give_back(live)
        await _wait_for([live.follower for live in list(self._live.values())], GIVE_BACK_S)
        for live in [live for live in self._live.values() if live.is_over]:
            await self._keep_end(live)
        self.is_closing = True
        left = list(self._live.values())
        for live in left:
            live.wake()
        return len(left)

    def close(self) -> None:
        """Close the ledger, after everything that is on its way there."""
        self._submitting.shutdown()
        self._records.close()

    # What requests ask for

    async def accept(self, asked: Submission) -> TaskRow:
        """Keep a task and give it to the engine; a key that was used before gives the task of then.

        Raises:
            Refusal: there is no room, the server ends, or the key belongs to another request.
        """
        with self._room_for(asked.submitter):
            row = _make_row(asked, time.time())
            kept = await self._records.accept(row)
            if kept.id != row.id:
                if kept.request != row.request:
                    raise Refusal(422, "this Idempotency-Key belongs to another request")
                return kept
            live = LiveTask(row, list(row.workloads))
            self._live[row.id] = live
            try:
                await self._records.check(row)
                await self._submit(live, asked.solution)
            except FlashInferBenchError as error:
                del self._live[row.id]
                await self._records.forget(row.id)
                if isinstance(error, Misuse):
                    raise Refusal(422, str(error)) from error
                raise Refusal(503, str(error), retry_after_s=FULL_RETRY_S) from error
        return row

    async def read(self, task: str) -> dict[str, Any]:
        """Return the document of a task.

        Raises:
            Refusal: there is no such task.
        """
        stand = self._stand(task)  # before the ledger is read: the task may end meanwhile
        row, traces = await self._records.read(task)
        if row is None:
            raise Refusal(404, f"there is no task {task}; old ones are forgotten")
        return _describe(row, stand, traces)

    async def wait(self, tasks: Sequence[str], timeout_s: float) -> None:
        """Return when all of these tasks are over, the time is over, or the server ends."""
        deadline = asyncio.get_running_loop().time() + min(timeout_s, self.limits.poll_s)
        with self.place_to_wait() if timeout_s > 0 else contextlib.nullcontext():
            for task in tasks:
                while (live := self._live.get(task)) is not None and not live.is_over and not self.is_closing:
                    left = deadline - asyncio.get_running_loop().time()
                    if left <= 0 or not await _wait_event(live.changed, left):
                        return

    async def events(self, task: str) -> AsyncIterator[dict[str, Any] | None]:
        """Yield what happened to a task and what happens, until it is over; None from time to time.

        Raises:
            Refusal: there is no such task.
        """
        live = self._live.get(task)
        told = 0
        while live is not None and not self.is_closing:
            changed, events = live.changed, live.events[told:]
            told += len(events)
            for event in events:
                yield event
            if events and events[-1]["event"] == END:
                return
            if live.changed is changed and not await _wait_event(changed, self.limits.poll_s / 4):
                yield None
        if live is None:
            row, traces = await self._records.read(task)
            if row is None:
                raise Refusal(404, f"there is no task {task}; old ones are forgotten")
            for trace in traces.values():
                yield verdict_event(Trace.model_validate_json(trace))
            if row.state != OPEN:
                yield end_event(row.state, row.error)

    async def cancel(self, task: str) -> dict[str, Any]:
        """Give up a task; what is recorded of it stays. A task that is over stays as it is."""
        live = self._live.get(task)
        if live is not None and not live.is_over:
            if live.handle is not None:
                live.handle.cancel()
            await self._end(live, CANCELLED, None)
        return await self.read(task)

    async def list_tasks(self, submitter: str | None) -> list[dict[str, Any]]:
        """Return the latest tasks, without their traces."""
        rows = await self._records.list_tasks(submitter, self.limits.listed)
        return [_describe(row, self._stand(row.id), None) for row in rows]

    def count_open(self) -> Counter[str]:
        """Return how many tasks are pending, and how many are running."""
        return Counter(live.status for live in self._live.values() if not live.is_over)

    @contextmanager
    def place_to_wait(self) -> Iterator[None]:
        """Count a request that waits.

        Raises:
            Refusal: too many wait already.
        """
        if self._waiting >= self.limits.polls:
            raise Refusal(429, f"{self._waiting} requests wait for tasks already", retry_after_s=FULL_RETRY_S)
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    # From here on: how

    def _stand(self, task: str) -> TaskRow | str:
        """Return how a task ended if only memory knows it, else its status."""
        live = self._live.get(task)
        return PENDING if live is None else live.ended or live.status

    @contextmanager
    def _room_for(self, submitter: str) -> Iterator[None]:
        if self.is_draining:
            raise Refusal(503, "the server ends; it takes no more tasks", retry_after_s=FULL_RETRY_S)
        if len(self._live) + self._accepting.total() >= self.limits.open_tasks:
            raise Refusal(503, f"{len(self._live)} tasks are open; come again", retry_after_s=FULL_RETRY_S)
        own = sum(live.row.submitter == submitter for live in self._live.values()) + self._accepting[submitter]
        if own >= self.limits.open_tasks_each:
            raise Refusal(429, f"{submitter!r} has {own} open tasks; come again", retry_after_s=FULL_RETRY_S)
        self._accepting[submitter] += 1
        try:
            yield
        finally:
            self._accepting[submitter] -= 1

    async def _submit(self, live: LiveTask, solution: Solution) -> None:
        """Hand a task to the engine, and follow it."""
        row = live.row

        def submit() -> Any:
            return self.engine.submit(
                solution,
                live.missing,
                priority=row.priority,
                submitter=row.submitter,
                save_results=False,
                confirm=row.confirm,
            )

        live.handle = await asyncio.get_running_loop().run_in_executor(self._submitting, submit)
        live.follower = asyncio.create_task(self._follow(live, solution))

    async def _follow(self, live: LiveTask, solution: Solution) -> None:
        """Record the traces of a task as they come, then its end."""
        handle = live.handle
        if handle is None:
            raise AssertionError("only a task that the engine has is followed")
        error: str | None = None
        try:
            async for trace in handle:
                await self._record(live, solution, trace)
        except EngineClosed:
            live.is_given_back = True
        except FlashInferBenchError as failure:
            error = str(failure)
            handle.cancel()  # what could not be recorded need not be judged
        except Exception as failure:  # round one task: the others go on
            _log.exception("task %s: it was given up", live.row.id)
            error = f"the server failed: {failure}"
            handle.cancel()
        if live.is_over or (live.is_given_back and live.missing):
            return
        if not live.missing:
            await self._end(live, "completed", None)
            return
        faults = list(dict.fromkeys(str(fault.message) for fault in handle.faults))
        told = "\n".join(faults) or error or f"no verdict for {len(live.missing)} workloads"
        # A task that the engine has completed without some jobs has left them out.
        is_completed = error is None and handle.state == "completed"
        await self._end(live, "completed" if is_completed else "failed", told)

    async def _record(self, live: LiveTask, solution: Solution, trace: Trace) -> None:
        if trace.workload.uuid not in live.missing or live.is_over:
            return
        await self._records.record(live.row, trace, solution.author)
        live.missing.remove(trace.workload.uuid)
        if trace.evaluation is not None:
            self.verdicts[trace.evaluation.status.value] += 1
        live.tell(verdict_event(trace))

    async def _end(self, live: LiveTask, state: str, error: str | None) -> None:
        live.ended = replace(live.row, state=state, error=error, ended_at=time.time())
        if not await self._keep_end(live):
            _log.error("task %s: its end cannot be written; tried again every %g s", live.row.id, KEEP_S)
        self.ended[state] += 1
        live.tell(end_event(state, error))
        _log.info("task %s: %s", live.row.id, state)

    async def _keep_end(self, live: LiveTask) -> bool:
        """Write how a task ended to the ledger. Until that works the task is told from memory."""
        if live.ended is None:
            raise AssertionError("only a task that is over has an end")
        try:
            await self._records.end(live.ended)
        except Fault as failure:
            _log.debug("task %s: %s", live.row.id, failure)
            return False
        self._live.pop(live.row.id, None)
        return True

    async def _keep_ends(self) -> None:
        while True:
            await asyncio.sleep(KEEP_S)
            for live in [live for live in self._live.values() if live.is_over]:
                await self._keep_end(live)

    def _give_back(self, live: LiveTask) -> None:
        live.is_given_back = True
        if live.handle is not None:
            live.handle.cancel()

    async def _resubmit(self) -> None:
        """Give the engine what an earlier server left, in the order of then."""
        for live in [live for live in self._live.values() if live.handle is None]:
            solution = Solution.model_validate_json(live.row.solution)
            if not live.missing:
                await self._end(live, "completed", None)
            while live.missing and live.handle is None and not live.is_over:
                try:
                    await self._submit(live, solution)
                except QueueFull:
                    await asyncio.sleep(RESUBMIT_S)
                except FlashInferBenchError as error:
                    await self._end(live, "failed", str(error))

    async def _clean(self) -> None:
        while True:
            gone = await self._records.clean(time.time() - self.limits.keep_days * 86400)
            if gone:
                _log.info("%d old tasks were forgotten", gone)
            await asyncio.sleep(CLEAN_S)


def _make_row(asked: Submission, now: float) -> TaskRow:
    return TaskRow(
        id=uuid.uuid4().hex,
        submitter=asked.submitter,
        key=asked.key,
        request=asked.digest,
        definition=asked.solution.definition,
        solution_name=asked.solution.name,
        solution=asked.solution.to_json(),
        workloads=asked.workloads,
        priority=asked.priority,
        state=OPEN,
        error=None,
        accepted_at=now,
        ended_at=None,
        confirm=asked.confirm,
    )


def _describe(row: TaskRow, stand: TaskRow | str, traces: dict[str, str] | None) -> dict[str, Any]:
    """Describe a task as the ledger has it, and while it is open there as the server knows it."""
    if row.state != OPEN:
        return task_document(row, row.state, traces)
    if isinstance(stand, str):
        return task_document(row, stand, traces)
    return task_document(stand, stand.state, traces)


async def _wait_event(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except asyncio.TimeoutError:
        return False
    return True


async def _wait_for(tasks: Sequence[asyncio.Task[None] | None], limit_s: float) -> None:
    running = [task for task in tasks if task is not None and not task.done()]
    if running:
        await asyncio.wait(running, timeout=limit_s)
