"""Batches of calls that the session times itself, and their effect on a reported latency."""

import pytest
import torch

from flashinfer_bench.bench.runner.workers.timed import batches
from flashinfer_bench.bench.runner.workers.timed.batches import (
    BatchOverhead,
    BatchTimer,
    held_up_ns,
    take_overhead,
)
from flashinfer_bench.bench.runner.workers.timed.reported_time import ClaimContradicted, Claimed, Confirmation
from flashinfer_bench.errors import SolutionFailure
from tests.kit.trials import ScriptedWorker, make_trial

pytestmark = pytest.mark.cpu
CALLS = 8
CALL_NS, BEGIN_NS = 400_000, 100_000
SHORTER_NS = BEGIN_NS / CALLS + 1_500
"""A batch begins later than calls alone, and so does each of its calls."""
COST_NS = CALL_NS - SHORTER_NS


LAUNCH_NS = CALL_NS / 8
FETCHED_NS = (50_000 - 300_000 - 4_000 * CALLS) / CALLS
COPIED = {"burst": {"copied": True}}


@pytest.fixture
def open_timer(arena, monkeypatch):
    """Return a timer whose clock is the scripted worker's, and the worker; keywords are the worker's."""

    def opened(*, waits=False, chain=None, has_setup=False, byte_ns=0.0, may_return_inputs=False, **worker):
        trial = make_trial(arena, device_type="cuda", most=CALLS, has_setup=has_setup)
        trial.may_return_inputs = may_return_inputs
        scripted = ScriptedWorker(trial, **{"call_ns": CALL_NS, "request_ns": 50_000, "touch_ns": 30_000, **worker})
        monkeypatch.setattr(batches, "touch", scripted.touch)
        monkeypatch.setattr(batches, "byte_ns", lambda device: byte_ns)
        overhead = BatchOverhead(request=50_000.0, touch=30_000.0, call=LAUNCH_NS)
        return BatchTimer(scripted, trial, overhead, Claimed(CALL_NS, waits), chain, now_ns=scripted.now_ns), scripted

    return opened


@pytest.mark.parametrize(
    ("how", "cost_ns"),
    [
        ({}, COST_NS),
        ({"chain": Confirmation("chain", most_ns=0.9 * CALL_NS)}, 0.9 * CALL_NS),
        ({"has_setup": True, "setup_ns": 200_000}, COST_NS + 200_000 - LAUNCH_NS),
        # A worker that answers at once has its GPU, or the fetching of its results, counted.
        ({"call_ns": 0}, None),
        ({"call_ns": 0, "late": {"collect": [CALLS * CALL_NS]}}, COST_NS + 80_000 / CALLS + FETCHED_NS),
        ({"call_ns": 0, "collect_ns": CALLS * CALL_NS, "byte_ns": 1.0}, COST_NS + FETCHED_NS - 3 * 64),
        (
            {"answers": COPIED, "byte_ns": 1e9},
            (0.4 * (50_000 + CALLS * CALL_NS) - 50_000) / CALLS - SHORTER_NS - LAUNCH_NS,
        ),
    ],
)
def test_a_latency_is_bound_by_a_share_of_what_a_call_costs_in_a_batch(open_timer, how, cost_ns):
    timer, worker = open_timer(**how)
    found = timer.confirm(CALL_NS)
    assert found.record.get("burst_ms") == (cost_ns and pytest.approx(cost_ns / 1e6))
    assert found.least_ns == pytest.approx(0.79 * (cost_ns or 0))
    assert (found.bound, found.record["burst_calls"]) == ("batch", worker.trial.write([0])[0])
    asked = worker.fields_of("burst")[-1]
    assert (asked["part"] == "both", asked["together"]) == ("has_setup" in how, "has_setup" not in how)
    reads = worker.trial.reads()
    assert len(reads) >= 2
    assert all(torch.equal(read.outputs[0], read.inputs[0] * 2) for read in reads)


@pytest.mark.parametrize("may_return_inputs", [False, True])
def test_a_worker_that_computes_when_results_are_fetched_finds_no_inputs(open_timer, may_return_inputs):
    timer, worker = open_timer(is_lazy=True, may_return_inputs=may_return_inputs)
    timer.confirm(CALL_NS)
    assert not any(torch.equal(read.outputs[0], read.inputs[0] * 2) for read in worker.trial.reads())


TAKES, DOUBTING = "a call in a batch takes 0.386 ms", Confirmation("chain", why_not="in doubt")


@pytest.mark.parametrize(
    ("share", "how", "ends"),
    [
        (0.74, {}, TAKES),
        (0.49, {}, ClaimContradicted),
        (0.24, {"chain": DOUBTING}, ClaimContradicted),
        (0.24, {"chain": Confirmation("chain")}, TAKES),  # nothing is refused that a chain has confirmed
        (0.09, {}, SolutionFailure),
        (0.2, {"refuses": "it waits"}, f"{TAKES.replace('8', '3')}, and the host may be what holds it up: it waits"),
        (0.2, {"touch_ns": 2_000_000}, SolutionFailure),  # it keeps the GPU busy for ever
    ],
)
def test_which_reported_latencies_are_confirmed(open_timer, share, how, ends):
    timer, _ = open_timer(**how)
    if isinstance(ends, type):
        said = r"RUNTIME_ERROR.* claims 0\.\d+ ms a call; .* batch takes .*, as timed from outside \(\d+ batches\)"
        with pytest.raises(SolutionFailure, match=said) as failed:
            timer.confirm(share * COST_NS)
        assert failed.type is ends
    else:
        assert timer.confirm(share * COST_NS).why_not == ends


UNRESOLVED = "the call is shorter than a batch resolves"


@pytest.mark.parametrize(
    ("costs_us", "why_not", "best"),
    [
        ([900] * 30 + [400], None, 30),  # after many that contradict the claim
        ([1, 400], UNRESOLVED, 0),
    ],
)
def test_a_batch_that_settles_the_claim_is_the_last_and_the_calls_of_the_best_are_compared(
    open_timer, costs_us, why_not, best
):
    calls_ns = [1_000 * cost + (SHORTER_NS if cost > 15 else BEGIN_NS / CALLS) for cost in costs_us]
    timer, worker = open_timer(calls_ns=[0, *calls_ns])  # nobody reads the first
    found = timer.confirm(400_000)
    assert (found.why_not, found.record["burst_ms"]) == (why_not, pytest.approx(costs_us[best] / 1_000))
    assert len(worker.fields_of("burst")) == 1 + len(costs_us)
    numbers = range((1 + best) * CALLS, (2 + best) * CALLS)
    best_sums = {worker.trial.contents.make(number)[0].sum().item() for number in numbers}
    assert {read.inputs[0].sum().item() for read in worker.trial.reads()} <= best_sums


@pytest.mark.parametrize(
    ("cost_ns", "held_bytes", "waits_ns"),
    [
        (10_000, 1_500, 500),  # all of its time is for memory
        (10_000, 5_000, 1_000),  # no more than a share of it
        (20_000, 5_000, 0),  # memory is not what it waits for
    ],
)
def test_the_wait_for_writes_of_the_previous_call_is_no_cost_of_a_call(cost_ns, held_bytes, waits_ns):
    assert held_up_ns(cost_ns, 10_000, held_bytes, 1.0) == pytest.approx(waits_ns)


def test_the_overhead_follows_from_empty_batches():
    found = take_overhead(lambda calls: 1_000.0 * (300 + calls), lambda: None)
    assert (found.request, found.call) == (pytest.approx(300_000.0), pytest.approx(1_000.0))
