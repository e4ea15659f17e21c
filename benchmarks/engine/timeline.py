"""The events of one run, as numbers: the first verdict, the last, who was idle, what is missing.

Seconds count from the start of the command's process.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

Job = tuple[str, str, str]
"""Definition, solution, workload."""


@dataclass(frozen=True)
class Happened:
    """One event of a run."""

    at_s: float
    kind: str
    """started, finished, faulted, notice, or run: the run begins, with so many `jobs` on these `devices`. Of a device:
    it begins to time a reference (reference), or does something else again (next)."""
    job: Job | None = None
    device: str = ""
    status: str = ""
    message: str = ""
    jobs: int = 0
    devices: tuple[str, ...] = ()
    reference_ms: float | None = None
    is_cached: bool = False
    """The time of the reference is of an earlier run."""


def read_events(text: str, start_s: float) -> list[Happened]:
    """Read the lines that `drive.py` writes; `start_s` is when the process began, by the same clock."""
    found = []
    for line in text.splitlines():
        given: dict[str, Any] = json.loads(line)
        given |= {key: tuple(given[key]) for key in ("job", "devices") if key in given}
        found.append(Happened(given.pop("at") - start_s, **given))
    return found


@dataclass(frozen=True)
class Timeline:
    """The events of one run, in order."""

    events: list[Happened]

    @property
    def verdicts(self) -> list[Happened]:
        """The verdicts."""
        return [event for event in self.events if event.kind == "finished"]

    @property
    def first_verdict_s(self) -> float | None:
        """When the first verdict came."""
        return next((event.at_s for event in self.verdicts), None)

    @property
    def busy_s(self) -> float:
        """Seconds from the first job's start to the last verdict: the run without its start-up."""
        starts = [event.at_s for event in self.events if event.kind == "started"]
        return self.verdicts[-1].at_s - min(starts) if starts and self.verdicts else 0.0

    @property
    def reference_ms(self) -> float | None:
        """What a call of the reference takes: the median over the verdicts."""
        times = [event.reference_ms for event in self.verdicts if event.reference_ms]
        return median(times) if times else None

    @property
    def cached(self) -> int:
        """Verdicts whose baseline is of an earlier run."""
        return sum(event.is_cached for event in self.verdicts)

    def statuses(self) -> dict[str, int]:
        """Count the verdicts by status."""
        return dict(Counter(event.status for event in self.verdicts))

    def idle_shares(self) -> dict[str, float]:
        """Return device → share of the time between the first verdict of the run and the last in which it was idle.

        It is idle while it has no job and makes no baseline, which begins with the wait for the reference's worker.
        """
        if len(self.verdicts) < 2:
            return {}
        begin_s, end_s = self.verdicts[0].at_s, self.verdicts[-1].at_s
        opened: dict[Job, float] = {}
        spans: dict[str, list[tuple[float, float]]] = {device: [] for one in self.events for device in one.devices}
        timing: dict[str, float] = {}
        for event in self.events:
            if event.kind == "reference":
                timing.setdefault(event.device, event.at_s)
            elif event.device in timing and event.kind in ("next", "finished"):
                spans[event.device].append((timing.pop(event.device), event.at_s))
            if event.job is None:
                continue
            if event.kind == "started":
                opened[event.job] = event.at_s
            elif event.kind == "finished":
                spans[event.device].append((opened.pop(event.job, event.at_s), event.at_s))
        length_s = end_s - begin_s
        return {
            device: 1 - covered_s(found, begin_s, end_s) / length_s if length_s > 0 else 0.0
            for device, found in sorted(spans.items())
        }

    def find_odd(self, expected: Mapping[Job, str] | None) -> list[str]:
        """Tell what is odd about the verdicts: missing ones, jobs with two, wrong ones, faults.

        Args:
            expected: job → its status; None where every job has to be PASSED and the run knows how many there are.
        """
        seen = Counter(event.job for event in self.verdicts)
        odd = [f"{name(job)}: {number} verdicts" for job, number in seen.items() if number > 1]
        odd += [f"{name(event.job)}: no verdict: {event.message}" for event in self.events if event.kind == "faulted"]
        for event in self.verdicts:
            wanted = "PASSED" if expected is None else expected.get(event.job or ("", "", ""), "not in the set")
            if event.status != wanted:
                odd.append(f"{name(event.job)}: {event.status}, expected: {wanted}. {event.message}".rstrip())
        if expected is None:
            jobs = max((event.jobs for event in self.events), default=0)
            odd += [f"{jobs - len(seen)} of {jobs} jobs have no verdict"] if len(seen) < jobs or not jobs else []
        else:
            odd += [f"{name(job)}: no verdict" for job in expected if job not in seen]
        return odd


def name(job: Job | None) -> str:
    """Return the names of a job."""
    return " / ".join(job or ("no job",))


def covered_s(spans: Iterable[tuple[float, float]], begin_s: float, end_s: float) -> float:
    """Return how many seconds between two times lie in one of the spans at least."""
    total_s, reached_s = 0.0, begin_s
    for start_s, stop_s in sorted(spans):
        total_s += max(0.0, min(stop_s, end_s) - max(start_s, reached_s))
        reached_s = max(reached_s, stop_s)
    return total_s
