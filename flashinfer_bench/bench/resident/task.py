"""A handle on what was submitted: its state, its traces as they come, its result. For all threads, and for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from flashinfer_bench.bench.events import JobFaulted
from flashinfer_bench.data import Solution, Trace
from flashinfer_bench.errors import EngineRefusal, TaskCancelled, TaskFailed

LOG: Final = logging.getLogger(__name__)
TaskState = Literal["pending", "running", "completed", "failed", "cancelled"]
OPEN_STATES: Final = frozenset({"pending", "running"})
"""A task in one of these is not over; it never comes back to one."""
MOST_TOLD: Final = 5
"""The message of a failed task tells this many of its faults."""


@dataclass(frozen=True)
class TaskOrder:
    """What was submitted."""

    solution: Solution
    workloads: tuple[str, ...]
    """Uuids, in the order of the definition's workloads."""
    priority: int = 0
    submitter: str = ""
    save_results: bool = True
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    submitted_at: float = field(default_factory=time.time)


class Task:
    """One submitted solution with some workloads of its definition. `Engine.submit` makes it.

    Args:
        order: what was submitted.
        cancel: takes the task out of the engine.

    `async for trace in task` gives each trace once as it comes; `await task` gives what `result` does.
    """

    def __init__(self, order: TaskOrder, cancel: Callable[[Task], None]) -> None:
        self.order = order
        self._cancel = cancel
        self._changed = threading.Condition()
        self._state: TaskState = "pending"
        self._traces: list[Trace] = []
        self._faults: list[JobFaulted] = []
        self._error: EngineRefusal | None = None
        self._callbacks: list[Callable[[Task], object]] = []
        self._listeners: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        return f"<Task {self.id[:8]} {self.state}: {self.order.solution.name}, {len(self.order.workloads)} workloads>"

    @property
    def id(self) -> str:
        """A name that nobody can guess."""
        return self.order.id

    @property
    def solution(self) -> Solution:
        """What is judged."""
        return self.order.solution

    @property
    def definition(self) -> str:
        """The name of its definition."""
        return self.order.solution.definition

    @property
    def state(self) -> TaskState:
        """`pending` until its first job runs; `failed` where a job has no verdict."""
        with self._changed:
            return self._state

    @property
    def is_done(self) -> bool:
        """Whether it has ended: completed, failed or cancelled."""
        return self.state not in OPEN_STATES

    @property
    def traces(self) -> list[Trace]:
        """The traces so far, in the order in which the jobs ended."""
        with self._changed:
            return list(self._traces)

    @property
    def faults(self) -> list[JobFaulted]:
        """The jobs that have no verdict, each with the reason. A job left out beside a TIMEOUT fails no task."""
        with self._changed:
            return list(self._faults)

    def result(self, timeout_s: float | None = None) -> list[Trace]:
        """Wait for the task, and return its traces in the order of the workloads.

        A workload that was left out, since a call on another one ran out of time, has none: that one is a TIMEOUT.

        Args:
            timeout_s: wait this many seconds at most; None waits for as long as it takes.

        Raises:
            TimeoutError: it has not ended by then. It goes on.
            TaskFailed: a job has no verdict. `traces` has those of the others.
            TaskCancelled: it was cancelled.
            EngineClosed: the engine was closed before.
        """
        limit_s = None if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX)
        with self._changed:
            if not self._changed.wait_for(lambda: self._state not in OPEN_STATES, limit_s):
                raise TimeoutError(f"task {self.id} is {self._state} after {timeout_s:g} s")
        return self._result_or_raise()

    def cancel(self) -> bool:
        """Give the task up; say whether it was open. A job that runs may end, and nobody gets its verdict."""
        if self.is_done:
            return False
        self._cancel(self)
        return True

    def add_done_callback(self, callback: Callable[[Task], object]) -> None:
        """Have a function called with the task when it has ended, at once where it has.

        It is called in the engine's thread, so it has to be quick. What it raises is logged.
        """
        with self._changed:
            if self._state in ("pending", "running"):
                self._callbacks.append(callback)
                return
        self._call(callback)

    def __await__(self) -> Generator[Any, None, list[Trace]]:
        return self._wait().__await__()

    async def __aiter__(self) -> AsyncIterator[Trace]:
        """Give each trace once, as it comes; then raise what `result` does where the task failed."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(woken.set)

        self._listeners.append(wake)
        try:
            seen = 0
            while True:
                woken.clear()
                with self._changed:
                    new, is_done = self._traces[seen:], self._state not in OPEN_STATES
                for trace in new:
                    seen += 1
                    yield trace
                if is_done:
                    break
                await woken.wait()
        finally:
            self._listeners.remove(wake)
        self._result_or_raise()

    async def _wait(self) -> list[Trace]:
        async for _ in self:
            pass
        return self._result_or_raise()

    def _result_or_raise(self) -> list[Trace]:
        if self._error is not None:
            raise self._error
        places = {uuid: place for place, uuid in enumerate(self.order.workloads)}
        return sorted(self.traces, key=lambda trace: places.get(trace.workload.uuid, len(places)))

    def note_start(self) -> None:
        """Take note that a device took a job of it up. The engine calls this."""
        with self._changed:
            if self._state == "pending":
                self._state = "running"

    def note(self, told: Trace | JobFaulted) -> None:
        """Keep what one of its jobs came to; end with the last. The engine calls this."""
        with self._changed:
            if self._state not in OPEN_STATES:
                return
            self._state = "running"
            if isinstance(told, Trace):
                self._traces.append(told)
            else:
                self._faults.append(told)
            is_last = len(self._traces) + len(self._faults) >= len(self.order.workloads)
            # A task that lacks the verdict for which its jobs were left out must not look as if all was well.
            has_timeout = any(trace.evaluation and trace.evaluation.status.value == "TIMEOUT" for trace in self._traces)
            failed = [fault for fault in self._faults if not (fault.is_left_out and has_timeout)]
        if is_last and failed:
            self.end("failed", TaskFailed(describe_faults(failed)))
        elif is_last:
            self.end("completed")
        else:
            self._tell()

    def end(self, state: TaskState, error: EngineRefusal | None = None) -> None:
        """End it, unless it has ended. The engine calls this."""
        with self._changed:
            if self._state not in OPEN_STATES:
                return
            self._state, self._error = state, error
            callbacks, self._callbacks = self._callbacks, []
            self._changed.notify_all()
        self._tell()
        for callback in callbacks:
            self._call(callback)

    def end_cancelled(self) -> None:
        """End it, since somebody cancelled it."""
        self.end("cancelled", TaskCancelled(f"task {self.id} was cancelled"))

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()

    def _call(self, callback: Callable[[Task], object]) -> None:
        try:
            callback(self)
        except Exception:  # round one callback: it is not ours, and stops nothing
            LOG.exception("a callback of task %s failed", self.id)


def describe_faults(faults: list[JobFaulted]) -> str:
    """Say why a task failed."""
    lines = [f"{fault.job.solution.name}, workload {fault.job.workload.uuid}: {fault.message}" for fault in faults]
    more = [f"and {len(lines) - MOST_TOLD} more"] if len(lines) > MOST_TOLD else []
    return "\n".join([*lines[:MOST_TOLD], *more])
