"""How a trial is taken, top to bottom: check → look for persisting lines (`timing.lines`) → warm up → size the spin →
calls or replays of graphs (`timing.replays`) → (flush, spin, call) until the rule says stop. A call that seems to wait
for the GPU inside is warmed up, and looked at again, before the look for lines.

It runs where the code runs: in the worker for a solution, in the device session for the reference. It only takes
readings. What they mean is decided elsewhere (`timing.summary`).

The flush leaves nothing of the inputs in the L2. The spin lets memory and power rest. It also keeps the GPU busy until
the host has enqueued the whole call, so that the operations run back to back as they do in a full queue. Nothing but
the call lies between the two ends of a reading.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import Final

from flashinfer_bench.timing.clocks import CaptureRefused, Clock, ClockLost, Lead
from flashinfer_bench.timing.lines import check_lines
from flashinfer_bench.timing.measurement import Facts, Sample, Stop, Trial
from flashinfer_bench.timing.progress import CHECKS, SLOW_SHARE, Recipe, Supplier, TrialUnderWay
from flashinfer_bench.timing.replays import Calls, choose_calls
from flashinfer_bench.timing.statistics import LONG_READING_NS
from flashinfer_bench.timing.stopping import QUICK_S, StoppingRule

PROBE_NS: Final = 2_000_000
"""Least length of the spin that finds out whether a call waits for the GPU, beyond what the host needs for the call. It
lasts as long as that again, where the host needs longer. A call waits if the spin makes it slower on the host by more
than half of this length: calls of many operations differ by milliseconds on a busy host."""
LOOKS: Final = 3
"""Looks behind a spin, after the warm-up, that all have to find that a call waits."""
QUEUE_HOLDS: Final = 900
"""A call of more operations than this may fill the device's queue, which holds about a thousand launches. Then the
host waits for room in the queue; the call itself does not wait for the GPU."""
SPIN_MARGIN: Final = 1.5
"""The spin lasts this many times as long as the host needs to enqueue the call."""
SPIN_FLOOR_NS: Final = 6_000
"""Added to that, so that a call which the host enqueues at once gets a spin, too."""
SPIN_CEILING_NS: Final = 50_000_000
"""A spin covers at most this much of the host's time. A call that takes the host longer has late readings."""
REST_NS: Final = 100_000
"""The GPU rests at least this long before each call: the flush reads memory at full speed, and right after it the times
of a call scatter half as much again (H200). After 50 us most do so no more, but three trials of a call of 2 us in one
worker differed by 3 %, after 100 us by 1.4 % at the most."""
MOST_REST_NS: Final = 50_000_000
"""The GPU rests at most this long. It rests as long as the call takes: a GPU that works without a pause reaches its
power limit and slows down (12 % within fifty matrix products of 1.4 ms on an H200; with rest 0.2 %). Before calls of
LONG_READING_NS and more it rests twice as long: readings of 21 ms of products scattered by 1.7 and 2.6 % after rests of
10 ms, by 0.2 and 1.2 % after 25 ms, by 0.1 % after 50 (H100)."""
FLUSH_NS: Final = 50_000
"""What a flush takes at the most. It is a part of what a reading is thought to take, so it need not be exact."""
SPARED_S: Final = 0.005
"""A call that may stop early, and whose readings take longer than this, gets no warm-up beyond the checks, and nobody
looks for persisting lines. Others do: the first dozen readings of a call of 0.16 ms that takes the host a millisecond
were 2 % longer than later ones, and a reference with no others made each solution seem faster."""
REQUEST_S: Final = 0.015
"""A request of a single call may take so long on a busy machine, which says nothing of how long a reading takes among
others. So whether a call is quick that may stop early is told by what the clock has seen: a reference of 13 us had nine
readings, and was told 4 % wrong."""
LATE_SHARE: Final = 0.1
"""If a larger share of a batch is late, the spin was too short: it is doubled, and the batch is taken again."""
RETAKES: Final = 3
"""A batch is taken again at most this many times."""
EXTRA_SHARE: Final = 10
EXTRA_S: Final = 0.05
"""If the span or busy time of a quick call is not known to the precision that is asked for after the wanted readings,
more are taken: at most EXTRA_SHARE times the wanted number, and for at most EXTRA_S seconds a set of inputs. A kernel
of a microsecond that misses the caches has two typical durations, 20 % apart; kernels of two streams overlap
differently in each call (7 %)."""


def take_trial(
    supply: Supplier,
    clock: Clock,
    recipe: Recipe,
    *,
    now: Callable[[], float] = perf_counter,
) -> Trial:
    """Take one trial; the clock is switched off again whatever happens.

    Args:
        supply: gives the launch for the i-th call.
        clock: how readings are taken. One that loses its readings is replaced by its fall-back, and the facts say so.
        recipe: counts and budget.
        now: the host's clock, in seconds.
    """
    start, trial = now(), TrialUnderWay(supply, clock, recipe, now)
    try:
        with clock:
            return _take(trial)
    except ClockLost as lost:
        fallback = clock.fall_back(str(lost))
        if fallback is None:
            raise
    # Retry outside the `except`: the error no longer holds the lost trial's frames, so its memory is freed.
    spent_s = now() - start - trial.compiled_s
    left = replace(recipe, budget_s=max(0.0, recipe.budget_s - spent_s))
    return take_trial(supply, fallback, left, now=now)


def _take(trial: TrialUnderWay) -> Trial:
    recipe, now = trial.recipe, trial.now
    start = now()
    latest = check(trial)
    start += trial.compiled_s
    if now() - start > recipe.budget_s:
        calls = Calls(trial.supply, "stream", "the budget holds no more calls")
        return Trial((latest,), "budget", _facts(trial, calls))
    deadline = now() + recipe.budget_s / SLOW_SHARE - CHECKS * trial.per_call_s
    if not recipe.stops_early or trial.per_call_s <= SPARED_S:
        _look_and_warm_up(trial, deadline=deadline)
    elif trial.waits_inside:
        _look_again(trial)
    calls = choose_calls(trial)
    if calls.enqueue_ns is not None:  # the spin was for the call's own launches
        trial.lead = replace(trial.lead, spin_ns=find_spin(trial, calls.enqueue_ns))
    left_s = recipe.budget_s - (now() - start)
    extra = count_extra(trial)
    method = trial.clock.method
    wanted = recipe.iterations, left_s, extra, recipe.precision, recipe.stops_early
    rule = StoppingRule(*wanted, method, recipe.fewest)
    try:
        samples, stop = take_samples(trial, calls.supply, rule)
    except CaptureRefused as refused:  # of a later call: it does something else than the first
        calls = Calls(trial.supply, "stream", str(refused))
        trial.lead = replace(trial.lead, spin_ns=find_spin(trial, trial.enqueue_ns))
        rule = replace(rule, budget_s=recipe.budget_s - (now() - start))
        samples, stop = take_samples(trial, calls.supply, rule)
    return Trial(tuple(samples), stop, _facts(trial, calls, samples))


def check(trial: TrialUnderWay) -> Sample:
    """Make the first calls: what the call launches, whether it waits inside, how long the host needs for it.

    The first call may compile kernels, if the call was not made before. Then its time counts only on a CPU, and there
    only if it was quick.

    Returns:
        The reading to go by where the budget holds no more calls.
    """
    recipe, fills_queue = trial.recipe, trial.clock.fills_queue
    first_s: float | None = None
    if not recipe.was_called or not fills_queue:
        (trial.looked_at,) = trial.time_calls(1, lead=Lead())
        first_s = trial.per_call_s
        if not fills_queue and (recipe.was_called or first_s <= recipe.budget_s / 2):
            return trial.looked_at
    (alone,) = trial.time_calls(1, lead=Lead(looks_aside=True))
    trial.looked_at = alone
    alone_s = trial.per_call_s
    trial.compiled_s = max(0.0, first_s - alone_s) if first_s is not None else 0.0
    if not fills_queue or alone_s > recipe.budget_s:
        return alone
    enqueue_ns = alone.enqueue_ns
    if alone_s * SLOW_SHARE <= recipe.budget_s:
        behind_spin = _look_behind_spin(trial, alone)
        trial.per_call_s = min(alone_s, trial.per_call_s)  # the spin of the look is no part of a reading
        if not trial.waits_inside:  # or the host was held up in one of both
            enqueue_ns = min(enqueue_ns, behind_spin.enqueue_ns)
    size_spin(trial, [enqueue_ns])
    trial.per_call_s += trial.lead.spin_ns / 1e9
    if recipe.stops_early and trial.per_call_s <= REQUEST_S:
        trial.per_call_s = min(trial.per_call_s, reading_s(trial, replace(alone, enqueue_ns=enqueue_ns)))
    return alone


def reading_s(trial: TrialUnderWay, alone: Sample) -> float:
    """Return how long a reading takes by what the clock has seen of the call."""
    return (max(trial.lead.spin_ns, alone.enqueue_ns) + alone.span_ns + FLUSH_NS) / 1e9


def _look_behind_spin(trial: TrialUnderWay, alone: Sample) -> Sample:
    """See whether a call waits for the GPU inside, and whether it uses streams that do not wait for the current one.

    Args:
        trial: takes what is found.
        alone: the reading of a call that no spin stood before.

    Returns:
        The reading of a call behind a spin.
    """
    behind_spin, is_slower = _probe(trial, alone.enqueue_ns)
    if is_slower:  # it waits, or the host was held up: a second look tells
        _, is_slower = _probe(trial, alone.enqueue_ns)
    trial.overfills = (alone.operations or 0) > QUEUE_HOLDS
    trial.waits_inside = is_slower and not trial.overfills
    escaped = behind_spin.escaped
    if alone.escaped and not trial.clock.sees_operations:  # or the host was held up: a second look tells here, too
        (aside_again,) = trial.time_calls(1, lead=Lead(looks_aside=True))
        escaped = aside_again.escaped
    trial.looked_at = replace(alone, escaped=escaped)
    trial.lead = Lead(settled=escaped)
    return behind_spin


def _look_and_warm_up(trial: TrialUnderWay, *, deadline: float) -> None:
    """Look for persisting lines, and make the rest of the untimed calls.

    The look comes first, since its calls warm the call up. It comes behind the warm-up for a call that seems to wait
    inside, and where the checks were so slow that there seemed to be no time for it.
    """
    looked = [] if trial.waits_inside else check_lines(trial, deadline=deadline)
    if looked:
        size_spin(trial, [sample.enqueue_ns for sample in looked])
    warm_up(trial, deadline=deadline)
    if trial.waits_inside:
        _look_again(trial)
    if not looked:
        check_lines(trial, deadline=deadline)


def _look_again(trial: TrialUnderWay) -> None:
    """See whether a call still waits for the GPU inside: its first ones do where the driver gives them memory.

    It waits if each look says so: on a busy machine the host is held up for a millisecond now and then.
    """
    for _ in range(LOOKS):
        _, trial.waits_inside = _probe(trial, trial.enqueue_ns)
        if not trial.waits_inside:
            break
    size_spin(trial, [trial.enqueue_ns])


def _probe(trial: TrialUnderWay, enqueue_ns: int) -> tuple[Sample, bool]:
    """Make a call behind a spin that outlasts what the host does before it may wait.

    Args:
        trial: the trial.
        enqueue_ns: what the host needs to enqueue the call.

    Returns:
        Its reading, and whether the spin made it slower on the host.
    """
    probe_ns = max(PROBE_NS, enqueue_ns)
    (behind_spin,) = trial.time_calls(1, lead=Lead(probe_ns + enqueue_ns))
    return behind_spin, behind_spin.enqueue_ns - enqueue_ns > probe_ns // 2


def warm_up(trial: TrialUnderWay, *, deadline: float) -> None:
    """Make the rest of the untimed calls, and size the spin by what the host needed; slow ones in growing batches."""
    while trial.calls < trial.recipe.warmup_runs and trial.now() < deadline:
        left, room = trial.recipe.warmup_runs - trial.calls, trial.calls
        if trial.per_call_s:
            room = int((deadline - trial.now()) / trial.per_call_s)
        most = left if trial.per_call_s <= QUICK_S else min(trial.calls, left)
        samples = trial.time_calls(max(1, min(most, room)))
        if trial.clock.fills_queue:
            size_spin(trial, [sample.enqueue_ns for sample in samples])


def size_spin(trial: TrialUnderWay, enqueue_ns: list[int]) -> None:
    """Set the spin before the call.

    It lasts as long as the host needs to enqueue one call, with a margin, and as long as memory and power need to rest.
    """
    if not trial.overfills or not trial.enqueue_ns:  # else the readings hold the spin before them
        trial.enqueue_ns = int(median(enqueue_ns))
    trial.lead = replace(trial.lead, spin_ns=find_spin(trial, trial.enqueue_ns))


def find_spin(trial: TrialUnderWay, enqueue_ns: int) -> int:
    """Return how long the spin lasts, in nanoseconds; 0 where it cannot help.

    Args:
        trial: knows how its call behaves.
        enqueue_ns: what the host needs to enqueue what is timed, the call or the replay of its graph.
    """
    if trial.waits_inside or trial.lead.settled:
        return 0
    wanted = int(enqueue_ns * SPIN_MARGIN) + SPIN_FLOOR_NS
    return max(min(wanted, SPIN_CEILING_NS), rest_ns(trial.looked_at))


def rest_ns(call: Sample | None) -> int:
    """Return how long the GPU rests before a call: as long as the call keeps it busy, or up to twice that."""
    busy_ns = 0 if call is None else call.span_ns if call.busy_ns is None else call.busy_ns
    wanted_ns = busy_ns + busy_ns * min(busy_ns, LONG_READING_NS) // LONG_READING_NS
    return min(max(wanted_ns, REST_NS), MOST_REST_NS)


def count_extra(trial: TrialUnderWay) -> int:
    """Return how many readings a call may get beyond the count, if they scatter: none but for a quick one on a GPU."""
    if trial.recipe.exact or not trial.clock.sees_operations or trial.waits_inside or not trial.per_call_s:
        return 0
    return min(EXTRA_SHARE * trial.recipe.iterations, int(trial.recipe.sets * EXTRA_S / trial.per_call_s))


def most_readings(iterations: int) -> int:
    """Return the most readings that a trial can have, given the number wanted."""
    return max(1, iterations) * (1 + EXTRA_SHARE)


def take_samples(trial: TrialUnderWay, supply: Supplier, rule: StoppingRule) -> tuple[list[Sample], Stop]:
    """Take readings until the rule says stop; return them and why it did.

    Args:
        trial: the trial.
        supply: gives the launches.
        rule: says when to stop.
    """
    start = trial.now()
    samples: list[Sample] = []
    while True:
        spent_s = trial.now() - start
        spans_ns, busy_ns = [s.span_ns for s in samples], [s.busy_ns for s in samples if s.busy_ns is not None]
        stop = rule.reason_to_stop(spans_ns, busy_ns, spent_s=spent_s, per_call_s=trial.per_call_s)
        if stop is not None:
            return samples, stop
        count = rule.next_batch(len(samples), spent_s=spent_s, per_call_s=trial.per_call_s)
        samples += take_batch(trial, supply, count, first=len(samples), deadline=start + rule.budget_s)


def take_batch(trial: TrialUnderWay, supply: Supplier, count: int, *, deadline: float, first: int = 0) -> list[Sample]:
    """Take readings. If too many are late for a call that does not wait, take them again behind a longer spin.

    Args:
        trial: the trial.
        supply: gives the launches.
        count: how many readings are wanted.
        deadline: in seconds. Late readings are kept where taking others would last until after it.
        first: readings that there are already: the sets of inputs go on by turns.
    """

    def take() -> list[Sample]:
        skipped = (first - trial.calls) % trial.recipe.sets
        return trial.time_calls(count, supply=lambda index: supply(index + skipped))

    samples = take()
    for _ in range(RETAKES):
        spin_ns = trial.lead.spin_ns
        longer_ns = min(spin_ns * 2, SPIN_CEILING_NS)
        retaken_s = count * (trial.per_call_s + (longer_ns - spin_ns) / 1e9)
        too_late = sum(sample.late for sample in samples) > LATE_SHARE * count and not trial.overfills
        if not too_late or longer_ns == spin_ns or trial.now() + retaken_s > deadline:
            break
        trial.lead = replace(trial.lead, spin_ns=longer_ns)
        trial.retaken += count
        samples = take()
    return samples


def _facts(trial: TrialUnderWay, calls: Calls, samples: Sequence[Sample] = ()) -> Facts:
    """Return how the readings came about; what does not hold is left out."""
    facts: Facts = {"method": trial.clock.method, "cache_state": trial.clock.cache_state, "calls": trial.calls}
    if trial.clock.fills_queue:
        facts |= {"launch": calls.mode, "spin_ns": trial.lead.spin_ns, "enqueue_ns": trial.enqueue_ns}
        facts |= {"launch_reason": calls.reason} if calls.reason else {}
    seen = [*samples, *([] if trial.looked_at is None else [trial.looked_at])]
    streams, sets = max((sample.streams for sample in seen), default=0), trial.recipe.sets
    holding: Facts = {
        "waits_inside": trial.waits_inside,
        "side_stream": trial.lead.settled,
        "lines_reset": trial.lead.resets_lines,
        "retaken": trial.retaken,
        "extra_samples": max(0, len(samples) - trial.recipe.iterations),
        "operations_vary": any(len({one.launched for one in samples[at::sets]}) > 1 for at in range(sets)),
        "streams": streams if streams > 1 else 0,
        "graphs": calls.graphs if calls.graphs > 1 else 0,
    }
    return {**facts, **{name: value for name, value in holding.items() if value}, **trial.clock.facts()}
