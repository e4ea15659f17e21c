"""When sampling stops: at the count, at the precision of a slow call, or at the budget."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.timing.measurement import Sample, Trial
from flashinfer_bench.timing.statistics import LONG_SAMPLE_NS, relative_half_width, trimmed_mean
from flashinfer_bench.timing.stopping import (
    BATCH_SHARE,
    QUICK_S,
    SLOW_BATCH,
    StoppingRule,
    reached_precision,
)

STEADY = [1_000_000] * 20
SCATTERED = random.Random(3).choices([1_120, 1_312], k=60)
NOISY = [1_000_000, 3_000_000] * 10


@pytest.mark.parametrize(
    ("spans", "spent_s", "per_call_s", "reason"),
    [
        ([], 0.0, 0.1, None),
        ([], 99.0, 0.1, None),
        (STEADY, 0.1, 0.005, None),
        (NOISY, 0.1, 0.005, None),
        (STEADY, 2.0, 0.1, None),
        (STEADY, 2.0, 0.5, "precision"),
        (NOISY, 2.0, 0.5, None),
        (NOISY, 9.6, 0.5, "budget"),
        (STEADY, 9.6, 0.5, "precision"),
        (STEADY[:8], 2.0, 0.5, None),
        (STEADY[:8], 9.6, 0.5, "budget"),
        (STEADY * 3, 99.0, 0.5, "count"),
    ],
    ids=[
        "nothing taken yet",
        "nothing taken though the time is spent",
        "quick and steady",
        "quick and noisy",
        "all fit just so",
        "slow and steady",
        "slow and noisy",
        "slow, noisy and spent",
        "precision before budget",
        "too few to tell",
        "too few and spent",
        "all taken",
    ],
)
def test_why_sampling_stops(spans, spent_s, per_call_s, reason):
    rule = StoppingRule(iterations=50, budget_s=10.0)
    assert rule.reason_to_stop(spans, spent_s=spent_s, per_call_s=per_call_s) == reason


@pytest.mark.parametrize(
    ("spans", "stops_early", "reason"),
    [
        ([LONG_SAMPLE_NS] * 3, True, "precision"),
        ([LONG_SAMPLE_NS] * 3, False, None),
        ([LONG_SAMPLE_NS] * 2, True, None),
        ([LONG_SAMPLE_NS - 1] * 3, True, None),
        ([LONG_SAMPLE_NS, LONG_SAMPLE_NS * 1.003, LONG_SAMPLE_NS * 1.006], True, "precision"),
        ([LONG_SAMPLE_NS, LONG_SAMPLE_NS * 1.005, LONG_SAMPLE_NS * 1.01], True, None),
        ([LONG_SAMPLE_NS, LONG_SAMPLE_NS * 1.005, LONG_SAMPLE_NS * 1.01] * 3, True, "precision"),
    ],
    ids=["known", "of a solution", "too few to tell", "not so long", "steady", "known by chance", "more of these"],
)
def test_a_long_call_that_may_stop_early_is_known_after_three_readings(spans, stops_early, reason):
    rule = StoppingRule(iterations=50, budget_s=1.0, stops_early=stops_early, method="cupti")
    assert rule.reason_to_stop(spans, spent_s=0.1, per_call_s=0.025) == reason


@pytest.mark.parametrize(
    ("spans", "fewest", "reason"),
    [
        (STEADY, 20, "precision"),
        (STEADY, None, None),
        (STEADY[:19], 20, None),
        (NOISY, 20, None),
        (NOISY * 3, 20, "count"),
        (STEADY * 3, 20, "count"),
    ],
    ids=["known", "a count is exact", "too few", "not known", "not known after all", "all taken"],
)
def test_a_quick_call_stops_at_its_precision_where_no_count_was_asked_for(spans, fewest, reason):
    rule = StoppingRule(50, budget_s=10.0, fewest=fewest)
    assert rule.reason_to_stop(spans, spent_s=0.1, per_call_s=0.0001) == reason


def test_where_no_count_was_asked_for_the_rule_looks_after_the_fewest_and_then_every_few_readings():
    rule = StoppingRule(50, budget_s=10.0, fewest=20)
    taken = 0
    batches = []
    while taken < 50:
        batches.append(rule.next_batch(taken, spent_s=0.1, per_call_s=0.0001))
        taken += batches[-1]
    assert batches == [20, 10, 10, 10]


def test_on_a_cpu_long_readings_count_as_others_do():
    rule = StoppingRule(iterations=50, budget_s=1.0, stops_early=True, method="wall")
    assert rule.reason_to_stop([LONG_SAMPLE_NS] * 3, spent_s=0.1, per_call_s=0.025) is None
    assert rule.reason_to_stop([LONG_SAMPLE_NS] * 9, spent_s=0.1, per_call_s=0.025) == "precision"


@pytest.mark.parametrize(
    ("spans", "per_call_s", "reason"),
    [
        (STEADY[:9], 0.005, "precision"),
        (STEADY[:8], 0.005, None),
        (NOISY, 0.005, None),
        (STEADY[:9], QUICK_S, None),
        (STEADY * 3, 0.005, "count"),
    ],
    ids=["known", "too few to tell", "noisy", "quick", "all taken"],
)
def test_a_call_that_is_not_quick_may_stop_early_though_all_readings_would_fit(spans, per_call_s, reason):
    rule = StoppingRule(iterations=50, budget_s=10.0, stops_early=True)
    assert rule.reason_to_stop(spans, spent_s=0.1, per_call_s=per_call_s) == reason
    if reason is None and per_call_s > QUICK_S:
        assert rule.next_batch(len(spans), spent_s=0.1, per_call_s=per_call_s) == SLOW_BATCH


@pytest.mark.parametrize(
    ("spans", "spent_s", "per_call_s", "reason"),
    [
        (STEADY, 0.1, 0.005, "count"),
        (SCATTERED[:20], 0.1, 0.005, None),
        (SCATTERED[:40], 0.1, 0.005, None),
        (SCATTERED, 0.1, 0.005, "count"),
        ([*STEADY, *STEADY], 0.1, 0.005, "precision"),
        (SCATTERED[:20], 9.98, 0.005, "count"),
    ],
    ids=["steady", "scattered", "still scattered", "as many as may be", "known after a while", "no time"],
)
def test_a_quick_call_whose_readings_scatter_gets_extra_ones(spans, spent_s, per_call_s, reason):
    rule = StoppingRule(iterations=20, budget_s=10.0, extra=40)
    assert rule.reason_to_stop(spans, spent_s=spent_s, per_call_s=per_call_s) == reason


def test_busy_time_that_scatters_gets_extra_readings_too():
    rule, spans = StoppingRule(iterations=20, budget_s=10.0, extra=40), [9_000] * 20
    busy = random.Random(3).choices([5_000, 7_000], k=20)
    assert rule.reason_to_stop(spans, spent_s=0.1, per_call_s=0.005) == "count"
    assert rule.reason_to_stop(spans, spans, spent_s=0.1, per_call_s=0.005) == "count"
    assert rule.reason_to_stop(spans, busy, spent_s=0.1, per_call_s=0.005) is None
    assert rule.reason_to_stop(spans, [0] * 20, spent_s=0.1, per_call_s=0.005) == "count"  # no GPU work


@pytest.mark.parametrize(("precision", "quick", "slow"), [(0.005, None, None), (0.01, "count", "precision")])
def test_quick_calls_and_slow_ones_are_known_to_the_precision_that_is_asked_for(precision, quick, slow):
    times = [10_000 + 25 * value for value in random.Random(3).choices(range(-10, 11), k=40)]
    assert 0.005 < relative_half_width(times) < 0.01
    rule = StoppingRule(40, 10.0, extra=40, precision=precision)
    assert rule.reason_to_stop(times, spent_s=0.1, per_call_s=0.001) == quick
    assert StoppingRule(80, 10.0, precision=precision).reason_to_stop(times, spent_s=9.0, per_call_s=0.1) == slow


def test_what_was_reached_is_that_of_the_mean_of_all_trials():
    def trial(spans_ns, busy_ns=None):
        busy = busy_ns or [None] * len(spans_ns)
        return Trial(tuple(Sample(span, 1_000, some) for span, some in zip(spans_ns, busy, strict=True)), "count")

    steady, few = trial([9_000] * 40), trial(NOISY[:8])
    assert reached_precision([few]) is None
    assert reached_precision([steady, few]) == 0
    half = relative_half_width(SCATTERED)
    assert reached_precision([trial(SCATTERED)]) == pytest.approx(half)
    assert reached_precision([trial(SCATTERED)] * 4) == pytest.approx(half / 2)
    assert reached_precision([steady, trial(SCATTERED)]) == pytest.approx(half / 2)
    assert reached_precision([trial([9_000] * 60, SCATTERED)]) == pytest.approx(
        relative_half_width(SCATTERED, trimmed_mean)
    )
    assert reached_precision([trial([9_000] * 40, [0] * 40)]) == 0  # no GPU work


def test_busy_time_is_known_when_its_mean_is():
    rule, spans = StoppingRule(iterations=50, budget_s=10.0, extra=100), [9_000] * 50
    busy = ([5_000] * 5 + [5_000, 5_000, 5_000, 7_000, 7_000]) * 5
    assert relative_half_width(busy) == 0
    assert rule.reason_to_stop(spans, busy, spent_s=0.1, per_call_s=0.005) is None


@given(st.integers(1, 100), st.integers(0, 200), st.lists(st.integers(1, 10**6), min_size=1, max_size=20))
def test_extra_readings_end_at_their_count(iterations, extra, lengths):
    rule, spans = StoppingRule(iterations, 1e9, extra), []
    while rule.reason_to_stop(spans, spent_s=0.0, per_call_s=1e-6) is None:
        batch = rule.next_batch(len(spans), spent_s=0.0, per_call_s=1e-6)
        assert batch >= 1
        spans += [lengths[(len(spans) + index) % len(lengths)] for index in range(batch)]
    assert iterations <= len(spans) <= iterations + extra


def test_readings_that_differ_by_a_step_of_the_clock_need_no_more_of_them():
    rule, steps = StoppingRule(iterations=50, budget_s=10.0, extra=100), random.Random(3)
    scattered, stepped = (steps.choices([low, high], k=50) for low, high in ((1_440, 1_632), (1_440, 1_472)))
    assert relative_half_width(stepped) > rule.precision / 2
    assert rule.reason_to_stop(scattered, spent_s=0.0, per_call_s=1e-4) is None
    assert rule.reason_to_stop(stepped, spent_s=0.0, per_call_s=1e-4) == "count"


def test_a_count_too_small_to_tell_scatter_by_is_kept():
    assert StoppingRule(8, 10.0, extra=16).reason_to_stop([1, 9] * 4, spent_s=0.0, per_call_s=1e-6) == "count"


@given(
    st.integers(1, 500),
    st.integers(0, 499),
    st.floats(-100, 100),
    st.floats(0, 1000),
    st.floats(0, 100),
)
def test_a_batch_never_asks_for_more_than_is_wanted_nor_for_nothing(iterations, taken, budget_s, spent_s, per_call_s):
    rule = StoppingRule(taken + iterations, budget_s)
    batch = rule.next_batch(taken, spent_s=spent_s, per_call_s=per_call_s)
    assert 1 <= batch <= iterations
    if spent_s + iterations * per_call_s > budget_s:
        assert batch <= SLOW_BATCH
    elif per_call_s <= QUICK_S:
        assert batch == iterations
    else:
        assert batch <= SLOW_BATCH or batch * per_call_s <= (budget_s - spent_s) * BATCH_SHARE


@given(
    st.integers(1, 200),
    st.floats(0, 20),
    st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 3)), min_size=1, max_size=20),
)
def test_sampling_always_ends_with_a_reading_and_not_long_after_the_budget(iterations, budget_s, calls):
    rule, spans, spent_s, per_call_s = StoppingRule(iterations, budget_s), [], 0.0, calls[-1][1]
    while (stop := rule.reason_to_stop(spans, spent_s=spent_s, per_call_s=per_call_s)) is None:
        batch = rule.next_batch(len(spans), spent_s=spent_s, per_call_s=per_call_s)
        taken = [calls[(len(spans) + index) % len(calls)] for index in range(batch)]
        spans += [span for span, _ in taken]
        batch_s = sum(seconds for _, seconds in taken)
        spent_s, per_call_s = spent_s + batch_s, batch_s / batch
    assert 1 <= len(spans) <= iterations
    assert (stop == "count") == (len(spans) == iterations)


@pytest.mark.parametrize(("per_call_s", "batch"), [(0.002, 50), (0.025, 50), (0.05, 25), (0.19, 6)])
def test_a_batch_is_expected_to_take_a_small_share_of_the_budget(per_call_s, batch):
    assert StoppingRule(iterations=50, budget_s=10.0).next_batch(0, spent_s=0.0, per_call_s=per_call_s) == batch


def test_a_slow_call_is_looked_at_every_few_readings_and_the_last_ones_fit_the_budget():
    rule = StoppingRule(iterations=50, budget_s=10.0)
    assert rule.next_batch(0, spent_s=0.0, per_call_s=1.0) == SLOW_BATCH
    assert rule.next_batch(6, spent_s=8.5, per_call_s=1.0) == 1
    assert rule.next_batch(49, spent_s=1.0, per_call_s=5.0) == 1


def test_a_slow_call_that_is_known_to_less_than_one_percent_only_goes_on():
    times = [10_000 + 50 * value for value in random.Random(3).choices(range(-10, 11), k=40)]
    assert 0.01 < relative_half_width(times) < 0.02
    assert StoppingRule(80, 10.0, precision=0.01).reason_to_stop(times, spent_s=9.0, per_call_s=0.1) is None
