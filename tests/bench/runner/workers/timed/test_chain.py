"""Gated chains: what a call costs whose inputs are masked until the one before has committed to its outputs.

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
from flashinfer_bench.bench.runner.workers.timed import chain
from flashinfer_bench.bench.runner.workers.timed.chain import (
    ChainTimer,
    ChainTools,
    count_chain_calls,
    count_chain_reads,
    draw_keys,
    hand_out,
    is_late_after,
    open_chain_tools,
    open_gpu_board,
)
from flashinfer_bench.bench.runner.workers.timed.confirmation import ClaimContradicted, Claimed
from flashinfer_bench.bench.runner.workers.timed.readings import raise_claim
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.timing.clocks import CaptureRefused
from flashinfer_bench.timing.driver import DriverError
from flashinfer_bench.worker.gpu_relay.board import GpuBoard
from flashinfer_bench.worker.gpu_relay.kernels import Piece
from tests.kit.trials import make_trial

pytestmark = pytest.mark.cpu
TICK_NS = 100
"""Each look at the clock takes so long."""
BOARD_BYTES = 4096
CALLS = 5
CALL_NS, EMPTY_NS, LEAST_NS, GAP_NS = 80_000, 4_000, 3_000, 1_100
HOST_COST_NS = CALL_NS - EMPTY_NS
COST_NS = HOST_COST_NS - 1_250
LATE = "an output was written after its call had ended"


class PlayedBoard(GpuBoard):
    """A board whose calls are over as soon as they have their key; each takes a while on the board's own clock.

    `lost` are the calls that commit to nothing, `make` makes a call and returns what it commits to.
    """

    def __init__(self, fd, size=BOARD_BYTES, *, takes_ns=(), lost=(), make=lambda call, key: [key, key + 1]):
        super().__init__(fd, size)
        self.takes_ns, self.lost, self.make = iter(takes_ns), lost, make
        self.now, self.tick_ns, self.launched_at = 0, TICK_NS, None
        self.given_at = []

    def now_ns(self):
        self.now += self.tick_ns
        if self.launched_at is not None and self.now >= self.launched_at:
            self.tell_launched(CALLS)
        return self.now

    def give(self, call, key):
        is_new = not self.has_key(call)
        super().give(call, key)
        if is_new:
            self.given_at.append(self.now)
            self.now += next(self.takes_ns, 0)
        if is_new and call not in self.lost:
            assert not self.has_key(call + 1), "a key comes before the call before has committed"
            self.commit(call, self.make(call, key))
            self.tell_ready(call + 2)

    def commit(self, call, words):
        self._board.told[call][: len(words)] = words


@pytest.fixture
def open_played(monkeypatch):
    """Return a board whose first call waits, and whose calls are all launched; the session has its clock."""
    opened = []

    def open_board(**traits):
        opened.append(open_memory_file(BOARD_BYTES))
        board = PlayedBoard(opened[-1], **traits)
        board.tell_ready(1)
        board.tell_launched(CALLS)
        monkeypatch.setattr(chain, "now_ns", board.now_ns)
        return board

    yield open_board
    for fd in opened:
        os.close(fd)


def never():
    return False


def test_a_call_takes_from_its_key_to_what_it_commits_to(open_played):
    takes_ns, keys = [5_000, 90_000, 0, 7_000], draw_keys(4)
    found = hand_out(open_played(takes_ns=takes_ns), keys, 1, never)
    assert found == [(ns + TICK_NS, [key, key + 1]) for ns, key in zip(takes_ns, keys, strict=True)]


def test_a_call_that_commits_in_groups_is_over_when_the_last_has_come(open_played):
    board, pieces = open_played(lost=[0]), [[1, 2], [1, 2, 3], [0, 2, 3, 4], [1, 2, 3, 4]]

    def commit_more():
        board.commit(0, pieces.pop(0))
        return False

    assert [one.digest for one in hand_out(board, [9], 2, commit_more)] == [[1, 2, 3, 4]]
    assert pieces == []


@pytest.mark.parametrize("lost", range(CALLS))
@pytest.mark.parametrize("commits_at_last", [False, True])
def test_a_worker_that_has_answered_is_not_waited_for_and_gets_no_more_keys(open_played, lost, commits_at_last):
    board = open_played(lost=[lost])
    answers = (lambda: board.commit(lost, [3, 4]) or True) if commits_at_last else (lambda: True)
    assert len(hand_out(board, draw_keys(CALLS), 1, answers)) == lost + commits_at_last
    assert [board.has_key(call) for call in range(CALLS)] == [call <= lost for call in range(CALLS)]


@pytest.mark.parametrize("launch_ns", [300_000, 50_000_000])
@pytest.mark.parametrize("share", [0, 0.5, 1, 2])
def test_a_call_gets_its_key_when_it_is_launched_or_after_a_while(open_played, launch_ns, share):
    board = open_played()
    board.tell_launched(0)
    board.launched_at, board.tick_ns = share * launch_ns, launch_ns // 1_000
    hand_out(board, [5], 1, never, launch_ns)
    assert board.given_at == [pytest.approx(min(share, 1) * launch_ns, abs=6 * board.tick_ns)]


def test_before_each_key_the_gpu_rests_as_long_as_the_call_before_took_within_bounds(open_played):
    takes_ns = [20_000, 700_000, 30_000_000, 0, 0]
    board = open_played(takes_ns=takes_ns)
    hand_out(board, draw_keys(len(takes_ns)), 1, never)
    ends = [at + ns for at, ns in zip(board.given_at, takes_ns, strict=True)]
    rests = [at - end for at, end in zip(board.given_at, [0, *ends], strict=False)]
    assert rests == pytest.approx([0, 20_000, 700_000, 10_000_000, 0], abs=10 * TICK_NS)


def test_keys_are_new_and_none_is_0(monkeypatch):
    keys = draw_keys(1_000) + draw_keys(1_000)
    assert len({*keys}) == 2_000
    assert 0 < min(keys) <= max(keys) < 1 << 63
    monkeypatch.setattr(chain, "randbits", lambda bits: 0)
    assert 0 not in draw_keys(3)


def test_the_kernels_code_stands_behind_the_board_that_a_worker_gets(monkeypatch):
    image = bytes(range(1, 256)) * 17
    monkeypatch.setattr(chain, "chain_image", lambda: image)
    with open_gpu_board() as (board, fd, size):
        theirs = GpuBoard(fd, size)
        board.give(0, 1)
        assert (theirs.text(BOARD_BYTES, size).rstrip(b"\0"), theirs.has_key(0)) == (image, True)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_deadline_counts_from_when_it_is_set():
    assert (is_late_after(1e6)(), is_late_after(-1.0)()) == (False, True)


class PlayedKernels:
    """The session's kernels; `launched` is what they were launched for."""

    def __init__(self, image, device):
        self.launched = []
        self.digests = iter(())

    def warm_up(self, board):
        pass

    def unmask(self, row, key):
        self.launched.append((row, ctypes.c_int64.from_address(key).value))

    def await_and_unmask(self, slot, row, ready, count):
        self.launched.append((slot, row, ready, count))

    def commit(self, pieces, told):
        self.launched.append((list(pieces), told))
        for at, word in enumerate(next(self.digests, ())):
            ctypes.c_uint64.from_address(told + 8 * at).value = word


@pytest.fixture
def desk(monkeypatch):
    """A session's desk whose kernels are played. A chain of its own is replayed at once; its first call waits then."""

    def capture(launch):
        if len(made.captures) in made.refused:
            made.captures.append(launch)
            raise CaptureRefused("the capture ended early")
        made.captures.append(launch)
        launch()
        return lambda: made._board.tell_ready(1)

    monkeypatch.setattr(chain, "ChainKernels", PlayedKernels)
    monkeypatch.setattr(chain, "MappedBoard", PlayedBoard)
    monkeypatch.setattr(chain, "chain_image", lambda: b"")
    monkeypatch.setattr(chain, "capture", capture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    made = ChainTools(torch.device("cpu"))
    made.captures, made.refused, made.launched = [], [], made._kernels.launched
    monkeypatch.setattr(chain, "now_ns", made._board.now_ns)
    assert not made._board.has_key(0)
    return made


def test_inputs_are_masked_each_by_the_key_of_its_call(desk):
    rows, keys = [Piece(16 * at, 32) for at in range(3)], draw_keys(3)
    desk.mask(rows, keys)
    assert desk.launched == list(zip(rows, keys, strict=True))


@pytest.mark.parametrize(("outputs", "words"), [(1, 2), (4, 2), (5, 4)])
def test_what_calls_should_have_committed_to_is_told_as_the_board_tells_it(desk, outputs, words):
    digests = [[(1 << 64) - 1 - call - at for at in range(words)] for call in range(3)]
    desk._kernels.digests = iter(digests)
    held = [[torch.zeros(3, 2) for _ in range(outputs)] for _ in range(3)]
    assert desk.digests(held) == digests
    assert [pieces for pieces, _ in desk.launched] == [[Piece(one.data_ptr(), 24) for one in own] for own in held]


def find_empty(desk, size, *takes_ns):
    """Return what an empty call takes, where calls of a few bytes, and whole ones, take so long in turn."""
    desk._board.takes_ns = (ns for own in takes_ns for _ in range(4) for ns in own)
    outputs = [[torch.zeros(8), torch.zeros(size)] for _ in range(CALLS)]
    return desk.find_empty([Piece(16 * at, size) for at in range(CALLS)], outputs)


FEW, WHOLE = [5_000, 3_000, 4_000, 9_000, 9_000], [8_000, 7_000, 7_500, 9_000, 9_000]
FOUND = 7_000 + TICK_NS, 3_000 + TICK_NS


def test_what_an_empty_call_takes_is_the_least_of_all_and_measured_once_for_calls_of_a_size(desk):
    """What a worker leaves on the GPU makes it longer."""
    assert find_empty(desk, 1_024, FEW, WHOLE) == FOUND
    assert [row.nbytes for _, row, *_ in desk.launched[::2]] == [16] * CALLS + [1_024] * CALLS
    assert [[one.nbytes for one in pieces] for pieces, _ in desk.launched[1::2]] == [[4]] * 5 + [[32, 4_096]] * 5
    board = desk._board
    waits = [(board.key_at(at), board.ready_at, at + 1) for at in range(CALLS)] * 2
    assert [(slot, ready, count) for slot, _, ready, count in desk.launched[::2]] == waits
    assert [told for _, told in desk.launched[1::2]] == [board.told_at(at) for at in range(CALLS)] * 2
    assert find_empty(desk, 1_024) == FOUND
    assert find_empty(desk, 16, [3_500] * CALLS, [2_500] * CALLS) == (2_500 + TICK_NS, 3_000 + TICK_NS)
    assert len(desk.captures) == 4


@pytest.mark.parametrize(("lost", "refused"), [([1, 2, 3, 4], []), ([4], []), ((), [0]), ((), [1])])
def test_where_a_gpu_is_held_up_nothing_is_taken_off_and_nothing_kept(desk, monkeypatch, lost, refused):
    monkeypatch.setattr(chain, "is_late_after", lambda limit_s: lambda: True)
    desk._board.lost, desk.refused = lost, refused
    assert find_empty(desk, 16, [10**6] * CALLS, [10**6] * CALLS) == (0, 0)
    assert refused == [0] or all(map(desk._board.has_key, range(CALLS)))
    desk._board.lost, desk.refused = (), []
    assert find_empty(desk, 16, FEW, WHOLE) == FOUND


@pytest.mark.parametrize(
    ("cores", "error", "is_open"),
    [(2, None, True), (1, None, False), (2, OSError("no libcuda"), False), (2, DriverError("no"), False)],
)
def test_chains_need_two_cores_and_a_driver_that_takes_the_kernels(monkeypatch, cores, error, is_open):
    def make(device):
        if error is not None:
            raise error
        return device

    monkeypatch.setattr(chain, "ChainTools", make)
    monkeypatch.setattr(chain, "usable_cores", lambda: cores)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    open_chain_tools.cache_clear()
    assert (open_chain_tools(torch.device("cuda", 7)) is not None) is is_open
    open_chain_tools.cache_clear()


def read(piece):
    return ctypes.string_at(piece.address, piece.nbytes)


def change(piece, key):
    """Mask the bytes of a piece, or unmask them."""
    held = (ctypes.c_uint8 * piece.nbytes).from_address(piece.address)
    held[:] = bytes(one ^ mask for one, mask in zip(held, random.Random(key).randbytes(piece.nbytes), strict=True))


def digest_of(outputs):
    drawn = hashlib.blake2b(b"".join(one.numpy().tobytes() for one in outputs), digest_size=16).digest()
    return [int.from_bytes(drawn[at : at + 8], "little") | 1 for at in (0, 8)]


class PlayedDesk:
    """The session's kernels; `before` is what each call was given, before it was masked."""

    empty_ns = EMPTY_NS, LEAST_NS

    def __init__(self):
        self.keys, self.before = [], []

    def find_empty(self, rows, outputs):
        self.rows = rows
        return self.empty_ns

    def mask(self, rows, keys):
        self.before = [read(row) for row in rows]
        assert not {*self.before} & {read(row) for row in self.rows}, "a worker has seen what is not masked yet"
        self.keys += keys
        for row, key in zip(rows, keys, strict=True):
            change(row, key)

    def digests(self, outputs):
        return [digest_of(own) for own in outputs]


class PlayedWorker:
    """Runs chains: a call takes the next of `takes_ns` from its key to what it commits to, and computes y = 2 x.

    `late` are the calls that compute nothing before they have committed; those from `ends_after` on never commit.
    """

    def __init__(self, trial, takes_ns=(), late=(), ends_after=CALLS):
        self.trial, self.desk, self.late, self.ends_after = trial, PlayedDesk(), late, ends_after
        self.takes_ns = iter(takes_ns)
        self.asked, self.sums, self.answer, self.then = [], [], {"joined": True}, lambda: None

    @contextmanager
    def open(self):
        fd = open_memory_file(BOARD_BYTES)
        takes_ns = (next(self.takes_ns, CALL_NS) - TICK_NS for _ in iter(int, 1))
        lost = range(self.ends_after, CALLS)
        self.board = PlayedBoard(fd, takes_ns=takes_ns, lost=lost, make=self.make)
        self.patch(chain, "now_ns", self.board.now_ns)
        try:
            yield self.board, fd, BOARD_BYTES
        finally:
            os.close(fd)

    def __call__(self, verb, expected, what, *, along, **fields):
        assert os.fstat(along.fds[0]).st_size == BOARD_BYTES
        self.asked.append((verb, fields))
        self.board.tell_launched(CALLS)
        self.board.tell_ready(1)
        along.meanwhile(lambda: True)
        self.then()
        return expected.model_validate({"id": 1, "relayed": CALLS, **self.answer})

    def make(self, call, key):
        rows, outputs = self.desk.rows, self.trial.places.outputs(call)
        assert not {*self.desk.before} & {read(row) for row in rows[call:]}
        change(rows[call], key)
        assert read(rows[call]) == self.desk.before[call]
        if call not in self.late:
            self.compute(call)
        digest = digest_of(outputs)
        self.compute(call)
        return digest

    def compute(self, call):
        (x,) = self.trial.places.inputs(call)
        self.sums.append(float(x.sum()))
        torch.mul(x, 2, out=self.trial.places.outputs(call)[0])


@pytest.fixture
def open_timer(arena, monkeypatch):
    """Return a timer of chains and the worker that is played."""

    def opened(*, operations=3, settles=False, gap_ns=0, wanted=2, has_setup=False, **worker):
        trial = make_trial(arena, most=CALLS, wanted=wanted, has_setup=has_setup, device_type="cuda")
        trial.places.input_bytes(CALLS).zero_()
        played = PlayedWorker(trial, **worker)
        played.patch = monkeypatch.setattr
        monkeypatch.setattr(chain, "open_gpu_board", played.open)
        claimed = Claimed(CALL_NS, operations is None, operations or 0, settles)
        return ChainTimer(played, trial, played.desk, claimed, calls=len(trial.places), gap_ns=gap_ns), played

    return opened


@pytest.mark.parametrize(
    ("takes_ns", "gap_ns", "joined", "cost_ns"),
    [
        ([], 0, True, COST_NS),
        ([], GAP_NS, True, COST_NS + GAP_NS),
        ([], GAP_NS, False, HOST_COST_NS + GAP_NS),
        ([CALL_NS, 2 * CALL_NS, 10_000, CALL_NS, 90 * CALL_NS], 0, True, COST_NS),
        ([EMPTY_NS + 1_000] * CALLS, GAP_NS, True, GAP_NS),
        ([EMPTY_NS + 1_300] * CALLS, GAP_NS, True, 50 + GAP_NS),
    ],
    ids=["usual", "a gap", "the host launches", "the median", "empty", "nearly empty"],
)
def test_a_call_costs_what_it_takes_beyond_an_empty_one(open_timer, takes_ns, gap_ns, joined, cost_ns):
    timer, worker = open_timer(takes_ns=takes_ns, gap_ns=gap_ns)
    worker.answer = {"joined": joined}
    found = timer.confirm(cost_ns)
    assert (found.chain_ns, found.chain_calls, found.bound, found.why_not) == (cost_ns, CALLS, "chain", None)
    assert timer.most_ns == cost_ns + EMPTY_NS


@pytest.mark.parametrize("best", range(4))
def test_the_best_chain_counts_and_its_calls_are_compared(open_timer, best):
    takes_ns = [CALL_NS + (at != best) for at in range(4) for _ in range(CALLS)]
    timer, worker = open_timer(takes_ns=takes_ns, wanted=CALLS)
    found = timer.confirm(0.5 * COST_NS)
    assert (found.chain_ns, found.chain_calls) == (COST_NS, 4 * CALLS)
    reads = worker.trial.reader.reads("chain")
    sums = worker.sums[::2][best * CALLS :][:CALLS]
    assert sorted(float(one.inputs[0].sum()) for one in reads) == sorted(sums)
    assert all(torch.equal(one.outputs[0], one.inputs[0] * 2) and one.way == "chain" for one in reads)
    assert len({*worker.desk.keys}) == len({*worker.sums}) == 4 * CALLS  # no key and no input comes again


@pytest.mark.parametrize(
    ("how", "part", "operations", "launch_ns"),
    [
        ({"settles": True}, "run", 3, 50_000_000),
        ({"operations": 0}, "run", 0, 50_000_000),
        ({"operations": None}, "run", None, 300_000),
        ({"has_setup": True}, "both", None, 300_000),
    ],
)
def test_what_the_worker_is_asked_for_and_how_long_a_launch_is_waited_for(
    open_timer, monkeypatch, how, part, operations, launch_ns
):
    waits, give = [], chain.hand_out
    monkeypatch.setattr(chain, "hand_out", lambda *given: waits.append(given[-1]) or give(*given))
    timer, worker = open_timer(**how)
    timer.confirm(COST_NS)
    places = worker.trial.places
    fields = {"indices": list(range(CALLS)), "part": part, "operations": operations, "size": BOARD_BYTES}
    fields |= {"stride": places.stride, "inputs": places.input_bytes(1).shape[1], "settles": "settles" in how}
    assert (worker.asked, waits) == ([("relay", fields)], [launch_ns])
    assert [row.address for row in worker.desk.rows] == [places.inputs(at)[0].data_ptr() for at in range(CALLS)]


@pytest.mark.parametrize("step", ["digests", "look"])
def test_what_is_judged_is_what_was_committed_to(open_timer, monkeypatch, step):
    """A worker may exchange outputs behind any look at them."""
    timer, worker = open_timer(wanted=CALLS)
    where = worker.trial.reader if step == "look" else worker.desk
    usual = getattr(where, step)

    def exchanged(*given, **more):
        for index in range(CALLS):
            worker.trial.places.outputs(index)[0].zero_()
        return usual(*given, **more)

    monkeypatch.setattr(where, step, exchanged)
    timer.confirm(COST_NS)
    reads = worker.trial.reader.reads()
    assert len(reads) >= CALLS
    assert all(torch.equal(one.outputs[0], one.inputs[0] * 2) for one in reads)


@pytest.mark.parametrize("at", range(CALLS))
@pytest.mark.parametrize("how", ["late", "ends_after", "changed"])
def test_a_call_whose_outputs_are_not_those_that_it_committed_to_is_refused(open_timer, how, at):
    timer, worker = open_timer(**({} if how == "changed" else {how: [at] if how == "late" else at}))
    worker.then = lambda: [worker.compute(call) for call in range(CALLS)]
    if how == "changed":
        worker.then = lambda: worker.trial.places.outputs(at)[0][7:8].add_(1)
    with pytest.raises(SolutionFailure, match=LATE) as refused:
        timer.confirm(COST_NS)
    assert (refused.value.status, type(refused.value)) == ("RUNTIME_ERROR", SolutionFailure)


@pytest.mark.parametrize(
    ("answer", "is_large", "share"),
    [
        ({"joined": True}, False, 0.95),
        ({"joined": True}, True, 0.9),
        ({"joined": False}, False, 0.85),
        ({"joined": False}, True, 0.85),
        ({"joined": True, "strided": True}, False, 0.85),
    ],
)
def test_a_latency_is_told_as_no_less_than_a_share_after_several_chains(
    open_timer, monkeypatch, answer, is_large, share
):
    cost_ns = COST_NS if answer["joined"] else HOST_COST_NS
    for claimed_ns, chains in ((1.01 * share * cost_ns, 1), (0.99 * share * cost_ns, 4)):
        timer, worker = open_timer()
        worker.answer = answer
        monkeypatch.setattr(chain, "CACHED_BYTES", worker.trial.places.stride - is_large)
        found = timer.confirm(claimed_ns)
        told_ms = raise_claim(claimed_ns / 1e6, found.to_record(), found.least_ns / 1e6)
        assert told_ms * 1e6 == pytest.approx(max(claimed_ns, share * cost_ns), rel=1e-3)
        assert len(worker.asked) == chains


@pytest.mark.parametrize(
    ("share", "joined", "ends"),
    [
        (0.76, True, None),
        (0.74, True, "a call in a chain takes 0.07475 ms"),
        (0.26, True, "a call in a chain takes 0.07475 ms"),
        (0.24, True, ClaimContradicted),
        (0.05, True, SolutionFailure),
        (0.05, False, "0.076 ms, and the host may be what holds it up: the host launches each call in its turn"),
    ],
)
def test_what_becomes_of_a_claim(open_timer, share, joined, ends):
    timer, worker = open_timer()
    worker.answer, claimed_ns = {"joined": joined}, share * (COST_NS if joined else HOST_COST_NS)
    if isinstance(ends, type):
        with pytest.raises(SolutionFailure, match=r"claims 0\.\d+ ms a call; .*0\.07475 ms.* \(4 chains\)") as failed:
            timer.confirm(claimed_ns)
        assert (type(failed.value), failed.value.status) == (ends, "RUNTIME_ERROR")
    else:
        why_not = timer.confirm(claimed_ns).why_not
        assert why_not is None if ends is None else why_not.endswith(ends)


@pytest.mark.parametrize(("below_ns", "is_refused"), [(9_999, False), (10_001, True)])
def test_a_claim_that_lies_little_below_is_not_refused(open_timer, below_ns, is_refused):
    """Another program may have held up each call."""
    timer, _ = open_timer(takes_ns=[below_ns + 700 + CALL_NS - COST_NS] * 99)
    if not is_refused:
        assert timer.confirm(700).why_not is not None
        return
    with pytest.raises(SolutionFailure):
        timer.confirm(700)


@pytest.mark.parametrize("least_ns", [LEAST_NS, EMPTY_NS, EMPTY_NS + 500])
def test_batches_follow_where_one_kernel_for_all_could_have_spared_what_they_would_show(
    open_timer, monkeypatch, least_ns
):
    """To unmask and commit is more work for more bytes; who computes along with it has that for nothing."""
    monkeypatch.setattr(PlayedDesk, "empty_ns", (EMPTY_NS, least_ns))
    timer, _ = open_timer()
    assert (timer.most_ns, timer.leaves_open(1e12)) == (float("inf"), True)
    timer.confirm(COST_NS)
    most_ns = 0.79 * (COST_NS + 2_000 + max(0, EMPTY_NS - least_ns))
    assert timer.leaves_open(most_ns - 1)
    assert not timer.leaves_open(most_ns + 1)


@pytest.mark.parametrize(("cost_ns", "is_open"), [(0, True), (EMPTY_NS, True), (EMPTY_NS + 1, False)])
def test_batches_follow_all_calls_that_take_no_longer_than_an_empty_one(open_timer, cost_ns, is_open):
    timer, _ = open_timer(takes_ns=[CALL_NS - COST_NS + cost_ns] * CALLS)
    timer.confirm(COST_NS)
    assert timer.leaves_open(COST_NS) is is_open


GIB = 1 << 30


@pytest.mark.parametrize(
    ("claimed_ns", "size", "outputs", "calls"),
    [
        (5_000, 1_000, 1, 17),
        (0.0, 0, 16, 17),
        (2_000_000, 1_000, 1, 10),
        (10**9, 1_000, 1, 5),
        (10**9 + 1, 1_000, 1, 0),
        (5_000, 1_000, 0, 0),
        (5_000, 1_000, 17, 0),
        (1_000_000, 2 * GIB // 7, 1, 7),
        (10_000_000, 2 * GIB // 7, 1, 5),
        (3_000_000, 8 * GIB // 5, 1, 5),
        (3_000_000, 8 * GIB // 5 + 1, 1, 4),
        (3_000_000, 4 * GIB, 1, 2),
        (3_000_000, 4 * GIB + 1, 1, 0),
    ],
)
def test_a_chain_has_as_many_calls_as_time_and_memory_allow(claimed_ns, size, outputs, calls):
    assert count_chain_calls(claimed_ns, size, outputs) == calls


@pytest.mark.parametrize(("calls", "size", "reads"), [(17, 1_000, 6), (5, GIB, 3), (4, GIB, 3), (2, GIB, 2)])
def test_of_large_calls_more_than_half_are_compared(calls, size, reads):
    assert count_chain_reads(calls, size) == reads
