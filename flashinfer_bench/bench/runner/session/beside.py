"""Times the reference in turns with a solution, on one core, where both wait for the GPU inside.

The host's time is part of such calls, and differs by half between cores and from second to second on a machine that
others use, too. So how many times as fast a solution is comes from rounds of both. Its latency does not.

The reference has a worker and memory of its own. The solution is held still while it is the reference's turn, and the
GPU has to be free then.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch

from flashinfer_bench.bench.runner.workers.kernel import RemoteKernel
from flashinfer_bench.bench.runner.workers.timed.empty_bursts import touch
from flashinfer_bench.bench.runner.workers.timed.turns import Turns, take_turns
from flashinfer_bench.data import Performance
from flashinfer_bench.errors import DeviceFault, SolutionFailure
from flashinfer_bench.timing.clocks import ClockLost, Lead
from flashinfer_bench.worker.cuda_memory import CudaMemoryError

FREE_NS: Final = 500_000
"""A GPU is free if it comes back to the session in no longer than it does after an empty burst, and this. Where another
process's kernel runs, it comes after that one's time slice, of 2 ms."""
MOST_CORES: Final = 32
"""No more cores are looked at."""
LOOP: Final = 2_000
"""Steps of a loop by which cores are compared: a tenth of a millisecond."""
FIELD: Final = "turns"


class ReferenceLost(Exception):
    """The reference's worker failed while it was timed in turns with a solution."""


class ReferenceKernel(RemoteKernel):
    """A reference whose failure is not taken for the solution's beside it."""

    def _ask(self, verb: str, expected: type[Any], what: str, **fields: Any) -> Any:
        try:
            return super()._ask(verb, expected, what, **fields)
        except SolutionFailure as failure:
            raise ReferenceLost(failure.message.splitlines()[0]) from None


@dataclass(frozen=True)
class ReferenceBeside:
    """Times a job's reference in turns with its solution (`kernel_task.Beside`).

    Args:
        open_reference: returns the reference as a kernel, loaded and called once, with memory that no solution maps.
        end_reference: ends its worker.
        settle: waits until nothing else goes on.
        device: where they run.
    """

    open_reference: Callable[[], ReferenceKernel]
    end_reference: Callable[[], None]
    settle: Callable[[], object]
    device: torch.device

    def __call__(self, kernel: RemoteKernel, inputs: list[Any], number: int, lead: Lead) -> dict[str, Any]:
        """Return what the rounds tell, or why they tell nothing.

        Raises:
            SolutionFailure: the solution failed in its turn.
        """
        try:
            turns = self._take(kernel, inputs, number, lead)
        except (ReferenceLost, DeviceFault, CudaMemoryError, torch.OutOfMemoryError) as error:
            self.end_reference()
            return {FIELD: {"why_not": f"the reference could not be called beside the solution: {error}"}}
        except ClockLost as lost:
            return {FIELD: {"why_not": str(lost)}}
        return {FIELD: turns.to_record()}

    def _take(self, kernel: RemoteKernel, inputs: list[Any], number: int, lead: Lead) -> Turns:
        reference = self.open_reference()
        self.settle()
        core = find_quiet_core()

        @contextmanager
        def free_gpu() -> Iterator[bool]:
            kernel.worker.rest_all()
            start = time.perf_counter_ns()
            touch(self.device)
            yield time.perf_counter_ns() - start <= kernel.worker.overhead.touch + FREE_NS

        with (
            kernel.worker.resting(also_on_gpu=True),
            kernel.open_side(inputs, number, core, lead) as own,
            reference.open_side(inputs, number, core, Lead()) as other,
        ):
            kernel.worker.rest_all()
            return take_turns(own.take, other.take, free_gpu)


def find_quiet_core() -> int | None:
    """Return the core on which a short loop is quickest; None where this process has one only."""
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        return None
    took_ns: dict[int, int] = {}
    try:
        for core in sorted(allowed)[-MOST_CORES:]:
            os.sched_setaffinity(0, {core})
            took_ns[core] = min(_time_loop() for _ in range(2))
    finally:
        os.sched_setaffinity(0, allowed)
    return min(took_ns, key=lambda core: took_ns[core])


def _time_loop() -> int:
    start, total = time.perf_counter_ns(), 0
    for step in range(LOOP):
        total += step
    return time.perf_counter_ns() - start


def told_in_turns(performance: Performance, record: Any) -> Performance:
    """Return a solution's times, with the reference's as the rounds tell it: the solution's times their ratio.

    Args:
        performance: by times that were taken one after the other.
        record: the measurement's.
    """
    turns = record.get(FIELD) if isinstance(record, dict) else None
    ratio = turns.get("ratio") if isinstance(turns, dict) else None
    if not ratio or not performance.latency_ms or not performance.reference_latency_ms:
        return performance
    reference_ms = ratio * performance.latency_ms
    return performance.model_copy(update={"reference_latency_ms": reference_ms, "speedup_factor": ratio})
