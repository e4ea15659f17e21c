"""`submit` and `top`, clients of a server: `submit` sends a solution and prints its verdicts, `top` shows the load."""

from __future__ import annotations

import json
import re
import sys
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flashinfer_bench.base.printable import to_printable
from flashinfer_bench.cli.drafts import describe_draft, read_hints
from flashinfer_bench.cli.output import INTERRUPTED, one_interrupt, write_err, write_out
from flashinfer_bench.cli.parser import QUIET_FLAG, SOURCE_FLAGS, Parser, add_flags, add_names
from flashinfer_bench.cli.tables import count, join_sections, lay_out, list_counts, name_workloads, write_result
from flashinfer_bench.cli.verdicts import ENDED
from flashinfer_bench.client import DEFAULT_URL, Client, TaskReport
from flashinfer_bench.data import Solution, Trace
from flashinfer_bench.data.json_utils import load_json_file
from flashinfer_bench.data.store.drafts import DraftHints, read_draft
from flashinfer_bench.data.workload import find_named
from flashinfer_bench.errors import DataSetError, FlashInferBenchError, UsageError
from flashinfer_bench.serve.token_file import read_token

if TYPE_CHECKING:  # the help does not import the engine
    from flashinfer_bench.bench.machine import Device
    from flashinfer_bench.cli.outcome import RunOutcome
    from flashinfer_bench.cli.run_jobs import RunProgress

FIRST_RETRY_S, RETRY_S = 2.0, 20.0
"""Seconds of retries if the server does not answer: before its first answer, and later."""
DEVICES: Final = {
    "Device": "{device}",
    "Hardware": "{hardware}",
    "State": "{condition}",
    "Now": "{job}",
    "#Seconds": "{job_seconds}",
}
TASKS: Final = {
    "Task": "{task_id}",
    "Status": "{status}",
    "Definition": "{definition}",
    "Solution": "{solution}",
    "Submitter": "{submitter}",
}
TASK_KEYS: Final = ("task_id", "status", "definition", "solution", "submitter")
SHOWN_TASKS: Final = 15
"""Maximum number of open tasks in the list."""
POLL_S: Final = 1.0
"""Longest wait of one query of a task, in seconds."""
LONGEST_PAUSE_S: Final = 86_400.0
CLEAR: Final = "\x1b[H\x1b[2J"
SAMPLE: Final = re.compile(r"^flashinfer_bench_(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
LABEL: Final = re.compile(r'(\w+)=("(?:\\.|[^"\\])*")')
"""A label of a Prometheus sample. The value of a label is escaped as in JSON."""


def add_server(parser: Parser, json_help: str) -> None:
    """Add the flags of the server's address and token, and the flag for JSON."""
    flags = {"--server URL": "(default: %(default)s)", "--token-file FILE": "a file with the server's token"}
    add_flags(parser, flags, server=DEFAULT_URL)
    parser.add_argument("--json", action="store_const", const="json", default="table", dest="format", help=json_help)


def open_client(args: Namespace, submitter: str | None = None) -> Client:
    """Return a client of the server that the flags name."""
    token = read_token(args.token_file) if args.token_file is not None else None
    return Client(args.server, token, submitter=submitter, retry_s=RETRY_S, first_retry_s=FIRST_RETRY_S)


def declare_submit(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Submit a solution to a server, wait for its verdicts, and print them as `run` does.",
        usage="%(prog)s SOLUTION --server URL [flags]",
        example=f"submit my_rmsnorm.py --server {DEFAULT_URL}",
        execute=execute_submit,
    )
    what = "a file that `run --solution` judges: FILE.py, FILE.cu, FILE.cpp, FOLDER or PACKED.json"
    parser.add_argument("solution", metavar="SOLUTION", help=what)
    add_server(parser, "print JSON instead of a table")
    add_names(parser, "--definitions", "its definition, if neither its parameters nor its name say so")
    add_names(parser, "--authors", "its author (default: me)")
    add_names(parser, "--workloads")
    add_flags(parser, SOURCE_FLAGS)
    words = "judge it at full assurance on a GPU: if it would be the best known, always, or never"
    flags = {
        "--priority N": "tasks of higher priority are judged earlier",
        "--submitter NAME": "name of the submitter; submitters get equal shares of the server",
        "--confirm if_best|always|never": f"{words} (default: %(default)s)",
        "--no-wait": "print the task's ID, and exit; GET URL/tasks/ID shows the task, and DELETE cancels it",
        "--require-passed": "exit with 1 unless every job passed",
    }
    add_flags(parser, flags | QUIET_FLAG, priority=0, confirm="if_best")


def execute_submit(args: Namespace) -> int:
    """Submit the solution and print its verdicts. Ctrl-C cancels the task."""
    from flashinfer_bench.cli.outcome import outcome_document, render_outcome  # imports of the engine
    from flashinfer_bench.cli.run_jobs import RunProgress

    with open_client(args, submitter=args.submitter) as client, one_interrupt():
        solution = _read_solution(args, client)
        workloads = _find_workloads(args, client, solution.definition)
        task = client.submit(solution, workloads, priority=args.priority, confirm=args.confirm)
        if args.no_wait:
            write_result(args, {"task_id": task}, [task])
            return 0
        if not args.quiet:
            write_err(f"task {task} at {client.url}; Ctrl-C cancels it")
        try:
            outcome = _plan_outcome(client, client.task(task), solution, workloads)
            with RunProgress(quiet=args.quiet, names=outcome.names()) as progress:
                report = _follow(client, task, outcome, progress)
        except KeyboardInterrupt:
            try:
                client.cancel(task)
                write_err("interrupted: the task was cancelled")
            except FlashInferBenchError as error:
                write_err(f"interrupted; the task goes on: {error}")
            return INTERRUPTED
    document = {**outcome_document(outcome, None), "task_id": task, "server": client.url, "error": report.error}
    write_result(args, document, render_outcome(outcome))
    if report.status == "cancelled":
        write_err("the task was cancelled")
    return outcome.exit_code(require_passed=args.require_passed)


def _read_solution(args: Namespace, client: Client) -> Solution:
    """Return the solution of a source or a packed file. The server checks the definition of a packed file."""
    path, hints = Path(args.solution), read_hints(args)
    if path.suffix == ".json" and hints == DraftHints():
        return load_json_file(Solution, path)
    names = args.definitions or client.definitions()
    definitions = {name: client.definition(name) for name in names}
    draft = read_draft(path, definitions, hints)
    describe_draft(draft, definitions, is_quiet=args.quiet)
    return draft.solution


def _find_workloads(args: Namespace, client: Client, definition: str) -> list[str] | None:
    """Return the uuids of the workloads that the flags name; None for all workloads."""
    names = args.workloads
    if not names:
        return None
    known = client.workloads(definition)
    found = {name: [one.uuid for one in find_named(name, known, lambda one: one)] for name in names}
    if unknown := [name for name in names if not found[name]]:
        has = ", ".join(one.uuid for one in known[:SHOWN_TASKS])
        raise DataSetError(
            f"--workloads: {definition} has no workload {', '.join(unknown)} on the server; it has {has}"
        )
    return list(dict.fromkeys(chain.from_iterable(found.values())))


def _follow(client: Client, task: str, outcome: RunOutcome, progress: RunProgress) -> TaskReport:
    """Query the task until it is over. Show its position in the queue, and show and store each verdict."""
    from flashinfer_bench.bench.events import JobFaulted, JobFinished, Notice, RunStarted

    jobs = {job.workload.uuid: job for job in outcome.plan.jobs}
    started, shown = time.monotonic(), -1
    progress.show(RunStarted((), len(jobs)))

    def observe(event: JobFinished | JobFaulted) -> None:
        del jobs[event.job.workload.uuid]
        outcome.observe(event)
        progress.show(event)

    while True:
        report = client.task(task, POLL_S)
        if report.status == "pending":
            if report.tasks_ahead != shown:
                ahead = f"{count(report.tasks_ahead, 'open task')} ahead" if report.tasks_ahead else "next"
                progress.show(Notice(f"waiting in the queue: {ahead}"))
            started, shown = time.monotonic(), report.tasks_ahead
        for trace in report.traces:
            if job := jobs.get(trace.workload.uuid):
                observe(JobFinished(job, trace, _device_of(trace), 0.0))
        if report.is_over:
            break
        time.sleep(POLL_S / 4)  # a server that is shutting down answers at once
    if report.error is not None:
        for job in list(jobs.values()):
            observe(JobFaulted(job, report.error, is_left_out=report.status == "completed"))
    outcome.devices = tuple(dict.fromkeys(event.device for event in outcome.judged.values()))
    outcome.seconds = time.monotonic() - started
    return report


def _plan_outcome(client: Client, report: TaskReport, solution: Solution, asked: Sequence[str] | None) -> RunOutcome:
    """Return the outcome of a run with the jobs of a task, so that tasks and runs have the same output."""
    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.bench.planning.plan import Job, Plan
    from flashinfer_bench.cli.outcome import RunOutcome

    definition = client.definition(report.definition)
    named = solution.model_copy(update={"name": report.solution})
    config = BenchmarkConfig().resolve_eval_config(definition)
    jobs = [
        Job(index, definition, workload, named, config, {})
        for index, workload in enumerate(client.workloads(report.definition))
    ]
    return RunOutcome(Plan(tuple(job for job in jobs if asked is None or job.workload.uuid in asked)), listed=jobs)


def _device_of(trace: Trace) -> Device:
    from flashinfer_bench.bench.machine import Device

    evaluation: Any = trace.evaluation
    given = (evaluation.extra or {}).get("run", {}).get("device", {})
    reported: Any = {"kind": "cpu", "index": 0, "uuid": None, **given}
    return Device(reported["kind"], reported["index"], evaluation.environment.hardware, str(reported["uuid"]))


def declare_top(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Show what a server is doing: devices, current jobs, queue, rate. Ctrl-C ends it.",
        usage="%(prog)s --server URL [flags]",
        example=f"top --server {DEFAULT_URL} --once",
        execute=execute_top,
    )
    add_server(parser, "print JSON, one line for each query")
    add_flags(
        parser, {"--once": "show it once and exit", "--every F": "query period in seconds (default: 1)"}, every=1.0
    )


def execute_top(args: Namespace) -> int:
    """Show the server, once or until Ctrl-C."""
    if args.every < 0:
        raise UsageError(f"--every: must be at least 0, not {args.every:g}")
    with open_client(args) as client:
        try:
            while True:
                overview = read_overview(client)
                if sys.stdout.isatty() and not args.once:
                    sys.stdout.write(CLEAR)
                write_out(json.dumps(overview) + "\n" if args.format == "json" else render_overview(overview))
                if args.once:
                    return 0
                time.sleep(min(args.every, LONGEST_PAUSE_S))
        except KeyboardInterrupt:
            return 0


def read_overview(client: Client) -> dict[str, Any]:
    """Query the health, the metrics (in Prometheus' text format), and the open tasks of a server."""
    samples: defaultdict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for name, text, value in SAMPLE.findall(client.metrics()):
        samples[name].append(({key: json.loads(found) for key, found in LABEL.findall(text)}, float(value)))
    running = [labels for labels, _ in samples["device_job"]]
    listed = {one["definition"]: client.workloads(one["definition"]) for one in running}
    names = name_workloads((name, one.uuid, one.axes) for name, group in listed.items() for one in group)
    jobs = {
        one["device"]: f"{one['solution']} on {names.get((one['definition'], one['workload']), one['workload'])}"
        for one in running
    }
    seconds = {labels["device"]: round(value) for labels, value in samples["device_job_seconds"]}
    health = client.health()
    return {
        "queue_jobs": health["queue_size"],
        "verdicts_per_second": sum(value for _, value in samples["verdicts_per_second"]),
        "jobs": {labels["status"]: int(value) for labels, value in samples["jobs_total"]},
        "devices": [
            {**one, "job": jobs.get(one["device"], ""), "job_seconds": seconds.get(one["device"])}
            for one in health["workers"]
        ],
        "open_tasks": [{key: getattr(task, key) for key in TASK_KEYS} for task in client.tasks() if not task.is_over],
    }


def render_overview(overview: dict[str, Any]) -> str:
    """Render an overview."""
    counts = list_counts({ENDED.get(status, status): number for status, number in overview["jobs"].items()})
    rate = f"{overview['verdicts_per_second']:.2g} verdicts per second"
    waiting = f"{count(len(overview['open_tasks']), 'open task')}, {count(overview['queue_jobs'], 'job')} in the queue"
    head = f"{waiting}; {rate} in the last minute; since the start: {counts or 'no verdict'}"
    tasks = lay_out(TASKS, overview["open_tasks"][:SHOWN_TASKS])
    return join_sections([to_printable(head)], lay_out(DEVICES, overview["devices"]), tasks)
