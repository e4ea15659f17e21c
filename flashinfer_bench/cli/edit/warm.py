"""Runs that follow one another on one resident engine: what `run --watch` judges with.

Imports, sessions and the times of references are there from the second run on. The engine stays for as long as the set
and the settings do; where one of them changes, another takes its place.
"""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator
from typing import Final

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.events import Event, JobFaulted, RunStarted
from flashinfer_bench.bench.machine import Machine
from flashinfer_bench.bench.planning.plan import Plan, make_plan
from flashinfer_bench.bench.planning.selection import select
from flashinfer_bench.bench.resident.engine import Engine
from flashinfer_bench.bench.resident.task import Task
from flashinfer_bench.data import Trace, TraceSet
from flashinfer_bench.errors import Fault, Misuse, TaskFailed

FILTERS: Final = ("definitions", "solutions", "workloads", "authors", "op_types")
"""The settings that choose what is run: an engine has no use for them."""


class WarmEngines:
    """Keeps the engine of the last run for the next one. A context manager."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._made_for: tuple[int, BenchmarkConfig] | None = None

    def __enter__(self) -> WarmEngines:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def open(self, trace_set: TraceSet, config: BenchmarkConfig) -> WarmBenchmark:
        """Return a run on the engine that is there, or on a new one where the set or the settings are others."""
        settings = config.model_copy(update=dict.fromkeys(FILTERS))
        if self._engine is None or self._made_for != (id(trace_set), settings):
            self.close()
            self._engine, self._made_for = Engine(trace_set, settings), (id(trace_set), settings)
        return WarmBenchmark(trace_set, config, self._engine)

    def close(self) -> None:
        """End the engine, with all its processes."""
        if self._engine is not None:
            self._engine.close()
        self._engine = None


class WarmBenchmark:
    """What `run` uses of a benchmark, on an engine that stays when the run is over."""

    def __init__(self, trace_set: TraceSet, config: BenchmarkConfig, engine: Engine) -> None:
        self._trace_set = trace_set
        self._config = config
        self._engine = engine

    @property
    def machine(self) -> Machine:
        """Where the jobs run."""
        return self._engine.workshop.machine

    def plan(self, *, resume: bool = False, retry_timeouts: bool = False) -> Plan:
        """Return the jobs of a run.

        Raises:
            Misuse: recorded jobs were to be left out.
        """
        if resume or retry_timeouts:
            raise Misuse("what is judged again and again leaves out no recorded job")
        asked = [item.definition for item in select(self._trace_set, self._config)]
        evaluators = self._engine.workshop.fingerprint_evaluators(asked)
        return make_plan(self._trace_set, self._config, self.machine, evaluators=evaluators)

    def run(self, plan: Plan, *, save_results: bool = True) -> Iterator[Event]:
        """Submit the plan's jobs; yields what happens as it happens. Closing the iterator cancels what is open.

        Raises:
            Fault: a verdict could not be saved.
            EngineClosed: the engine has ended.
        """
        told: queue.SimpleQueue[Event | Task] = queue.SimpleQueue()
        yield RunStarted(self.machine.devices, len(plan.jobs))
        end_telling = self._engine.subscribe(told.put)
        tasks: dict[str, Task] = {}
        faulted: set[int] = set()
        try:
            for solution in {id(job.solution): job.solution for job in plan.jobs}.values():
                uuids = [job.workload.uuid for job in plan.jobs if job.solution is solution]
                task = self._engine.submit(solution, uuids, save_results=save_results)
                tasks[task.id] = task
                task.add_done_callback(told.put)
            open_tasks = set(tasks)
            while open_tasks:
                item = told.get()
                if isinstance(item, Task):
                    open_tasks.discard(item.id)
                    _check_saved(item, faulted)
                    continue
                if isinstance(item, JobFaulted):
                    faulted.add(item.job.index)
                yield item
        finally:
            end_telling()
            for task in tasks.values():
                task.cancel()

    def reserve(self, plan: Plan) -> Plan:
        """Return the plan: no recorded job is left out, so no other run's either."""
        return plan

    def find_resumed(self, plan: Plan) -> list[Trace]:
        """Return none: no recorded job is left out."""
        del plan
        return []

    def replay(self, traces: Iterable[Trace]) -> None:
        """Refuse: an engine gives each job inputs of its own.

        Raises:
            Misuse: always.
        """
        raise Misuse(f"{len(list(traces))} recorded jobs cannot be replayed here")

    def repeat(self, times: int) -> None:
        """Refuse: an engine times a solution in one worker.

        Raises:
            Misuse: always.
        """
        raise Misuse(f"a solution cannot be timed in {times} workers here")

    def close(self) -> None:
        """Do nothing: the engine stays."""


def _check_saved(task: Task, faulted: set[int]) -> None:
    """Raise where a task ended without all its verdicts, for a reason that no event has told."""
    try:
        task.result(0)
    except TaskFailed as failure:
        if any(fault.job.index not in faulted for fault in task.faults):
            raise Fault(str(failure)) from failure
