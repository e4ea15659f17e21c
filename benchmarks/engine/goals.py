"""What a row is held against: one value, one limit, and the rule that the limit comes from.

Seconds of a whole command are held against I, the seconds that `import torch` takes on the machine, and so many more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

ISOLATED_RATIO: Final = 1.5
"""A worker for each job may take this many times as long as a worker for each solution."""
SCALING: Final = 0.9
"""All devices together have to be this share of their number faster than one: 3.6 times with four."""
IDLE_SHARE: Final = 0.05
"""No device may be idle for a larger share of the time between the first verdict and the last."""


@dataclass(frozen=True)
class Check:
    """One value of a row against its limit."""

    what: str
    value: float | None
    """None where the run did not get as far."""
    limit: float
    rule: str
    """Where the limit comes from, in words."""
    unit: str = "s"
    at_least: bool = False

    @property
    def is_held(self) -> bool:
        """Whether the goal is met."""
        if self.value is None:
            return False
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def document(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        value = None if self.value is None else round(self.value, 3)
        side = "at least" if self.at_least else "at most"
        limit = round(self.limit, 3)
        return {
            "what": self.what,
            "value": value,
            side: limit,
            "unit": self.unit,
            "rule": self.rule,
            "held": self.is_held,
        }


def within(what: str, seconds: float | None, import_s: float, extra_s: float) -> Check:
    """Hold seconds against the import and so many more."""
    return Check(what, seconds, import_s + extra_s, f"I + {extra_s:g} s")


def hold_isolated(isolated_s: float | None, persistent_s: float, floor_s: float | None) -> Check:
    """Hold a worker for each job against a worker for each solution, and against the floor, whichever is more.

    Args:
        isolated_s: seconds of the command with a worker for each job.
        persistent_s: the same with a worker for each solution.
        floor_s: what a command takes that imports torch and makes as many contexts; None on a CPU, which has none.
    """
    limit, rule = ISOLATED_RATIO * persistent_s, f"{ISOLATED_RATIO:g} x persistent"
    if floor_s is not None and floor_s > limit:
        return Check("isolated", isolated_s, floor_s, "I + its contexts")
    return Check("isolated", isolated_s, limit, rule)


def hold_scaling(one_s: float, all_s: float, devices: int) -> Check:
    """Hold the seconds of all devices against those of one."""
    speedup = one_s / all_s if all_s > 0 else None
    return Check("speed-up", speedup, SCALING * devices, f"{SCALING:g} x {devices} devices", "x", at_least=True)


def hold_idle(shares: Mapping[str, float]) -> Check:
    """Hold the device that is idle most."""
    worst = max(shares.values(), default=None)
    return Check("idle", worst, IDLE_SHARE, "share without work, worst device", "")


def hold_verdicts(odd: int) -> Check:
    """Hold the verdicts: every job has one, none has two, and each is the right one."""
    return Check("odd verdicts", odd, 0, "each job once, and judged right", "")
