"""On a CPU compilers would disturb a measurement: this says whose turn it is.

In a run every solution is built before the first job. The resident engine cannot wait for that, since there may always
be another build. There compilers and jobs have the processor in turns, while both have work; compilers are held still
while jobs run. A GPU's jobs run beside compilers.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from flashinfer_bench.compile import BuildFarm


class BuildTurns:
    """Says whether jobs may begin on a CPU, and holds the compilers still meanwhile.

    Args:
        farm: runs the compilers.
        turn_s: seconds of a turn; None: no job begins before everything is built.
        now: monotonic seconds.
    """

    def __init__(self, farm: BuildFarm, turn_s: float | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._farm = farm
        self._turn_s = turn_s
        self._now = now
        self._since: float | None = None
        """When the turn began; None where only one side has work."""

    @property
    def may_measure(self) -> bool:
        """Whether a job may begin."""
        return not self._farm.open_builds or (self._farm.is_held and not self._is_over)

    def begin_builds(self, *, is_busy: bool) -> None:
        """Builds are about to be added: while a job runs, they wait for their turn."""
        if self._turn_s is not None and is_busy and not self._farm.open_builds:
            self._farm.hold()
            self._since = self._now()

    def update(self, *, is_busy: bool, is_waiting: bool) -> None:
        """Give the turn to the other side where it is over.

        Args:
            is_busy: a job runs.
            is_waiting: a job could begin.
        """
        if self._turn_s is None:
            return
        if not self._farm.open_builds:
            self._farm.release()
            self._since = None
            return
        if self._since is None:
            self._since = self._now()
        if self._farm.is_held and not is_busy and (self._is_over or not is_waiting):
            self._farm.release()
            self._since = self._now()
        elif not self._farm.is_held and is_waiting and self._is_over:
            self._farm.hold()
            self._since = self._now()

    @property
    def _is_over(self) -> bool:
        if self._turn_s is None or self._since is None:
            return False
        return self._now() - self._since >= self._turn_s
