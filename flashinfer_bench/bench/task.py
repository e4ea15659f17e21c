"""A handle on a submission: its state, its traces as they come, its result. Usable from all threads, and from
asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as NotDone  # a separate class before Python 3.11
from typing import Any, Final, Literal

from flashinfer_bench.bench.events import JobFaulted, JobFinished
from flashinfer_bench.bench.harness import Submission
from flashinfer_bench.bench.job_queue import QueueClass
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.data import Solution, Trace
from flashinfer_bench.errors import EngineRefusal, TaskCancelled, TaskFailed

TaskState = Literal["pending", "running", "completed", "failed", "cancelled"]
MOST_REPORTED: Final = 5
"""Maximum number of faults in the message of a failed task."""


class Task(Submission):
    """One submitted solution with some workloads of its definition. `Engine.submit` makes it. `note_start`, `note`,
    `keep` and `end` are for the engine alone.

    `async for trace in task` yields each trace once as it comes; `await task` returns the same as `result`.

    Args:
        solution: the solution.
        workloads: uuids, in the order of the definition's workloads.
        cancel: removes the task from the engine.
        on_trace: called with each trace; returns whether a confirmation's trace will replace it.
        queue_class: the submitter and its priority.
        is_saved: whether traces are saved before the task gets them.
        confirms_best: whether the solution is judged again on each workload on which it would be the fastest known
            solution.
    """

    is_shared = True

    def __init__(
        self,
        solution: Solution,
        workloads: Sequence[str],
        *,
        cancel: Callable[[Task], object],
        on_trace: Callable[[Task, Job, Trace], bool],
        queue_class: QueueClass,
        is_saved: bool,
        confirms_best: bool,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.solution = solution
        self.workloads = tuple(workloads)
        self.queue_class = queue_class
        self.is_saved = is_saved
        self.confirms_best = confirms_best
        self._cancel = cancel
        self._on_trace = on_trace
        self._is_running = False
        self._traces: list[Trace] = []
        self._held: dict[str, Trace] = {}
        """Uuid of a workload → the verdict that is being confirmed."""
        self._faults: list[JobFaulted] = []
        self._end: Future[list[Trace]] = Future()
        self._listeners: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        return f"<Task {self.id[:8]} {self.state}: {self.solution.name}, {len(self.workloads)} workloads>"

    @property
    def definition(self) -> str:
        """The name of its definition."""
        return self.solution.definition

    @property
    def state(self) -> TaskState:
        """`pending` until its first job runs; `failed` if a job has no verdict."""
        if not self._end.done():
            return "running" if self._is_running else "pending"
        error = self._end.exception()
        return "completed" if error is None else "cancelled" if isinstance(error, TaskCancelled) else "failed"

    @property
    def is_done(self) -> bool:
        """Whether it has ended: completed, failed or cancelled."""
        return self._end.done()

    @property
    def traces(self) -> list[Trace]:
        """The traces so far, in the order in which the jobs ended."""
        return list(self._traces)

    @property
    def faults(self) -> list[JobFaulted]:
        """The jobs without a verdict, each with the reason. A job skipped because of a TIMEOUT fails no task."""
        return list(self._faults)

    def result(self, timeout_s: float | None = None) -> list[Trace]:
        """Wait for the task, and return its traces in the order of the workloads.

        A workload on which a call ran out of time has a trace with TIMEOUT. The workloads that were skipped after a
        TIMEOUT have no trace.

        Args:
            timeout_s: seconds to wait, at most; None waits without a limit.

        Raises:
            TimeoutError: it has not ended by then. It continues.
            TaskFailed: a job has no verdict. `traces` has the traces of the other jobs.
            TaskCancelled: it was cancelled.
            EngineClosed: the engine was closed before the task ended.
        """
        try:
            return self._end.result(None if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX))
        except NotDone:
            raise TimeoutError(f"task {self.id} is {self.state} after {timeout_s:g} s") from None

    def cancel(self) -> bool:
        """Cancel the task; return whether it was open. A running job goes on, but its verdict is dropped."""
        if self.is_done:
            return False
        self._cancel(self)
        return True

    def add_done_callback(self, callback: Callable[[Task], object]) -> None:
        """Have a function called with the task when it has ended, or at once if it has ended already.

        The callback runs in the engine's thread, so it must be quick. Exceptions of the callback are logged.
        """
        self._end.add_done_callback(lambda _end: callback(self))

    def __await__(self) -> Generator[Any, None, list[Trace]]:
        return asyncio.shield(asyncio.wrap_future(self._end)).__await__()

    async def __aiter__(self) -> AsyncIterator[Trace]:
        """Yield each trace once, as it comes; then raise the exception of `result` if the task failed."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake(_end: object = None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
                loop.call_soon_threadsafe(woken.set)

        self._listeners.append(wake)
        self._end.add_done_callback(wake)
        try:
            seen, is_done = 0, False
            while not is_done:
                woken.clear()
                is_done = self.is_done
                for trace in self._traces[seen:]:
                    seen += 1
                    yield trace
                if not is_done:
                    await woken.wait()
        finally:
            self._listeners.remove(wake)
        self._end.result()

    def note_start(self) -> None:
        """Note that a device has begun one of its jobs."""
        self._is_running = True

    def note(self, result: JobFinished | JobFaulted) -> None:
        """Note the result of one of its jobs."""
        if self.is_done:
            return
        uuid = result.job.workload.uuid
        if isinstance(result, JobFaulted):
            self.keep(self._held.get(uuid, result))  # a result that could not be confirmed counts as it is
        elif self._on_trace(self, result.job, result.trace):
            self._held[uuid] = result.trace
        else:
            self.keep(result.trace)

    def keep(self, result: Trace | JobFaulted) -> None:
        """Store the result of a workload; end the task after the last workload."""
        self._is_running = True
        if isinstance(result, JobFaulted):
            self._faults.append(result)
        else:
            self._traces.append(result)
        for listener in list(self._listeners):
            listener()
        if len(self._traces) + len(self._faults) >= len(self.workloads):
            # If a verdict caused jobs to be skipped, a task without this verdict must not seem complete.
            timed_out = any(one.evaluation and one.evaluation.status.value == "TIMEOUT" for one in self._traces)
            failed = [fault for fault in self._faults if not (fault.is_left_out and timed_out)]
            self.end(TaskFailed(describe_faults(failed)) if failed else None)

    def end(self, error: EngineRefusal | None = None) -> None:
        """End it, unless it has ended."""
        with contextlib.suppress(InvalidStateError):
            if error is not None:
                self._end.set_exception(error)
            else:
                order = {uuid: index for index, uuid in enumerate(self.workloads)}
                self._end.set_result(sorted(self._traces, key=lambda trace: order[trace.workload.uuid]))


def describe_faults(faults: list[JobFaulted]) -> str:
    """Return why a task failed."""
    lines = [f"{fault.job.solution.name}, workload {fault.job.workload.uuid}: {fault.message}" for fault in faults]
    more = [f"and {len(lines) - MOST_REPORTED} more"] if len(lines) > MOST_REPORTED else []
    return "\n".join([*lines[:MOST_REPORTED], *more])
