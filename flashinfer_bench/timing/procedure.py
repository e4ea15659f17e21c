"""The procedure of a trial: check → test for persisting lines → warm up → choose the launch source → sample → metadata.

It runs in the process with the clock. For `bench_gpu_time` that is the caller's process; for a timed solution or
reference it is the session, whose clock sends requests to a worker. It only takes samples; `timing.summary` interprets
them.

Each sample is (flush, delay kernel, call). The flush evicts the inputs from the L2. The delay kernel lets memory and
power recover, and keeps the GPU busy until the host has enqueued the whole call. So operations run back to back as in a
full queue. Only the call lies between the two ends of a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, Final

from flashinfer_bench.timing.clocks import CaptureRefused, Clock, ClockLost, Launch
from flashinfer_bench.timing.flush import Preamble
from flashinfer_bench.timing.measurement import Metadata, Sample, Trial
from flashinfer_bench.timing.settings import PRECISION
from flashinfer_bench.timing.statistics import LONG_SAMPLE_NS, quantile
from flashinfer_bench.timing.stopping import QUICK_S, StoppingRule

CHECKS: Final = 2
"""Calls of the check, at least. They count as warm-up."""
SLOW_SHARE: Final = 4
"""Check and warm-up together take at most the budget divided by this."""
PROBE_NS: Final = 2_000_000
"""Least delay, beyond the host's time, behind which a call shows whether it waits for the GPU. It waits if the delay
makes it slower on the host by more than half of that."""
PROBES: Final = 2, 3
"""Probes of the check, and after the warm-up, that must all find that a call waits. First calls wait if the driver
gives them memory, and the host may be held up."""
QUEUE_HOLDS: Final = 900
"""Operations that a device's queue holds. With more, the host waits for room in the queue, and not the call for the
GPU."""
DELAY_MARGIN: Final = 1.5
DELAY_FLOOR_NS: Final = 6_000
DELAY_CEILING_NS: Final = 50_000_000
"""The delay is the host's time for a call times the first, plus the second, and at most the third."""
COOL_DOWN_NS: Final = 100_000, 50_000_000
"""Limits of the GPU's cool-down before each call: as long as the call takes, and twice as long before calls of
LONG_SAMPLE_NS. Right after a flush times scatter more; a GPU without a pause reaches its power limit."""
FLUSH_NS: Final = 50_000
"""Most time of a flush, as a part of the expected time of a sample."""
SPARED_S: Final = 0.005
"""A call that may stop early and has longer samples gets no warm-up beyond the check, and no test for persisting
lines."""
REQUEST_S: Final = 0.015
REQUEST_CALLS: Final = 3
"""A single call may take REQUEST_S on a busy machine, which does not predict a sample among others. Below this, the
clock decides whether a call that may stop early is quick. If one takes longer, REQUEST_CALLS together decide."""
LATE_SHARE: Final = 0.1
"""If a larger share of a batch is late, the delay is doubled and the batch is taken again."""
RETAKES: Final = 3
EXTRA_SHARE: Final = 10
EXTRA_S: Final = 0.05
"""A quick call that scatters gets at most EXTRA_SHARE times the requested samples more, in EXTRA_S a set of inputs."""
LINES_CALLS: Final = 5, 15
"""Calls of each kind in a test for persisting lines, with and without a reset of them. The second test is made only if
the first suspects lines."""
LINES_SHARE: Final = 0.03
LINES_NS: Final = 64
"""A call leaves persisting lines if a reset of them slows it by more than both limits."""
GAPS_SHARE: Final = 0.001
"""If no more of a call's GPU time lies between its operations, a graph could not shorten it."""
WORK_SHARE: Final = 0.5
"""A replay whose operations take less than this share of the call's is refused: names alone are no proof."""
OTHER: Final = "a replay launches something else than the call does"
LESS: Final = "a replay does less than half of the work that the call does"

LaunchSource = Callable[[int], Launch]
"""Gives the launch of the i-th call of a trial, with arguments of its own. It runs outside of every sample."""


@dataclass(frozen=True)
class Procedure:
    """The request for one trial."""

    warmup_runs: int
    """Untimed calls before the samples."""
    iterations: int
    """Requested samples."""
    budget_s: float
    """Wall time of the trial. A call too slow for it gets fewer samples, but at least one."""
    precision: float = PRECISION
    """Relative half-width of the confidence interval; noisy quick calls get more samples."""
    cuda_graphs: bool = True
    """Time a call of several operations as the replay of a CUDA graph, if it can be captured."""
    sets: int = 1
    """The i-th call has set i % sets of the inputs, and all sets have equally many samples."""
    fewest: int | None = None
    """Samples from which on a call stops at `precision`, and the requested samples are the limit. None to take all
    requested samples, and more if they scatter."""
    stops_early: bool = False
    """Whether a call that is not quick stops once its median is known, even if the budget holds all samples. For
    trusted code: a slow call gets neither warm-up nor a test for persisting lines."""


def take_trial(
    source: LaunchSource, clock: Clock, procedure: Procedure, *, now: Callable[[], float] = perf_counter
) -> Trial:
    """Take one trial of a call that was made before; the clock is always switched off again.

    Args:
        source: returns the launch of the i-th call.
        clock: takes samples. A clock that loses samples is replaced by its fall-back; the metadata has the reason.
        procedure: counts and budget.
        now: the host's clock, in seconds.
    """
    start = now()
    try:
        with clock:
            return TrialInProgress(source, clock, procedure, now).run()
    except ClockLost as lost:
        fallback = clock.fall_back(str(lost))
        if fallback is None:
            raise
    # Retry outside the `except`: the error no longer holds the lost trial's frames, so its memory is freed.
    left_s = max(0.0, procedure.budget_s - (now() - start))
    return take_trial(source, fallback, replace(procedure, budget_s=left_s), now=now)


@dataclass
class TrialInProgress:
    """A trial under way, and the known properties of its call."""

    source: LaunchSource
    clock: Clock
    procedure: Procedure
    now: Callable[[], float] = perf_counter
    calls: int = 0
    """Calls so far, timed or not."""
    preamble: Preamble = field(default_factory=Preamble)
    waits_inside: bool = False
    """The call waits for the GPU before it returns."""
    overfills: bool = False
    """Whether the call launches more than the device's queue holds: no delay can get the host ahead of the GPU."""
    per_call_s: float = 0.0
    """Wall time of one of the latest calls."""
    enqueue_ns: int = 0
    """Host time of a launch."""
    retaken: int = 0
    """Samples that were taken again."""
    looked_at: Sample | None = None
    """Sample of a call by itself."""

    def run(self) -> Trial:
        """Take the trial."""
        procedure, start = self.procedure, self.now()
        latest = self.check()
        if self.now() - start > procedure.budget_s:
            return Trial((latest,), "budget", self.metadata("the budget holds no more calls", []))
        if not procedure.stops_early or self.per_call_s <= SPARED_S:
            self.warm_up(self.now() + procedure.budget_s / SLOW_SHARE - CHECKS * self.per_call_s)
        elif self.waits_inside:
            self.probe(PROBES[1])
        source, reason = self.choose_calls()
        try:
            return self.sample(source, reason, start)
        except CaptureRefused as refused:  # of a later call, which does something else than the first
            self.size_delay()
            return self.sample(self.source, str(refused), start)

    def time_calls(
        self, count: int, *, source: LaunchSource | None = None, preambles: Sequence[Preamble] = ()
    ) -> list[Sample]:
        """Make the next calls; return a sample of each, and note the wall time of one.

        Args:
            count: of calls.
            source: returns the launches; None for the call's own.
            preambles: of each call; None for the trial's own.
        """
        begin, give = self.now(), source or self.source
        launches = [give(self.calls + index) for index in range(count)]  # may copy arguments or capture graphs
        samples = self.clock.sample(launches, preambles or [self.preamble] * count)
        self.calls += count
        self.per_call_s = (self.now() - begin) / count
        return samples

    def size_delay(self, samples: Sequence[Sample] = (), *, enqueue_ns: int | None = None) -> None:
        """Set the delay: it covers the host's time for the timed call, and the cool-down of memory and power.

        Args:
            samples: of the call, which show the host's time.
            enqueue_ns: the host's time for the replay of a graph; None for the call's.
        """
        if samples and not self.overfills:  # those samples hold the delay before them
            self.enqueue_ns = int(median(sample.enqueue_ns for sample in samples))
        host_ns = self.enqueue_ns if enqueue_ns is None else enqueue_ns
        wanted_ns = min(int(host_ns * DELAY_MARGIN) + DELAY_FLOOR_NS, DELAY_CEILING_NS)
        delay_ns = 0 if self.waits_inside or self.preamble.drains else max(wanted_ns, cool_down_ns(self.looked_at))
        self.preamble = replace(self.preamble, delay_ns=delay_ns)

    # Check

    def check(self) -> Sample:
        """Make the first calls, to find the call's launches, whether it waits inside, and its host time.

        Returns:
            The sample that counts if the budget holds no more calls.
        """
        procedure, clock = self.procedure, self.clock
        (alone,) = self.time_calls(1)
        self.looked_at, alone_s = alone, self.per_call_s
        if not clock.fills_queue or alone_s > procedure.budget_s:
            return alone
        self.enqueue_ns, self.overfills = alone.enqueue_ns, (alone.operations or 0) > QUEUE_HOLDS
        if alone_s * SLOW_SHARE <= procedure.budget_s:
            behind_delay = self.probe(PROBES[0])
            if not self.waits_inside:  # else the host was held up in one of the two
                self.enqueue_ns = min(self.enqueue_ns, behind_delay.enqueue_ns)
            escaped = behind_delay.escaped
            if alone.escaped and not clock.sees_operations:  # or the host was held up
                escaped = self.time_calls(1, preambles=[Preamble()])[0].escaped
            self.looked_at, self.preamble = replace(alone, escaped=escaped), Preamble(drains=escaped)
            self.per_call_s = min(alone_s, self.per_call_s)  # the delay of the probe is no part of a sample
        self.size_delay()
        self.per_call_s += self.preamble.delay_ns / 1e9
        if procedure.stops_early:
            seen_s = (max(self.preamble.delay_ns, self.enqueue_ns) + alone.span_ns + FLUSH_NS) / 1e9
            if seen_s <= QUICK_S and self.per_call_s > REQUEST_S:  # it is slow, or its request was
                before_s = self.per_call_s
                self.time_calls(REQUEST_CALLS)
                self.per_call_s = min(before_s, self.per_call_s)
            if self.per_call_s <= REQUEST_S:
                self.per_call_s = min(self.per_call_s, seen_s)
        return alone

    def probe(self, tries: int) -> Sample:
        """Find out whether a call waits for the GPU: each of some calls runs behind a delay that outlasts its host
        time.

        Returns:
            The latest sample.
        """
        probe_ns = max(PROBE_NS, self.enqueue_ns)
        while True:
            (behind_delay,) = self.time_calls(1, preambles=[Preamble(probe_ns + self.enqueue_ns)])
            self.waits_inside = behind_delay.enqueue_ns - self.enqueue_ns > probe_ns // 2 and not self.overfills
            tries -= 1
            if not tries or not self.waits_inside:
                self.size_delay()
                return behind_delay

    # Warm-up

    def warm_up(self, deadline: float) -> None:
        """Test for persisting lines, and make the rest of the untimed calls; slow calls in growing batches.

        The test comes first, since its calls warm up. It comes last for a call that seems to wait inside, and if the
        check was so slow that there seemed to be no time.
        """
        looked = [] if self.waits_inside else self.check_lines(deadline)
        if looked:
            self.size_delay(looked)
        while self.calls < self.procedure.warmup_runs and self.now() < deadline:
            left = self.procedure.warmup_runs - self.calls
            room = int((deadline - self.now()) / self.per_call_s) if self.per_call_s else self.calls
            most = left if self.per_call_s <= QUICK_S else min(self.calls, left)
            samples = self.time_calls(max(1, min(most, room)))
            if self.clock.fills_queue:
                self.size_delay(samples)
        if self.waits_inside:
            self.probe(PROBES[1])
        if not looked:
            self.check_lines(deadline)

    def check_lines(self, deadline: float) -> list[Sample]:
        """Find out whether the call leaves persisting lines in the L2, which no flush evicts; if so, have them reset.

        Both kinds of samples wait for an idle device, as a reset must: only the reset differs between them.

        Returns:
            The samples of its calls; empty if there is no time for a test.
        """
        made: list[Sample] = []
        kinds = replace(self.preamble, waits_first=True), replace(self.preamble, resets_lines=True)

        def is_slower(count: int) -> bool:
            if self.now() + 2 * count * self.per_call_s >= deadline:
                return bool(made)  # no time for a second test: the first one counts
            before_s = self.per_call_s
            samples = self.time_calls(2 * count, preambles=[kind for kind in kinds for _ in range(count)])
            self.per_call_s = min(before_s, self.per_call_s)
            made.extend(samples)
            times_ns = [one.span_ns if one.busy_ns is None else one.busy_ns for one in samples]
            kept, reset = sorted(times_ns[:count]), sorted(times_ns[count:])
            slows = median(reset) > median(kept) * (1 + LINES_SHARE) + LINES_NS
            return slows and quantile(reset, 0.25) > quantile(kept, 0.75)

        if self.clock.fills_queue and self.clock.cache_state == "cold" and all(map(is_slower, LINES_CALLS)):
            self.preamble = replace(self.preamble, resets_lines=True)
        return made

    # Launch source

    def choose_calls(self) -> tuple[LaunchSource, str]:
        """Return the calls to be timed: replays of graphs, or the calls and the reason why no graph is used."""
        eager, reason = self.looked_at, self._why_no_graph()
        if reason or eager is None:
            return self.source, reason
        replays, start, known_s = self.clock.replays(self.source), self.now(), self.per_call_s
        others: list[Sample] = []
        try:
            (first,) = self.time_calls(1, source=replays)
            if first.launched == eager.launched and first.work_ns < WORK_SHARE * eager.work_ns:
                (eager,) = self.time_calls(1)  # the GPU may have been slow then
            least_ns = WORK_SHARE * eager.work_ns
            each_s, fresh = max(self.now() - start, known_s), self.clock.fresh_graphs
            if first.launched == eager.launched and first.work_ns >= least_ns:
                if fresh is None:  # this takes longer if each call is captured before it is timed
                    others = self.time_calls(1, source=replays)
                    known_s = self.per_call_s
                elif fresh * each_s * SLOW_SHARE > self.procedure.budget_s:
                    known_s = each_s
                elif fresh:  # the first replay of a graph is slower than later ones
                    others = self.time_calls(fresh, source=replays)
        except CaptureRefused as refused:
            return self.source, str(refused)
        finally:
            self.per_call_s = known_s
        if any(one.launched != eager.launched for one in (first, *others)):
            return self.source, OTHER
        # The content of a call may change its work, so the middle of the others counts.
        if first.work_ns < least_ns or median([one.work_ns for one in others or [first]]) < WORK_SHARE * first.work_ns:
            return self.source, LESS
        self.size_delay(enqueue_ns=first.enqueue_ns)
        return replays, ""

    def _why_no_graph(self) -> str:
        """Return why no graph is tried; empty to try."""
        call, operations = self.looked_at, 0 if self.looked_at is None else self.looked_at.operations or 0
        gaps_ns = 0 if call is None else call.span_ns - (call.busy_ns or 0)
        reasons = {
            "graphs are off": not self.procedure.cuda_graphs,
            "a call as slow as this gains nothing by a graph": self.per_call_s * CHECKS * SLOW_SHARE
            > self.procedure.budget_s,
            "only CUPTI can tell whether a replay launches what the call does": not self.clock.sees_operations,
            "a single operation needs no graph": operations < 2,
            "the call waits for the GPU inside": self.waits_inside,
            "its operations follow one another without gaps that a graph could close": call is not None
            and gaps_ns <= GAPS_SHARE * call.span_ns
            and not call.overlaps,
            "the call uses a stream that does not wait for the current one": call is not None and call.escaped,
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    # Samples

    def sample(self, source: LaunchSource, reason: str, start: float) -> Trial:
        """Take samples until the stopping rule returns a reason to stop.

        Args:
            source: returns the timed launches.
            reason: why these are no graphs.
            start: start of the trial's budget.
        """
        procedure, begin = self.procedure, self.now()
        extra = 0  # a call that waits, or whose operations the clock does not see, gets no more than the count
        if self.clock.sees_operations and procedure.fewest is None and not self.waits_inside and self.per_call_s:
            in_time = int(procedure.sets * EXTRA_S / self.per_call_s)
            extra = min(EXTRA_SHARE * procedure.iterations, in_time)
        rule = StoppingRule(
            procedure.iterations,
            procedure.budget_s - (begin - start),
            extra,
            procedure.precision,
            procedure.stops_early,
            self.clock.method,
            procedure.fewest,
        )
        samples: list[Sample] = []
        while True:
            seen, spent_s = Trial(tuple(samples), "count"), self.now() - begin
            more = rule.next_batch(seen.spans_ns, seen.busy_ns, spent_s=spent_s, per_call_s=self.per_call_s)
            if isinstance(more, str):
                return replace(seen, stop=more, metadata=self.metadata(reason, samples))
            samples += self.take_batch(source, more, first=len(samples), deadline=begin + rule.budget_s)

    def take_batch(self, source: LaunchSource, count: int, *, deadline: float, first: int = 0) -> list[Sample]:
        """Take samples; if too many are late, take them again behind a longer delay.

        Args:
            source: returns the launches.
            count: of samples.
            deadline: late samples are kept if new ones would take longer than this.
            first: existing samples: the sets of inputs continue after them.
        """
        retakes = 0
        while True:
            skipped = (first - self.calls) % self.procedure.sets
            samples = self.time_calls(count, source=partial(_skipping, source, skipped))
            longer_ns = min(self.preamble.delay_ns * 2, DELAY_CEILING_NS)
            again_s = count * (self.per_call_s + (longer_ns - self.preamble.delay_ns) / 1e9)
            too_late = sum(sample.late for sample in samples) > LATE_SHARE * count and not self.overfills
            has_time = longer_ns > self.preamble.delay_ns and self.now() + again_s <= deadline
            if not too_late or not has_time or retakes == RETAKES:
                return samples
            self.preamble = replace(self.preamble, delay_ns=longer_ns)
            retakes, self.retaken = retakes + 1, self.retaken + count

    def metadata(self, reason: str, samples: Sequence[Sample]) -> Metadata:
        """Return how the samples were taken, without the conditions that do not hold.

        Args:
            reason: why the calls are no replays of graphs; empty if they are.
            samples: the samples that count.
        """
        metadata: Metadata = {"method": self.clock.method, "cache_state": self.clock.cache_state, "calls": self.calls}
        if self.clock.fills_queue:
            metadata |= {"launch": "stream" if reason else "graph", "spin_ns": self.preamble.delay_ns}
            metadata |= {"enqueue_ns": self.enqueue_ns}
        seen = [*samples, *([] if self.looked_at is None else [self.looked_at])]
        streams, sets = max((sample.streams for sample in seen), default=0), self.procedure.sets
        holding: dict[str, Any] = {
            "launch_reason": reason if self.clock.fills_queue else "",
            "waits_inside": self.waits_inside,
            "side_stream": self.preamble.drains,
            "lines_reset": self.preamble.resets_lines,
            "retaken": self.retaken,
            "extra_samples": max(0, len(samples) - self.procedure.iterations),
            "operations_vary": any(len({one.launched for one in samples[at::sets]}) > 1 for at in range(sets)),
            "streams": streams if streams > 1 else 0,
        }
        return {**metadata, **{name: value for name, value in holding.items() if value}, **self.clock.metadata()}


def _skipping(source: LaunchSource, skipped: int, index: int) -> Launch:
    return source(index + skipped)


def cool_down_ns(call: Sample | None) -> int:
    """Return the GPU's cool-down before a call: its busy time, or up to twice that."""
    busy_ns = 0 if call is None else call.span_ns if call.busy_ns is None else call.busy_ns
    least_ns, most_ns = COOL_DOWN_NS
    return min(max(busy_ns + busy_ns * min(busy_ns, LONG_SAMPLE_NS) // LONG_SAMPLE_NS, least_ns), most_ns)
