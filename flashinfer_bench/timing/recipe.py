"""How a trial is taken, top to bottom: check → warm up → size the spin → look for persisting lines (`timing.lines`) →
calls or replays of graphs (`timing.replays`) → (flush, spin, call) until the rule says stop.

It runs where the code runs: in the worker for a solution, in the device session for the reference. What the readings
mean is decided elsewhere (`timing.summary`); here they are only taken.

The flush leaves nothing of the inputs in the L2; the spin lets memory and power rest, and keeps the GPU busy until the
host has enqueued the whole call, so that its operations run back to back as they do when a queue is full. Nothing but
the call lies between the two ends of a reading.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import Final

from flashinfer_bench.timing.clocks import CaptureRefused, Clock, ClockLost, Lead
from flashinfer_bench.timing.lines import check_lines
from flashinfer_bench.timing.measurement import Facts, Sample, Stop, Trial
from flashinfer_bench.timing.progress import CHECKS, SLOW_SHARE, Recipe, Supplier, TrialProgress
from flashinfer_bench.timing.replays import Calls, choose_calls
from flashinfer_bench.timing.stopping import StoppingRule

PROBE_NS: Final = 2_000_000
"""A call that takes so much longer on the host behind a spin of this length waits for the GPU inside."""
QUEUE_HOLDS: Final = 900
"""The queue of a device holds about a thousand launches: past that the host waits for room, and not the call."""
SPIN_MARGIN: Final = 1.5
SPIN_FLOOR_NS: Final = 6_000
SPIN_CEILING_NS: Final = 50_000_000
REST_NS: Final = 100_000
"""A memory that was just read at full speed by the flush makes a call scatter half as much again (H200)."""
MOST_REST_NS: Final = 10_000_000
"""A GPU that works without a pause uses up its power, and slows down: 12 % within fifty matrix products of 1.4 ms on an
H200. One that rests before each call for as long as the call takes does not (0.2 %)."""
LATE_SHARE: Final = 0.1
"""With more late readings than this the spin was too short: it is doubled and the batch taken again."""
RETAKES: Final = 3
EXTRA_SHARE: Final = 10
EXTRA_S: Final = 0.15
"""A quick call whose span or busy time is not known to 0.5 % after the wanted readings gets up to so many times as many
more, in so much time: a microsecond's kernel that misses the caches takes one time or another, 20 % apart, and kernels
of two streams meet each other anew in each call (7 %)."""


def take_trial(supply: Supplier, clock: Clock, recipe: Recipe, *, now: Callable[[], float] = perf_counter) -> Trial:
    """Take one trial; the clock is switched off again whatever happens.

    Args:
        supply: gives the launch for the i-th call.
        clock: how readings are taken. One that loses its readings is replaced by its fall-back, and the facts say so.
        recipe: counts and budget.
        now: the host's clock, in seconds.
    """
    start, progress = now(), TrialProgress()
    try:
        with clock:
            return _take(supply, clock, recipe, progress, now)
    except ClockLost as lost:
        fallback = clock.fall_back(str(lost))
        if fallback is None:
            raise
    spent_s = now() - start - progress.compiled_s
    left = replace(recipe, budget_s=max(0.0, recipe.budget_s - spent_s))
    return take_trial(supply, fallback, left, now=now)  # out here nothing holds what the lost trial held


def _take(supply: Supplier, clock: Clock, recipe: Recipe, progress: TrialProgress, now: Callable[[], float]) -> Trial:
    start = now()
    latest = check(supply, clock, recipe, progress, now)
    start += progress.compiled_s
    if now() - start > recipe.budget_s:
        return Trial((latest,), "budget", _facts(clock, progress, "stream", "the budget holds no more calls"))
    deadline = now() + recipe.budget_s / SLOW_SHARE - CHECKS * progress.per_call_s
    warm_up(supply, clock, recipe, progress, deadline=deadline, now=now)
    check_lines(supply, clock, progress, deadline=deadline, now=now)
    calls = choose_calls(supply, clock, recipe, progress, now)
    rule = StoppingRule(recipe.iterations, recipe.budget_s - (now() - start), _extra(clock, recipe, progress))
    try:
        samples, stop = take_samples(calls.supply, clock, rule, progress, now)
    except CaptureRefused as refused:  # of a later call: it does something else than the first
        calls = Calls(supply, "stream", str(refused))
        rule = replace(rule, budget_s=recipe.budget_s - (now() - start))
        samples, stop = take_samples(supply, clock, rule, progress, now)
    facts = _facts(clock, progress, calls.mode, calls.reason)
    if len(samples) > recipe.iterations:
        facts["extra_samples"] = len(samples) - recipe.iterations
    if len({sample.launched for sample in samples}) > 1:
        facts["operations_vary"] = True
    if calls.graphs > 1:
        facts["graphs"] = calls.graphs
    return Trial(tuple(samples), stop, facts)


def check(supply: Supplier, clock: Clock, recipe: Recipe, progress: TrialProgress, now: Callable[[], float]) -> Sample:
    """Make the first calls: what the call launches, whether it waits inside, how long the host needs for it.

    The first one may compile kernels, where the call was not made before: then what it says of time counts only for a
    CPU, and there only where it was quick.

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
    first_s = progress.per_call_s
    is_known = recipe.was_called and first_s > recipe.budget_s
    if is_known or (not clock.fills_queue and (recipe.was_called or first_s <= recipe.budget_s / 2)):
        return first
    alone = call(Lead(looks_aside=True))
    progress.looked_at = alone
    alone_s = progress.per_call_s
    progress.compiled_s = max(0.0, first_s - alone_s)
    if not clock.fills_queue or alone_s > recipe.budget_s:
        return alone
    if alone_s * SLOW_SHARE <= recipe.budget_s:
        _look_behind_spin(alone, call, clock, progress)
        progress.per_call_s = min(alone_s, progress.per_call_s)  # the spin of the look is no part of a reading
    size_spin([alone.enqueue_ns], progress)
    progress.per_call_s += progress.lead.spin_ns / 1e9
    return alone


def _look_behind_spin(alone: Sample, call: Callable[[Lead], Sample], clock: Clock, progress: TrialProgress) -> None:
    """See whether a call waits for the GPU inside, and whether it uses streams that do not wait for the current one.

    Args:
        alone: the reading of a call that no spin stood before.
        call: makes a call.
        clock: what `call` reads.
        progress: takes what is found.
    """
    probe = Lead(PROBE_NS + alone.enqueue_ns)  # longer than what the host does before it may wait
    behind_spin = call(probe)
    slower_ns = behind_spin.enqueue_ns - alone.enqueue_ns
    if slower_ns > PROBE_NS // 2:  # it waits, or the host was held up: a second look tells
        slower_ns = call(probe).enqueue_ns - alone.enqueue_ns
    progress.overfills = (alone.operations or 0) > QUEUE_HOLDS
    progress.waits_inside = slower_ns > PROBE_NS // 2 and not progress.overfills
    escaped = behind_spin.escaped
    if alone.escaped and not clock.sees_operations:  # or the host was held up: likewise
        escaped = call(Lead(looks_aside=True)).escaped
    progress.looked_at = replace(alone, escaped=escaped)
    progress.lead = Lead(settled=escaped)


def warm_up(
    supply: Supplier,
    clock: Clock,
    recipe: Recipe,
    progress: TrialProgress,
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


def size_spin(enqueue_ns: list[int], progress: TrialProgress) -> None:
    """Set the spin: none where it cannot help.

    It lasts as long as the host needs to enqueue one call, with a margin, and as long as memory and power need to rest.
    """
    if not progress.overfills or not progress.enqueue_ns:  # else it holds the spin before it
        progress.enqueue_ns = int(median(enqueue_ns))
    helps = not progress.waits_inside and not progress.lead.settled
    wanted = int(progress.enqueue_ns * SPIN_MARGIN) + SPIN_FLOOR_NS
    wanted = max(min(wanted, SPIN_CEILING_NS), rest_ns(progress))
    progress.lead = replace(progress.lead, spin_ns=wanted if helps else 0)


def rest_ns(progress: TrialProgress) -> int:
    """Return how long the GPU rests before a call: as long as the call keeps it busy, within bounds."""
    first = progress.looked_at
    busy_ns = 0 if first is None else first.span_ns if first.busy_ns is None else first.busy_ns
    return min(max(busy_ns, REST_NS), MOST_REST_NS)


def _extra(clock: Clock, recipe: Recipe, progress: TrialProgress) -> int:
    """Return how many readings a call may get beyond the count, if they scatter: none but for a quick one on a GPU."""
    if recipe.exact or not clock.sees_operations or progress.waits_inside or not progress.per_call_s:
        return 0
    return min(EXTRA_SHARE * recipe.iterations, int(EXTRA_S / progress.per_call_s))


def most_readings(iterations: int) -> int:
    """Return how many readings a trial can have that wants so many."""
    return max(1, iterations) * (1 + EXTRA_SHARE)


def take_samples(
    supply: Supplier, clock: Clock, rule: StoppingRule, progress: TrialProgress, now: Callable[[], float]
) -> tuple[list[Sample], Stop]:
    """Take readings until the rule says stop; return them and why it did."""
    start = now()
    samples: list[Sample] = []
    while True:
        spent_s = now() - start
        spans_ns, busy_ns = [s.span_ns for s in samples], [s.busy_ns for s in samples if s.busy_ns is not None]
        stop = rule.reason_to_stop(spans_ns, busy_ns, spent_s=spent_s, per_call_s=progress.per_call_s)
        if stop is not None:
            return samples, stop
        count = rule.next_batch(len(samples), spent_s=spent_s, per_call_s=progress.per_call_s)
        samples += take_batch(supply, clock, count, progress, now, deadline=start + rule.budget_s)


def take_batch(
    supply: Supplier,
    clock: Clock,
    count: int,
    progress: TrialProgress,
    now: Callable[[], float],
    *,
    deadline: float,
    retakes: int = RETAKES,
) -> list[Sample]:
    """Take readings; again with a longer spin where the host came late too often for a call that does not wait.

    Late ones have to do where others would take until after the deadline (seconds).
    """
    begin = now()
    launches = [supply(progress.calls + index) for index in range(count)]  # may make copies, or graphs
    samples = clock.sample(launches, progress.lead)
    progress.per_call_s = (now() - begin) / count
    progress.calls += count
    too_late = sum(sample.late for sample in samples) > LATE_SHARE * count and not progress.overfills
    longer_ns = min(progress.lead.spin_ns * 2, SPIN_CEILING_NS)
    retaken_s = count * (progress.per_call_s + (longer_ns - progress.lead.spin_ns) / 1e9)
    if not too_late or longer_ns == progress.lead.spin_ns or not retakes or now() + retaken_s > deadline:
        return samples
    progress.lead = replace(progress.lead, spin_ns=longer_ns)
    progress.retaken += count
    return take_batch(supply, clock, count, progress, now, deadline=deadline, retakes=retakes - 1)


def _facts(clock: Clock, progress: TrialProgress, mode: str, reason: str) -> Facts:
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
