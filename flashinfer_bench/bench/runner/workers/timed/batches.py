"""Batches: calls back to back on a GPU, timed by the session, against which a claimed latency is held.

What the worker reads is precise, and a solution that has taken its worker over can forge it. What the session reads is
coarse and true: the time from a request to its answer. Each call of a batch has content of its own; then
outputs are brought into the slots, where some are compared like those of any other call:

    one call = (batch - an empty batch - copies - BEGIN_NS) / calls - what it starts later in a long graph

Results stay where they are until the batch is over. Then the session spoils the inputs, and asks for the
results, so copies are no part of a batch's time. Who has not computed them cannot do it any more, unless he has saved
the inputs; what fetching takes beyond copies counts as the calls'. Only results that share memory are copied within the
batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import torch

from flashinfer_bench.bench.runner.workers.timed.along import NOTHING_ALONG, Along
from flashinfer_bench.bench.runner.workers.timed.call_places import FEWEST_CALLS, GPU_BYTES
from flashinfer_bench.bench.runner.workers.timed.confirmation import (
    REFUSED_SHARE,
    Confirmation,
    Outside,
    find_doubt,
)
from flashinfer_bench.bench.runner.workers.timed.readings import CREDITED_SHARE
from flashinfer_bench.worker.protocol import BurstDone, Collected

if TYPE_CHECKING:
    from flashinfer_bench.bench.runner.workers.timed.remote_clock import Ask
    from flashinfer_bench.bench.runner.workers.timed.trial import RemoteTrial

LONG_NS: Final = 4_000_000
USUAL_CALLS: Final = 128
MOST_CALLS: Final = 640
SHORT_NS: Final = 1_500_000
"""A batch has as many calls as take the first of these, up to USUAL_CALLS, or as many as take the last. A GPU that
comes back to a process has a start-up that a short batch would be made of, and what is taken off a batch as a
whole is shared by its calls: of 128 calls of 3 us who forges readings was told as 1.4 times too fast (H100)."""
READ_CALLS: Final = 16
"""Calls that are compared of the batch that counts. Who leaves out a fifth passes once in 35 times."""
FEW_READS: Final = 6
"""The same where calls are large, and of a chain: who leaves out half of its calls passes once in 400 times."""
READ_BYTES: Final = 1 << 28
"""Calls of a batch that are compared take no more than this, but for FEW_READS: they are kept until then."""
RESOLVED: Final = 4.0
LEAST_NOISE_NS: Final = 40_000.0
"""A batch resolves its calls when they take the first of these times what empty batches differ by, and that is no less
than the second, however alike they were."""
BEGIN_NS: Final = 250_000.0
"""Taken off a batch as a whole: a GPU that comes back to a process has none of its addresses and
programs at hand. Honest batches of 8 to 128 calls took up to 500 us more than their calls and an empty one (H200)."""
SLACK_NS: Final = 150_000.0
"""Once a batch is answered the session uses the GPU for a moment. What that takes beyond what it takes after
an empty batch counts as the calls'. Where it is more than this, the worker has answered before its calls were over:
they hid the request, so that is not taken off either, and the GPU is used again until they are over, since the driver
gives it to each process for 2 ms in turn. Honest touches took up to 120 us more, one in fifty far more (H100). Empty
batches that differ by more are taken again."""
MOST_TOUCHES: Final = 200
"""A worker that keeps its GPU busy for ever is waited for so often."""
START_SHARE: Final = 0.15
START_SPAN_NS: Final = 5_000.0, 15_000.0
"""Taken off each call is this share of what it takes between these times: in a graph of many calls each starts later
after the one before than in a graph of its own."""
MARGIN: Final = 1.5
"""What may be taken off is no more than this multiple of what the session's own copies take, and of the least
overhead that was seen in another worker."""
COPIES_SHARE: Final = 0.6
"""What copies take off a batch is no more than this share of it: of a kernel that only writes two thirds are copies.
Who has taken the worker over may say that its results share memory, and write them where they are to be copied to."""
FETCH_NS: Final = {True: (300_000.0, 4_000.0), False: (500_000.0, 20_000.0)}
"""What the request that fetches results may take beside the copies, and each result of a call, where calls and copies
are graphs and where the worker's host launches each: the GPU comes back to the worker once more (see BEGIN_NS). What it
takes beyond counts as the calls': who has saved the inputs may compute then."""
TRIES: Final = 3
SERIES_S: Final = 0.15
"""A batch begins sooner or later, and the best of a series tells what its calls take: of the first of these at the
least, and of as many as there is time for, fewer where three times that is over. One that confirms the claim ends it:
the best of more would be lower still. One that does not resolve a call ends it when there are so many: such a
claim may be forged, and each batch is one more look at outputs that were not computed in time. So many series are
taken before a claim is contradicted: a busy machine delays some."""
EMPTY_BATCHES: Final = 5
EMPTY_CALLS: Final = 1, 65
"""Batches of few and of many calls that compute nothing, by which the session knows what a batch itself takes. The few
are one: a request that launches nothing does not bring the GPU back to the worker. With 8 in place of 64 a busy machine
made an empty call seem to take up to 20 us (it takes 2), which was taken off each call of a solution."""
CACHE_SHARE: Final = 0.3
"""As much of a GPU's cache holds writes when a call ends. Sums of 16 million elements, 20 us, took 4 to 9 us longer in
batches (H100, 50 MB)."""
MEMORY_BOUND: Final = 0.6, 0.9
"""A call waits for memory where a copy of its bytes takes the second of these shares of what it takes in a batch, and
does not below the first."""
HELD_SHARE: Final = 0.1
"""Of what a call waits for the writes of the one before so much of it is not taken off, and no more than as much again
is: a claim may lie a fifth below its batch anyway, and who forges readings gains by it (1.45 times without that)."""
COPIED_BYTES: Final = 256 << 20
COPIES: Final = 12
"""What a GPU takes to read or write a byte is known by the best of so many copies."""


@dataclass(frozen=True)
class BatchOverhead:
    """What a batch takes that has nothing to compute, in nanoseconds."""

    request: float = 0.0
    """Its requests and their answers, and the GPU's return to the worker."""
    call: float = 0.0
    """Each of its calls, for each output."""
    noise: float = 0.0
    """How much batches differ."""
    touch: float = 0.0
    """What the session's own GPU takes to come back once such a batch is answered."""

    @classmethod
    def of(cls, few_ns: Sequence[float], many_ns: Sequence[float], touches_ns: Sequence[float]) -> BatchOverhead:
        """Return what follows from times of batches of EMPTY_CALLS, and of the touches before them."""
        few, many = EMPTY_CALLS
        call = max(0.0, min(many_ns) - min(few_ns)) / (many - few)
        request = max(0.0, min(few_ns) - few * call)
        return cls(request, call, median(many_ns) - min(many_ns), float(median(touches_ns)))

    def near(self, least: BatchOverhead | None) -> BatchOverhead:
        """Return this overhead, no further from the least that was seen in another worker than workers differ."""
        if least is None:
            return self
        request, touched = (MARGIN * value for value in (least.request, least.touch))
        return replace(self, request=min(self.request, request), touch=min(self.touch, touched))


def take_overhead(time_batch: Callable[[int], float], touch_device: Callable[[], object]) -> BatchOverhead:
    """Return what batches take of themselves; call it before a solution is loaded.

    Args:
        time_batch: makes a batch of so many empty calls; returns what it took, in nanoseconds.
        touch_device: uses the device in this process, as writing the inputs of a batch does.
    """
    few: list[float] = []
    many: list[float] = []
    touches_ns: list[float] = []
    for _ in range(TRIES):
        for _ in range(EMPTY_BATCHES):
            for calls, taken in zip(EMPTY_CALLS, (few, many), strict=True):
                start = time.perf_counter_ns()
                touch_device()
                touches_ns.append(time.perf_counter_ns() - start)
                taken.append(time_batch(calls))
        if median(many) - min(many) <= SLACK_NS:
            break
    return BatchOverhead.of(few, many, touches_ns)


def touch(device: torch.device) -> None:
    """Use a GPU for a moment in this process, which has to come back from a worker's context for that.

    What another process has enqueued goes on until its time slice ends. On a CPU nothing is done. The first time, what
    copies take is measured, too: no solution is loaded then that could make them slower.
    """
    if device.type == "cuda":
        byte_ns(device)
        torch.zeros(1, device=device)
        torch.cuda.synchronize(device)


def count_batch_calls(claimed_ns: float, size: int, operations: int = 1) -> int:
    """Return how many calls a batch has, as far as memory allows.

    Calls of many operations have fewer, but as many as take a quarter of LONG_NS: in a graph of 1,500 operations each
    begins 0.5 us later than in one of 600 (H100).

    Args:
        claimed_ns: latency of one call.
        size: bytes of the inputs and outputs of one call.
        operations: that one call launches.
    """
    few = MOST_CALLS // max(operations, 1)
    long, quarter, short = (math.ceil(time_ns / max(claimed_ns, 1.0)) for time_ns in (LONG_NS, LONG_NS / 4, SHORT_NS))
    calls = min(long, max(USUAL_CALLS, min(few, short)), max(few, quarter), GPU_BYTES // max(size, 1))
    return max(FEWEST_CALLS, calls)


def count_batch_reads(size: int) -> int:
    """Return how many calls of a batch are compared at the most, of so many bytes of inputs and outputs each."""
    return min(READ_CALLS, max(FEW_READS, READ_BYTES // max(size, 1)))


class BatchTimer:
    """Times batches of one trial's calls.

    Args:
        ask: asks the worker.
        trial: where the calls lie and what they are given.
        operations: a call launches so many on a GPU; a graph that holds fewer of it stands for no call. None where the
            call waits for the GPU, so no graph can hold it.
        most_ns: a call does not cost more than this.
        now_ns: the session's clock.

    `overhead` is what batches take of themselves;
    `refused_share` the share of what a call costs below which a claim is refused; `meanwhile` is done while the worker
    makes its graphs, which takes 10 to 20 ms of its host and no time of the GPU.
    """

    def __init__(
        self,
        ask: Ask,
        trial: RemoteTrial,
        *,
        operations: int | None = 0,
        most_ns: float = math.inf,
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._ask = ask
        self._trial = trial
        self._most_ns = most_ns
        self._now_ns = now_ns
        self.refused_share = REFUSED_SHARE
        self.meanwhile: Callable[[Callable[[], bool]], object] | None = None
        self._calls = 0
        self._is_strided = False
        """To copy results changed how they lie in memory. That is the calls' work, and is not taken off."""
        self.overhead = BatchOverhead()
        self._best_ns = math.inf
        self._was_copied = False
        """The results of the latest batch were copied within it."""
        self.refused: str | None = "the call waits for the GPU" if operations is None else None
        """Why the calls cannot be made as one graph."""
        part = "both" if trial.has_setup else "run"
        together = not trial.has_setup and operations is not None
        indices = list(range(len(trial.places)))
        self._fields: dict[str, Any] = {"indices": indices, "part": part, "together": together}
        self._operations = operations or 0

    def confirm(self, claimed_ns: float, overhead: BatchOverhead, *, is_believed: bool = False) -> Confirmation:
        """Hold a claimed latency against batches.

        Args:
            claimed_ns: latency of one call, `setup` included.
            overhead: what batches take of themselves.
            is_believed: the claim is not refused: another look has confirmed it.

        Raises:
            ClaimContradicted: RUNTIME_ERROR; batches take longer than the claim allows, each time.
            SolutionFailure: the same, and far longer.
        """
        self.overhead = overhead
        resolution_ns = RESOLVED * max(overhead.noise, LEAST_NOISE_NS) / len(self._trial.places)
        if len(self._trial.places) > 1:
            along = Along(meanwhile=self.meanwhile)
            self._run(along)  # it tells the worker whether results share memory; nobody reads it
            if self._was_copied and self._fields["together"]:
                self._run()  # the graph that has the copies is made
            elif self._trial.returns and self._fields["together"]:
                self._collect(along)  # the graph of the copies is made
        best_ns, series = math.inf, 0
        while series < TRIES and (not series or (resolution_ns < best_ns and claimed_ns < REFUSED_SHARE * best_ns)):
            best_ns = min(best_ns, self._take_series(resolution_ns, claimed_ns / CREDITED_SHARE))
            series += 1
        if best_ns <= resolution_ns:
            why_not = "the call is shorter than a batch resolves"
            return Confirmation(best_ns or None, resolution_ns, why_not, calls=self._calls)
        # Results that lie otherwise than their slots are a view, perhaps, which leaves the work to its reader.
        best = Outside("batch", best_ns, REFUSED_SHARE if self._is_strided else self.refused_share)
        doubt = find_doubt(claimed_ns, best, f"{series} series", refused=self.refused, is_believed=is_believed)
        return Confirmation(best_ns, resolution_ns, doubt, calls=self._calls)

    def _take_series(self, above_ns: float, up_to_ns: float) -> float:
        """Take some batches; return what one call costs in the best of them.

        A cost of one call above the first of these and up to the second settles the claim.
        """
        start, costs_ns = self._now_ns(), [self._time_one()]
        while not above_ns < costs_ns[-1] <= up_to_ns:
            spent_s, is_long = (self._now_ns() - start) / 1e9, len(costs_ns) >= TRIES
            if spent_s > (SERIES_S if is_long else TRIES * SERIES_S) or (is_long and min(costs_ns) <= above_ns):
                break
            costs_ns.append(self._time_one())
        return min(costs_ns)

    def _time_one(self) -> float:
        """Return what one call of a batch costs; where it is the least so far, calls of this batch are compared."""
        trial, overhead = self._trial, self.overhead
        places = trial.places
        numbers, spent_ns = self._run()
        if trial.returns and self._was_copied:
            copies_ns = 0.0 if self._is_strided else min(self._copies_ns(), COPIES_SHARE * spent_ns)
            spent_ns -= copies_ns
        elif trial.returns:
            spent_ns += self._fetch()
        # Calls of a graph whose results are not copied take nothing but their own time.
        if not self._fields["together"] or (trial.returns and self._was_copied):
            spent_ns -= len(places) * overhead.call * max(1, len(places.outputs(0)))
        cost_ns = max((max(spent_ns - overhead.request, 0.0) - BEGIN_NS) / len(places), 0.0)
        written = sum(output.nbytes for output in places.outputs(0))
        held_ns = write_back_ns(cost_ns, places.stride, written, places.arena.device)
        cost_ns = min(max(cost_ns - started_later_ns(cost_ns) - held_ns, 0.0), self._most_ns)
        is_best = cost_ns <= self._best_ns
        if is_best:
            self._best_ns = cost_ns
            trial.reader.begin()
        has_inputs = self._was_copied or not self._spoils
        trial.reader.look(self._fields["indices"], numbers, chooses=is_best, has_inputs=has_inputs)
        return cost_ns

    @property
    def _spoils(self) -> bool:
        """Whether results are fetched once the inputs are gone, unless each is copied at once."""
        return self._trial.returns and not self._trial.may_return_inputs

    def _run(self, along: Along = NOTHING_ALONG) -> tuple[list[int], float]:
        """Make one batch; return the numbers of its calls, and the time that it took."""
        trial, fields = self._trial, self._fields
        numbers = trial.write(fields["indices"])
        self._calls += len(numbers)
        start = self._now_ns()
        done = self._ask("burst", BurstDone, "the measurement", along=along, operations=self._operations, **fields)
        if done.refused is not None:
            self.refused, fields["together"] = done.refused, False
            return self._run()
        self._was_copied, self._is_strided = done.copied, self._is_strided or done.strided
        return numbers, self._now_ns() - start + self._wait_for_gpu()

    def _fetch(self) -> float:
        """Have the worker bring what the calls of a batch gave into their slots; return what of it counts as theirs."""
        places = self._trial.places
        if self._spoils:
            places.spoil_inputs(len(places))
        start = self._now_ns()
        self._collect()
        spent_ns = self._now_ns() - start + self._wait_for_gpu()
        once_ns, result_ns = FETCH_NS[self._fields["together"]]
        spent_ns -= once_ns + result_ns * len(places) * len(places.outputs(0))
        return max(0.0, spent_ns - self._copies_ns()) if spent_ns > 0 and not self._is_strided else max(0.0, spent_ns)

    def _collect(self, along: Along = NOTHING_ALONG) -> None:
        """Have the worker bring what the calls of a batch gave into their slots."""
        done = self._ask("collect", Collected, "the measurement", along=along, **self._fields)
        self._is_strided = self._is_strided or done.strided

    def _wait_for_gpu(self) -> float:
        """Use the GPU once a request is answered; return what of that counts as the worker's (see SLACK_NS)."""
        counts_ns, hidden_ns = 0.0, 0.0
        for _ in range(MOST_TOUCHES):
            start = self._now_ns()
            touch(self._trial.places.arena.device)
            late_ns = max(0.0, self._now_ns() - start - self.overhead.touch)
            counts_ns += late_ns
            if late_ns <= SLACK_NS:
                break
            hidden_ns = self.overhead.request + self.overhead.touch
        return counts_ns + hidden_ns

    def _copies_ns(self) -> float:
        """Return what it takes to copy the outputs of all calls, with a margin."""
        places = self._trial.places
        size = len(places) * sum(output.nbytes for output in places.outputs(0))
        return MARGIN * 2 * size * byte_ns(places.arena.device)


def started_later_ns(cost_ns: float) -> float:
    """Return how much later a call starts in a graph of many, by what it costs there. Pure."""
    begin_ns, end_ns = START_SPAN_NS
    return START_SHARE * max(0.0, min(cost_ns, end_ns) - begin_ns)


def write_back_ns(cost_ns: float, moved_bytes: int, written_bytes: int, device: torch.device) -> float:
    """Return how much longer a call takes in a batch than alone, since it waits for what the one before wrote.

    A call alone leaves its last writes in the cache, and is over before they are in memory. In a batch the next one
    waits for them where memory is what it waits for anyway. 0 on a CPU.

    Args:
        cost_ns: what it takes in a batch.
        moved_bytes: of its inputs and outputs.
        written_bytes: of its outputs.
        device: where it runs.
    """
    if device.type != "cuda" or cost_ns <= 0:
        return 0.0
    held = CACHE_SHARE * float(torch.cuda.get_device_properties(device).L2_cache_size)
    return held_up_ns(cost_ns, moved_bytes, min(float(written_bytes), held), byte_ns(device))


def held_up_ns(cost_ns: float, moved_bytes: int, held_bytes: float, per_byte_ns: float) -> float:
    """Return what a call waits for bytes that lie in the cache, beyond a small share of it. Pure.

    Args:
        cost_ns: what the call takes in a batch.
        moved_bytes: of its inputs and outputs.
        held_bytes: written by the call before.
        per_byte_ns: what it takes to read a byte or to write one, as copies do.
    """
    begin, end = MEMORY_BOUND
    waits = min(max((moved_bytes * per_byte_ns / cost_ns - begin) / (end - begin), 0.0), 1.0)
    small_ns = HELD_SHARE * cost_ns
    return min(max(0.0, waits * held_bytes * per_byte_ns - small_ns), small_ns)


@cache
def byte_ns(device: torch.device) -> float:
    """Return what a GPU takes to read a byte or to write one, by the session's own copies; 0 on a CPU."""
    if device.type != "cuda":
        return 0.0
    source = torch.empty(COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    taken_ns = []
    for _ in range(COPIES):
        torch.cuda.synchronize(device)
        start = time.perf_counter_ns()
        target.copy_(source)
        torch.cuda.synchronize(device)
        taken_ns.append(time.perf_counter_ns() - start)
    return min(taken_ns) / (2 * COPIED_BYTES)
