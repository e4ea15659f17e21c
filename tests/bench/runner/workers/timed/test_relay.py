"""Relays: what a call costs whose inputs come when the call before is over, and what becomes of a claim by that."""

import ctypes
import os
from contextlib import contextmanager

import pytest
import torch

from flashinfer_bench.bench.runner.workers.timed import handover, relay
from flashinfer_bench.bench.runner.workers.timed.call_places import CPU_BYTES
from flashinfer_bench.bench.runner.workers.timed.confirmation import ClaimContradicted
from flashinfer_bench.bench.runner.workers.timed.handover import (
    RELAY_CALLS,
    CallSpan,
    Times,
    staying_apart,
    take_empty_relay,
    to_span,
)
from flashinfer_bench.bench.runner.workers.timed.readings import RELAY_SHARE, raise_claim
from flashinfer_bench.bench.runner.workers.timed.relay import (
    COPIES_SHARE,
    FEWEST_CALLS,
    FEWEST_RELAYS,
    LONGEST_NS,
    MOST_RELAYS,
    OUTPUT_SHARE,
    RETURNS_SHARE,
    WRITES_SHARE,
    RelayTimer,
    count_relay_calls,
)
from flashinfer_bench.errors import SolutionFailure
from tests.kit.trials import make_trial

pytestmark = pytest.mark.cpu
CALL_NS = 40_000
EMPTY_NS = 2_000


class PlayedWorker:
    """Answers a relay: a call takes `call_ns` on a clock that stands still otherwise, and computes y = 2 x.

    It is the board as well. `early` are the calls that are told as over before they compute anything.
    """

    fd = -1

    def __init__(self, trial, call_ns=CALL_NS, early=()):
        self.trial = trial
        self.call_ns = call_ns
        self.early = early
        self.now = 0
        self.relays = 0
        self.strided = False
        self.heard = []
        """Of each relay whether the session waits for the bell."""
        self.seen = []
        """Of each call the sums of the inputs of all places, as it saw them."""

    @contextmanager
    def open(self):
        yield self, [self.fd]

    def __call__(self, verb, expected, what, *, indices, along, part):
        assert (verb, along.fds, part) == ("relay", [self.fd], "run")
        self.relays += 1
        self.heard.append(False)
        self.indices = indices
        along.meanwhile(self.is_over)
        for index in self.early:
            self._compute(index)
        return expected.model_validate({"id": 1, "relayed": len(indices), "strided": self.strided})

    def is_over(self):
        return True

    def give(self, count):
        index = self.indices[count - 1]
        self.seen.append([float(self.trial.places.inputs(at)[0].sum()) for at in self.indices])
        self.now += self.call_ns if isinstance(self.call_ns, int) else next(self.call_ns)
        if index not in self.early:
            self._compute(index)

    def listen(self):
        self.heard[-1] = True

    def await_bell(self):
        assert self.heard[-1]

    def is_done(self, count, looks):
        return True

    def _compute(self, index):
        torch.mul(self.trial.places.inputs(index)[0], 2, out=self.trial.places.outputs(index)[0])


@pytest.fixture
def open_timer(arena, monkeypatch):
    """Return a timer of relays and the worker that is played; copies take no time."""
    monkeypatch.setattr(relay.OutputCopies, "time", lambda copies, outputs, calls: 0.0)

    def opened(*, call_ns=CALL_NS, early=(), returns=True, **trial):
        made = make_trial(arena, most=FEWEST_CALLS, **trial)
        made.returns = returns
        worker = PlayedWorker(made, call_ns, early)
        monkeypatch.setattr(relay, "open_board", worker.open)
        monkeypatch.setattr(handover, "now_ns", lambda: worker.now)
        return RelayTimer(worker, made, EMPTY_NS), worker

    return opened


def test_an_honest_latency_is_confirmed_with_what_a_call_costs(open_timer):
    timer, worker = open_timer()
    found = timer.confirm(CALL_NS)
    cost_ns = CALL_NS - RETURNS_SHARE * EMPTY_NS
    assert found.to_record() == {
        "confirmed": True,
        "relay_ms": pytest.approx(cost_ns / 1e6),
        "relay_calls": FEWEST_RELAYS * FEWEST_CALLS,
    }
    assert worker.relays == FEWEST_RELAYS
    assert raise_claim(CALL_NS / 1e6, found.to_record(), "cpu") == CALL_NS / 1e6


def test_a_call_that_writes_its_outputs_is_taken_off_less(open_timer):
    timer, _ = open_timer(returns=False)
    assert timer.confirm(CALL_NS).relay_ns == pytest.approx(CALL_NS - WRITES_SHARE * EMPTY_NS)


def test_further_outputs_take_a_share_of_an_empty_call_each_where_they_are_returned(open_timer, monkeypatch):
    timer, worker = open_timer()
    monkeypatch.setattr(worker.trial.places, "outputs", lambda index: [torch.zeros(1)] * 5)
    more = RelayTimer(worker, worker.trial, EMPTY_NS)
    assert more._beside_ns - timer._beside_ns == pytest.approx(4 * OUTPUT_SHARE * EMPTY_NS)


def test_copies_of_outputs_are_taken_off_by_the_least_that_they_took(open_timer, monkeypatch):
    taken = iter([3_000.0, 1_000.0])
    timer, _ = open_timer()
    monkeypatch.setattr(relay.OutputCopies, "time", lambda copies, outputs, calls: next(taken))
    found = timer.confirm(CALL_NS)
    assert found.relay_ns == pytest.approx(CALL_NS - RETURNS_SHARE * EMPTY_NS - 3_000.0)  # the first of them was best


def test_copies_are_no_more_than_a_share_of_a_call(open_timer, monkeypatch):
    timer, _ = open_timer()
    monkeypatch.setattr(relay.OutputCopies, "time", lambda copies, outputs, calls: CALL_NS)
    found = timer.confirm(CALL_NS)
    assert found.relay_ns == pytest.approx((1 - COPIES_SHARE) * (CALL_NS - RETURNS_SHARE * EMPTY_NS))


def test_copies_that_change_how_results_lie_are_the_calls_own(open_timer, monkeypatch):
    timer, worker = open_timer()
    worker.strided = True
    monkeypatch.setattr(relay.OutputCopies, "time", lambda copies, outputs, calls: CALL_NS)
    assert timer.confirm(CALL_NS).relay_ns == pytest.approx(CALL_NS - RETURNS_SHARE * EMPTY_NS)


def test_what_is_judged_is_what_was_looked_at(open_timer, monkeypatch):
    """A worker that a timer wakes may exchange outputs behind the look."""
    timer, worker = open_timer(wanted=4)
    look = worker.trial.reader.look

    def exchanged(indices, *given, **more):
        for index in indices:
            worker.trial.places.outputs(index)[0].zero_()
        look(indices, *given, **more)

    monkeypatch.setattr(worker.trial.reader, "look", exchanged)
    timer.confirm(CALL_NS)
    reads = worker.trial.reader.reads()
    assert reads
    assert all(torch.equal(read.outputs[0], read.inputs[0] * 2) for read in reads)


def test_an_output_that_is_written_before_its_call_is_refused(open_timer, monkeypatch):
    """What the outputs of all calls have in common would cost them nothing."""
    timer, worker = open_timer()
    give = worker.give

    def ahead(count):
        give(count)
        worker.trial.places.outputs(worker.indices[-1])[0].zero_()

    monkeypatch.setattr(worker, "give", ahead)
    with pytest.raises(SolutionFailure, match="an output was written before its call had begun"):
        timer.confirm(CALL_NS)


def test_a_call_sees_its_own_inputs_and_those_of_earlier_calls_and_no_others(open_timer):
    timer, worker = open_timer()
    timer.confirm(CALL_NS)
    for at, sums in enumerate(worker.seen):
        known = at % FEWEST_CALLS + 1
        assert all(sums[:known])
        assert not any(sums[known:])


def test_the_calls_of_a_relay_are_compared_and_its_inputs_are_new(open_timer):
    timer, worker = open_timer(wanted=4)
    timer.confirm(CALL_NS)
    reads = worker.trial.reader.reads()
    assert len(reads) == 4
    assert all(torch.equal(read.outputs[0], read.inputs[0] * 2) for read in reads)
    sums = [row[at % FEWEST_CALLS] for at, row in enumerate(worker.seen)]
    assert len(set(sums)) == len(sums)


def test_a_latency_is_told_as_no_less_than_what_a_call_costs(open_timer):
    timer, worker = open_timer()
    found = timer.confirm(0.6 * CALL_NS)
    told_ms = raise_claim(0.6 * CALL_NS / 1e6, record := found.to_record(), "cpu", found.least_ns / 1e6)
    assert told_ms == pytest.approx(RELAY_SHARE["cpu"] * (CALL_NS - RETURNS_SHARE * EMPTY_NS) / 1e6)
    assert record["claimed_ms"] == 0.6 * CALL_NS / 1e6
    assert found.why_not == f"a call in a relay takes {found.relay_ns / 1e6:.6g} ms"
    assert worker.relays == MOST_RELAYS  # before a latency is raised


def test_a_relay_that_was_held_up_is_followed_by_others_and_the_best_one_counts(open_timer):
    slow, usual = [3 * CALL_NS] * FEWEST_CALLS, [CALL_NS] * FEWEST_CALLS
    timer, worker = open_timer(call_ns=iter([*slow, *slow, *slow, *usual]))
    assert timer.confirm(CALL_NS).relay_ns < CALL_NS
    assert worker.relays == 4


def test_what_a_call_costs_at_the_most_holds_the_move_of_its_inputs(open_timer, monkeypatch):
    """Somebody may compute along with it."""
    timer, worker = open_timer()
    move = handover.ctypes.memmove
    monkeypatch.setattr(handover, "own_move_ns", lambda given, scratch: CALL_NS)

    def slow(*where):
        worker.now += 1_000
        move(*where)

    monkeypatch.setattr(handover.ctypes, "memmove", slow)
    found = timer.confirm(CALL_NS)
    assert timer.most_ns - found.relay_ns == 1_000 - handover.MOVE_SLACK_NS


@pytest.mark.parametrize(
    ("claimed_ns", "waits"),
    [
        (25_000, [False] * MOST_RELAYS),
        (200_000, [False, True, False, True, False, True]),
        (600_000, [True, False, True, False, True, False]),
    ],
)
def test_in_every_other_relay_of_longer_calls_the_session_waits_for_the_bell(open_timer, claimed_ns, waits):
    timer, worker = open_timer(call_ns=2 * claimed_ns)
    timer.confirm(claimed_ns)
    assert worker.heard == waits


def test_a_bell_that_rings_before_a_call_is_over_ends_nothing(open_timer, monkeypatch):
    timer, worker = open_timer(call_ns=2_000_000)
    looked = []
    monkeypatch.setattr(worker, "is_done", lambda count, looks: looked.append(count) or looked.count(count) > 3)
    monkeypatch.setattr(worker, "is_over", lambda: False)
    assert timer.confirm(2_000_000).why_not is None
    assert len(looked) == 4 * FEWEST_CALLS


def test_a_slow_call_has_one_relay(open_timer):
    timer, worker = open_timer(call_ns=2_000_000)
    assert timer.confirm(2_000_000).why_not is None
    assert worker.relays == 1


@pytest.mark.parametrize(("share", "failure"), [(0.2, ClaimContradicted), (0.05, SolutionFailure)])
def test_a_claim_far_below_relays_is_refused_with_both_figures(open_timer, share, failure):
    timer, _ = open_timer()
    with pytest.raises(failure, match=rf"a call in a relay takes .* as timed from outside \({MOST_RELAYS} relays\)"):
        timer.confirm(share * CALL_NS)


def test_a_claim_that_a_busy_machine_may_explain_is_doubted_and_not_refused(open_timer):
    """Others may hold up all handovers of a relay, and a core that the session has is missing to the call's threads."""
    timer, _ = open_timer(call_ns=relay.SLACK_NS)
    assert timer.confirm(700).why_not is not None
    timer, _ = open_timer()
    assert timer.confirm(0.4 * CALL_NS).why_not is not None


def test_the_claim_of_a_reference_is_not_refused_and_raised_like_others(open_timer):
    timer, _ = open_timer()
    assert timer.confirm(0.2 * CALL_NS, is_believed=True).why_not is not None


def test_a_call_that_is_told_as_over_before_its_outputs_are_there_is_refused(open_timer):
    timer, _ = open_timer(early=[FEWEST_CALLS - 1])
    with pytest.raises(SolutionFailure, match="an output was written after its call had ended"):
        timer.confirm(CALL_NS)


def test_an_answer_before_the_calls_were_given_out_is_refused(open_timer, monkeypatch):
    timer, worker = open_timer()
    monkeypatch.setattr(worker, "is_done", lambda count, looks: count < 3)
    with pytest.raises(SolutionFailure, match="an output was written after its call had ended"):
        timer.confirm(CALL_NS)


def test_a_call_is_over_though_the_answer_came_before_the_session_looked(open_timer, monkeypatch):
    timer, worker = open_timer()
    looked = []
    monkeypatch.setattr(worker, "is_done", lambda count, looks: looked.append(count) or looked.count(count) > 1)
    assert timer.confirm(CALL_NS).why_not is None


@pytest.mark.parametrize(
    ("claimed_ns", "size", "calls"),
    [
        (5_000, 1_000, RELAY_CALLS),
        (500_000, 1_000, 20),
        (5_000_000, 1_000, FEWEST_CALLS),
        (LONGEST_NS + 1, 1_000, 0),
        (5_000, 1 << 19, 16),
        (5_000, CPU_BYTES // FEWEST_CALLS, FEWEST_CALLS),
        (5_000, CPU_BYTES // FEWEST_CALLS + 1, 0),
        (0.0, 0, RELAY_CALLS),
    ],
)
def test_a_relay_has_as_many_calls_as_time_and_memory_allow(claimed_ns, size, calls):
    assert count_relay_calls(claimed_ns, size) == calls


def test_an_empty_call_is_known_by_the_best_of_some_relays():
    took = iter([[900, 50_000, 800], [700, 710, 720], [5_000] * 3, [800] * 3])
    assert take_empty_relay(lambda moves, calls: [CallSpan(ns, 0) for ns in next(took)]) == 710


def test_a_session_that_is_held_up_beside_a_move_counts_that_time():
    """The inputs are there meanwhile, or the outputs not looked at yet."""
    slack_ns, most_ns = handover.MOVE_SLACK_NS, 10_000.0
    assert to_span(Times(0, 600, 5_600, 5_900), most_ns) == CallSpan(5_000, 600 - slack_ns)
    assert to_span(Times(0, 400, 5_400, 5_700), most_ns) == CallSpan(5_000, 0)
    assert to_span(Times(0, 17_000, 22_000, 22_300), most_ns) == CallSpan(12_000, 10_000 - slack_ns)
    looked_ns = handover.LOOK_NS + 90
    assert to_span(Times(0, 400, 5_400, 5_400 + looked_ns), most_ns) == CallSpan(5_090, 0)


def test_a_move_is_known_by_moves_within_this_process():
    rows = torch.ones(3, 5, 1 << 20, dtype=torch.uint8)
    assert 0 < handover.own_move_ns(rows[0, :, :64], rows[2, :, :64]) < handover.own_move_ns(rows[0], rows[2])


def test_what_calls_are_given_lies_in_no_place_before(open_timer, monkeypatch):
    """A worker that a timer wakes would take it."""
    timer, worker = open_timer()
    seen = []

    fill = relay.Handover.run

    def run(moves, board, pid, is_over):
        seen.append(int(worker.trial.places.input_bytes(FEWEST_CALLS).sum()))
        return fill(moves, board, pid, is_over)

    monkeypatch.setattr(relay.Handover, "run", run)
    timer.confirm(CALL_NS)
    assert seen == [0] * FEWEST_RELAYS


def test_a_session_leaves_the_processor_that_its_worker_has_and_comes_back(monkeypatch):
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("this machine has one processor")
    shared = min(allowed)
    monkeypatch.setattr(handover, "processor_of", lambda stat: shared)
    monkeypatch.setattr(handover, "processors_beside", lambda one: frozenset({one}))
    with staying_apart(1) as stay_apart:
        assert os.sched_getaffinity(0) == allowed
        stay_apart()
        assert os.sched_getaffinity(0) == allowed - {shared}
    assert os.sched_getaffinity(0) == allowed


@pytest.fixture
def eight_processors(monkeypatch):
    """Two on each of four cores, of which this process may have six; return the affinities that are set."""
    affinity = [{0, 1, 2, 4, 5, 6}]
    monkeypatch.setattr(handover.os, "sched_getaffinity", lambda pid: affinity[-1])
    monkeypatch.setattr(handover.os, "sched_setaffinity", lambda pid, processors: affinity.append(processors))
    monkeypatch.setattr(handover, "processors_beside", lambda one: frozenset({one % 4, one % 4 + 4}))
    return affinity


@pytest.mark.parametrize(("ours", "moves_to"), [(1, {0, 2, 4, 6}), (5, {0, 2, 4, 6}), (2, None)])
def test_a_session_leaves_the_core_that_its_worker_has(eight_processors, monkeypatch, ours, moves_to):
    found = {"/proc/7/stat": 1, "/proc/thread-self/stat": ours}
    monkeypatch.setattr(handover, "processor_of", found.__getitem__)
    with staying_apart(7) as stay_apart:
        stay_apart()
        assert eight_processors[-1] == (moves_to or eight_processors[0])
    assert eight_processors[-1] == eight_processors[0]


def test_on_one_core_no_relay_is_run(eight_processors, monkeypatch):
    assert handover.can_relay()
    eight_processors.append({1, 5})
    assert not handover.can_relay()
    monkeypatch.setattr(handover, "usable_cores", lambda: 1)
    eight_processors.append({1, 2})
    assert not handover.can_relay()


def test_a_session_stays_where_its_worker_is_elsewhere(monkeypatch):
    allowed = os.sched_getaffinity(0)
    numbers = iter([0, 1, None])
    monkeypatch.setattr(handover, "processor_of", lambda stat: next(numbers))
    monkeypatch.setattr(handover, "processors_beside", lambda one: frozenset({one}))
    with staying_apart(1) as stay_apart:
        stay_apart()
        stay_apart()
        assert os.sched_getaffinity(0) == allowed


def test_the_processor_of_a_thread_is_told_by_the_system():
    assert handover.processor_of("/proc/thread-self/stat") in range(os.cpu_count())
    assert handover.processor_of("/proc/0/stat") is None


def test_the_addresses_of_rows_lie_a_stride_apart():
    rows = torch.zeros(4, 64, dtype=torch.uint8)[:, :16]
    ctypes.memset(handover.addresses(rows)[2], 7, 16)
    assert rows.sum(1).tolist() == [0, 0, 7 * 16, 0]
