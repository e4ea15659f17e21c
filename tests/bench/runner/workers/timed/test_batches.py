"""Batches of calls that the session times itself, and what they make of a claimed latency."""

import math
from dataclasses import replace

import pytest

from flashinfer_bench.bench.runner.workers.timed import batches
from flashinfer_bench.bench.runner.workers.timed.batches import (
    BatchOverhead,
    BatchTimer,
    count_batch_calls,
    count_batch_reads,
    held_up_ns,
    take_overhead,
)
from flashinfer_bench.bench.runner.workers.timed.confirmation import ClaimContradicted, settle_by_requests
from flashinfer_bench.errors import SolutionFailure
from tests.kit.trials import ScriptedWorker, make_trial

pytestmark = pytest.mark.cpu
OVERHEAD = BatchOverhead(request=50_000.0, noise=1_000.0)
CALLS = 8
CALL_NS = 400_000
COST_NS = CALL_NS - 250_000 / CALLS - 1_500
"""A batch and each of its calls begin later than calls alone."""
COPIED = {"answers": {"burst": {"copied": True}}}


@pytest.fixture
def open_timer(arena):
    """Return a timer whose clock is the scripted worker's, and the worker."""

    def opened(*, worker=None, operations=0, most_ns=math.inf, **trial):
        made = make_trial(arena, device_type="cuda", most=CALLS, **trial)
        scripted = ScriptedWorker(made, **{"call_ns": CALL_NS, "request_ns": 50_000, **(worker or {})})
        return BatchTimer(scripted, made, operations=operations, most_ns=most_ns, now_ns=scripted.now_ns), scripted

    return opened


def check_reads(worker, *, are_right=True):
    reads = worker.trial.reader.reads()
    assert len(reads) >= 2
    assert all(bool((read.outputs[0] == read.inputs[0] * 2).all()) is are_right for read in reads)


@pytest.mark.parametrize(
    ("how", "call_ns", "cost_ns"),
    [
        ({}, 0, COST_NS),
        ({"most_ns": 0.9 * CALL_NS}, 0, 0.9 * CALL_NS),
        ({"has_setup": True, "worker": {"setup_ns": 200_000}}, 0, COST_NS + 200_000),
        ({"worker": COPIED}, CALL_NS / 8, COST_NS - CALL_NS / 8),
        ({"operations": None}, CALL_NS / 8, COST_NS - CALL_NS / 8),
        ({}, CALL_NS / 8, COST_NS),
    ],
    ids=["usual", "known otherwise", "setup", "copied", "launched", "a graph without copies"],
)
def test_what_a_call_costs(open_timer, how, call_ns, cost_ns):
    timer, worker = open_timer(**how)
    found = timer.confirm(CALL_NS, replace(OVERHEAD, call=call_ns))
    assert found.batch_ns == pytest.approx(cost_ns)
    assert (found.bound, found.calls) == ("batch", worker.trial.write([0])[0])
    asked = worker.fields_of("burst")[-1]
    assert asked["part"] == ("both" if "has_setup" in how else "run")
    assert asked["together"] is ("has_setup" not in how and "operations" not in how)
    check_reads(worker)


@pytest.mark.parametrize(
    ("share", "traits", "ends"),
    [
        (0.76, {}, None),
        (0.74, {}, "a call in a batch takes 0.36725 ms"),
        (0.51, {}, "a call in a batch takes 0.36725 ms"),
        (0.49, {}, ClaimContradicted),
        (0.09, {}, SolutionFailure),
        (0.49, {"refused_share": 0.25}, "a call in a batch takes 0.36725 ms"),
        (0.24, {"refused_share": 0.25}, ClaimContradicted),
        (0.49, {"refused_share": 0.25, "_is_strided": True}, ClaimContradicted),
        (0.2, {"refused": "it waits"}, "0.36725 ms, and the host may be what holds it up: it waits"),
    ],
)
def test_what_becomes_of_a_claim(open_timer, share, traits, ends):
    timer, _ = open_timer()
    for name, value in traits.items():
        setattr(timer, name, value)
    if isinstance(ends, type):
        with pytest.raises(
            SolutionFailure, match=r"claims 0\.\d+ ms a call; .*takes 0.36725 ms.*\(3 series\)"
        ) as failed:
            timer.confirm(share * COST_NS, OVERHEAD)
        assert (type(failed.value), failed.value.status) == (ends, "RUNTIME_ERROR")
    else:
        why_not = timer.confirm(share * COST_NS, OVERHEAD).why_not
        assert why_not is None if ends is None else why_not.endswith(ends)


def test_batches_refuse_nothing_that_another_look_has_confirmed(open_timer):
    assert open_timer()[0].confirm(0.2 * COST_NS, OVERHEAD, is_believed=True).why_not is not None


UNRESOLVED = "the call is shorter than a batch resolves"


@pytest.mark.parametrize(
    ("costs_us", "why_not", "best_us"),
    [
        ([400], None, 400),
        ([900, 400], None, 400),
        ([900] * 100 + [400], None, 400),  # the second series
        ([900, 1, 900], UNRESOLVED, 1),
        ([1, 400], UNRESOLVED, 1),
    ],
)
def test_a_series_ends_when_a_batch_settles_the_claim(open_timer, monkeypatch, costs_us, why_not, best_us):
    """Each batch takes 2 ms. No more of them are made than are given."""
    timer, worker = open_timer()

    def time_one():
        worker.now += 2_000_000
        return costs_us.pop(0) * 1_000.0

    costs_us = list(costs_us)
    monkeypatch.setattr(timer, "_time_one", time_one)
    found = timer.confirm(400_000, OVERHEAD)
    assert (found.why_not, found.batch_ns, costs_us) == (why_not, best_us * 1_000, [])


def test_the_calls_that_are_compared_are_those_of_the_best_batch(open_timer):
    timer, worker = open_timer(wanted=3)
    costs, ask = iter([5, 5, 3, 4, *[5] * 99]), worker.__call__  # nobody reads the first

    def at_another_speed(verb, *given, **fields):
        worker.call_ns = CALL_NS * next(costs) if verb == "burst" else worker.call_ns
        return ask(verb, *given, **fields)

    timer._ask = at_another_speed
    timer.confirm(2 * CALL_NS, OVERHEAD)
    best = {worker.trial.contents.make(number)[0].sum().item() for number in range(2 * CALLS, 3 * CALLS)}
    assert {read.inputs[0].sum().item() for read in worker.trial.reader.reads()} <= best


@pytest.mark.parametrize(("may_return_inputs", "is_right"), [(False, False), (True, True)])
def test_results_are_fetched_when_the_inputs_are_gone_unless_they_may_lie_there(
    open_timer, may_return_inputs, is_right
):
    timer, worker = open_timer(worker={"is_lazy": True})
    worker.trial.may_return_inputs = may_return_inputs
    timer.confirm(CALL_NS, OVERHEAD)
    check_reads(worker, are_right=is_right)


@pytest.mark.parametrize(
    ("collect_ns", "cost_ns"), [(0, None), (CALL_NS, COST_NS - 4_000 - (300_000 - 50_000) / CALLS)]
)
def test_what_fetching_takes_beyond_copies_counts(open_timer, collect_ns, cost_ns):
    """A worker that saves the inputs and computes when results are asked for."""
    timer, worker = open_timer(worker={"call_ns": 0})
    collect = worker._collect

    def compute(fields):
        worker.now += collect_ns * CALLS
        return collect(fields)

    worker._collect = compute
    found = timer.confirm(CALL_NS, OVERHEAD)
    assert found.batch_ns == (None if cost_ns is None else pytest.approx(cost_ns))


@pytest.mark.parametrize(("is_strided", "left"), [(False, 0.4), (True, 1.0)])
def test_copies_within_a_batch_take_no_more_than_a_share_of_it_off(open_timer, monkeypatch, is_strided, left):
    monkeypatch.setattr(batches, "byte_ns", lambda device: 1e9)
    timer, worker = open_timer(worker={"answers": {"burst": {"copied": True, "strided": is_strided}}})
    found = timer.confirm(left * CALL_NS, OVERHEAD)
    spent_ns = left * (50_000 + CALLS * CALL_NS) - 50_000 - 250_000
    assert found.batch_ns == pytest.approx(spent_ns / CALLS - 1_500)
    assert worker.fields_of("collect") == []


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("late", ["burst", "collect"])
def test_calls_that_go_on_after_the_answer_count(open_timer, monkeypatch, late, slices):
    """A worker that answers at once: its calls keep the GPU from the session, for some time slices."""
    timer, worker = open_timer(worker={"call_ns": 0})
    left, seen = [], set()

    def wait_for_gpu(device):
        if worker.verbs()[-1] == late and len(worker.asked) not in seen:
            seen.add(len(worker.asked))
            left.extend([CALLS * CALL_NS / slices] * slices)
        worker.now += 30_000 + (left.pop() if left else 0)

    monkeypatch.setattr(batches, "touch", wait_for_gpu)
    found = timer.confirm(CALL_NS, replace(OVERHEAD, touch=30_000.0))
    hidden_ns = 80_000 + (50_000 - 300_000 - 4_000 * CALLS if late == "collect" else 0)
    assert found.batch_ns == pytest.approx(COST_NS + hidden_ns / CALLS)


@pytest.mark.parametrize(("touch_ns", "counts_ns"), [(30_000, 0), (130_000, 100_000)])
def test_a_touch_counts_by_what_it_takes_beyond_one_after_an_empty_batch(open_timer, monkeypatch, touch_ns, counts_ns):
    timer, worker = open_timer()
    monkeypatch.setattr(batches, "touch", lambda device: setattr(worker, "now", worker.now + touch_ns))
    found = timer.confirm(CALL_NS, replace(OVERHEAD, touch=30_000.0))
    assert found.batch_ns == pytest.approx(COST_NS + counts_ns / CALLS)


def test_a_gpu_that_is_kept_busy_for_ever_is_not_waited_for_for_ever(open_timer, monkeypatch):
    timer, worker = open_timer()
    monkeypatch.setattr(batches, "touch", lambda device: setattr(worker, "now", worker.now + 2_000_000))
    with pytest.raises(SolutionFailure, match="as timed from outside"):
        timer.confirm(CALL_NS, OVERHEAD)


def test_calls_that_cannot_be_captured_are_made_one_by_one_and_refuse_nothing(open_timer):
    timer, worker = open_timer(operations=3)
    ask = worker.__call__

    def refuse(verb, *given, **fields):
        worker.answers["burst"] = {"refused": "it waits"} if fields["together"] else {}
        return ask(verb, *given, **fields)

    timer._ask = refuse
    assert timer.confirm(0.4 * CALL_NS, OVERHEAD).why_not.endswith("the host may be what holds it up: it waits")
    asked = [(fields["together"], fields["operations"]) for fields in worker.fields_of("burst")]
    assert asked[:3] == [(True, 3), (False, 3), (False, 3)]


@pytest.mark.parametrize("returns", [False, True])
def test_what_is_done_meanwhile_is_beside_no_batch_that_counts(open_timer, returns):
    timer, worker = open_timer()
    worker.trial.returns, seen = returns, []
    timer.meanwhile = lambda is_over: seen.append(worker.verbs()[-1])
    timer.confirm(CALL_NS, OVERHEAD)
    assert seen == ["burst", "collect"][: 1 + returns]
    assert len(worker.asked) > len(seen)


@pytest.mark.parametrize(
    ("claimed_us", "operations", "size", "calls"),
    [
        (3, 1, 1 << 10, 500),  # 1.5 ms
        (1, 1, 1 << 10, 640),
        (12, 1, 1 << 10, 128),
        (40, 1, 1 << 10, 100),  # 4 ms
        (5, 4, 1 << 10, 160),
        (5, 9, 1 << 10, 128),
        (20, 6, 1 << 10, 106),
        (20, 1_000, 1 << 10, 50),  # 1 ms
        (40, 1, 1 << 30, 8),
        (10_000, 1, 1 << 33, 2),
    ],
)
def test_a_batch_is_so_long_that_what_is_taken_off_is_little_beside_it(claimed_us, operations, size, calls):
    assert count_batch_calls(claimed_us * 1_000, size, operations) == calls


@pytest.mark.parametrize(("size", "calls"), [(0, 16), (1 << 24, 16), (1 << 25, 8), (1 << 28, 6)])
def test_fewer_large_calls_are_kept_to_be_compared(size, calls):
    assert count_batch_reads(size) == calls


@pytest.mark.parametrize(("cost_us", "held_us"), [(100, 0), (50, 0), (45, 0), (32, 2.8), (25, 2.5), (0.001, 0.0001)])
def test_a_call_that_memory_holds_up_waits_for_what_the_one_before_wrote(cost_us, held_us):
    """Its bytes are read or written in 30 us; 6 us of that are in the cache when a call alone ends."""
    assert held_up_ns(cost_us * 1_000, 60_000_000, 12_000_000, 0.0005) == pytest.approx(held_us * 1_000)


def test_what_a_busy_machine_adds_to_the_overhead_of_a_worker_is_no_slack_for_it():
    least = BatchOverhead(request=300_000.0, touch=200_000.0)
    assert replace(least, request=740_000.0, touch=567_000.0).near(least) == BatchOverhead(450_000.0, touch=300_000.0)
    assert replace(least, request=310_000.0).near(least).request == 310_000.0
    assert least.near(None) is least


@pytest.mark.parametrize(("more_us", "taken"), [([0], 10), ([0, 440], 30)])
def test_the_overhead_follows_from_empty_batches_that_a_busy_gpu_makes_again(more_us, taken):
    asked = []

    def time_batch(calls):
        asked.append(calls)
        return 1_000.0 * (300 + calls + more_us[len(asked) // 2 % len(more_us)])

    found = take_overhead(time_batch, lambda: None)
    assert (len(asked), found.request, found.call) == (taken, pytest.approx(300_000.0), pytest.approx(1_000.0))


SEEN = [2_000_000.0] * 50 + [9_000_000.0] * 10


@pytest.mark.parametrize(
    ("claimed_ns", "costs_ns", "settled"),
    [
        (1_590_000, SEEN, True),
        (1_570_000, SEEN, False),
        (2_000_000, SEEN[:9], True),
        (2_000_000, SEEN[:8], False),
        (2_000_000, [200_000.0] * 20 + SEEN[:19], True),
        (600_000, [200_000.0] * 60, False),
    ],
    ids=["near", "too low", "enough", "too few", "fast ones", "quick calls"],
)
def test_a_slow_claim_that_is_near_what_timed_calls_took_outside_needs_no_batches(claimed_ns, costs_ns, settled):
    found = settle_by_requests(claimed_ns, costs_ns)
    assert (found is not None) is settled
    assert found is None or found.bound == "samples"
