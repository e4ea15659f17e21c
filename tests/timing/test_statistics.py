"""Order statistics, the interval of dependent samples, and when sampling stops."""

import random
from statistics import fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.timing.statistics import (
    LONG_SAMPLE_NS,
    describe,
    interval_of_trials,
    trimmed_mean,
)
from flashinfer_bench.timing.stopping import StoppingRule

series = st.lists(st.integers(1, 10**9), min_size=1, max_size=80)


@given(st.lists(series, min_size=1, max_size=5))
def test_statistics_are_in_order_and_the_interval_holds_the_mean_of_medians(trials):
    found, interval = describe(trials), interval_of_trials(trials)
    places = [found[name] for name in ("min", "q25", "median", "q75", "max")]
    assert places == sorted(places)
    assert (found["min"], found["max"]) == (min(map(min, trials)), max(map(max, trials)))
    assert (interval is not None) == (sum(map(len, trials)) >= 9)
    if interval is not None:
        assert interval[0] <= fmean(median(values) for values in trials) <= interval[1]


def test_figures_that_can_be_worked_out_by_hand():
    found = describe([[4, 1], [3, 2]])
    assert (found["q25"], found["median"], found["q75"], found["mean"]) == (1.75, 2.5, 3.25, 2.5)
    assert found["std"] == pytest.approx(1.25**0.5)
    assert trimmed_mean([0, 32, 32, 64, 64, 64, 64, 10**9]) == pytest.approx(320 / 6)


@pytest.mark.parametrize(
    ("trials", "middle", "half"),
    [
        ([[1_000 + index // 3 for index in range(30)]], 1_004.5, 2.262 * 3.02765 / 10**0.5),
        ([[1_000 + index // 3 for index in range(15)]] * 2, 1_002, 2.262 * (20 / 9) ** 0.5 / 10**0.5),
        ([[1_000] * 50, [1_100] * 50], 1_050, 12.706 * 50),
        ([[5] * 20], 5, 0),
    ],
    ids=["ten batches", "five a trial", "trials disagree", "equal"],
)
def test_an_interval_is_students_by_the_number_of_batches_or_trials(trials, middle, half):
    assert interval_of_trials(trials) == pytest.approx((middle - half, middle + half), rel=1e-4)


STEADY, NOISY = [1_000_000] * 20, [1_000_000, 3_000_000] * 10
SCATTERED = random.Random(3).choices([1_120, 1_312], k=60)
STEPPED = random.Random(3).choices([1_440, 1_472], k=50)
LONG = [LONG_SAMPLE_NS] * 3
FEW_LONG = [LONG_SAMPLE_NS, LONG_SAMPLE_NS * 1.005, LONG_SAMPLE_NS * 1.01]
EARLY, AUTO, EXTRA = {"stops_early": True}, {"fewest": 20}, {"iterations": 20, "extra": 40}
BY_CUPTI = {**EARLY, "method": "cupti"}
NEXT = {
    "nothing taken, no time": ([], 99.0, 0.1, {}, 1),
    "quick": ([], 0.1, 0.001, {}, 50),
    "slow and steady": (STEADY, 2.0, 0.5, {}, "precision"),
    "no time left": (NOISY, 9.9, 0.5, {}, "budget"),
    "long, of a solution": (LONG, 9.99, 0.005, {"method": "cupti"}, 1),
    "long": (LONG, 0.1, 0.025, BY_CUPTI, "precision"),
    "long, known by chance": (FEW_LONG, 0.1, 0.025, BY_CUPTI, 3),
    "early": (STEADY[:9], 0.1, 0.005, EARLY, "precision"),
    "auto": (STEADY, 0.1, 0.0001, AUTO, "precision"),
    "extra, scattered": (SCATTERED[:20], 0.1, 0.005, EXTRA, 7),
    "extra, known after a while": ([*STEADY, *STEADY], 0.1, 0.005, EXTRA, "precision"),
    "extra, no time": (SCATTERED[:20], 9.98, 0.005, EXTRA, "count"),
    "extra, a step of the clock": (STEPPED, 0.0, 1e-4, {"extra": 100}, "count"),
}


@pytest.mark.parametrize(("spans", "spent_s", "per_call_s", "rule", "found"), NEXT.values(), ids=NEXT)
def test_how_many_samples_come_next_or_why_sampling_stops(spans, spent_s, per_call_s, rule, found):
    rule = StoppingRule(**{"iterations": 50, "budget_s": 10.0, **rule})
    assert rule.next_batch(spans, spent_s=spent_s, per_call_s=per_call_s) == found


def test_busy_time_is_to_be_known_too():
    rule, busy = StoppingRule(50, 10.0, extra=100), ([5_000] * 8 + [7_000] * 2) * 5
    assert rule.next_batch([9_000] * 50, busy, spent_s=0.1, per_call_s=0.005) == 17
