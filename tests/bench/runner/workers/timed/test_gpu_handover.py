"""What a session does around relays on a GPU: keys one by one, masks, digests, and what an empty call takes."""

import ctypes
import os
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.runner.workers.arena import open_memory_file
from flashinfer_bench.bench.runner.workers.timed import gpu_handover
from flashinfer_bench.bench.runner.workers.timed.gpu_handover import (
    EMPTY_RELAYS,
    FEW_BYTES,
    LAUNCH_NS,
    LONGEST_PAUSE_NS,
    PAUSE_NS,
    WAITING_LAUNCH_NS,
    Committed,
    RelayDesk,
    draw_keys,
    hand_out,
    is_late_after,
    open_desk,
    open_gpu_board,
)
from flashinfer_bench.timing.clocks import CaptureRefused
from flashinfer_bench.timing.driver import DriverError
from flashinfer_bench.worker.gpu_relay.board import BOARD_BYTES, TOLD, WORDS_OF_CALL, GpuBoard
from flashinfer_bench.worker.gpu_relay.kernels import Piece

pytestmark = pytest.mark.cpu
TICK_NS = 100
"""Each look at the clock takes so long."""
CALLS = 4
PATIENCE_S = 100.0
CPU = torch.device("cpu")


class PlayedBoard(GpuBoard):
    """A board whose calls are over as soon as they have their key; each takes a while on the board's own clock.

    `lost` are the calls that commit to nothing. It takes the place of a board that a GPU sees, too.
    """

    ready_at = -1

    def __init__(self, fd, size=BOARD_BYTES, *, takes_ns=(), lost=()):
        super().__init__(fd, size)
        self.takes_ns = iter(takes_ns)
        self.tick_ns = TICK_NS
        self.lost = lost
        self.now = 0
        self.given_at = []
        self.launched_at = None

    def now_ns(self):
        self.now += self.tick_ns
        if self.launched_at is not None and self.now >= self.launched_at:
            self.tell_launched(len(self.given_at) + 1)
        return self.now

    def give(self, call, key):
        if not self.has_key(call):
            self.given_at.append(self.now)
            self.now += next(self.takes_ns, 0)
        super().give(call, key)
        if call not in self.lost:
            self.commit(call, digest_of(key))
            self.tell_ready(call + 2)

    def commit(self, call, words):
        begin = TOLD + call * WORDS_OF_CALL
        self._words[begin : begin + len(words)] = words

    def key_at(self, call):
        return ("key", call)

    def told_at(self, call):
        return ("told", call)


def digest_of(key):
    return [key ^ (1 << 63), key + 1]


@pytest.fixture
def fd():
    fd = open_memory_file(BOARD_BYTES)
    yield fd
    os.close(fd)


@pytest.fixture
def open_played(fd, monkeypatch):
    """Return a board whose first call waits, and whose calls are all launched; the session has its clock."""

    def opened(**traits):
        board = PlayedBoard(fd, **traits)
        board.tell_ready(1)
        board.tell_launched(CALLS)
        monkeypatch.setattr(gpu_handover, "now_ns", board.now_ns)
        return board

    return opened


def never():
    return False


def await_key(board, call):
    """Wait for a call's key, as a GPU does."""
    end = time.monotonic() + PATIENCE_S
    while not board.has_key(call) and time.monotonic() < end:
        time.sleep(0.0001)


def test_a_worker_gets_its_keys_in_order_each_when_the_call_before_has_committed(fd):
    ours, theirs, calls = GpuBoard(fd), PlayedBoard(fd), 9
    early = []

    def work():
        for call in range(calls):
            theirs.tell_ready(call + 1)
            theirs.tell_launched(call + 1)
            await_key(theirs, call)
            time.sleep(0.002)
            early.extend(later for later in range(call + 1, calls) if theirs.has_key(later))
            theirs.commit(call, [call + 1, call + 100])

    worker = threading.Thread(target=work)
    worker.start()
    found = hand_out(ours, draw_keys(calls), 1, is_late_after(PATIENCE_S))
    worker.join()
    assert [one.digest for one in found] == [[call + 1, call + 100] for call in range(calls)]
    assert early == []
    assert min(one.span_ns for one in found) > 1_000_000  # each worked for two milliseconds


def test_a_call_takes_from_its_key_to_what_it_commits_to(open_played):
    takes_ns, keys = [5_000, 90_000, 0, 7_000], draw_keys(CALLS)
    board = open_played(takes_ns=takes_ns)
    found = hand_out(board, keys, 1, never)
    assert found == [Committed(ns + TICK_NS, digest_of(key)) for ns, key in zip(takes_ns, keys, strict=True)]


def test_a_call_that_commits_in_groups_is_over_when_the_last_has_come(open_played):
    board, pieces = open_played(lost=[0]), [[1, 2], [1, 2, 3], [1, 2, 3, 4]]

    def commit_more():
        board.commit(0, pieces.pop(0))
        return False

    assert [one.digest for one in hand_out(board, [9], 2, commit_more)] == [[1, 2, 3, 4]]
    assert pieces == []


@pytest.mark.parametrize("ends_at", range(CALLS))
def test_a_worker_that_answers_before_a_call_waits_gets_no_more_keys(open_played, ends_at):
    board = open_played()
    tell_ready = board.tell_ready
    board.tell_ready = lambda count: tell_ready(min(count, ends_at))
    board.tell_ready(1)
    found = hand_out(board, draw_keys(CALLS), 1, lambda: True)
    assert len(found) == ends_at
    assert [board.has_key(call) for call in range(CALLS)] == [call < ends_at for call in range(CALLS)]


def test_a_worker_that_answers_before_a_call_commits_is_not_waited_for(open_played):
    board = open_played(lost=[2])
    assert len(hand_out(board, draw_keys(CALLS), 1, lambda: True)) == 2
    assert not board.has_key(3)


def test_a_call_counts_that_commits_as_the_answer_comes(open_played):
    board = open_played(lost=[CALLS - 1])

    def answers():
        board.commit(CALLS - 1, [3, 4])
        return True

    assert hand_out(board, draw_keys(CALLS), 1, answers)[-1].digest == [3, 4]


@pytest.mark.parametrize(
    ("given", "launched_at", "waits_ns"),
    [
        ({}, None, LAUNCH_NS),
        ({}, LAUNCH_NS // 2, LAUNCH_NS // 2),
        ({}, 0, 0),
        ({}, 2 * LAUNCH_NS, LAUNCH_NS),
        ({"launch_ns": WAITING_LAUNCH_NS}, None, WAITING_LAUNCH_NS),
        ({"launch_ns": WAITING_LAUNCH_NS}, WAITING_LAUNCH_NS // 2, WAITING_LAUNCH_NS // 2),
    ],
)
def test_a_call_gets_its_key_when_it_is_launched_or_after_a_while(open_played, given, launched_at, waits_ns):
    board = open_played()
    board.tell_launched(0)
    board.launched_at = launched_at
    board.tick_ns = max(TICK_NS, waits_ns // 1_000)
    hand_out(board, [5], 1, never, **given)
    (given_at,) = board.given_at
    assert waits_ns + PAUSE_NS <= given_at <= waits_ns + PAUSE_NS + 6 * board.tick_ns


def test_calls_that_wait_inside_get_their_keys_far_sooner():
    assert WAITING_LAUNCH_NS * 100 < LAUNCH_NS


def test_before_each_key_the_gpu_rests_as_long_as_the_call_before_took(open_played):
    """Within bounds: the first call's key comes after PAUSE_NS, too."""
    takes_ns = [2 * PAUSE_NS, 1_000, 700_000, 3 * LONGEST_PAUSE_NS, 0, 0]
    board = open_played(takes_ns=takes_ns)
    board.tell_launched(len(takes_ns))
    board.tick_ns = 1_000
    found = hand_out(board, draw_keys(len(takes_ns)), 1, never)
    ends = [0, *(at + ns for at, ns in zip(board.given_at, takes_ns, strict=True))]
    rests_ns = [at - end for at, end in zip(board.given_at, ends, strict=False)]
    expected = [PAUSE_NS, found[0].span_ns, PAUSE_NS, found[2].span_ns, LONGEST_PAUSE_NS, PAUSE_NS]
    for rest_ns, expected_ns in zip(rests_ns, expected, strict=True):
        assert expected_ns <= rest_ns <= expected_ns + 6 * board.tick_ns


def test_keys_are_new_and_none_is_0(monkeypatch):
    keys = draw_keys(1_000)
    assert len({*keys}) == 1_000
    assert 0 < min(keys) <= max(keys) < 1 << 63
    assert not {*keys} & {*draw_keys(1_000)}
    monkeypatch.setattr(gpu_handover, "randbits", lambda bits: 0)
    assert 0 not in draw_keys(3)


def test_the_kernels_code_stands_behind_the_board_that_a_worker_gets(monkeypatch):
    image = bytes(range(256)) * 17
    monkeypatch.setattr(gpu_handover, "relay_image", lambda: image)
    with open_gpu_board() as (board, fd, size):
        theirs = GpuBoard(fd, size)
        assert size % BOARD_BYTES == 0
        assert theirs.text(BOARD_BYTES, size).rstrip(b"\0") == image.rstrip(b"\0")
        board.give(0, 1)
        assert theirs.has_key(0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


class PlayedKernels:
    """The session's kernels; `launched` is what they were launched for."""

    def __init__(self, image, device):
        self.launched = []
        self.digests = iter(())

    def warm_up(self, board):
        self.launched.append(("warm up", board))

    def unmask(self, row, key):
        self.launched.append(("unmask", row, ctypes.c_int64.from_address(key).value))

    def await_and_unmask(self, slot, row, ready, count):
        self.launched.append(("await", slot, row, ready, count))

    def commit(self, pieces, told):
        self.launched.append(("commit", list(pieces), told))
        for at, word in enumerate(next(self.digests, ())):
            ctypes.c_uint64.from_address(told + 8 * at).value = word


@pytest.fixture
def desk(monkeypatch):
    """A session's desk whose kernels are played. A relay of its own is replayed at once; its first call waits then."""
    replays = []

    def capture(launch):
        launch()

        def replay():
            replays.append(launch)
            made._board.tell_ready(1)

        return replay

    monkeypatch.setattr(gpu_handover, "RelayKernels", PlayedKernels)
    monkeypatch.setattr(gpu_handover, "MappedBoard", PlayedBoard)
    monkeypatch.setattr(gpu_handover, "relay_image", lambda: b"")
    monkeypatch.setattr(gpu_handover, "capture", capture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    made = RelayDesk(CPU)
    made.replays = replays
    made.launched = made._kernels.launched
    monkeypatch.setattr(gpu_handover, "now_ns", made._board.now_ns)
    return made


def test_a_desk_warms_its_kernels_up_and_leaves_the_board_clear(desk):
    assert desk.launched == [("warm up", ("key", 0))]
    assert not desk._board.has_key(0)


def test_inputs_are_masked_each_by_the_key_of_its_call(desk):
    rows, keys = [Piece(16 * at, 32) for at in range(3)], draw_keys(3)
    desk.mask(rows, keys)
    assert desk.launched[1:] == [("unmask", row, key) for row, key in zip(rows, keys, strict=True)]


@pytest.mark.parametrize(("outputs", "words"), [(1, 2), (4, 2), (5, 4)])
def test_what_calls_should_have_committed_to_is_told_as_the_board_tells_it(desk, outputs, words):
    digests = [[(1 << 64) - 1 - call - at for at in range(words)] for call in range(3)]
    desk._kernels.digests = iter(digests)
    held = [[torch.zeros(3, 2) for _ in range(outputs)] for _ in range(3)]
    assert desk.digests(held) == digests
    committed = [pieces for _, pieces, _ in desk.launched[1:]]
    assert committed == [[Piece(one.data_ptr(), 24) for one in own] for own in held]


def make_calls(size):
    """Return where the inputs of calls lie, and their outputs."""
    return [Piece(16 * at, size) for at in range(CALLS)], [[torch.zeros(8), torch.zeros(size)] for _ in range(CALLS)]


def test_what_an_empty_call_takes_is_the_least_of_all_as_is_one_of_a_few_bytes(desk):
    few, whole = [5_000, 3_000, 4_000, 9_000] * EMPTY_RELAYS, [8_000, 7_000, 7_500, 9_000] * EMPTY_RELAYS
    desk._board.takes_ns = iter([*few, *whole])
    rows, outputs = make_calls(4 * FEW_BYTES)
    assert desk.find_empty(rows, outputs) == (7_000 + TICK_NS, 3_000 + TICK_NS)
    assert len(desk.replays) == 2 * EMPTY_RELAYS
    _, *launched = desk.launched
    assert launched[::2] == [
        ("await", ("key", at), Piece(row.address, size), desk._board.ready_at, at + 1)
        for size in (FEW_BYTES, 4 * FEW_BYTES)
        for at, row in enumerate(rows)
    ]
    sizes = [[piece.nbytes for piece in pieces] for _, pieces, _ in launched[1::2]]
    assert sizes == [[4]] * CALLS + [[32, 16 * FEW_BYTES]] * CALLS
    assert [told for *_, told in launched[1::2]] == [("told", at) for at in range(CALLS)] * 2


def test_an_empty_call_is_timed_once_for_calls_of_a_size(desk):
    """What a worker leaves on the GPU makes it longer."""
    takes_ns = [3_000, 8_000, 3_500, 2_500]
    desk._board.takes_ns = (ns for ns in takes_ns for _ in range(CALLS * EMPTY_RELAYS))
    first = desk.find_empty(*make_calls(4 * FEW_BYTES))
    assert desk.find_empty(*make_calls(4 * FEW_BYTES)) == first == (8_000 + TICK_NS, 3_000 + TICK_NS)
    assert desk.find_empty(*make_calls(16)) == (2_500 + TICK_NS, 3_000 + TICK_NS)
    assert desk.find_empty(*make_calls(4 * FEW_BYTES)) == first
    assert len(desk.replays) == 4 * EMPTY_RELAYS


@pytest.mark.parametrize("lost", [range(1, CALLS), [CALLS - 1]])
def test_a_gpu_that_is_held_up_is_not_waited_for_long_and_gets_all_keys(desk, monkeypatch, lost):
    """What the calls took that were over may be far from the least: nothing is taken off, and nothing is kept."""
    monkeypatch.setattr(gpu_handover, "EMPTY_LIMIT_S", 0.0)
    desk._board.lost, desk._board.takes_ns = lost, iter([10**6] * 4 * CALLS * EMPTY_RELAYS)
    assert desk.find_empty(*make_calls(16)) == (0, 0)
    assert len(desk.replays) == 2 * EMPTY_RELAYS
    assert all(map(desk._board.has_key, range(CALLS)))
    check_is_measured_anew(desk)


@pytest.mark.parametrize("refused", [0, 1])
def test_where_an_empty_relay_cannot_be_captured_nothing_is_taken_off(desk, monkeypatch, refused):
    """Neither where calls of a few bytes could be; those of the next attempt count."""
    usual, captures = gpu_handover.capture, []

    def refuse(launch):
        captures.append(launch)
        if len(captures) - 1 == refused:
            raise CaptureRefused("the capture ended early")
        return usual(launch)

    monkeypatch.setattr(gpu_handover, "capture", refuse)
    assert desk.find_empty(*make_calls(16)) == (0, 0)
    assert len(desk.replays) == EMPTY_RELAYS
    check_is_measured_anew(desk)


def check_is_measured_anew(desk):
    desk._board.lost, desk._board.takes_ns = (), (ns for ns in (8_000, 9_000) for _ in range(CALLS * EMPTY_RELAYS))
    assert desk.find_empty(*make_calls(16)) == (9_000 + TICK_NS, 8_000 + TICK_NS)


@pytest.mark.parametrize("error", [OSError("libcuda.so.1: there is none"), DriverError("assembling failed"), None])
@pytest.mark.parametrize("cores", [1, 2])
def test_where_the_driver_takes_no_kernels_or_there_is_one_core_there_is_no_desk(monkeypatch, error, cores):
    def make(device):
        if error is not None:
            raise error
        return device

    monkeypatch.setattr(gpu_handover, "RelayDesk", make)
    monkeypatch.setattr(gpu_handover, "usable_cores", lambda: cores)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    open_desk.cache_clear()
    device = torch.device("cuda", 7)
    assert open_desk(device) is (None if error or cores < 2 else device)
    open_desk.cache_clear()


def test_a_deadline_counts_from_when_it_is_set(monkeypatch):
    now = [1_000.0]
    monkeypatch.setattr(gpu_handover, "time", SimpleNamespace(monotonic=lambda: now[0]))
    is_late = is_late_after(2.5)
    now[0] += 2.4
    assert not is_late()
    now[0] += 0.2
    assert is_late()
