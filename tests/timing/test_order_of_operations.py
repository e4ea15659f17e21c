"""What a clock does round a call, step by step, also when a step throws."""

import pytest

from flashinfer_bench.timing.clocks import EMPTY_LAUNCHES, ClockLost, Preamble, WallClock
from flashinfer_bench.timing.gpu_queue import DELAY_KERNEL, FLUSH_KERNEL
from flashinfer_bench.timing.procedure import CHECKS, Procedure, take_trial
from tests.kit.fake_gpu import GAP_NS, LeavingCall, fake_cupti_clock, fake_event_clock, sample_all

pytestmark = pytest.mark.cpu
FIRST_LOOK = 10
RECIPE = Procedure(warmup_runs=10, iterations=50, budget_s=10.0)
BY_CUPTI = ["flush", "spin", "read", "call", "read"]
BY_EVENTS = ["flush", "spin", "record", "read", "call", "read", "record", "query", "synchronize"]


def make_clock(kind, gpu):
    return fake_cupti_clock(gpu)[0] if kind == "cupti" else fake_event_clock(gpu)


def test_cupti_reads_its_clock_right_before_and_right_after_the_call(gpu):
    clock, _ = fake_cupti_clock(gpu)
    with clock:
        sample_all(clock, [gpu.call()] * 3, Preamble(delay_ns=20_000))
    assert gpu.log == ["synchronize", "on", *BY_CUPTI * 3, "synchronize", "take", "off"]


def test_events_stand_right_before_and_right_after_the_call(gpu):
    clock = fake_event_clock(gpu)
    with clock:
        gpu.log.clear()
        sample_all(clock, [gpu.call()] * 3, Preamble(delay_ns=20_000))
    assert gpu.log == [*BY_EVENTS * 3, "synchronize"]


@pytest.mark.parametrize("kind", ["cupti", "cuda_events"])
def test_what_a_call_leaves_is_put_away_behind_its_reading_and_before_the_next_call(gpu, kind):
    with make_clock(kind, gpu) as clock:
        gpu.log.clear()
        samples = sample_all(clock, [LeavingCall(gpu)] * 3, Preamble(delay_ns=20_000))
    step = [*BY_CUPTI, "put away"] if kind == "cupti" else [*BY_EVENTS, "put away"]
    assert gpu.log[: 3 * len(step)] == step * 3
    assert max(sample.span_ns for sample in samples) < 20_000  # the copy takes 70


def test_a_wall_clock_puts_away_behind_its_reading(gpu, monkeypatch):
    monkeypatch.setattr("flashinfer_bench.timing.clocks.perf_counter_ns", lambda: gpu.log.append("read") or 0)
    with WallClock() as clock:
        sample_all(clock, [LeavingCall(gpu)] * 2, Preamble(delay_ns=0))
    assert gpu.log == ["read", "call", "read", "put away"] * 2


def test_a_wall_clock_counts_the_copy_of_a_result_that_lies_otherwise_than_its_output(gpu, monkeypatch):
    monkeypatch.setattr("flashinfer_bench.timing.clocks.perf_counter_ns", lambda: 1000 * len(gpu.log))
    with WallClock() as clock:
        plain, otherwise = sample_all(
            clock, [LeavingCall(gpu), LeavingCall(gpu, lies_otherwise=True)], Preamble(delay_ns=0)
        )
    assert (plain.span_ns, otherwise.span_ns) == (1000, 2000)  # a microsecond each for "call" and "put away"


@pytest.mark.parametrize(("kind", "ends"), [("cupti", "read"), ("cuda_events", "record")])
def test_nothing_but_the_call_lies_between_the_two_ends_of_any_reading_of_a_trial(gpu, kind, ends):
    take_trial(lambda _: gpu.call(), make_clock(kind, gpu), RECIPE, now=gpu.seconds)
    marks = [place for place, step in enumerate(gpu.log) if step == ends]
    between = [gpu.log[start + 1 : end] for start, end in zip(marks[::2], marks[1::2], strict=True)]
    timed = [[step for step in steps if step != "read"] for steps in between]
    empty_pairs = 10 if kind == "cuda_events" else 0
    assert timed[:empty_pairs] == [[]] * empty_pairs
    assert timed[empty_pairs:] == [["call"]] * (CHECKS + FIRST_LOOK + 50)  # the look for lines warms up, too


def test_the_flush_and_the_spin_are_the_last_things_before_each_reading(gpu):
    take_trial(lambda _: gpu.call(), make_clock("cupti", gpu), RECIPE, now=gpu.seconds)
    calls = [place for place, step in enumerate(gpu.log) if step == "call"]
    assert all(gpu.log[place - 3 : place + 2] == BY_CUPTI for place in calls)


@pytest.mark.parametrize("cold", [True, False])
@pytest.mark.parametrize("name", [FLUSH_KERNEL, DELAY_KERNEL])
def test_no_kernel_hides_behind_a_name_of_ours(gpu, cold, name):
    gpu.l2_cache = "cold" if cold else "warm"

    def launch():
        gpu.kernel("small", 1_000)
        gpu.kernel(name, 50_000)

    trial = take_trial(lambda _: launch, make_clock("cupti", gpu), RECIPE, now=gpu.seconds)
    assert min(trial.spans_ns) > 50_000


def test_a_warm_lane_flushes_nothing_and_says_warm(gpu):
    gpu.l2_cache = "warm"
    trial = take_trial(lambda _: gpu.call(), make_clock("cupti", gpu), RECIPE, now=gpu.seconds)
    assert "flush" not in gpu.log
    assert trial.facts["cache_state"] == "warm"


def test_arguments_come_from_the_supplier_outside_of_every_reading(gpu):
    def supply(_index):
        gpu.log.append("supply")
        return gpu.call()

    take_trial(supply, make_clock("cupti", gpu), RECIPE, now=gpu.seconds)
    for place in (place for place, step in enumerate(gpu.log) if step == "supply"):
        assert gpu.log[:place].count("read") % 2 == 0


@pytest.mark.parametrize("kind", ["cupti", "cuda_events"])
def test_a_call_that_raises_in_iteration_17_comes_through_and_cupti_goes_off(gpu, kind):
    first_timed = 10 + FIRST_LOOK

    def boom():
        raise ValueError("iteration 17")

    with pytest.raises(ValueError, match="iteration 17"):
        take_trial(
            lambda index: boom if index == first_timed + 17 else gpu.call(),
            make_clock(kind, gpu),
            RECIPE,
            now=gpu.seconds,
        )
    assert gpu.log.count("call") == first_timed + 17
    assert gpu.log[-1] == ("off" if kind == "cupti" else "read")


def test_a_flush_that_raises_comes_through_and_cupti_goes_off(gpu):
    gpu.flush_error = RuntimeError("an illegal memory access was encountered")
    clock, recorder = fake_cupti_clock(gpu)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        take_trial(lambda _: gpu.call(), clock, RECIPE, now=gpu.seconds)
    assert (gpu.log, recorder.is_on) == (["synchronize", "on", "off"], False)


def test_a_supplier_that_raises_comes_through_and_cupti_goes_off(gpu):
    clock, recorder = fake_cupti_clock(gpu)
    with pytest.raises(IndexError):
        take_trial([gpu.call()].__getitem__, clock, RECIPE, now=gpu.seconds)
    assert (gpu.log[-1], recorder.is_on) == ("off", False)


@pytest.mark.parametrize("fault", [{"lost_at": 2}, {"spins_lost_at": 2}], ids=["dropped", "no spins"])
def test_records_that_are_lost_switch_cupti_off_before_anything_else_is_timed(gpu, fault):
    clock, recorder = fake_cupti_clock(gpu, **fault)
    take_trial(lambda _: gpu.call(), clock, RECIPE, now=gpu.seconds)
    assert not recorder.is_on
    assert gpu.log.index("off") < gpu.log.index("record")
    assert gpu.log.count("on") == gpu.log.count("off") == 1


def test_a_recorder_that_does_not_start_is_a_lost_clock(gpu):
    clock, recorder = fake_cupti_clock(gpu, refusal="a profiler is attached")
    with pytest.raises(ClockLost, match="a profiler is attached"), clock:
        pass
    assert (gpu.log, recorder.is_on) == (["synchronize"], False)


def test_work_that_is_under_way_when_cupti_goes_on_belongs_to_no_call(gpu):
    clock, recorder = fake_cupti_clock(gpu)
    take_done = recorder.start

    def start():  # drops what has run; what runs on is recorded
        running = [operation for operation in gpu.done if operation.end_ns > gpu.now_ns]
        take_done()
        gpu.done = running

    recorder.start = start
    gpu.enqueue(Preamble())
    gpu.kernel(length_ns=5_000_000)
    with clock:
        (sample,) = sample_all(clock, [gpu.call()], Preamble())
    assert sample.span_ns == 10_000


def test_graphs_whose_memory_cannot_be_given_back_do_not_cost_the_trial(gpu):
    def release():
        raise RuntimeError("CUDA error")

    call = gpu.call(operations=3)
    clock, recorder = fake_cupti_clock(gpu, release=release)
    trial = take_trial(lambda _: call, clock, RECIPE, now=gpu.seconds)
    assert (trial.facts["launch"], len(trial.samples), recorder.is_on) == ("graph", 50, False)


def test_readings_of_an_earlier_trial_do_not_reach_the_next_one(gpu):
    clock, _ = fake_cupti_clock(gpu)
    with pytest.raises(IndexError), clock:
        sample_all(clock, [gpu.call(operations=4), [].pop], Preamble())
    with clock:
        (sample,) = sample_all(clock, [gpu.call()], Preamble())
    assert sample.operations == 1


def test_the_device_queue_never_holds_more_launches_than_it_takes(gpu):
    clock, _ = fake_cupti_clock(gpu)
    with clock:
        sample_all(clock, [gpu.call(operations=300)], Preamble())
        gpu.log.clear()
        samples = sample_all(clock, [gpu.call(operations=300)] * 5, Preamble(delay_ns=900_000))
    assert gpu.log == [*BY_CUPTI, "synchronize", "take"] * 5 + ["off"]
    assert [sample.operations for sample in samples] == [300] * 5
    assert {sample.busy_ns for sample in samples} == {300 * 10_000}


def test_the_launch_gap_is_the_time_from_a_spin_to_an_empty_kernel(gpu):
    clock, recorder = fake_cupti_clock(gpu)
    assert clock.launch_gap_ns() == 1_000
    assert gpu.log.count("spin") == EMPTY_LAUNCHES + 1
    assert not recorder.is_on


def test_the_chain_gap_is_one_link_of_a_chain_of_empty_kernels_and_flushes_nothing(gpu):
    clock, recorder = fake_cupti_clock(gpu)
    assert clock.chain_gap_ns() == (12 * 1_000 + 11 * GAP_NS) // 12
    assert "flush" not in gpu.log
    assert not recorder.is_on


def test_the_least_span_is_the_shortest_of_some_kernels_that_move_a_word_from_memory(gpu):
    clock, recorder = fake_cupti_clock(gpu)
    gpu.moves_ns = iter([900, *[1_230] * 5, 1_190, *[1_220] * 6])
    assert clock.least_span_ns() == 1_190, "the first one warms up"
    assert gpu.log.count("flush") == EMPTY_LAUNCHES + 1
    assert not recorder.is_on


def test_clocks_without_records_know_no_least_span(gpu):
    assert fake_event_clock(gpu, "CUPTI is not installed").least_span_ns() == 0
    assert fake_cupti_clock(gpu, refusal="a profiler is attached")[0].least_span_ns() == 0


@pytest.mark.parametrize("fault", [{"refusal": "a profiler is attached"}, {"lost_at": 1}])
def test_a_launch_gap_that_cannot_be_read_is_0(gpu, fault):
    clock, recorder = fake_cupti_clock(gpu, **fault)
    assert (clock.launch_gap_ns(), clock.chain_gap_ns() > 0) == (0, fault == {"lost_at": 1})
    assert not recorder.is_on


def test_events_report_what_an_empty_pair_costs_and_measure_it_once(gpu):
    clock = fake_event_clock(gpu, "CUPTI is not installed")
    with clock:
        pass
    pairs = gpu.log.count("record")
    with clock:
        pass
    assert gpu.log.count("record") == pairs == 20
    assert clock.facts() == {"empty_pair_ns": 1_500, "fallback": "CUPTI is not installed"}


def test_the_wall_clock_times_the_call_and_needs_no_lead(monkeypatch):
    ticks = iter([0, 7_000, 10_000, 19_000])
    monkeypatch.setattr("flashinfer_bench.timing.clocks.perf_counter_ns", lambda: next(ticks))
    clock = WallClock()
    with clock:
        samples = sample_all(clock, [lambda: None] * 2, Preamble())
    assert [sample.span_ns for sample in samples] == [7_000, 9_000]
    assert (clock.fall_back("x"), clock.launch_gap_ns(), clock.facts()) == (None, 0, {})


def test_no_more_than_64_calls_are_in_flight(gpu):
    clock, _ = fake_cupti_clock(gpu)
    with clock:
        assert len(sample_all(clock, [gpu.call()] * 100, Preamble())) == 100
    assert gpu.log.count("take") == 2


def test_graphs_are_given_back_once_cupti_is_off_and_only_where_there_were_some(gpu):
    clock, _ = fake_cupti_clock(gpu, release=lambda: gpu.log.append("release"))
    call = gpu.call(operations=3)
    take_trial(lambda _: call, clock, RECIPE, now=gpu.seconds)
    assert gpu.log[-2:] == ["off", "release"]
    take_trial(lambda _: gpu.call(), clock, RECIPE, now=gpu.seconds)
    assert gpu.log.count("release") == 1


def test_nothing_is_given_back_while_an_error_is_under_way(gpu):
    clock, _ = fake_cupti_clock(gpu, release=lambda: gpu.log.append("release"))
    with pytest.raises(KeyError), clock:
        clock.replays(lambda _: gpu.call())(0)
        raise KeyError
    assert "release" not in gpu.log


def test_a_clock_tells_the_leads_of_its_latest_trial(gpu):
    clock, _ = fake_cupti_clock(gpu)
    for late_ns in (9_000_000, 0):
        with clock:
            sample_all(clock, [gpu.call(host_ns=late_ns)] * 3, Preamble())
    assert clock.facts()["lead_ns"] < 100_000


def test_events_call_a_reading_late_whose_gpu_ran_dry_though_it_works_on(gpu):
    clock = fake_event_clock(gpu)
    (sample,) = sample_all(clock, [gpu.call(host_ns=200_000, length_ns=10_000_000)], Preamble(delay_ns=20_000))
    assert sample.late
