"""How a trial is taken, top to bottom: check → warm up → size the spin → (flush, spin, call) until the rule says stop.

It runs where the code runs: in the worker for a solution, in the device session for the reference. What the readings
mean is decided elsewhere (`timing.summary`); here they are only taken.

The flush leaves nothing of the inputs in the L2; the spin keeps the GPU busy until the host has enqueued the whole
call, so that its operations run back to back as they do when a queue is full. Nothing but the call lies between the
two ends of a reading.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import Final

from flashinfer_bench.timing.clocks import CaptureRefused, Clock, ClockLost, Launch, Lead
from flashinfer_bench.timing.measurement import Facts, Sample, Stop, Trial
from flashinfer_bench.timing.statistics import quantile
from flashinfer_bench.timing.stopping import StoppingRule

Supplier = Callable[[int], Launch]
"""Gives the launch of the i-th call of a trial, with arguments of its own; called outside of every reading."""

CHECKS: Final = 3
"""Calls that the check makes; they count as warm-up."""
PROBE_NS: Final = 2_000_000
"""A call that takes so much longer on the host behind a spin of this length waits for the GPU inside."""
SPIN_MARGIN: Final = 1.5
SPIN_FLOOR_NS: Final = 6_000
SPIN_CEILING_NS: Final = 50_000_000
LINES_CALLS: Final = 5
FIRST_LOOK: Final = 2 * LINES_CALLS
SECOND_LOOK: Final = 3
"""What the first look suspects is looked at again, with so many times the calls."""
LOOKS: Final = FIRST_LOOK * (1 + SECOND_LOOK)
"""Calls that the looks for persisting lines make at the most."""
LINES_SHARE: Final = 0.03
LINES_NS: Final = 64
"""A call that is slower by more than both once persisting lines are reset before it leaves such lines in the L2."""
LATE_SHARE: Final = 0.1
"""With more late readings than this the spin was too short: it is doubled and the batch taken again."""
RETAKES: Final = 3
EXTRA_SHARE: Final = 2
EXTRA_S: Final = 0.015
"""A quick call whose median is not known to 1 % after the wanted readings gets up to so many times as many more, in so
much time: a microsecond's kernel that misses the caches takes one time or another, 20 % apart."""
BRANCHED_GRAPHS: Final = 16
"""Where operations run side by side, a graph's branches meet each other as they happened to be placed when it was made
(on an H200: 6 % between graphs of one call), so the replays of so many are timed in turn."""
BRANCHED_NS: Final = 100_000
"""Up to this span: in a longer call placement is a small share, and each graph holds memory of its own."""
SLOW_SHARE: Final = 4
"""Checks and warm-up take at most the budget divided by this."""


@dataclass(frozen=True)
class Recipe:
    """What is wanted of one trial."""

    warmup_runs: int
    """Untimed calls first."""
    iterations: int
    """Readings wanted."""
    budget_s: float
    """Wall time of the trial; a call too slow for it gets fewer readings, at least one."""
    use_graphs: bool = True
    """A call of several operations that can be captured is timed as the replay of a CUDA graph."""
    exact: bool = False
    """No more readings than are wanted, however they scatter."""


@dataclass
class Progress:
    """What a trial knows so far of the call it times."""

    calls: int = 0
    lead: Lead = field(default_factory=Lead)
    waits_inside: bool = False
    """The call waits for the GPU before it returns, so the host is part of whatever is read."""
    per_call_s: float = 0.0
    retaken: int = 0
    looked_at: Sample | None = None
    enqueue_ns: int = 0
    """What the host needs to enqueue one call, graphs aside."""


def take_trial(supply: Supplier, clock: Clock, recipe: Recipe, *, now: Callable[[], float] = perf_counter) -> Trial:
    """Take one trial; the clock is switched off again whatever happens.

    Args:
        supply: gives the launch for the i-th call.
        clock: how readings are taken. One that loses its readings is replaced by its fall-back, and the facts say so.
        recipe: counts and budget.
        now: the host's clock, in seconds.
    """
    try:
        with clock:
            return _take(supply, clock, recipe, now)
    except ClockLost as lost:
        fallback = clock.fall_back(str(lost))
        if fallback is None:
            raise
        return take_trial(supply, fallback, recipe, now=now)


def _take(supply: Supplier, clock: Clock, recipe: Recipe, now: Callable[[], float]) -> Trial:
    start = now()
    progress = Progress()
    latest = check(supply, clock, recipe, progress, now)
    if now() - start > recipe.budget_s:
        return Trial((latest,), "budget", _facts(clock, progress, "stream", "the budget holds no more calls"))
    deadline = now() + recipe.budget_s / SLOW_SHARE - CHECKS * progress.per_call_s
    warm_up(supply, clock, recipe, progress, deadline=deadline, now=now)
    if clock.fills_queue and clock.cache_state == "cold" and now() + LOOKS * progress.per_call_s < deadline:
        check_lines(supply, clock, progress)
    calls = _capture(supply, clock, recipe, progress)
    rule = StoppingRule(recipe.iterations, recipe.budget_s - (now() - start), _extra(clock, recipe, progress))
    try:
        samples, stop = take_samples(calls.supply, clock, rule, progress, now)
    except CaptureRefused as refused:  # of a later call: it does something else than the first
        calls = _Calls(supply, "stream", str(refused))
        rule = replace(rule, budget_s=recipe.budget_s - (now() - start))
        samples, stop = take_samples(supply, clock, rule, progress, now)
    facts = _facts(clock, progress, calls.mode, calls.reason)
    if len(samples) > recipe.iterations:
        facts["extra_samples"] = len(samples) - recipe.iterations
    if calls.graphs > 1:
        facts["graphs"] = calls.graphs
    return Trial(tuple(samples), stop, facts)


def check(supply: Supplier, clock: Clock, recipe: Recipe, progress: Progress, now: Callable[[], float]) -> Sample:
    """Make the first calls: what the call launches, whether it waits inside, how long the host needs for it.

    The first one may compile kernels, so what it says of time counts only where there is no second.

    Returns:
        The reading to go by where the budget holds no more calls.
    """

    def call(lead: Lead) -> Sample:
        begin = now()
        (sample,) = clock.sample([supply(progress.calls)], lead)
        progress.calls += 1
        progress.per_call_s = now() - begin
        return sample

    first = call(Lead())
    progress.looked_at = first
    if not clock.fills_queue or progress.per_call_s > recipe.budget_s:
        return first
    alone = call(Lead())
    progress.looked_at = alone
    alone_s = progress.per_call_s
    if alone_s * SLOW_SHARE <= recipe.budget_s:
        behind_spin = call(Lead(PROBE_NS))
        slower_ns = behind_spin.enqueue_ns - alone.enqueue_ns
        if slower_ns > PROBE_NS // 2:  # it waits, or the host was held up: a second look tells
            slower_ns = call(Lead(PROBE_NS)).enqueue_ns - alone.enqueue_ns
        progress.waits_inside = slower_ns > PROBE_NS // 2
        progress.looked_at = replace(alone, escaped=behind_spin.escaped)
        progress.lead = Lead(settled=behind_spin.escaped)
        progress.per_call_s = min(alone_s, progress.per_call_s)  # the spin of the look is no part of a reading
    size_spin([alone.enqueue_ns], progress)
    return alone


def warm_up(
    supply: Supplier,
    clock: Clock,
    recipe: Recipe,
    progress: Progress,
    *,
    deadline: float,
    now: Callable[[], float],
) -> None:
    """Make the rest of the untimed calls, in growing batches, and size the spin by what the host needed."""
    while progress.calls < recipe.warmup_runs and now() < deadline:
        begin = now()
        room = int((deadline - begin) / progress.per_call_s) if progress.per_call_s else progress.calls
        count = max(1, min(progress.calls, recipe.warmup_runs - progress.calls, room))
        samples = clock.sample([supply(progress.calls + index) for index in range(count)], progress.lead)
        progress.per_call_s = (now() - begin) / count
        progress.calls += count
        if clock.fills_queue:
            size_spin([sample.enqueue_ns for sample in samples], progress)


def size_spin(enqueue_ns: list[int], progress: Progress) -> None:
    """Set the spin to the time that the host needs to enqueue one call, with a margin; none where it cannot help."""
    progress.enqueue_ns = int(median(enqueue_ns))
    helps = not progress.waits_inside and not progress.lead.settled
    wanted = int(progress.enqueue_ns * SPIN_MARGIN) + SPIN_FLOOR_NS
    progress.lead = replace(progress.lead, spin_ns=min(wanted, SPIN_CEILING_NS) if helps else 0)


def check_lines(supply: Supplier, clock: Clock, progress: Progress) -> None:
    """Find out whether the call leaves persisting lines in the L2, which no flush evicts; then reset them each time.

    The reset needs an idle device, so it is done only where it matters; what idling itself does to a call is in both
    sets of readings. A call whose readings scatter may look as if it were slower: the second look tells.
    """
    if look_at_lines(supply, clock, progress, LINES_CALLS) and look_at_lines(
        supply, clock, progress, LINES_CALLS * SECOND_LOOK
    ):
        progress.lead = replace(progress.lead, resets_lines=True)


def look_at_lines(supply: Supplier, clock: Clock, progress: Progress, count: int) -> bool:
    """Say whether the call is slower once lines are reset: in the median, and in most readings."""
    readings = []
    for lead in (replace(progress.lead, waits_first=True), replace(progress.lead, resets_lines=True)):
        samples = clock.sample([supply(progress.calls + index) for index in range(count)], lead)
        progress.calls += count
        readings.append(sorted(s.span_ns if s.busy_ns is None else s.busy_ns for s in samples))
    kept, reset = readings
    return median(reset) > median(kept) * (1 + LINES_SHARE) + LINES_NS and quantile(reset, 0.25) > quantile(kept, 0.75)


def _extra(clock: Clock, recipe: Recipe, progress: Progress) -> int:
    """Return how many readings a call may get beyond the count, if they scatter: none but for a quick one on a GPU."""
    if recipe.exact or not clock.sees_operations or progress.waits_inside or not progress.per_call_s:
        return 0
    return min(EXTRA_SHARE * recipe.iterations, int(EXTRA_S / progress.per_call_s))


def most_readings(iterations: int) -> int:
    """Return how many readings a trial can have that wants so many."""
    return max(1, iterations) * (1 + EXTRA_SHARE)


def take_samples(
    supply: Supplier, clock: Clock, rule: StoppingRule, progress: Progress, now: Callable[[], float]
) -> tuple[list[Sample], Stop]:
    """Take readings until the rule says stop; return them and why it did."""
    start = now()
    samples: list[Sample] = []
    while True:
        spent_s = now() - start
        stop = rule.reason_to_stop([s.span_ns for s in samples], spent_s=spent_s, per_call_s=progress.per_call_s)
        if stop is not None:
            return samples, stop
        count = rule.next_batch(len(samples), spent_s=spent_s, per_call_s=progress.per_call_s)
        samples += take_batch(supply, clock, count, progress, now)


def take_batch(
    supply: Supplier,
    clock: Clock,
    count: int,
    progress: Progress,
    now: Callable[[], float],
    *,
    retakes: int = RETAKES,
) -> list[Sample]:
    """Take readings; again with a longer spin where the host came late too often for a call that does not wait."""
    launches = [supply(progress.calls + index) for index in range(count)]
    begin = now()
    samples = clock.sample(launches, progress.lead)
    progress.per_call_s = (now() - begin) / count
    progress.calls += count
    too_late = sum(sample.late for sample in samples) > LATE_SHARE * count
    longer_ns = min(progress.lead.spin_ns * 2, SPIN_CEILING_NS)
    if not too_late or longer_ns == progress.lead.spin_ns or not retakes:
        return samples
    progress.lead = replace(progress.lead, spin_ns=longer_ns)
    progress.retaken += count
    return take_batch(supply, clock, count, progress, now, retakes=retakes - 1)


@dataclass(frozen=True)
class _Calls:
    supply: Supplier
    mode: str
    reason: str
    graphs: int = 1


def _capture(supply: Supplier, clock: Clock, recipe: Recipe, progress: Progress) -> _Calls:
    """Return the calls to be timed: replays where that is wanted and can be trusted, the calls themselves otherwise."""
    refusal = _no_graph(clock, recipe, progress)
    if refusal is not None:
        return _Calls(supply, "stream", refusal)
    looked_at = progress.looked_at
    assert looked_at is not None
    graphs = 1
    replays = clock.captured(supply)
    try:
        replayed = _replay(replays, clock, progress, graphs)
        if _wants_many(replayed[0], recipe, progress):
            graphs = BRANCHED_GRAPHS
            replays = clock.captured(supply, graphs)
            replayed = _replay(replays, clock, progress, graphs)
    except CaptureRefused as refused:
        return _Calls(supply, "stream", str(refused))
    if any(sample.launched != looked_at.launched for sample in replayed):
        return _Calls(supply, "stream", "a replay launches something else than the call does")
    return _Calls(replays, "graph", "", graphs)


def _wants_many(replayed: Sample, recipe: Recipe, progress: Progress) -> bool:
    """Say whether a replay's time depends on where its graph was placed, and the budget holds as many graphs."""
    has_time = progress.per_call_s * BRANCHED_GRAPHS * SLOW_SHARE <= recipe.budget_s
    return has_time and replayed.overlaps and replayed.span_ns <= BRANCHED_NS


def _replay(replays: Supplier, clock: Clock, progress: Progress, count: int) -> list[Sample]:
    """Replay so many calls, each of another graph; the first replay of a graph is never a reading."""
    samples = clock.sample([replays(progress.calls + index) for index in range(count)], progress.lead)
    progress.calls += count
    return samples


def _no_graph(clock: Clock, recipe: Recipe, progress: Progress) -> str | None:
    looked_at = progress.looked_at
    if not recipe.use_graphs:
        return "graphs are off"
    if progress.per_call_s * CHECKS * SLOW_SHARE > recipe.budget_s:
        return "a call as slow as this gains nothing by a graph"
    if not clock.sees_operations:
        return "only CUPTI can tell whether a replay launches what the call does"
    if looked_at is None or (looked_at.operations or 0) < 2:
        return "a single operation needs no graph"
    if progress.waits_inside:
        return "the call waits for the GPU inside"
    if looked_at.escaped:
        return "the call uses a stream that does not wait for the current one"
    return None


def _facts(clock: Clock, progress: Progress, mode: str, reason: str) -> Facts:
    facts: Facts = {"method": clock.method, "cache_state": clock.cache_state, "calls": progress.calls}
    if clock.fills_queue:
        facts |= {"launch": mode, "spin_ns": progress.lead.spin_ns}
        if reason:
            facts["launch_reason"] = reason
    if progress.waits_inside:
        facts["waits_inside"] = True
    if progress.lead.settled:
        facts["side_stream"] = True
    if progress.lead.resets_lines:
        facts["lines_reset"] = True
    if progress.retaken:
        facts["retaken"] = progress.retaken
    if clock.fills_queue:
        facts["enqueue_ns"] = progress.enqueue_ns
    return {**facts, **clock.facts()}
