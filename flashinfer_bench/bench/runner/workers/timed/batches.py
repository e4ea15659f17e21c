"""Batches: calls back to back on a GPU, timed by the session, against which a reported latency is held.

What the worker reads is precise, and a solution that has taken its worker over can forge it. What the session reads is
coarse and true: the time from a request to its answer. Each call of a batch has content of its own. Then
outputs are brought into the slots, where some are compared like those of any other call:

    one call = (batch - an empty batch - copies - BEGIN_NS) / calls - what it waits for in a batch alone

Results stay where they are until the batch is over. Then the session spoils the inputs, and asks for the results, so
copies are no part of a batch's time. A solution that has not computed them can do it no more, unless it has saved the
inputs: fetching beyond the copies counts as the calls'. Only results that share memory are copied within the batch.
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

from flashinfer_bench.bench.runner.workers.timed.call_places import FEW_READS, FEWEST_CALLS, GPU_BYTES
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
    from flashinfer_bench.bench.runner.workers.process import Meanwhile
    from flashinfer_bench.bench.runner.workers.timed.sampling import Ask
    from flashinfer_bench.bench.runner.workers.timed.timed_calls import TimedCalls

USUAL: Final = 128, 4_000_000
MOST: Final = 640, 1_500_000
"""Calls of a batch at most, and nanoseconds that they take: those of USUAL, or those of MOST if these are more calls. A
GPU that comes back to a process has a start-up that a short batch would be made of, and what is taken off a batch as a
whole is shared by its calls."""
READ_CALLS: Final = 16
"""Calls that are compared of the batch that counts. A solution that leaves out a fifth passes once in 35 times."""
READ_BYTES: Final = 1 << 28
"""Bytes of the compared calls of a batch, at most, but for FEW_READS: they are kept until then."""
RESOLVED_NS: Final = 160_000.0
"""A batch resolves its calls if they take this together: four times what empty batches differ by."""
BEGIN_NS: Final = 100_000.0
"""Taken off a batch as a whole: a GPU that comes back to a process has none of its addresses and programs at hand."""
SLACK_NS: Final = 150_000.0
"""Once a batch is answered the session uses the GPU for a moment. Its time beyond the time after an empty batch counts
as the calls'. If it is more than this, the worker has answered before its calls were over: they hid the request, so
that is not taken off either, and the GPU is used again until they are over, since the driver gives it to each process
for 2 ms in turn."""
STARTS_LATER: Final = 0.15, 5_000.0, 15_000.0
"""Taken off each call is this share of its time between these times (nanoseconds): in a graph of many calls each starts
later after the one before than in a graph of its own."""
CACHE_SHARE: Final = 0.3
"""Share of a GPU's cache that holds writes when a call ends."""
MEMORY_BOUND: Final = 0.6, 0.9
"""A call waits for memory if a copy of its bytes takes the second of these shares of its time in a batch, and does not
below the first."""
HELD_SHARE: Final = 0.1
"""Share of a call that its wait for the writes of the call before may take without being taken off; no more than as
much again is."""
MARGIN: Final = 1.5
"""What may be taken off is no more than this multiple of the session's own copies, and of the least overhead of another
worker."""
COPIES_SHARE: Final = 0.6
"""Copies take no more than this share off a batch. A worker that is taken over may say that its results share memory,
and write them where they are to be copied to."""
FETCH_NS: Final = {True: (300_000.0, 4_000.0), False: (500_000.0, 20_000.0)}
"""Nanoseconds of a request that fetches results beside the copies, and of each result of a call, if calls and copies
are graphs and if the worker's host launches each. Time beyond that counts as the calls'."""
TRIES: Final = 3
SERIES_S: Final = 0.15
"""A batch begins sooner or later, and the best one tells the cost of its calls. TRIES batches are made, and more for
this time, until one confirms the latency. A latency is contradicted by TRIES times as many, in TRIES times as long. If
TRIES batches do not resolve a call, that is the end, too: each is one more look at outputs."""
EMPTY_CALLS: Final = 1, 65
"""Calls of small and of large batches that compute nothing, by which the session knows the cost of a batch itself. The
second is large: else a busy machine makes an empty call seem long."""
COPIED_BYTES: Final = 256 << 20
"""Bytes of the copies by which a GPU's time to read or write a byte is known."""


@dataclass(frozen=True)
class BatchOverhead:
    """What a batch takes that has nothing to compute, in nanoseconds."""

    request: float = 0.0
    """Its requests and their answers, and the GPU's return to the worker."""
    call: float = 0.0
    """Each of its calls, for each output."""
    touch: float = 0.0
    """What the session's own GPU takes to come back once such a batch is answered."""

    def near(self, least: BatchOverhead | None) -> BatchOverhead:
        """Return this overhead, no further from the least that was seen in another worker than workers differ."""
        if least is None:
            return self
        request, touched = (MARGIN * value for value in (least.request, least.touch))
        return replace(self, request=min(self.request, request), touch=min(self.touch, touched))


def take_overhead(time_batch: Callable[[int], float], touch_device: Callable[[], object]) -> BatchOverhead:
    """Return what batches take of themselves; call it before a solution is loaded.

    Args:
        time_batch: makes a batch of a number of empty calls; returns its nanoseconds.
        touch_device: uses the device in this process, as writing the inputs of a batch does.
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
    """Use a GPU for a moment in this process, which has to come back from a worker's context for that.

    What another process has enqueued goes on until its time slice ends. On a CPU nothing is done. The first time, what
    copies take is measured, too: no solution is loaded then that could make them slower.
    """
    if device.type == "cuda":
        byte_ns(device)
        torch.zeros(1, device=device)
        torch.cuda.synchronize(device)


@cache
def byte_ns(device: torch.device) -> float:
    """Return what a GPU takes to read a byte or to write one, by the best of twelve own copies; 0 on a CPU."""
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
    """Return how many calls a batch has, as far as memory allows.

    Calls of many operations have fewer, but as many as take a quarter of USUAL: the operations of a longer graph begin
    later.

    Args:
        claimed_ns: latency of one call.
        size: bytes of the inputs and outputs of one call.
        operations: that one call launches.
    """
    (usual, usual_ns), (most, most_ns) = USUAL, MOST
    few = most // max(operations, 1)
    long, quarter, short = (math.ceil(time_ns / max(claimed_ns, 1.0)) for time_ns in (usual_ns, usual_ns / 4, most_ns))
    calls = min(long, max(usual, min(few, short)), max(few, quarter), GPU_BYTES // max(size, 1))
    return max(FEWEST_CALLS, calls)


def count_batch_reads(size: int) -> int:
    """Return how many calls of a batch are compared at most, by the bytes of the inputs and outputs of one."""
    return min(READ_CALLS, max(FEW_READS, READ_BYTES // max(size, 1)))


class BatchTimer:
    """Times batches of one trial's calls.

    Args:
        ask: asks the worker.
        trial: where the calls lie and what they are given.
        overhead: what batches take of themselves.
        claimed: what the worker says of a call. No graph can hold one that waits for the GPU, and a graph that holds
            fewer operations stands for no call.
        chain: the result of a chain, if one was run. It has not refused the latency. Batches refuse nothing that it
            confirms: if calls read little of large inputs, caches do not hold it.
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
        self._places = trial.places
        self._overhead = overhead
        self._chain = chain
        self._most_ns = math.inf if chain is None else chain.most_ns
        self._meanwhile = meanwhile
        self._now_ns = now_ns
        self.refused: str | None = "the call waits for the GPU" if claimed.waits_inside else None
        """Why the calls cannot be made as one graph."""
        self._together = not trial.has_setup and not claimed.waits_inside
        self._operations = 0 if claimed.waits_inside else claimed.operations
        self._spoils = trial.returns and not trial.may_return_inputs
        """Results are fetched once the inputs are gone, unless each is copied at once."""
        self._outputs = self._places.outputs(0)
        self._written = sum(output.nbytes for output in self._outputs)
        """Bytes of the outputs of one call."""
        self._calls = 0
        self._best_ns = math.inf
        self._was_copied = False
        """The results of the latest batch were copied within it."""
        self._is_strided = False
        """To copy results changed how they lie in memory. That is the calls' work, and is not taken off."""

    def confirm(self, claimed_ns: float) -> Confirmation:
        """Hold a reported latency against batches.

        Args:
            claimed_ns: latency of one call, `setup` included.

        Raises:
            ClaimContradicted: RUNTIME_ERROR; batches take longer than the report allows, each time.
            SolutionFailure: the same, and far longer.
        """
        resolution_ns = RESOLVED_NS / len(self._places)
        if len(self._places) > 1:
            self._run(self._meanwhile)  # it tells the worker whether results share memory; nobody reads it
            if self._was_copied and self._together:
                self._run()  # the graph that has the copies is made
            elif self._trial.returns and self._together:
                self._collect()  # the graph of the copies is made
        start, batches = self._now_ns(), 0
        while True:
            cost_ns, batches = self._time_one(), batches + 1
            best_ns, spent_s = self._best_ns, (self._now_ns() - start) / 1e9
            is_open = best_ns > resolution_ns
            times = TRIES if is_open and claimed_ns < REFUSED_SHARE * best_ns else 1
            is_enough = spent_s > times * SERIES_S * (1 if batches >= times * TRIES else TRIES)
            is_settled = resolution_ns < cost_ns <= claimed_ns / CREDITED_SHARE
            if is_settled or is_enough or (batches >= TRIES and not is_open):
                break
        # Results that lie otherwise than their slots are a view, perhaps, which leaves the work to its reader.
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
        """Return what one call of a batch costs; if it is the least so far, calls of this batch are compared."""
        trial, calls, outputs = self._trial, len(self._places), len(self._outputs)
        numbers, spent_ns = self._run()
        copies = trial.returns and self._was_copied
        if copies:
            spent_ns -= min(self._copies_ns(), COPIES_SHARE * spent_ns)
        elif trial.returns:
            spent_ns += self._fetch()
        if copies or not self._together:  # other calls of a graph take nothing but their own time
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

    def _request(self, verb: str, **more: Any) -> Called:
        fields = {"first": len(self._places), "part": self._trial.part, "together": self._together, **more}
        done: Called = self._ask(verb, Called, "the measurement", **fields)
        return done

    def _run(self, meanwhile: Meanwhile | None = None) -> tuple[list[int], float]:
        """Make one batch; return the numbers of its calls, and the time that it took."""
        numbers = self._trial.write(range(len(self._places)))
        self._calls += len(numbers)
        start = self._now_ns()
        done = self._request("burst", meanwhile=meanwhile, operations=self._operations)
        if done.refused is not None:
            self.refused, self._together = done.refused, False
            return self._run()
        self._was_copied, self._is_strided = done.copied, self._is_strided or done.strided
        return numbers, self._now_ns() - start + self._wait_for_gpu()

    def _fetch(self) -> float:
        """Have the worker bring what the calls of a batch gave into their slots; return what of it counts as theirs."""
        if self._spoils:
            self._places.spoil_inputs()
        once_ns, result_ns = FETCH_NS[self._together]
        start = self._now_ns()
        self._collect()
        spent_ns = self._now_ns() - start + self._wait_for_gpu()
        results = len(self._places) * len(self._outputs)
        return max(0.0, spent_ns - once_ns - result_ns * results - self._copies_ns())

    def _collect(self) -> None:
        """Have the worker bring what the calls of a batch gave into their slots."""
        self._is_strided = self._request("collect").strided or self._is_strided

    def _wait_for_gpu(self) -> float:
        """Use the GPU once a request is answered; return what of that counts as the worker's (see SLACK_NS)."""
        counts_ns, hidden_ns = 0.0, 0.0
        for _ in range(200):  # a worker may keep its GPU busy for ever
            start = self._now_ns()
            touch(self._places.arena.device)
            late_ns = max(0.0, self._now_ns() - start - self._overhead.touch)
            counts_ns += late_ns
            if late_ns <= SLACK_NS:
                break
            hidden_ns = self._overhead.request + self._overhead.touch
        return counts_ns + hidden_ns

    def _copies_ns(self) -> float:
        """Return what may be taken off for copies of the outputs of all calls."""
        copied = 2 * len(self._places) * self._written
        return 0.0 if self._is_strided else MARGIN * copied * byte_ns(self._places.arena.device)

    def _held_ns(self, cost_ns: float) -> float:
        """Return how much longer a call takes in a batch than alone, since it waits for what the one before wrote.

        A call alone leaves its last writes in the cache, and is over before they are in memory. In a batch the next one
        waits for them if memory is what it waits for anyway.
        """
        device = self._places.arena.device
        if device.type != "cuda" or cost_ns <= 0:
            return 0.0
        cached = CACHE_SHARE * float(torch.cuda.get_device_properties(device).L2_cache_size)
        return held_up_ns(cost_ns, self._places.stride, min(float(self._written), cached), byte_ns(device))


def held_up_ns(cost_ns: float, moved_bytes: int, held_bytes: float, per_byte_ns: float) -> float:
    """Return what a call waits for bytes that lie in the cache, beyond a small share of it. Pure.

    Args:
        cost_ns: of the call in a batch.
        moved_bytes: of its inputs and outputs.
        held_bytes: written by the call before.
        per_byte_ns: time to read a byte or to write one, as copies do.
    """
    begin, end = MEMORY_BOUND
    waits = min(max((moved_bytes * per_byte_ns / cost_ns - begin) / (end - begin), 0.0), 1.0)
    small_ns = HELD_SHARE * cost_ns
    return min(max(0.0, waits * held_bytes * per_byte_ns - small_ns), small_ns)
