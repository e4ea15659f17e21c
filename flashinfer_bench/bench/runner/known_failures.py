"""What the host knows to fail: solutions and references that run out of time, references that end every session.

It decides, and starts nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

from flashinfer_bench.bench.events import JobFaulted
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.hung_solutions import HungSolutions
from flashinfer_bench.bench.runner.protocol import REFERENCE_PHASE

TRIES: Final = 2
"""A job whose session is lost is run this many times in all, each time on a new session. Then it is a fault."""
HANGS: Final = 2
"""A definition is given up after its reference ran out of time on this many workloads."""


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
