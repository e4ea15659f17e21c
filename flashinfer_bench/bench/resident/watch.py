"""Keeps count of what the engine does, for `Engine.state`."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Final

from flashinfer_bench.base.stamp import utc_now
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.resident.state import DeviceCondition, DeviceState, EngineState, JobLabel
from flashinfer_bench.bench.runner.host.station import Station

RATE_S: Final = 60.0
"""Seconds before now over which verdicts are counted for the rate; fewer while the engine is younger."""


class EngineWatch:
    """Counts what ends, and notes what each device does.

    Args:
        devices: the engine's.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self._began = time.monotonic()
        self._counts: Counter[str] = Counter()
        self._done: Counter[str] = Counter()
        """Device → its verdicts."""
        self._ends: deque[float] = deque()
        now = utc_now()
        self._devices = tuple(
            DeviceState(label=one.label, hardware=one.name, healthy=True, condition="resting", since=now)
            for one in devices
        )
        self._waiting_jobs = 0

    def count(self, status: str, jobs: int = 1) -> None:
        """Count jobs that ended."""
        if jobs:
            self._counts[status] += jobs

    def count_verdict(self, device: Device) -> None:
        """Count a verdict that was reached on a device."""
        self._done[device.label] += 1
        self._ends.append(time.monotonic())
        self._trim()

    def look(self, stations: Iterable[Station]) -> None:
        """Note what each device does."""
        self._devices = tuple(
            _describe(station, before, self._done[before.label])
            for station, before in zip(stations, self._devices, strict=True)
        )

    def describe(self, open_jobs: int, open_tasks: dict[str, int], *, is_closed: bool) -> EngineState:
        """Return all that is known."""
        self._trim()
        uptime_s = time.monotonic() - self._began
        running = sum(device.job is not None for device in self._devices)
        return EngineState(
            devices=self._devices,
            queue_size=max(0, open_jobs - running),
            open_tasks=open_tasks,
            jobs=dict(self._counts),
            rate_per_s=len(self._ends) / max(1.0, min(RATE_S, uptime_s)),
            uptime_s=uptime_s,
            is_closed=is_closed,
        )

    def _trim(self) -> None:
        while self._ends and self._ends[0] < time.monotonic() - RATE_S:
            self._ends.popleft()


def _describe(station: Station, before: DeviceState, done: int) -> DeviceState:
    condition = _condition_of(station)
    job = station.open_jobs.get(station.current) if station.current is not None else None
    label = job and JobLabel(
        index=job.index, definition=job.definition.name, solution=job.solution.name, workload=job.workload.uuid
    )
    if (condition, label, done) == (before.condition, before.job, before.jobs_done):
        return before
    return before.model_copy(
        update={
            "healthy": condition != "lost",
            "condition": condition,
            "since": before.since if condition == before.condition else utc_now(),
            "job": label,
            "jobs_done": done,
        }
    )


def _condition_of(station: Station) -> DeviceCondition:
    if station.given_up_at is not None:
        return "lost"
    if station.client is None:
        return "waiting" if station.asking is not None else "resting"
    if not station.client.is_ready:
        return "starting"
    return "working" if station.open_jobs else "ready"
