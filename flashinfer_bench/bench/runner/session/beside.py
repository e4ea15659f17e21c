"""Times the reference in turns with a solution, on one core, where both wait for the GPU inside.

The host's time is part of such calls, and differs by half between cores and from second to second on a machine that
others use, too. So how many times as fast a solution is comes from rounds of both. Its latency does not.

The reference has a worker and memory of its own. The solution is held still while it is the reference's turn, and the
GPU has to be free then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from flashinfer_bench.base.quiet_cores import find_quiet_core
from flashinfer_bench.bench.evaluators.inputs.memory import bytes_of, recently_free_bytes, total_bytes
from flashinfer_bench.bench.runner.workers.kernel import RemoteKernel
from flashinfer_bench.bench.runner.workers.kernel_task import TurnPlace, Waiting
from flashinfer_bench.bench.runner.workers.timed.empty_bursts import BurstOverhead
from flashinfer_bench.bench.runner.workers.timed.turns import (
    OF_BURSTS,
    OF_CALLS,
    count_calls,
    count_single_calls,
    find_hindrance,
    take_turns,
    tell,
)
from flashinfer_bench.data import Performance
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.timing.clocks import ClockLost, Lead
from flashinfer_bench.worker.cuda_memory import CudaMemoryError

FREE_NS: Final = 150_000
"""A GPU is free if it comes back to the session in no longer than it does after an empty burst, and this. Where another
process's kernel runs, it comes after that one's time slice, of 2 ms."""
MOST_BYTES: Final = 1 << 28
"""Calls with more bytes of inputs take no turns: the reference's lie in memory of their own."""
FREE_SHARE: Final = 0.25
"""Nor do they where less of a GPU's memory is free than this: a solution might miss what the reference takes."""
MOST_OF_ALONE: Final = 2.0
"""The ratio is told as no more than this multiple of that of times that were taken one after the other."""
TURNS: Final = "turns"
"""What the rounds tell stands under this name in a measurement's record."""


class ReferenceLost(Exception):
    """The reference's worker failed while it was timed in turns with a solution."""


@contextmanager
def as_reference() -> Iterator[None]:
    """Have what fails here be the reference's failure, which is not the solution's beside it."""
    try:
        yield
    except SolutionFailure as failure:
        raise ReferenceLost(failure.message.splitlines()[0]) from None


class ReferenceKernel(RemoteKernel):
    """A reference that is called beside a solution."""

    def _ask(self, verb: str, expected: type[Any], what: str, **fields: Any) -> Any:
        with as_reference():
            return super()._ask(verb, expected, what, **fields)


@dataclass(frozen=True)
class ReferenceBeside:
    """Times a job's reference in turns with its solution (`kernel_task.Beside`).

    Args:
        open_reference: returns the reference as a kernel, loaded, with memory that no solution maps.
        end_reference: ends its worker.
        settle: waits until nothing else goes on.
        call_ms: what a call of the reference takes alone.
    """

    open_reference: Callable[[], ReferenceKernel]
    end_reference: Callable[[], None]
    settle: Callable[[], object]
    call_ms: float

    def __call__(self, kernel: RemoteKernel, inputs: list[Any], number: int, call: Waiting) -> dict[str, Any]:
        """Return what the rounds tell, or why they tell nothing.

        Raises:
            SolutionFailure: the solution failed in its turn.
        """
        hindrance = find_hindrance(call.latency_ms, self.call_ms, kernel.left_s) or _find_lack(kernel.device, inputs)
        if hindrance is not None:
            return {TURNS: {"why_not": hindrance}}
        try:
            return {TURNS: self._take(kernel, inputs, number, call)}
        except (ReferenceLost, CudaMemoryError, torch.OutOfMemoryError) as error:
            self.end_reference()
            return {TURNS: {"why_not": f"the reference could not be called beside the solution: {error}"}}
        except ClockLost as lost:
            return {TURNS: {"why_not": str(lost)}}

    def _take(self, kernel: RemoteKernel, inputs: list[Any], number: int, call: Waiting) -> dict[str, Any]:
        reference = self.open_reference()
        reference.call_once(inputs)  # what compiles at the first call may use all cores
        self.settle()
        core, overhead = find_quiet_core(), join_overheads(kernel.worker.overhead, reference.worker.overhead)

        @contextmanager
        def free_gpu() -> Iterator[bool]:
            kernel.worker.rest_all()
            start = time.perf_counter_ns()
            torch.zeros(1, device=kernel.device).item()  # what is computed, and what is copied, holds this up
            yield time.perf_counter_ns() - start <= overhead.touch + FREE_NS

        with kernel.worker.resting(also_on_gpu=True), reference.worker.resting(also_on_gpu=True):
            single = count_single_calls(call.latency_ms, self.call_ms)
            place = TurnPlace(core, count_calls(call.latency_ms), overhead, single)
            own = kernel.open_side(inputs, number, call.lead, place)
            other = reference.open_side(inputs, number, Lead(), replace(place, calls=count_calls(self.call_ms)))
            kernel.worker.rest_all()
            with own.clock, other.clock:
                calls = take_turns(own.take_calls, as_reference()(other.take_calls), free_gpu, OF_CALLS)
            bursts = take_turns(own.take_burst, as_reference()(other.take_burst), free_gpu, OF_BURSTS)
            kernel.close_side()
        return tell(calls, bursts)


def join_overheads(own: BurstOverhead, other: BurstOverhead) -> BurstOverhead:
    """Return what bursts of two workers take of themselves: both are held against the same.

    Of the request it is the least, since who has taken his worker over need not spend it.
    """
    return replace(own, request=min(own.request, other.request), touch=max(own.touch, other.touch))


def _find_lack(device: torch.device, inputs: list[Any]) -> str | None:
    """Return why there is too little memory for a reference beside a solution; None where there is enough."""
    if bytes_of(inputs) > MOST_BYTES:
        return "the inputs are too large for the reference to have them beside"
    is_short = device.type == "cuda" and recently_free_bytes(device) < FREE_SHARE * total_bytes(device)
    return "too little of the GPU's memory is free for the reference beside" if is_short else None


def told_in_turns(performance: Performance, record: Any) -> Performance:
    """Return a solution's times, with the reference's as the rounds tell it: the solution's times their ratio.

    Args:
        performance: by times that were taken one after the other.
        record: the measurement's.
    """
    turns = record.get(TURNS) if isinstance(record, dict) else None
    ratio = turns.get("ratio") if isinstance(turns, dict) else None
    if not ratio or not performance.latency_ms or not performance.speedup_factor:
        return performance
    speedup = min(ratio, MOST_OF_ALONE * performance.speedup_factor)
    return performance.model_copy(
        update={"reference_latency_ms": speedup * performance.latency_ms, "speedup_factor": speedup}
    )
