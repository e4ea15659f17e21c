"""Runs a session of `perf`: cases become entries of a trace set, `Benchmark` judges and times cases, and verdicts
become lines and rows.

A case is a definition, a workload, and one solution per backend. Cases with equal settings run together. A case is
reported when all its backends are done.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import yaml

from flashinfer_bench.base.files.held_folders import temporary_folder
from flashinfer_bench.base.files.locks import USUAL_LIMIT_S, locked_folder
from flashinfer_bench.bench.benchmark import Benchmark
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.evaluator_record import MEASURE_REJECTED
from flashinfer_bench.bench.events import JobFaulted, JobFinished, Notice
from flashinfer_bench.bench.machine import discover_devices
from flashinfer_bench.bench.runner.sandbox import find_sandbox
from flashinfer_bench.bench.tolerances import read_tolerances
from flashinfer_bench.cli.output import INTERRUPTED, one_interrupt, write_err
from flashinfer_bench.cli.perf.ahead import compile_ahead
from flashinfer_bench.cli.perf.cases import Request, read_requests
from flashinfer_bench.cli.perf.flags import split_session
from flashinfer_bench.cli.perf.results import Results, make_judged, make_row
from flashinfer_bench.data import Trace, TraceSet
from flashinfer_bench.data.store.jsonl import write_whole
from flashinfer_bench.data.store.layout import TOLERANCES_FILE
from flashinfer_bench.env import cache_root
from flashinfer_bench.errors import DataSetError, UsageError
from flashinfer_bench.routines.case.generated_entry import write_entry
from flashinfer_bench.routines.case.support import find_platform

PRECISION: Final = 0.005
"""Target relative half width of a time's interval. The target is small because a case has a single trial."""
TOLERANCES_HEAD: Final = (
    "# How the definitions of this set are judged, beside what `flashinfer-bench config show` tells.\n"
)


def run_session(argv: Sequence[str]) -> int:
    """Run the cases of the flags or of the testlist. The exit code is 0 if all cases ran and all rows were written.

    Raises:
        UsageError: flags or testlist cannot be used. No case was run.
    """
    session, rest = split_session(argv)
    if session.resume and session.save_trace_set is None:
        raise UsageError("--resume needs the recorded cases: name their folder with --save_trace_set DIR")
    if session.retry_timeouts and not session.resume:
        raise UsageError("--retry_timeouts changes which cases --resume skips: give --resume too")
    devices = discover_devices(session.devices or None)
    requests = read_requests(rest, session.testlist, find_platform(devices[0].name, devices[0].capability))
    if any(request.runs_as_ranks for request in requests):
        if len(requests) > 1 or len(requests[0].backends) > 1:
            raise UsageError(
                "ranks of mpirun time one case of moe_a2a_dispatch_combine: --backends moe_a2a, no testlist"
            )
        from flashinfer_bench.cli.perf.ranks import run_ranks  # imports torch, which no other path here needs

        return run_ranks(requests[0], session)
    if session.save_trace_set:
        read_tolerances(Path(session.save_trace_set))  # a wrong file of tolerances raises before results are opened
    results = Results(requests, session)
    with ExitStack() as stack:
        root = Path(session.save_trace_set or stack.enter_context(temporary_folder("perf")))
        if session.no_empty_columns:
            stack.callback(results.drop_empty_columns)
        for request in requests:
            if not request.backends:
                results.print_case(request)
        kept = [one for one in requests if one.entry is not None and (one.backends or session.save_trace_set)]
        for request in kept:
            write_entry(root, request.entry)
        if session.save_trace_set:
            write_tolerances(root, kept)
        reason = "it was not run"
        stack.enter_context(one_interrupt())
        try:
            for_sandbox = find_sandbox(session.sandbox, cache_root(os.environ)).is_sandboxed
            # A sandboxed worker cannot share compiled kernels, so the next case would compile the same kernels again.
            if session.jit_jobs is not None or session.testlist is not None or for_sandbox:
                compile_ahead(requests, root, devices, jobs=session.jit_jobs, for_sandbox=for_sandbox)
            for group in in_groups(requests):
                _run_group(results, group, session, root)
        except KeyboardInterrupt:
            reason = "interrupted"
            write_err(reason)
            return INTERRUPTED
        except BaseException as error:
            reason = f"the session ended: {error}"
            raise
        finally:
            results.finish(reason)
    return results.exit_code


def write_tolerances(root: Path, requests: Sequence[Request]) -> None:
    """Write the tolerances of cases, and keep the tolerances of other definitions in the file. A lock allows only one
    writer at a time.

    Raises:
        ConfigError: the existing file cannot be used.
        DataSetError: the file cannot be written.
    """
    own = {one.definition: asdict(one.case.check) for one in requests}
    path = root / TOLERANCES_FILE
    try:
        root.mkdir(parents=True, exist_ok=True)
        with locked_folder(root, USUAL_LIMIT_S):
            text = yaml.safe_dump({**read_tolerances(root), **own}, sort_keys=True)
            write_whole(path, TOLERANCES_HEAD + text, root=root)
    except OSError as error:
        raise DataSetError(f"{path}: cannot be written: {error}") from error


def in_groups(requests: Sequence[Request]) -> list[list[Request]]:
    """Group the requests into runs of the engine. A group has equal settings and different definitions."""
    groups: dict[object, list[Request]] = {}
    seen: Counter[object] = Counter()
    for request in requests:
        if request.backends:
            settings = request.args.random_seed, request.args.use_cuda_events, request.args.no_cuda_graph
            seen[settings, request.definition] += 1
            groups.setdefault((settings, seen[settings, request.definition]), []).append(request)
    return list(groups.values())


def _run_group(results: Results, group: Sequence[Request], session: Namespace, root: Path) -> None:
    asked = [(one, name, one.definition, one.entry.solutions[name].name) for one in group for name in one.backends]

    def put(definition: str, solution: str | None, result: Any, device: str | None = None) -> None:
        for request, backend, *names in asked:
            if definition == names[0] and solution in (None, names[1]):
                if isinstance(result, str):
                    results.put(request, make_row(request, backend, "failed", result))
                else:
                    results.put(request, make_judged(request, backend, result, device))

    with Benchmark(make_trace_set(group, root, is_resumed=session.resume), make_config(group, session)) as engine:
        plan = engine.plan(resume=session.resume, retry_timeouts=session.retry_timeouts)
        for trace in engine.find_resumed(plan):
            put(trace.definition, trace.solution, trace.evaluation)
        for skip in plan.skips:
            put(skip.definition, skip.solution, skip.reason)
        events: Any = engine.run(plan, save_results=session.save_trace_set is not None)
        with closing(events):
            for event in events:
                if isinstance(event, Notice):
                    write_err(event.message)
                elif isinstance(event, JobFinished):
                    put(event.trace.definition, event.trace.solution, event.trace.evaluation, event.device.name)
                elif isinstance(event, JobFaulted):
                    put(event.job.definition.name, event.job.solution.name, event.message)


def make_trace_set(group: Sequence[Request], root: Path, *, is_resumed: bool) -> TraceSet:
    """Return a trace set of a group's cases, in order. A resumed session adds the recorded verdicts of the cases."""
    recorded = TraceSet.from_path(root).traces if is_resumed else {}
    made = {request.definition: request.entry for request in group}
    return TraceSet(
        root=root,
        definitions={name: one.definition for name, one in made.items()},
        solutions={one.definition: [one.entry.solutions[backend] for backend in one.backends] for one in group},
        workloads={name: [Trace(definition=name, workload=one.workload)] for name, one in made.items()},
        traces={name: recorded.get(name, []) for name in made},
    )


def make_config(group: Sequence[Request], session: Namespace) -> BenchmarkConfig:
    """Return the configuration of one run of the engine."""
    sections = {}
    for request in group:
        args = request.args
        sections[request.definition] = {
            **asdict(request.case.check),
            "warmup_runs": args.dry_run_iters,
            "iterations": args.num_iters,
            "extra": {MEASURE_REJECTED: True} if not args.refcheck or args.allow_output_mismatch else {},
        }
    first = group[0].args
    chosen: dict[str, Any] = {"devices": session.devices} if session.devices else {}
    chosen |= {"clock": "cuda_events"} if first.use_cuda_events else {}
    chosen |= {"cuda_graphs": False} if first.no_cuda_graph else {}
    return BenchmarkConfig.default(
        definition_config=sections,
        num_trials=1,
        precision=PRECISION,
        profile_baseline=False,
        confirm=False,
        library_calls="allow",
        seed=first.random_seed,
        timeout_seconds=session.timeout,
        sandbox=session.sandbox,
        keep_samples=session.json_path is not None or (session.output_path or "").endswith(".jsonl"),
        **chosen,
    )
