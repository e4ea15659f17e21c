"""Known failures: solutions and references that run out of time, and references that end every session.

If a call or the import of a solution ran out of time, the solution's other jobs are skipped, since each would take as
long. The session applies this rule to the jobs of its running request, and the host to all other jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from flashinfer_bench.bench.events import JobFaulted
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.protocol import REFERENCE_PHASE
from flashinfer_bench.errors import RanOut

TRIES: Final = 2
"""Number of tries of a job whose session is lost. Each try has a new session. After the last try the job ends as a
fault."""
FIRST_CALLS: Final = 2
"""If a solution's import or first call runs out of time on this many workloads, its jobs are skipped. One such call may
have spent the time compiling. If a reference runs out of time on this many workloads, all jobs of its definition fail.
"""


@dataclass
class HungCalls:
    """Calls of solutions or references that ran out of time, by the key of the solution or the definition."""

    _first_calls: dict[str, dict[str, None]] = field(default_factory=dict)
    """Workloads on which a first call, which may have compiled, or a reference ran out of time."""
    _reasons: dict[str, str] = field(default_factory=dict)

    def note(self, key: str, name: str, workload: str, ran_out: RanOut | None) -> None:
        """Record in which call a solution's job ran out of time. Do nothing if `ran_out` is None."""
        if ran_out == "call":
            self._reasons.setdefault(key, f"{name} ran out of time on workload {workload}")
        elif ran_out == "first call":
            workloads = self._first_calls.setdefault(key, {})
            workloads[workload] = None  # two devices may have tried the same reference at once
            if len(workloads) >= FIRST_CALLS:
                where = " and ".join(workloads)
                self._reasons.setdefault(key, f"{name} ran out of time on workloads {where}")

    def reason(self, key: str) -> str | None:
        """Return why the jobs of a key are not tried; None if they are."""
        return self._reasons.get(key)

    def includes(self, key: str, workload: str) -> bool:
        """Return whether calls on a workload ran out of time, or are not tried for this reason."""
        return key in self._reasons or workload in self._first_calls.get(key, ())

    def forget(self, key: str) -> None:
        """Forget a solution's failures."""
        self._first_calls.pop(key, None)
        self._reasons.pop(key, None)


class KnownFailures:
    """Failures that the host has observed."""

    def __init__(self) -> None:
        self.hung, self._references = HungCalls(), HungCalls()
        self._tries: Counter[int] = Counter()
        self._broken: dict[tuple[str, str], str] = {}
        """(definition, workload) → why the reference cannot run: it runs out of time, or the session is lost each
        time."""

    def find(self, job: Job) -> JobFaulted | None:
        """Return why a job cannot be judged, or is skipped; None if no failure is known."""
        name = job.definition.name
        reason = self._broken.get((name, job.workload.uuid)) or self._references.reason(name)
        if reason is not None:
            return self.fault(job, reason)
        left_out = self.hung.reason(job.solution_key)
        return None if left_out is None else JobFaulted(job, left_out, is_left_out=True)

    def fault(self, job: Job, message: str) -> JobFaulted:
        """Return the fault of a job, including whether its reference ran out of time."""
        is_late = self._references.includes(job.definition.name, job.workload.uuid)
        return JobFaulted(job, message, is_out_of_time=is_late)

    def may_retry(self, job: Job, message: str, phase: str) -> bool:
        """Count that a job's session was lost; return whether the job is tried again. `phase` is the session's last
        phase."""
        self._tries[job.index] += 1
        if self._tries[job.index] < TRIES:
            return True
        if phase == REFERENCE_PHASE:
            lost = f"its session was lost {TRIES} times while the reference ran: {message}"
            self._broken[job.definition.name, job.workload.uuid] = lost
        return False

    def note_hung_reference(self, job: Job, reason: str) -> str:
        """Record that a job's reference ran out of time, so that it is not tried again. Return the message."""
        name, uuid = job.definition.name, job.workload.uuid
        self._references.note(name, f"reference of {name}", uuid, "first call")
        self._broken[name, uuid] = f"reference of {name}, workload {uuid}: it ran out of time; {reason}"
        return self._broken[name, uuid]

    def forget(self, indices: Iterable[int]) -> None:
        """Forget the number of tries of jobs that have ended."""
        for index in indices:
            self._tries.pop(index, None)
