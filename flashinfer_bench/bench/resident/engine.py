"""The resident engine: it judges what is submitted while it runs, from any thread, and stays warm in between.

    with Engine(trace_set, config) as engine:
        task = engine.submit(solution)          # returns at once
        for trace in task.result(): ...

`Engine`: `submit(solution, workloads=None, *, priority=0, submitter="", save_results=True, use_recorded=False)`,
`state()`, `subscribe(callback)`, `close(drain=False)`.
`Task`: `id`, `state`, `traces`, `faults`, `result(timeout_s=None)`, `cancel()`, `add_done_callback(fn)`,
`async for trace in task`, `await task`; `solution`, `definition`, `is_done`, `order` (what was submitted).
`EngineLimits`, `EngineState`: in `state.py`. Errors: `QueueFull`, `EngineClosed`, `TaskFailed`, `TaskCancelled` in
`flashinfer_bench.errors`; a solution, definition or workload that is not there, or cannot run here, is a `ConfigError`.

One thread drives the loop over the devices (`runner/fleet.py`), as a run of a plan does; other threads leave it notes
and wake it through a pipe. That thread makes the traces, saves them, and calls the callbacks.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Final

from flashinfer_bench.base.plain_values import to_number
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.events import Event, JobFaulted, JobFinished, JobStarted
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.resident.fair_queue import FairQueue, Precedence
from flashinfer_bench.bench.resident.open_jobs import OpenJob, OpenJobs
from flashinfer_bench.bench.resident.state import EngineLimits, EngineState
from flashinfer_bench.bench.resident.submission import Submissions
from flashinfer_bench.bench.resident.task import Task, TaskOrder
from flashinfer_bench.bench.resident.watch import EngineWatch
from flashinfer_bench.bench.runner.estimates import JobTimes
from flashinfer_bench.bench.runner.fleet import POLL_S, Fleet, FleetRules, Happening, Judged
from flashinfer_bench.bench.runner.job_seeds import JobSeeds
from flashinfer_bench.bench.runner.starting import end_starters_of_thread
from flashinfer_bench.bench.workshop.recorder import TraceRecorder
from flashinfer_bench.bench.workshop.workshop import Workshop
from flashinfer_bench.data import Solution, Trace, TraceSet
from flashinfer_bench.errors import ConfigError, EngineClosed, FlashInferBenchError, QueueFull

LOG: Final = logging.getLogger(__name__)
RESTART_S: Final = 1.0
"""Seconds after which the loop over the devices is started anew where it failed."""


class Engine:
    """Judges solutions of a trace set's definitions as they are submitted. A context manager.

    Args:
        trace_set: definitions and workloads; solutions may be submitted that it does not have.
        config: how they are judged; the bundled defaults where it is left out. Its filters (`definitions`,
            `solutions`, `workloads` and the like) choose nothing here.
        cache: folder for what is built; the user's cache where it is left out.
        limits: how much it takes, and how long it keeps devices.

    Raises:
        ConfigError: as for `Benchmark`.

    Examples:
        >>> with Engine(TraceSet.from_path("flashinfer-trace")) as engine:
        ...     traces = engine.submit("rmsnorm_h64_torch").result()
    """

    def __init__(
        self,
        trace_set: TraceSet,
        config: BenchmarkConfig | None = None,
        *,
        cache: Path | None = None,
        limits: EngineLimits | None = None,
    ) -> None:
        self.limits = limits or EngineLimits()
        self.workshop = Workshop(trace_set, config, cache)
        self._submissions = Submissions(self.workshop)
        self._seeds = JobSeeds(self.workshop.config.seed)
        self._recorder = TraceRecorder(self.workshop, self._seeds)
        self._lock = threading.RLock()
        self._open = OpenJobs()
        self._notes: deque[Callable[[Fleet], object]] = deque()
        """What other threads want done in the engine's thread."""
        self._subscribers: list[Callable[[Event], object]] = []
        self._watch = EngineWatch(self.workshop.machine.devices)
        self._is_closed = False
        self._is_stopping = threading.Event()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        self._thread = threading.Thread(target=self._drive, name="flashinfer-bench engine", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def submit(
        self,
        solution: Solution | str,
        workloads: Sequence[str] | None = None,
        *,
        priority: int = 0,
        submitter: str = "",
        save_results: bool = True,
        use_recorded: bool = False,
    ) -> Task:
        """Take a solution to be judged; return its handle at once. Usable from any thread.

        Args:
            solution: a solution of one of the set's definitions, or the name of one that the set has.
            workloads: uuids of workloads of its definition; None for all.
            priority: higher ones go first.
            submitter: who asks. Submitters of one priority get equal shares of the devices.
            save_results: append each trace to the set on disk before the task gets it.
            use_recorded: take traces that the set has of equal jobs, in place of judging them again.

        Raises:
            ConfigError: there is no such solution, definition or workload, it cannot run on this machine, or the
                priority is no whole number.
            DataSetError: results are to be saved, and the set has no folder, or its folder cannot be written safely.
            QueueFull: as much is open as `limits` allow.
            EngineClosed: the engine was closed.
        """
        priority = to_number(priority)
        if not isinstance(priority, int):
            raise ConfigError(f"priority must be a whole number, not {priority!r}")
        found = self._submissions.find(solution)
        jobs = self._submissions.make_jobs(found, workloads)
        if save_results and jobs:
            self._recorder.check(jobs[0].definition, found)
        uuids = tuple(job.workload.uuid for job in jobs)
        task = Task(TaskOrder(found, uuids, priority, submitter, save_results), self._cancel)
        recorded = self._submissions.find_recorded(jobs) if use_recorded else {}
        left = [job for job in jobs if job.workload.uuid not in recorded]
        with self._lock:
            self._refuse(task, left)
            new, raised = self._open.add(task, left)
            if left:
                self._notes.append(lambda fleet: self._deal(fleet, new, raised))
        for trace in recorded.values():
            task.note(trace)
        self._wake_up()
        return task

    def state(self) -> EngineState:
        """Return what the engine does now."""
        with self._lock:
            return self._watch.describe(len(self._open), dict(self._open.count_tasks()), is_closed=self._is_closed)

    def subscribe(self, callback: Callable[[Event], object]) -> Callable[[], None]:
        """Have a function told of everything that happens; return a function that ends this.

        It is called in the engine's thread, so it has to be quick. What it raises is logged.
        """
        self._subscribers.append(callback)

        def end() -> None:
            with contextlib.suppress(ValueError):  # it was ended before
                self._subscribers.remove(callback)

        return end

    def close(self, *, drain: bool = False) -> None:
        """Take no more tasks, and end every process and thread of the engine.

        Args:
            drain: finish the open tasks first. Otherwise they fail with EngineClosed.
        """
        with self._lock:
            self._is_closed = True
            open_tasks = list(self._open.tasks.values())
        if drain and threading.current_thread() is not self._thread:
            for task in open_tasks:
                with contextlib.suppress(FlashInferBenchError):  # how it ended is the business of who holds it
                    task.result()
        self._is_stopping.set()
        self._wake_up()
        if threading.current_thread() is not self._thread:
            self._thread.join()
            self.workshop.close()
        atexit.unregister(self.close)

    def _refuse(self, task: Task, jobs: list[Job]) -> None:
        """Raise where a task cannot be taken."""
        if self._is_closed:
            raise EngineClosed("the engine was closed: it takes no more tasks")
        count, most = len(self._open) + self._open.count_new(jobs), self.limits.queue
        if count > most:
            raise QueueFull(f"{len(self._open)} jobs are open, and this task has {len(jobs)}; {most} may be open")
        submitter = task.order.submitter
        if self._open.count_tasks()[submitter] >= self.limits.tasks_per_submitter:
            raise QueueFull(
                f"submitter {submitter!r} has {self.limits.tasks_per_submitter} open tasks, the most it may"
            )

    def _cancel(self, task: Task) -> None:
        with self._lock:
            unwanted = self._open.cancel(task)
            self._notes.append(lambda fleet: self._drop(fleet, unwanted))
        task.end_cancelled()
        self._wake_up()

    def _wake_up(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):  # it is awake
            if self._wake >= 0:  # else the thread has ended, and the number may be another file's
                os.write(self._wake, b".")

    # From here on: in the engine's thread.

    def _drive(self) -> None:
        try:
            while self._sleep():
                try:
                    self._serve()
                except Exception as error:  # round one device loop: what is open has no verdict, the engine goes on
                    LOG.exception("the loop over the devices failed, and is started anew")
                    self._fail_open(f"the engine failed: {type(error).__name__}: {error}")
                    self._is_stopping.wait(RESTART_S)
                end_starters_of_thread()
        finally:
            end_starters_of_thread()
            with self._lock:
                self._is_closed = True
                tasks = list(self._open.tasks.values())
            for task in tasks:
                task.end("failed", EngineClosed("the engine was closed before the task was complete"))
            with self._lock:
                for fd in (self._woken, self._wake):
                    os.close(fd)
                self._woken = self._wake = -1

    def _sleep(self) -> bool:
        """Wait, holding no device, until there is something to do; say whether the engine goes on."""
        while not self._notes and not self._is_stopping.is_set():
            wait([self._woken])
            self._empty_pipe()
        return not self._is_stopping.is_set()

    def _empty_pipe(self) -> None:
        """Forget that somebody woke this thread: what is asked is among the notes."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)

    def _serve(self) -> None:
        """Drive the loop over the devices until the engine is closed, or had no job for a while."""
        rules = FleetRules(self._make_queue, self.limits.retry_device_s, self.limits.build_turn_s, nearly_done=0)
        needs_triton = self.workshop.machine.languages.get("triton", "none") is None
        fleet = self.workshop.make_fleet(self._seeds, rules, needs_triton=needs_triton)
        try:
            idle_since: float | None = None
            while not self._is_stopping.is_set():
                while self._notes:
                    self._notes.popleft()(fleet)
                is_idle = not fleet.has_open_jobs
                idle_since = (idle_since or time.monotonic()) if is_idle else None
                left_s = POLL_S if idle_since is None else idle_since + self.limits.idle_s - time.monotonic()
                if left_s <= 0:
                    return
                for happening in fleet.turn(self._woken, min(POLL_S, left_s)):
                    self._hear(happening)
                self._empty_pipe()
                with self._lock:
                    ended = self._open.take_ended()
                for job in ended:
                    fleet.forget_solution(job)
                self._watch.look(fleet.stations)
        finally:
            fleet.__exit__()
            self._watch.look(fleet.stations)

    def _make_queue(self, times: JobTimes) -> FairQueue:
        return FairQueue(times.estimate, self._precedence_of)

    def _precedence_of(self, job: Job) -> Precedence:
        with self._lock:
            return self._open.precedence_of(job)

    def _deal(self, fleet: Fleet, new: list[Job], raised: list[Job]) -> None:
        """Give jobs to the loop, in place of what it would have begun next."""
        with self._lock:
            jobs = [job for job in new if self._open.find(job.index) is not None]  # others were cancelled meanwhile
        fleet.recall(lambda _job: True)
        again = fleet.remove(job.index for job in raised)
        fleet.add([*jobs, *again])

    def _drop(self, fleet: Fleet, unwanted: list[int]) -> None:
        """Take jobs out of the loop that nobody wants any more; one that runs may end."""
        removed = [job.index for job in fleet.remove(unwanted)]
        with self._lock:
            for index in removed:
                if (entry := self._open.close(index)) is not None:
                    self._seeds.forget(entry.job)
        self._watch.count("CANCELLED", len(removed))

    def _hear(self, happening: Happening) -> None:
        """Pass on what the loop tells, to those who wait for it."""
        if isinstance(happening, Judged):
            self._record(happening)
            return
        if isinstance(happening, JobFaulted):
            self._fault(self._take_out(happening.job), happening)
        elif isinstance(happening, JobStarted):
            with self._lock:
                entry = self._open.find(happening.job.index)
            for task, _ in entry.waiting if entry is not None else ():
                task.note_start()
        self._tell(happening)

    def _record(self, judged: Judged) -> None:
        """Make a trace for each solution that a job stands for, save it, and give it to the tasks that wait for it."""
        entry = self._take_out(judged.job)
        self._watch.count_verdict(judged.device)
        self._watch.count(judged.evaluation.status.value if entry.waiting else "CANCELLED")
        made: dict[tuple[str, str], Trace | JobFaulted] = {}
        for task, job in sorted(entry.waiting, key=lambda pair: not pair[0].order.save_results):
            key = (job.solution.name, job.solution.author)
            if key not in made:
                trace = self._recorder.make_trace(job, judged.device, judged.evaluation)
                made[key] = self._save(job, trace) if task.order.save_results else trace
                self._tell(JobFinished(job, trace, judged.device, judged.seconds))
            task.note(made[key])
        self._seeds.forget(judged.job)

    def _save(self, job: Job, trace: Trace) -> Trace | JobFaulted:
        try:
            self._recorder.save(job, trace)
        except (FlashInferBenchError, OSError) as error:
            return JobFaulted(job, f"it has a verdict, which could not be saved: {error}")
        self._submissions.keep(job, trace)
        return trace

    def _take_out(self, job: Job) -> OpenJob:
        """Return an ended job with the tasks that waited for it; it is open no longer."""
        with self._lock:
            return self._open.close(job.index) or OpenJob(job, Precedence())

    def _fail_open(self, reason: str) -> None:
        """Fail every open job: the loop that had them is gone."""
        with self._lock:
            self._notes.clear()
            entries = self._open.close_all()
        for entry in entries:
            fault = JobFaulted(entry.job, reason)
            self._fault(entry, fault)
            self._tell(fault)

    def _fault(self, entry: OpenJob, fault: JobFaulted) -> None:
        self._watch.count("LEFT_OUT" if fault.is_left_out else "FAULT")
        self._seeds.forget(entry.job)
        for task, job in entry.waiting:
            task.note(replace(fault, job=job))

    def _tell(self, event: Event) -> None:
        for callback in list(self._subscribers):
            try:
                callback(event)
            except Exception:  # round one callback: it is not ours, and stops nothing
                LOG.exception("a subscriber of the engine failed")
