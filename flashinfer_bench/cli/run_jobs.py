"""Runs the jobs of `run`: plans them, shows progress, prints the result. `Benchmark` judges and times.

Progress is a redrawn display on a terminal, and one line per finished job elsewhere. With --watch, all jobs run again
after each save, in the same sessions.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flashinfer_bench.base.files.trees import walk_files
from flashinfer_bench.bench import benchmark
from flashinfer_bench.bench.config import EDITED_CALL_S, BenchmarkConfig
from flashinfer_bench.bench.evaluator_record import find_misspelt_extras
from flashinfer_bench.bench.events import Event, JobFaulted, JobFinished, JobsAdded, JobStarted, Notice, RunStarted
from flashinfer_bench.bench.planning.plan import Job, Plan
from flashinfer_bench.bench.planning.resume import names_of
from flashinfer_bench.bench.planning.selection import select
from flashinfer_bench.cli.args import named_folders, open_trace_set, read_recorded, without_unread
from flashinfer_bench.cli.axes import read_sizes
from flashinfer_bench.cli.drafts import list_draft_paths, save_draft, take_drafts
from flashinfer_bench.cli.outcome import (
    RunOutcome,
    annotate_outcome,
    describe_plan,
    describe_skips,
    find_trace_file,
    names_of_job,
    outcome_document,
    plan_document,
    render_outcome,
    render_plan,
)
from flashinfer_bench.cli.output import (
    FAILED,
    INTERRUPTED,
    RAN,
    one_interrupt,
    write_err,
    write_json,
    write_out,
    write_problems,
)
from flashinfer_bench.cli.parser import typed_program
from flashinfer_bench.cli.settings import describe_tolerances, naming_flags, read_config, setting_words
from flashinfer_bench.cli.tables import Names, count, list_counts, shorten_uuid, some, write_result
from flashinfer_bench.cli.verdicts import ENDED, describe_fault, describe_job, describe_verdict
from flashinfer_bench.data import LoadIssue, Trace, TraceSet
from flashinfer_bench.data.check import Asked, find_input_issues, find_reference_issues
from flashinfer_bench.data.evaluation import EvaluationStatus
from flashinfer_bench.data.generated import add_generated, sweep
from flashinfer_bench.data.measurement import read_reported
from flashinfer_bench.data.sets.results import find_latest, list_results
from flashinfer_bench.data.store.drafts import Draft
from flashinfer_bench.data.store.jsonl import read_lines
from flashinfer_bench.data.store.layout import DEFINITIONS, TOLERANCES_FILE, TRACES, WORKLOADS
from flashinfer_bench.data.store.pack import is_passed_over
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.errors import DataSetError, Fault, FlashInferBenchError, UsageError
from flashinfer_bench.report.changes import SaveHistory
from flashinfer_bench.report.verdict import first_reason

if TYPE_CHECKING:
    from rich.progress import Progress

SHOWN_DEVICES: Final = 8
NO_FAILED_CALL: Final = frozenset({EvaluationStatus.PASSED, EvaluationStatus.COMPILE_ERROR})
WATCHED_CALL_S: Final = 5.0
"""Default `call_timeout_seconds` with --watch and --quick."""
OWN: Final = ":"
"""Separates the module and the name of an external evaluator in a fingerprint."""
POLL_EVERY_S: Final = 0.05
"""Seconds between two checks of the files. A longer interval would delay the verdict after a save."""
Stamp = dict[str, tuple[int, int]]
"""Path → time of the last change, and size."""
Kept = list[benchmark.Benchmark] | None
"""A list with the engine whose sessions stay between saves; empty before the first run. None if each run starts its own
engine."""


class RunProgress:
    """Counts the events of a run, and shows progress inside its `with` block.

    Args:
        quiet: show no progress. The result still lists the faults.
        names: the names of the workloads. A workload without a name is shown by its uuid.
    """

    def __init__(self, *, quiet: bool = False, names: Names | None = None) -> None:
        self.quiet = quiet
        self.names = names or {}
        self.statuses: Counter[str] = Counter()
        """Status → number of ended jobs. Jobs that ended without a verdict have the words of `ENDED`."""
        self.jobs = 0
        self.running: dict[str, Job] = {}
        """Device label → current job."""
        self._live: Progress | None = None

    def __enter__(self) -> RunProgress:
        if not self.quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
            columns = TextColumn("{task.description}", markup=False), BarColumn(24), TimeElapsedColumn()
            self._live = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
            self._live.add_task("starting the devices", total=None)
            self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, event: Event) -> None:
        """Count an event, and show it. On a terminal, a pass has no line."""
        line, is_passed = "", False
        match event:
            case RunStarted() | JobsAdded():
                self.jobs += event.jobs
            case JobStarted():
                self.running[event.device.label] = event.job
            case JobFinished():
                (result,) = list_results(None, [event.trace])
                level = "at full assurance " if event.job.assurance is not None else ""
                text = f" on {event.device.label}: {level}{describe_verdict(result)}"
                line, is_passed = self._end(event.job, result.status, text), result.is_passed
            case JobFaulted():
                mark = ENDED["LEFT_OUT" if event.is_left_out else "FAULT"]
                line = self._end(event.job, mark, f": {mark}: {first_reason(describe_fault(event, self.names))}")
            case Notice():
                line = f"note: {first_reason(event.message)}"
        if self._live is not None:
            counts = "  ".join(f"{number} {status}" for status, number in sorted(self.statuses.items()))
            done, running = self.statuses.total(), sorted(self.running.items())[:SHOWN_DEVICES]
            jobs = [f"{label}  {describe_job(job, self.names)}" for label, job in running]
            head = "\n".join([f"{done}/{count(self.jobs, 'job')}  {counts}", *jobs])
            self._live.update(self._live.task_ids[0], description=head, completed=done, total=self.jobs or None)
            if line and not is_passed:
                self._live.console.print(line)
        elif line and not self.quiet:
            write_err(line)

    def _end(self, job: Job, status: str, text: str) -> str:
        """Count a job that has ended, and return its line: the progress of the run, the job, and a text."""
        self.statuses[status] += 1
        self.running = {label: one for label, one in self.running.items() if one.index != job.index}
        done, lost = self.statuses.total(), {words: self.statuses[words] for words in ENDED.values()}
        counts = list_counts({"not passed": done - sum(lost.values()) - self.statuses["PASSED"], **lost})
        return f"[{', '.join(filter(None, (f'{done}/{self.jobs}', counts)))}] {describe_job(job, self.names)}{text}"


def run_jobs(args: Namespace) -> int:
    """Run the jobs that the flags ask for, or print the plan."""
    again = "--replay" if args.replay else "--last-failed"
    if (args.replay or args.last_failed) and args.resume:
        raise UsageError(f"{again} judges what is recorded, which --resume leaves out: give one of them")
    if args.axis and (args.replay or args.workloads):
        raise UsageError("--axis makes the workloads, which --workloads and --replay name: give one of them")
    if args.retry_timeouts and not args.resume:
        raise UsageError("--retry-timeouts changes what --resume leaves out: give --resume too")
    given = args.replay or args.resume or args.dry_run or args.github
    if args.watch and (given or not list_draft_paths(args)):
        raise UsageError("--watch judges a file after each save: --solution FILE, no --resume, --dry-run or --github")
    config = read_config(args)  # problems of flags and file are reported before the set is read
    if config.call_timeout_seconds is None and (args.watch or config.quick or list_draft_paths(args)):
        args.call_timeout_seconds = WATCHED_CALL_S if args.watch or config.quick else EDITED_CALL_S
    if not args.watch:
        return _judge(args, open_trace_set(args), None)
    kept: Kept = [] if args.repeat == 1 else None
    try:
        return _watch(args, kept)
    finally:
        for engine in kept or ():
            engine.close()


def plan_recorded(
    args: Namespace,
    trace_set: TraceSet,
    config: BenchmarkConfig,
    recorded: Sequence[Trace],
    kept: Kept = None,
    **resumes: bool,
) -> tuple[benchmark.Benchmark, Plan]:
    """Return an engine, and the plan of the recorded jobs. Without recorded jobs, the flags choose the jobs."""
    wanted = {names_of(trace) for trace in recorded}
    add_generated(trace_set, recorded)
    if wanted:
        names = ({name or "" for name in column} for column in zip(*wanted, strict=True))
        chosen = zip(("definitions", "solutions", "workloads"), map(sorted, names), strict=True)
        config = config.with_overrides(**dict(chosen))
    with naming_flags(args):
        if kept and (kept[0].get_trace_set() is not trace_set or kept[0].config != config):
            kept.pop().close()
        if kept is None:
            engine = benchmark.Benchmark(trace_set, config)
        else:
            kept[:] = kept or [benchmark.Benchmark(trace_set, config, keeps_sessions=True)]
            engine = kept[0]
        plan = engine.plan(**resumes)
    if wanted:
        engine.replay(recorded)
        plan = plan.with_jobs(job for job in plan.jobs if names_of_job(job) in wanted)
    refuse_other_evaluator(plan, recorded)
    return engine, plan


def refuse_other_evaluator(plan: Plan, recorded: Iterable[AnyTrace]) -> None:
    """Refuse to judge a recorded job again by a built-in evaluator if an external evaluator judged the job.

    Raises:
        UsageError: the message names the missing flag.
    """
    built_in = {names_of_job(job) for job in plan.jobs if OWN not in job.fingerprint.get("evaluator", "")}
    for trace in recorded:
        judged = trace.evaluation if names_of(trace) in built_in else None
        then = "" if judged is None else read_reported(judged).run.fingerprint.get("evaluator", "")
        if OWN in then:
            module, _, name = then.split()[0].partition(OWN)
            job = f"{trace.solution} on {trace.workload.uuid}"
            raise UsageError(f"{job} was judged by {name} of {module}: give --evaluator-modules {module}")


def _judge(args: Namespace, trace_set: TraceSet, kept: Kept, history: SaveHistory | None = None) -> int:
    """Run the jobs that the flags ask for, or print the plan; return the exit code.

    With a history, the result has the change since the latest save that passed.
    """
    drafts = take_drafts(args, trace_set)
    asked = _leave_out_unread(args, trace_set)
    config = read_config(args).for_set(trace_set)
    if args.axis:
        sizes = read_sizes(args.axis)
        with naming_flags(args):
            chosen = select(trace_set, config)
        for definition in (one.definition for one in chosen if one.solutions):
            sweep(trace_set, definition, sizes)
    failed = [one for one in find_latest(trace_set.all_traces()) if not one.is_successful()] if args.last_failed else []
    if not args.axis:
        add_generated(trace_set, failed)
    recorded = read_recorded(args.replay) if args.replay else []
    resumes = {"resume": args.resume, "retry_timeouts": args.retry_timeouts, "drafts": args.drafts}
    engine, plan = plan_recorded(args, trace_set, config, recorded, kept, **resumes)
    if args.last_failed:
        names = set(map(names_of, failed))
        plan = plan.with_jobs(job for job in plan.jobs if names_of_job(job) in names)
    if args.resume and not (args.dry_run or args.no_save_results):
        plan = engine.reserve(plan)
    if args.repeat != 1:
        engine.repeat(args.repeat)
    saves = not (args.no_save_results or args.replay)
    found = _find_issues(trace_set, plan)
    roots = [root / TRACES for root in trace_set.roots]  # recorded traces are not needed
    about = [issue for issue in trace_set.issues if asked.is_about(issue, trace_set)]
    about = [issue for issue in about if not any(map(issue.file.is_relative_to, roots))]
    errors = [one for one in (*about, *found) if one.severity == "error"]
    listed = [line for name in {job.definition.name for job in plan.jobs} for line in trace_set.workloads[name]]
    outcome = RunOutcome(plan, listed=listed, errors=list(map(str, errors)))
    skips = describe_skips(plan.skips)
    if args.strict and outcome.is_broken:
        raise Fault("\n".join(["--strict: nothing was run:", *outcome.errors, *skips]))
    configs = {job.definition.name: job.config for job in plan.jobs}.values()
    odd = [f"warning: {line}" for line in find_misspelt_extras(configs, plan.plug_in_keys)]
    notes = [*describe_tolerances(trace_set), *odd]
    if args.dry_run:
        write_err(*notes)
        write_result(args, plan_document(plan, engine.machine), render_plan(plan, engine.machine))
        write_err(*map(str, found))
        engine.close()
        return FAILED if outcome.is_broken and not args.allow_broken else RAN
    outcome.recorded = engine.find_resumed(plan)
    jobs, *resumed = describe_plan(plan, engine.machine)
    saved = [f"draft: {save_draft(draft, trace_set)} {_describe_kept(draft, args)}" for draft in drafts if saves]
    write_err(*(str(issue) for issue in found if issue.severity == "error"))
    if args.last_failed and not plan.jobs:
        jobs, args.require_passed = "no job to run: no chosen solution failed last (--last-failed)", False
    if not args.quiet:
        write_err(*saved, *notes, *resumed, jobs)
    _run(
        engine,
        outcome,
        RunProgress(quiet=args.quiet, names=outcome.names()),
        save_results=saves,
        closes=kept is None,
        fail_fast=args.fail_fast,
    )
    if history is not None and outcome.have_all_passed and not outcome.left:
        outcome.change = history.add(outcome.traces, outcome.seconds)
    _write_outcome(args, outcome, trace_set if saves else None)
    if args.github:
        files = trace_set.solution_files | {draft.solution.name: draft.path for draft in drafts}
        annotate_outcome(args.github, outcome, errors, trace_set, files, args)
    is_kept = saves or not args.axis  # `repro` finds a generated workload only through saved traces
    if not args.quiet and is_kept and (hint := _hint_at_repro(args, outcome, drafts, trace_set if saves else None)):
        write_err(f"why: {hint}")
    return outcome.exit_code(require_passed=args.require_passed, allow_broken=args.allow_broken)


def _describe_kept(draft: Draft, args: Namespace) -> str:
    """Return the draft's names in the set, and the command that removes the draft."""
    solution = draft.solution
    removes = shlex.join([*typed_program(), "forget", solution.name, *set_words(args)])
    return f"(solution {solution.name} of author {solution.author}; `{removes}` removes it)"


def set_words(args: Namespace) -> list[str]:
    """Return the flags that name the sets of the command line."""
    return [word for folder in named_folders(args) for word in ("--local", str(folder))]


def _hint_at_repro(args: Namespace, outcome: RunOutcome, drafts: Sequence[Draft], trace_set: TraceSet | None) -> str:
    """Return the `repro` command for the first failure; empty if no call failed.

    Args:
        drafts: the drafts of the run. Without a set, the command names the files of the drafts.
        trace_set: the set with the saved results; None if nothing is saved. With a set, the command names the line of
            the trace.
    """
    failed = next(
        (one for one in outcome.traces if one.evaluation and one.evaluation.status not in NO_FAILED_CALL), None
    )
    if failed is None:
        return ""
    named = {} if trace_set is not None else {draft.solution.name: str(draft.path) for draft in drafts}
    solution, workload = failed.solution or "", shorten_uuid(failed.workload.uuid)
    words = ["repro", *(_find_line(failed, trace_set) or (named.get(solution, solution), workload))]
    words += set_words(args)
    if solution in named:
        given = {"definition": failed.definition, "entry": args.entry, "language": args.language}
        words += [word for name, value in given.items() if value for word in (f"--{name}", value)]
    return shlex.join([*typed_program(), *words, *setting_words(args), "--dump", "why"])


def _find_line(trace: Trace, trace_set: TraceSet | None) -> list[str]:
    """Return FILE:LINE of a trace that a set keeps; empty if there is no such line."""
    file = None if trace_set is None else find_trace_file(trace_set, trace.definition, trace.solution or "")
    text = trace.to_json().encode()
    with suppress(OSError):
        for number, (_, line, _) in enumerate(read_lines(file) if file else (), 1):
            if line == text:
                return [f"{file}:{number}"]
    return []


def _leave_out_unread(args: Namespace, trace_set: TraceSet) -> Asked:
    """Remove names from the flags if their files cannot be read. Return the names as given.

    Raises:
        Fault: no requested name remains.
    """
    config = read_config(args)
    asked = Asked(**{name: getattr(config, name) for name in ("definitions", "solutions", "op_types", "authors")})
    read = {"definitions": trace_set.definitions, "solutions": {item.name for item in trace_set.all_solutions()}}
    for field, known in read.items():
        if given := getattr(args, field):
            left = without_unread(trace_set, given, known)
            if not left:
                raise Fault(f"nothing to run: {', '.join(given)} cannot be read; `flashinfer-bench validate` says why")
            setattr(args, field, left)
    return asked


def _find_issues(trace_set: TraceSet, plan: Plan) -> list[LoadIssue]:
    """Return the errors of references, and the problems of stored inputs, for the jobs of a plan."""
    definitions = {job.definition.name: job.definition for job in plan.jobs}.values()
    workloads = {(job.definition.name, job.workload.uuid): (job.definition.name, job.workload) for job in plan.jobs}
    found = [one for one in find_reference_issues(trace_set, definitions) if one.severity == "error"]
    return [*found, *find_input_issues(trace_set, workloads.values())]


def _run(
    engine: benchmark.Benchmark,
    outcome: RunOutcome,
    progress: RunProgress,
    *,
    save_results: bool,
    closes: bool,
    fail_fast: bool,
) -> None:
    """Run the plan and store its events in the outcome. Close the engine at the end if `closes`.

    With `fail_fast`, the first job that does not pass ends the run.
    """
    started = time.monotonic()
    events: Iterator[Event] = iter(())
    with one_interrupt():
        try:
            with progress:
                events = engine.run(outcome.plan, save_results=save_results)
                for event in events:
                    outcome.observe(event)
                    progress.show(event)
                    if fail_fast and _is_failure(event):
                        outcome.stop()
                        break
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


def _is_failure(event: Event) -> bool:
    is_failed = isinstance(event, JobFinished) and not event.trace.is_successful()
    return is_failed or (isinstance(event, JobFaulted) and event.job.assurance is None)


def _write_outcome(args: Namespace, outcome: RunOutcome, trace_set: TraceSet | None) -> None:
    """Write the result to stdout. Write the files of saved traces, and the command that continues, to stderr."""
    if args.format == "json":  # makes only the requested format, since a resumed run can have 100,000 verdicts
        write_json(outcome_document(outcome, trace_set))
    else:
        write_out(render_outcome(outcome))
    if outcome.is_interrupted:
        write_err("interrupted")
    if trace_set is None:
        if not args.replay:  # which never saves
            write_err("nothing was saved (--no-save-results)")
        return
    if files := outcome.files(trace_set):
        write_err(f"traces: {some(files)}")
    if (outcome.left or outcome.is_interrupted) and not args.watch:
        lost = outcome.lost()
        is_ended = outcome.is_interrupted or outcome.is_stopped
        is_broken = not is_ended and outcome.left == len(lost["faults"]) + len(lost["left_out"])
        when = "after a fix, resume with" if is_broken else "resume with"
        write_err(f"{when}: {resume_command(args.argv)}")


def resume_command(argv: Sequence[str]) -> str:
    """Return the command that continues the run: the same command with --resume, and without --quick.

    A quick run cannot be resumed, so the continued run gives whole verdicts.
    """
    if "--last-failed" not in argv:  # which judges failed jobs again by itself
        argv = [*(word for word in argv if word not in ("--quick", "--resume")), "--resume"]
    return shlex.join([*typed_program(), *argv])


def _watch(args: Namespace, kept: Kept) -> int:
    """Judge after each save of a draft, or of a file that affects verdicts, until Ctrl-C. Return the latest exit
    code."""
    drafts, code = list_draft_paths(args), RAN
    beside = [root / name for root in named_folders(args) for name in (TOLERANCES_FILE, DEFINITIONS, WORKLOADS)]
    beside += [Path(args.config)] if args.config else []
    trace_set: TraceSet | None = None
    history = SaveHistory()
    try:
        while code != INTERRUPTED:
            given, seen = Namespace(**vars(args)), (take_stamp(drafts), take_stamp(beside))
            try:
                trace_set = trace_set or open_trace_set(given)
                code = _judge(given, trace_set, kept, history)
            except FlashInferBenchError as error:
                write_problems(str(error))
                code = error.exit_code
            if code != INTERRUPTED:
                write_err(f"waiting until {', '.join(map(str, drafts))} is saved; Ctrl-C ends")
                now = wait_for_change(drafts, beside, seen)
                trace_set = trace_set if now[1] == seen[1] else None  # None: the next loop reads the set again
    except KeyboardInterrupt:
        pass
    return code


def take_stamp(paths: Iterable[Path]) -> Stamp:
    """Return the stamp of each file, and of each file below the folders. A save changes the stamp."""
    stamp: Stamp = {}
    for path in paths:
        for file in walk_files(path, lambda *_: None, passes_over=is_passed_over) if path.is_dir() else [path]:
            with suppress(OSError):  # an editor may be replacing the file
                stamp[str(file)] = (file.stat().st_mtime_ns, file.stat().st_size)
    return stamp


def wait_for_change(
    drafts: Sequence[Path],
    beside: Sequence[Path],
    before: tuple[Stamp, Stamp],
    sleep: Callable[[float], object] = time.sleep,
) -> tuple[Stamp, Stamp]:
    """Wait until a stamp has changed, the last two checks agree, and each draft exists; return the stamps.

    Args:
        drafts: the files and folders that the user edits.
        beside: additional files and folders that affect verdicts. They need not exist.
        before: the stamps of the judged state.
        sleep: takes seconds, and waits.
    """
    last = before
    while True:
        sleep(POLL_EVERY_S)
        now = take_stamp(drafts), take_stamp(beside)
        if now != before and now == last and all(path.exists() for path in drafts):
            return now
        last = now
