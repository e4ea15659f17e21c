"""The recipe keeps to its budget: slow calls, calls that become slow, and a first call that compiles."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.timing.clocks import WallClock
from flashinfer_bench.timing.procedure import DELAY_CEILING_NS, PROBE_NS, Procedure, take_trial
from tests.kit.fake_gpu import FLUSH_NS, FakeGpu, fake_cupti_clock, fake_event_clock
from tests.timing.taking import RECIPE, SECOND_NS, flags_of, take

pytestmark = pytest.mark.cpu
REST_NS = 100_000


def test_a_2_s_call_stops_at_the_budget_and_says_so(gpu):
    trial = take(gpu, gpu.call(length_ns=2 * SECOND_NS))
    assert trial.stop == "budget"
    assert 1 <= len(trial.samples) <= 3
    assert 5 * SECOND_NS < gpu.now_ns < 11 * SECOND_NS
    assert "too_few_samples" in flags_of(trial)


def test_a_call_longer_than_the_budget_is_taken_once(gpu):
    trial = take(gpu, gpu.call(length_ns=30 * SECOND_NS, operations=2))
    assert (gpu.log.count("call"), len(trial.samples)) == (2, 1)  # the first may have compiled
    assert (trial.stop, trial.facts["launch_reason"]) == ("budget", "the budget holds no more calls")


@pytest.mark.parametrize("kind", ["cupti", "wall"])
def test_a_call_longer_than_the_budget_that_was_made_before_is_made_once(gpu, kind):
    clock = WallClock() if kind == "wall" else fake_cupti_clock(gpu)[0]
    recipe = Procedure(10, 50, budget_s=10.0, was_called=True)
    trial = take_trial(lambda _: gpu.call(host_ns=30 * SECOND_NS), clock, recipe, now=gpu.seconds)
    assert (gpu.log.count("call"), len(trial.samples), trial.stop) == (1, 1, "budget")


@pytest.mark.parametrize("seconds", [2.6, 4, 6, 9])
def test_a_call_of_most_of_the_budget_costs_no_more_than_one_call_over_it(gpu, seconds):
    length_ns = int(seconds * SECOND_NS) // 2
    trial = take(gpu, gpu.call(length_ns=length_ns, operations=2))
    assert trial.stop == "budget"
    assert gpu.now_ns < (10 + seconds + 0.1) * SECOND_NS


def test_a_call_that_becomes_slower_by_and_by_keeps_to_the_budget(gpu):
    def supply(index):
        return gpu.call(length_ns=SECOND_NS // 20 if index < 20 else SECOND_NS)

    trial = take_trial(supply, fake_cupti_clock(gpu)[0], RECIPE, now=gpu.seconds)
    assert trial.stop in ("precision", "budget")
    assert gpu.seconds() < 2 * RECIPE.budget_s


def test_a_steady_slow_call_stops_once_its_interval_is_narrow_and_says_so(gpu):
    trial = take(gpu, gpu.call(length_ns=SECOND_NS // 4))
    assert (trial.stop, len(trial.samples)) == ("precision", 9)


@pytest.mark.parametrize(
    ("length_ns", "stops_early", "readings", "stop"),
    [
        (SECOND_NS // 100, True, 3, "precision"),
        (SECOND_NS // 250, True, 9, "precision"),
        (SECOND_NS // 250, False, 50, "count"),
        (SECOND_NS // 10_000, True, 50, "count"),
    ],
    ids=["20 ms", "8 ms", "8 ms, all readings wanted", "quick"],
)
def test_a_steady_call_that_is_not_quick_may_stop_early_where_all_readings_would_fit(
    gpu, length_ns, stops_early, readings, stop
):
    recipe = Procedure(10, 50, budget_s=10.0, was_called=True, stops_early=stops_early)
    trial = take(gpu, gpu.call(length_ns=length_ns, operations=2), recipe)
    assert (len(trial.samples), trial.stop) == (readings, stop)


@pytest.mark.parametrize("length_ns", [SECOND_NS // 100_000, SECOND_NS // 200], ids=["quick", "5 ms"])
def test_requests_that_take_milliseconds_do_not_make_a_quick_call_slow(gpu, length_ns):
    clock = fake_cupti_clock(gpu)[0]
    sample = clock.sample

    def ask(launches, lead):
        gpu.now_ns += 10_000_000
        return sample(launches, lead)

    clock.sample = ask
    recipe = Procedure(10, 50, budget_s=10.0, was_called=True, stops_early=True)
    trial = take_trial(lambda _: gpu.call(length_ns=length_ns), clock, recipe, now=gpu.seconds)
    assert (trial.stop, len(trial.samples)) == (("count", 50) if length_ns < 1_000_000 else ("precision", 9))


@pytest.mark.parametrize(("cost_ms", "warmup_runs"), [(40, 0), (40, 10), (100, 10)])
def test_what_each_reading_costs_beside_the_call_counts_as_its_time(gpu, cost_ms, warmup_runs):
    """So it is where a solution has a slow `setup`, or inputs are made anew for each call."""
    clock = fake_cupti_clock(gpu)[0]
    sample = clock.sample

    def ask(launches, lead):
        gpu.now_ns += cost_ms * 1_000_000 * len(launches)
        return sample(launches, lead)

    clock.sample = ask
    recipe = Procedure(warmup_runs, 50, budget_s=0.67, was_called=True, stops_early=True)
    begin_ns = gpu.now_ns
    trial = take_trial(lambda _: gpu.call(), clock, recipe, now=gpu.seconds)
    assert len(trial.samples) < 10
    assert gpu.now_ns - begin_ns < 0.8e9


@pytest.mark.parametrize(
    ("host_ns", "length_ns", "readings", "is_warmed_up"),
    [(1_500_000, 100_000, 9, True), (0, 10_000_000, 3, False)],
    ids=["the host takes a millisecond", "10 ms"],
)
def test_of_calls_that_may_stop_early_only_slow_ones_get_no_warm_up(gpu, host_ns, length_ns, readings, is_warmed_up):
    recipe = Procedure(10, 50, budget_s=10.0, was_called=True, stops_early=True, cuda_graphs=False)
    trial = take(gpu, gpu.call(length_ns=length_ns, host_ns=host_ns), recipe)
    assert (trial.stop, len(trial.samples)) == ("precision", readings)
    assert (trial.facts["calls"] - len(trial.samples) >= recipe.warmup_runs) is is_warmed_up


def test_a_noisy_slow_call_goes_on_until_the_budget_is_spent(gpu):
    lengths = [SECOND_NS // 8, SECOND_NS // 4] * 100
    trial = take_trial(
        lambda index: gpu.call(length_ns=lengths[index]), fake_cupti_clock(gpu)[0], RECIPE, now=gpu.seconds
    )
    assert trial.stop == "budget"
    assert len(trial.samples) > 20
    assert gpu.now_ns <= 10.3 * SECOND_NS


def test_warm_up_ends_at_a_quarter_of_the_budget(gpu):
    trial = take(gpu, gpu.call(length_ns=SECOND_NS // 2), Procedure(warmup_runs=1000, iterations=1000, budget_s=10.0))
    assert gpu.now_ns <= 10.6 * SECOND_NS
    assert (trial.stop, len(trial.samples) >= 9) == ("precision", True)


def test_a_first_call_that_compiles_does_not_make_a_quick_call_slow(gpu):
    def supply(index):
        return gpu.call(host_ns=4 * SECOND_NS if index == 0 else 0)

    trial = take_trial(supply, fake_cupti_clock(gpu)[0], RECIPE, now=gpu.seconds)
    assert (trial.stop, len(trial.samples)) == ("count", 50)
    assert set(trial.spans_ns) == {10_000}
    assert trial.facts["spin_ns"] < PROBE_NS


@pytest.mark.parametrize("compile_s", [4, 9.9999, 12, 700])
@pytest.mark.parametrize("kind", ["cupti", "cuda_events", "lost"])
def test_the_budget_does_not_pay_for_a_first_call_that_compiles(gpu, compile_s, kind):
    def supply(index):
        return gpu.call(host_ns=int(compile_s * SECOND_NS) if index == 0 else 0)

    clock = fake_event_clock(gpu) if kind == "cuda_events" else fake_cupti_clock(gpu, lost_at=4)[0]
    clock = fake_cupti_clock(gpu)[0] if kind == "cupti" else clock
    trial = take_trial(supply, clock, RECIPE, now=gpu.seconds)
    assert (trial.stop, len(trial.samples)) == ("count", 50)
    assert max(trial.spans_ns) < 20_000


@pytest.mark.parametrize("first_s", [1.5, 4.0])
def test_a_first_call_that_compiles_on_a_cpu_does_not_become_the_measurement(first_s, monkeypatch):
    gpu = FakeGpu()
    monkeypatch.setattr("flashinfer_bench.timing.clocks.perf_counter_ns", lambda: gpu.now_ns)

    def supply(index):
        return gpu.call(operations=0, host_ns=int(first_s * SECOND_NS) if index == 0 else 1_000_000)

    trial = take_trial(supply, WallClock(), Procedure(10, 50, 2.0), now=gpu.seconds)
    assert (trial.stop, set(trial.spans_ns), len(trial.samples)) == ("count", {1_000_000}, 50)


@given(st.integers(0, 12), st.integers(1, 20), st.floats(0.001, 5), st.integers(1, 10**9), st.integers(0, 10**9))
def test_any_trial_ends_with_a_reading_and_at_most_two_calls_past_its_budget(warmup, wanted, budget_s, gpu_ns, host_ns):
    gpu = FakeGpu()
    trial = take(gpu, gpu.call(length_ns=gpu_ns, host_ns=host_ns), Procedure(warmup, wanted, budget_s))
    assert 1 <= len(trial.samples) <= wanted
    per_call_s = (gpu_ns + host_ns + DELAY_CEILING_NS + FLUSH_NS + PROBE_NS) / 1e9
    assert gpu.seconds() <= budget_s + 2 * per_call_s + 0.01


@pytest.mark.parametrize("held_up", [{0}, {1}], ids=["the first look", "the look behind a spin"])
def test_a_host_that_is_held_up_in_one_check_does_not_make_a_quick_reference_slow(gpu, held_up):
    def supply(index):
        return gpu.call(length_ns=10_000, host_ns=5_000_000 if index in held_up else 0)

    recipe = Procedure(10, 50, budget_s=0.67, was_called=True, stops_early=True)
    trial = take_trial(supply, fake_cupti_clock(gpu)[0], recipe, now=gpu.seconds)
    assert (trial.stop, len(trial.samples), trial.facts["spin_ns"]) == ("count", 50, REST_NS)


@pytest.mark.parametrize(("graphs", "cost_ms"), [(4, 3), (None, 3)], ids=["in turn", "each its own"])
def test_what_calls_cost_beside_a_replay_counts_as_their_time(gpu, graphs, cost_ms):
    """So it is where the inputs of samplers are drawn anew for each call."""
    calls, clock = [gpu.call(operations=3) for _ in range(4)], fake_cupti_clock(gpu)[0]
    sample, clock.fresh_graphs = clock.sample, graphs

    def ask(launches, lead):
        gpu.now_ns += cost_ms * 1_000_000 * len(launches)
        return sample(launches, lead)

    clock.sample = ask
    start_s = gpu.seconds()
    trial = take_trial(
        lambda index: calls[index % 4], clock, Procedure(10, 1000, 0.67, was_called=True), now=gpu.seconds
    )
    assert trial.facts["launch"] == "graph"
    assert gpu.seconds() - start_s < 0.75
