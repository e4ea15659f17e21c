"""`top`: what a server is doing: its devices with their jobs, its queue, its rate, its open tasks."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

from flashinfer_bench.base.printable import to_printable
from flashinfer_bench.cli.output import write_out
from flashinfer_bench.cli.parser import PROGRAM, Parser, number
from flashinfer_bench.cli.render import Column, available_width, format_duration, render_table
from flashinfer_bench.cli.resident.server_flags import add_server, open_client
from flashinfer_bench.client import DEFAULT_URL, Client
from flashinfer_bench.errors import Misuse

DEVICE_COLUMNS: Final = (Column("Device"), Column("Hardware"), Column("State"), Column("Jobs", True), Column("Now"))
TASK_COLUMNS: Final = (Column("Task"), Column("Status"), Column("Definition"), Column("Solution"))
SHOWN_TASKS: Final = 15
"""Open tasks that are listed; of others only the number is given."""
LONGEST_PAUSE_S: Final = 86_400.0
CLEAR: Final = "\x1b[H\x1b[2J"
SAMPLE: Final = re.compile(r"^flashinfer_bench_(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
ESCAPED: Final = re.compile(r"\\(.)")
LABEL: Final = re.compile(r'(\w+)="((?:\\.|[^"\\])*)"')


def declare_top(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Show what a server is doing: devices, current jobs, queue, rate. Ctrl-C ends it.",
        usage="%(prog)s --server URL [flags]",
        example=f"{PROGRAM} top --server {DEFAULT_URL} --once",
        execute=execute,
    )
    add_server(parser)
    parser.add_argument("--once", action="store_true", help="show it once, and end")
    parser.add_argument("--every", type=number, default=1.0, metavar="F", help="seconds between looks (default: 1)")
    parser.add_argument("--json", action="store_true", help="print JSON, one line for each look")


def execute(args: argparse.Namespace, *, make_client: Callable[..., Client] = Client) -> int:
    """Show the server, once or until Ctrl-C."""
    if args.every < 0:
        raise Misuse(f"--every: must be at least 0, not {args.every:g}")
    with open_client(args, make_client) as client:
        try:
            while True:
                overview = read_overview(client)
                if args.json:
                    write_out(json.dumps(overview, indent=2 if args.once else None) + "\n")
                else:
                    if sys.stdout.isatty() and not args.once:
                        sys.stdout.write(CLEAR)
                    write_out(render_overview(overview, available_width(sys.stdout)))
                if args.once:
                    return 0
                time.sleep(min(args.every, LONGEST_PAUSE_S))
        except KeyboardInterrupt:
            return 0


def read_overview(client: Client) -> dict[str, Any]:
    """Ask a server what it does: its metrics, in Prometheus' text format, and its open tasks."""
    samples: defaultdict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for name, text, value in SAMPLE.findall(client.metrics()):
        labels = {key: ESCAPED.sub(_unescape, found) for key, found in LABEL.findall(text)}
        samples[name].append((labels, float(value)))

    def by(label: str, *names: str) -> dict[str, int]:
        return {labels[label]: int(value) for name in names for labels, value in samples[name] if value}

    single = {name: found[0][1] for name, found in samples.items()}
    conditions = {labels["device"]: labels["condition"] for labels, _ in samples["device_condition"]}
    jobs = {
        labels["device"]: f"{labels.get('solution', '')} on {labels.get('workload', '')}"
        for labels, _ in samples["device_job"]
    }
    done = by("device", "device_jobs_total")
    timed = single.get("job_seconds_count")
    return {
        "uptime_s": single.get("uptime_seconds", 0.0),
        "queue_jobs": int(single.get("queue_jobs", 0)),
        "verdicts_per_second": single.get("verdicts_per_second", 0.0),
        "tasks": by("status", "tasks", "tasks_total"),
        "jobs": by("status", "jobs_total"),
        "seconds_a_job": single["job_seconds_sum"] / timed if timed else None,
        "devices": [
            {
                "device": device,
                "hardware": labels["hardware"],
                "condition": conditions.get(device, ""),
                "jobs": done.get(device, 0),
                "job": jobs.get(device, ""),
            }
            for labels, _ in samples["device_up"]
            for device in (labels["device"],)
        ],
        "open_tasks": [
            {"task_id": task.task_id, "status": task.status, "definition": task.definition, "solution": task.solution}
            for task in client.tasks()
            if not task.is_over
        ],
    }


def render_overview(overview: dict[str, Any], width: int) -> str:
    """Lay an overview out."""
    each = f", {overview['seconds_a_job']:.2g} s a job" if overview["seconds_a_job"] is not None else ""
    counts = {
        kind: ", ".join(f"{number} {status}" for status, number in overview[kind].items()) or "none"
        for kind in ("tasks", "jobs")
    }
    rate = f"{overview['queue_jobs']} jobs wait; {overview['verdicts_per_second']:.2g} verdicts a second{each}"
    lines = [f"up {format_duration(overview['uptime_s'])}; {rate}"]
    lines += [f"{kind}: {told}" for kind, told in counts.items()]
    devices = [list(map(str, one.values())) for one in overview["devices"]]
    parts = ["".join(f"{to_printable(line)}\n" for line in lines), render_table(DEVICE_COLUMNS, devices, width)]
    if rows := [[task["task_id"][:8], *list(task.values())[1:]] for task in overview["open_tasks"]]:
        parts.append(render_table(TASK_COLUMNS, rows[:SHOWN_TASKS], width))
        parts += [f"and {len(rows) - SHOWN_TASKS} more\n"] if len(rows) > SHOWN_TASKS else []
    return "\n".join(parts)


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
