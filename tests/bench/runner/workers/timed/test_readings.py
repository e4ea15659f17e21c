"""Which claims of a worker are believed."""

import pytest

from flashinfer_bench.bench.runner.workers.timed.readings import (
    ReadingsAsked,
    check_clock,
    check_readings,
    check_trial,
    raise_claim,
    tell_outside,
)
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.timing.measurement import Sample, Trial
from flashinfer_bench.timing.settings import TimingSettings
from flashinfer_bench.worker.protocol import Called, answer_readings
from tests.kit.trials import CUPTI, EVENTS, WALL

pytestmark = pytest.mark.cpu
CPU, GPU = ReadingsAsked("cpu"), ReadingsAsked("cuda")
BY_EVENTS = ReadingsAsked("cuda", TimingSettings(clock="cuda_events"))
WARM = ReadingsAsked("cuda", TimingSettings(l2_cache="warm"))
ON_CPU = Sample(span_ns=1_000, enqueue_ns=1_000)
ON_GPU = Sample(span_ns=1_000, enqueue_ns=500, busy_ns=900, operations=1, lead_ns=900)


def called(*samples):
    return Called(id=1, readings=answer_readings(samples), returned=None)


@pytest.mark.parametrize(
    ("asked", "traits"),
    [
        (CPU, WALL),
        (GPU, CUPTI),
        (GPU, EVENTS),
        (BY_EVENTS, EVENTS),
        (WARM, CUPTI.model_copy(update={"cache_state": "warm"})),
    ],
)
def test_the_clock_of_an_honest_worker_is_believed(asked, traits):
    check_clock(traits, asked)


@pytest.mark.parametrize(
    ("asked", "traits", "said"),
    [
        (CPU, CUPTI, "method 'cupti'"),
        (CPU, WALL.model_copy(update={"cache_state": "cold"}), "cache state 'cold'"),
        (CPU, WALL.model_copy(update={"sees_operations": True}), "contradicts its method"),
        (GPU, WALL, "method 'wall'"),
        (GPU, CUPTI.model_copy(update={"cache_state": "warm"}), "cache state 'warm'"),
        (GPU, CUPTI.model_copy(update={"sees_operations": False}), "contradicts its method"),
        (GPU, EVENTS.model_copy(update={"fills_queue": False}), "contradicts its method"),
        (BY_EVENTS, CUPTI, "method 'cupti'"),
    ],
)
def test_a_clock_that_was_not_asked_for_is_found(asked, traits, said):
    with pytest.raises(SolutionFailure, match="answered out of protocol") as failure:
        check_clock(traits, asked)
    assert said in failure.value.message
    assert failure.value.status == "RUNTIME_ERROR"


@pytest.mark.parametrize(("traits", "sample"), [(WALL, ON_CPU), (CUPTI, ON_GPU), (EVENTS, ON_CPU)])
def test_readings_come_through_in_their_order(traits, sample):
    found = check_readings(called(sample, sample), 2, traits, wall_ns=1e9)
    assert [(one.span_ns, one.operations) for one in found] == [(sample.span_ns, sample.operations)] * 2


@pytest.mark.parametrize(
    ("traits", "answer", "said"),
    [
        (WALL, called(ON_CPU), "1 readings of 2 calls"),
        (WALL, called(ON_CPU, ON_CPU, ON_CPU), "3 readings of 2 calls"),
        (WALL, called(ON_GPU, ON_GPU), "operations that the clock cannot see"),
        (EVENTS, called(ON_GPU, ON_GPU), "operations that the clock cannot see"),
        (CUPTI, called(ON_CPU, ON_CPU), "no operations"),
        (WALL, Called(id=1, readings=None, returned=None), "there are no readings"),
    ],
)
def test_readings_that_contradict_what_was_asked_for_are_refused(traits, answer, said):
    with pytest.raises(SolutionFailure, match="answered out of protocol") as failure:
        check_readings(answer, 2, traits, wall_ns=1e9)
    assert said in failure.value.message


def test_readings_may_add_up_to_the_time_outside_and_not_to_more():
    check_readings(called(ON_CPU, ON_CPU), 2, WALL, wall_ns=2_000)
    with pytest.raises(SolutionFailure, match="more than the time that passed outside"):
        check_readings(called(ON_CPU, ON_CPU), 2, WALL, wall_ns=1_900)


def test_a_latency_of_nothing_is_refused():
    nothing, honest = (Trial((Sample(span_ns=span_ns, enqueue_ns=0),) * 3, "count") for span_ns in (0, 1))
    with pytest.raises(SolutionFailure, match="claims 0 ns a call, which is less than an empty call takes"):
        check_trial(nothing)
    assert check_trial(honest) is honest


@pytest.mark.parametrize(
    ("claimed_ms", "record", "least_ms", "told_ms"),
    [
        (0.55, {"burst_ms": 1.0, "burst_resolution_ms": 2.0}, 0.0, 0.79),
        (0.8, {"burst_ms": 1.0, "burst_resolution_ms": 0.1}, 0.0, 0.8),
        (0.55, {}, 0.0, 0.55),
        (0.55, {"burst_ms": 1.0}, 0.9, 0.9),
    ],
    ids=["below", "near", "no bursts", "below the least call"],
)
def test_a_claim_on_a_gpu_below_what_bursts_cost_earns_nothing(claimed_ms, record, least_ms, told_ms):
    record = dict(record)
    assert raise_claim(claimed_ms, record, least_ms) == pytest.approx(told_ms)
    assert record.get("claimed_ms", told_ms) == claimed_ms


@pytest.mark.parametrize(
    ("claimed_ms", "floor_ms", "told_ms", "bound"),
    [(0.5, 0.9, 0.9, "floor"), (0.85, 0.9, 0.9, "floor"), (0.95, 0.9, 0.95, "chain"), (0.5, 0.7, 0.8, "chain")],
    ids=["below all", "above the chain", "above the floor", "a floor below the chain"],
)
def test_a_claim_below_the_floor_is_told_as_the_floor_and_the_trace_says_so(claimed_ms, floor_ms, told_ms, bound):
    record = {"bound": "chain"}
    assert raise_claim(claimed_ms, record, 0.8, floor_ms) == told_ms
    assert record == {"bound": bound} | ({"claimed_ms": claimed_ms} if told_ms > claimed_ms else {})


@pytest.mark.parametrize(("claimed_ms", "flags"), [(2.1, ["noisy"]), (1.9, ["noisy", "unconfirmed"])])
def test_on_a_cpu_the_mean_time_from_outside_stands_beside_a_latency(claimed_ms, flags):
    record = {"flags": ["noisy"]}
    tell_outside(claimed_ms, record, [3e6, 9e6])
    assert record == {"bound": "none", "outside_ms": 6.0, "flags": flags}


def test_a_short_call_on_a_cpu_is_not_flagged_for_what_its_request_takes():
    record = {}
    tell_outside(0.01, record, [1.9e5])
    assert record == {"bound": "none", "outside_ms": 0.19}
