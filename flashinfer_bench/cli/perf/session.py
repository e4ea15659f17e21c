"""Runs a session of `perf`: `Benchmark` judges and times its cases, and the verdicts become lines and rows."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from flashinfer_bench.base.files.held_folders import temporary_folder
from flashinfer_bench.bench.benchmark import Benchmark
from flashinfer_bench.bench.config import BenchmarkConfig, describe_problems
from flashinfer_bench.bench.evaluator_record import MEASURE_REJECTED
from flashinfer_bench.bench.events import Event, JobFaulted, JobFinished, Notice
from flashinfer_bench.bench.machine import Device, discover_devices
from flashinfer_bench.bench.planning.plan import Plan
from flashinfer_bench.bench.runner.sandbox import find_sandbox
from flashinfer_bench.bench.tolerances import read_tolerances
from flashinfer_bench.cli.exit_codes import INTERRUPTED
from flashinfer_bench.cli.output import one_interrupt, write_err
from flashinfer_bench.cli.perf.ahead import AheadCall, AheadSite, compile_ahead, list_calls, usual_parallel
from flashinfer_bench.cli.perf.board import Board
from flashinfer_bench.cli.perf.cases import Request, in_groups, read_requests
from flashinfer_bench.cli.perf.files import ResultFiles, check_paths
from flashinfer_bench.cli.perf.flags import split_session
from flashinfer_bench.cli.perf.ranks import run_ranks
from flashinfer_bench.cli.perf.rows import make_failed, make_row
from flashinfer_bench.cli.perf.saved import write_tolerances
from flashinfer_bench.cli.progress import RunProgress
from flashinfer_bench.cli.render import count, format_duration
from flashinfer_bench.data import Trace, TraceSet
from flashinfer_bench.env import cache_root
from flashinfer_bench.errors import ConfigError, Misuse
from flashinfer_bench.report.verdict import to_one_line
from flashinfer_bench.routines.case.materials import write_material
from flashinfer_bench.routines.case.support import find_platform

PRECISION: Final = 0.005
"""Share of its time to which a case is to be known: it has one trial, and its only reading of a time is that one's."""


def run_session(argv: Sequence[str], *, make_engine: Callable[..., Any] = Benchmark) -> int:
    """Run the cases of the flags or of the testlist. The exit code is 0 if all of them ran and were written.

    Raises:
        Misuse: flags or testlist cannot be used. Nothing was run.
    """
    session, rest = split_session(argv)
    if session.resume and session.save_trace_set is None:
        raise Misuse("--resume looks for what is recorded: say where with --save_trace_set DIR")
    if session.retry_timeouts and not session.resume:
        raise Misuse("--retry_timeouts changes what --resume leaves out: give --resume too")
    check_paths({f"--{name}": getattr(session, name) for name in ("testlist", "output_path", "json_path")})
    devices = discover_devices(session.devices or None)
    device = devices[0]
    place = find_platform(device.name, device.capability)
    requests = read_requests(rest, session.testlist, place)
    refuse_settings(requests, session)
    ranked = [request for request in requests if request.ranked]
    if ranked:
        if len(requests) > 1 or requests[0].backends:
            raise Misuse("ranks of mpirun time one case of moe_a2a_dispatch_combine: --backends moe_a2a, no testlist")
        return run_ranks(requests[0], session, place)
    if session.save_trace_set:
        read_tolerances(Path(session.save_trace_set))  # raises before any file is begun, if they cannot be used
    files = ResultFiles(session.output_path, session.json_path, place)
    board = Board(requests, files, place)
    with ExitStack() as stack:
        root = session.save_trace_set or stack.enter_context(temporary_folder("perf"))
        board.begin()
        kept = [request for request in requests if request.backends or session.save_trace_set]
        for request in kept:
            if request.material is not None:
                write_material(Path(root), request.material)
        if session.save_trace_set:
            write_tolerances(Path(root), kept)
        try:
            return _run_all(board, session, Path(root), devices, make_engine=make_engine)
        finally:
            if session.no_empty_columns:
                files.drop_empty_columns()


def _compile_kernels(
    requests: Sequence[Request], session: argparse.Namespace, root: Path, devices: Sequence[Device]
) -> None:
    """Compile the library's kernels before anything is timed, where that saves time or --jit_jobs asks for it."""
    calls = list_calls(requests)
    for_walls = find_sandbox(session.sandbox, cache_root(os.environ)).has_walls
    # A worker with walls keeps what it compiles to itself, and the next case would compile it once more.
    is_worth_it = session.testlist is not None or (for_walls and devices[0].kind == "cuda")
    parallel = session.jit_jobs if session.jit_jobs is not None else usual_parallel() * is_worth_it
    if not calls or parallel <= 0:
        return
    started = time.monotonic()

    def tell(done: int, call: AheadCall, problem: str) -> None:
        seconds = format_duration(time.monotonic() - started)
        failed = f", which failed: {to_one_line(problem)}" if problem else ""
        write_err(f"compiling ahead: {done} of {len(calls)} after {seconds}, the latest {call.solution.name}{failed}")

    write_err(f"compiling ahead: {count(len(calls), 'solution')}, {min(parallel, len(calls))} at once")
    done = compile_ahead(calls, AheadSite(root, devices, for_walls), parallel=parallel, tell=tell)
    took = time.monotonic() - started
    write_err(f"compiled ahead: {done} of {count(len(calls), 'solution')} in {format_duration(took)}")


def _run_all(
    board: Board,
    session: argparse.Namespace,
    root: Path,
    devices: Sequence[Device],
    *,
    make_engine: Callable[..., Any],
) -> int:
    """Compile ahead, then run all cases. Cases of equal settings run together."""
    reason = "it was not run"
    with one_interrupt():
        try:
            _compile_kernels(board.requests, session, root, devices)
            for group in in_groups(board.requests, _settings_key):
                _run_group(board, group, session, root=root, make_engine=make_engine)
        except KeyboardInterrupt:
            board.finish("interrupted")
            write_err("interrupted")
            return INTERRUPTED
        except BaseException as error:
            reason = f"the session ended: {error}"
            raise
        finally:
            board.finish(reason)
    return board.exit_code


def _settings_key(request: Request) -> tuple[Any, ...]:
    """Return the settings that a run of the engine has once."""
    return (request.args.random_seed, bool(request.args.use_cuda_events), bool(request.args.no_cuda_graph))


def _run_group(
    board: Board, group: list[Request], session: argparse.Namespace, *, root: Path, make_engine: Callable[..., Any]
) -> None:
    config = make_config(group, session)
    trace_set = make_trace_set(group, root, is_resumed=session.resume, needs_samples=config.keep_samples)
    engine = make_engine(trace_set, config)
    by_name = {request.material.definition.name: request for request in group if request.material is not None}
    plan: Plan = engine.plan(resume=session.resume, retry_timeouts=session.retry_timeouts)
    for trace in engine.find_resumed(plan):
        request, evaluation = by_name[trace.definition], trace.evaluation
        assert evaluation is not None  # each recorded trace has a verdict
        backend = _backend_of(request, trace.solution or "")
        board.put(request, make_row(request, backend, evaluation, device=evaluation.environment.hardware))
    for skip in plan.skips:
        request = by_name[skip.definition]
        for backend in request.backends if skip.solution is None else [_backend_of(request, skip.solution)]:
            board.put(request, make_failed(request, backend, skip.reason, board.place))
    events: Iterator[Event] = engine.run(plan, save_results=session.save_trace_set is not None)
    try:
        with RunProgress(beats_only=True) as progress:
            for event in events:
                progress.show(event)
                _take(board, by_name, event)
    finally:
        if isinstance(events, Generator):
            events.close()
        engine.close()


def _take(board: Board, by_name: dict[str, Request], event: Event) -> None:
    if isinstance(event, Notice):
        write_err(event.message)
    elif isinstance(event, JobFinished) and event.trace.evaluation is not None:
        request = by_name[event.job.definition.name]
        backend = _backend_of(request, event.job.solution.name)
        board.put(request, make_row(request, backend, event.trace.evaluation, device=event.device.name))
    elif isinstance(event, JobFaulted):
        request = by_name[event.job.definition.name]
        backend = _backend_of(request, event.job.solution.name)
        board.put(request, make_failed(request, backend, event.message, board.place))


def make_trace_set(group: Sequence[Request], root: Path, *, is_resumed: bool, needs_samples: bool = False) -> TraceSet:
    """Return the trace set of a group's cases, in their order. In a resumed session it holds their recorded verdicts.

    Where samples are needed, a verdict without samples does not count as recorded.
    """
    materials = [request.material for request in group if request.material is not None]
    recorded = TraceSet.from_path(root).traces if is_resumed else {}
    if needs_samples:
        recorded = {name: [trace for trace in traces if not _lacks_samples(trace)] for name, traces in recorded.items()}
    return TraceSet(
        root=root,
        definitions={item.definition.name: item.definition for item in materials},
        solutions={
            request.material.definition.name: [request.material.solutions[name] for name in request.backends]
            for request in group
            if request.material is not None
        },
        workloads={
            item.definition.name: [Trace(definition=item.definition.name, workload=item.workload)] for item in materials
        },
        traces={item.definition.name: recorded.get(item.definition.name, []) for item in materials},
    )


def refuse_settings(requests: Sequence[Request], session: argparse.Namespace) -> None:
    """Give each case whose settings are out of range a problem, so that the others run.

    Raises:
        ConfigError: it is no line of a testlist.
    """
    for request in requests:
        if request.material is None or not request.backends:
            continue
        try:
            make_config([request], session)
        except ConfigError as error:
            if session.testlist is None:
                raise
            request.problem, request.backends = to_one_line(str(error)), []


def make_config(group: Sequence[Request], session: argparse.Namespace) -> BenchmarkConfig:
    """Return the configuration of one run of the engine.

    Raises:
        ConfigError: a value is out of range.
    """
    sections = {}
    for request in group:
        assert request.material is not None  # a group has only cases that can run
        assert request.case is not None
        args, judged = request.args, request.case.check.settings()
        times_all = not args.refcheck or args.allow_output_mismatch
        sections[request.material.definition.name] = {
            **judged,
            "warmup_runs": args.dry_run_iters,
            "iterations": args.num_iters,
            "extra": {**judged["extra"], **({MEASURE_REJECTED: True} if times_all else {})},
        }
    first = group[0].args
    chosen: dict[str, Any] = {"devices": session.devices} if session.devices else {}
    chosen |= {"clock": "cuda_events"} if first.use_cuda_events else {}
    chosen |= {"cuda_graphs": False} if first.no_cuda_graph else {}
    try:
        return BenchmarkConfig.default(
            definition_config=sections,
            num_trials=1,
            precision=PRECISION,
            profile_baseline=False,
            seed=first.random_seed,
            timeout_seconds=session.timeout,
            sandbox=session.sandbox,
            keep_samples=session.json_path is not None or (session.output_path or "").endswith(".jsonl"),
            **chosen,
        )
    except ValidationError as error:
        raise ConfigError("\n".join(describe_problems(error))) from None


def _backend_of(request: Request, solution: str) -> str:
    assert request.material is not None  # its solutions ran
    return next(name for name, item in request.material.solutions.items() if item.name == solution)


def _lacks_samples(trace: Trace) -> bool:
    record = (trace.evaluation.extra or {}).get("measurement") if trace.evaluation is not None else None
    return isinstance(record, Mapping) and "samples_ns" not in record
