"""A handle on what was submitted: its state, its traces as they come, its result. For all threads, and for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from typing import Any, Final, Literal

from flashinfer_bench.bench.events import JobFaulted
from flashinfer_bench.bench.harness import Submission
from flashinfer_bench.bench.job_queue import Lane
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.data import Solution, Trace
from flashinfer_bench.errors import EngineRefusal, TaskFailed

LOG: Final = logging.getLogger(__name__)
TaskState = Literal["pending", "running", "completed", "failed", "cancelled"]
OPEN_STATES: Final = frozenset({"pending", "running"})
"""A task in one of these is not over; it never comes back to one."""
MOST_TOLD: Final = 5
"""The message of a failed task tells this many of its faults."""


class Task(Submission):
    """One submitted solution with some workloads of its definition. `Engine.submit` makes it.

    `async for trace in task` gives each trace once as it comes; `await task` gives what `result` does.

    Args:
        solution: the solution.
        workloads: uuids, in the order of the definition's workloads.
        cancel: takes the task out of the engine.
        on_end: called before anybody sees that it has ended.
        priority: higher ones go first.
        submitter: who asks.
        is_saved: traces are saved before the task has them.
    """

    is_shared = True
    outlives_faults = True

    def __init__(
        self,
        solution: Solution,
        workloads: Sequence[str],
        *,
        cancel: Callable[[Task], object],
        on_end: Callable[[Task], object] = lambda _task: None,
        priority: int = 0,
        submitter: str = "",
        is_saved: bool = True,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.solution = solution
        self.workloads = tuple(workloads)
        self.lane = Lane(priority, submitter)
        self.is_saved = is_saved
        self._cancel = cancel
        self._on_end = on_end
        self._changed = threading.Condition()
        self._state: TaskState = "pending"
        self._traces: list[Trace] = []
        self._faults: list[JobFaulted] = []
        self._error: EngineRefusal | None = None
        self._callbacks: list[Callable[[Task], object]] = []
        self._listeners: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        return f"<Task {self.id[:8]} {self.state}: {self.solution.name}, {len(self.workloads)} workloads>"

    @property
    def definition(self) -> str:
        """The name of its definition."""
        return self.solution.definition

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
            if self._state in OPEN_STATES:
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
        places = {uuid: place for place, uuid in enumerate(self.workloads)}
        return sorted(self.traces, key=lambda trace: places.get(trace.workload.uuid, len(places)))

    def note_start(self, job: Job) -> bool:
        """Note that a device took a job of it up. The engine calls this."""
        with self._changed:
            if self._state == "pending":
                self._state = "running"
        return super().note_start(job)

    def note(self, job: Job, result: Trace | JobFaulted) -> None:
        """Keep what one of its jobs came to; end with the last. The engine calls this."""
        del job
        with self._changed:
            if self._state not in OPEN_STATES:
                return
            self._state = "running"
            if isinstance(result, Trace):
                self._traces.append(result)
            else:
                self._faults.append(result)
            is_last = len(self._traces) + len(self._faults) >= len(self.workloads)
            # A task that lacks the verdict for which its jobs were left out must not look as if all was well.
            has_timeout = any(trace.evaluation and trace.evaluation.status.value == "TIMEOUT" for trace in self._traces)
            failed = [fault for fault in self._faults if not (fault.is_left_out and has_timeout)]
        if is_last:
            self.end("failed", TaskFailed(describe_faults(failed))) if failed else self.end("completed")
        self._tell()

    def end(self, state: TaskState, error: EngineRefusal | None = None) -> None:
        """End it, unless it has ended. The engine calls this."""
        with self._changed:
            if self._state not in OPEN_STATES:
                return
            self._on_end(self)
            self._state, self._error = state, error
            callbacks, self._callbacks = self._callbacks, []
            self._changed.notify_all()
        self._tell()
        for callback in callbacks:
            self._call(callback)

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
