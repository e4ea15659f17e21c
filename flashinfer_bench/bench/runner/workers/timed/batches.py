"""Batches: calls back to back on a GPU, which the session times to check a reported latency.

The worker's samples are precise, but a solution that controls its worker can forge them. The session's own time from a
request to its answer is coarse but true. Each call of a batch has its own content. After the batch, outputs are copied
into the slots, and some are compared like the outputs of other calls:

    one call = (batch - an empty batch - copies - BEGIN_NS) / calls - a wait that occurs only in a batch

Results stay in place until the batch is over. Then the session overwrites the inputs, and asks for the results, so that
copies are no part of a batch's time. A solution that skipped its work can do this work now only if it saved the inputs.
So the time of fetching, apart from the copies, is charged to the calls. Only results that share memory are copied
within the batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import torch

from flashinfer_bench.bench.runner.workers.timed.call_buffers import FEW_READS, FEWEST_CALLS, GPU_BYTES
from flashinfer_bench.bench.runner.workers.timed.reported_time import (
    CHAIN_REFUSED_SHARE,
    CREDITED_SHARE,
    REFUSED_SHARE,
    Claimed,
    Confirmation,
    find_doubt,
)
from flashinfer_bench.worker.protocol import Called

if TYPE_CHECKING:
    from flashinfer_bench.bench.runner.workers.timed.sampling import Ask
    from flashinfer_bench.bench.runner.workers.timed.timed_calls import TimedCalls
    from flashinfer_bench.bench.runner.workers.worker_handle import Meanwhile

USUAL: Final = 128, 4_000_000
MOST: Final = 640, 1_500_000
"""Limits of a batch: number of calls, and total nanoseconds of the calls. USUAL or MOST applies, whichever allows more
calls. In a short batch the start-up of a GPU that returns to a process would dominate."""
READ_CALLS: Final = 16
"""Number of calls that are compared in the fastest batch. A solution that skips a fifth of its calls rarely passes."""
READ_BYTES: Final = 1 << 28
"""Maximum bytes of a batch's compared calls, which stay in memory until they are compared. FEW_READS calls are compared
in any case."""
RESOLVED_NS: Final = 160_000.0
"""A batch of at least this many nanoseconds resolves its calls. This is four times the variation of empty batches."""
BEGIN_NS: Final = 100_000.0
"""Nanoseconds subtracted from a batch. A GPU that returns to a process must load its addresses and programs again."""
SLACK_NS: Final = 150_000.0
"""Limit in nanoseconds. After a batch is answered, the session uses the GPU for a moment. If the delay is longer than
after an empty batch, the difference is charged to the calls. A delay above SLACK_NS means that the worker answered
before its calls were over. In this case the request's overhead is charged too, and the GPU is used again until the
calls are over."""
STARTS_LATER: Final = 0.15, 5_000.0, 15_000.0
"""A share and two limits in nanoseconds. The part of a call's time between the limits is reduced by the share. In a
graph of many calls each call starts later than in its own graph."""
CACHE_SHARE: Final = 0.3
"""Share of a GPU's cache that holds writes when a call ends."""
MEMORY_BOUND: Final = 0.6, 0.9
"""Limits for the time of copying a call's bytes, as a share of the call's time in a batch. Above the second limit the
call is bound by memory; below the first limit it is not."""
HELD_SHARE: Final = 0.1
"""Share of a call's time. If the wait for the previous call's writes exceeds this share, the excess is subtracted, up
to the same share."""
MARGIN: Final = 1.5
"""The time subtracted for copies is at most this multiple of the time of the session's own copies. The overhead is at
most this multiple of the least overhead of another worker."""
COPIES_SHARE: Final = 0.6
"""Largest share of a batch's time that is subtracted for copies. A worker that its solution controls can report that
results share memory, and write results to the slots directly."""
FETCH_NS: Final = {True: (300_000.0, 4_000.0), False: (500_000.0, 20_000.0)}
"""Nanoseconds allowed for fetching results, besides the copies: for the request, and for each result of a call. True is
for calls and copies in graphs, False for launches by the host. Time beyond this is charged to the calls."""
TRIES: Final = 3
SERIES_S: Final = 0.15
"""The delay until a batch begins varies, so the fastest batch gives the cost of a call. A batch that confirms the
latency is the last batch. Without such a batch, the series has at least TRIES batches and lasts at least SERIES_S
seconds, but it ends after TRIES times SERIES_S seconds. A contradiction needs TRIES times as many batches and seconds.
If TRIES batches do not resolve a call, no more are made."""
EMPTY_CALLS: Final = 1, 65
"""Numbers of calls in small and in large empty batches. The times of small and large batches give the overhead of a
batch. If the second number were small, an empty call would seem long on a busy machine."""
COPIED_BYTES: Final = 256 << 20
"""Bytes of the copies that measure a GPU's time per byte."""


@dataclass(frozen=True)
class BatchOverhead:
    """Overhead of an empty batch, in nanoseconds."""

    request: float = 0.0
    """Nanoseconds for requests and answers, and until the worker has the GPU again."""
    call: float = 0.0
    """Overhead of a call, per output of the call."""
    touch: float = 0.0
    """Nanoseconds until the session has the GPU again after an empty batch."""

    def near(self, least: BatchOverhead | None) -> BatchOverhead:
        """Return this overhead, limited to MARGIN times the least overhead in another worker."""
        if least is None:
            return self
        request, touched = (MARGIN * value for value in (least.request, least.touch))
        return replace(self, request=min(self.request, request), touch=min(self.touch, touched))


def take_overhead(time_batch: Callable[[int], float], touch_device: Callable[[], object]) -> BatchOverhead:
    """Return the overhead of batches. Call it before a solution is loaded.

    Args:
        time_batch: makes a batch with this number of empty calls; returns its nanoseconds.
        touch_device: uses the device in this process, as writing a batch's inputs does.
    """
    few, many = EMPTY_CALLS
    least_ns, touches_ns = {few: math.inf, many: math.inf}, []
    for calls in EMPTY_CALLS * 5:
        start = time.perf_counter_ns()
        touch_device()
        touches_ns.append(time.perf_counter_ns() - start)
        least_ns[calls] = min(least_ns[calls], time_batch(calls))
    call = max(0.0, least_ns[many] - least_ns[few]) / (many - few)
    return BatchOverhead(max(0.0, least_ns[few] - few * call), call, float(median(touches_ns)))


def touch(device: torch.device) -> None:
    """Use a GPU for a moment in this process, so that it returns from a worker's context. A CPU needs nothing.

    Work that another process has enqueued runs until that process's time slice ends. The first call also measures
    copies. The session makes this call before it loads a solution, which could slow the copies down.
    """
    if device.type == "cuda":
        byte_ns(device)
        torch.zeros(1, device=device)
        torch.cuda.synchronize(device)


@cache
def byte_ns(device: torch.device) -> float:
    """Return a GPU's nanoseconds to read or write a byte: the best of twelve own copies. 0 on a CPU."""
    if device.type != "cuda":
        return 0.0
    source, taken_ns = torch.empty(COPIED_BYTES, dtype=torch.uint8, device=device), []
    target = torch.empty_like(source)
    for _ in range(12):
        torch.cuda.synchronize(device)
        start = time.perf_counter_ns()
        target.copy_(source)
        torch.cuda.synchronize(device)
        taken_ns.append(time.perf_counter_ns() - start)
    return min(taken_ns) / (2 * COPIED_BYTES)


def count_batch_calls(claimed_ns: float, size: int, operations: int = 1) -> int:
    """Return the number of calls in a batch. Memory may limit it.

    Batches of calls with many operations have fewer calls, since the operations of a longer graph begin later. Such
    batches still last at least a quarter of USUAL's time.

    Args:
        claimed_ns: latency of one call.
        size: bytes of the inputs and outputs of one call.
        operations: number of operations that one call launches.
    """
    (usual, usual_ns), (most, most_ns) = USUAL, MOST
    few = most // max(operations, 1)
    long, quarter, short = (math.ceil(time_ns / max(claimed_ns, 1.0)) for time_ns in (usual_ns, usual_ns / 4, most_ns))
    calls = min(long, max(usual, min(few, short)), max(few, quarter), GPU_BYTES // max(size, 1))
    return max(FEWEST_CALLS, calls)


def count_batch_reads(size: int) -> int:
    """Return the largest number of compared calls of a batch. `size` is the bytes of the inputs and outputs of one
    call."""
    return min(READ_CALLS, max(FEW_READS, READ_BYTES // max(size, 1)))


class BatchTimer:
    """Times batches of one trial's calls.

    Args:
        trial: the buffers and the inputs of the calls.
        claimed: the worker's report of a call. A graph cannot hold a call that waits for the GPU, and a graph with
            fewer operations is no valid call.
        chain: the result of a chain that did not refuse the latency; None without a chain. Batches do not refuse a
            latency that a chain confirms. In a batch no cache holds large inputs that calls read only in part.
        meanwhile: called while the worker makes the first batch, which is not timed.
        now_ns: the session's clock.
    """

    def __init__(
        self,
        ask: Ask,
        trial: TimedCalls,
        overhead: BatchOverhead,
        claimed: Claimed,
        chain: Confirmation | None = None,
        *,
        meanwhile: Meanwhile | None = None,
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._ask = ask
        self._trial = trial
        self._buffers = trial.buffers
        self._overhead = overhead
        self._chain = chain
        self._most_ns = math.inf if chain is None else chain.most_ns
        self._meanwhile = meanwhile
        self._now_ns = now_ns
        self.refused: str | None = "the call waits for the GPU" if claimed.waits_inside else None
        """Why the calls cannot be made as one graph; None if they can."""
        self._together = not trial.has_setup and not claimed.waits_inside
        self._operations = 0 if claimed.waits_inside else claimed.operations
        self._spoils = trial.returns and not (trial.may_return_inputs and len(self._buffers) == 1)
        """Whether results are fetched after the inputs are overwritten. This does not apply to results that are copied
        at once, such as results in the inputs' memory, which the first of several batches shows."""
        self._outputs = self._buffers.outputs(0)
        self._written = sum(output.nbytes for output in self._outputs)
        """Bytes of the outputs of one call."""
        self._calls = 0
        self._best_ns = math.inf
        self._was_copied = False
        """Whether the results of the latest batch were copied within the batch."""
        self._is_strided = False
        """Whether copying results changed their layout in memory. Such copies count as work of the calls, and are not
        subtracted."""

    def confirm(self, claimed_ns: float) -> Confirmation:
        """Check a reported latency against batches.

        Args:
            claimed_ns: latency of one call, including `setup`.

        Raises:
            ClaimContradicted: all batches take longer than the report allows (RUNTIME_ERROR).
            SolutionFailure: a change of the machine's speed cannot explain the difference.
        """
        resolution_ns = RESOLVED_NS / len(self._buffers)
        if len(self._buffers) > 1:
            self._run(self._meanwhile)  # this batch shows whether results share memory; its outputs are not compared
            if self._was_copied and self._together:
                self._run()  # capture the graph with the copies
            elif self._trial.returns and self._together:
                self._collect()  # capture the separate graph that only copies results
        start, batches = self._now_ns(), 0
        while True:
            cost_ns, batches = self._time_one(), batches + 1
            best_ns, spent_s = self._best_ns, (self._now_ns() - start) / 1e9
            is_open = best_ns > resolution_ns
            times = TRIES if is_open and claimed_ns < REFUSED_SHARE * best_ns else 1
            is_enough = spent_s > times * SERIES_S * (1 if batches >= times * TRIES else TRIES)
            is_decided = resolution_ns < cost_ns <= claimed_ns / CREDITED_SHARE
            if is_decided or is_enough or (batches >= TRIES and not is_open):
                break
        # Results whose layout differs from their slots' layout may be views that leave the work to the reader.
        share = REFUSED_SHARE if self._chain is None or self._is_strided else CHAIN_REFUSED_SHARE
        if self._chain is not None and self._chain.why_not is None:
            share = 0.0
        doubt: str | None = "the call is shorter than a batch resolves"
        if is_open:
            tried, below_ns = f"{batches} batches", share * best_ns
            doubt = find_doubt(claimed_ns, best_ns, "batch", tried, host=self.refused, refused_below_ns=below_ns)
        record = {"burst_calls": self._calls, "burst_resolution_ms": resolution_ns / 1e6}
        record |= {"burst_ms": best_ns / 1e6} if best_ns else {}
        return Confirmation("batch", CREDITED_SHARE * best_ns, doubt, record)

    def _time_one(self) -> float:
        """Return the cost of one call of a batch. Calls are compared if their batch has the least cost so far."""
        trial, calls, outputs = self._trial, len(self._buffers), len(self._outputs)
        numbers, spent_ns = self._run()
        copies = trial.returns and self._was_copied
        if copies:
            spent_ns -= min(self._copies_ns(), COPIES_SHARE * spent_ns)
        elif trial.returns:
            spent_ns += self._fetch()
        if copies or not self._together:  # a graph without copies has no launch overhead
            spent_ns -= calls * self._overhead.call * max(1, outputs)
        cost_ns = max(spent_ns - self._overhead.request - BEGIN_NS, 0.0) / calls
        share, begin_ns, end_ns = STARTS_LATER
        later_ns = share * max(0.0, min(cost_ns, end_ns) - begin_ns)
        cost_ns = min(max(cost_ns - later_ns - self._held_ns(cost_ns), 0.0), self._most_ns)
        is_best = cost_ns <= self._best_ns
        if is_best:
            self._best_ns = cost_ns
            trial.begin()
        has_inputs = self._was_copied or not self._spoils
        trial.check_calls(range(calls), numbers, chooses=is_best, has_inputs=has_inputs)
        return cost_ns

    def _request(self, method: str, **more: Any) -> Called:
        fields = {"first": len(self._buffers), "part": self._trial.part, "together": self._together, **more}
        done: Called = self._ask(method, Called, "the measurement", **fields)
        return done

    def _run(self, meanwhile: Meanwhile | None = None) -> tuple[list[int], float]:
        """Make one batch; return the numbers of its calls, and its nanoseconds."""
        numbers = self._trial.write(range(len(self._buffers)))
        self._calls += len(numbers)
        start = self._now_ns()
        done = self._request("burst", meanwhile=meanwhile, operations=self._operations)
        if done.refused is not None:
            self.refused, self._together = done.refused, False
            return self._run()
        self._was_copied, self._is_strided = done.copied, self._is_strided or done.strided
        return numbers, self._now_ns() - start + self._wait_for_gpu()

    def _fetch(self) -> float:
        """Have the worker copy a batch's results into their slots; return the nanoseconds charged to the calls."""
        if self._spoils:
            self._buffers.spoil_inputs()
        once_ns, result_ns = FETCH_NS[self._together]
        start = self._now_ns()
        self._collect()
        spent_ns = self._now_ns() - start + self._wait_for_gpu()
        results = len(self._buffers) * len(self._outputs)
        return max(0.0, spent_ns - once_ns - result_ns * results - self._copies_ns())

    def _collect(self) -> None:
        """Have the worker copy a batch's results into their slots."""
        self._is_strided = self._request("collect").strided or self._is_strided

    def _wait_for_gpu(self) -> float:
        """Use the GPU after a request is answered; return the nanoseconds charged to the worker (see SLACK_NS)."""
        counts_ns, hidden_ns = 0.0, 0.0
        for _ in range(200):  # a worker can keep its GPU busy for ever
            start = self._now_ns()
            touch(self._buffers.arena.device)
            late_ns = max(0.0, self._now_ns() - start - self._overhead.touch)
            counts_ns += late_ns
            if late_ns <= SLACK_NS:
                break
            hidden_ns = self._overhead.request + self._overhead.touch
        return counts_ns + hidden_ns

    def _copies_ns(self) -> float:
        """Return the nanoseconds that may be subtracted for copies of the outputs of all calls."""
        copied = 2 * len(self._buffers) * self._written
        return 0.0 if self._is_strided else MARGIN * copied * byte_ns(self._buffers.arena.device)

    def _held_ns(self, cost_ns: float) -> float:
        """Return the nanoseconds that a call in a batch waits for the previous call's writes.

        A call alone leaves its last writes in the cache, and ends before they reach memory. In a batch, a next call
        that is bound by memory waits for these writes.
        """
        device = self._buffers.arena.device
        if device.type != "cuda" or cost_ns <= 0:
            return 0.0
        cached = CACHE_SHARE * float(torch.cuda.get_device_properties(device).L2_cache_size)
        return held_up_ns(cost_ns, self._buffers.stride, min(float(self._written), cached), byte_ns(device))


def held_up_ns(cost_ns: float, moved_bytes: int, held_bytes: float, per_byte_ns: float) -> float:
    """Return the nanoseconds that a call waits for the previous call's bytes in the cache, minus a small share of the
    call. Pure.

    Args:
        cost_ns: cost of the call in a batch.
        moved_bytes: bytes of the call's inputs and outputs.
        held_bytes: bytes written by the previous call.
        per_byte_ns: nanoseconds to read or write a byte, as measured by copies.
    """
    begin, end = MEMORY_BOUND
    waits = min(max((moved_bytes * per_byte_ns / cost_ns - begin) / (end - begin), 0.0), 1.0)
    small_ns = HELD_SHARE * cost_ns
    return min(max(0.0, waits * held_bytes * per_byte_ns - small_ns), small_ns)
