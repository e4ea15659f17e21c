"""What the server counts, in Prometheus' text format (version 0.0.4), and what /health tells of devices and queue.

Events come from the engine's threads, requests from the event loop: a lock is between them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Any, Final

from flashinfer_bench.bench.events import Event, JobFinished
from flashinfer_bench.serve.documents import OVER
from flashinfer_bench.serve.door import ServedEngine
from flashinfer_bench.serve.live import PENDING, RUNNING
from flashinfer_bench.serve.service import TaskService

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "flashinfer_bench"
BOUNDS_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets of a job's seconds; one without an end comes after them."""


class Metrics:
    """Counts of a server.

    Args:
        engine: is asked for its state, and tells its events.
    """

    def __init__(self, engine: ServedEngine) -> None:
        self._engine = engine
        self._lock = Lock()
        self._buckets = [0] * (len(BOUNDS_S) + 1)
        self._seconds = 0.0
        engine.subscribe(self.observe)

    def observe(self, event: Event) -> None:
        """Count an event of the engine."""
        if isinstance(event, JobFinished):
            with self._lock:
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

    def render(self, service: TaskService) -> str:
        """Return all metrics as text."""
        state = self._engine.state()
        with self._lock:
            buckets, seconds = list(self._buckets), self._seconds
        open_tasks = {status: service.count_open()[status] for status in (PENDING, RUNNING)}
        ended = {status: service.ended[status] for status in OVER}
        up = [({"device": one.label, "hardware": one.hardware}, int(one.healthy)) for one in state.devices]
        conditions = [({"device": one.label, "condition": one.condition}, 1) for one in state.devices]
        running = [({"device": one.label, **_names(one.job)}, 1) for one in state.devices if one.job is not None]
        done = [({"device": one.label}, one.jobs_done) for one in state.devices]
        lines = [
            *_family("uptime_seconds", "gauge", "since the engine began", [({}, state.uptime_s)]),
            *_family("queue_jobs", "gauge", "jobs that no device has begun", [({}, state.queue_size)]),
            *_family("verdicts_per_second", "gauge", "in the last minute", [({}, state.rate_per_s)]),
            *_family("tasks", "gauge", "tasks that are not over", _by("status", open_tasks)),
            *_family("tasks_total", "counter", "tasks that are over", _by("status", ended)),
            *_family("jobs_total", "counter", "jobs that are over", _by("status", state.jobs)),
            *_histogram("job_seconds", "time of a job in its device session", buckets, seconds),
            *_family("device_up", "gauge", "whether a device can judge", up),
            *_family("device_condition", "gauge", "what a device does", conditions),
            *_family("device_jobs_total", "counter", "jobs that a device judged", done),
            *_family("device_job", "gauge", "the job that a device runs", running),
        ]
        return "".join(f"{line}\n" for line in lines)


def _names(job: Any) -> dict[str, str]:
    return {"definition": job.definition, "solution": job.solution, "workload": job.workload}


Samples = Iterable[tuple[Mapping[str, str], float]]


def _by(label: str, counts: Mapping[str, int]) -> Samples:
    return [({label: value}, number) for value, number in counts.items()]


def _family(name: str, kind: str, text: str, samples: Samples) -> list[str]:
    heads = [f"# HELP {PREFIX}_{name} {text}", f"# TYPE {PREFIX}_{name} {kind}"]
    return [*heads, *(f"{PREFIX}_{name}{_labels(labels)} {_number(value)}" for labels, value in samples)]


def _histogram(name: str, text: str, buckets: list[int], total: float) -> list[str]:
    bounds = [*(f"{bound:g}" for bound in BOUNDS_S), "+Inf"]
    sums = [sum(buckets[: index + 1]) for index in range(len(buckets))]
    lines = [f'{PREFIX}_{name}_bucket{{le="{bound}"}} {number}' for bound, number in zip(bounds, sums, strict=True)]
    heads = [f"# HELP {PREFIX}_{name} {text}", f"# TYPE {PREFIX}_{name} histogram"]
    return [*heads, *lines, f"{PREFIX}_{name}_sum {_number(total)}", f"{PREFIX}_{name}_count {sums[-1]}"]


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
