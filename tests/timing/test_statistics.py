"""Order statistics, the interval of dependent samples, and when sampling stops."""

import random
from statistics import fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.timing.measurement import Sample, Trial
from flashinfer_bench.timing.statistics import (
    LONG_SAMPLE_NS,
    relative_half_width,
    summarise_trials,
    trimmed_mean,
)
from flashinfer_bench.timing.stopping import StoppingRule, reached_precision

samples = st.integers(1, 10**9)
series = st.lists(samples, min_size=1, max_size=80)
some_trials = st.lists(series, min_size=1, max_size=5)
PLACES = ("min", "q25", "median", "q75", "max")


@given(some_trials)
def test_statistics_are_in_order_and_lie_among_the_samples(trials):
    found = summarise_trials(trials)
    places = [getattr(found, name) for name in PLACES]
    assert places == pytest.approx(sorted(places))
    assert (found.min, found.max, found.count) == (min(map(min, trials)), max(map(max, trials)), sum(map(len, trials)))
    assert found.mean == pytest.approx(fmean(fmean(values) for values in trials))
    assert (found.interval is not None) == (found.count >= 9)
    if found.interval is not None:
        low, high = found.interval
        assert low <= fmean(median(values) for values in trials) <= high


def test_figures_that_can_be_worked_out_by_hand():
    one, two = summarise_trials([[4, 1, 3, 2]]), summarise_trials([[1, 2], [3]])
    assert (one.q25, one.median, one.q75, one.std) == (1.75, 2.5, 3.25, pytest.approx(1.25**0.5))
    assert (two.q25, two.median, two.q75) == pytest.approx((1.5, 2 + 1 / 3, 3.0))
    assert trimmed_mean([0, 32, 32, 64, 64, 64, 64, 10**9]) == pytest.approx(320 / 6)
    kinds = [trimmed_mean([*[1_120] * 24, *[1_312] * 24, kind, kind]) for kind in (1_120, 1_312)]
    assert kinds[1] - kinds[0] < 12  # a median is either kind


@pytest.mark.parametrize(
    ("trials", "middle", "half"),
    [
        ([[1_000 + index // 3 for index in range(30)]], 1_004.5, 2.262 * 3.02765 / 10**0.5),
        ([[1_000 + index // 3 for index in range(15)]] * 2, 1_002, 2.262 * (20 / 9) ** 0.5 / 10**0.5),
        ([[1_000] * 50, [1_100] * 50], 1_050, 12.706 * 50),
        ([[5] * 20], 5, 0),
        ([[1_000] * 4, [2_000] * 4], None, None),
    ],
    ids=["ten batches", "five a trial", "trials disagree", "equal", "too few"],
)
def test_an_interval_is_students_by_the_number_of_batches_or_trials(trials, middle, half):
    interval = summarise_trials(trials).interval
    assert interval == (half and pytest.approx((middle - half, middle + half), rel=1e-4)) or half == 0
    assert half != 0 or interval == (middle, middle)


def dependent(source, correlation, count):
    """Return an AR(1) series with normal steps about 1,000."""
    state, values = source.gauss(0, (1 - correlation**2) ** -0.5), []
    for _ in range(count):
        values.append(1_000 + state)
        state = correlation * state + source.gauss(0, 1)
    return values


@pytest.mark.parametrize(("correlation", "count"), [(0.0, 50), (0.9, 200)])
def test_the_interval_covers_the_median_of_samples_that_depend_on_their_neighbours(correlation, count):
    source = random.Random(7)
    drawn = [summarise_trials([dependent(source, correlation, count)]).interval for _ in range(300)]
    assert sum(low <= 1_000 <= high for low, high in drawn) >= 0.85 * 300


@pytest.mark.parametrize("between", [0.0, 1.0])
@pytest.mark.parametrize("count", [2, 12])
def test_the_interval_covers_the_mean_of_trials_whether_they_agree_or_not(count, between):
    source, hits = random.Random(1), 0
    for _ in range(300):
        places = [source.gauss(1_000, between) for _ in range(count)]
        low, high = summarise_trials([[source.gauss(place, 0.3) for _ in range(50)] for place in places]).interval
        hits += low <= 1_000 <= high
    assert hits >= 0.92 * 300


STEADY, NOISY = [1_000_000] * 20, [1_000_000, 3_000_000] * 10
SCATTERED = random.Random(3).choices([1_120, 1_312], k=60)
STEPPED = random.Random(3).choices([1_440, 1_472], k=50)
LONG = [LONG_SAMPLE_NS] * 3
KNOWN_TO_1_5 = [10_000 + 50 * at for at in random.Random(3).choices(range(-10, 11), k=40)]
EARLY, AUTO, EXTRA = {"stops_early": True}, {"fewest": 20}, {"iterations": 20, "extra": 40}
BY_CUPTI = {**EARLY, "method": "cupti"}


def spread(share, times=1):
    return [LONG_SAMPLE_NS, LONG_SAMPLE_NS * (1 + share), LONG_SAMPLE_NS * (1 + 2 * share)] * times


STOPS = {
    "nothing taken": ([], 99.0, 0.1, {}, None),
    "quick": (STEADY, 0.1, 0.005, {}, None),
    "slow and steady": (STEADY, 2.0, 0.5, {}, "precision"),
    "slow and noisy": (NOISY, 2.0, 0.5, {}, None),
    "too few to tell": (STEADY[:8], 2.0, 0.5, {}, None),
    "all taken": (STEADY * 3, 99.0, 0.5, {}, "count"),
    "long, of a solution": (LONG, 9.99, 0.005, {"method": "cupti"}, None),
    "long, on a CPU": (LONG, 0.1, 0.025, EARLY, None),
    "long, known by chance": (spread(0.005), 0.1, 0.025, BY_CUPTI, None),
    "early": (STEADY[:9], 0.1, 0.005, EARLY, "precision"),
    "early, too few": (STEADY[:8], 0.1, 0.005, EARLY, None),
    "auto": (STEADY, 0.1, 0.0001, AUTO, "precision"),
    "auto, too few": (STEADY[:19], 0.1, 0.0001, AUTO, None),
    "extra, scattered": (SCATTERED[:20], 0.1, 0.005, EXTRA, None),
    "extra, as many as may be": (SCATTERED, 0.1, 0.005, EXTRA, "count"),
    "extra, known after a while": ([*STEADY, *STEADY], 0.1, 0.005, EXTRA, "precision"),
    "extra, no time": (SCATTERED[:20], 9.98, 0.005, EXTRA, "count"),
    "extra, a step of the clock": (STEPPED, 0.0, 1e-4, {"extra": 100}, "count"),
    "a finer precision": (KNOWN_TO_1_5, 9.0, 0.1, {"iterations": 80, "precision": 0.01}, None),
}


@pytest.mark.parametrize(("spans", "spent_s", "per_call_s", "rule", "reason"), STOPS.values(), ids=STOPS)
def test_why_sampling_stops(spans, spent_s, per_call_s, rule, reason):
    rule = StoppingRule(**{"iterations": 50, "budget_s": 10.0, **rule})
    assert rule.reason_to_stop(spans, spent_s=spent_s, per_call_s=per_call_s) == reason


def test_busy_time_is_to_be_known_too():
    rule, busy = StoppingRule(50, 10.0, extra=100), ([5_000] * 8 + [7_000] * 2) * 5
    assert rule.reason_to_stop([9_000] * 50, busy, spent_s=0.1, per_call_s=0.005) is None


def test_the_precision_of_several_trials_is_that_of_their_mean():
    def trial(spans_ns, busy_ns=None):
        busy = busy_ns or [None] * len(spans_ns)
        return Trial(tuple(Sample(span, 1_000, some) for span, some in zip(spans_ns, busy, strict=True)), "count")

    steady, half = trial([9_000] * 40), relative_half_width(SCATTERED)
    assert reached_precision([trial(NOISY[:8])]) is None
    assert reached_precision([trial(SCATTERED)] * 4) == pytest.approx(half / 2)
    assert reached_precision([steady, trial(SCATTERED)]) == pytest.approx(half / 2)
    busy = relative_half_width(SCATTERED, trimmed_mean)
    assert reached_precision([trial([9_000] * 60, SCATTERED)]) == pytest.approx(busy)
