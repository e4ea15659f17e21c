"""`top`: what a server is doing: its devices with their jobs, its queue, its rate, its open tasks."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

from flashinfer_bench.base.printable import to_printable
from flashinfer_bench.cli.output import write_out
from flashinfer_bench.cli.render import Column, available_width, format_duration, render_table
from flashinfer_bench.cli.resident.server_flags import open_client
from flashinfer_bench.client import Client, TaskReport
from flashinfer_bench.errors import Misuse

DEVICE_COLUMNS: Final = (Column("Device"), Column("Hardware"), Column("State"), Column("Jobs", True), Column("Now"))
TASK_COLUMNS: Final = (Column("Task"), Column("Status"), Column("Definition"), Column("Solution"))
SHOWN_TASKS: Final = 15
"""Open tasks that are listed; of more only the number is told."""
LONGEST_PAUSE_S: Final = 86_400.0
"""A longer pause between two looks is shortened to this."""
_SAMPLE: Final = re.compile(r"flashinfer_bench_(\w+)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:\\.|[^"\\])*)"')
_ESCAPED: Final = re.compile(r"\\(.)")


@dataclass(frozen=True)
class MetricSample:
    """One value of a server's metrics."""

    name: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True)
class DeviceRow:
    """What one device does."""

    device: str
    hardware: str
    condition: str
    jobs: int
    job: str
    """The solution and the workload that it judges; empty where it judges none."""


@dataclass(frozen=True)
class Overview:
    """What a server does."""

    uptime_s: float
    queue_jobs: int
    verdicts_per_second: float
    tasks: dict[str, int]
    """Status → tasks: open ones now, and how others ended."""
    jobs: dict[str, int]
    """Status → jobs that are over."""
    seconds_a_job: float | None
    devices: list[DeviceRow]
    open_tasks: list[dict[str, str]]


def execute(args: argparse.Namespace, *, make_client: Callable[..., Client] = Client) -> int:
    """Show the server, once or until Ctrl-C."""
    if args.every < 0:
        raise Misuse(f"--every: must be at least 0, not {args.every:g}")
    with open_client(args, make_client) as client:
        try:
            if args.once or args.json or not sys.stdout.isatty():
                _print_looks(args, client)
            else:
                _show_live(args, client)
        except KeyboardInterrupt:
            return 0
    return 0


def read_overview(client: Client) -> Overview:
    """Ask a server what it does."""
    return make_overview(read_samples(client.metrics()), client.tasks())


def read_samples(text: str) -> list[MetricSample]:
    """Parse the samples of Prometheus' text format that are ours."""
    found = (_SAMPLE.fullmatch(line) for line in text.splitlines())
    return [
        MetricSample(
            match[1],
            {name: _ESCAPED.sub(_unescape, value) for name, value in _LABEL.findall(match[2] or "")},
            float(match[3]),
        )
        for match in found
        if match is not None
    ]


def make_overview(samples: list[MetricSample], tasks: list[TaskReport]) -> Overview:
    """Put what was read together."""

    def one(name: str) -> float:
        return next((sample.value for sample in samples if sample.name == name), 0.0)

    def by(name: str, label: str) -> dict[str, int]:
        return {item.labels[label]: int(item.value) for item in samples if item.name == name and item.value}

    conditions = {
        item.labels["device"]: item.labels["condition"] for item in samples if item.name == "device_condition"
    }
    jobs = {item.labels["device"]: _name_job(item.labels) for item in samples if item.name == "device_job"}
    done = by("device_jobs_total", "device")
    devices = [
        DeviceRow(label, item.labels["hardware"], conditions.get(label, ""), done.get(label, 0), jobs.get(label, ""))
        for item in samples
        if item.name == "device_up"
        for label in (item.labels["device"],)
    ]
    timed = one("job_seconds_count")
    return Overview(
        uptime_s=one("uptime_seconds"),
        queue_jobs=int(one("queue_jobs")),
        verdicts_per_second=one("verdicts_per_second"),
        tasks={**by("tasks", "status"), **by("tasks_total", "status")},
        jobs=by("jobs_total", "status"),
        seconds_a_job=one("job_seconds_sum") / timed if timed else None,
        devices=devices,
        open_tasks=[
            {"task_id": task.task_id, "status": task.status, "definition": task.definition, "solution": task.solution}
            for task in tasks
            if not task.is_over
        ],
    )


def render_overview(overview: Overview, width: int) -> str:
    """Lay an overview out."""
    counts = ", ".join(f"{number} {status}" for status, number in overview.tasks.items()) or "none"
    verdicts = ", ".join(f"{number} {status}" for status, number in overview.jobs.items()) or "none"
    each = f", {overview.seconds_a_job:.2g} s a job" if overview.seconds_a_job is not None else ""
    lines = [
        f"up {format_duration(overview.uptime_s)}; {overview.queue_jobs} jobs wait; "
        f"{overview.verdicts_per_second:.2g} verdicts a second{each}",
        f"tasks: {counts}",
        f"jobs: {verdicts}",
    ]
    devices = [(one.device, one.hardware, one.condition, str(one.jobs), one.job) for one in overview.devices]
    parts = ["".join(f"{to_printable(line)}\n" for line in lines), render_table(DEVICE_COLUMNS, devices, width)]
    if overview.open_tasks:
        rows = [
            (task["task_id"][:8], task["status"], task["definition"], task["solution"]) for task in overview.open_tasks
        ]
        parts.append(render_table(TASK_COLUMNS, rows[:SHOWN_TASKS], width))
        if len(rows) > SHOWN_TASKS:
            parts.append(f"and {len(rows) - SHOWN_TASKS} more\n")
    return "\n".join(parts)


def _print_looks(args: argparse.Namespace, client: Client) -> None:
    while True:
        overview = read_overview(client)
        if args.json:
            write_out(json.dumps(asdict(overview), indent=2 if args.once else None, allow_nan=False) + "\n")
        else:
            write_out(render_overview(overview, available_width(sys.stdout)))
        if args.once:
            return
        time.sleep(min(args.every, LONGEST_PAUSE_S))


def _show_live(args: argparse.Namespace, client: Client) -> None:
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, screen=True) as live:
        while True:
            live.update(Text(render_overview(read_overview(client), available_width(sys.stdout))), refresh=True)
            time.sleep(min(args.every, LONGEST_PAUSE_S))


def _name_job(labels: dict[str, str]) -> str:
    return f"{labels.get('solution', '')} on {labels.get('workload', '')}"


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
