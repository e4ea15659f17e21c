"""`run`: plans a run, shows its progress and prints its result. The engine, `Benchmark`, judges and times."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

from flashinfer_bench.bench.benchmark import Benchmark
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.events import Event
from flashinfer_bench.bench.machine import Machine
from flashinfer_bench.bench.planning.plan import Plan
from flashinfer_bench.cli.edit.watch import keep_judging
from flashinfer_bench.cli.exit_codes import FAILED, RAN
from flashinfer_bench.cli.given.blob_issues import find_blob_issues
from flashinfer_bench.cli.given.data_errors import AskedNames, find_load_errors, find_plan_errors, take_broken_names
from flashinfer_bench.cli.given.drafts import list_draft_paths, save_draft, take_drafts
from flashinfer_bench.cli.given.replay import choose_replayed, keep_replayed, read_replay
from flashinfer_bench.cli.given.sets import describe_issues, open_trace_set
from flashinfer_bench.cli.given.settings import naming_flags, read_config
from flashinfer_bench.cli.given.tolerances import describe_tolerances
from flashinfer_bench.cli.given.typed_command import resume_command, typed_program
from flashinfer_bench.cli.screen.interrupt import one_interrupt
from flashinfer_bench.cli.screen.outcome import RunOutcome, outcome_document, render_outcome, trace_files, trace_folders
from flashinfer_bench.cli.screen.output import write_err, write_out, write_problems
from flashinfer_bench.cli.screen.plan import (
    describe_odd_keys,
    describe_plan,
    describe_resume,
    describe_skips,
    plan_document,
    render_plan,
)
from flashinfer_bench.cli.screen.progress import RunProgress, choose_progress
from flashinfer_bench.cli.screen.tables import available_width, count
from flashinfer_bench.cli.shared_flags import PROGRAM
from flashinfer_bench.data import LoadIssue, Trace, TraceSet
from flashinfer_bench.errors import DataSetError, Fault, Misuse

BenchmarkFactory = Callable[[TraceSet, BenchmarkConfig], Benchmark]


def execute(args: argparse.Namespace, *, make_engine: BenchmarkFactory = Benchmark) -> int:
    """Run the jobs that the flags ask for, or print the plan."""
    if args.replay and args.resume:
        raise Misuse("--replay judges what is recorded, which --resume leaves out: give one of them")
    if args.retry_timeouts and not args.resume:
        raise Misuse("--retry-timeouts changes what --resume leaves out: give --resume too")
    if args.watch and (args.replay or args.resume or args.dry_run or not list_draft_paths(args)):
        raise Misuse("--watch judges a file again when it is saved: --solution FILE, without --resume or --dry-run")
    read_config(args)  # what is wrong in flags and file is told before the set is read
    if args.watch:
        return _watch(args, make_engine)
    return _judge(args, open_trace_set(args), make_engine)


def _watch(args: argparse.Namespace, make_engine: BenchmarkFactory) -> int:
    """Judge each time a draft is saved, with sessions that stay; return the exit code of the last verdicts."""
    kept: list[tuple[TraceSet, Benchmark]] = []

    def reopen(trace_set: TraceSet, config: BenchmarkConfig) -> Benchmark:
        if kept and (kept[0][0] is not trace_set or kept[0][1].config != config):
            kept.pop()[1].close()
        if not kept:
            kept.append((trace_set, Benchmark(trace_set, config, keeps_sessions=True)))
        return kept[0][1]

    stays = make_engine is Benchmark and args.repeat == 1
    try:
        return keep_judging(
            args,
            lambda given, trace_set: _judge(given, trace_set, reopen if stays else make_engine, closes=not stays),
        )
    finally:
        for _, engine in kept:
            engine.close()


def _judge(args: argparse.Namespace, trace_set: TraceSet, make_engine: BenchmarkFactory, *, closes: bool = True) -> int:
    """Run the jobs that the flags ask for, or print the plan; return the exit code."""
    drafts = take_drafts(args, trace_set)
    left = _leave_out_unread(args, trace_set)
    config = read_config(args).for_set(trace_set)
    engine, plan = _open(args, trace_set, config, make_engine)
    asked = left if left is not None else AskedNames.of(config)
    errors = [*find_load_errors(trace_set, asked), *find_plan_errors(trace_set, plan)]
    outcome = RunOutcome(plan, errors=[_describe_error(issue) for issue in errors])
    if args.strict and outcome.is_broken:
        raise Fault("\n".join(["--strict: nothing was run:", *outcome.errors, *describe_skips(plan.skips)]))
    if args.dry_run:
        _tell_plan(args, outcome, trace_set, config, engine.machine)
        engine.close()
        return FAILED if outcome.is_broken and not args.allow_broken else RAN
    outcome.resumed = engine.find_resumed(plan)
    _tell_plan_errors(outcome, trace_set)
    if not args.quiet:
        _announce(plan, engine.machine, trace_set)
    if not args.no_save_results:
        for draft in drafts:
            file = save_draft(draft, trace_set)
            if not args.quiet:
                write_err(f"draft: {file}")
    progress = choose_progress(sys.stderr, quiet=args.quiet, limit_s=config.timeout_seconds)
    _run(engine, outcome, progress, save_results=not args.no_save_results, closes=closes)
    _tell_result(args, outcome, trace_set)
    return outcome.exit_code(require_passed=args.require_passed, allow_broken=args.allow_broken)


def _leave_out_unread(args: argparse.Namespace, trace_set: TraceSet) -> AskedNames | None:
    """Take names out of the flags whose files cannot be read; return whose errors are told then.

    None where every name that was asked for could be read.

    Raises:
        Fault: no other name was asked for.
    """
    names, unread = take_broken_names(trace_set, AskedNames.of(read_config(args)))
    if not unread:
        return None
    if [] in (names.definitions, names.solutions):
        raise Fault(f"nothing to run: {', '.join(unread)} cannot be read; `{PROGRAM} validate` says why")
    for field in ("definitions", "solutions"):
        if getattr(names, field) is not None:
            setattr(args, field, getattr(names, field))
    return replace(names, definitions=None, solutions=None)


def _open(
    args: argparse.Namespace, trace_set: TraceSet, config: BenchmarkConfig, make_engine: BenchmarkFactory
) -> tuple[Benchmark, Plan]:
    """Return the engine and the jobs that the flags choose. What is replayed is not saved again."""
    replayed = read_replay(args.replay) if args.replay else []
    with naming_flags(args):
        engine = make_engine(trace_set, choose_replayed(config, replayed) if replayed else config)
        plan = engine.plan(resume=args.resume, retry_timeouts=args.retry_timeouts)
    if args.resume and not (args.dry_run or args.no_save_results):
        plan = engine.reserve(plan)
    if args.repeat != 1:
        engine.repeat(args.repeat)
    if replayed:
        engine.replay(replayed)
        plan, args.no_save_results = keep_replayed(plan, replayed), True
    return engine, plan


def _tell_plan(
    args: argparse.Namespace, outcome: RunOutcome, trace_set: TraceSet, config: BenchmarkConfig, machine: Machine
) -> None:
    """Write the plan to stdout, and what is odd or wrong in it to stderr."""
    plan = outcome.plan
    for line in (*describe_tolerances(trace_set), *describe_odd_keys(plan), *_describe_blobs(plan, trace_set)):
        write_err(line)
    write_out(_render_dry_run(args, plan, config, machine))
    _tell_plan_errors(outcome, trace_set)


def _describe_error(issue: LoadIssue) -> str:
    return " ".join(str(issue).split("\n"))


def _tell_plan_errors(outcome: RunOutcome, trace_set: TraceSet) -> None:
    """Tell the errors that opening the set has not told."""
    told = {_describe_error(issue) for issue in trace_set.issues}
    for line in outcome.errors:
        if line not in told:
            write_err(line)


def _describe_blobs(plan: Plan, trace_set: TraceSet) -> list[str]:
    workloads = [Trace(definition=job.definition.name, workload=job.workload) for job in plan.jobs]
    warned = (issue for issue in find_blob_issues(trace_set, workloads) if issue.severity == "warning")
    return describe_issues(list(warned))


def _announce(plan: Plan, machine: Machine, trace_set: TraceSet) -> None:
    for line in (*describe_tolerances(trace_set), *describe_odd_keys(plan)):
        write_err(line)
    for line in (*describe_skips(plan.skips), *describe_resume(plan), describe_plan(plan, machine)):
        write_err(line)


def _run(
    engine: Benchmark, outcome: RunOutcome, progress: RunProgress, *, save_results: bool, closes: bool = True
) -> None:
    """Run the plan and keep its events in the outcome. In the end the engine is closed, unless its sessions stay."""
    started = time.monotonic()
    events: Iterator[Event] = iter(())
    with one_interrupt():
        try:
            with progress:
                events = engine.run(outcome.plan, save_results=save_results)
                for event in events:
                    outcome.observe(event)
                    progress.show(event)
        except KeyboardInterrupt:
            outcome.is_interrupted = True
        except Fault as fault:
            write_problems(str(fault))
        except DataSetError as error:  # told before the first job
            raise DataSetError(f"{error}; --no-save-results judges without saving") from error
        finally:
            if isinstance(events, Generator):
                events.close()
            if closes:
                engine.close()
            outcome.seconds = time.monotonic() - started


def _render_dry_run(args: argparse.Namespace, plan: Plan, config: BenchmarkConfig, machine: Machine) -> str:
    if args.format == "json":
        return _to_json(plan_document(plan, config, machine))
    return render_plan(plan, config, machine, available_width(sys.stdout))


def _tell_result(args: argparse.Namespace, outcome: RunOutcome, trace_set: TraceSet) -> None:
    """Write the result to stdout. Write to stderr where it was saved and how to continue."""
    is_saved = not args.no_save_results
    if args.format == "json":
        write_out(_to_json(outcome_document(outcome, trace_files(outcome, trace_set) if is_saved else [])))
    else:
        write_out(render_outcome(outcome, available_width(sys.stdout)))
    if outcome.is_interrupted:
        more = ", and winners to confirm" if outcome.to_confirm else ""
        write_err(f"interrupted: {outcome.left} of {count(len(outcome.plan.jobs), 'job')} left{more}")
    if not is_saved:
        write_err("nothing was saved (--no-save-results)")
        return
    for folder in trace_folders(outcome, trace_set):
        write_err(f"traces: {folder}")
    if outcome.left or outcome.to_confirm:
        write_err(f"to go on: {resume_command(typed_program(sys.argv[0], sys.orig_argv[0]), args.argv)}")


def _to_json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, allow_nan=False) + "\n"
