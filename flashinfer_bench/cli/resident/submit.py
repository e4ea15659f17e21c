"""`submit`: sends a solution to a server, waits, and prints what `run` prints."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from flashinfer_bench.cli.exit_codes import INTERRUPTED
from flashinfer_bench.cli.output import one_interrupt, write_err, write_result
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


def declare_submit(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Submit a solution to a server, wait for its verdicts, and print them as `run` does.",
        usage="%(prog)s SOLUTION.json --server URL [flags]",
        example=f"{PROGRAM} submit my_rmsnorm.json --server {DEFAULT_URL}",
        execute=execute,
    )
    parser.add_argument("solution", metavar="SOLUTION.json", help="the solution's file")
    add_server(parser, "print JSON in place of a table")
    add_names(parser, "--workloads")
    parser.add_argument("--priority", type=whole_number, default=0, metavar="N", help="higher ones are judged earlier")
    parser.add_argument("--submitter", metavar="NAME", help="who asks; submitters get equal shares of the server")
    words = "judge it at full assurance on a GPU: where it would be the best known, at once, or never"
    parser.add_argument(
        "--confirm", choices=("if_best", "always", "never"), default="if_best", help=f"{words} (default: %(default)s)"
    )
    parser.add_argument("--no-wait", action="store_true", help="print the id of the task, and do not wait")
    parser.add_argument("--require-passed", action="store_true", help="exit with 1 unless every job passed")
    parser.add_argument("--quiet", action="store_true", help="no progress; only errors and the result")


def execute(args: argparse.Namespace) -> int:
    """Submit the solution and print its verdicts. Ctrl-C cancels the task."""
    from flashinfer_bench.cli.outcome import outcome_document, render_outcome  # the engine's rooms

    with open_client(args, submitter=args.submitter) as client, one_interrupt():
        solution = load_json_file(Solution, args.solution)
        started = time.monotonic()
        workloads = getattr(args, "workloads", None)
        task = client.submit(solution, workloads, priority=args.priority, confirm=args.confirm)
        if args.no_wait:
            write_result(args, {"task_id": task}, f"{task}\n")
            return 0
        if not args.quiet:
            write_err(f"task {task} at {client.url}; Ctrl-C cancels it")
        try:
            report = client.wait(task)
        except KeyboardInterrupt:
            try:
                client.cancel(task)
                write_err("interrupted: the task was cancelled")
            except FlashInferBenchError as error:
                write_err(f"interrupted; the task goes on: {error}")
            return INTERRUPTED
        outcome = _make_outcome(client, report, solution, workloads)
        outcome.seconds = time.monotonic() - started
    document = {**outcome_document(outcome, None), "task_id": task, "server": client.url, "error": report.error}
    write_result(args, document, render_outcome(outcome, available_width(sys.stdout)))
    if report.status == "cancelled":
        write_err("the task was cancelled")
    return outcome.exit_code(require_passed=args.require_passed)


def _make_outcome(client: Client, report: TaskReport, solution: Solution, asked: Sequence[str] | None) -> RunOutcome:
    """Put what the server told in the form of a run's outcome, so that both are shown alike."""
    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.bench.events import JobFaulted, JobFinished
    from flashinfer_bench.bench.planning.plan import Job, Plan
    from flashinfer_bench.cli.outcome import RunOutcome

    definition = client.definition(report.definition)
    named = solution.model_copy(update={"name": report.solution})
    config = BenchmarkConfig().resolve_eval_config(definition)
    jobs = {
        workload.uuid: Job(index, definition, workload, named, config, {})
        for index, workload in enumerate(client.workloads(report.definition))
        if workload.uuid in (asked or [workload.uuid])
    }
    traces = {trace.workload.uuid: (trace, _device_of(trace)) for trace in report.traces if trace.workload.uuid in jobs}
    outcome = RunOutcome(Plan(tuple(jobs.values())), devices=tuple({device: None for _, device in traces.values()}))
    for uuid, job in jobs.items():
        if uuid in traces:
            outcome.observe(JobFinished(job, *traces[uuid], 0.0))
        elif report.error is not None:
            outcome.observe(JobFaulted(job, report.error, is_left_out=report.status == "completed"))
    return outcome


def _device_of(trace: Trace) -> Device:
    from flashinfer_bench.bench.machine import Device

    evaluation: Any = trace.evaluation
    told = (evaluation.extra or {}).get("run", {}).get("device", {})
    kind: Literal["cuda", "cpu"] = "cuda" if told.get("kind") == "cuda" else "cpu"
    return Device(kind, int(told.get("index", 0)), evaluation.environment.hardware, str(told.get("uuid")))
