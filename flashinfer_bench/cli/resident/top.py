"""`top`: what a server is doing: its devices with their jobs, its queue, its rate, its open tasks."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import defaultdict
from typing import Any, Final

from flashinfer_bench.base.printable import to_printable
from flashinfer_bench.cli.output import write_out
from flashinfer_bench.cli.parser import PROGRAM, Parser, number
from flashinfer_bench.cli.render import Column, format_duration, render_table
from flashinfer_bench.cli.resident.server_flags import add_server, open_client
from flashinfer_bench.client import DEFAULT_URL, Client
from flashinfer_bench.errors import Misuse

DEVICE_COLUMNS: Final = (Column("Device"), Column("Hardware"), Column("State"), Column("Jobs", True), Column("Now"))
TASK_COLUMNS: Final = (Column("Task"), Column("Status"), Column("Definition"), Column("Solution"))
SHOWN_TASKS: Final = 15
"""Open tasks that are listed."""
LONGEST_PAUSE_S: Final = 86_400.0
CLEAR: Final = "\x1b[H\x1b[2J"
SAMPLE: Final = re.compile(r"^flashinfer_bench_(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
LABEL: Final = re.compile(r'(\w+)=("(?:\\.|[^"\\])*")')
"""A label of a sample. Its value is escaped as in JSON."""


def declare_top(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Show what a server is doing: devices, current jobs, queue, rate. Ctrl-C ends it.",
        usage="%(prog)s --server URL [flags]",
        example=f"{PROGRAM} top --server {DEFAULT_URL} --once",
        execute=execute,
    )
    add_server(parser, "print JSON, one line for each look")
    parser.add_argument("--once", action="store_true", help="show it once, and end")
    parser.add_argument("--every", type=number, default=1.0, metavar="F", help="seconds between looks (default: 1)")


def execute(args: argparse.Namespace) -> int:
    """Show the server, once or until Ctrl-C."""
    if args.every < 0:
        raise Misuse(f"--every: must be at least 0, not {args.every:g}")
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
    """Ask a server what it does: its health, its metrics in Prometheus' text format, and its open tasks."""
    samples: defaultdict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for name, text, value in SAMPLE.findall(client.metrics()):
        samples[name].append(({key: json.loads(found) for key, found in LABEL.findall(text)}, float(value)))

    def by(label: str, *names: str) -> dict[str, int]:
        return {labels[label]: int(value) for name in names for labels, value in samples[name] if value}

    single = {name: found[0][1] for name, found in samples.items()}
    jobs = {labels["device"]: f"{labels['solution']} on {labels['workload']}" for labels, _ in samples["device_job"]}
    done = by("device", "device_jobs_total")
    health = client.health()
    timed = single.get("job_seconds_count")
    return {
        "uptime_s": single.get("uptime_seconds", 0.0),
        "queue_jobs": health["queue_size"],
        "verdicts_per_second": single.get("verdicts_per_second", 0.0),
        "tasks": by("status", "tasks", "tasks_total"),
        "jobs": by("status", "jobs_total"),
        "seconds_a_job": single["job_seconds_sum"] / timed if timed else None,
        "devices": [
            {
                **{key: one[key] for key in ("device", "hardware", "condition")},
                "jobs": done.get(one["device"], 0),
                "job": jobs.get(one["device"], ""),
            }
            for one in health["workers"]
        ],
        "open_tasks": [
            {key: getattr(task, key) for key in ("task_id", "status", "definition", "solution")}
            for task in client.tasks()
            if not task.is_over
        ],
    }


def render_overview(overview: dict[str, Any]) -> str:
    """Lay an overview out."""
    each = f", {overview['seconds_a_job']:.2g} s a job" if overview["seconds_a_job"] is not None else ""
    rate = f"{overview['queue_jobs']} jobs wait; {overview['verdicts_per_second']:.2g} verdicts a second{each}"
    lines = [f"up {format_duration(overview['uptime_s'])}; {rate}"]
    for kind in ("tasks", "jobs"):
        counts = ", ".join(f"{number} {status}" for status, number in overview[kind].items())
        lines.append(f"{kind}: {counts or 'none'}")
    devices = [list(map(str, one.values())) for one in overview["devices"]]
    parts = ["".join(f"{to_printable(line)}\n" for line in lines), render_table(DEVICE_COLUMNS, devices)]
    if tasks := [[task["task_id"][:8], *list(task.values())[1:]] for task in overview["open_tasks"]]:
        parts.append(render_table(TASK_COLUMNS, tasks[:SHOWN_TASKS]))
    return "\n".join(parts)
