"""A run of a trace set on one page: plan → submission → verdicts → traces.

Other modules decide. `planning` decides the jobs of a run, `machine` the devices, `harness` the flow of jobs and
results, and `evaluators` whether a solution is right. A fault is not a verdict: it makes no trace, but is an event, and
is listed in `faults`.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Final

from flashinfer_bench.base.host import collector_paused
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.confirm import Winners, may_confirm
from flashinfer_bench.bench.context import HarnessContext
from flashinfer_bench.bench.events import Event, JobFaulted, JobFinished, JobsAdded, Notice, RunStarted
from flashinfer_bench.bench.harness import Harness, Result, Submission
from flashinfer_bench.bench.job_queue import QueueClass
from flashinfer_bench.bench.planning.first_call import FirstCall, find_first_call
from flashinfer_bench.bench.planning.plan import Job, Plan, Skip, describe_nothing, make_plan
from flashinfer_bench.bench.planning.resume import RecordedJobs, names_of
from flashinfer_bench.bench.planning.selection import select
from flashinfer_bench.bench.progress_bar import progress_bar
from flashinfer_bench.bench.reserve import Reservation
from flashinfer_bench.bench.runner.environments import tell_withheld
from flashinfer_bench.bench.runner.job_seeds import JobSeeds, recorded_seeds
from flashinfer_bench.bench.scheduler import Rules
from flashinfer_bench.data import Evaluation, Performance, Trace, TraceSet
from flashinfer_bench.data.sets.merge import reread_traces
from flashinfer_bench.data.sets.results import in_order_of_time
from flashinfer_bench.data.store.trace_lines import AnyTrace, to_trace
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.timing.between_workers import NOISY, report_of_workers

MOST_WORKERS: Final = 1000
"""Maximum number of workers of one job. A higher number is probably a typing error."""
IDLE_S: Final = 600.0
"""Seconds without a run after which kept sessions end."""
RETRY_S: Final = 60.0
"""Seconds after which a run with kept sessions retries a lost device."""


class Benchmark:
    """Judges the solutions of a trace set. Usable as a context manager.

    Args:
        trace_set: the set to run.
        config: its settings; the bundled defaults if omitted. The set's settings for its own definitions
            (`tolerances.yaml`) rank below the user's settings.
        cache: folder of built files; the user's cache if omitted.
        keeps_sessions: whether sessions stay alive between runs, until `close` or for ten minutes, so that the next run
            repeats neither imports nor the timing of references.

    Raises:
        ConfigError: the configuration requests missing devices, evaluators that no session can import, or a sandbox
            that this machine lacks.

    Examples:
        >>> result = Benchmark(TraceSet.from_path("flashinfer-trace")).run_all()
    """

    def __init__(
        self,
        trace_set: TraceSet,
        config: BenchmarkConfig | None = None,
        *,
        cache: Path | None = None,
        keeps_sessions: bool = False,
    ) -> None:
        self._trace_set = trace_set
        self.context = HarnessContext(trace_set, config, cache)
        self.config = self.context.config
        self.machine = self.context.machine
        self.sandbox = self.context.sandbox
        self._seeds = JobSeeds(self.config.seed)
        self.faults: list[JobFaulted] = []
        self._repeat = 1
        self._unsaved: dict[int, Trace] = {}
        """Identity → trace. This object's runs did not save these traces to disk, so no run resumes from them."""
        self._reserved: Reservation | None = None
        self._keeps_sessions = keeps_sessions
        self._kept: Harness | None = None
        """The harness of the previous run, if its sessions are kept."""
        self._keeping = threading.Lock()
        self._idle: threading.Timer | None = None

    def __enter__(self) -> Benchmark:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def get_trace_set(self) -> TraceSet:
        """Return the trace set that is run."""
        return self._trace_set

    def replay(self, traces: Iterable[Trace]) -> None:
        """Give jobs the inputs that they had in these traces."""
        run_seed, recorded = recorded_seeds(traces)
        self._seeds = JobSeeds(self.config.seed if run_seed is None else run_seed, recorded)

    def repeat(self, times: int) -> None:
        """Time each job in this many workers. A trace then has the mean of the workers' latencies, and the interval of
        the mean.

        Raises:
            ConfigError: the number of workers is invalid.
        """
        if not 1 <= times <= MOST_WORKERS:
            raise ConfigError(f"a job has 1 to {MOST_WORKERS} workers, not {times}")
        self._repeat = times

    def close(self) -> None:
        """End kept sessions, and leave the cluster. A run that keeps no sessions ends its own processes."""
        self._give_up_reserved()
        self._end_kept()
        self.context.close()

    @collector_paused()
    def plan(self, *, resume: bool = False, retry_timeouts: bool = False, drafts: bool = False) -> Plan:
        """Return the jobs of a run and the skipped parts, without starting a process.

        Args:
            resume: skip jobs that a trace of the set records unchanged. Traces of runs with `save_results=False` do not
                count.
            retry_timeouts: with `resume`, repeat jobs that timed out.
            drafts: take the drafts of the set, too.

        Raises:
            ConfigError: the configuration names entries that the set lacks (the message lists all), the filters select
                nothing, or a plug-in evaluator cannot be used.
        """
        recorded = None
        if resume:
            recorded = RecordedJobs(self._saved_traces(), retry_timeouts=retry_timeouts)
        selected = select(self._trace_set, self.config)
        evaluators = self.context.fingerprint_evaluators([item.definition for item in selected])
        self.context.survey(solution for item in selected for solution in item.solutions)
        asked = self._trace_set, self.config, self.machine
        plan = make_plan(*asked, recorded=recorded, evaluators=evaluators, drafts=drafts)
        return replace(plan, plug_in_keys=self.context.plug_in_keys)

    def find_resumed(self, plan: Plan) -> list[Trace]:
        """Return the recorded trace of each job that a plan with `resume` skips."""
        return [to_trace(trace) for _, trace in plan.done]

    def reserve(self, plan: Plan) -> Plan:
        """Return the plan of a resumed run without the jobs and confirmations that other current runs have reserved.

        The remaining jobs are reserved for the next `run`, until that run ends or `close` is called.
        """
        self._give_up_reserved()
        done = [job for job, _ in plan.done] if self._may_confirm() else []
        self._reserved = Reservation(plan.jobs, done, self.context.root_of)
        taken = self._reserved.taken
        left_out = [
            Skip(job.definition.name, job.solution.name, None, f"process {taken[job.index]} judges it now")
            for job in plan.jobs
            if job.index in taken
        ]
        left = plan.with_jobs(job for job in plan.jobs if job.index not in taken)
        elsewhere = frozenset(key for key in taken if not isinstance(key, int))
        return replace(left, skips=(*plan.skips, *dict.fromkeys(left_out)), elsewhere=elsewhere)

    def run(self, plan: Plan, *, save_results: bool = True) -> Iterator[Event]:
        """Run a plan and yield its events as they happen. Closing the iterator stops every process of the run.

        The set gets each trace in memory, before its event is yielded.

        Args:
            plan: from `plan()`.
            save_results: append each trace to the set on disk before its event is yielded.

        Raises:
            DataSetError: results must be saved, and the set has no folder, or its folder cannot be written safely.
        """
        if save_results and self._reserved is None:
            self.reserve(plan)
        self.faults, harness = [], None
        try:
            winners = self._open_winners(plan)
            jobs = plan.jobs if winners is None else winners.begin()
            if not jobs:
                return
            judged = jobs if winners is None else (*jobs, *(job for job, _ in plan.done))
            harness = self._keep(None) or Harness(
                self.context,
                self._seeds.anew(),
                make_rules(self.context, plan, keeps_sessions=self._keeps_sessions, repeats=self._repeat > 1),
                needs_triton=any(job.solution.spec.language.value == "triton" for job in judged),
            )
            run = PlanRun(harness, jobs, self._repeat, is_saved=save_results, winners=winners)
            if save_results:
                for job in {id(job.solution): job for job in judged}.values():
                    harness.recorder.check(job.definition, job.solution)
            yield RunStarted(self.machine.devices, run.open)
            yield from map(Notice, tell_withheld(os.environ))
            run.begin()
            while run.open:
                for event in chain(harness.step(), run.tell_changes()):
                    if isinstance(event, JobFinished):
                        if not save_results:
                            self._unsaved[id(event.trace)] = event.trace
                        self._trace_set.keep_traces([event.trace])
                    elif isinstance(event, JobFaulted):
                        self.faults.append(event)
                    yield event
            if self._repeat > 1:
                self.context.learn_spread(run.latencies())
            if self._keeps_sessions:
                self._keep(harness)
        finally:
            if harness is not None and self._kept is not harness:
                harness.release()
            self._give_up_reserved()

    def _may_confirm(self) -> bool:
        return may_confirm(self.config, self.context.machine) and self._repeat == 1 and not self._keeps_sessions

    def _open_winners(self, plan: Plan) -> Winners | None:
        """Return the object that chooses confirmations; None if nothing is confirmed."""
        if not self._may_confirm():
            return None
        done = [job for job, _ in plan.done]
        names = {job.definition.name for job in (*plan.jobs, *done)}
        kept = (trace for name in names for trace in self._trace_set.all_traces(name))
        hardware = [device.name for device in self.context.machine.devices]
        recorded = in_order_of_time(kept)
        return Winners(plan.jobs, done, recorded, hardware=hardware, elsewhere=plan.elsewhere)

    def _keep(self, harness: Harness | None) -> Harness | None:
        """Keep a harness for the next run, for at most IDLE_S seconds; return the previously kept harness."""
        with self._keeping:
            kept, self._kept = self._kept, harness
            if self._idle is not None:
                self._idle.cancel()
            if harness is not None:
                self._idle = threading.Timer(IDLE_S, self._end_kept)
                self._idle.daemon = True
                self._idle.start()
        return kept

    def _end_kept(self) -> None:
        if (kept := self._keep(None)) is not None:
            kept.release()

    def run_all(
        self,
        save_results: bool = True,
        resume: bool = False,
        *,
        dump_traces: bool | None = None,
        on_event: Callable[[Event], object] | None = None,
        progress: bool | None = None,
    ) -> TraceSet:
        """Run every job of the set and return a new TraceSet.

        The new set has the input's definitions, solutions and workloads, and only this run's traces. With `resume` it
        also has the traces on disk that record the skipped jobs. Each job has one trace. If its solution was confirmed,
        this is the trace of the confirmation. The input set gets the new traces, too. If all jobs were skipped, a
        warning gives the reason; another warning reports errors in the set's files.

        Args:
            save_results: append each trace to the set on disk when its job ends. A set without a folder keeps its
                traces only in memory, and a warning says so.
            resume: skip jobs that are already recorded, unchanged.
            dump_traces: another name of `save_results`; if given, it replaces `save_results`.
            on_event: gets each event as it happens: `JobStarted`, `JobFinished`, `JobFaulted`, `Notice` and others of
                `flashinfer_bench.bench.events`.
            progress: show a bar; None shows it only in notebooks.

        Raises:
            ConfigError: as for `plan`. Jobs that could not be judged raise nothing: they are listed in `faults`.
        """
        self._warn_of_errors()
        if resume:
            reread_traces(self._trace_set)
        is_saved = save_results if dump_traces is None else dump_traces
        plan = self.plan(resume=resume)
        if resume and is_saved:
            plan = self.reserve(plan)
        result, found = self._trace_set.without_traces(), dict[tuple[str, str | None, str], Trace]()
        if plan.resumed:
            found = {names_of(trace): trace for trace in self.find_resumed(plan)}
        elif not plan.jobs:
            warnings.warn(describe_nothing(plan), stacklevel=2)
        if is_saved and self._trace_set.root is None:
            warnings.warn("the trace set lives in memory, so its traces are not written: give it a root", stacklevel=2)
            is_saved = False
        with progress_bar(wanted=progress) as show:
            for event in self.run(plan, save_results=is_saved):
                if isinstance(event, JobFinished):
                    found[names_of(event.trace)] = event.trace
                show(event)
                if on_event is not None:
                    on_event(event)
        result.keep_traces(found.values())
        return result

    def _give_up_reserved(self) -> None:
        if self._reserved is not None:
            self._reserved.release()
        self._reserved = None

    def _saved_traces(self) -> Iterator[AnyTrace]:
        return (trace for trace in self._trace_set.all_traces() if id(trace) not in self._unsaved)

    def _warn_of_errors(self) -> None:
        """Warn of files of the set that could not be read: their entries are not run."""
        wanted = self.config.definitions
        errors = [issue for issue in self._trace_set.issues if issue.severity == "error"]
        asked = [issue for issue in errors if wanted is None or {*issue.file.parts, issue.file.stem} & set(wanted)]
        if asked:
            more = f" ({len(asked)} in all: `trace_set.issues`)" if len(asked) > 1 else ""
            warnings.warn(
                f"the trace set has errors, and what they are about is not run: {asked[0]}{more}", stacklevel=3
            )


def make_rules(context: HarnessContext, plan: Plan, *, keeps_sessions: bool = False, repeats: bool = False) -> Rules:
    """Return the rules of a run. The rules let a session compile the modules of first calls ahead, if the session
    can."""
    if keeps_sessions:
        return Rules(retry_device_s=RETRY_S)
    if repeats:
        return Rules(one_worker_a_job=True)
    solutions = {id(job.solution): job.solution for job in plan.jobs}.values()
    compiles = context.may_compile_ahead() and any(find_first_call(one) is FirstCall.MODULES for one in solutions)
    return Rules(compiles_ahead=compiles)


class PlanRun(Submission):
    """The jobs of a plan. Each job runs in one worker, or in several workers that alternate with other solutions'
    workers.

    With several workers the latency is the mean over them; its interval comes from the spread between them. The first
    worker that does not pass decides the verdict, since a solution must be right each time.

    Args:
        harness: judges the jobs.
        jobs: the jobs, in the order of their index.
        times: number of workers of each timed job. Other jobs have one worker.
        is_saved: whether each trace is appended to the set on disk before it is reported.
        winners: confirms the best of each workload; None if nothing is confirmed.
    """

    def __init__(
        self, harness: Harness, jobs: Sequence[Job], times: int, *, is_saved: bool, winners: Winners | None = None
    ) -> None:
        self._harness = harness
        self._jobs = tuple(jobs)
        self._times = times
        self.queue_class = QueueClass(in_order=times > 1)
        self.is_saved = is_saved
        self.open = len(jobs)
        """Number of jobs without a result."""
        self.added = 0
        """Number of jobs that joined the run and were not reported yet."""
        self._winners = winners
        self._found: defaultdict[int, list[Evaluation]] = defaultdict(list)
        self._ended: set[int] = set()

    def begin(self) -> None:
        """Submit the jobs in rounds: each job once, then each timed job again."""
        timed = tuple(job for job in self._jobs if job.workload.timed)
        self._harness.submit(self, self._jobs + timed * (self._times - 1))

    def join(self, job: Job, result: Result) -> Result | None:
        """Return a job's result once its last worker has ended, or a worker did not pass; None at any other time."""
        if job.index in self._ended:
            return None
        if isinstance(result, Evaluation) and self._times > 1 and job.workload.timed:
            found = self._found[job.index]
            found.append(result)
            if result.performance is not None and len(found) < self._times:
                return None
            result = join_workers(found) if result.performance is not None else result
        self._ended.add(job.index)
        self.open -= 1
        return result

    def note(self, result: JobFinished | JobFaulted) -> None:
        """Withdraw the job from workers that have not run it. If all verdicts of the workload are there, submit the
        confirmation of the best solution."""
        if self._times > 1:
            self._harness.withdraw(self, result.job)
        if self._winners is not None and (jobs := self._winners.note(result)):
            self.open += len(jobs)
            self.added += len(jobs)
            self._harness.submit(self, jobs)

    def tell_changes(self) -> Iterator[Event]:
        """Yield the number of added jobs, and each revoked verdict. A revoked verdict is saved before it is yielded."""
        voided = self._winners.voided if self._winners is not None else []
        if self.added or voided:
            yield JobsAdded(self.added + len(voided))
        self.added = 0
        while voided:
            event = voided.pop(0)
            if self.is_saved:
                self._harness.recorder.save(event.job, event.trace)
            yield event

    def latencies(self) -> list[list[float]]:
        """Return the latencies of each job's workers."""
        return [_latencies(found) for found in self._found.values()]


def join_workers(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Join the evaluations of at least two workers that all passed. Fields that cannot be joined come from the last
    worker."""
    last = evaluations[-1]
    latencies = _latencies(evaluations)
    references = [one.performance.reference_latency_ms for one in evaluations if one.performance is not None]
    latency, reference = fmean(latencies), fmean(references) if min(references) > 0 else 0.0
    records = [dict((one.extra or {}).get("measurement", {})) for one in evaluations]
    record = report_of_workers(records[-1], latencies)
    raised = dict.fromkeys(flag for one in records for flag in one.get("flags", []))
    flags = [flag for flag in raised if flag != NOISY]  # the interval already includes the spread between workers
    record = {key: value for key, value in record.items() if key != "flags"} | ({"flags": flags} if flags else {})
    performance = Performance(
        latency_ms=latency,
        reference_latency_ms=reference,
        speedup_factor=reference / latency if reference > 0 and latency > 0 else 0.0,
    )
    return last.model_copy(update={"performance": performance, "extra": {**(last.extra or {}), "measurement": record}})


def _latencies(evaluations: Sequence[Evaluation]) -> list[float]:
    return [one.performance.latency_ms for one in evaluations if one.performance is not None]
