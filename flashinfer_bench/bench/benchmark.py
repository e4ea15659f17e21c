"""A run, in one screen: plan → sessions → verdicts → traces.

Other modules decide: `plan` what is run, `machine` on which devices, `runner` how, `evaluators` whether it is right.
A fault is not a verdict. It makes no trace; it is an event, and stands in `faults`.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from flashinfer_bench.base.host import collector_paused
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.events import Event, JobFaulted, JobFinished, JobStarted, Notice, RunStarted
from flashinfer_bench.bench.planning.first_call import FirstCall
from flashinfer_bench.bench.planning.plan import Job, Plan, Skip, describe_nothing, make_plan
from flashinfer_bench.bench.planning.resume import RecordedJobs
from flashinfer_bench.bench.planning.selection import select
from flashinfer_bench.bench.progress_bar import progress_bar
from flashinfer_bench.bench.runner.environments import tell_withheld
from flashinfer_bench.bench.runner.fleet import Fleet, FleetRules, Happening, Judged
from flashinfer_bench.bench.runner.job_seeds import JobSeeds, recorded_seeds
from flashinfer_bench.bench.runner.recorded import find_resumed
from flashinfer_bench.bench.schedule import find_first_call
from flashinfer_bench.bench.workshop.given_order import GivenOrder
from flashinfer_bench.bench.workshop.recorder import TraceRecorder
from flashinfer_bench.bench.workshop.repeats import Repeats
from flashinfer_bench.bench.workshop.reserved import Reservation
from flashinfer_bench.bench.workshop.workshop import Workshop
from flashinfer_bench.data import Trace, TraceSet
from flashinfer_bench.data.sets.rereading import reread_traces
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.data.store.trace_list import kept_of
from flashinfer_bench.errors import ConfigError

REPEATING: Final = FleetRules(lambda _times: GivenOrder(), one_worker_a_job=True)
MOST_WORKERS: Final = 1000
"""Workers of one job, at most: a number above is a slip."""


class Benchmark:
    """Judges the solutions of a trace set. Usable as a context manager.

    Args:
        trace_set: what is run.
        config: how it is run; the bundled defaults where it is left out. What the set says of its own definitions
            (`tolerances.yaml`) goes below what the user says.
        cache: folder for what is built; the user's cache where it is left out.

    Raises:
        ConfigError: the configuration asks for devices that are not there, evaluators that no session could import, or
            a sandbox that cannot be had here.

    Examples:
        >>> result = Benchmark(TraceSet.from_path("flashinfer-trace")).run_all()
    """

    def __init__(
        self, trace_set: TraceSet, config: BenchmarkConfig | None = None, *, cache: Path | None = None
    ) -> None:
        self._trace_set = trace_set
        self.workshop = Workshop(trace_set, config, cache)
        self.config = self.workshop.config
        self.machine = self.workshop.machine
        self.sandbox = self.workshop.sandbox
        self._seeds = JobSeeds(self.config.seed)
        self.faults: list[JobFaulted] = []
        self._repeat = 1
        self._unsaved: dict[int, Trace] = {}
        """The traces of this object's runs that the set has in memory only, by their identity: nothing is resumed from
        them."""
        self._reservations: list[Reservation] = []

    def __enter__(self) -> Benchmark:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def get_trace_set(self) -> TraceSet:
        """Return the trace set that is run."""
        return self._trace_set

    def replay(self, traces: Iterable[Trace]) -> None:
        """Give jobs the inputs that they had when these traces were recorded."""
        run_seed, recorded = recorded_seeds(traces)
        self._seeds = JobSeeds(self.config.seed if run_seed is None else run_seed, recorded)

    def repeat(self, times: int) -> None:
        """Time each solution in so many workers, each with one workload; a trace then has their mean and its interval.

        Raises:
            ConfigError: that is no number of workers.
        """
        if not 1 <= times <= MOST_WORKERS:
            raise ConfigError(f"a job has 1 to {MOST_WORKERS} workers, not {times}")
        self._repeat = times

    def close(self) -> None:
        """Leave the cluster, where there is one; each run has ended its own processes."""
        self._release()
        self.workshop.close()

    @collector_paused()
    def plan(self, *, resume: bool = False, retry_timeouts: bool = False) -> Plan:
        """Return the jobs of a run and what is left out of it; nothing is started.

        Args:
            resume: leave out jobs that a trace of the set records unchanged, but for traces that were not to be saved.
            retry_timeouts: with `resume`, do jobs again that timed out.

        Raises:
            ConfigError: names that the set does not have, or filters that leave nothing, all of them at once; or
                evaluators from outside that cannot be used.
        """
        recorded = None
        if resume:
            recorded = RecordedJobs.from_traces(self._saved_traces(), retry_timeouts=retry_timeouts)
        asked = list(select(self._trace_set, self.config))
        evaluators = self.workshop.fingerprint_evaluators([item.definition for item in asked])
        self.workshop.survey(solution for item in asked for solution in item.solutions)
        plan = make_plan(self._trace_set, self.config, self.machine, recorded=recorded, evaluators=evaluators)
        return replace(plan, plug_in_keys=self.workshop.plug_in_keys)

    def find_resumed(self, plan: Plan) -> list[Trace]:
        """Return the recorded trace of each job that a plan with `resume` leaves out."""
        return find_resumed(self.plan(), plan, self._saved_traces()) if plan.resumed else []

    def reserve(self, plan: Plan) -> Plan:
        """Return the plan of a resumed run without the jobs that other runs of the set judge now.

        The others are reserved for the next `run`, until it ends or `close` is called.
        """
        self._release()
        by_root: dict[Path, list[Job]] = {}
        for job in plan.jobs:
            root = self._trace_set.solution_roots.get(job.solution.name) or self._trace_set.root
            if root is not None:
                by_root.setdefault(root, []).append(job)
        taken: dict[int, str] = {}
        for root, jobs in by_root.items():
            self._reservations.append(Reservation(root))
            taken |= self._reservations[-1].reserve(jobs)
        if not taken:
            return plan
        left_out = Counter(
            (job.definition.name, job.solution.name, taken[job.index]) for job in plan.jobs if job.index in taken
        )
        skips = [
            Skip(definition, solution, None, f"process {process} judges it now")
            for definition, solution, process in left_out
        ]
        left = plan.with_jobs(job for job in plan.jobs if job.index not in taken)
        return replace(left, skips=(*plan.skips, *skips))

    def run(self, plan: Plan, *, save_results: bool = True) -> Iterator[Event]:
        """Run a plan; yields what happens as it happens. Closing the iterator stops every process of the run.

        The set gets each trace in memory, before its event is yielded.

        Args:
            plan: from `plan()`.
            save_results: append each trace to the set on disk before its event is yielded.

        Raises:
            DataSetError: results are to be saved, and the set has no folder, or its folder cannot be written safely.
        """
        if save_results and not self._reservations:
            self.reserve(plan)
        try:
            yield from self._run(plan, save_results=save_results)
        finally:
            self._release()

    def _run(self, plan: Plan, *, save_results: bool) -> Iterator[Event]:
        self.faults = []
        if not plan.jobs:
            return
        seeds = self._seeds.anew()
        recorder = TraceRecorder(self.workshop, seeds)
        if save_results:
            for job in {id(job.solution): job for job in plan.jobs}.values():
                recorder.check(job.definition, job.solution)
        yield RunStarted(self.machine.devices, len(plan.jobs))
        yield from map(Notice, tell_withheld(os.environ))
        needs_triton = any(job.solution.spec.language.value == "triton" for job in plan.jobs)
        repeats = Repeats(plan.jobs, self._repeat) if self._repeat > 1 else None
        rules = make_rules(self.workshop, plan) if repeats is None else REPEATING
        with self.workshop.make_fleet(seeds, rules, needs_triton=needs_triton) as fleet:
            told = fleet.run(plan.jobs) if repeats is None else _run_repeats(fleet, repeats)
            for happening in told:
                if isinstance(happening, Judged):
                    trace = recorder.make_trace(happening.job, happening.device, happening.evaluation)
                    if save_results:
                        recorder.save(happening.job, trace)
                    else:
                        self._unsaved[id(trace)] = trace
                    self._trace_set.keep_traces([trace])
                    yield JobFinished(happening.job, trace, happening.device, happening.seconds)
                    continue
                if isinstance(happening, JobFaulted):
                    self.faults.append(happening)
                yield happening
            if repeats is not None:
                self.workshop.learn_spread(repeats.groups())

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

        It has the input's definitions, solutions and workloads, and this run's traces only; with `resume` also those
        that record the jobs that were left out, as they are on disk now. The input set gets the new traces, too. Where
        everything was skipped, a warning says why; another one tells of errors in the set's files.

        Args:
            save_results: append each trace to the set on disk the moment its job ends; a set without a folder has
                them in memory alone, and a warning says so.
            resume: leave out jobs that are already recorded, unchanged.
            dump_traces: another name of `save_results`; where it is given, it counts.
            on_event: gets each event as it happens: `JobStarted`, `JobFinished`, `JobFaulted`, `Notice` and others of
                `flashinfer_bench.bench.events`.
            progress: show a bar, by tqdm where it is installed and else by rich; None shows it in notebooks alone.

        Raises:
            ConfigError: as for `plan`. Jobs that could not be judged raise nothing: they stand in `faults`.
        """
        self._warn_of_errors()
        if resume:
            reread_traces(self._trace_set)
        is_saved = save_results if dump_traces is None else dump_traces
        plan = self.plan(resume=resume)
        if resume and is_saved:
            plan = self.reserve(plan)
        result = self._trace_set.without_traces()
        if plan.resumed:
            result.keep_traces(self.find_resumed(plan))
        elif not plan.jobs:
            warnings.warn(describe_nothing(plan), stacklevel=2)
        if is_saved and self._trace_set.root is None:
            warnings.warn("the trace set lives in memory, so its traces are not written: give it a root", stacklevel=2)
            is_saved = False
        with progress_bar(len(plan.jobs), wanted=progress) as show:
            for event in self.run(plan, save_results=is_saved):
                if isinstance(event, JobFinished):
                    result.keep_traces([event.trace])
                show(event)
                if on_event is not None:
                    on_event(event)
        return result

    def _release(self) -> None:
        for reservation in self._reservations:
            reservation.release()
        self._reservations = []

    def _saved_traces(self) -> Iterator[AnyTrace]:
        for traces in self._trace_set.traces.values():
            yield from (trace for trace in kept_of(traces) if id(trace) not in self._unsaved)

    def _warn_of_errors(self) -> None:
        """Warn where files of the set could not be read: what they hold is not run."""
        wanted = self.config.definitions
        errors = [issue for issue in self._trace_set.issues if issue.severity == "error"]
        asked = [issue for issue in errors if wanted is None or {*issue.file.parts, issue.file.stem} & set(wanted)]
        if asked:
            more = f" ({len(asked)} in all: `trace_set.issues`)" if len(asked) > 1 else ""
            warnings.warn(
                f"the trace set has errors, and what they are about is not run: {asked[0]}{more}", stacklevel=3
            )


def make_rules(workshop: Workshop, plan: Plan) -> FleetRules:
    """Return the rules of a run: modules that first calls would compile are compiled ahead, where that can be."""
    solutions = {job.solution_key: job.solution for job in plan.jobs}
    compiles = any(find_first_call(one) is FirstCall.MODULES for one in solutions.values())
    if not compiles or not workshop.may_compile_ahead():
        return FleetRules()
    return FleetRules(compiles_ahead=True)


def _run_repeats(fleet: Fleet, repeats: Repeats) -> Iterator[Happening]:
    """Run several workers of each job; yields what happens as if each job had one."""
    begun: set[int] = set()
    for happening in fleet.run(repeats.copies()):
        if isinstance(happening, Judged):
            evaluation = repeats.hear(happening.job, happening.evaluation)
            if evaluation is None:
                continue
            yield replace(happening, job=repeats.original(happening.job), evaluation=evaluation)
            fleet.remove(repeats.left_of(happening.job))
        elif isinstance(happening, JobFaulted):
            if repeats.fault(happening.job):
                yield replace(happening, job=repeats.original(happening.job))
                fleet.remove(repeats.left_of(happening.job))
        elif isinstance(happening, JobStarted):
            job = repeats.original(happening.job)
            if job.index not in begun:
                begun.add(job.index)
                yield replace(happening, job=job)
        else:
            yield happening
