"""Bursts that the session times itself, and what they make of a claimed latency."""

import random
from dataclasses import replace

import pytest

from flashinfer_bench.bench.runner.workers import cpu_time
from flashinfer_bench.bench.runner.workers.timed import bursts
from flashinfer_bench.bench.runner.workers.timed.burst_size import (
    BURST_BYTES,
    BURST_NS,
    LEAST_NOISE_NS,
    REQUEST_SHARE,
    RESOLVED,
    count_burst_calls,
    count_read_calls,
)
from flashinfer_bench.bench.runner.workers.timed.bursts import (
    AGAIN,
    BEGIN_NS,
    COPY_MARGIN,
    KEPT_SHARE,
    MOST_BURSTS,
    OUTPUT_SHARE,
    START_NS,
    UNRESOLVED_BURSTS,
)
from flashinfer_bench.bench.runner.workers.timed.call_places import MOST_PLACES
from flashinfer_bench.bench.runner.workers.timed.confirmation import (
    FEWEST_SEEN,
    FORGED_SHARE,
    LEAST_SHARE,
    REFUSED_SHARE,
    ClaimContradicted,
    settle_by_requests,
)
from flashinfer_bench.bench.runner.workers.timed.empty_bursts import BurstOverhead
from flashinfer_bench.bench.runner.workers.timed.readings import raise_claim
from flashinfer_bench.bench.runner.workers.timed.relay import RELAY_REFUSED_SHARE
from flashinfer_bench.errors import SolutionFailure
from tests.bench.runner.workers.timed.conftest import CALL_NS, OVERHEAD

pytestmark = pytest.mark.cpu


def test_an_honest_latency_is_confirmed_with_what_a_burst_costs_a_call(open_timer):
    timer, _ = open_timer()
    found = timer.confirm(CALL_NS, OVERHEAD)
    assert found.burst_ns == pytest.approx(CALL_NS, rel=0.01)
    assert found.to_record() == {
        "confirmed": True,
        "burst_ms": pytest.approx(0.4, rel=0.01),
        "burst_resolution_ms": found.resolution_ns / 1e6,
        "burst_calls": 2 * MOST_PLACES,
    }


def test_a_call_costs_no_more_than_is_known_otherwise(open_timer):
    """A burst that a busy machine made slow raises a latency no further, and refuses none."""
    timer, _ = open_timer(most_ns=0.5 * CALL_NS)
    found = timer.confirm(0.45 * CALL_NS, OVERHEAD)
    assert found.burst_ns == 0.5 * CALL_NS
    assert found.why_not is None


SEEN = [2_000_000.0] * 50 + [9_000_000.0] * 10


@pytest.mark.parametrize(
    ("device_type", "claimed_ns", "costs_ns", "settled"),
    [
        ("cpu", 1_810_000, SEEN, True),
        ("cpu", 1_790_000, SEEN, False),
        ("cuda", 1_590_000, SEEN, True),
        ("cuda", 1_570_000, SEEN, False),
        ("cpu", 2_000_000, SEEN[:FEWEST_SEEN], True),
        ("cpu", 2_000_000, SEEN[: FEWEST_SEEN - 1], False),
        ("cpu", 2_000_000, [200_000.0] * 20 + SEEN[:19], True),
        ("cpu", 600_000, [200_000.0] * 60, False),
    ],
    ids=["near", "too low", "near on a GPU", "too low on a GPU", "enough", "too few", "fast ones", "quick calls"],
)
def test_a_slow_claim_that_is_near_what_timed_calls_took_outside_needs_no_bursts(
    device_type, claimed_ns, costs_ns, settled
):
    found = settle_by_requests(claimed_ns, costs_ns, device_type)
    assert (found is not None) is settled
    if found is not None:
        assert found.to_record().keys() == {"confirmed", "burst_calls", "request_ms"}
        assert raise_claim(claimed_ns / 1e6, found.to_record(), device_type) == claimed_ns / 1e6


LARGE = 4 << 20


@pytest.mark.parametrize(
    ("claimed_ns", "calls"), [(2_000, 20), (20_000, 8), (10**7, 5), (10**9, 1), (1, 128), (0.0, 128)]
)
def test_a_burst_has_as_many_calls_as_can_be_told_from_noise_and_from_the_first(claimed_ns, calls):
    assert count_burst_calls(claimed_ns, "cpu", replace(OVERHEAD, request=1_000.0), LARGE) == calls


def test_a_burst_on_a_cpu_is_long_beside_its_request():
    calls = count_burst_calls(50_000, "cpu", OVERHEAD, LARGE)
    assert OVERHEAD.request <= REQUEST_SHARE["cpu"] * calls * 50_000 < 1.1 * OVERHEAD.request
    quick = replace(OVERHEAD, processors=replace(OVERHEAD, request=20_000.0))
    assert count_burst_calls(50_000, "cpu", quick, LARGE) == calls // 5


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_a_burst_is_long_enough_to_leave_its_start_behind(device_type):
    short = replace(OVERHEAD, request=1_000.0)
    assert count_burst_calls(50_000, device_type, short, 1 << 10) == BURST_NS[device_type] // 50_000


def test_a_burst_on_a_cpu_is_not_longer_for_that_than_its_caches_hold():
    short = replace(OVERHEAD, request=1_000.0)
    assert count_burst_calls(50_000, "cpu", short, BURST_BYTES["cpu"] // 20) == 20


def test_a_burst_has_a_call_in_each_place(open_timer):
    timer, worker = open_timer(most=5)
    timer.confirm(CALL_NS, OVERHEAD)
    assert {tuple(fields["indices"]) for fields in worker.fields_of("burst")} == {(0, 1, 2, 3, 4)}


def test_what_bursts_take_of_themselves_is_taken_off(open_timer):
    timer, _ = open_timer(most=10)
    costly = BurstOverhead(request=100_000.0, call=CALL_NS / 4, noise=1_000.0)
    assert timer.confirm(CALL_NS, costly).burst_ns == pytest.approx(CALL_NS * 3 / 4, rel=0.01)


def test_copies_are_taken_off_where_outputs_are_copied_and_only_there(open_timer, monkeypatch):
    monkeypatch.setattr(bursts.OutputCopies, "time", lambda copies, outputs, calls: 100_000.0)
    for returns, spent in ((True, 100_000.0 * COPY_MARGIN["cpu"]), (False, 0.0)):
        timer, worker = open_timer()
        worker.trial.returns = returns
        assert timer.confirm(CALL_NS, OVERHEAD).burst_ns == pytest.approx(CALL_NS - spent, rel=0.01)


@pytest.mark.parametrize(("verb", "copied"), [("collect", False), ("burst", True)])
def test_copies_that_change_how_results_lie_are_the_calls_own(open_timer, monkeypatch, verb, copied):
    monkeypatch.setattr(bursts.OutputCopies, "time", lambda copies, outputs, calls: 100_000.0)
    answers = {"burst": {"copied": copied}}
    answers[verb] = {**answers.get(verb, {}), "strided": True}
    timer, _ = open_timer(worker={"answers": answers})
    overhead = replace(OVERHEAD, request=50_000.0 if copied else 100_000.0)
    assert timer.confirm(CALL_NS, overhead).burst_ns == pytest.approx(CALL_NS, rel=0.01)


def test_of_copies_the_least_that_any_burst_saw_is_taken_off(open_timer, monkeypatch):
    each_ns = iter([90_000.0, 30_000.0] + [200_000.0] * 20)
    monkeypatch.setattr(bursts.OutputCopies, "time", lambda copies, outputs, calls: next(each_ns))
    timer, _ = open_timer(worker={"call_ns": 100_000})
    spent = 30_000.0 * COPY_MARGIN["cpu"]
    assert timer.confirm(60_000, OVERHEAD).burst_ns == pytest.approx(100_000 - 90_000 * COPY_MARGIN["cpu"], rel=0.01)
    assert timer._time_one(8, OVERHEAD) == pytest.approx(100_000 - spent, rel=0.1)


@pytest.mark.parametrize("call_ns", [0, 400, 4_000], ids=["nothing", "one operation for all", "an empty call"])
def test_a_call_is_told_as_no_less_than_a_share_of_what_is_taken_off_for_it(open_timer, call_ns):
    costly = BurstOverhead(request=100_000.0, call=4_000.0, noise=1_000.0)
    timer, _ = open_timer(most=128, worker={"call_ns": call_ns})
    found = timer.confirm(600, costly)
    assert found.burst_ns == pytest.approx(KEPT_SHARE["cpu"] * costly.call)
    timer, _ = open_timer(most=128, worker={"call_ns": 4_000 + 2_000})  # an honest short call
    assert timer.confirm(2_000, costly).burst_ns == pytest.approx(2_000, rel=0.01)


def test_an_unresolved_claim_is_told_as_no_less_than_that_share(open_timer):
    costly = BurstOverhead(request=100_000.0, call=4_000.0, noise=200_000.0)
    timer, _ = open_timer(worker={"call_ns": 400})
    record = timer.confirm(60, costly).to_record()
    assert (record["confirmed"], record["burst_ms"]) == (False, KEPT_SHARE["cpu"] * costly.call / 1e6)
    assert raise_claim(60 / 1e6, record, "cpu") > 800 / 1e6


def test_outputs_after_the_first_take_a_share_of_an_empty_call(open_timer):
    timer, worker = open_timer(most=10)
    costly = BurstOverhead(request=100_000.0, call=CALL_NS / 8, noise=1_000.0)
    outputs = worker.trial.places.outputs
    worker.trial.places.outputs = lambda index: outputs(index) * 3
    off = 1 + 2 * OUTPUT_SHARE["cpu"]
    assert timer.confirm(CALL_NS, costly).burst_ns == pytest.approx(CALL_NS * (1 - off / 8), rel=0.01)


def test_nothing_is_taken_off_a_call_that_writes_in_place(open_timer):
    timer, worker = open_timer(most=10)
    worker.trial.returns = False
    costly = BurstOverhead(request=100_000.0, call=CALL_NS / 4, noise=1_000.0)
    assert timer.confirm(CALL_NS, costly).burst_ns == pytest.approx(CALL_NS, rel=0.01)


@pytest.mark.parametrize("few", [0, 1])
def test_the_overhead_follows_from_bursts_of_few_calls_and_of_many(few):
    less, more = [60.0, 50.0, 90.0], [130.0, 170.0, 150.0]
    found = BurstOverhead.of(less, more, (few, few + 8))
    assert found == BurstOverhead(request=50.0 - 10.0 * few, call=10.0, noise=20.0)
    assert BurstOverhead.of(more, less, (few, few + 8)).call == 0.0


def test_a_worker_that_was_held_up_is_priced_like_one_that_was_not():
    slow = BurstOverhead(900.0, 20.0, 7.0, processors=BurstOverhead(300.0, 0.0, 3.0))
    swift = BurstOverhead(100.0, 2.0, 1.0, processors=BurstOverhead(400.0, 1.0, 1.0))
    found = slow.at_most(swift)
    assert (found.request, found.call, found.noise) == (100.0, 2.0, 7.0)
    # a call that seemed to take nothing, for the bursts without calls were held up, takes what bursts of many say
    assert found.processors == BurstOverhead(300.0, 0.0, 3.0)
    assert slow.at_most(None) is slow
    assert swift.at_most(replace(swift, request=228.0, call=0.0)).call == 2.0


def test_quick_calls_get_many_bursts_and_slow_ones_a_single_one(open_timer):
    timer, worker = open_timer(worker={"call_ns": 50_000})
    timer.confirm(0.8 * 50_000, OVERHEAD)
    assert worker.verbs() == ["burst", "collect"] * (1 + MOST_BURSTS["cpu"])  # the first is not timed
    timer, worker = open_timer(most=1, worker={"call_ns": 10**9})
    timer.confirm(10**9, OVERHEAD)
    assert worker.verbs() == ["burst", "collect"]


@pytest.mark.parametrize(
    ("device_type", "share", "bursts_made"),
    [("cpu", 0.91, 1), ("cpu", 0.89, 12), ("cuda", 0.8, 1), ("cuda", 0.78, 32)],
)
def test_the_first_burst_that_settles_a_claim_ends_the_series(open_timer, device_type, share, bursts_made):
    taken_off_ns = round(START_NS[device_type] + BEGIN_NS[device_type] / MOST_PLACES)
    timer, worker = open_timer(device_type=device_type, worker={"call_ns": 50_000 + taken_off_ns})
    overhead = OVERHEAD if device_type == "cpu" else replace(OVERHEAD, request=50_000.0)
    found = timer.confirm(share * 50_000, overhead)
    assert found.calls == MOST_PLACES * (1 + bursts_made)
    assert len(worker.fields_of("burst")) == 1 + bursts_made


def test_bursts_go_on_until_one_settles_the_claim(open_timer):
    timer, worker = open_timer(worker={"call_ns": 2 * CALL_NS})

    def recover(verb, *args, asks=worker.__call__, **fields):
        if verb == "burst" and len(worker.fields_of("burst")) == 2:
            worker.call_ns = CALL_NS
        return asks(verb, *args, **fields)

    timer._ask = recover
    found = timer.confirm(CALL_NS, OVERHEAD)
    assert (found.why_not, found.burst_ns) == (None, pytest.approx(CALL_NS, rel=0.01))
    assert found.calls == MOST_PLACES * 3


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_a_series_that_ends_early_says_what_the_whole_series_would_have_said(open_timer, device_type):
    def confirm(costs_ns, *, ends_early):
        timer, _ = open_timer(device_type=device_type)
        take = timer._take_series
        left = iter(costs_ns)
        timer._time_one = lambda calls, overhead: next(left)
        if not ends_early:
            timer._take_series = lambda calls, overhead, settling: take(calls, overhead, (0.0, 0.0))
        try:
            found = timer.confirm(CALL_NS, OVERHEAD)
        except ClaimContradicted:
            return "contradicted", None
        record = found.to_record()
        return record["confirmed"], raise_claim(CALL_NS / 1e6, record, device_type)

    for seed in range(30):
        chance = random.Random(seed)
        middle = chance.choice([0.9, 1.1, 1.2, 1.4, 2.2, 3.0])
        costs_ns = [
            CALL_NS * middle * chance.lognormvariate(0.0, 0.2) for _ in range(MOST_BURSTS[device_type] * (1 + AGAIN))
        ]
        assert confirm(costs_ns, ends_early=True) == confirm(costs_ns, ends_early=False)


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_a_series_that_does_not_resolve_a_call_ends_early_on_a_gpu(open_timer, device_type):
    timer, _ = open_timer(device_type=device_type)
    costs = [10 * CALL_NS, 0.0] * 20
    made = []
    timer._time_one = lambda calls, overhead: made.append(calls) or costs[len(made) - 1]
    found = timer.confirm(CALL_NS, OVERHEAD)
    assert found.why_not == "the call is shorter than a burst resolves"
    assert len(made) == UNRESOLVED_BURSTS[device_type] <= MOST_BURSTS[device_type]


def test_the_outputs_of_bursts_are_looked_at_and_their_inputs_are_new(open_timer):
    timer, worker = open_timer(wanted=3)
    timer.confirm(CALL_NS, OVERHEAD)
    trial = worker.trial
    assert trial.number == MOST_PLACES * len(worker.fields_of("burst"))
    assert trial.reader._seen == trial.number - MOST_PLACES  # the first burst shows whether results share memory
    assert all((read.outputs[0] == read.inputs[0] * 2).all() for read in trial.reader.reads())


def test_the_calls_that_are_compared_are_those_of_the_best_burst(open_timer):
    timer, worker = open_timer(wanted=3)
    costs = iter([5, 5, 3, 4] + [5] * 20)  # the first burst of all is not timed
    burst = timer._burst

    def at_another_speed(*given):
        worker.call_ns = next(costs) * CALL_NS
        return burst(*given)

    timer._burst = at_another_speed
    timer.confirm(2 * CALL_NS, OVERHEAD)
    kept = worker.trial.reader._kept
    assert len(kept) == 3
    assert {number // MOST_PLACES for number in kept} == {2}


def test_a_claim_far_below_a_burst_is_refused_with_both_figures_after_several_series(open_timer):
    timer, _ = open_timer()
    claimed_ns = (REFUSED_SHARE - 0.05) * CALL_NS
    with pytest.raises(SolutionFailure) as failure:
        timer.confirm(claimed_ns, OVERHEAD)
    assert failure.value.status == "RUNTIME_ERROR"
    assert "claims 0.18 ms a call; a call in a burst takes 0.4 ms" in failure.value.message
    assert f"({1 + AGAIN} series)" in failure.value.message


def test_a_claim_that_relays_have_not_refused_bursts_do_not_refuse_either_and_their_time_is_told(open_timer):
    timer, _ = open_timer()
    timer.refused_share = RELAY_REFUSED_SHARE
    for share in (REFUSED_SHARE - 0.05, RELAY_REFUSED_SHARE + 0.01):
        found = timer.confirm(CALL_NS * share, OVERHEAD)
        assert (found.why_not, found.burst_ns) == ("a call in a burst takes 0.4 ms", pytest.approx(CALL_NS, rel=0.01))
    with pytest.raises(ClaimContradicted):
        timer.confirm(CALL_NS * (RELAY_REFUSED_SHARE - 0.01), OVERHEAD)
    timer._is_strided = True
    with pytest.raises(ClaimContradicted):
        timer.confirm(CALL_NS * (REFUSED_SHARE - 0.05), OVERHEAD)


@pytest.mark.parametrize(("factor", "may_be_honest"), [(1.1, True), (0.9, False)])
def test_only_a_claim_that_a_busy_machine_could_explain_may_be_measured_again(open_timer, factor, may_be_honest):
    timer, _ = open_timer()
    with pytest.raises(SolutionFailure) as failure:
        timer.confirm(FORGED_SHARE * factor * CALL_NS, OVERHEAD)
    assert isinstance(failure.value, ClaimContradicted) is may_be_honest


def test_the_claim_of_a_reference_is_not_refused_and_its_burst_is_told(open_timer):
    timer, _ = open_timer()
    found = timer.confirm(CALL_NS / 20, OVERHEAD, is_believed=True)
    assert found.burst_ns == pytest.approx(CALL_NS, rel=0.01)
    assert found.to_record()["confirmed"] is False


def test_a_claim_above_the_least_share_is_confirmed(open_timer):
    timer, _ = open_timer()
    assert timer.confirm(CALL_NS * (LEAST_SHARE + 0.02), OVERHEAD).why_not is None


def test_a_claim_between_the_shares_is_not_confirmed(open_timer):
    timer, _ = open_timer()
    for share in (REFUSED_SHARE + 0.01, LEAST_SHARE - 0.02):
        found = timer.confirm(CALL_NS * share, OVERHEAD)
        assert found.why_not == "a call in a burst takes 0.4 ms"
        assert found.to_record()["confirmed"] is False


def test_a_series_that_was_held_up_is_taken_again(open_timer):
    timer, worker = open_timer()
    worker.call_ns *= 3

    def recover(verb, *args, asks=worker.__call__, **fields):
        if verb == "burst" and len(worker.asked) > 12:
            worker.call_ns = CALL_NS
        return asks(verb, *args, **fields)

    timer._ask = recover
    assert timer.confirm(CALL_NS, OVERHEAD).burst_ns == pytest.approx(CALL_NS, rel=0.01)


def test_what_a_burst_does_not_resolve_is_not_confirmed_and_not_refused(open_timer):
    timer, _ = open_timer(worker={"call_ns": 1_000})
    found = timer.confirm(500, OVERHEAD)
    record = found.to_record()
    assert record["confirmed"] is False
    assert record["burst_calls"] == (1 + MOST_BURSTS["cpu"]) * MOST_PLACES  # each is one more look at the outputs
    assert "burst_ms" not in record
    assert record["not_confirmed"] == "the call is shorter than a burst resolves"
    assert record["burst_resolution_ms"] == pytest.approx(RESOLVED * LEAST_NOISE_NS["cpu"] / MOST_PLACES / 1e6)


def test_where_others_held_the_processors_the_bound_is_wider_and_says_so(open_timer, monkeypatch):
    timer, worker = open_timer()
    monkeypatch.setattr(bursts, "tree_waiting_ns", lambda pid: worker.now // 2)
    found = timer.confirm(0.5 * CALL_NS, OVERHEAD)
    assert "while other processes held the processors" in found.to_record()["not_confirmed"]
    with pytest.raises(SolutionFailure, match=r"claims 0\.14 ms"):
        timer.confirm(0.35 * CALL_NS, OVERHEAD)


def test_processor_time_counts_where_it_is_less_than_the_wall(open_timer, monkeypatch):
    timer, worker = open_timer()
    monkeypatch.setattr(cpu_time, "tree_cpu_time_ns", lambda pid: worker.now // 4)
    found = timer.confirm(CALL_NS / 4, OVERHEAD)
    assert (found.why_not, found.burst_ns) == (None, pytest.approx(CALL_NS / 4, rel=0.3))


def test_each_clock_has_an_overhead_of_its_own(open_timer, monkeypatch):
    timer, worker = open_timer()
    monkeypatch.setattr(cpu_time, "tree_cpu_time_ns", lambda pid: worker.now - 90_000 * len(worker.asked))
    overhead = replace(OVERHEAD, request=10**9, processors=BurstOverhead(request=0.0, noise=0.0))
    assert timer.confirm(CALL_NS, overhead).burst_ns is None  # the wall's overhead leaves nothing
    overhead = replace(OVERHEAD, processors=BurstOverhead(request=10.0**9, noise=0.0))
    assert timer.confirm(CALL_NS, overhead).burst_ns is None
    overhead = replace(OVERHEAD, processors=BurstOverhead(request=-80_000.0, noise=0.0))
    assert timer.confirm(CALL_NS, overhead).burst_ns == pytest.approx(CALL_NS, rel=0.01)


def test_processor_time_of_several_threads_does_not_add_to_the_wall(open_timer, monkeypatch):
    timer, worker = open_timer()
    monkeypatch.setattr(cpu_time, "tree_cpu_time_ns", lambda pid: 4 * worker.now)
    assert timer.confirm(CALL_NS, OVERHEAD).burst_ns == pytest.approx(CALL_NS, rel=0.01)


def test_what_a_worker_computes_while_nothing_is_asked_of_it_counts(open_timer, monkeypatch):
    ahead_ns = 10 * CALL_NS
    timer, worker = open_timer(worker={"call_ns": CALL_NS // 100})
    looks = iter(range(1, 1000))  # it is looked at before a burst and behind it, and takes its time in between
    monkeypatch.setattr(cpu_time, "tree_cpu_time_ns", lambda pid: worker.now + ahead_ns * (next(looks) // 2))
    timer._between = cpu_time.BetweenRequests(1)
    found = timer.confirm(3 * CALL_NS, OVERHEAD)
    assert found.burst_ns == pytest.approx(ahead_ns / MOST_PLACES, rel=0.05)


def test_where_each_call_was_copied_at_once_nothing_is_collected(open_timer):
    timer, worker = open_timer(worker={"answers": {"burst": {"copied": True}}})
    timer.confirm(CALL_NS, OVERHEAD)
    assert set(worker.verbs()) == {"burst"}
    assert all((read.outputs[0] == read.inputs[0] * 2).all() for read in worker.trial.reader.reads())


def test_setup_is_made_with_its_call_in_a_burst_and_counts(open_timer):
    timer, worker = open_timer(has_setup=True, worker={"setup_ns": 200_000})
    found = timer.confirm(CALL_NS + 200_000, OVERHEAD)
    assert {fields["part"] for fields in worker.fields_of("burst")} == {"both"}
    assert found.burst_ns == pytest.approx(600_000, rel=0.02)
    with pytest.raises(SolutionFailure, match=r"claims 0\.2 ms"):
        open_timer(has_setup=True, worker={"setup_ns": 200_000})[0].confirm(CALL_NS / 2, OVERHEAD)


@pytest.mark.parametrize(
    ("size", "device_type", "calls"), [(1 << 20, "cpu", 24), (1 << 24, "cuda", 16), (1 << 25, "cuda", 6)]
)
def test_fewer_large_calls_are_kept_to_be_compared(size, device_type, calls):
    assert count_read_calls(size, device_type) == calls
