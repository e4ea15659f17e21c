"""Order statistics and the interval of the median, as properties of any series."""

import random
from statistics import fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.timing.statistics import (
    BATCH,
    LONG_SAMPLE_NS,
    count_together,
    half_width,
    quantile,
    relative_half_width,
    summarise_trials,
    trimmed_mean,
)

readings = st.integers(1, 10**9)
series = st.lists(readings, min_size=1, max_size=80)
long_series = st.lists(readings, min_size=9, max_size=80)


def median_interval(values, batch=BATCH):
    half = half_width(values, batch=batch)
    return None if half is None else (median(values) - half, median(values) + half)


@given(series)
def test_order_statistics_are_in_order(values):
    found = summarise_trials([values])
    ordered = [found.min, found.q25, found.median, found.q75, found.max]
    assert ordered == sorted(ordered)
    assert (found.min, found.max, found.count) == (min(values), max(values), len(values))
    assert found.min <= found.mean * (1 + 1e-12)
    assert found.mean <= found.max * (1 + 1e-12)


@given(series, st.integers(0, 10**9))
def test_a_shift_moves_places_and_leaves_widths(values, shift):
    before, after = summarise_trials([values]), summarise_trials([[value + shift for value in values]])
    for name in ("median", "mean", "min", "max", "q25", "q75"):
        assert getattr(after, name) == pytest.approx(getattr(before, name) + shift, rel=1e-9)
    assert after.std == pytest.approx(before.std, rel=1e-6, abs=1e-3)


@given(long_series, st.integers(2, 1000))
def test_a_scale_scales_everything_and_leaves_relative_widths(values, scale):
    before, after = summarise_trials([values]), summarise_trials([[value * scale for value in values]])
    for name in ("median", "mean", "std", "min", "max", "q25", "q75"):
        assert getattr(after, name) == pytest.approx(getattr(before, name) * scale, rel=1e-9, abs=1e-6)
    assert after.interval == pytest.approx([bound * scale for bound in before.interval], rel=1e-9, abs=1e-3)


@given(long_series)
def test_the_interval_contains_the_median(values):
    low, high = median_interval(values)
    assert low <= median(values) <= high


@given(st.lists(readings, max_size=8))
def test_fewer_than_nine_readings_have_no_interval(values):
    assert median_interval(values) is None
    assert relative_half_width(values) is None


def test_readings_of_ten_milliseconds_and_more_of_a_gpu_are_batches_by_themselves():
    long = [LONG_SAMPLE_NS, LONG_SAMPLE_NS * 1.01, LONG_SAMPLE_NS * 1.02]
    assert [count_together(values, "cupti") for values in ([], [1.0], [*long, 1.0], long)] == [BATCH, BATCH, BATCH, 1]
    assert count_together(long, "wall") == BATCH  # nothing rests there
    low, high = median_interval(long, batch=1)
    assert (high - low) / 2 == pytest.approx(4.303 * LONG_SAMPLE_NS * 0.01 / 3**0.5, rel=1e-3)
    assert median_interval(long[:2], batch=1) is None
    assert summarise_trials([long[:2], long[2:]], 1).interval is not None


@given(readings, st.integers(9, 60))
def test_equal_readings_have_no_width(value, count):
    found = summarise_trials([[value] * count])
    assert (found.interval, found.std) == ((value, value), 0)
    assert relative_half_width([value] * count) == 0


def test_a_median_of_0_has_no_relative_width():
    assert relative_half_width([0] * 20) is None


@given(series, st.floats(0, 1))
def test_a_quantile_lies_among_the_values_and_grows_with_its_share(values, share):
    ordered = sorted(values)
    assert ordered[0] <= quantile(ordered, share) <= ordered[-1]
    assert quantile(ordered, share / 2) <= quantile(ordered, share)


def test_quartiles_are_linear_between_neighbours():
    found = summarise_trials([[4, 1, 3, 2]])
    assert (found.q25, found.median, found.q75, found.std) == (1.75, 2.5, 3.25, pytest.approx(1.25**0.5))


@given(series)
def test_the_trimmed_mean_lies_between_the_readings_that_it_keeps(values):
    ordered, cut = sorted(values), max(len(values) // 10, int(len(values) >= 3))
    middle = ordered[cut : len(values) - cut]
    assert middle[0] * (1 - 1e-12) <= trimmed_mean(values) <= middle[-1] * (1 + 1e-12)


def test_the_trimmed_mean_ignores_outliers_and_sees_less_than_a_step():
    assert trimmed_mean([0, 32, 32, 64, 64, 64, 64, 10**9]) == pytest.approx(320 / 6)
    assert trimmed_mean([32, 64]) == 48


def test_the_trimmed_mean_is_steady_where_readings_come_in_two_kinds():
    short, long = [1_120] * 24, [1_312] * 24
    one_more = [trimmed_mean([*short, *long, kind, kind]) for kind in (1_120, 1_312)]
    assert one_more[1] - one_more[0] < 12


def covered(*, correlation, count, interval, rounds=400):
    """Return how often an interval holds the true median of an AR(1) series with normal steps."""
    source, hits = random.Random(7), 0
    for _ in range(rounds):
        state, values = source.gauss(0, (1 - correlation**2) ** -0.5), []
        for _ in range(count):
            values.append(1_000 + state)
            state = correlation * state + source.gauss(0, 1)
        low, high = interval(values)
        hits += low <= 1_000 <= high
    return hits / rounds


def independent_interval(values):
    """Return the textbook 95 % interval of the median of 50 independent readings, by order statistics."""
    ordered = sorted(values)
    return ordered[17], ordered[32]


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6])
def test_the_interval_covers_the_median_of_readings_that_depend_on_their_neighbours(correlation):
    assert covered(correlation=correlation, count=50, interval=median_interval) >= 0.85


def test_an_interval_for_independent_readings_would_not():
    assert covered(correlation=0.6, count=50, interval=independent_interval) < 0.8


def test_more_readings_cover_stronger_dependence():
    assert covered(correlation=0.9, count=200, interval=median_interval, rounds=200) >= 0.85


def covered_by_trials(count, *, between, within, rounds=400):
    """Return how often the interval of so many trials of 50 readings holds the mean that they are drawn about."""
    source, hits = random.Random(1), 0
    for _ in range(rounds):
        places = [source.gauss(1_000, between) for _ in range(count)]
        low, high = summarise_trials([[source.gauss(place, within) for _ in range(50)] for place in places]).interval
        hits += low <= 1_000 <= high
    return hits / rounds


@pytest.mark.parametrize("between", [0.0, 1.0])
@pytest.mark.parametrize("count", [2, 3, 5, 12])
def test_the_interval_covers_the_mean_of_trials_whether_they_agree_or_not(count, between):
    assert covered_by_trials(count, between=between, within=0.3) >= 0.92


def test_the_interval_of_two_trials_that_disagree_is_that_of_two_readings():
    low, high = summarise_trials([[1_000] * 50, [1_100] * 50]).interval
    assert (low, high) == pytest.approx((1_050 - 12.706 * 50, 1_050 + 12.706 * 50))


def test_trials_with_too_few_readings_have_no_interval_however_they_disagree():
    assert summarise_trials([[1_000] * 4, [2_000] * 4]).interval is None


some_trials = st.lists(series, min_size=1, max_size=5)


@given(some_trials)
def test_statistics_over_trials_are_in_order(trials):
    found = summarise_trials(trials)
    ordered = [found.min, found.q25, found.median, found.q75, found.max]
    assert ordered == pytest.approx(sorted(ordered))
    assert found.count == sum(map(len, trials))
    assert found.mean == pytest.approx(fmean(fmean(values) for values in trials))
    assert (found.interval is not None) == (found.count >= 9)


@given(some_trials, st.integers(2, 12))
def test_a_trial_counts_once_however_often_its_readings_are_repeated(trials, times):
    """Statistics of place and width; the interval is of readings in their order, and so another."""
    before, after = summarise_trials(trials), summarise_trials([trials[0] * times, *trials[1:]])
    for name in ("mean", "std", "min", "max"):
        assert getattr(after, name) == pytest.approx(getattr(before, name), rel=1e-6, abs=1e-3)


@given(st.lists(long_series, min_size=1, max_size=5))
def test_the_interval_of_trials_contains_the_mean_of_their_medians(trials):
    low, high = summarise_trials(trials).interval
    assert low <= fmean(median(values) for values in trials) <= high


@given(st.integers(1, 10**9), st.lists(st.integers(1, 60), min_size=2, max_size=5))
def test_trials_of_one_value_have_it_everywhere(value, counts):
    found = summarise_trials([[value] * count for count in counts])
    assert [found.q25, found.median, found.q75, found.mean] == pytest.approx([value] * 4)
    assert found.std == pytest.approx(0, abs=value * 1e-6)


def test_an_interval_is_students_by_the_number_of_batches():
    """Ten batches with the middles 1,000 to 1,009: 2.262 times their deviation, over the root of ten."""
    low, high = median_interval([1_000 + index // 3 for index in range(30)])
    assert (high - low) / 2 == pytest.approx(2.262 * 3.02765 / 10**0.5, rel=1e-4)


def test_the_interval_of_trials_that_agree_is_students_by_their_batches():
    series = [1_000 + index // 3 for index in range(15)]
    low, high = summarise_trials([series, series]).interval
    assert (high - low) / 2 == pytest.approx(2.262 * (20 / 9) ** 0.5 / 10**0.5, rel=1e-4)


def test_trials_with_too_few_batches_have_the_interval_of_all_their_readings():
    low, high = summarise_trials([[1, 1, 1, 2, 2, 2, 3, 3], [2]]).interval
    assert (low, high) == pytest.approx((2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))


def test_quartiles_over_trials_are_linear_between_the_middles_of_their_weights():
    found = summarise_trials([[1, 2], [3]])
    assert (found.q25, found.median, found.q75) == pytest.approx((1.5, 2 + 1 / 3, 3.0))
