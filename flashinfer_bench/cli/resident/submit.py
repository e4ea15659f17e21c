"""`submit`: sends a solution to a server, waits, and prints what `run` prints."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from flashinfer_bench.cli.exit_codes import INTERRUPTED
from flashinfer_bench.cli.output import one_interrupt, write_err, write_json, write_out
from flashinfer_bench.cli.parser import PROGRAM, Parser, add_names, whole_number
from flashinfer_bench.cli.render import available_width
from flashinfer_bench.cli.resident.server_flags import add_server, open_client
from flashinfer_bench.client import DEFAULT_URL, Client, TaskReport
from flashinfer_bench.data import Solution, Trace
from flashinfer_bench.data.json_utils import load_json_file
from flashinfer_bench.errors import FlashInferBenchError

if TYPE_CHECKING:
    from flashinfer_bench.bench.machine import Device
    from flashinfer_bench.cli.outcome import RunOutcome

UNKNOWN: Final = "the server's device"


def declare_submit(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Submit a solution to a server, wait for its verdicts, and print them as `run` does.",
        usage="%(prog)s SOLUTION.json --server URL [flags]",
        example=f"{PROGRAM} submit my_rmsnorm.json --server {DEFAULT_URL}",
        execute=execute,
    )
    parser.add_argument("solution", metavar="SOLUTION.json", help="the solution's file")
    add_server(parser)
    add_names(parser, "--workloads")
    parser.add_argument("--priority", type=whole_number, default=0, metavar="N", help="higher ones are judged earlier")
    parser.add_argument("--submitter", metavar="NAME", help="who asks; submitters get equal shares of the server")
    words = "judge it at full assurance on a GPU: where it would be the best known, at once, or never"
    parser.add_argument(
        "--confirm", choices=("if_best", "always", "never"), default="if_best", help=f"{words} (default: %(default)s)"
    )
    parser.add_argument("--no-wait", action="store_true", help="print the id of the task, and do not wait")
    parser.add_argument("--require-passed", action="store_true", help="exit with 1 unless every job passed")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    parser.add_argument("--quiet", action="store_true", help="no progress; only errors and the result")


def execute(args: argparse.Namespace, *, make_client: Callable[..., Client] = Client) -> int:
    """Submit the solution and print its verdicts."""
    from flashinfer_bench.cli.outcome import outcome_document, render_outcome  # the engine's rooms

    with open_client(args, make_client, submitter=args.submitter) as client:
        solution = load_json_file(Solution, args.solution)
        started = time.monotonic()
        workloads = getattr(args, "workloads", None)
        task = client.submit(solution, workloads, priority=args.priority, confirm=args.confirm)
        if args.no_wait:
            write_out(json.dumps({"task_id": task}) + "\n" if args.json else f"{task}\n")
            return 0
        report = _wait(client, task, quiet=args.quiet)
        if report is None:
            return INTERRUPTED
        outcome = _make_outcome(client, report, solution, workloads)
        outcome.seconds = time.monotonic() - started
    if args.json:
        document = {**outcome_document(outcome, None), "task_id": task, "server": client.url, "error": report.error}
        write_json(document)
    else:
        write_out(render_outcome(outcome, available_width(sys.stdout)))
        if report.status == "cancelled":
            write_err("the task was cancelled")
    return outcome.exit_code(require_passed=args.require_passed)


def _wait(client: Client, task: str, *, quiet: bool) -> TaskReport | None:
    """Wait for a task. Ctrl-C cancels it; then there is nothing to return."""
    if not quiet:
        write_err(f"task {task} at {client.url}; Ctrl-C cancels it")
    with one_interrupt():
        try:
            return client.wait(task)
        except KeyboardInterrupt:
            try:
                client.cancel(task)
                write_err("interrupted: the task was cancelled")
            except FlashInferBenchError as error:
                write_err(f"interrupted; the task goes on: {error}")
            return None


def _make_outcome(client: Client, report: TaskReport, solution: Solution, asked: Sequence[str] | None) -> RunOutcome:
    """Put what the server told in the form of a run's outcome, so that both are shown alike."""
    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.bench.events import JobFaulted, JobFinished, RunStarted
    from flashinfer_bench.bench.planning.plan import Job, Plan
    from flashinfer_bench.cli.outcome import RunOutcome

    definition = client.definition(report.definition)
    named = solution.model_copy(update={"name": report.solution})
    config = BenchmarkConfig().resolve_eval_config(definition)
    known = {workload.uuid: workload for workload in client.workloads(report.definition)}
    wanted = list(known) if asked is None else [uuid for uuid in dict.fromkeys(asked) if uuid in known]
    jobs = {uuid: Job(index, definition, known[uuid], named, config, {}) for index, uuid in enumerate(wanted)}
    outcome = RunOutcome(Plan(tuple(jobs.values())))
    traces = {trace.workload.uuid: trace for trace in report.traces if trace.workload.uuid in jobs}
    devices = {uuid: _device_of(trace) for uuid, trace in traces.items()}
    outcome.observe(RunStarted(tuple(dict.fromkeys(devices.values())), len(jobs)))
    for uuid, trace in traces.items():
        outcome.observe(JobFinished(jobs[uuid], trace, devices[uuid], 0.0))
    for uuid in jobs.keys() - traces.keys() if report.error is not None else ():
        outcome.observe(JobFaulted(jobs[uuid], report.error or "", is_left_out=report.status == "completed"))
    return outcome


def _device_of(trace: Trace) -> Device:
    from flashinfer_bench.bench.machine import Device

    evaluation = trace.evaluation
    told = ((evaluation.extra or {}).get("run") or {}).get("device") if evaluation is not None else None
    name = evaluation.environment.hardware if evaluation is not None else UNKNOWN
    if not isinstance(told, dict):
        return Device("cpu", 0, name, "cpu")
    return Device(
        "cuda" if told.get("kind") == "cuda" else "cpu", int(told.get("index", 0)), name, str(told.get("uuid"))
    )
