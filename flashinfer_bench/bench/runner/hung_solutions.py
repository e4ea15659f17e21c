"""Solutions of which a call ran out of time: their other jobs are left out, since each would take as long again.

Both the host and a session keep one: the session has the jobs of a block that it has begun, and the host all others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from flashinfer_bench.errors import RanOut

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
