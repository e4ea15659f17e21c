import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.timing.recipe import Trial, batch_size, sample_trial, summarise

pytestmark = pytest.mark.cpu


class FakeClock:
    """A clock whose launches take `step_s` of a fake time each."""

    method = "fake"
    cache_state = "cold"

    def __init__(self, step_s=0.001):
        self.time_s = 0.0
        self.step_s = step_s
        self.calls = []

    def now(self):
        return self.time_s

    def _run(self, launch, kind):
        launch()
        self.time_s += self.step_s
        self.calls.append(kind)

    def warm_up(self, launch, count):
        for _ in range(count):
            self._run(launch, "warm")

    def sample(self, launches):
        for launch in launches:
            self._run(launch, "timed")
        return [round(self.step_s * 1e9)] * len(launches)

    def facts(self):
        return {"constant_ns": 7}


def take(clock, **changes):
    counts = {"warmup_runs": 10, "iterations": 50, "budget_s": 10.0, **changes}
    return sample_trial(lambda _index: lambda: None, clock, now=clock.now, **counts)


def test_a_quick_call_gets_every_warm_up_and_every_iteration():
    clock = FakeClock()
    trial = take(clock)
    assert clock.calls == ["warm"] * 10 + ["timed"] * 50
    assert (len(trial.samples_ns), trial.stop) == (50, "count")
    assert trial.facts == {"method": "fake", "cache_state": "cold", "warmup_runs": 10, "constant_ns": 7}


def test_a_slow_call_stops_at_the_budget_with_at_least_one_reading():
    slow = take(FakeClock(step_s=1.0), budget_s=5.0)
    assert (slow.stop, 1 <= len(slow.samples_ns) < 50) == ("budget", True)
    endless = FakeClock(step_s=100.0)
    assert len(take(endless, budget_s=2.0).samples_ns) == 1
    assert endless.calls == ["warm", "timed"]


def test_each_call_gets_its_own_launch_from_the_supplier():
    seen = []
    clock = FakeClock()
    sample_trial(
        lambda index: lambda: seen.append(index), clock, warmup_runs=0, iterations=5, budget_s=1.0, now=clock.now
    )
    assert seen == [0, 1, 2, 3, 4]


def test_a_launch_that_raises_is_not_swallowed():
    def boom():
        raise ValueError("in iteration")

    with pytest.raises(ValueError, match="in iteration"):
        sample_trial(
            lambda index: boom if index == 3 else lambda: None, FakeClock(), warmup_runs=2, iterations=9, budget_s=1.0
        )


@given(st.integers(1, 500), st.integers(1, 500), st.floats(0, 100), st.floats(-1, 100))
def test_a_batch_never_asks_for_more_than_is_wanted(taken, more, sampling_s, left_s):
    size = batch_size(taken=taken, wanted=taken + more, sampling_s=sampling_s, left_s=left_s)
    assert 1 <= size <= more


@given(st.lists(st.lists(st.integers(1, 10**9), min_size=1, max_size=9), min_size=1, max_size=4))
def test_latency_is_the_mean_of_the_medians(samples):
    measured = summarise([Trial(trial, "count", {"method": "fake"}) for trial in samples])
    assert measured.latency_ms == pytest.approx(sum(measured.trials) / len(samples))
    assert measured.record["min_ms"] <= measured.latency_ms * (1 + 1e-9)
    assert measured.latency_ms <= measured.record["max_ms"] * (1 + 1e-9)
    assert measured.record["samples"] == sum(map(len, samples))
