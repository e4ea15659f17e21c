"""The procedure of a trial: check → test for persisting lines → warm up → choose the launch source → sample → metadata.

The procedure runs in the process with the clock. For `bench_gpu_time` that is the caller's process. For a timed
solution or reference, it is the session's process. The session's clock sends requests to a worker. The procedure only
takes samples; `timing.summary` interprets them.

Each sample is (flush, delay kernel, call). The flush evicts the inputs from the L2. The delay kernel lets memory and
power recover, and keeps the GPU busy until the host has enqueued the whole call. So the call's operations run back to
back, as in a full queue. Only the call lies between start and end of a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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
"""Minimum calls of the check. These calls count as warm-up."""
SLOW_SHARE: Final = 4
"""Check and warm-up together take at most the budget divided by this."""
PROBE_NS: Final = 2_000_000
"""Minimum delay of a probe, beyond the call's host time. A call counts as waiting for the GPU if the delay makes it
slower on the host by more than half of the delay."""
PROBES: Final = 2, 3
"""Number of probes in the check, and after the warm-up. A call counts as waiting only if it waits in all these probes.
A first call also waits if the driver allocates memory for it, and the host may be interrupted."""
QUEUE_HOLDS: Final = 900
"""Number of operations that a device's queue holds. If a call has more, the host waits for room in the queue. This does
not show that the call itself waits for the GPU."""
DELAY_MARGIN: Final = 1.5
DELAY_FLOOR_NS: Final = 6_000
DELAY_CEILING_NS: Final = 50_000_000
"""The delay is the host's time for a call times DELAY_MARGIN, plus DELAY_FLOOR_NS, and at most DELAY_CEILING_NS."""
COOL_DOWN_NS: Final = 100_000, 50_000_000
"""Minimum and maximum of the GPU's cool-down before each call. Within these limits, it lasts one to two times the
call's busy time. The factor grows with this time, and reaches 2 at LONG_SAMPLE_NS. Without a cool-down, times vary more
because of the flush, and the GPU reaches its power limit."""
FLUSH_NS: Final = 50_000
"""Maximum time of a flush. The expected time of a sample includes it."""
SPARED_S: Final = 0.005
"""A call that may stop early is spared if its samples take longer than this. It then gets no warm-up beyond the check,
and no test for persisting lines."""
REQUEST_S: Final = 0.015
REQUEST_CALLS: Final = 3
"""On a busy machine, a request for one call may take up to REQUEST_S, even if a sample in a batch takes much less. So
up to REQUEST_S, the clock's times decide whether a call that may stop early is quick. If a request takes longer, the
wall time of a batch of REQUEST_CALLS decides."""
LATE_SHARE: Final = 0.1
"""If more than this share of a batch is late, the delay is doubled and the batch is taken again."""
RETAKES: Final = 3
EXTRA_SHARE: Final = 10
EXTRA_S: Final = 0.05
"""A quick call whose samples vary too much gets extra samples. They are at most EXTRA_SHARE times the requested number,
and take at most EXTRA_S for each set of inputs."""
LINES_CALLS: Final = 5, 15
"""Calls with a reset of persisting lines in the first and the second test. Each test makes as many calls without a
reset. The second test is made only if the first test finds lines."""
LINES_SHARE: Final = 0.03
LINES_NS: Final = 64
"""A call leaves persisting lines if a reset of the lines slows the call by more than LINES_SHARE of its time, plus
LINES_NS."""
GAPS_SHARE: Final = 0.001
"""If the gaps between a call's operations are at most this share of its GPU time, a graph could not shorten the
call."""
WORK_SHARE: Final = 0.5
"""A replay is refused if its operations take less than this share of the time that the call's operations take.
Equal names of operations prove nothing: a replay's operations may do less work."""
OTHER: Final = "a replay launches something else than the call does"
LESS: Final = "a replay does less than half of the work that the call does"

LaunchSource = Callable[[int], Launch]
"""Returns the launch of the i-th call of a trial, with the arguments of this call. It runs outside of every sample."""


@dataclass(frozen=True)
class Procedure:
    """The request for one trial."""

    warmup_runs: int
    """Untimed calls before the samples."""
    iterations: int
    """Requested samples."""
    budget_s: float
    """Wall time of the trial. A call that exceeds it gets fewer samples, but at least one."""
    precision: float = PRECISION
    """Requested relative half-width of the confidence interval. Quick calls that miss it get more samples."""
    cuda_graphs: bool = True
    """Time a call of several operations as the replay of a CUDA graph, if it can be captured."""
    sets: int = 1
    """Number of sets of inputs. The i-th call uses set i % sets, and all sets get equally many samples."""
    fewest: int | None = None
    """Minimum samples. After these, a call stops once it has the precision, or after `iterations` samples. If None, all
    requested samples are taken, and extra samples if they vary too much."""
    stops_early: bool = False
    """Whether a call that is not quick stops once its median is known, even if the budget holds all samples. Only for
    trusted code, because a slow call then gets neither warm-up nor a test for persisting lines."""


def take_trial(
    source: LaunchSource, clock: Clock, procedure: Procedure, *, now: Callable[[], float] = perf_counter
) -> Trial:
    """Take one trial of a call that has run before; the clock is always switched off again.

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
    # Retry outside the `except`. Inside it, the error would keep the lost trial's frames, and so its memory.
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
    """Whether the call waits for the GPU before it returns."""
    overfills: bool = False
    """Whether the call launches more than the device's queue holds: no delay can get the host ahead of the GPU."""
    per_call_s: float = 0.0
    """Mean wall time of the latest calls."""
    enqueue_ns: int = 0
    """Host time of a launch."""
    retaken: int = 0
    """Samples that were taken again."""
    looked_at: Sample = field(init=False)
    """Sample of the first call, which is made alone. It counts if the budget holds no more calls. The check sets it."""

    def run(self) -> Trial:
        """Take the trial."""
        procedure, start = self.procedure, self.now()
        self.check()
        if self.now() - start > procedure.budget_s:
            return Trial((self.looked_at,), "budget", self.metadata("the budget holds no more calls", []))
        if not procedure.stops_early or self.per_call_s <= SPARED_S:
            self.warm_up(self.now() + procedure.budget_s / SLOW_SHARE - CHECKS * self.per_call_s)
        elif self.waits_inside:
            self.probe(PROBES[1])
        source, reason = self.choose_calls()
        try:
            return self.sample(source, reason, start)
        except CaptureRefused as refused:  # a later call does something else than the first call
            self.size_delay()
            return self.sample(self.source, str(refused), start)

    def time_calls(
        self, count: int, *, source: LaunchSource | None = None, skipped: int = 0, preambles: Sequence[Preamble] = ()
    ) -> list[Sample]:
        """Make the next calls; return a sample of each, and set `per_call_s`.

        Args:
            count: number of calls.
            source: returns the launches; None for the trial's own source.
            skipped: number of launches of the source to skip, so that a certain set of inputs is next.
            preambles: preamble of each call. If it is empty, all calls have the trial's preamble.
        """
        begin, give, first = self.now(), source or self.source, self.calls + skipped
        launches = [give(first + index) for index in range(count)]  # may copy arguments or capture graphs
        samples = self.clock.sample(launches, preambles or [self.preamble] * count)
        self.calls += count
        self.per_call_s = (self.now() - begin) / count
        return samples

    def size_delay(self, samples: Sequence[Sample] = (), *, enqueue_ns: int | None = None) -> None:
        """Set the delay: it covers the host's time for the timed call, and the cool-down of memory and power.

        Args:
            samples: samples of the call, which have the host's time.
            enqueue_ns: the host's time for the replay of a graph; None for the host's time for the call.
        """
        if samples and not self.overfills:  # if the queue overfills, the host's time includes the delay
            self.enqueue_ns = int(median(sample.enqueue_ns for sample in samples))
        host_ns = self.enqueue_ns if enqueue_ns is None else enqueue_ns
        wanted_ns = min(int(host_ns * DELAY_MARGIN) + DELAY_FLOOR_NS, DELAY_CEILING_NS)
        delay_ns = 0 if self.waits_inside or self.preamble.drains else max(wanted_ns, cool_down_ns(self.looked_at))
        self.preamble = replace(self.preamble, delay_ns=delay_ns)

    # Check

    def check(self) -> None:
        """Make the first calls, to find the call's launches, whether it waits for the GPU, and its host time."""
        procedure, clock = self.procedure, self.clock
        (alone,) = self.time_calls(1)
        self.looked_at, alone_s = alone, self.per_call_s
        if not clock.fills_queue or alone_s > procedure.budget_s:
            return
        self.enqueue_ns, self.overfills = alone.enqueue_ns, (alone.operations or 0) > QUEUE_HOLDS
        if alone_s * SLOW_SHARE <= procedure.budget_s:
            behind_delay = self.probe(PROBES[0])
            if not self.waits_inside:  # the host may have been interrupted in one of the two calls
                self.enqueue_ns = min(self.enqueue_ns, behind_delay.enqueue_ns)
            escaped = behind_delay.escaped
            if alone.escaped and not clock.sees_operations:  # an interrupted host looks the same
                escaped = self.time_calls(1, preambles=[Preamble()])[0].escaped
            self.looked_at, self.preamble = replace(alone, escaped=escaped), Preamble(drains=escaped)
            self.per_call_s = min(alone_s, self.per_call_s)  # the delay of the probe is no part of a sample
        self.size_delay()
        self.per_call_s += self.preamble.delay_ns / 1e9
        if procedure.stops_early:
            seen_s = (max(self.preamble.delay_ns, self.enqueue_ns) + alone.span_ns + FLUSH_NS) / 1e9
            if seen_s <= QUICK_S and self.per_call_s > REQUEST_S:  # the call may be slow, or only its request
                before_s = self.per_call_s
                self.time_calls(REQUEST_CALLS)
                self.per_call_s = min(before_s, self.per_call_s)
            if self.per_call_s <= REQUEST_S:
                self.per_call_s = min(self.per_call_s, seen_s)

    def probe(self, tries: int) -> Sample:
        """Find out whether the call waits for the GPU: run it behind a delay that is longer than its host time.

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
        """Test for persisting lines, and make the remaining untimed calls. Slow calls are made in growing batches.

        The test comes first, since its calls are warm-up calls, too. It comes last if the call seems to wait for the
        GPU, or if a slow check seems to leave no time for it.
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
        """Find out whether the call leaves persisting lines in the L2. No flush evicts such lines. If there are some,
        reset them before each call.

        Samples with and without a reset both wait for an idle device, as a reset must. So only the reset makes a
        difference.

        Returns:
            The samples of the test's calls; empty if there is no time for a test.
        """
        made: list[Sample] = []
        if not self.clock.fills_queue or self.clock.cache_state != "cold":
            return made
        kinds = replace(self.preamble, waits_first=True), replace(self.preamble, resets_lines=True)
        for count in LINES_CALLS:
            if self.now() + 2 * count * self.per_call_s >= deadline:
                break  # no time for a second test: the result of the first test counts
            before_s = self.per_call_s
            samples = self.time_calls(2 * count, preambles=[kind for kind in kinds for _ in range(count)])
            self.per_call_s = min(before_s, self.per_call_s)
            made += samples
            times_ns = [one.span_ns if one.busy_ns is None else one.busy_ns for one in samples]
            kept, reset = sorted(times_ns[:count]), sorted(times_ns[count:])
            slows = median(reset) > median(kept) * (1 + LINES_SHARE) + LINES_NS
            if not slows or quantile(reset, 0.25) <= quantile(kept, 0.75):
                return made
        if made:
            self.preamble = replace(self.preamble, resets_lines=True)
        return made

    # Launch source

    def choose_calls(self) -> tuple[LaunchSource, str]:
        """Return the source of the timed launches, and the reason against graph replays; empty if the launches are
        replays."""
        eager, reason = self.looked_at, self._why_no_graph()
        if reason:
            return self.source, reason
        replays, start, known_s = self.clock.replays(self.source), self.now(), self.per_call_s
        others: list[Sample] = []
        try:
            (first,) = self.time_calls(1, source=replays)
            if first.launched == eager.launched and first.work_ns < WORK_SHARE * eager.work_ns:
                (eager,) = self.time_calls(1)  # the GPU may have been slow in the check
            if first.launched != eager.launched:
                return self.source, OTHER
            if first.work_ns < WORK_SHARE * eager.work_ns:
                return self.source, LESS
            each_s, fresh = max(self.now() - start, known_s), self.clock.fresh_graphs
            if fresh is None:  # each new call is captured before it is timed, so its wall time is longer
                others = self.time_calls(1, source=replays)
                known_s = self.per_call_s
            elif fresh * each_s * SLOW_SHARE > self.procedure.budget_s:
                known_s = each_s
            elif fresh:  # the first replay of a graph is slower than its later replays
                others = self.time_calls(fresh, source=replays)
        except CaptureRefused as refused:
            return self.source, str(refused)
        finally:
            self.per_call_s = known_s
        if any(one.launched != first.launched for one in others):
            return self.source, OTHER
        # The contents of the inputs may change a call's work, so the median of the other calls counts.
        if others and median([one.work_ns for one in others]) < WORK_SHARE * first.work_ns:
            return self.source, LESS
        self.size_delay(enqueue_ns=first.enqueue_ns)
        return replays, ""

    def _why_no_graph(self) -> str:
        """Return why no graph is tried; empty if a graph is tried."""
        call, busy_ns = self.looked_at, self.looked_at.busy_ns or 0
        reasons = {
            "graphs are off": not self.procedure.cuda_graphs,
            "a call as slow as this gains nothing by a graph": self.per_call_s * CHECKS * SLOW_SHARE
            > self.procedure.budget_s,
            "only CUPTI can tell whether a replay launches what the call does": not self.clock.sees_operations,
            "a single operation needs no graph": (call.operations or 0) < 2,
            "the call waits for the GPU inside": self.waits_inside,
            "its operations follow one another without gaps that a graph could close": call.work_ns <= busy_ns
            and call.span_ns - busy_ns <= GAPS_SHARE * call.span_ns,
            "the call uses a stream that does not wait for the current one": call.escaped,
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    # Samples

    def sample(self, source: LaunchSource, reason: str, start: float) -> Trial:
        """Take samples until the stopping rule returns a reason to stop.

        Args:
            source: returns the timed launches.
            reason: the reason against graph replays; empty if the launches are replays.
            start: time at which the trial's budget began.
        """
        procedure, begin = self.procedure, self.now()
        extra = 0  # a call that waits, or whose operations the clock does not see, gets no extra samples
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
            count: number of samples.
            deadline: late samples are kept if new samples would be finished after this time.
            first: number of samples so far. It decides which set of inputs is next.
        """
        retakes = 0
        while True:
            skipped = (first - self.calls) % self.procedure.sets
            samples = self.time_calls(count, source=source, skipped=skipped)
            longer_ns = min(self.preamble.delay_ns * 2, DELAY_CEILING_NS)
            again_s = count * (self.per_call_s + (longer_ns - self.preamble.delay_ns) / 1e9)
            too_late = sum(sample.late for sample in samples) > LATE_SHARE * count and not self.overfills
            has_time = longer_ns > self.preamble.delay_ns and self.now() + again_s <= deadline
            if not too_late or not has_time or retakes == RETAKES:
                return samples
            self.preamble = replace(self.preamble, delay_ns=longer_ns)
            retakes, self.retaken = retakes + 1, self.retaken + count

    def metadata(self, reason: str, samples: Sequence[Sample]) -> Metadata:
        """Return how the samples were taken. Conditions that do not hold are left out.

        Args:
            reason: the reason against graph replays; empty if the calls were replays.
            samples: the samples that count.
        """
        metadata: Metadata = {"method": self.clock.method, "cache_state": self.clock.cache_state, "calls": self.calls}
        if self.clock.fills_queue:
            metadata |= {"launch": "stream" if reason else "graph", "spin_ns": self.preamble.delay_ns}
            metadata |= {"enqueue_ns": self.enqueue_ns}
        streams, sets = max(sample.streams for sample in (*samples, self.looked_at)), self.procedure.sets
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


def cool_down_ns(call: Sample) -> int:
    """Return the GPU's cool-down before a call, by the rule of COOL_DOWN_NS."""
    busy_ns = call.span_ns if call.busy_ns is None else call.busy_ns
    least_ns, most_ns = COOL_DOWN_NS
    return min(max(busy_ns + busy_ns * min(busy_ns, LONG_SAMPLE_NS) // LONG_SAMPLE_NS, least_ns), most_ns)
