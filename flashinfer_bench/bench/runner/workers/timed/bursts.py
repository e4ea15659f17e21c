"""The outside clock: bursts of calls, timed by the session, against which a claimed latency is held.

What the worker reads is precise, and a solution that has taken its worker over can forge it. What the session reads is
coarse and true: the time from a request to its answer. A burst makes calls back to back, each on content of its own;
then their outputs are brought into the slots, where some are compared like those of any other call:

    one call = (burst - the same for calls that compute nothing - copies - BEGIN_NS) / calls - START_NS

On a GPU results stay where they are until the burst is over. Then the session spoils the inputs, and asks for the
results, so copies are no part of a burst's time. Who has not computed them cannot do it any more, unless he has saved
the inputs; what fetching takes beyond copies counts as the calls'. Only results that share memory are copied within the
burst, as all are on a CPU. What copies take the session measures itself.

Who has taken a worker over may leave out all that is taken off, so on a CPU that is as little as honest code can need:
a burst is long beside its request, and what calls and copies take beside it is the least that was seen. There the
processor time of all that the worker has started counts too: a call costs the smaller of the two, since a busy machine
makes the wall clock run on, and the processor times of several threads add up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch

from flashinfer_bench.bench.runner.workers.cpu_time import BetweenRequests, tree_waiting_ns
from flashinfer_bench.bench.runner.workers.timed.burst_size import RESOLVED, noise_ns
from flashinfer_bench.bench.runner.workers.timed.confirmation import (
    BUSY_SHARE,
    REFUSED_SHARE,
    Confirmation,
    Outside,
    find_doubt,
    least_share,
)
from flashinfer_bench.bench.runner.workers.timed.copies import OutputCopies
from flashinfer_bench.bench.runner.workers.timed.empty_bursts import BurstOverhead, touch
from flashinfer_bench.bench.runner.workers.timed.handover import NOTHING_ALONG, Along
from flashinfer_bench.bench.runner.workers.timed.remote_clock import Ask
from flashinfer_bench.bench.runner.workers.timed.trial import RemoteTrial
from flashinfer_bench.bench.runner.workers.timed.write_back import write_back_ns
from flashinfer_bench.worker.protocol import BurstDone, Collected

BEGIN_NS: Final = {"cpu": 0.0, "cuda": 250_000.0}
"""Taken off a burst as a whole, by the kind of device: a GPU that comes back to a process has none of its addresses and
programs at hand. Honest bursts of 8 to 128 calls took up to 500 us more than their calls and an empty burst (H200)."""
TOUCH_SLACK_NS: Final = 150_000.0
"""Once a burst on a GPU is answered the session uses the GPU for a moment. What that takes beyond what it takes after
an empty burst counts as the calls'. Where it is more than this, the worker has answered before its calls were over:
they hid the request, so that is not taken off either, and the GPU is used again until they are over, since the driver
gives it to each process for 2 ms in turn. Honest touches took up to 120 us more, one in fifty far more (H100)."""
MOST_TOUCHES: Final = 200
"""A worker that keeps its GPU busy for ever is waited for so often."""
START_NS: Final = {"cpu": 0.0, "cuda": 1_500.0}
START_SHARE: Final = 0.15
START_FROM_NS: Final = 5_000.0
"""Taken off each call of a burst, by the kind of device, but no more than this share of what it takes beyond that: in a
graph of many calls each starts later after the one before than in a graph of its own."""
COPIED_BYTES: Final = 256 << 20
"""Bytes that the session copies at the most to learn what copies take."""
COPIES_SHARE: Final = 0.6
"""On a GPU what copies take off a burst is no more than this share of it: of a kernel that only writes two thirds are
copies. Who has taken the worker over may say that its results share memory, and write them where they are to be copied
to."""
FETCH_NS: Final = {True: 300_000.0, False: 500_000.0}
FETCH_RESULT_NS: Final = {True: 4_000.0, False: 20_000.0}
"""What the request that fetches results may take beside the copies, and each result of a call, where calls and copies
are graphs and where the worker's host launches each: the GPU comes back to the worker once more (see BEGIN_NS). What it
takes beyond counts as the calls': who has saved the inputs may compute then."""
COPY_MARGIN: Final = {"cpu": 1.0, "cuda": 1.5}
"""What a worker's copies of outputs within a burst may take, as a multiple of what the session's own take at their
fastest, by the kind of device."""
KEPT_SHARE: Final = {"cpu": 0.25, "cuda": 0.0}
"""A call costs no less than this share of what is taken off for it beside copies, by the kind of device: an honest call
makes a tensor, which takes longer. Who has taken the worker over may make all calls of a burst in one operation, which
takes less than what is taken off: a claim of 60 ns was told as such, for a call of 7.8 us."""
OUTPUT_SHARE: Final = {"cpu": 0.6, "cuda": 1.0}
"""For each output after the first this share of an empty call is taken off, by the kind of device: on a CPU outputs are
copied together. With a whole call for each, eight outputs that are written in place made 79 us seem to be 14."""
SERIES_S: Final = {"cpu": 0.02, "cuda": 0.15}
"""Seconds that a series of bursts takes where calls are quick, by the kind of device. On a GPU a burst begins sooner or
later, and the best of many tells what its calls take."""
FEWEST_BURSTS: Final = 3
MOST_BURSTS: Final = {"cpu": 12, "cuda": 32}
"""Bursts of a series; a series of slow calls has one. A burst that confirms the claim ends it: the best of more bursts
would be lower still, so they would change neither the verdict nor the latency. One that does not resolve a call ends
nothing at once (UNRESOLVED_BURSTS): such a claim may be forged, and each burst is one more look at outputs that were
not computed in time."""
UNRESOLVED_BURSTS: Final = {"cpu": 12, "cuda": 3}
"""A series ends after so many bursts where one of them did not resolve a call, by the kind of device: the best of more
would not either. On a GPU the inputs of a burst take longer than its calls."""
SLOW_SERIES_S: Final = 0.5
"""Seconds after which a series ends with fewer bursts than that."""
AGAIN: Final = 2
"""Series that are taken again before a claim is contradicted: a busy machine delays some."""
SHORTER: Final = {"cpu": (1, 2, 4), "cuda": (1,)}
"""Their bursts have the calls of the first series divided by one of these: where the cost of a call depends on its
content, the best of several short bursts is nearer to the usual call than the mean of a long one. On a GPU a short
burst is little but its own beginning."""


class BurstTimer:
    """Times bursts of one trial's calls.

    Args:
        ask: asks the worker.
        trial: where the calls lie and what they are given.
        operations: a call launches so many on a GPU; a graph that holds fewer of it stands for no call. None where the
            call waits for the GPU, so no graph can hold it.
        most_ns: a call does not cost more than this.
        now_ns: the session's clock.

    `core` is the one that makes the worker's calls, None for any; `overhead` what bursts take of themselves;
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
        self._between = BetweenRequests(trial.guard_pid)
        self._most_ns = most_ns
        self._operations = operations or 0
        self._now_ns = now_ns
        self.core: int | None = None
        self.refused_share = REFUSED_SHARE
        self.meanwhile: Callable[[Callable[[], bool]], object] | None = None
        self._calls = 0
        self._is_strided = False
        """To copy results changed how they lie in memory. That is the calls' work, and is not taken off."""
        self.overhead = BurstOverhead()
        self._best_ns = math.inf
        self._copy_ns = math.inf
        self._moved_ns: dict[int, float] = {}
        """Bytes of outputs to what it takes to copy them on a GPU."""
        is_copied = trial.returns and trial.asked.device_type == "cpu"
        self._copies = OutputCopies(trial.places.outputs(0) if is_copied else [])
        self._spoils = trial.returns and not is_copied and not trial.may_return_inputs
        """Results are fetched once the inputs are gone, unless each is copied at once."""
        self._was_copied = False
        """The results of the latest burst were copied within it."""
        self._together = trial.asked.device_type == "cuda" and not trial.has_setup and operations is not None
        self.refused: str | None = "the call waits for the GPU" if operations is None else None
        """Why the calls cannot be made as one graph."""

    def confirm(self, claimed_ns: float, overhead: BurstOverhead, *, is_believed: bool = False) -> Confirmation:
        """Hold a claimed latency against bursts.

        Args:
            claimed_ns: latency of one call, `setup` included.
            overhead: what bursts take of themselves.
            is_believed: the claim is not refused: the call is a reference's, or another look has confirmed it.

        Raises:
            ClaimContradicted: RUNTIME_ERROR; bursts take longer than the claim allows, each time.
            SolutionFailure: the same, and far longer.
        """
        return replace(self._confirm(claimed_ns, overhead, is_believed=is_believed), calls=self._calls)

    def _confirm(self, claimed_ns: float, overhead: BurstOverhead, *, is_believed: bool) -> Confirmation:
        calls, device_type = len(self._trial.places), self._trial.asked.device_type
        self.overhead = overhead
        resolution_ns = RESOLVED * noise_ns(overhead, device_type) / calls
        settling = (resolution_ns, claimed_ns / least_share(device_type))
        if calls > 1:
            # It tells the worker whether results share memory; nobody reads it.
            self._burst(list(range(calls)), Along(meanwhile=self.meanwhile))
            if self._was_copied and self._together:
                self._burst(list(range(calls)))  # the graph that has the copies is made
            elif self._trial.returns and self._together:
                self._collect(list(range(calls)), Along(meanwhile=self.meanwhile))  # the graph of the copies is made
        best = self._take_series(calls, overhead, settling)
        series = 1
        divisors = SHORTER[device_type]
        while claimed_ns < REFUSED_SHARE * best.call_ns and best.call_ns > resolution_ns and series <= AGAIN:
            fewer = max(1, calls // divisors[series % len(divisors)])
            best = min(best, self._take_series(fewer, overhead, settling), key=lambda one: one.call_ns)
            series += 1
        if best.call_ns <= resolution_ns:
            least_ns = KEPT_SHARE[device_type] * self._beside_ns(overhead)
            if device_type == "cuda":
                least_ns = best.call_ns
            return Confirmation(least_ns or None, resolution_ns, "the call is shorter than a burst resolves")
        # Results that lie otherwise than their slots are a view, perhaps, which leaves the work to its reader.
        best = replace(best, refused_share=REFUSED_SHARE if self._is_strided else self.refused_share)
        doubt = find_doubt(claimed_ns, best, f"{series} series", refused=self.refused, is_believed=is_believed)
        return Confirmation(best.call_ns, resolution_ns, doubt)

    def take_turn(self, calls: int, is_looked_at: Callable[[], bool] | None = None) -> tuple[float, int]:
        """Make a burst; return what it took, in nanoseconds, and its calls.

        Args:
            calls: of the burst, as far as there are places.
            is_looked_at: says, once its outputs are fetched, whether some of them may be compared. None for code that
                we trust, whose outputs nobody fetches.
        """
        indices = list(range(min(calls, len(self._trial.places))))
        numbers, wall_ns, _ = self._burst(indices)
        if is_looked_at is None:
            return wall_ns, len(indices)
        is_spoiled = self._spoils and not self._was_copied
        if self._trial.returns and not self._was_copied:  # who computes nothing before that has computed nothing
            wall_ns += self._fetch(indices)
            self._between.begin()
        if is_looked_at():
            self._trial.reader.look(indices, numbers, has_inputs=not is_spoiled)
        return wall_ns, len(indices)

    def _take_series(self, calls: int, overhead: BurstOverhead, settling: tuple[float, float]) -> Outside:
        """Take some bursts of so many calls; return what one call costs in the best of them.

        Args:
            calls: of each burst.
            overhead: what bursts take of themselves.
            settling: a cost of one call above the first of these and up to the second settles the claim.
        """
        above_ns, up_to_ns = settling
        device_type = self._trial.asked.device_type
        start = self._now_ns()
        costs_ns: list[float] = []
        waited_before = tree_waiting_ns(self._trial.guard_pid)

        def is_over() -> bool:
            count, spent_s = len(costs_ns), (self._now_ns() - start) / 1e9
            if not count:
                return False
            if above_ns < costs_ns[-1] <= up_to_ns or count >= MOST_BURSTS[device_type]:
                return True
            if count >= UNRESOLVED_BURSTS[device_type] and min(costs_ns) <= above_ns:
                return True
            return spent_s > SERIES_S[device_type] and (count >= FEWEST_BURSTS or spent_s > SLOW_SERIES_S)

        while not is_over():
            costs_ns.append(self._time_one(calls, overhead))
        waited_ns = tree_waiting_ns(self._trial.guard_pid) - waited_before
        return Outside("burst", min(costs_ns), waited_ns > BUSY_SHARE * (self._now_ns() - start))

    def _time_one(self, calls: int, overhead: BurstOverhead) -> float:
        """Return what one call of a burst costs; where it is the least so far, calls of this burst are compared."""
        trial = self._trial
        indices = list(range(calls))
        device_type = trial.asked.device_type
        was_copied = device_type == "cpu" or self._was_copied
        copy_ns = self._time_copies(indices) if trial.returns and was_copied else 0.0
        numbers, wall_ns, cpu_ns = self._burst(indices)
        if trial.returns and device_type == "cuda":
            if self._was_copied:
                copy_ns = min(copy_ns, COPIES_SHARE * wall_ns)
            else:
                wall_ns, copy_ns = wall_ns + self._fetch(indices), 0.0
        copy_ns = 0.0 if self._is_strided else copy_ns

        def own_ns(spent_ns: float, taken: BurstOverhead) -> float:
            beside_ns = calls * self._beside_ns(taken)
            return max(spent_ns - taken.request - beside_ns - copy_ns, KEPT_SHARE[device_type] * beside_ns)

        spent_ns = own_ns(wall_ns, overhead)
        if cpu_ns is not None:
            spent_ns = min(spent_ns, own_ns(cpu_ns, overhead.processors or overhead))
        cost_ns = max((spent_ns - BEGIN_NS[device_type]) / calls, 0.0)
        later_ns = min(START_NS[device_type], START_SHARE * max(0.0, cost_ns - START_FROM_NS))
        moved, written = trial.places.stride, sum(output.nbytes for output in trial.places.outputs(0))
        later_ns += write_back_ns(cost_ns, moved, written, trial.places.arena.device)
        cost_ns = min(max(cost_ns - later_ns, 0.0), self._most_ns)
        is_best = cost_ns <= self._best_ns
        if is_best:
            self._best_ns = cost_ns
            trial.reader.begin()
        is_spoiled = self._spoils and not self._was_copied
        trial.reader.look(indices, numbers, chooses=is_best, has_inputs=not is_spoiled)
        return cost_ns

    def _fetch(self, indices: list[int]) -> float:
        """Have the worker bring what the calls of a burst gave into their slots; return what of it counts as theirs."""
        places = self._trial.places
        if self._spoils:
            places.spoil_inputs(len(indices))
        start = self._now_ns()
        self._collect(indices)
        spent_ns = self._now_ns() - start + self._wait_for_gpu()
        together, results = self._together, len(indices) * len(places.outputs(0))
        free_ns = FETCH_NS[together] + FETCH_RESULT_NS[together] * results
        if spent_ns > free_ns and not self._is_strided:
            free_ns += self._time_copies(indices)
        return max(0.0, spent_ns - free_ns)

    def _collect(self, indices: list[int], along: Along = NOTHING_ALONG) -> None:
        """Have the worker bring what the calls of a burst gave into their slots."""
        part = "both" if self._trial.has_setup else "run"
        fields = {"indices": indices, "part": part, "together": self._together}
        done = self._ask("collect", Collected, "the measurement", along=along, **fields)
        self._is_strided = self._is_strided or done.strided

    def _beside_ns(self, taken: BurstOverhead) -> float:
        """Return what is taken off each call, beside a burst's request and what copies of outputs move."""
        device_type, outputs = self._trial.asked.device_type, len(self._trial.places.outputs(0))
        copies = self._trial.returns and (self._was_copied or device_type == "cpu")
        if not copies and (self._together or device_type == "cpu"):
            return 0.0  # calls whose results are not copied take nothing but their own time
        return taken.call * (1 + OUTPUT_SHARE[device_type] * max(0, outputs - 1))

    def _burst(self, indices: list[int], along: Along = NOTHING_ALONG) -> tuple[list[int], float, float | None]:
        """Make one burst; return the numbers of its calls, and the time of the wall and of processors that it took.

        What the worker has computed since the burst before counts as this one's.
        """
        trial = self._trial
        numbers = trial.write(indices)
        self._calls += len(indices)
        cpu_before, ahead_ns = self._between.end()
        start = self._now_ns()
        part = "both" if trial.has_setup else "run"
        fields = {"indices": indices, "part": part, "together": self._together, "operations": self._operations}
        fields |= {} if self.core is None else {"core": self.core}
        done = self._ask("burst", BurstDone, "the measurement", along=along, **fields)
        if done.refused is not None:
            self.refused, self._together = done.refused, False
            return self._burst(indices)
        self._was_copied, self._is_strided = done.copied, self._is_strided or done.strided
        if not done.copied and trial.asked.device_type == "cpu":
            self._collect(indices)
        wall_ns = float(self._now_ns() - start) + ahead_ns
        if trial.asked.device_type == "cuda":
            wall_ns += self._wait_for_gpu()
        cpu_after = self._between.begin()
        if cpu_before is None or cpu_after is None:
            return numbers, wall_ns, None
        return numbers, wall_ns, float(cpu_after - cpu_before) + ahead_ns

    def _wait_for_gpu(self) -> float:
        """Use the GPU once a request is answered; return what of that counts as the worker's (see TOUCH_SLACK_NS)."""
        counts_ns, hidden_ns = 0.0, 0.0
        for _ in range(MOST_TOUCHES):
            start = self._now_ns()
            touch(self._trial.places.arena.device)
            late_ns = max(0.0, self._now_ns() - start - self.overhead.touch)
            counts_ns += late_ns
            if late_ns <= TOUCH_SLACK_NS:
                break
            hidden_ns = self.overhead.request + self.overhead.touch
        return counts_ns + hidden_ns

    def _time_copies(self, indices: list[int]) -> float:
        """Return what it takes to copy the outputs of these places, with a margin.

        On a CPU one thread copies, and its own time counts: on a busy machine torch's threads wait for one another, and
        what they wait would take more off a burst than the copies cost there. The least of all bursts so far counts.
        """
        outputs = [output for index in indices for output in self._trial.places.outputs(index)]
        if self._trial.asked.device_type == "cpu":
            self._copy_ns = min(self._copy_ns, self._copies.time(outputs, len(indices)))
            return COPY_MARGIN["cpu"] * self._copy_ns * len(indices)
        # In one piece: what each copy takes to start is known from empty bursts.
        size = sum(output.nbytes for output in outputs)
        source = torch.empty(min(size, COPIED_BYTES), dtype=torch.uint8, device=outputs[0].device)
        target = torch.empty_like(source)
        target.copy_(source)  # the GPU comes back to this process
        self._trial.places.synchronize()
        start = self._now_ns()
        target.copy_(source)
        self._trial.places.synchronize()
        moved_ns = (self._now_ns() - start) * max(1.0, size / COPIED_BYTES)
        # A worker whose calls still go on would hold these copies up: the least that was seen counts.
        self._moved_ns[size] = min(moved_ns, self._moved_ns.get(size, math.inf))
        return COPY_MARGIN["cuda"] * self._moved_ns[size]
