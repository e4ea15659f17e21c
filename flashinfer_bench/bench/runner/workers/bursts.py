"""The outside clock: bursts of calls, timed by the session, against which a claimed latency is held.

What the worker reads is precise, and a solution that has taken its worker over can forge it. What the session reads is
coarse and true: the time from a request to its answer. A burst makes calls back to back, each on content of its own;
then their outputs are brought into the slots, where some are compared like those of any other call:

    one call = (burst + collect - the same for calls that compute nothing - copies) / calls

What the copies of the outputs take the session measures itself. On a CPU the processor time of all that the worker has
started counts too: a call costs the smaller of the two, since a busy machine makes the wall clock run on, and the
processor times of several threads add up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from flashinfer_bench.bench.runner.workers.cpu_time import tree_cpu_time_ns
from flashinfer_bench.bench.runner.workers.remote_clock import Ask, RemoteTrial
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.worker.protocol import BurstDone, Collected

LEAST_SHARE: Final = 0.75
"""A claimed latency below this share of a burst's is refused: a GPU that computes without a pause spends its power and
is up to a quarter slower than one that rests before each call."""
RESOLVED: Final = 4.0
"""A burst resolves its calls when they take this many times what empty bursts differ by."""
WANTED_S: Final = 0.02
"""Seconds that all bursts of a job together take, where calls are quick."""
MOST_ROUNDS: Final = 24
LEAST_NOISE_NS: Final = 5_000.0
"""Bursts differ by this at the least, however alike the empty ones were."""
COPY_MARGIN: Final = 1.5
"""What a worker's copies of outputs may take, as a multiple of what the session's own take."""
AGAIN: Final = 4
"""Times that a burst is made again before a claim is refused: a busy machine delays some."""


@dataclass(frozen=True)
class Confirmation:
    """What bursts say of a claimed latency."""

    burst_ns: float | None
    """What one call costs in a burst; None where bursts do not resolve it."""
    resolution_ns: float
    """What a burst cannot tell from nothing, for one call."""
    why_not: str | None = None
    """Why the latency is not confirmed; None where it is."""

    def to_record(self) -> dict[str, Any]:
        """Return it as fields of a measurement's record."""
        record: dict[str, Any] = {"confirmed": self.why_not is None, "burst_resolution_ms": self.resolution_ns / 1e6}
        if self.burst_ns is not None:
            record["burst_ms"] = self.burst_ns / 1e6
        return record if self.why_not is None else {**record, "not_confirmed": self.why_not}


class BurstTimer:
    """Times bursts of one trial's calls.

    Args:
        ask: asks the worker.
        trial: where the calls lie and what they are given.
        guard_pid: the process above the worker; all below it counts as the worker's.
        now_ns: the session's clock.
    """

    def __init__(
        self,
        ask: Ask,
        trial: RemoteTrial,
        guard_pid: int | None,
        *,
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._ask = ask
        self._trial = trial
        self._guard_pid = guard_pid if trial.asked.device_type == "cpu" else None
        self._now_ns = now_ns
        self._together = trial.asked.device_type == "cuda" and not trial.has_setup
        self.refused: str | None = None
        """Why the calls cannot be made as one graph."""

    def confirm(self, claimed_ns: float, empty_ns: list[float]) -> Confirmation:
        """Hold a claimed latency against bursts.

        Args:
            claimed_ns: latency of one call, `setup` included.
            empty_ns: what bursts of calls that compute nothing took, before the solution was loaded.

        Raises:
            SolutionFailure: RUNTIME_ERROR where bursts take longer than the claim allows, each time.
        """
        calls = len(self._trial.places)
        empty = min(empty_ns)
        resolution_ns = max(median(empty_ns) - empty, LEAST_NOISE_NS) * RESOLVED / calls
        best_ns = self._time_rounds(empty, calls)
        again = 0
        while claimed_ns < LEAST_SHARE * best_ns and best_ns > resolution_ns and again < AGAIN:
            again += 1
            best_ns = min(best_ns, self._time_rounds(empty, calls))
        if best_ns <= resolution_ns:
            return Confirmation(None, resolution_ns, "the call is shorter than a burst resolves")
        if claimed_ns >= LEAST_SHARE * best_ns:
            return Confirmation(best_ns, resolution_ns)
        if self.refused is not None:
            why = f"a burst of calls takes {best_ns / 1e6:.6g} ms a call, and the host may be what holds it up"
            return Confirmation(best_ns, resolution_ns, f"{why}: {self.refused}")
        raise SolutionFailure(
            "RUNTIME_ERROR",
            f"the worker claims {claimed_ns / 1e6:.6g} ms a call; {calls} calls in a row take {best_ns / 1e6:.6g} ms "
            f"each, as timed from outside ({again + 1} times)",
        )

    def _time_rounds(self, empty_ns: float, calls: int) -> float:
        """Return what one call costs in the best of some bursts."""
        best_ns, spent_ns, rounds = float("inf"), 0.0, 0
        while rounds < MOST_ROUNDS and (rounds == 0 or spent_ns < WANTED_S * 1e9):
            start = self._now_ns()
            best_ns = min(best_ns, max(self._time_one(empty_ns), 0.0) / calls)
            spent_ns += self._now_ns() - start
            rounds += 1
        return best_ns

    def _time_one(self, empty_ns: float) -> float:
        """Return what all calls of one burst cost together."""
        trial = self._trial
        indices = list(range(len(trial.places)))
        numbers = trial.write(indices)
        copy_ns = self._time_copies(indices)
        cpu_before, start = tree_cpu_time_ns(self._guard_pid), self._now_ns()
        if trial.has_setup:
            self._ask("burst", BurstDone, "the measurement", indices=indices, part="setup", together=False)
        done = self._ask("burst", BurstDone, "the measurement", indices=indices, part="run", together=self._together)
        if done.refused is not None:
            self.refused, self._together = done.refused, False
            return self._time_one(empty_ns)
        if not done.copied:
            self._ask("collect", Collected, "the measurement", indices=indices, part="run")
        wall_ns = float(self._now_ns() - start)
        cpu_after = tree_cpu_time_ns(self._guard_pid)
        trial.reader.look(indices, numbers)
        outputs = max(1, len(trial.places.outputs(0)))
        off_ns = empty_ns * (outputs + 0.5 * trial.has_setup) + copy_ns
        if cpu_before is None or cpu_after is None:
            return wall_ns - off_ns
        return min(wall_ns, float(cpu_after - cpu_before)) - off_ns

    def _time_copies(self, indices: list[int]) -> float:
        """Return what it takes to copy the outputs of these places, with a margin."""
        outputs = [output for index in indices for output in self._trial.places.outputs(index)]
        start = self._now_ns()
        for output in outputs:
            output.copy_(output.clone())
        self._trial.places.synchronize()
        return COPY_MARGIN * (self._now_ns() - start) / 2
