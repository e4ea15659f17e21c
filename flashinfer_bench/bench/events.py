"""The events of a run: frozen values that `Benchmark.run` yields in the order in which they happen.

The command line draws them; `run_all` keeps the traces. No event needs an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.data import Trace


@dataclass(frozen=True)
class RunStarted:
    """The run begins to set up its devices."""

    devices: tuple[Device, ...]
    jobs: int


@dataclass(frozen=True)
class JobStarted:
    """A device took the job up."""

    job: Job
    device: Device


@dataclass(frozen=True)
class JobFinished:
    """The job has its verdict; if results are saved, the trace is already on disk."""

    job: Job
    trace: Trace
    device: Device
    seconds: float
    """Wall time of the job in its device session."""


@dataclass(frozen=True)
class JobFaulted:
    """The job has no verdict: it was skipped, or the engine, the data or the machine failed."""

    job: Job
    message: str
    is_out_of_time: bool = False
    """Whether the reference reached the job's time limit, and no other error is known."""
    is_left_out: bool = False
    """Whether the job was skipped because a call of its solution ran out of time in another job of the run."""


@dataclass(frozen=True)
class Notice:
    """A notice for the user: a lock that is waited for, a session that was restarted."""

    message: str


@dataclass(frozen=True)
class JobsAdded:
    """The run has additional jobs: the best solution of a finished workload is judged again at full assurance."""

    jobs: int


Event = RunStarted | JobStarted | JobFinished | JobFaulted | JobsAdded | Notice
