"""The server's metrics in Prometheus' text format (version 0.0.4), and the devices and the queue for /health."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, Final

from flashinfer_bench.bench.engine import Engine
from flashinfer_bench.bench.events import Event, JobFinished

BOUNDS_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, float("inf"))
"""Upper bounds of the buckets for a job's duration, in seconds."""
PREFIX: Final = "flashinfer_bench_"
ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Metrics:
    """The counters of a server.

    Args:
        engine: the source of states and events.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._buckets = [0] * len(BOUNDS_S)
        self._seconds = 0.0
        engine.subscribe(self._observe)

    def _observe(self, event: Event) -> None:
        """Count an event. Only the engine's thread calls this."""
        if isinstance(event, JobFinished):
            self._buckets[bisect_left(BOUNDS_S, event.seconds)] += 1
            self._seconds += event.seconds

    def health(self) -> dict[str, Any]:
        """Return the devices, and the number of waiting jobs."""
        state = self._engine.state()
        workers = [
            {"device": one.label, "healthy": one.healthy, "hardware": one.hardware, "condition": one.condition}
            for one in state.devices
        ]
        return {"workers": workers, "queue_size": state.queue_size}

    def render(self, open_tasks: Mapping[str, int], ended: Mapping[str, int]) -> str:
        """Return all metrics as text.

        Args:
            open_tasks: status → number of open tasks.
            ended: status → number of ended tasks.
        """
        state = self._engine.state()
        devices = {one.label: one for one in state.devices}
        running = {label: one.job for label, one in devices.items() if one.job is not None}
        counts = list(accumulate(self._buckets))
        buckets = zip((*map(str, BOUNDS_S[:-1]), "+Inf"), counts, strict=True)
        families: dict[str, Mapping[str, float]] = {
            "uptime_seconds gauge since the engine began": {"": state.uptime_s},
            "queue_jobs gauge jobs that no device has begun": {"": state.queue_size},
            "verdicts_per_second gauge in the last minute": {"": state.rate_per_s},
            "tasks gauge tasks that are not over": _by_status(("pending", "running"), open_tasks),
            "tasks_total counter tasks that are over": _by_status(("completed", "failed", "cancelled"), ended),
            "jobs_total counter jobs that are over": _by_status(state.jobs, state.jobs),
            "device_up gauge whether a device can judge": {
                _labels(device=label, hardware=one.hardware): one.healthy for label, one in devices.items()
            },
            "device_condition gauge condition of a device": {
                _labels(device=label, condition=one.condition): 1 for label, one in devices.items()
            },
            "device_jobs_total counter jobs that a device judged": {
                _labels(device=label): one.jobs_done for label, one in devices.items()
            },
            "device_job gauge the job that a device runs": {
                _labels(device=label, definition=job.definition, solution=job.solution, workload=job.workload): 1
                for label, job in running.items()
            },
            "device_job_seconds gauge seconds since a device began its job": {
                _labels(device=label): time.time() - job.began_at for label, job in running.items()
            },
            "job_seconds histogram time of a job in its device session": {
                **{f"_bucket{_labels(le=bound)}": count for bound, count in buckets},
                "_sum": self._seconds,
                "_count": counts[-1],
            },
        }
        lines = []
        for family, samples in families.items():
            name, kind, text = family.split(" ", 2)
            lines += [f"# HELP {PREFIX}{name} {text}", f"# TYPE {PREFIX}{name} {kind}"]
            lines += [f"{PREFIX}{name}{labels} {value:.17g}" for labels, value in samples.items()]
        return "".join(f"{line}\n" for line in lines)


def _by_status(statuses: Iterable[str], counts: Mapping[str, int]) -> dict[str, float]:
    return {_labels(status=status): counts.get(status, 0) for status in statuses}


def _labels(**labels: str) -> str:
    pairs = (f'{label}="{text.translate(ESCAPES)}"' for label, text in labels.items())
    return f"{{{','.join(pairs)}}}"
