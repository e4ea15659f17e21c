"""The recipe on a fake GPU: what is checked, how the spin is sized, how many readings are taken, what is said of it."""

import random
from dataclasses import dataclass, replace
from functools import partial

import pytest

from flashinfer_bench.timing.clocks import ClockLost, Preamble, WallClock
from flashinfer_bench.timing.measurement import Sample
from flashinfer_bench.timing.procedure import (
    CHECKS,
    DELAY_CEILING_NS,
    DELAY_FLOOR_NS,
    EXTRA_S,
    EXTRA_SHARE,
    LOOKS,
    Procedure,
    TrialInProgress,
    rest_ns,
    take_trial,
)
from flashinfer_bench.timing.summary import summarise
from flashinfer_bench.timing.timeline import Operation
from tests.kit.fake_gpu import LAUNCH_NS, FakeGpu, fake_cupti_clock, fake_event_clock
from tests.timing.taking import RECIPE, SECOND_NS, flags_of, take

pytestmark = pytest.mark.cpu
FIRST_LOOK = 10
MOST_REST_NS = 50_000_000
REST_NS = 100_000


def test_a_quick_call_gets_every_warm_up_and_every_iteration(gpu):
    trial = take(gpu, gpu.call(length_ns=10_000))
    assert (len(trial.samples), trial.stop) == (50, "count")
    assert set(trial.spans_ns) == {10_000}
    assert trial.facts == {
        "method": "cupti",
        "cache_state": "cold",
        "calls": CHECKS + FIRST_LOOK + 50,  # the look for lines warms up, too
        "launch": "stream",
        "launch_reason": "a single operation needs no graph",
        "spin_ns": REST_NS,
        "enqueue_ns": LAUNCH_NS,
        "lead_ns": 1_000,
    }
    assert flags_of(trial) == []


@pytest.mark.parametrize(("warmup_runs", "calls"), [(0, 3), (2, 3), (3, 3), (4, 4), (10, 10), (33, 33)])
def test_the_checks_count_as_warm_up(gpu, warmup_runs, calls):
    gpu.l2_cache = "warm"  # no calls that look for persisting lines
    trial = take(gpu, gpu.call(), Procedure(warmup_runs, iterations=5, budget_s=10.0))
    assert gpu.log.count("call") == trial.facts["calls"] == calls + 5


def test_each_call_is_supplied_once_in_order_with_a_launch_of_its_own(gpu):
    asked, called = [], []

    def supply(index):
        asked.append(index)
        return lambda: (called.append(index), gpu.kernel())

    take_trial(supply, fake_cupti_clock(gpu)[0], RECIPE, now=gpu.seconds)
    assert asked == called == list(range(CHECKS + FIRST_LOOK + 50))


def test_calls_with_arguments_of_their_own_are_captured_once_each(gpu):
    asked, captured = [], []

    def supply(index):
        asked.append(index)
        return calls[index]

    calls = [gpu.call(operations=3) for _ in range(CHECKS + FIRST_LOOK + 51)]
    clock, _ = fake_cupti_clock(gpu, capture=lambda launch: captured.append(launch) or gpu.capture(launch))
    trial = take_trial(supply, clock, RECIPE, now=gpu.seconds)
    assert trial.facts["launch"] == "graph"
    assert sorted(set(asked)) == list(range(CHECKS + FIRST_LOOK + 51))
    assert captured == calls[-51:]


@pytest.mark.parametrize("warmup_runs", [0, 10])
def test_the_spin_covers_what_the_host_needs_to_enqueue_the_call(gpu, warmup_runs):
    trial = take(gpu, gpu.call(operations=100, length_ns=1_000), Procedure(warmup_runs, 50, 10.0, cuda_graphs=False))
    assert trial.facts["spin_ns"] == 100 * LAUNCH_NS * 3 // 2 + DELAY_FLOOR_NS > REST_NS
    assert not any(sample.late for sample in trial.samples)
    assert {(sample.operations, sample.busy_ns) for sample in trial.samples} == {(100, 100_000)}


@pytest.mark.parametrize(
    ("length_ns", "rest_ns"),
    [
        (1_000, REST_NS),
        (1_000_000, 1_100_000),
        (5_000_000, 7_500_000),
        (20_000_000, 40_000_000),
        (2 * MOST_REST_NS, MOST_REST_NS),
    ],
)
def test_the_gpu_rests_as_long_as_a_call_keeps_it_busy_and_twice_as_long_before_long_ones(gpu, length_ns, rest_ns):
    trial = take(gpu, gpu.call(length_ns=length_ns))
    assert (trial.facts["spin_ns"], len(trial.samples)) == (rest_ns, 50)


@pytest.mark.parametrize(
    ("span_ns", "busy_ns", "wanted_ns"),
    [(5_000_000, 1_000_000, 1_100_000), (5_000_000, None, 7_500_000), (5_000_000, 0, REST_NS)],
)
def test_what_the_host_adds_to_a_span_is_no_reason_to_rest(span_ns, busy_ns, wanted_ns):
    seen = Sample(span_ns=span_ns, enqueue_ns=1, busy_ns=busy_ns)
    assert rest_ns(seen) == wanted_ns


def test_a_call_that_works_on_the_host_before_it_waits_is_seen_to_wait(gpu):
    trial = take(gpu, gpu.call(host_ns=1_500_000, waits=True))
    assert (trial.facts["waits_inside"], trial.facts["spin_ns"], trial.facts.get("retaken")) == (True, 0, None)


def test_late_readings_are_not_taken_again_where_there_is_no_time_for_it(gpu):
    late_from = 10 + FIRST_LOOK

    def supply(index):
        return gpu.call(host_ns=40_000_000 if index >= late_from else 0)

    trial = take_trial(supply, fake_cupti_clock(gpu)[0], Procedure(10, 50, 3.0), now=gpu.seconds)
    assert len(trial.samples) == 50
    assert "retaken" not in trial.facts
    assert gpu.seconds() < 3.1


def test_a_call_that_waits_inside_gets_no_spin_and_says_so(gpu):
    trial = take(gpu, gpu.call(operations=3, waits=True))
    assert (trial.facts["waits_inside"], trial.facts["spin_ns"], trial.facts.get("retaken")) == (True, 0, None)
    assert trial.facts["launch_reason"] == "the call waits for the GPU inside"
    assert len(trial.samples) == 50
    assert flags_of(trial) == ["host_bound", "waits_inside"]


def test_a_call_that_waits_for_its_first_memory_only_is_not_said_to_wait(gpu):
    trial = take_trial(lambda index: gpu.call(waits=index < 4), fake_cupti_clock(gpu)[0], RECIPE, now=gpu.seconds)
    assert "waits_inside" not in trial.facts
    assert trial.facts["spin_ns"] > 0


def test_a_call_that_does_not_wait_is_not_said_to(gpu):
    assert "waits_inside" not in take(gpu, gpu.call(length_ns=5_000_000)).facts


def test_a_host_that_is_held_up_once_is_not_taken_for_a_call_that_waits(gpu):
    def supply(index):
        return gpu.call(operations=3, host_ns=5_000_000 if index == 2 else 0)

    trial = take_trial(supply, fake_cupti_clock(gpu)[0], RECIPE, now=gpu.seconds)
    assert ("waits_inside" in trial.facts, trial.facts["launch"]) == (False, "graph")


def test_a_host_that_is_held_up_again_and_again_is_not_taken_for_a_call_that_waits(gpu):
    held_up = {2, 3, RECIPE.warmup_runs, RECIPE.warmup_runs + 1}

    def supply(index):
        return gpu.call(operations=3, host_ns=5_000_000 if index in held_up else 0)

    trial = take_trial(supply, fake_cupti_clock(gpu)[0], RECIPE, now=gpu.seconds)
    assert "waits_inside" not in trial.facts


def test_a_call_that_keeps_the_host_long_may_differ_by_milliseconds_and_waits_for_nothing(gpu):
    slower = {2, 3, *range(RECIPE.warmup_runs, RECIPE.warmup_runs + LOOKS)}

    def supply(index):
        return gpu.call(operations=3, host_ns=6_500_000 if index in slower else 5_000_000)

    trial = take_trial(supply, fake_cupti_clock(gpu)[0], RECIPE, now=gpu.seconds)
    assert ("waits_inside" in trial.facts, trial.facts["launch"]) == (False, "graph")


def test_a_slow_reference_that_was_held_up_at_first_is_looked_at_again(gpu):
    def supply(index):
        return gpu.call(operations=3, host_ns=12_000_000 if index in {2, 3} else 5_000_000)

    recipe = replace(RECIPE, stops_early=True, was_called=True)
    trial = take_trial(supply, fake_cupti_clock(gpu)[0], recipe, now=gpu.seconds)
    assert ("waits_inside" in trial.facts, trial.facts["launch"]) == (False, "graph")


@dataclass
class ShallowGpu(FakeGpu):
    """A GPU whose queue holds 1,024 launches: a host that launches more waits until one has begun."""

    def _run(self, name, length_ns, *, gap_ns, side=False):
        super()._run(name, length_ns, gap_ns=gap_ns, side=side)
        if len(self.done) > 1024:
            self.now_ns = max(self.now_ns, self.done[-1025].end_ns)


@pytest.mark.parametrize(("operations", "waits"), [(900, False), (2000, False), (900, True)])
def test_a_queue_that_is_full_is_no_wait_inside_the_call(operations, waits):
    gpu = ShallowGpu()
    recipe = Procedure(10, 5, 10.0, cuda_graphs=False)
    trial = take(gpu, gpu.call(operations=operations, length_ns=1_000, waits=waits), recipe)
    assert trial.facts.get("waits_inside", False) == waits
    assert trial.facts["spin_ns"] < 10_000_000
    assert "retaken" not in trial.facts
    assert len(trial.samples) == 5


def test_more_launches_than_the_queue_holds_are_timed_as_a_graph():
    gpu = ShallowGpu()
    trial = take(gpu, gpu.call(operations=2000, length_ns=1_000))
    assert (trial.facts["launch"], trial.samples[0].operations) == ("graph", 2000)


def test_events_notice_a_call_that_waits_inside_too(gpu):
    trial = take_trial(lambda _: gpu.call(waits=True), fake_event_clock(gpu), RECIPE, now=gpu.seconds)
    assert (trial.facts["method"], trial.facts["waits_inside"]) == ("cuda_events", True)


def test_a_call_on_a_side_stream_is_sampled_on_a_settled_device(gpu):
    trial = take(gpu, gpu.call(operations=2, side=True))
    assert (trial.facts["side_stream"], trial.facts["spin_ns"]) == (True, 0)
    assert "does not wait for the current one" in trial.facts["launch_reason"]
    assert gpu.preambles[-50:] == [Preamble(drains=True)] * 50
    assert {(s.operations, s.busy_ns, s.escaped, s.late) for s in trial.samples} == {(2, 20_000, False, False)}
    assert flags_of(trial) == ["side_stream"]


def test_a_call_on_several_streams_says_so(gpu):
    main, side = gpu.call(), gpu.call(side=True)
    trial = take(gpu, lambda: (main(), side()))
    assert trial.facts["streams"] == 2
    assert "streams" not in take(gpu, main).facts


def test_events_time_a_call_on_a_side_stream_until_the_device_is_idle_and_say_so(gpu):
    call = gpu.call(length_ns=5_000_000, side=True)
    trial = take_trial(lambda _: call, fake_event_clock(gpu), RECIPE, now=gpu.seconds)
    assert (trial.facts["side_stream"], trial.facts["spin_ns"]) == (True, 0)
    assert 5_000_000 < min(trial.spans_ns) <= max(trial.spans_ns) < 5_020_000
    assert flags_of(trial) == ["side_stream"]


def test_a_host_that_is_held_up_once_is_not_taken_for_a_side_stream(gpu):
    clock = fake_event_clock(gpu)
    waits = iter([0] * 10 + [0, 80_000])  # the empty pairs, then the first call, and the look aside

    def synchronize(wait=gpu.synchronize):
        gpu.now_ns += next(waits, 0)
        wait()

    gpu.synchronize = synchronize
    trial = take_trial(lambda _: gpu.call(), clock, RECIPE, now=gpu.seconds)
    assert "side_stream" not in trial.facts
    assert (gpu.preambles[11].looks_aside, gpu.preambles[13].looks_aside) == (True, True)
    assert [lead.looks_aside for lead in gpu.preambles[:40]].count(True) == 2


def test_a_long_call_on_the_current_stream_is_not_taken_for_a_side_stream(gpu):
    trial = take_trial(lambda _: gpu.call(length_ns=5_000_000), fake_event_clock(gpu), RECIPE, now=gpu.seconds)
    assert "side_stream" not in trial.facts


def test_a_call_that_does_its_work_only_now_and_then_is_flagged(gpu):
    def supply(index):
        return gpu.call(operations=5 if index % 5 == 4 else 1)

    trial = take_trial(supply, fake_cupti_clock(gpu)[0], RECIPE, now=gpu.seconds)
    assert "operations_vary" in flags_of(trial)


def test_calls_that_launch_as_many_operations_by_other_names_are_flagged_too(gpu):
    trial = take_trial(
        lambda index: lambda: gpu.kernel(f"kernel_{index % 2}"), fake_cupti_clock(gpu)[0], RECIPE, now=gpu.seconds
    )
    assert trial.facts["operations_vary"] is True
    assert flags_of(trial) == ["operations_vary"]


def test_a_call_without_gpu_work_is_timed_on_the_host(gpu):
    trial = take(gpu, gpu.call(operations=0, host_ns=7_000))
    assert {(s.operations, s.span_ns, s.enqueue_ns) for s in trial.samples} == {(0, 0, 7_000)}
    assert summarise([trial], launch_gap_ns=900).latency_ms == 0.007
    assert flags_of(trial) == ["no_gpu_work"]


def test_a_call_that_costs_the_host_more_than_the_gpu_is_host_bound(gpu):
    assert flags_of(take(gpu, gpu.call(length_ns=10_000, host_ns=50_000))) == ["host_bound"]
    assert flags_of(take(gpu, gpu.call(length_ns=100_000, host_ns=50_000))) == []


def test_late_readings_are_taken_again_behind_twice_the_spin_and_counted(gpu):
    slow_from = CHECKS + FIRST_LOOK  # where the readings begin

    def supply(index):
        return gpu.call(host_ns=7 * REST_NS if index >= slow_from else 0)

    trial = take_trial(supply, fake_cupti_clock(gpu)[0], RECIPE, now=gpu.seconds)
    assert trial.facts["spin_ns"] == REST_NS * 8
    assert (trial.facts["retaken"], len(trial.samples)) == (150, 50)
    assert not any(sample.late for sample in trial.samples)


def test_a_host_that_grows_ever_slower_is_not_waited_for_without_end(gpu):
    def supply(index):
        return gpu.call(host_ns=100_000 * 2 ** max(0, index + 1 - CHECKS - FIRST_LOOK))

    trial = take_trial(supply, fake_cupti_clock(gpu)[0], Procedure(10, 5, 1e9), now=gpu.seconds)
    assert (len(trial.samples), trial.facts["retaken"]) == (5, 15)
    assert "host_bound" in flags_of(trial)


def test_a_few_late_readings_are_kept(gpu):
    def supply(index):
        return gpu.call(host_ns=5_000_000 if index == 30 else 0)

    trial = take_trial(supply, fake_cupti_clock(gpu)[0], RECIPE, now=gpu.seconds)
    assert sum(sample.late for sample in trial.samples) == 1
    assert "retaken" not in trial.facts


def test_a_call_too_long_on_the_host_for_any_spin_is_not_taken_again(gpu):
    trial = take(gpu, gpu.call(host_ns=600_000_000), Procedure(10, 50, 10.0))
    assert trial.facts["spin_ns"] == DELAY_CEILING_NS
    assert "retaken" not in trial.facts
    assert gpu.now_ns < 11 * SECOND_NS
    assert "host_bound" in flags_of(trial)


@pytest.mark.parametrize("fault", ["lost_at", "spins_lost_at"])
def test_records_lost_in_the_middle_fall_back_to_events_and_say_why(gpu, fault):
    trial = take(gpu, gpu.call(), **{fault: 4})
    assert (trial.facts["method"], len(trial.samples), trial.stop) == ("cuda_events", 50, "count")
    reason = {"lost_at": "CUPTI lost records: 3 dropped", "spins_lost_at": "CUPTI lost records: 0 of "}[fault]
    assert trial.facts["fallback"].startswith(reason)
    assert trial.facts["empty_pair_ns"] == 1_500
    assert {sample.operations for sample in trial.samples} == {None}


@pytest.mark.parametrize("lost_at", [2, 5, 8])
def test_a_trial_whose_records_are_lost_keeps_to_its_budget(gpu, lost_at):
    start = gpu.seconds()
    trial = take(gpu, gpu.call(length_ns=SECOND_NS // 2), lost_at=lost_at)
    assert trial.facts["method"] == "cuda_events"
    assert gpu.seconds() - start < RECIPE.budget_s + 2


def test_a_second_subscriber_falls_back_to_events_and_says_why(gpu):
    trial = take(gpu, gpu.call(), refusal="another subscriber of CUPTI")
    assert (trial.facts["method"], trial.facts["fallback"]) == ("cuda_events", "another subscriber of CUPTI")


def test_the_next_trial_tries_cupti_again(gpu):
    clock, _ = fake_cupti_clock(gpu, lost_at=4)
    methods = [take_trial(lambda _: gpu.call(), clock, RECIPE, now=gpu.seconds).facts["method"] for _ in range(2)]
    assert methods == ["cuda_events", "cupti"]


def test_a_clock_without_a_fall_back_says_what_was_lost(gpu):
    clock, recorder = fake_cupti_clock(gpu, lost_at=4)
    clock.fall_back = lambda _reason: None
    with pytest.raises(ClockLost, match="3 dropped"):
        take_trial(lambda _: gpu.call(), clock, RECIPE, now=gpu.seconds)
    assert not recorder.is_on


def test_the_wall_clock_warms_up_and_reads_without_a_spin_or_a_look_for_lines():
    calls = []
    trial = take_trial(lambda index: lambda: calls.append(index), WallClock(), RECIPE)
    assert calls == list(range(60))
    assert (trial.facts, len(trial.samples)) == ({"method": "wall", "cache_state": "warm", "calls": 60}, 50)


def scattered(gpu, index):
    """Return a call that is one of two lengths, as one that misses the caches is."""
    return gpu.call(length_ns=random.Random(index).choice([1_120, 1_312]))


def test_busy_times_that_scatter_get_more_readings_too(gpu):
    def supply(index):
        busy_ns = random.Random(index).choice([1_000, 8_000])

        def launch():
            gpu.log.append("call")
            gpu.now_ns += 2_000
            gpu.launches += 1
            start_ns = max(gpu.now_ns, gpu.free_ns) + 1_000
            gpu.free_ns = start_ns + 10_000
            gpu.done.append(Operation("first", start_ns, start_ns + busy_ns, gpu.launches))
            gpu.done.append(Operation("last", gpu.free_ns - 1_000, gpu.free_ns, gpu.launches))

        return launch

    clock, _ = fake_cupti_clock(gpu)
    trial = take_trial(supply, clock, Procedure(10, 50, 10.0, cuda_graphs=False), now=gpu.seconds)
    assert set(trial.spans_ns) == {10_000}
    assert len(trial.samples) > 50


@pytest.mark.parametrize("warmup_runs", [0, 10])
def test_readings_that_scatter_get_more_of_them_and_it_is_said(gpu, warmup_runs):
    recipe = Procedure(warmup_runs, 10, 10.0)
    trial = take_trial(lambda index: scattered(gpu, index), fake_cupti_clock(gpu)[0], recipe, now=gpu.seconds)
    assert len(trial.samples) == 10 + trial.facts["extra_samples"] == 10 * (1 + EXTRA_SHARE)


@pytest.mark.parametrize(("scatters", "taken"), [(False, 20), (True, 50)])
def test_where_no_count_was_asked_for_a_steady_call_gets_the_fewest_readings(gpu, scatters, taken):
    recipe = Procedure(10, 50, 10.0, fewest=20, exact=True)
    supply = partial(scattered, gpu) if scatters else lambda _: gpu.call()
    assert len(take_trial(supply, fake_cupti_clock(gpu)[0], recipe, now=gpu.seconds).samples) == taken


def test_a_coarser_precision_needs_fewer_of_them(gpu):
    def readings(precision):
        recipe = Procedure(10, 50, 10.0, precision)
        return len(take_trial(lambda at: scattered(gpu, at), fake_cupti_clock(gpu)[0], recipe, now=gpu.seconds).samples)

    assert readings(0.5) == 50 < readings(0.005)


def test_extra_readings_of_a_slower_call_are_those_that_their_time_holds(gpu):
    trial = take_trial(
        lambda index: gpu.call(length_ns=random.Random(index).choice([5_000_000, 6_000_000])),
        fake_cupti_clock(gpu)[0],
        RECIPE,
        now=gpu.seconds,
    )
    assert 0 < trial.facts["extra_samples"] * 0.005 <= EXTRA_S


def test_the_event_clock_takes_the_count_whatever_they_say(gpu):
    trial = take_trial(lambda index: scattered(gpu, index), fake_event_clock(gpu), RECIPE, now=gpu.seconds)
    assert (len(trial.samples), "extra_samples" in trial.facts) == (50, False)


def test_an_exact_count_is_kept_whatever_the_readings_say(gpu):
    recipe = Procedure(10, 50, 10.0, exact=True)
    trial = take_trial(lambda index: scattered(gpu, index), fake_cupti_clock(gpu)[0], recipe, now=gpu.seconds)
    assert (len(trial.samples), "extra_samples" in trial.facts) == (50, False)


def test_what_only_the_first_call_launches_is_no_part_of_the_call(gpu):
    def supply(index):
        return gpu.call(operations=3 if index == 0 else 1)

    trial = take_trial(supply, fake_cupti_clock(gpu)[0], RECIPE, now=gpu.seconds)
    assert trial.facts["launch_reason"] == "a single operation needs no graph"


@pytest.mark.parametrize(("second_ns", "least_s", "most_s"), [(5_000_000, 0.0125, 0.0130), (200_000_000, 0.055, 0.058)])
def test_a_reading_takes_what_the_quicker_of_two_calls_and_the_spin_take(gpu, second_ns, least_s, most_s):
    def supply(index):
        return gpu.call(length_ns=second_ns if index == 1 else 5_000_000)

    trial = TrialInProgress(supply, fake_cupti_clock(gpu)[0], RECIPE, gpu.seconds)
    with trial.clock:
        trial.check()
    assert least_s < trial.per_call_s < most_s


def test_a_fifth_of_late_readings_is_too_many(gpu):
    def supply(index):
        return gpu.call(host_ns=1_000_000 if index >= 10 + FIRST_LOOK and index % 5 == 0 else 0)

    trial = take_trial(supply, fake_cupti_clock(gpu)[0], RECIPE, now=gpu.seconds)
    assert trial.facts["retaken"] >= 50


def test_the_longer_spin_counts_when_readings_are_to_be_taken_again(gpu):
    clock, lead = fake_cupti_clock(gpu)[0], Preamble(delay_ns=30_000_000)
    trial = TrialInProgress(lambda _: gpu.call(host_ns=40_000_000), clock, RECIPE, gpu.seconds, preamble=lead)
    deadline = gpu.seconds() + 0.9  # ten calls of 40 ms, and ten more, but not with spins that are longer by 20 ms
    with clock:
        trial.take_batch(trial.source, 10, deadline=deadline)
    assert trial.retaken == 0


def test_a_call_that_waits_inside_gets_no_extra_readings(gpu):
    def supply(index):
        return gpu.call(length_ns=random.Random(index).choice([1_120, 1_312]), waits=True)

    assert len(take_trial(supply, fake_cupti_clock(gpu)[0], RECIPE, now=gpu.seconds).samples) == 50


def test_the_warm_up_sizes_the_spin_too(gpu):
    def supply(index):
        return gpu.call(host_ns=300_000 if index >= 3 else 0)

    trial = take_trial(supply, fake_cupti_clock(gpu)[0], RECIPE, now=gpu.seconds)
    assert trial.facts["spin_ns"] == (300_000 + LAUNCH_NS) * 3 // 2 + DELAY_FLOOR_NS
    assert "retaken" not in trial.facts


@pytest.mark.parametrize(
    ("length_ns", "batches"), [(1000, [30, 50]), (3_000_000, [3, 6, 12, 9])], ids=["quick", "slow"]
)
def test_the_warm_up_of_a_slow_call_comes_in_batches_that_grow(gpu, length_ns, batches):
    gpu.l2_cache = "warm"
    clock, _ = fake_cupti_clock(gpu)
    sizes, sample = [], clock.sample
    clock.sample = lambda launches, lead: sizes.append(len(launches)) or sample(launches, lead)
    take_trial(lambda _: gpu.call(length_ns=length_ns), clock, Procedure(33, 50, 10.0), now=gpu.seconds)
    assert sizes[: 3 + len(batches)] == [1, 1, 1, *batches]
