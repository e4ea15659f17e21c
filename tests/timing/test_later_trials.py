"""Later trials go by what the first one found out of the call: they look at nothing again."""

from dataclasses import replace

import pytest

from flashinfer_bench.timing.clocks import ClockLost
from flashinfer_bench.timing.clocks.wall import WallClock
from flashinfer_bench.timing.lines import LOOKS
from flashinfer_bench.timing.progress import CHECKS, Recipe
from flashinfer_bench.timing.recipe import REST_NS, take_trial
from tests.kit.fake_gpu import fake_cupti_clock, fake_event_clock
from tests.timing.taking import RECIPE, take
from tests.timing.test_recipe_lines import leaves_lines

pytestmark = pytest.mark.cpu


def take_two(gpu, call, recipe=RECIPE):
    first = take(gpu, call, recipe)
    gpu.log.clear()
    return first, take_trial(lambda _index: call, fake_cupti_clock(gpu)[0], recipe, known=first.known, now=gpu.seconds)


@pytest.mark.parametrize("host_ns", [1_000, 400_000])
def test_a_later_trial_has_its_warm_up_and_its_readings_and_no_other_call(gpu, host_ns):
    first, later = take_two(gpu, gpu.call(length_ns=10_000, host_ns=host_ns))
    assert later.facts["calls"] == gpu.log.count("call") == RECIPE.warmup_runs + RECIPE.iterations
    assert later.spans_ns == first.spans_ns
    alike = set(first.facts) - {"calls"}
    assert {name: later.facts[name] for name in alike} == {name: first.facts[name] for name in alike}


def sizes_of_requests(gpu, length_ns):
    """Return how many calls each request of a later trial has, and the trial; calls of its warm-up are slow."""
    call, asked = gpu.call(length_ns=length_ns), []
    first = take(gpu, call)
    clock, _ = fake_cupti_clock(gpu)
    sample = clock.sample
    clock.sample = lambda launches, lead: asked.append(len(launches)) or sample(launches, lead)
    slow = gpu.call(length_ns=length_ns * 2)
    later = take_trial(
        lambda index: slow if index < RECIPE.warmup_runs else call, clock, RECIPE, known=first.known, now=gpu.seconds
    )
    return asked, later


def test_the_warm_up_of_a_quick_call_and_its_readings_share_a_request(gpu):
    asked, later = sizes_of_requests(gpu, 10_000)
    assert asked == [RECIPE.warmup_runs + RECIPE.iterations]
    assert later.spans_ns == [10_000] * RECIPE.iterations  # those of the warm-up do not count


def test_a_warm_up_that_takes_too_long_is_cut_short_as_in_the_first_trial(gpu):
    call, recipe = gpu.call(length_ns=1_000_000), replace(RECIPE, warmup_runs=1000, budget_s=0.5)
    first, later = take_two(gpu, call, recipe)
    assert first.facts["calls"] - len(first.samples) < 500
    assert later.facts["calls"] - len(later.samples) < 500


def test_late_readings_are_taken_again_without_the_warm_up(gpu):
    first = take(gpu, gpu.call())
    calls = []

    def supply(index):
        calls.append(index)
        return gpu.call(host_ns=7 * REST_NS if RECIPE.warmup_runs <= index < 100 else 0)

    later = take_trial(supply, fake_cupti_clock(gpu)[0], RECIPE, known=first.known, now=gpu.seconds)
    assert later.facts["retaken"] in (RECIPE.iterations, 2 * RECIPE.iterations)
    assert later.facts["calls"] == RECIPE.warmup_runs + RECIPE.iterations + later.facts["retaken"]
    assert len(later.samples) == RECIPE.iterations


def test_a_slow_call_is_warmed_up_first(gpu):
    asked, later = sizes_of_requests(gpu, 5_000_000)
    assert len(asked) > 1
    assert sum(asked) == later.facts["calls"]
    assert set(later.spans_ns) == {5_000_000}


def test_lines_that_the_first_trial_found_are_reset_in_the_later_ones(gpu):
    first, later = take_two(gpu, leaves_lines(gpu, 10_000, 4_000))
    assert first.facts["calls"] - later.facts["calls"] == CHECKS + LOOKS - RECIPE.warmup_runs
    assert later.facts["lines_reset"] is True
    assert set(later.spans_ns) == {10_000}


def test_a_call_that_waits_inside_is_known_to_wait(gpu):
    first, later = take_two(gpu, gpu.call(length_ns=10_000, waits=True))
    assert first.facts["waits_inside"] is later.facts["waits_inside"] is True
    assert first.facts["spin_ns"] == later.facts["spin_ns"] == 0


def test_a_slow_call_that_stops_early_is_warmed_up_by_one_call(gpu):
    recipe = Recipe(warmup_runs=10, iterations=50, budget_s=10.0, was_called=True, stops_early=True)
    first, later = take_two(gpu, gpu.call(length_ns=24_000_000), recipe)
    assert first.facts["calls"] - len(first.samples) == CHECKS - 1  # the call was made before
    assert later.facts["calls"] - len(later.samples) == 1


def test_a_trial_with_another_clock_or_with_little_time_looks_itself(gpu):
    first_call = gpu.call(length_ns=2_000_000)
    first = take(gpu, first_call)
    quick = Recipe(warmup_runs=0, iterations=5, budget_s=10.0)
    for clock, recipe in (
        (fake_event_clock(gpu), quick),
        (fake_cupti_clock(gpu)[0], replace(quick, budget_s=0.005)),
    ):
        trial = take_trial(lambda _index: first_call, clock, recipe, known=first.known, now=gpu.seconds)
        assert trial.facts["calls"] - len(trial.samples) >= CHECKS - 1


def test_what_a_lost_clock_saw_is_not_gone_by(gpu):
    first = take(gpu, gpu.call())
    clock, _ = fake_cupti_clock(gpu)
    lost = iter([True])

    def sample(launches, lead, take=clock.sample):
        if next(lost, False):
            raise ClockLost("lost")
        return take(launches, lead)

    clock.sample = sample
    clock.fall_back = lambda reason: fake_event_clock(gpu)
    trial = take_trial(lambda _index: gpu.call(), clock, RECIPE, known=first.known, now=gpu.seconds)
    assert trial.facts["method"] == "cuda_events"
    assert trial.facts["calls"] > RECIPE.warmup_runs + RECIPE.iterations


def test_nothing_is_known_of_a_call_on_a_cpu_or_of_one_that_fills_the_budget(gpu):
    assert take_trial(lambda _index: lambda: None, WallClock(), replace(RECIPE, budget_s=0.1)).known is None
    assert take(gpu, gpu.call(length_ns=20_000_000), replace(RECIPE, budget_s=0.01)).known is None
