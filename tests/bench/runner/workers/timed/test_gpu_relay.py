"""Relays on a GPU: what a call costs whose inputs are masked until the one before has committed to its outputs.

The worker and its GPU are played in the memory of a CPU, and so are the session's kernels.
"""

import ctypes
import hashlib
import os
import random
from contextlib import contextmanager

import pytest
import torch

from flashinfer_bench.bench.runner.workers.arena import open_memory_file
from flashinfer_bench.bench.runner.workers.timed import gpu_handover, gpu_relay
from flashinfer_bench.bench.runner.workers.timed.call_places import FEWEST_PLACES
from flashinfer_bench.bench.runner.workers.timed.confirmation import LEAST_SHARE, ClaimContradicted, Claimed
from flashinfer_bench.bench.runner.workers.timed.gpu_handover import LAUNCH_NS, WAITING_LAUNCH_NS, hand_out
from flashinfer_bench.bench.runner.workers.timed.gpu_relay import (
    HIDDEN_NS,
    HOST,
    MOST_RELAYS,
    START_NS,
    STRIDED_SHARE,
    UNCACHED_SHARE,
    GpuRelayTimer,
)
from flashinfer_bench.bench.runner.workers.timed.readings import (
    CREDITED_SHARE,
    HOST_RELAY_SHARE,
    RELAY_SHARE,
    raise_claim,
)
from flashinfer_bench.bench.runner.workers.timed.relay import RELAY_REFUSED_SHARE, SLACK_NS
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.worker.gpu_relay.board import BOARD_BYTES, TOLD, WORDS_OF_CALL, GpuBoard
from flashinfer_bench.worker.gpu_relay.kernels import split
from tests.kit.trials import make_trial

pytestmark = pytest.mark.cpu
CALL_NS = 80_000
EMPTY_NS = 4_000
LEAST_NS = 3_000
GAP_NS = 1_100
COST_NS = CALL_NS - EMPTY_NS - START_NS
HOST_COST_NS = CALL_NS - EMPTY_NS
"""What a call costs in a graph of all of them, and where the host launches each."""
TICK_NS = 100
"""Each look at the clock takes so long."""


def change(piece, key):
    """Mask the bytes of a piece, or unmask them."""
    held = (ctypes.c_uint8 * piece.nbytes).from_address(piece.address)
    held[:] = bytes(one ^ mask for one, mask in zip(held, random.Random(key).randbytes(piece.nbytes), strict=True))


def digest_of(outputs):
    """Return what a call commits to that leaves these outputs."""
    told = []
    for some in split(outputs):
        drawn = hashlib.blake2b(b"".join(one.numpy().tobytes() for one in some), digest_size=16).digest()
        told += [int.from_bytes(drawn[at : at + 8], "little") | 1 for at in (0, 8)]
    return told


class PlayedDesk:
    """The session's kernels."""

    empty_ns = EMPTY_NS, LEAST_NS

    def __init__(self):
        self.rows = []
        self.masked = []
        self.before = []
        """What each call was given, before it was masked."""

    def find_empty(self, rows, outputs):
        self.rows = rows
        return self.empty_ns

    def mask(self, rows, keys):
        self.before = [read(row) for row in rows]
        assert [row.nbytes for row in rows] == [row.nbytes for row in self.rows]
        assert not {*self.before} & {read(row) for row in self.rows}, "a worker has seen what is not masked yet"
        self.masked += keys
        for row, key in zip(rows, keys, strict=True):
            change(row, key)

    def digests(self, outputs):
        return [digest_of(own) for own in outputs]


def read(piece):
    return ctypes.string_at(piece.address, piece.nbytes)


class PlayedBoard(GpuBoard):
    """Has a call made as soon as its key is given."""

    def __init__(self, fd, make):
        super().__init__(fd)
        self._make = make

    def give(self, call, key):
        super().give(call, key)
        self._make(call, key)

    def commit(self, call, words):
        begin = TOLD + call * WORDS_OF_CALL
        self._words[begin : begin + len(words)] = words


class PlayedWorker:
    """Answers a relay: a call takes `call_ns` from its key to what it commits to, and computes y = 2 x.

    `late` are the calls that compute nothing before they have committed. It answers when `ends_after` have.
    """

    def __init__(self, trial, desk, call_ns=CALL_NS, late=(), ends_after=None):
        self.trial = trial
        self.desk = desk
        self.call_ns = call_ns
        self.late = late
        self.ends_after = len(trial.places) if ends_after is None else ends_after
        self.now = 0
        self.asked = []
        self.seen = []
        """Of each call the sum of its inputs."""
        self.answer = {"joined": True}
        self.then = lambda: None
        """Done when all calls have committed, before the answer."""

    @property
    def relays(self):
        return len(self.asked)

    @contextmanager
    def open(self):
        fd = open_memory_file(BOARD_BYTES)
        self.board = PlayedBoard(fd, self.make)
        try:
            yield self.board, fd, BOARD_BYTES
        finally:
            os.close(fd)

    def __call__(self, verb, expected, what, *, along, **fields):
        assert (verb, len(along.fds)) == ("relay", 1)
        assert os.fstat(along.fds[0]).st_size == BOARD_BYTES
        self.asked.append(fields)
        assert not any(self.board.has_key(call) for call in fields["indices"])
        self.board.tell_launched(len(fields["indices"]))
        self.board.tell_ready(1)
        along.meanwhile(lambda: True)
        self.then()
        return expected.model_validate({"id": 1, "relayed": len(fields["indices"]), **self.answer})

    def make(self, call, key):
        rows = self.desk.rows
        assert not {*self.desk.before} & {read(row) for row in rows[call:]}
        change(rows[call], key)
        assert read(rows[call]) == self.desk.before[call]
        self.now += (self.call_ns if isinstance(self.call_ns, int) else next(self.call_ns)) - TICK_NS
        if call not in self.late:
            self.compute(call)
        self.board.commit(call, digest_of(self.trial.places.outputs(call)))
        if call in self.late:
            self.compute(call)
        if call + 1 < self.ends_after:
            self.board.tell_ready(call + 2)

    def compute(self, call):
        (x,) = self.trial.places.inputs(call)
        self.seen.append(float(x.sum()))
        torch.mul(x, 2, out=self.trial.places.outputs(call)[0])

    def now_ns(self):
        self.now += TICK_NS
        return self.now


@pytest.fixture
def open_timer(arena, monkeypatch):
    """Return a timer of relays and the worker that is played; looks at the clock take TICK_NS."""

    def opened(*, operations=3, settles=False, gap_ns=0, wanted=2, has_setup=False, **worker):
        trial = make_trial(arena, most=FEWEST_PLACES, wanted=wanted, has_setup=has_setup, device_type="cuda")
        trial.places.input_bytes(FEWEST_PLACES).zero_()
        desk = PlayedDesk()
        played = PlayedWorker(trial, desk, **worker)
        monkeypatch.setattr(gpu_relay, "open_gpu_board", played.open)
        monkeypatch.setattr(gpu_handover, "now_ns", played.now_ns)
        claimed = Claimed(CALL_NS, operations is None, 1 if operations is None else operations, settles)
        return GpuRelayTimer(played, trial, desk, claimed, gap_ns=gap_ns), played

    return opened


def told_ns(found, claimed_ns):
    """Return the latency that a claim is told as."""
    return 1e6 * raise_claim(claimed_ns / 1e6, found.to_record(), "cuda", found.least_ns / 1e6)


def test_a_call_costs_what_it_takes_beyond_an_empty_one(open_timer):
    timer, worker = open_timer()
    found = timer.confirm(COST_NS)
    assert found.to_record() == {
        "confirmed": True,
        "relay_ms": pytest.approx(COST_NS / 1e6),
        "relay_calls": FEWEST_PLACES,
    }
    assert worker.relays == 1
    assert told_ns(found, COST_NS) == COST_NS
    assert timer.most_ns == COST_NS + EMPTY_NS


def test_half_of_the_calls_count(open_timer):
    times_ns = [CALL_NS, 2 * CALL_NS, 10_000, CALL_NS, 90 * CALL_NS]
    timer, _ = open_timer(call_ns=iter(times_ns))
    assert timer.confirm(COST_NS).relay_ns == COST_NS


def test_the_best_relay_counts(open_timer):
    slow, usual = [3 * CALL_NS] * FEWEST_PLACES, [CALL_NS] * FEWEST_PLACES
    for times_ns, relays in (([*slow, *usual], 2), ([*slow, *slow, *usual], 3), ([*slow, *slow, *slow, *usual], 4)):
        timer, worker = open_timer(call_ns=iter(times_ns))
        assert timer.confirm(COST_NS).relay_ns == COST_NS
        assert worker.relays == relays


@pytest.mark.parametrize("operations", [0, 3])
@pytest.mark.parametrize("beyond_ns", [-500, 100, START_NS, START_NS + 100, 4_000])
def test_no_call_costs_less_than_a_launch(open_timer, beyond_ns, operations):
    """What is left of a call that takes no longer than an empty one is the launch gap, also where the worker says that
    it launches nothing."""
    timer, worker = open_timer(call_ns=EMPTY_NS + int(beyond_ns), gap_ns=GAP_NS, operations=operations)
    found = timer.confirm(5_000)
    assert (found.relay_ns, found.why_not, worker.relays) == (max(0, beyond_ns - START_NS) + GAP_NS, None, 1)


def test_no_late_start_is_taken_off_calls_that_the_host_launches(open_timer):
    """Their share leaves more open than that."""
    timer, worker = open_timer(gap_ns=GAP_NS)
    assert timer.confirm(COST_NS + GAP_NS).relay_ns == COST_NS + GAP_NS
    worker.answer = {"joined": False}
    assert timer.confirm(COST_NS).relay_ns == COST_NS + START_NS + GAP_NS


def test_what_the_worker_is_asked_for(open_timer):
    timer, worker = open_timer(operations=3, settles=True)
    timer.confirm(COST_NS)
    places = worker.trial.places
    assert worker.asked == [
        {
            "indices": list(range(FEWEST_PLACES)),
            "part": "run",
            "operations": 3,
            "settles": True,
            "size": BOARD_BYTES,
            "stride": places.stride,
            "inputs": places.input_bytes(1).shape[1],
        }
    ]
    assert [row.address for row in worker.desk.rows] == [places.inputs(at)[0].data_ptr() for at in range(FEWEST_PLACES)]


@pytest.mark.parametrize(("has_setup", "part", "operations"), [(False, "run", None), (True, "both", 3)])
def test_calls_are_in_no_graph_where_they_wait_for_the_gpu_or_have_a_setup(open_timer, has_setup, part, operations):
    timer, worker = open_timer(has_setup=has_setup, operations=operations)
    timer.confirm(COST_NS)
    assert {(fields["part"], fields["operations"]) for fields in worker.asked} == {(part, None)}


@pytest.mark.parametrize(
    ("has_setup", "operations", "launch_ns"),
    [(False, None, WAITING_LAUNCH_NS), (True, 3, WAITING_LAUNCH_NS), (False, 0, LAUNCH_NS), (False, 3, LAUNCH_NS)],
)
def test_of_calls_that_may_wait_inside_no_launch_is_waited_for_long(
    open_timer, monkeypatch, has_setup, operations, launch_ns
):
    waits_ns = []

    def noted(board, keys, groups, is_over, launch_ns):
        waits_ns.append(launch_ns)
        return hand_out(board, keys, groups, is_over, launch_ns)

    monkeypatch.setattr(gpu_relay, "hand_out", noted)
    timer, _ = open_timer(has_setup=has_setup, operations=operations)
    timer.confirm(COST_NS)
    assert waits_ns == [launch_ns]


def test_inputs_come_into_the_places_masked_and_are_made_elsewhere(open_timer, monkeypatch):
    """A worker's GPU is not held still: it sees whatever comes into the places. The played desk looks there, too."""
    timer, worker = open_timer()
    write, given = worker.trial.contents.write_all, []

    def noted(numbers, into, writer):
        given.extend(slot for own in into for slot in own)
        write(numbers, into, writer)

    monkeypatch.setattr(worker.trial.contents, "write_all", noted)
    timer.confirm(COST_NS)
    block = worker.trial.places.arena.block
    assert len(given) == FEWEST_PLACES
    assert not any(block.data_ptr() <= slot.data_ptr() < block.data_ptr() + block.nbytes for slot in given)
    assert len(worker.seen) == FEWEST_PLACES
    assert all(worker.seen)


def test_each_relay_has_inputs_and_keys_of_its_own(open_timer):
    timer, worker = open_timer(wanted=FEWEST_PLACES)
    timer.confirm(0.5 * COST_NS)
    keys = worker.desk.masked
    assert len(keys) == len({*keys}) == MOST_RELAYS * FEWEST_PLACES
    reads = worker.trial.reader.reads("relay")
    assert len(reads) == FEWEST_PLACES
    assert all(torch.equal(one.outputs[0], one.inputs[0] * 2) and one.way == "relay" for one in reads)
    assert len({float(one.inputs[0].sum()) for one in reads}) == FEWEST_PLACES


@pytest.mark.parametrize("best", range(MOST_RELAYS))
def test_the_calls_that_are_compared_are_of_the_relay_that_counts(open_timer, best):
    times_ns = [CALL_NS + (relay != best) for relay in range(MOST_RELAYS) for _ in range(FEWEST_PLACES)]
    timer, worker = open_timer(wanted=FEWEST_PLACES, call_ns=iter(times_ns))
    timer.confirm(0.5 * COST_NS)
    sums = {float(one.inputs[0].sum()) for one in worker.trial.reader.reads("relay")}
    assert sums == {*worker.seen[best * FEWEST_PLACES :][:FEWEST_PLACES]}


@pytest.mark.parametrize("step", ["digests", "look"])
def test_what_is_judged_is_what_was_committed_to(open_timer, monkeypatch, step):
    """A worker may exchange outputs behind any look at them."""
    timer, worker = open_timer(wanted=FEWEST_PLACES)

    def exchanging(usual):
        def exchanged(*given, **more):
            for index in range(FEWEST_PLACES):
                worker.trial.places.outputs(index)[0].zero_()
            return usual(*given, **more)

        return exchanged

    where, name = (worker.trial.reader, "look") if step == "look" else (worker.desk, "digests")
    monkeypatch.setattr(where, name, exchanging(getattr(where, name)))
    timer.confirm(COST_NS)
    reads = worker.trial.reader.reads()
    assert len(reads) >= FEWEST_PLACES
    assert all(torch.equal(one.outputs[0], one.inputs[0] * 2) for one in reads)


@pytest.mark.parametrize("late", range(FEWEST_PLACES))
def test_a_call_that_commits_before_its_outputs_are_there_is_refused(open_timer, late):
    timer, _ = open_timer(late=[late])
    with pytest.raises(SolutionFailure, match="an output was written after its call had ended") as refused:
        timer.confirm(COST_NS)
    assert (refused.value.status, type(refused.value)) == ("RUNTIME_ERROR", SolutionFailure)


def test_an_output_that_changes_later_is_refused(open_timer):
    timer, worker = open_timer()
    worker.then = lambda: worker.trial.places.outputs(2)[0][7:8].add_(1)
    with pytest.raises(SolutionFailure, match="an output was written after its call had ended"):
        timer.confirm(COST_NS)


@pytest.mark.parametrize("ends_after", range(1, FEWEST_PLACES))
def test_a_worker_that_answers_before_all_calls_have_committed_is_refused(open_timer, ends_after):
    timer, worker = open_timer(ends_after=ends_after)
    worker.then = lambda: [worker.compute(at) for at in range(FEWEST_PLACES)]
    with pytest.raises(SolutionFailure, match="an output was written after its call had ended"):
        timer.confirm(COST_NS)
    assert worker.relays == 1


SHARES = [
    ({"joined": True}, RELAY_SHARE["cuda"], COST_NS),
    ({"joined": False}, HOST_RELAY_SHARE, HOST_COST_NS),
    ({"joined": True, "strided": True}, STRIDED_SHARE, COST_NS),
    ({"joined": False, "strided": True}, HOST_RELAY_SHARE, HOST_COST_NS),
]


@pytest.mark.parametrize(("answer", "share", "cost_ns"), SHARES)
def test_a_latency_is_told_as_no_less_than_a_share_of_what_a_call_costs(open_timer, answer, share, cost_ns):
    timer, worker = open_timer()
    worker.answer = answer
    found = timer.confirm(0.76 * cost_ns)
    assert found.why_not is None
    assert found.relay_ns == cost_ns
    assert found.relay_share == share
    assert found.least_ns == pytest.approx(share * cost_ns)
    assert told_ns(found, 0.76 * cost_ns) == pytest.approx(share * cost_ns)
    assert worker.relays == MOST_RELAYS


@pytest.mark.parametrize(("answer", "share", "cost_ns"), SHARES)
@pytest.mark.parametrize("is_large", [False, True])
def test_of_calls_that_no_cache_holds_less_is_told(open_timer, monkeypatch, answer, share, cost_ns, is_large):
    timer, worker = open_timer()
    worker.answer = answer
    monkeypatch.setattr(gpu_relay, "CACHED_BYTES", worker.trial.places.stride - is_large)
    found = timer.confirm(COST_NS)
    assert found.relay_share == (min(share, UNCACHED_SHARE) if is_large else share)


@pytest.mark.parametrize("best", range(MOST_RELAYS))
@pytest.mark.parametrize("is_joined", [True, False])
def test_whether_calls_were_one_graph_is_what_the_best_relay_says(open_timer, best, is_joined):
    times_ns = [CALL_NS + 2_000 * (relay != best) for relay in range(MOST_RELAYS) for _ in range(FEWEST_PLACES)]
    timer, worker = open_timer(call_ns=iter(times_ns))
    worker.then = lambda: worker.answer.update(joined=is_joined is (worker.relays - 1 == best))
    found = timer.confirm(0.5 * COST_NS)
    assert worker.relays == MOST_RELAYS
    assert found.relay_share == (RELAY_SHARE["cuda"] if is_joined else HOST_RELAY_SHARE)
    assert found.why_not.endswith(HOST) is not is_joined


@pytest.mark.parametrize(("answer", "share", "cost_ns"), SHARES)
def test_relays_are_run_again_before_a_latency_is_raised(open_timer, answer, share, cost_ns):
    for claimed_ns, relays in ((1.01 * share * cost_ns, 1), (0.99 * share * cost_ns, MOST_RELAYS)):
        timer, worker = open_timer()
        worker.answer = answer
        timer.confirm(claimed_ns)
        assert worker.relays == relays


def test_a_claim_below_relays_is_doubted(open_timer):
    for share, is_doubted in ((LEAST_SHARE + 0.01, False), (LEAST_SHARE - 0.01, True), (RELAY_REFUSED_SHARE, True)):
        timer, _ = open_timer()
        told = f"a call in a relay takes {COST_NS / 1e6:.6g} ms"
        assert timer.confirm(share * COST_NS).why_not == (told if is_doubted else None)


@pytest.mark.parametrize(("share", "failure"), [(0.24, ClaimContradicted), (0.05, SolutionFailure)])
def test_a_claim_far_below_relays_is_refused_with_both_figures(open_timer, share, failure):
    timer, _ = open_timer()
    told = rf"claims {share * COST_NS / 1e6:.6g} ms a call; a call in a relay takes {COST_NS / 1e6:.6g} ms"
    with pytest.raises(SolutionFailure, match=rf"{told}, as timed from outside \({MOST_RELAYS} relays\)") as refused:
        timer.confirm(share * COST_NS)
    assert (refused.value.status, type(refused.value)) == ("RUNTIME_ERROR", failure)


@pytest.mark.parametrize("share", [LEAST_SHARE - 0.01, 0.24, 0.05])
@pytest.mark.parametrize("is_believed", [False, True])
def test_a_claim_is_not_refused_where_the_host_may_be_what_takes_the_time(open_timer, share, is_believed):
    """It is told as what relays say all the same."""
    timer, worker = open_timer()
    worker.answer = {"joined": False}
    found = timer.confirm(share * HOST_COST_NS, is_believed=is_believed)
    told = f"a call in a relay takes {HOST_COST_NS / 1e6:.6g} ms, and the host may be what holds it up: {HOST}"
    assert found.why_not == told
    assert told_ns(found, share * HOST_COST_NS) == pytest.approx(HOST_RELAY_SHARE * HOST_COST_NS)
    assert worker.relays == MOST_RELAYS


def test_a_claim_that_lies_little_below_is_not_refused(open_timer):
    """Another program may have held up each call."""
    timer, _ = open_timer(call_ns=SLACK_NS + 700 + CALL_NS - int(COST_NS))
    assert timer.confirm(700).why_not is not None
    timer, _ = open_timer(call_ns=SLACK_NS + 701 + CALL_NS - int(COST_NS))
    with pytest.raises(SolutionFailure):
        timer.confirm(700)


@pytest.mark.parametrize("share", [0.24, 0.05])
def test_the_claim_of_a_reference_is_not_refused_and_raised_like_others(open_timer, share):
    timer, _ = open_timer()
    found = timer.confirm(share * COST_NS, is_believed=True)
    assert found.why_not is not None
    assert told_ns(found, share * COST_NS) == pytest.approx(RELAY_SHARE["cuda"] * COST_NS)


def test_without_relays_nothing_is_known_of_what_a_call_costs(open_timer):
    timer, _ = open_timer()
    assert timer.most_ns == float("inf")
    assert timer.leaves_open(1e12)


@pytest.mark.parametrize("least_ns", [LEAST_NS, EMPTY_NS, EMPTY_NS + 500])
def test_bursts_follow_where_one_kernel_for_all_could_have_spared_what_they_would_show(
    open_timer, monkeypatch, least_ns
):
    """To unmask and commit is more work for more bytes; who computes along with it has that for nothing."""
    monkeypatch.setattr(PlayedDesk, "empty_ns", (EMPTY_NS, least_ns))
    timer, _ = open_timer()
    timer.confirm(COST_NS)
    most_ns = CREDITED_SHARE["cuda"] * (COST_NS + HIDDEN_NS + max(0, EMPTY_NS - least_ns))
    assert timer.leaves_open(most_ns - 1)
    assert not timer.leaves_open(most_ns + 1)


@pytest.mark.parametrize(("cost_ns", "is_open"), [(-9_000, True), (EMPTY_NS, True), (EMPTY_NS + 1, False)])
def test_bursts_follow_all_calls_that_take_no_longer_than_an_empty_one(open_timer, cost_ns, is_open):
    timer, _ = open_timer(call_ns=CALL_NS - int(COST_NS) + cost_ns)
    timer.confirm(COST_NS)
    assert timer.leaves_open(COST_NS) is is_open
