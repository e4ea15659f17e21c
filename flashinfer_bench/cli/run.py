"""`run`: plans a run, shows its progress and prints its result. The engine, `Benchmark`, judges and times."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING

from flashinfer_bench.cli.args import choose_recorded, describe_issue, keep_recorded, open_trace_set, read_recorded
from flashinfer_bench.cli.drafts import list_draft_paths, save_draft, take_drafts
from flashinfer_bench.cli.exit_codes import FAILED, RAN
from flashinfer_bench.cli.output import one_interrupt, write_err, write_json, write_out, write_problems
from flashinfer_bench.cli.parser import PROGRAM, Parser, add_format, add_local, typed_program, whole_number
from flashinfer_bench.cli.render import available_width, count
from flashinfer_bench.cli.settings import add_selection, add_settings, describe_tolerances, naming_flags, read_config
from flashinfer_bench.data import LoadIssue, TraceSet
from flashinfer_bench.data.check import Asked, find_input_issues, find_reference_issues, parts_below
from flashinfer_bench.data.store.layout import DEFINITIONS, SOLUTIONS, TRACES, path_part
from flashinfer_bench.errors import DataSetError, Fault, Misuse

if TYPE_CHECKING:  # the help does not wait for the engine
    from flashinfer_bench.bench.benchmark import Benchmark
    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.bench.events import Event
    from flashinfer_bench.bench.planning.plan import Plan
    from flashinfer_bench.cli.outcome import RunOutcome
    from flashinfer_bench.cli.progress import RunProgress

    EngineFactory = Callable[[TraceSet, BenchmarkConfig], Benchmark]


def declare_run(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Judge and time the chosen solutions on every workload of their definitions; record each verdict.",
        usage="%(prog)s SET [--solution FILE] [flags]",
        example=f"{PROGRAM} run --local flashinfer-trace --definitions gemm_n128_k4096 --iterations 20",
        execute=execute,
    )
    add_local(parser)
    add_selection(parser)
    drafts = parser.add_argument_group(
        "a solution that you edit", "--solution FILE.py, FILE.cu, FILE.cpp, FOLDER or PACKED.json judges what is in it"
    )
    drafts.add_argument("--entry", metavar="NAME", help="its entry function, or FILE::FUNCTION (default: run)")
    drafts.add_argument("--language", metavar="L", help="its language (default: told by its ending and imports)")
    drafts.add_argument("--watch", action="store_true", help="judge again each time it is saved; Ctrl-C ends")
    add_settings(parser)
    results = parser.add_argument_group("results")
    results.add_argument("--resume", action="store_true", help="skip what is recorded and unchanged")
    results.add_argument("--retry-timeouts", action="store_true", help="with --resume: run recorded TIMEOUTs again")
    saving = results.add_mutually_exclusive_group()
    saving.add_argument("--save-results", action="store_true", help="append each trace to the set: done anyway")
    saving.add_argument("--no-save-results", action="store_true", help="write no traces")
    repeat = "time each solution in N workers on each workload, in turn with the others (default: 1)"
    results.add_argument("--repeat", type=whole_number, default=1, metavar="N", help=repeat)
    results.add_argument("--replay", metavar="TRACE", help="judge again what FILE.jsonl[:LINE] records, on its inputs")
    results.add_argument("--dry-run", action="store_true", help="print the plan and run nothing")
    results.add_argument("--require-passed", action="store_true", help="exit with 1 unless every job passed")
    broken = results.add_mutually_exclusive_group()
    broken.add_argument("--strict", action="store_true", help="run nothing if a part of what was asked for is broken")
    broken.add_argument("--allow-broken", action="store_true", help="report broken entries but exit with 0")
    add_format(results)
    results.add_argument("--quiet", action="store_true", help="no progress; only errors and the result")


def execute(args: argparse.Namespace) -> int:
    """Run the jobs that the flags ask for, or print the plan."""
    if args.replay and args.resume:
        raise Misuse("--replay judges what is recorded, which --resume leaves out: give one of them")
    if args.retry_timeouts and not args.resume:
        raise Misuse("--retry-timeouts changes what --resume leaves out: give --resume too")
    if args.watch and (args.replay or args.resume or args.dry_run or not list_draft_paths(args)):
        raise Misuse("--watch judges a file again when it is saved: --solution FILE, without --resume or --dry-run")
    read_config(args)  # what is wrong in flags and file is reported before the set is read
    if args.watch:
        return _watch(args)
    from flashinfer_bench.bench.benchmark import Benchmark

    return _judge(args, open_trace_set(args), Benchmark)


def _watch(args: argparse.Namespace) -> int:
    """Judge each time a draft is saved, with sessions that stay; return the exit code of the last verdicts."""
    from flashinfer_bench.bench.benchmark import Benchmark
    from flashinfer_bench.cli.edit.watch import keep_judging

    kept: list[tuple[TraceSet, Benchmark]] = []

    def reopen(trace_set: TraceSet, config: BenchmarkConfig) -> Benchmark:
        if kept and (kept[0][0] is not trace_set or kept[0][1].config != config):
            kept.pop()[1].close()
        if not kept:
            kept.append((trace_set, Benchmark(trace_set, config, keeps_sessions=True)))
        return kept[0][1]

    stays = args.repeat == 1
    try:
        return keep_judging(
            args,
            lambda given, trace_set: _judge(given, trace_set, reopen if stays else Benchmark, closes=not stays),
        )
    finally:
        for _, engine in kept:
            engine.close()


def _judge(args: argparse.Namespace, trace_set: TraceSet, make_engine: EngineFactory, *, closes: bool = True) -> int:
    """Run the jobs that the flags ask for, or print the plan; return the exit code."""
    from flashinfer_bench.cli.outcome import RunOutcome, describe_odd_keys, describe_plan, describe_skips
    from flashinfer_bench.cli.progress import RunProgress

    drafts = take_drafts(args, trace_set)
    asked = _leave_out_unread(args, trace_set)
    config = read_config(args).for_set(trace_set)
    engine, plan = _open(args, trace_set, config, make_engine)
    found = _find_issues(trace_set, plan)
    roots = [root / TRACES for root in trace_set.roots]  # recorded traces are never asked for
    about = [issue for issue in trace_set.issues if asked.is_about(issue, trace_set)]
    told = [one for one in about if not any(map(one.file.is_relative_to, roots))]
    errors = [issue for issue in [*told, *found] if issue.severity == "error"]
    outcome = RunOutcome(plan, errors=list(map(describe_issue, errors)))
    skips = describe_skips(plan.skips)
    if args.strict and outcome.is_broken:
        raise Fault("\n".join(["--strict: nothing was run:", *outcome.errors, *skips]))
    notes = [*describe_tolerances(trace_set), *describe_odd_keys(plan)]
    if args.dry_run:
        write_err(*notes)
        _tell_plan(args, plan, config, engine)
        write_err(*map(describe_issue, found))
        engine.close()
        return FAILED if outcome.is_broken and not args.allow_broken else RAN
    outcome.resumed = engine.find_resumed(plan)
    jobs, *resumed = describe_plan(plan, engine.machine)
    saved = [] if args.no_save_results else [f"draft: {save_draft(draft, trace_set)}" for draft in drafts]
    write_err(*(describe_issue(issue) for issue in found if issue.severity == "error"))
    if not args.quiet:
        write_err(*notes, *skips, *resumed, jobs, *saved)
    progress = RunProgress(quiet=args.quiet, limit_s=config.timeout_seconds)
    _run(engine, outcome, progress, save_results=not args.no_save_results, closes=closes)
    _tell_result(args, outcome, trace_set)
    return outcome.exit_code(require_passed=args.require_passed, allow_broken=args.allow_broken)


def _leave_out_unread(args: argparse.Namespace, trace_set: TraceSet) -> Asked:
    """Take names out of the flags whose files cannot be read; return what was asked for.

    Raises:
        Fault: no other name was asked for.
    """
    broken = [parts_below(issue.file, trace_set.roots) for issue in trace_set.issues if issue.severity == "error"]
    solutions = [item.name for group in trace_set.solutions.values() for item in group]
    config = read_config(args)
    given = {name: getattr(config, name) for name in ("definitions", "solutions", "op_types", "authors")}
    for field, folder, known in (
        ("definitions", DEFINITIONS, list(trace_set.definitions)),
        ("solutions", SOLUTIONS, solutions),
    ):
        unread = [
            name
            for name in given[field] or ()
            if name not in known and any(one[:1] == (folder,) and path_part(name) == one[-1] for one in broken)
        ]
        kept = [name for name in given[field] or () if name not in unread]
        if unread and not kept:
            raise Fault(f"nothing to run: {', '.join(unread)} cannot be read; `{PROGRAM} validate` says why")
        if unread:
            setattr(args, field, kept)
    return Asked(**given)


def _find_issues(trace_set: TraceSet, plan: Plan) -> list[LoadIssue]:
    """Return what is wrong with the stored inputs of a plan's jobs, and with their references."""
    workloads = {(job.definition.name, job.workload.uuid): job.workload for job in plan.jobs}
    definitions = {job.definition.name: job.definition for job in plan.jobs}
    references = find_reference_issues(trace_set, definitions.values())
    return [
        *(issue for issue in references if issue.severity == "error"),
        *find_input_issues(trace_set, [(name, workload) for (name, _), workload in workloads.items()]),
    ]


def _open(
    args: argparse.Namespace, trace_set: TraceSet, config: BenchmarkConfig, make_engine: EngineFactory
) -> tuple[Benchmark, Plan]:
    """Return the engine and the jobs that the flags choose. What is replayed is not saved again."""
    replayed = read_recorded(args.replay) if args.replay else []
    with naming_flags(args):
        engine = make_engine(trace_set, choose_recorded(config, replayed) if replayed else config)
        plan = engine.plan(resume=args.resume, retry_timeouts=args.retry_timeouts)
    if args.resume and not (args.dry_run or args.no_save_results):
        plan = engine.reserve(plan)
    if args.repeat != 1:
        engine.repeat(args.repeat)
    if replayed:
        engine.replay(replayed)
        plan, args.no_save_results = keep_recorded(plan, replayed), True
    return engine, plan


def _tell_plan(args: argparse.Namespace, plan: Plan, config: BenchmarkConfig, engine: Benchmark) -> None:
    from flashinfer_bench.cli.outcome import plan_document, render_plan

    if args.format == "json":
        write_json(plan_document(plan, config, engine.machine))
    else:
        write_out(render_plan(plan, config, engine.machine, available_width(sys.stdout)))


def _run(engine: Benchmark, outcome: RunOutcome, progress: RunProgress, *, save_results: bool, closes: bool) -> None:
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
        except DataSetError as error:  # raised before the first job
            raise DataSetError(f"{error}; --no-save-results judges without saving") from error
        finally:
            if isinstance(events, Generator):
                events.close()
            if closes:
                engine.close()
            outcome.seconds = time.monotonic() - started


def _tell_result(args: argparse.Namespace, outcome: RunOutcome, trace_set: TraceSet) -> None:
    """Write the result to stdout. Write to stderr where it was saved and how to continue."""
    from flashinfer_bench.cli.outcome import outcome_document, render_outcome

    if args.format == "json":
        write_json(outcome_document(outcome, None if args.no_save_results else trace_set))
    else:
        write_out(render_outcome(outcome, available_width(sys.stdout)))
    if outcome.is_interrupted:
        more = ", and winners to confirm" if outcome.to_confirm else ""
        write_err(f"interrupted: {outcome.left} of {count(len(outcome.plan.jobs), 'job')} left{more}")
    if args.no_save_results:
        write_err("nothing was saved (--no-save-results)")
        return
    write_err(*(f"traces: {root / TRACES}" for root in dict.fromkeys(outcome.roots(trace_set).values())))
    if outcome.left or outcome.to_confirm:
        write_err(f"to go on: {resume_command(typed_program(sys.argv[0], sys.orig_argv[0]), args.argv)}")


def resume_command(program: Sequence[str], argv: Sequence[str]) -> str:
    """Return the command that continues the run: the same one with --resume, and without --quick.

    No quick look is resumed from: what is worth going on with gets its whole verdict.
    """
    kept = [word for word in argv if word != "--quick"]
    return shlex.join([*program, *kept, *([] if "--resume" in kept else ["--resume"])])
