"""The limits of the resident engine (`EngineLimits`) and its current state (`EngineState`); both are plain values."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from flashinfer_bench.base.stamp import utc_now
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.scheduler import DeviceSlot

DeviceCondition = Literal["resting", "waiting", "starting", "ready", "working", "lost"]


@dataclass(frozen=True)
class EngineLimits:
    """The capacity of the engine, and how long it keeps its devices."""

    queue: int = 10_000
    """Maximum number of open jobs. A task that would exceed this is refused with QueueFull."""
    tasks_per_submitter: int = 1_000
    """Maximum number of open tasks of one submitter. Tasks beyond this number are refused with QueueFull."""
    idle_s: float = 600.0
    """After this many seconds without a job the engine ends its sessions and gives the devices back. The next job
    starts the sessions again, which takes seconds."""
    retry_device_s: float = 60.0
    """Seconds after which a lost device is tried again. If all devices are lost, the engine tries all again for the
    next task."""


class Shown(BaseModel):
    """A frozen value that serialises to JSON."""

    model_config = ConfigDict(frozen=True)


class JobLabel(Shown):
    """Names of a job."""

    index: int
    definition: str
    solution: str
    workload: str
    began_at: float
    """When the device began it, in seconds since 1970."""


class DeviceState(Shown):
    """The state of one device."""

    label: str
    """Such as "cuda:0"."""
    hardware: str
    healthy: bool
    """False while the device is given up: its sessions do not start, or another run keeps its lock."""
    condition: DeviceCondition
    """resting: the device has no session, and gets one with the next job. waiting: another run has its lock. lost:
    given up for some time."""
    since: str
    """When the condition began, as ISO 8601 in UTC."""
    job: JobLabel | None = None
    jobs_done: int = 0
    """Number of jobs that got their verdict on this device."""


class EngineState(Shown):
    """The state of the engine."""

    devices: tuple[DeviceState, ...]
    queue_size: int
    """Number of open jobs that no device has begun."""
    open_tasks: dict[str, int]
    """Submitter → number of tasks that have not ended."""
    jobs: dict[str, int]
    """Status (PASSED, TIMEOUT, …, FAULT, CANCELLED) → number of jobs with that result since the engine began."""
    rate_per_s: float
    """Verdicts a second, in the last minute."""
    uptime_s: float
    is_closed: bool = False


def describe_device(device: Device, slot: DeviceSlot | None, done: int, before: DeviceState | None) -> DeviceState:
    """Return the state of a device.

    Args:
        device: the device.
        slot: its slot in the loop; None if no loop runs.
        done: the device's number of verdicts.
        before: its previous state, if it had one.
    """
    condition: DeviceCondition = "working"
    if slot is None or (slot.session is None and slot.asking is None and slot.given_up_at is None):
        condition = "resting"
    elif slot.given_up_at is not None:
        condition = "lost"
    elif slot.session is None:
        condition = "waiting"
    elif not slot.begun:
        condition = "ready" if slot.session.is_ready else "starting"
    job = slot.begun.get(slot.current) if slot is not None and slot.current is not None else None
    known = before.job if before is not None else None
    return DeviceState(
        label=device.label,
        hardware=device.name,
        healthy=condition != "lost",
        condition=condition,
        since=before.since if before is not None and before.condition == condition else utc_now(),
        job=job
        and JobLabel(
            index=job.index,
            definition=job.definition.name,
            solution=job.solution.name,
            workload=job.workload.uuid,
            began_at=known.began_at if known is not None and known.index == job.index else time.time(),
        ),
        jobs_done=done,
    )
