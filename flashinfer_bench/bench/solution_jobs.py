"""The jobs of a submitted solution: which definition, which workloads, whether it can run here, what is recorded."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from flashinfer_bench.bench.context import HarnessContext
from flashinfer_bench.bench.planning.plan import Job, JobMaker, check_extras, prepare
from flashinfer_bench.bench.planning.resume import decide, read_fingerprint
from flashinfer_bench.bench.planning.selection import Selected
from flashinfer_bench.bench.planning.suitability import why_not_here
from flashinfer_bench.data import Solution, Trace
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.sets.latest import in_order_of_time
from flashinfer_bench.data.store.trace_lines import AnyTrace, to_trace
from flashinfer_bench.data.store.trace_list import kept_of
from flashinfer_bench.errors import ConfigError

MOST_KEPT: Final = 10_000
"""Jobs whose latest trace the engine answers from, of those that it has recorded. A line has some 6 KB."""
Recorded = dict[tuple[str, str], list[AnyTrace]]
"""Uuid of a workload and digest of a solution → traces, the latest last."""


class SolutionJobs:
    """Makes jobs of solutions that come in one by one; usable from any thread.

    Args:
        context: the trace set, the settings and the machine.
    """

    def __init__(self, context: HarnessContext) -> None:
        self._context = context
        self._makers: dict[str, JobMaker] = {}
        self._recorded: dict[str, Recorded] = {}
        """By definition, as the set has them."""
        self._own: dict[tuple[str, str], str] = {}
        """The latest lines that the engine has recorded, the oldest first."""
        self._lock = threading.RLock()

    def find(self, solution: Solution | str) -> Solution:
        """Return a solution, which may be given by its name in the set.

        Raises:
            ConfigError: the set has none of that name.
        """
        if isinstance(solution, Solution):
            return solution
        found = self._context.trace_set.get_solution(solution)
        if found is None:
            names = [one.name for listed in self._context.trace_set.solutions.values() for one in listed]
            raise ConfigError(f"the trace set has no solution {solution!r}{did_you_mean(solution, names)}")
        return found

    def make_jobs(self, solution: Solution, workloads: Sequence[str] | None) -> list[Job]:
        """Return the jobs of a solution, not numbered yet.

        Args:
            solution: what is judged.
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
        jobs = maker.jobs_of(solution)
        if workloads is None:
            return jobs
        if not workloads:
            raise ConfigError("workloads: none is asked for; None means all")
        known = [job.workload.uuid for job in jobs]
        unknown = next((uuid for uuid in workloads if uuid not in known), None)
        if unknown is not None:
            raise ConfigError(f"{name} has no workload {unknown!r}{did_you_mean(unknown, known)}")
        return [job for job in jobs if job.workload.uuid in set(workloads)]

    def find_recorded(self, jobs: Sequence[Job]) -> dict[str, Trace]:
        """Return the traces that the set has of equal jobs, by the uuid of their workload.

        A job is equal if a resumed run would not do it again; under which name a solution was judged does not matter.
        """
        found: dict[str, Trace] = {}
        for job in jobs:
            mark = (job.workload.uuid, job.fingerprint["solution"])
            with self._lock:
                traces = list(self._recorded_of(job.definition.name).get(mark, []))
                if (own := self._own.get(mark)) is not None:
                    traces.append(Trace.model_validate_json(own))
            recorded = decide(job, self._context.config, traces).trace
            if recorded is not None:
                found[job.workload.uuid] = to_trace(recorded).model_copy(update={"solution": job.solution.name})
        return found

    def keep(self, job: Job, trace: Trace) -> None:
        """Note a trace that the engine has recorded."""
        mark = (job.workload.uuid, job.fingerprint["solution"])
        with self._lock:
            self._own.pop(mark, None)
            self._own[mark] = trace.to_json()
            while len(self._own) > MOST_KEPT:
                del self._own[next(iter(self._own))]

    def _recorded_of(self, definition: str) -> Recorded:
        if definition not in self._recorded:
            known: Recorded = {}
            for trace in in_order_of_time(kept_of(self._context.trace_set.traces.get(definition, []))):
                marks = read_fingerprint(trace.evaluation) if trace.evaluation is not None else None
                if marks is not None and "solution" in marks:
                    known.setdefault((trace.workload.uuid, marks["solution"]), []).append(trace)
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
        evaluators = context.fingerprint_evaluators([definition], trace_set.definitions.values())
        return JobMaker(kept, context.config, context.machine, trace_set, evaluators)
