"""Bursts on a GPU, whose calls may go on after the answer: what is waited for, fetched and taken off."""

from dataclasses import replace

import pytest

from flashinfer_bench.bench.runner.workers.timed import bursts
from flashinfer_bench.bench.runner.workers.timed.burst_size import (
    MOST_OPERATIONS,
    SHORT_BURST_NS,
    USUAL_CALLS,
    count_burst_calls,
)
from flashinfer_bench.bench.runner.workers.timed.bursts import (
    BEGIN_NS,
    COPIES_SHARE,
    FETCH_NS,
    FETCH_RESULT_NS,
    MOST_TOUCHES,
    START_NS,
    TOUCH_SLACK_NS,
)
from flashinfer_bench.bench.runner.workers.timed.empty_bursts import take_overhead
from flashinfer_bench.bench.runner.workers.timed.write_back import MOST_SHARE, SMALL_SHARE, held_up_ns
from flashinfer_bench.errors import SolutionFailure
from tests.bench.runner.workers.timed.conftest import CALL_NS, OVERHEAD

pytestmark = pytest.mark.cpu


def test_on_a_gpu_what_a_burst_and_each_call_of_it_take_to_start_is_taken_off(open_timer):
    timer, worker = open_timer(device_type="cuda")
    found = timer.confirm(CALL_NS, replace(OVERHEAD, request=50_000.0))
    taken_off = START_NS["cuda"] + BEGIN_NS["cuda"] / len(worker.trial.places)
    assert found.burst_ns == pytest.approx(CALL_NS - taken_off, rel=0.001)


@pytest.mark.parametrize("is_lazy", [False, True])
def test_on_a_gpu_results_are_fetched_when_the_inputs_are_gone(open_timer, is_lazy):
    timer, worker = open_timer(device_type="cuda", worker={"is_lazy": is_lazy})
    timer.confirm(CALL_NS, OVERHEAD)
    reads = worker.trial.reader.reads()
    assert len(reads) >= 2
    assert all(bool((read.outputs[0] == read.inputs[0] * 2).all()) is not is_lazy for read in reads)


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("goes_on_after", ["burst", "collect"])
def test_on_a_gpu_calls_that_go_on_after_the_answer_count(open_timer, monkeypatch, goes_on_after, slices):
    """A worker that answers at once: its calls keep the GPU from the session, for some time slices."""
    timer, worker = open_timer(device_type="cuda", worker={"call_ns": 0})
    calls, usual_ns = len(worker.trial.places), 30_000
    left = []

    def wait_for_gpu(device):
        if worker.verbs()[-1] == goes_on_after and not left and worker.asked[-1] is not getattr(worker, "waited", None):
            worker.waited = worker.asked[-1]
            left.extend([calls * CALL_NS / slices] * slices)
        worker.now += usual_ns + (left.pop() if left else 0)

    monkeypatch.setattr(bursts, "touch", wait_for_gpu)
    found = timer.confirm(CALL_NS, replace(OVERHEAD, request=50_000.0, touch=float(usual_ns)))
    hidden_ns = 50_000 + usual_ns  # the calls went on meanwhile
    if goes_on_after == "collect":
        hidden_ns += 50_000 - FETCH_NS[True] - calls * FETCH_RESULT_NS[True]
    taken_off = START_NS["cuda"] + (BEGIN_NS["cuda"] - hidden_ns) / calls
    assert found.burst_ns == pytest.approx(CALL_NS - taken_off, rel=0.01)


def test_a_gpu_that_is_kept_busy_for_ever_is_not_waited_for_so_long(open_timer, monkeypatch):
    timer, worker = open_timer(device_type="cuda")
    touches = []

    def wait_for_gpu(device):
        touches.append(worker.asked[-1])
        worker.now += 2_000_000

    monkeypatch.setattr(bursts, "touch", wait_for_gpu)
    with pytest.raises(SolutionFailure, match="as timed from outside"):
        timer.confirm(CALL_NS, OVERHEAD)
    asked = sum(verb in ("burst", "collect") for verb in worker.verbs())
    assert 0 < len(touches) <= asked * MOST_TOUCHES


@pytest.mark.parametrize(("touch_ns", "counts_ns"), [(30_000, 0), (130_000, 100_000)])
def test_a_touch_counts_by_what_it_takes_beyond_one_after_an_empty_burst(open_timer, monkeypatch, touch_ns, counts_ns):
    timer, worker = open_timer(device_type="cuda")
    overhead = replace(OVERHEAD, request=50_000.0, touch=30_000.0)
    alone = timer.confirm(CALL_NS, overhead).burst_ns
    timer, worker = open_timer(device_type="cuda")
    monkeypatch.setattr(bursts, "touch", lambda device: setattr(worker, "now", worker.now + touch_ns))
    assert counts_ns <= TOUCH_SLACK_NS
    found = timer.confirm(CALL_NS, overhead)
    assert found.burst_ns == pytest.approx(alone + counts_ns / len(worker.trial.places))


def test_where_results_may_lie_in_the_inputs_these_stay(open_timer):
    timer, worker = open_timer(device_type="cuda", worker={"is_lazy": True})
    timer._spoils = False
    timer.confirm(CALL_NS, OVERHEAD)
    assert all((read.outputs[0] == read.inputs[0] * 2).all() for read in worker.trial.reader.reads())


def test_on_a_gpu_copies_within_a_burst_take_no_more_than_a_share_of_it_off(open_timer, monkeypatch):
    monkeypatch.setattr(bursts.BurstTimer, "_time_copies", lambda timer, indices: 1e12)
    timer, worker = open_timer(device_type="cuda", worker={"answers": {"burst": {"copied": True}}})
    calls = len(worker.trial.places)
    overhead = replace(OVERHEAD, request=50_000.0)
    wall_ns = 50_000 + calls * CALL_NS
    left_ns = wall_ns * (1 - COPIES_SHARE) - 50_000 - BEGIN_NS["cuda"]
    found = timer.confirm(0.4 * CALL_NS, overhead)
    assert found.burst_ns == pytest.approx(left_ns / calls - START_NS["cuda"])
    assert worker.fields_of("collect") == []
    assert len(worker.fields_of("burst")) == 3  # nobody reads the first, nor the one whose graph has the copies


def test_on_a_gpu_to_fetch_results_may_take_their_copies_and_little_else(open_timer, monkeypatch):
    """A worker that saves the inputs and computes when results are asked for."""
    monkeypatch.setattr(bursts.BurstTimer, "_time_copies", lambda timer, indices: 1_000.0 * len(indices))
    for collect_ns, counts in ((0, False), (CALL_NS, True)):
        timer, worker = open_timer(device_type="cuda", worker={"call_ns": 0})
        calls = len(worker.trial.places)
        collect = worker._collect

        def compute(fields, collect=collect, worker=worker, spent_ns=collect_ns * calls):
            worker.now += spent_ns
            return collect(fields)

        worker._collect = compute
        found = timer.confirm(CALL_NS, replace(OVERHEAD, request=50_000.0))
        if not counts:
            assert "shorter than a burst resolves" in found.why_not
            continue
        once_ns = FETCH_NS[True] - 50_000 + BEGIN_NS["cuda"]
        free_ns = 1_000.0 + FETCH_RESULT_NS[True] + once_ns / calls + START_NS["cuda"]
        assert found.burst_ns == pytest.approx(CALL_NS - free_ns, rel=0.001)


def test_a_call_that_waits_for_the_gpu_is_in_no_graph_and_not_refused(open_timer):
    timer, worker = open_timer(device_type="cuda", operations=None)
    found = timer.confirm(CALL_NS / 4, OVERHEAD)
    assert {fields["together"] for fields in worker.fields_of("burst")} == {False}
    assert found.why_not.endswith("the host may be what holds it up: the call waits for the GPU")


def test_on_a_gpu_calls_are_one_graph_where_they_can_be(open_timer):
    timer, worker = open_timer(device_type="cuda", operations=3)
    assert timer.confirm(CALL_NS, OVERHEAD).why_not is None
    assert {(fields["together"], fields["operations"]) for fields in worker.fields_of("burst")} == {(True, 3)}


def test_calls_that_cannot_be_captured_are_made_one_by_one_and_bound_nothing(open_timer):
    timer, worker = open_timer(device_type="cuda")

    def refuse(verb, expected, what, asks=worker.__call__, **fields):
        worker.answers["burst"] = {"refused": "it waits"} if fields.get("together") else {}
        return asks(verb, expected, what, **fields)

    timer._ask = refuse
    found = timer.confirm(CALL_NS / 2, OVERHEAD)
    assert found.why_not.endswith("the host may be what holds it up: it waits")
    assert [fields["together"] for fields in worker.fields_of("burst")][:3] == [True, False, False]


def test_a_burst_of_many_operations_has_fewer_calls_but_as_many_as_a_short_one():
    counts = [count_burst_calls(20_000, "cuda", OVERHEAD, 1 << 10, operations) for operations in (1, 6, 1_000)]
    assert counts == [128, MOST_OPERATIONS // 6, SHORT_BURST_NS // 20_000]


@pytest.mark.parametrize(
    ("claimed_ns", "operations", "calls"),
    [
        (3_000, 1, 500),
        (1_000, 1, MOST_OPERATIONS),
        (5_000, 4, MOST_OPERATIONS // 4),
        (5_000, 9, USUAL_CALLS),
        (12_000, 1, USUAL_CALLS),
        (40_000, 1, 100),
    ],
)
def test_a_burst_of_short_calls_has_so_many_that_what_is_taken_off_is_little_beside_them(claimed_ns, operations, calls):
    assert count_burst_calls(claimed_ns, "cuda", OVERHEAD, 1 << 10, operations) == calls


@pytest.mark.parametrize(("cost_ns", "share"), [(100_000, 0.0), (50_000, 0.0), (40_000, 0.5), (32_000, 1.0), (1, 1.0)])
def test_a_call_that_memory_holds_up_waits_for_what_the_one_before_wrote(cost_ns, share):
    """Its bytes are read or written in 30 us; 6 us of that are in the cache when a call alone ends."""
    expected_ns = min(max(0.0, 6_000 * share - SMALL_SHARE * cost_ns), MOST_SHARE * cost_ns)
    assert held_up_ns(cost_ns, 60_000_000, 12_000_000, 0.0005) == pytest.approx(expected_ns)


def test_a_long_call_may_lie_below_its_burst_by_more_than_what_it_waits_for():
    """64 MB are read and 64 MB written in 50 us; 6 us of that are in the cache when a call alone ends."""
    assert held_up_ns(56_000, 128 << 20, 15_600_000, 0.000385) == 0.0


def test_what_a_busy_machine_adds_to_the_overhead_of_a_worker_is_no_slack_for_it():
    least = replace(OVERHEAD, request=300_000.0, touch=200_000.0)
    held_up = replace(least, request=740_000.0, touch=567_000.0)
    assert held_up.near(None) is held_up
    assert held_up.near(least) == replace(least, request=450_000.0, touch=300_000.0)
    assert replace(least, request=310_000.0).near(least).request == 310_000.0


@pytest.mark.parametrize(("walls_ns", "bursts"), [([300_000], 10), ([300_000, 740_000], 30)])
def test_empty_bursts_of_a_busy_gpu_are_taken_again(walls_ns, bursts):
    taken = []

    def time_burst(calls):
        taken.append(calls)
        return float(walls_ns[len(taken) // 2 % len(walls_ns)]), None

    overhead = take_overhead(time_burst, "cuda", lambda: None)
    assert (len(taken), overhead.request) == (bursts, pytest.approx(300_000.0))


@pytest.mark.parametrize("returns", [False, True])
def test_what_is_done_meanwhile_is_done_while_graphs_are_made_and_beside_no_burst_that_counts(open_timer, returns):
    timer, worker = open_timer(device_type="cuda")
    timer._trial.returns = returns
    seen = []
    timer.meanwhile = lambda is_over: seen.append((len(worker.asked), worker.verbs()[-1], is_over()))
    timer.confirm(CALL_NS, OVERHEAD)
    assert seen == [(1, "burst", False), (2, "collect", False)][: 1 + returns]
    assert len(worker.asked) > len(seen)
