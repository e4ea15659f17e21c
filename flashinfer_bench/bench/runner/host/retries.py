"""What is tried again, and what is known to fail: jobs whose session was lost, references that end or hang one.

It decides, and starts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.protocol import REFERENCE_PHASE

TRIES: Final = 2
"""A job whose session is lost is run this many times in all, each time on a new session. Then it is a fault."""
HANGS: Final = 2
"""Give a definition up after its reference ran out of time on this many workloads."""


@dataclass
class Retries:
    """How often jobs were tried, and which references are broken."""

    _tries: dict[int, int] = field(default_factory=dict)
    _broken: dict[tuple[str, str], str] = field(default_factory=dict)
    """(definition, workload uuid) → why no device survives its reference."""
    _hung: dict[str, set[str]] = field(default_factory=dict)
    """Definition → uuids of the workloads on which its reference ran out of time."""

    @property
    def broken(self) -> frozenset[tuple[str, str]]:
        """Definition and workload of each reference that no device survives."""
        return frozenset(self._broken)

    def may_retry(self, job: Job, message: str, *, phase: str) -> bool:
        """Count a job whose session was lost in a phase; say whether it is tried once more."""
        self._tries[job.index] = self._tries.get(job.index, 0) + 1
        if self._tries[job.index] < TRIES:
            return True
        if phase == REFERENCE_PHASE:
            self._broken[job.definition.name, job.workload.uuid] = (
                f"its session was lost {TRIES} times while the reference ran: {message}"
            )
        return False

    def give_up_hung(self, job: Job, reason: str) -> str:
        """Note that a job's reference ran out of time; return what to say of it.

        A second try would take as long and end the same way.
        """
        name, uuid = job.definition.name, job.workload.uuid
        self._hung.setdefault(name, set()).add(uuid)
        self._broken[name, uuid] = f"reference of {name}, workload {uuid}: it ran out of time; {reason}"
        return self._broken[name, uuid]

    def known_fault(self, job: Job) -> str | None:
        """Say why a job cannot be judged, as far as has been seen."""
        known = self._broken.get((job.definition.name, job.workload.uuid))
        if known is not None or not self._is_endless(job):
            return known
        hung = ", ".join(sorted(self._hung[job.definition.name]))
        return f"reference of {job.definition.name}: it ran out of time on workloads {hung}"

    def ran_out_of_time(self, job: Job) -> bool:
        """Tell whether a job has no verdict since its reference, or the definition's, ran out of time."""
        return job.workload.uuid in self._hung.get(job.definition.name, ()) or self._is_endless(job)

    def _is_endless(self, job: Job) -> bool:
        return len(self._hung.get(job.definition.name, ())) >= HANGS

    def forget_jobs(self, indices: Iterable[int]) -> None:
        """Forget jobs that have ended."""
        for index in indices:
            self._tries.pop(index, None)
