"""Which reports of a worker are accepted, and the reported latency."""

from contextlib import nullcontext

import pytest

from flashinfer_bench.bench.runner.workers.timed.reported_time import (
    Confirmation,
    check_clock,
    check_readings,
    check_trial,
    raise_claim,
    settle_by_requests,
    tell_outside,
)
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.timing.measurement import Sample, Trial
from flashinfer_bench.timing.settings import TimingSettings
from flashinfer_bench.worker.protocol import Called, answer_readings
from tests.kit.trials import CUPTI, WALL

pytestmark = pytest.mark.cpu
CPU, GPU = None, TimingSettings()
BY_EVENTS, WARM = TimingSettings(clock="cuda_events"), TimingSettings(l2_cache="warm")
ON_CPU = Sample(span_ns=1_000, enqueue_ns=1_000)
ON_GPU = Sample(span_ns=1_000, enqueue_ns=500, busy_ns=900, operations=1, lead_ns=900)
OTHER = "RUNTIME_ERROR: the process answered out of protocol .*"


def refusing(said):
    """Return a context that expects a failure with this message; without a message it expects no failure."""
    return nullcontext() if said is None else pytest.raises(SolutionFailure, match=said)


@pytest.mark.parametrize(
    ("asked", "traits", "changes", "said"),
    [
        (WARM, CUPTI, {"cache_state": "warm"}, None),
        (GPU, WALL, {}, "method 'wall'"),
        (GPU, CUPTI, {"sees_operations": False}, "contradicts its method"),
        (BY_EVENTS, CUPTI, {}, "method 'cupti'"),
    ],
)
def test_a_clock_that_was_not_asked_for_is_found(asked, traits, changes, said):
    with refusing(said and OTHER + said):
        check_clock(traits.model_copy(update=changes), asked)


@pytest.mark.parametrize(
    ("traits", "samples", "wall_ns", "said"),
    [
        (WALL, [ON_CPU] * 2, 2_000, None),
        (WALL, [ON_CPU] * 2, 1_900, "more than the time that passed outside"),
        (WALL, [ON_CPU] * 3, 1e9, OTHER + "3 readings of 2 calls"),
        (CUPTI, [ON_CPU] * 2, 1e9, OTHER + "no operations"),
    ],
)
def test_readings_that_contradict_what_was_asked_for_are_refused(traits, samples, wall_ns, said):
    called = Called(id=1, readings=samples and answer_readings(samples), returned=None)
    with refusing(said):
        found = check_readings(called, 2, traits, wall_ns=wall_ns)
        assert [(one.span_ns, one.operations) for one in found] == [(1_000, samples[0].operations)] * 2


def test_a_latency_of_nothing_is_refused():
    for span_ns, said in ((0, "claims 0 ns a call, which is less than an empty call takes"), (1, None)):
        with refusing(said):
            check_trial(Trial((Sample(span_ns, 0),) * 3, "count"))


@pytest.mark.parametrize(
    ("claimed_ms", "least_ms", "floor_ms", "reported_ms", "bound"),
    [(0.5, 0.8, 0.0, 0.8, "chain"), (0.5, 0.8, 0.9, 0.9, "floor"), (0.95, 0.8, 0.9, 0.95, "chain")],
)
def test_a_claim_below_what_bounds_it_earns_nothing_and_the_trace_says_so(
    claimed_ms, least_ms, floor_ms, reported_ms, bound
):
    record = {}
    found = Confirmation("chain", least_ms * 1e6, "doubt", {"relay_ms": 1.0})
    assert raise_claim(claimed_ms, record, found, floor_ms) == pytest.approx(reported_ms)
    raised = {"claimed_ms": claimed_ms} if reported_ms > claimed_ms else {}
    assert record == {"bound": bound, "relay_ms": 1.0, "why_unconfirmed": "doubt", **raised}


@pytest.mark.parametrize(
    ("claimed_ms", "costs_ns", "outside_ms", "flags"),
    [
        (1.9, [3e6, 9e6], 6.0, ["noisy", "unconfirmed"]),
        (0.01, [1.9e5], 0.19, ["noisy"]),  # most of it is what the request takes
    ],
)
def test_on_a_cpu_the_mean_time_from_outside_stands_beside_a_latency(claimed_ms, costs_ns, outside_ms, flags):
    record = {"flags": ["noisy"]}
    assert tell_outside(costs_ns, claimed_ms, record) == claimed_ms
    assert record == {"bound": "none", "outside_ms": outside_ms, "flags": flags}


SEEN = [2e6] * 50 + [9e6] * 10


@pytest.mark.parametrize(
    ("claimed_ns", "costs_ns", "request_ms"),
    [
        (1_590_000, SEEN[:9], 2.0),
        (1_570_000, SEEN, None),
        (999_999, [2e5] * 60, None),
    ],
)
def test_a_slow_claim_that_is_near_what_timed_calls_took_outside_needs_no_batches(claimed_ns, costs_ns, request_ms):
    found = settle_by_requests(claimed_ns, costs_ns)
    assert (found and (found.bound, found.record)) == (
        request_ms and ("samples", {"burst_calls": 0, "request_ms": request_ms})
    )
