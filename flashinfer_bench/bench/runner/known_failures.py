"""What is known to fail: solutions and references that run out of time, references that end every session.

A solution of which a call ran out of time has its other jobs left out, since each would take as long again. The session
knows that for the jobs of a request that it has begun, and the host for all others. Nothing is started here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from flashinfer_bench.bench.events import JobFaulted
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.protocol import REFERENCE_PHASE
from flashinfer_bench.errors import RanOut

TRIES: Final = 2
"""A job whose session is lost is run this many times in all, each time on a new session. Then it is a fault."""
HANGS: Final = 2
"""A definition is given up after its reference ran out of time on this many workloads."""
FIRST_CALLS: Final = 2
"""Leave a solution's jobs out after its first call ran out of time on this many workloads: one may have compiled."""


@dataclass
class HungSolutions:
    """What is known of calls that ran out of time, by the key of their solution."""

    _first_calls: dict[str, list[str]] = field(default_factory=dict)
    """The workloads on which a first call ran out that may have compiled."""
    _reasons: dict[str, str] = field(default_factory=dict)

    def note(self, key: str, name: str, workload: str, ran_out: RanOut | None) -> None:
        """Take note of where a solution's job ran out of time; None if it did not, or not in a call."""
        if ran_out == "call":
            self._reasons.setdefault(key, f"left out: a call of {name} ran out of time on workload {workload}")
        elif ran_out == "first call":
            workloads = self._first_calls.setdefault(key, [])
            workloads.append(workload)
            if len(workloads) >= FIRST_CALLS:
                where = " and ".join(workloads)
                self._reasons.setdefault(key, f"left out: first calls of {name} ran out of time on workloads {where}")

    def reason(self, key: str) -> str | None:
        """Return why a solution's jobs are left out; None if they are not."""
        return self._reasons.get(key)

    def forget(self, key: str) -> None:
        """Forget what is known of a solution."""
        self._first_calls.pop(key, None)
        self._reasons.pop(key, None)


class KnownFailures:
    """What the host has seen fail."""

    def __init__(self) -> None:
        self.hung = HungSolutions()
        self._tries: Counter[int] = Counter()
        self._broken: dict[tuple[str, str], str] = {}
        """(definition, workload) → why no session survives its reference."""
        self._hung: defaultdict[str, set[str]] = defaultdict(set)
        """Definition → workloads on which its reference ran out of time."""

    def find(self, job: Job) -> JobFaulted | None:
        """Return why a job cannot be judged, or is left out; None as far as nothing is known."""
        name = job.definition.name
        reason = self._broken.get((name, job.workload.uuid))
        if reason is None and len(self._hung.get(name, ())) >= HANGS:
            hung = ", ".join(sorted(self._hung[name]))
            reason = f"reference of {name}: it ran out of time on workloads {hung}"
        if reason is not None:
            return self.fault(job, reason)
        left_out = self.hung.reason(job.solution_key)
        return None if left_out is None else JobFaulted(job, left_out, is_left_out=True)

    def fault(self, job: Job, message: str) -> JobFaulted:
        """Return the fault of a job, which says whether its reference ran out of time."""
        hung = self._hung.get(job.definition.name, ())
        return JobFaulted(job, message, is_out_of_time=job.workload.uuid in hung or len(hung) >= HANGS)

    def may_retry(self, job: Job, message: str, phase: str) -> bool:
        """Count a job whose session was lost in a phase; return whether it is tried once more."""
        self._tries[job.index] += 1
        if self._tries[job.index] < TRIES:
            return True
        if phase == REFERENCE_PHASE:
            lost = f"its session was lost {TRIES} times while the reference ran: {message}"
            self._broken[job.definition.name, job.workload.uuid] = lost
        return False

    def note_hung_reference(self, job: Job, reason: str) -> str:
        """Note that a job's reference ran out of time: a second try would, too. Return the message."""
        name, uuid = job.definition.name, job.workload.uuid
        self._hung[name].add(uuid)
        self._broken[name, uuid] = f"reference of {name}, workload {uuid}: it ran out of time; {reason}"
        return self._broken[name, uuid]

    def forget(self, indices: Iterable[int]) -> None:
        """Forget how often jobs were tried that have ended."""
        for index in indices:
            self._tries.pop(index, None)
