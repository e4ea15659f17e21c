"""What the server counts, in Prometheus' text format (version 0.0.4), and what /health tells of devices and queue."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, Final

from flashinfer_bench.bench.engine import Engine
from flashinfer_bench.bench.events import Event, JobFinished

BOUNDS_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets of a job's seconds; one without an end comes after them."""
Samples = Iterable[tuple[Mapping[str, str], float]]
"""Labels and value of each."""


class Metrics:
    """Counts of a server.

    Args:
        engine: is asked for its state, and tells its events.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._buckets = [0] * (len(BOUNDS_S) + 1)
        self._seconds = 0.0
        engine.subscribe(self._observe)

    def _observe(self, event: Event) -> None:
        """Count an event, in the engine's thread: nobody else writes."""
        if isinstance(event, JobFinished):
            self._buckets[bisect_left(BOUNDS_S, event.seconds)] += 1
            self._seconds += event.seconds

    def health(self) -> dict[str, Any]:
        """Return the devices, and how many jobs wait."""
        state = self._engine.state()
        workers = [
            {"device": one.label, "healthy": one.healthy, "hardware": one.hardware, "condition": one.condition}
            for one in state.devices
        ]
        return {"workers": workers, "queue_size": state.queue_size}

    def render(self, open_tasks: Mapping[str, int], ended: Mapping[str, int]) -> str:
        """Return all metrics as text.

        Args:
            open_tasks: status → tasks that are not over.
            ended: status → tasks that are over.
        """
        state = self._engine.state()
        devices = [({"device": one.label}, one) for one in state.devices]
        sums = list(accumulate(self._buckets))
        seconds: list[tuple[str, Samples]] = [
            (
                "_bucket",
                [({"le": bound}, count) for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), sums, strict=True)],
            ),
            ("_sum", [({}, self._seconds)]),
            ("_count", [({}, sums[-1])]),
        ]
        running = [
            ({**label, "definition": job.definition, "solution": job.solution, "workload": job.workload}, 1)
            for label, one in devices
            if (job := one.job) is not None
        ]
        families: list[tuple[str, str, str, Samples]] = [
            ("uptime_seconds", "gauge", "since the engine began", [({}, state.uptime_s)]),
            ("queue_jobs", "gauge", "jobs that no device has begun", [({}, state.queue_size)]),
            ("verdicts_per_second", "gauge", "in the last minute", [({}, state.rate_per_s)]),
            ("tasks", "gauge", "tasks that are not over", _by(("pending", "running"), open_tasks)),
            ("tasks_total", "counter", "tasks that are over", _by(("completed", "failed", "cancelled"), ended)),
            ("jobs_total", "counter", "jobs that are over", _by(state.jobs, state.jobs)),
            (
                "device_up",
                "gauge",
                "whether a device can judge",
                [({**label, "hardware": one.hardware}, one.healthy) for label, one in devices],
            ),
            (
                "device_condition",
                "gauge",
                "what a device does",
                [({**label, "condition": one.condition}, 1) for label, one in devices],
            ),
            (
                "device_jobs_total",
                "counter",
                "jobs that a device judged",
                [(label, one.jobs_done) for label, one in devices],
            ),
            ("device_job", "gauge", "the job that a device runs", running),
        ]
        lines = [line for name, kind, text, samples in families for line in _render(name, kind, text, [("", samples)])]
        lines += _render("job_seconds", "histogram", "time of a job in its device session", seconds)
        return "".join(f"{line}\n" for line in lines)


def _by(statuses: Iterable[str], counts: Mapping[str, int]) -> Samples:
    return [({"status": status}, counts.get(status, 0)) for status in statuses]


def _render(name: str, kind: str, text: str, series: Iterable[tuple[str, Samples]]) -> list[str]:
    name = f"flashinfer_bench_{name}"
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for ending, samples in series:
        for labels, value in samples:
            told = ",".join(f'{label}="{_escape(what)}"' for label, what in labels.items())
            lines.append(f"{name}{ending}{f'{{{told}}}' if told else ''} {value:.17g}")
    return lines


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
