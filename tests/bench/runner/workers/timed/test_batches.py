"""Batches of calls that the session times itself, and what they make of a claimed latency."""

from dataclasses import replace

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
OVERHEAD = BatchOverhead(request=50_000.0, touch=30_000.0)
CALLS = 8
CALL_NS, BEGIN_NS = 400_000, 100_000
SHORTER_NS = BEGIN_NS / CALLS + 1_500
"""A batch begins later than calls alone, and so does each of its calls."""
COST_NS = CALL_NS - SHORTER_NS
COPIED = {"burst": {"copied": True}}
STRIDED = {"burst": {"copied": True, "strided": True}}


@pytest.fixture
def open_timer(arena, monkeypatch):
    """Return a timer whose clock is the scripted worker's, and the worker."""

    def opened(
        *,
        waits=False,
        chain=None,
        has_setup=False,
        wanted=2,
        byte_ns=0.0,
        may_return=False,
        overhead=OVERHEAD,
        meanwhile=None,
        **worker,
    ):
        trial = make_trial(arena, device_type="cuda", most=CALLS, has_setup=has_setup, wanted=wanted)
        trial.may_return_inputs = may_return
        scripted = ScriptedWorker(trial, **{"call_ns": CALL_NS, "request_ns": 50_000, "touch_ns": 30_000, **worker})
        monkeypatch.setattr(batches, "touch", scripted.touch)
        monkeypatch.setattr(batches, "byte_ns", lambda device: byte_ns)
        claimed, how = Claimed(CALL_NS, waits), {"meanwhile": meanwhile, "now_ns": scripted.now_ns}
        return BatchTimer(scripted, trial, overhead, claimed, chain, **how), scripted

    return opened


LAUNCH_NS = CALL_NS / 8
FETCHED_NS = (50_000 - 300_000 - 4_000 * CALLS) / CALLS
SPENT_NS = 50_000 + CALLS * CALL_NS
LAZY = {"is_lazy": True}


@pytest.mark.parametrize(
    ("how", "cost_ns"),
    [
        ({}, COST_NS),
        ({**LAZY, "may_return": True}, COST_NS),
        ({"chain": Confirmation("chain", most_ns=0.9 * CALL_NS)}, 0.9 * CALL_NS),
        ({"has_setup": True, "setup_ns": 200_000}, COST_NS + 200_000 - LAUNCH_NS),
        ({"call_ns": 0}, None),
        ({"call_ns": 0, "collect_ns": CALLS * CALL_NS, "byte_ns": 1.0}, COST_NS + FETCHED_NS - 3 * 64),
        ({"answers": COPIED, "byte_ns": 1e9}, (0.4 * SPENT_NS - 50_000) / CALLS - SHORTER_NS - LAUNCH_NS),
        ({"answers": STRIDED, "byte_ns": 1e9}, COST_NS - LAUNCH_NS),
        ({"call_ns": 0, "late": {"collect": [CALLS * CALL_NS]}}, COST_NS + 80_000 / CALLS + FETCHED_NS),
    ],
)
def test_what_a_call_costs(open_timer, how, cost_ns):
    """Who answers at once keeps the GPU from the session. Who saves the inputs computes when results are fetched: they
    are gone then, unless results may lie there."""
    timer, worker = open_timer(overhead=replace(OVERHEAD, call=LAUNCH_NS), **how)
    found = timer.confirm(CALL_NS)
    assert found.record.get("burst_ms") == (cost_ns and pytest.approx(cost_ns / 1e6))
    assert found.least_ns == pytest.approx(0.79 * (cost_ns or 0))
    assert (found.bound, found.record["burst_calls"], found.record["burst_resolution_ms"]) == (
        "batch",
        worker.trial.write([0])[0],
        0.16 / CALLS,
    )
    asked, is_one_by_one = worker.fields_of("burst")[-1], not {"has_setup", "refuses"}.isdisjoint(how)
    assert (asked["part"] == "both", asked["together"]) == ("has_setup" in how, not is_one_by_one)
    assert ("collect" in worker.verbs()) is ("answers" not in how)
    reads = worker.trial.reads()
    assert len(reads) >= 2
    assert all(torch.equal(read.outputs[0], read.inputs[0] * 2) is (how is not LAZY) for read in reads)


TAKES, DOUBTING = "a call in a batch takes 0.386 ms", Confirmation("chain", why_not="in doubt")


@pytest.mark.parametrize(
    ("share", "how", "ends"),
    [
        (0.74, {}, TAKES),
        (0.49, {}, ClaimContradicted),
        (0.49, {"chain": DOUBTING}, TAKES),
        (0.24, {"chain": DOUBTING}, ClaimContradicted),
        (0.24, {"chain": Confirmation("chain")}, TAKES),  # nothing is refused that a chain has confirmed
        (0.09, {}, SolutionFailure),
        (0.2, {"refuses": "it waits"}, f"{TAKES}, and the host may be what holds it up: it waits"),
        (0.2, {"waits": True}, f"{TAKES}, and the host may be what holds it up: the call waits for the GPU"),
        (0.2, {"touch_ns": 2_000_000}, SolutionFailure),  # it keeps the GPU busy for ever
    ],
)
def test_what_becomes_of_a_claim(open_timer, share, how, ends):
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


def test_only_the_first_batch_which_nobody_reads_leaves_the_session_time_for_other_work(open_timer):
    batches_asked = []
    timer, worker = open_timer(meanwhile=lambda _is_over: batches_asked.append(len(worker.fields_of("burst"))))
    timer.confirm(CALL_NS)
    assert batches_asked == [1]
    assert len(worker.fields_of("burst")) > 1


def test_the_overhead_follows_from_empty_batches():
    found = take_overhead(lambda calls: 1_000.0 * (300 + calls), lambda: None)
    assert (found.request, found.call) == (pytest.approx(300_000.0), pytest.approx(1_000.0))


@pytest.mark.parametrize(
    ("cost_ns", "held_bytes", "waits_ns"),
    [
        (10_000, 1_500, 500),  # all of its time is for memory
        (10_000, 5_000, 1_000),  # no more than a share of it
        (20_000, 5_000, 0),  # memory is not what it waits for
    ],
)
def test_what_a_call_waits_for_the_writes_of_the_one_before_is_no_cost_of_its_own(cost_ns, held_bytes, waits_ns):
    assert held_up_ns(cost_ns, 10_000, held_bytes, 1.0) == pytest.approx(waits_ns)
