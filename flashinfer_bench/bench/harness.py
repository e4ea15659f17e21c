"""The only entry to judging: submissions on one side, the loop over the devices on the other, results in between.

    Benchmark.run ──┐                                    ┌─▶ queue ─▶ device sessions
                    ├─▶ Submission ─▶ Harness.submit ────┤
    Engine.submit ──┘        ▲                           └── verdicts, faults
                             └── trace (saved), fault ◀──────┘

A driver calls `step` again and again: `Benchmark.run` in the caller's thread, `Engine` in its own thread. Equal jobs of
submissions with `is_shared` are judged once. Jobs are equal if the definition, the workload, the sources and the
settings are equal (`Job.fingerprint`). The name of the solution does not count. Each submission gets a trace with its
own solution's name.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.bench.context import HarnessContext
from flashinfer_bench.bench.events import Event, JobFaulted, JobFinished, JobStarted, Notice
from flashinfer_bench.bench.job_queue import QueueClass
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.environments import recorded_variables
from flashinfer_bench.bench.runner.job_seeds import JobSeeds
from flashinfer_bench.bench.scheduler import POLL_S, DeviceSlot, Judged, Rules, Scheduler
from flashinfer_bench.bench.spread_file import SpreadFile
from flashinfer_bench.data import Definition, Evaluation, Performance, Solution, Trace
from flashinfer_bench.data.measurement import read_reported
from flashinfer_bench.data.store.jsonl import append_lines, check_append
from flashinfer_bench.data.store.layout import traces_path
from flashinfer_bench.errors import DataSetError, Fault, FlashInferBenchError
from flashinfer_bench.roofline.measured import find_peaks_file, read_peaks
from flashinfer_bench.roofline.peaks import choose_peak, describe_time
from flashinfer_bench.roofline.workloads import cost_of_workload
from flashinfer_bench.timing.between_workers import WORKERS, report_with_spread
from flashinfer_bench.timing.flags import BELOW_FLOOR

CANCELLED: Final = "CANCELLED"
MOST_TIMES: Final = 100_000
"""Maximum number of verdict times that are kept."""
Result = Evaluation | JobFaulted


class Submission:
    """Jobs of one caller. A subclass gets the results of these jobs, and may then submit more jobs."""

    queue_class: QueueClass = QueueClass()
    is_shared = False
    """Whether its jobs may be judged together with equal jobs of other submissions. If so, a job whose trace cannot be
    saved is a fault; if not, the error is raised."""
    is_saved = False
    """Whether each trace is appended to the set on disk before it is reported."""

    def note_start(self) -> None:
        """Note that a device began one of its jobs."""

    def join(self, job: Job, result: Result) -> Result | None:
        """Take a worker's result; return the job's result, or None if it is not known yet or was reported before."""
        del job
        return result

    def note(self, result: JobFinished | JobFaulted) -> None:
        """Note the result of a job."""


@dataclass
class OpenJob:
    """A job without a verdict."""

    job: Job
    """The job, with a unique number from the harness."""
    queue_class: QueueClass
    waiting: list[tuple[Submission, Job]] = field(default_factory=list)
    """Submissions that wait for the result, each with its own job. The solution of such a job may have another name."""


class Harness:
    """The open jobs, and the loop that judges them. `submit` and `withdraw` may be called from any thread.

    Args:
        context: the set, the settings and the machine.
        seeds: source of the seeds of jobs' inputs.
        rules: rules of the loop over the devices.
        needs_triton: whether a solution is written in Triton.
    """

    def __init__(self, context: HarnessContext, seeds: JobSeeds, rules: Rules, *, needs_triton: bool) -> None:
        self._make_scheduler = partial(context.make_scheduler, seeds, rules, needs_triton=needs_triton)
        self._seeds = seeds
        self.recorder = TraceRecorder(context)
        self.lock = threading.RLock()
        self._numbers = itertools.count()
        self._open: dict[int, OpenJob] = {}
        self._equal: dict[object, OpenJob] = {}
        """Common key of equal jobs → the open job that they may share."""
        self._of_solution: Counter[str] = Counter()
        """Key of a solution → number of its open jobs, under all names."""
        self._notes: deque[Callable[[Scheduler], object]] = deque()
        """Functions to call between two steps of the loop."""
        self._scheduler: Scheduler | None = None
        self.ended: Counter[str] = Counter()
        """Status, FAULT, LEFT_OUT or CANCELLED → number of jobs with that result."""
        self.verdicts: deque[float] = deque(maxlen=MOST_TIMES)
        """Monotonic seconds of the latest verdicts."""
        self.judged: Counter[str] = Counter()
        """Device → number of its verdicts."""

    @property
    def open_jobs(self) -> int:
        """Number of jobs without a result."""
        return len(self._open)

    @property
    def slots(self) -> list[DeviceSlot]:
        """The devices of the loop; empty while no session is held."""
        return [] if self._scheduler is None else self._scheduler.slots

    def submit(self, submission: Submission, jobs: Iterable[Job]) -> None:
        """Take jobs of a submission."""
        new: list[Job] = []
        raised: list[int] = []
        queue_class, shares = submission.queue_class, submission.is_shared
        with self.lock:
            for job in jobs:
                entry = self._equal.get(_identity(job)) if shares else None
                if entry is None:
                    entry = OpenJob(replace(job, index=next(self._numbers)), queue_class)
                    self._open[entry.job.index] = entry
                    self._of_solution[_solution_key(job)] += 1
                    if shares:
                        self._equal[_identity(job)] = entry
                    new.append(entry.job)
                elif queue_class.priority > entry.queue_class.priority:
                    entry.queue_class = queue_class
                    raised.append(entry.job.index)
                entry.waiting.append((submission, replace(job, index=entry.job.index) if shares else job))
            if new or raised:
                self._notes.append(lambda scheduler: _deal(scheduler, queue_class, new, raised))

    def withdraw(self, submission: Submission, job: Job | None = None) -> None:
        """Withdraw one job of a submission, or all jobs. A running job goes on, but its verdict is not reported."""
        unwanted = []
        with self.lock:
            for entry in self._open.values():
                left = [one for one in entry.waiting if one[0] is not submission or (job and one[1] is not job)]
                if entry.waiting and not left:
                    unwanted.append(entry.job.index)
                    self._unshare(entry)
                entry.waiting = left
            if unwanted:
                self._notes.append(lambda scheduler: self._drop(scheduler, unwanted))

    def step(self, wake: int | None = None, limit_s: float = POLL_S) -> Iterator[Event]:
        """Run one step of the loop; yield its events.

        Args:
            wake: a descriptor that ends the wait when it is readable.
            limit_s: longest wait.

        Raises:
            Fault: a trace cannot be saved, or a device is not available.
        """
        if self._scheduler is None:
            self._scheduler = self._make_scheduler()
        while self._notes:
            self._notes.popleft()(self._scheduler)
        for happening in self._scheduler.step(wake, limit_s):
            if isinstance(happening, Notice):
                yield happening
            elif isinstance(happening, JobStarted):
                with self.lock:
                    waiting = list(self._open[happening.job.index].waiting)
                for submission, _ in waiting:
                    submission.note_start()
                yield from (replace(happening, job=job) for _, job in waiting[:1])
            else:
                yield from self._settle(happening)

    def release(self) -> None:
        """End all sessions; the next step starts new sessions."""
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            scheduler.close()

    def fail(self, reason: str) -> Iterator[Event]:
        """Fail every open job; the loop must have ended."""
        with self.lock:
            self._notes.clear()
            jobs = [entry.job for entry in self._open.values()]
        for job in jobs:
            yield from self._settle(JobFaulted(job, reason))

    def _drop(self, scheduler: Scheduler, unwanted: list[int]) -> None:
        """Remove unwanted jobs from the loop; a running job goes on."""
        removed = scheduler.remove(unwanted)
        for job in removed:
            self._close(job)
        self.ended.update([CANCELLED] * len(removed))

    def _settle(self, ended: Judged | JobFaulted) -> Iterator[Event]:
        """Give a job's result to each waiting submission, and yield it once for each solution."""
        seed = self._seeds.describe(self._open[ended.job.index].job)
        entry = self._close(ended.job)
        if isinstance(ended, JobFaulted):
            self.ended["LEFT_OUT" if ended.is_left_out else "FAULT"] += 1
        else:
            self.ended[ended.evaluation.status.value if entry.waiting else CANCELLED] += 1
            self.verdicts.append(time.monotonic())
            self.judged[ended.device.label] += 1
        made: dict[tuple[str, str], JobFinished | JobFaulted] = {}
        for submission, job in sorted(entry.waiting, key=lambda pair: not pair[0].is_saved):
            name = (job.solution.name, job.solution.author)
            if name not in made:
                result = submission.join(job, ended if isinstance(ended, JobFaulted) else ended.evaluation)
                if result is None:
                    continue
                if isinstance(ended, Judged) and isinstance(result, Evaluation):
                    made[name] = self._finish(submission, replace(ended, job=job, evaluation=result), seed)
                elif isinstance(result, JobFaulted):
                    made[name] = replace(result, job=job)
                yield made[name]
            submission.note(replace(made[name], job=job))

    def _finish(self, submission: Submission, judged: Judged, seed: dict[str, Any]) -> JobFinished | JobFaulted:
        """Return the event of a verdict; save its trace if requested."""
        job = judged.job
        trace = self.recorder.make_trace(job, judged.device, judged.evaluation, seed)
        try:
            if submission.is_saved:
                self.recorder.save(job, trace)
        except (FlashInferBenchError, OSError) as error:
            if not submission.is_shared:
                raise
            return JobFaulted(job, f"it has a verdict, which could not be saved: {error}")
        return JobFinished(job, trace, judged.device, judged.seconds)

    def _close(self, job: Job) -> OpenJob:
        """Remove a job that has ended, or that is no longer wanted."""
        with self.lock:
            entry = self._open.pop(job.index)
            self._unshare(entry)
            self._seeds.forget(entry.job)
            self._of_solution[_solution_key(job)] -= 1
            if not self._of_solution[_solution_key(job)]:
                del self._of_solution[_solution_key(job)]
                if self._scheduler is not None:
                    self._scheduler.forget_solution(job)
        return entry

    def _unshare(self, entry: OpenJob) -> None:
        """Let no later job share this open job: a later equal job is judged by itself."""
        if self._equal.get(_identity(entry.job)) is entry:
            del self._equal[_identity(entry.job)]


def _deal(scheduler: Scheduler, queue_class: QueueClass, new: list[Job], raised: list[int]) -> None:
    """Give jobs to the loop. The order of jobs may change, so the loop first takes back all batches that were not
    begun."""
    scheduler.recall()
    scheduler.add([*new, *scheduler.remove(raised)], queue_class)


def _identity(job: Job) -> object:
    """Return the common key of equal jobs."""
    return job.definition.name, job.workload.uuid, tuple(sorted(job.fingerprint.items()))


def _solution_key(job: Job) -> str:
    return job.fingerprint.get("solution", job.solution.name)


class TraceRecorder:
    """Makes traces of verdicts, and appends them to the set that the solution came from.

    Args:
        context: the settings of the verdicts.
    """

    def __init__(self, context: HarnessContext) -> None:
        self._context = context

    def make_trace(self, job: Job, device: Device, evaluation: Evaluation, seed: Mapping[str, Any]) -> Trace:
        """Return a trace: the verdict and its circumstances.

        Args:
            job: the judged job.
            device: its device.
            evaluation: the verdict.
            seed: the seed of the job's inputs, in the form of a trace.
        """
        config = self._context.config
        variables = recorded_variables(os.environ) if device.node is None else {}  # a node has its own environment
        on_node = {"node": device.node} if device.node is not None else {}
        run: dict[str, Any] = {
            "fingerprint": dict(job.fingerprint),
            "config": job.config.values(),
            "timeout_seconds": config.timeout_seconds,
            **({"call_timeout_seconds": config.call_timeout_seconds} if config.call_timeout_seconds else {}),
            "worker_memory_gb": config.worker_memory_gb,
            **seed,
            "device": {"kind": device.kind, "index": device.index, "uuid": device.uuid, **on_node},
            "sandbox": self._context.sandbox_of(device).record(),
            **({"quick": True} if config.quick else {}),
            **({"variables": variables} if variables else {}),
            "runner": "isolated" if config.use_isolated_runner else "persistent",
        }
        extra = {**(evaluation.extra or {}), **self._measured(job, device, evaluation), "run": run}
        return Trace(
            definition=job.definition.name,
            workload=job.workload,
            solution=job.solution.name,
            evaluation=evaluation.model_copy(update={"extra": extra}),
        )

    def save(self, job: Job, trace: Trace) -> None:
        """Append a trace to the set that the solution came from.

        Raises:
            Fault: the trace cannot be written.
        """
        try:
            file, root = self._file_of(job.definition, job.solution)
            append_lines(file, [trace.to_json()], root=root)
        except Fault as fault:
            verdict = trace.evaluation.status.value if trace.evaluation is not None else "none"
            lost = f"the verdict {verdict} of {job.solution.name} on workload {job.workload.uuid} is lost"
            raise Fault(f"{fault}; {lost}") from fault

    def check(self, definition: Definition, solution: Solution) -> None:
        """Refuse a solution whose traces could not be saved.

        Raises:
            DataSetError: the set has no folder, a path inside the folder contains a link, or the set cannot be written.
        """
        check_append(*self._file_of(definition, solution))

    def _file_of(self, definition: Definition, solution: Solution) -> tuple[Path, Path]:
        """Return the file for a solution's traces, and its root."""
        root = self._context.root_of(solution)
        if root is None:
            raise DataSetError(
                "the trace set was not loaded from a folder, so there is nowhere to save: save_results=False"
            )
        names = {"op_type": definition.op_type, "definition": definition.name}
        return traces_path(root, author=solution.author, **names), root

    def _measured(self, job: Job, device: Device, evaluation: Evaluation) -> dict[str, Any]:
        """Return the records of times and of the roofline. The intervals include the spread between workers."""
        performance, found = evaluation.performance, dict[str, Any]()
        if not job.workload.timed:
            return found
        spread, extra = SpreadFile(self._context.cache, device).read(), evaluation.extra or {}
        known, reported = performance or Performance(), read_reported(evaluation)
        times = {  # a wrong solution that is timed anyway has only a record
            "measurement": known.latency_ms or reported.measurement.median_ms,
            "baseline": known.reference_latency_ms or reported.baseline.median_ms,
        }
        for name, latency_ms in times.items():
            record = extra.get(name)
            if isinstance(record, dict) and record.get("interval") != WORKERS:
                found[name] = report_with_spread(record, latency_ms or 0.0, spread)
        if performance is None:
            return found
        cost = cost_of_workload(job.definition, job.workload, self._context.blob_root_for(job))
        if cost is None:
            return found
        latency_ms = performance.latency_ms
        file = read_peaks(find_peaks_file(self._context.cache, device.uuid))
        measured = file.peak if file else None
        roofline = describe_time(cost, device.name, latency_ms, measured)
        if roofline is None:
            return found
        record = found.get("measurement", extra.get("measurement"))
        peak = choose_peak(cost, device.name, measured)
        floor_ms = peak.floor(cost)[0] if peak is not None else 0.0
        if isinstance(record, dict) and max(record.get("interval95_ms", [latency_ms])) < floor_ms:
            found["measurement"] = {**record, "flags": [*record.get("flags", []), BELOW_FLOOR]}
        return {**found, "roofline": roofline}
