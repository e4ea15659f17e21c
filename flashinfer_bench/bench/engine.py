"""The resident engine: it takes submissions from any thread, judges them, and keeps its sessions between them.

    with Engine(trace_set, config) as engine:
        task = engine.submit(solution)          # returns at once
        for trace in task.result(): ...

`Engine`: `submit(solution, workloads=None, *, priority=0, submitter="", save_results=True, use_recorded=False,
confirm="if_best")`, `state()`, `subscribe(callback)`, `close(drain=False)`.
`Task`: `id`, `state`, `traces`, `faults`, `result(timeout_s=None)`, `cancel()`, `add_done_callback(fn)`,
`async for trace in task`, `await task`; `solution`, `definition`, `workloads`, `is_done`.
Errors: `QueueFull`, `EngineClosed`, `TaskFailed`, `TaskCancelled` in `flashinfer_bench.errors`; a solution, definition
or workload that is missing, or cannot run here, is a `ConfigError`.

One thread drives the `Harness`. It makes the traces, saves them, and calls the callbacks. Other threads wake this
thread by a socket.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Final, get_args

from flashinfer_bench.base.plain_values import to_number
from flashinfer_bench.bench.config import EDITED_CALL_S, BenchmarkConfig
from flashinfer_bench.bench.confirm import BestKnown, Confirm, confirming, may_confirm
from flashinfer_bench.bench.context import HarnessContext
from flashinfer_bench.bench.engine_state import EngineLimits, EngineState, describe_device
from flashinfer_bench.bench.events import Event
from flashinfer_bench.bench.harness import Harness
from flashinfer_bench.bench.job_queue import QueueClass
from flashinfer_bench.bench.planning.plan import Job, JobMaker, check_extras, prepare, why_not_here
from flashinfer_bench.bench.planning.resume import decide
from flashinfer_bench.bench.planning.selection import Selected
from flashinfer_bench.bench.runner.job_seeds import JobSeeds
from flashinfer_bench.bench.runner.launcher import end_launchers
from flashinfer_bench.bench.scheduler import POLL_S, Rules
from flashinfer_bench.bench.task import Task
from flashinfer_bench.data import Solution, Trace, TraceSet
from flashinfer_bench.data.measurement import read_reported
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.sets.results import in_order_of_time
from flashinfer_bench.data.store.trace_lines import AnyTrace, to_trace
from flashinfer_bench.errors import ConfigError, EngineClosed, FlashInferBenchError, QueueFull, TaskCancelled

LOG: Final = logging.getLogger(__name__)
RESTART_S: Final = 1.0
"""Seconds after which the loop over the devices is started again if it failed."""
RATE_S: Final = 60.0
"""Seconds over which the rate of verdicts is computed."""
MOST_CACHED: Final = 10_000
"""Number of jobs whose latest trace the engine keeps for `use_recorded`. A trace has about 6 KB."""
Recorded = dict[tuple[str, str], list[AnyTrace]]
"""Uuid of a workload and digest of a solution → traces, the latest last."""


class Engine:
    """Judges solutions of a trace set's definitions as they are submitted. A context manager.

    Args:
        trace_set: definitions and workloads; submitted solutions need not be part of it.
        config: how solutions are judged; the bundled defaults if omitted. Its filters (`definitions`, `solutions`,
            `workloads` and the like) have no effect here. Without a `call_timeout_seconds` a call may take 20 s.
        cache: folder of built files; the user's cache if omitted.
        limits: its capacity, and how long it keeps devices.

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
        config = config or BenchmarkConfig.default()
        config = config.with_overrides(call_timeout_seconds=config.call_timeout_seconds or EDITED_CALL_S)
        self.context = HarnessContext(trace_set, config, cache)
        self._jobs = SolutionJobs(self.context)
        self._harness = Harness(
            self.context,
            JobSeeds(self.context.config.seed),
            Rules(retry_device_s=self.limits.retry_device_s),
            needs_triton=self.context.machine.languages.get("triton", "none") is None,
        )
        self._lock = self._harness.lock
        self._tasks: dict[str, Task] = {}
        self._subscribers: list[Callable[[Event], object]] = []
        self._began = time.monotonic()
        self._devices = {one: describe_device(one, None, 0, None) for one in self.context.machine.devices}
        self._is_closed = False
        self._is_stopping = threading.Event()
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
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
        confirm: Confirm = "if_best",
    ) -> Task:
        """Submit a solution; return the handle of its task at once. Usable from any thread.

        Args:
            solution: a solution of one of the set's definitions, or the name of a solution of the set.
            workloads: uuids of workloads of its definition; None for all.
            priority: higher numbers go first.
            submitter: name of the caller. Submitters of one priority get equal shares of the devices.
            save_results: append each trace to the set on disk before the task gets it.
            use_recorded: return the set's traces of equal jobs, instead of judging again.
            confirm: on a GPU, when to judge the solution at full assurance. "if_best": after a verdict that would make
                it the fastest known solution of a workload. "always": at once. "never": not at all. The settings of the
                engine may disable all confirmations (`confirm`, `quick`), or request full assurance for all jobs
                (`assurance`).

        Raises:
            ConfigError: the solution, definition or workload does not exist, the solution cannot run here, the priority
                is no whole number, or `confirm` has an unknown value.
            DataSetError: results must be saved, and the set has no folder, or its folder cannot be written safely.
            QueueFull: the open work has reached `limits`.
            EngineClosed: the engine was closed.
        """
        priority = to_number(priority)
        if not isinstance(priority, int):
            raise ConfigError(f"priority must be a whole number, not {priority!r}")
        if confirm not in get_args(Confirm):
            raise ConfigError(f"confirm must be one of {', '.join(get_args(Confirm))}, not {confirm!r}")
        may = may_confirm(self.context.config, self.context.machine)
        result = self._jobs.find(solution)
        jobs = self._jobs.make_jobs(result, workloads)
        if may and confirm == "always":
            jobs = [confirming(job, job.index) for job in jobs]
        if save_results and jobs:
            self._harness.recorder.check(jobs[0].definition, result)
        task = Task(
            result,
            [job.workload.uuid for job in jobs],
            cancel=self._cancel,
            on_trace=self._note,
            queue_class=QueueClass(priority, submitter),
            is_saved=save_results,
            confirms_best=may and confirm == "if_best",
        )
        recorded = self._jobs.find_recorded(jobs) if use_recorded else {}
        left = [job for job in jobs if job.workload.uuid not in recorded]
        with self._lock:
            self._refuse(task, left)
            if left:
                self._tasks[task.id] = task
            self._harness.submit(task, left)
        task.add_done_callback(lambda one: self._tasks.pop(one.id, None))
        for job in jobs:
            if job.workload.uuid in recorded:
                task.keep(recorded[job.workload.uuid])
        self._wake_up()
        return task

    def state(self) -> EngineState:
        """Return the engine's current state."""
        with self._lock:
            now, devices = time.monotonic(), tuple(self._devices.values())
            recent = sum(at >= now - RATE_S for at in self._harness.verdicts)
            running = sum(device.job is not None for device in devices)
            return EngineState(
                devices=devices,
                queue_size=max(0, self._harness.open_jobs - running),
                open_tasks=self._count_tasks(),
                jobs=dict(self._harness.ended),
                rate_per_s=recent / max(1.0, min(RATE_S, now - self._began)),
                uptime_s=now - self._began,
                is_closed=self._is_closed,
            )

    def subscribe(self, callback: Callable[[Event], object]) -> Callable[[], None]:
        """Have a function called with every event; return a function that ends the subscription.

        The callback runs in the engine's thread, so it must be quick. Exceptions of the callback are logged.
        """
        self._subscribers.append(callback)

        def end() -> None:
            with contextlib.suppress(ValueError):  # the subscription had ended already
                self._subscribers.remove(callback)

        return end

    def close(self, *, drain: bool = False) -> None:
        """Take no more tasks, and end every process and thread of the engine.

        Args:
            drain: finish the open tasks first. Without it, open tasks fail with EngineClosed.
        """
        with self._lock:
            self._is_closed = True
            open_tasks = list(self._tasks.values())
        is_other = threading.current_thread() is not self._thread
        if drain and is_other:
            for task in open_tasks:
                with contextlib.suppress(FlashInferBenchError):  # the holder of the task gets this error, too
                    task.result()
        self._is_stopping.set()
        self._wake_up()
        if is_other:
            self._thread.join()
            self.context.close()
        atexit.unregister(self.close)

    def _refuse(self, task: Task, jobs: list[Job]) -> None:
        if self._is_closed:
            raise EngineClosed("the engine was closed: it takes no more tasks")
        count, most, submitter = self._harness.open_jobs, self.limits.queue, task.queue_class.submitter
        if count + len(jobs) > most:
            raise QueueFull(f"{count} jobs are open, and this task has {len(jobs)}; {most} may be open")
        if self._count_tasks().get(submitter, 0) >= self.limits.tasks_per_submitter:
            raise QueueFull(
                f"submitter {submitter!r} has {self.limits.tasks_per_submitter} open tasks, the most it may"
            )

    def _count_tasks(self) -> dict[str, int]:
        """Return the number of open tasks of each submitter."""
        return dict(Counter(task.queue_class.submitter for task in list(self._tasks.values()) if not task.is_done))

    def _cancel(self, task: Task) -> None:
        task.end(TaskCancelled(f"task {task.id} was cancelled"))
        self._harness.withdraw(task)
        self._wake_up()

    def _wake_up(self) -> None:
        with contextlib.suppress(OSError):  # it is awake, or has ended
            self._wake.send(b".")

    # From here on: in the engine's thread.

    def _note(self, task: Task, job: Job, trace: Trace) -> bool:
        """Note a verdict; return whether its solution is judged again, because it would be the best."""
        is_best = self._jobs.note(job, trace, is_saved=task.is_saved)
        if not is_best or not task.confirms_best or job.assurance is not None:
            return False
        self._harness.submit(task, [confirming(job, job.index)])
        if task.is_done:  # the task was cancelled before `submit`
            self._harness.withdraw(task)
        return True

    def _drive(self) -> None:
        try:
            while not self._is_stopping.is_set():
                try:
                    self._serve()
                except Exception as error:  # a failed loop costs open jobs their verdicts, but not the engine
                    LOG.exception("the loop over the devices failed, and is started anew")
                    self._release()
                    self._tell(self._harness.fail(f"the engine failed: {type(error).__name__}: {error}"))
                    self._is_stopping.wait(RESTART_S)
        finally:
            self._release()
            with self._lock:
                self._is_closed = True
                tasks = list(self._tasks.values())
            for task in tasks:
                task.end(EngineClosed("the engine was closed before the task was complete"))
            self._woken.close()
            self._wake.close()

    def _serve(self) -> None:
        """Drive the loop over the devices; release the devices after some time without a job."""
        busy_at = float("-inf")
        while not self._is_stopping.is_set():
            if self._harness.open_jobs:
                busy_at = time.monotonic()
            left_s = busy_at + self.limits.idle_s - time.monotonic()
            if left_s <= 0 and not self._harness.open_jobs:
                self._release()
                wait([self._woken])
            else:
                self._tell(self._harness.step(self._woken.fileno(), min(POLL_S, max(0.0, left_s)) or POLL_S))
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
            self._note_devices()

    def _release(self) -> None:
        self._harness.release()
        end_launchers(threading.get_native_id())
        self._note_devices()

    def _note_devices(self) -> None:
        with self._lock:
            slots = {slot.device: slot for slot in self._harness.slots}
            for device in {**self._devices, **slots}:
                done, before = self._harness.judged[device.label], self._devices.get(device)
                self._devices[device] = describe_device(device, slots.get(device), done, before)

    def _tell(self, events: Iterable[Event]) -> None:
        for event in events:
            for callback in list(self._subscribers):
                try:
                    callback(event)
                except Exception:  # an exception of foreign code must not stop the engine
                    LOG.exception("a subscriber of the engine failed")


class SolutionJobs:
    """Makes jobs of solutions that arrive one by one; usable from any thread.

    Args:
        context: the trace set, the settings and the machine.
    """

    def __init__(self, context: HarnessContext) -> None:
        self._context = context
        self._makers: dict[str, JobMaker] = {}
        self._recorded: dict[str, Recorded] = {}
        """Definition → the set's recorded verdicts."""
        self._own: dict[tuple[str, str], str] = {}
        """Uuid of a workload and digest of a solution → the engine's latest saved trace as text. The oldest entry is
        first."""
        self._best = BestKnown()
        self._lock = threading.RLock()

    def find(self, solution: Solution | str) -> Solution:
        """Return a solution that is given directly, or by its name in the set.

        Raises:
            ConfigError: the set has no entry of that name.
        """
        if isinstance(solution, Solution):
            return solution
        result = self._context.trace_set.get_solution(solution)
        if result is None:
            names = [one.name for one in self._context.trace_set.all_solutions()]
            raise ConfigError(f"the trace set has no solution {solution!r}{did_you_mean(solution, names)}")
        return result

    def make_jobs(self, solution: Solution, workloads: Sequence[str] | None) -> list[Job]:
        """Return the jobs of a solution, not numbered yet.

        Args:
            solution: the solution to judge.
            workloads: uuids of workloads of its definition; None for all.

        Raises:
            ConfigError: there is no such definition or workload, or the solution cannot run on this machine.
        """
        name = solution.definition
        with self._lock:
            if name not in self._makers:
                self._makers[name] = self._open(name)
            maker = self._makers[name]
        reason = why_not_here(solution, self._context.machine, interpret=self._context.config.interpret)
        if reason is not None:
            raise ConfigError(f"{solution.name} cannot run here: {reason}")
        jobs = {job.workload.uuid: job for job in maker.jobs_of(solution)}
        wanted = set(jobs if workloads is None else workloads)
        if not wanted:
            raise ConfigError("workloads: none is asked for; None means all")
        for uuid in wanted - jobs.keys():
            raise ConfigError(f"{name} has no workload {uuid!r}{did_you_mean(uuid, jobs)}")
        return [job for uuid, job in jobs.items() if uuid in wanted]

    def find_recorded(self, jobs: Sequence[Job]) -> dict[str, Trace]:
        """Return the set's traces of jobs that equal the given jobs, by the uuid of the workload.

        A job is equal if a resumed run would skip it, whatever the name of its solution.
        """
        result: dict[str, Trace] = {}
        for job in jobs:
            key = (job.workload.uuid, job.fingerprint["solution"])
            with self._lock:
                traces = list(self._recorded_of(job.definition.name).get(key, []))
                if (own := self._own.get(key)) is not None:
                    traces.append(Trace.model_validate_json(own))
            recorded = decide(job, self._context.config, traces).trace
            if recorded is not None:
                result[job.workload.uuid] = to_trace(recorded).model_copy(update={"solution": job.solution.name})
        return result

    def note(self, job: Job, trace: Trace, *, is_saved: bool) -> bool:
        """Note a verdict of the engine; return whether its solution becomes the best and must be confirmed."""
        key = (job.workload.uuid, job.fingerprint["solution"])
        with self._lock:
            if is_saved:
                self._own.pop(key, None)
                self._own[key] = trace.to_json()
                while len(self._own) > MOST_CACHED:
                    del self._own[next(iter(self._own))]
            return self._best.note(trace, key[1])

    def _recorded_of(self, definition: str) -> Recorded:
        if definition not in self._recorded:
            known: Recorded = {}
            for trace in in_order_of_time(self._context.trace_set.all_traces(definition)):
                keys = read_reported(trace.evaluation).run.fingerprint if trace.evaluation is not None else {}
                if "solution" in keys:
                    known.setdefault((trace.workload.uuid, keys["solution"]), []).append(trace)
                self._best.note(trace, keys.get("solution", trace.solution or ""))
            self._recorded[definition] = known
        return self._recorded[definition]

    def _open(self, name: str) -> JobMaker:
        context, trace_set = self._context, self._context.trace_set
        definition = trace_set.definitions.get(name)
        if definition is None:
            raise ConfigError(f"the trace set has no definition {name!r}{did_you_mean(name, trace_set.definitions)}")
        check_extras([definition], context.config)
        workloads = tuple(trace.workload for trace in trace_set.workloads.get(name, []))
        kept, lacks = prepare(Selected(definition, (), workloads), trace_set, context.config, needs_solutions=False)
        if kept is None:
            raise ConfigError(f"{name}: {lacks[-1].reason}")
        if may_confirm(context.config, context.machine):
            self._recorded_of(name)  # before the first verdict arrives
        evaluators = context.fingerprint_evaluators([definition], trace_set.definitions.values())
        return JobMaker(kept, context.config, context.machine, trace_set, evaluators)
