"""The board of a relay on a GPU: keys go one way, and what calls commit to comes back. And the worker's end of it."""

import os
from contextlib import contextmanager

import pytest
import torch

from flashinfer_bench.bench.runner.workers.arena import open_memory_file
from flashinfer_bench.bench.runner.workers.timed.gpu_relay import RELAY_CALLS
from flashinfer_bench.timing.clocks import CaptureRefused
from flashinfer_bench.timing.driver import DriverError
from flashinfer_bench.worker.gpu_relay import calls as calls_module
from flashinfer_bench.worker.gpu_relay.board import (
    BOARD_BYTES,
    KEYS,
    LAUNCHED,
    MOST_CALLS,
    MOST_OUTPUTS,
    READY,
    TOLD,
    WORD,
    WORDS_OF_CALL,
    GpuBoard,
)
from flashinfer_bench.worker.gpu_relay.calls import GpuRelays
from flashinfer_bench.worker.gpu_relay.kernels import AT_ONCE, SMALL_BYTES, Piece, count_launches, split

pytestmark = pytest.mark.cpu
LARGEST = (1 << 64) - 1
CALLS = 3
KEYS_GIVEN = [101, 102, 103]
CODE = b"\x7fELF, and so on"


@contextmanager
def opened(size=BOARD_BYTES, behind=b""):
    """Give two views of a board, and its memory file."""
    fd = open_memory_file(size)
    try:
        os.pwrite(fd, behind, BOARD_BYTES)
        yield GpuBoard(fd, size), GpuBoard(fd, size), fd
    finally:
        os.close(fd)


def commit(fd, call, words):
    """Tell what a call commits to, as a kernel does."""
    told = b"".join(word.to_bytes(WORD, "little") for word in words)
    os.pwrite(fd, told, (TOLD + call * WORDS_OF_CALL) * WORD)


@pytest.mark.parametrize("call", [0, 1, MOST_CALLS - 1])
def test_a_key_is_for_one_call(call):
    with opened() as (ours, theirs, _):
        assert not any(theirs.has_key(at) for at in range(MOST_CALLS))
        ours.give(call, (1 << 63) - 1)
        assert [at for at in range(MOST_CALLS) if theirs.has_key(at)] == [call]


def read_keys(fd):
    """Return the keys of all calls."""
    text = os.pread(fd, MOST_CALLS * WORD, KEYS * WORD)
    return [int.from_bytes(text[at : at + WORD], "little") for at in range(0, len(text), WORD)]


def test_a_key_that_is_given_where_none_came_takes_the_place_of_no_other():
    with opened() as (ours, theirs, fd):
        ours.give(1, LARGEST)
        for call in (0, 1, 1, 3):
            theirs.give_if_missing(call)
        assert read_keys(fd)[:5] == [1, LARGEST, 0, 1, 0]


@pytest.mark.parametrize("groups", [1, 2, MOST_OUTPUTS // AT_ONCE])
@pytest.mark.parametrize("call", [0, 2, MOST_CALLS - 1])
def test_a_call_is_over_when_all_that_it_commits_to_is_there(call, groups):
    words = [LARGEST - at for at in range(2 * groups)]
    with opened() as (ours, _, fd):
        assert not ours.await_told(call, groups)
        commit(fd, call, words[:-1])
        assert not ours.await_told(call, groups)
        commit(fd, call, [0, *words[1:]])
        assert not ours.await_told(call, groups)
        commit(fd, call, words)
        assert ours.await_told(call, groups)
        assert ours.told(call, groups) == words
        others = [other for other in range(MOST_CALLS) if other != call]
        assert not any(any(ours.told(other, groups)) for other in others)
        assert not any(ours.has_key(other) for other in range(MOST_CALLS))


def test_who_waits_and_who_is_launched_is_told_apart():
    with opened() as (ours, theirs, _):
        assert ours.await_ready(0)
        assert not ours.await_ready(1)
        theirs.tell_ready(2)
        assert ours.await_ready(1)
        assert ours.await_ready(2)
        assert not ours.await_ready(3)
        assert not ours.is_launched(1)
        theirs.tell_launched(3)
        assert ours.is_launched(3)
        assert not ours.is_launched(4)
        assert not ours.await_ready(3)


def test_a_board_that_is_cleared_has_told_nothing_and_what_stands_behind_it_stays():
    with opened(3 * BOARD_BYTES, CODE) as (ours, theirs, fd):
        for at in range(MOST_CALLS):
            ours.give(at, LARGEST)
            commit(fd, at, [LARGEST] * WORDS_OF_CALL)
        theirs.tell_ready(1)
        theirs.tell_launched(1)
        ours.clear()
        assert os.pread(fd, BOARD_BYTES, 0) == bytes(BOARD_BYTES)
        assert theirs.text(BOARD_BYTES, BOARD_BYTES + len(CODE)) == CODE
        assert theirs.text(BOARD_BYTES, 3 * BOARD_BYTES).rstrip(b"\0") == CODE


def test_a_board_outlives_the_descriptor_that_it_was_opened_by():
    with opened() as (_, theirs, fd):
        copy = os.dup(fd)
        ours = GpuBoard(copy)
        os.close(copy)
        ours.give(0, 5)
        assert theirs.has_key(0)


def test_nothing_on_a_board_lies_in_the_place_of_something_else():
    lengths = {READY: 1, LAUNCHED: 1, KEYS: MOST_CALLS, TOLD: MOST_CALLS * WORDS_OF_CALL}
    begins = sorted(lengths)
    assert len(begins) == 4
    for begin, after in zip(begins, [*begins[1:], BOARD_BYTES // WORD], strict=True):
        assert begin + lengths[begin] <= after
    assert 2 * len(split(range(MOST_OUTPUTS))) == WORDS_OF_CALL
    assert MOST_OUTPUTS % AT_ONCE == 0
    assert RELAY_CALLS <= MOST_CALLS


def test_what_the_gpu_writes_has_cache_lines_of_its_own():
    """The session reads one while the GPU writes the other."""
    line = 64
    assert len({begin * WORD // line for begin in (READY, LAUNCHED, KEYS, TOLD)}) == 4
    assert (KEYS + MOST_CALLS - 1) * WORD // line < TOLD * WORD // line
    assert TOLD * WORD % line == 0


class PlayedGpu:
    """Does what was launched when it is waited for. To each call that waits the session gives a key, while it has any.

    It is the kernels, too, and what captures. `done` is what was done: its name, its call, and what it was given.
    """

    def __init__(self, fd):
        self.fd = fd
        self.boards = []
        self.keys = iter(())
        self.queue = []
        self.done = []
        self.graph = None
        self.captures = 0
        self.seen = []
        """Operations that the first call of a graph had to have at the least."""
        self.launched_before_keys = []
        """Of each call how many were told as launched when it waited for its key."""

    def map_board(self, fd, size):
        self.boards.append(SeenBoard(self, fd, size))
        return self.boards[-1]

    def load(self, image, device):
        assert image == CODE
        return self

    def warm_up(self, board):
        assert read_keys(self.fd)[board] != 0
        os.pwrite(self.fd, b"\1" * 16, (KEYS + board + 2) * WORD)

    def await_and_unmask(self, slot, row, ready, count):
        assert (ready, count) == ("ready", slot + 1)
        self.launch("await", slot)
        self.launch("unmask", slot, row)

    def unmask(self, row, key):
        self.launch("unmask", key, row)

    def committer(self, sizes, told):
        assert sizes == [16, 8]
        return lambda addresses: self.launch("commit", told, addresses)

    def launch(self, *what):
        (self.queue if self.graph is None else self.graph).append(what)

    def capture(self, launch):
        self.captures += 1
        self.graph = held = []
        try:
            launch()
        except Exception as error:
            raise CaptureRefused(str(error)) from None
        finally:
            self.graph = None
        return lambda: self.queue.extend(held)

    def synchronize(self, device):
        waiting, self.queue = self.queue, []
        for name, call, *given in waiting:
            if name == "await":
                self.serve(call)
                assert read_keys(self.fd)[call], "a kernel waits for a key, and nobody gives it any"
            elif name == "unmask":
                self.done.append((name, call, read_keys(self.fd)[call], *given))
            else:
                self.done.append((name, call, *given))

    def serve(self, call):
        """Give a call its key, unless one is there already, which the GPU would see first."""
        self.launched_before_keys.append(max(at for at in range(CALLS + 1) if self.boards[-1].is_launched(at)))
        if not read_keys(self.fd)[call]:
            self.boards[-1].give(call, next(self.keys, 0))


class SeenBoard(GpuBoard):
    """A board that the GPU of a test sees."""

    ready_at = "ready"

    def __init__(self, gpu, fd, size):
        super().__init__(fd, size)
        self.gpu = gpu
        self.releases = 0

    def key_at(self, call):
        return call

    def told_at(self, call):
        return call

    def tell_ready(self, count):
        super().tell_ready(count)
        self.gpu.serve(count - 1)

    def release(self):
        self.releases += 1


class PlayedCall:
    """A call that is relayed: what it returns lies as its slots do where it is `plain`."""

    result = None

    def __init__(self, gpu, at, *, plain=True, raises=False):
        self.gpu = gpu
        self.at = at
        self.raises = raises
        self.slots = [torch.zeros(4), torch.zeros(2)]
        self.results = [torch.ones(4), torch.ones(2)] if plain else None

    def __call__(self):
        if self.raises:
            raise ZeroDivisionError(self.at)
        self.result = "what it returned"
        self.gpu.launch("call", self.at)

    def put_away(self):
        self.gpu.launch("put away", self.at)

    def plain_results(self):
        return self.results


@pytest.fixture
def gpu(monkeypatch):
    with opened(2 * BOARD_BYTES, CODE) as (_, _, fd):
        played = PlayedGpu(fd)
        monkeypatch.setattr(calls_module, "MappedBoard", played.map_board)
        monkeypatch.setattr(calls_module, "RelayKernels", played.load)
        monkeypatch.setattr(calls_module, "capture", played.capture)
        monkeypatch.setattr(calls_module, "see_operations", played.seen.append)
        monkeypatch.setattr(torch.cuda, "synchronize", played.synchronize)
        played.relays = GpuRelays(torch.device("cuda"))
        yield played


def run_relay(gpu, calls, keys=KEYS_GIVEN, **changes):
    """Have a worker answer a request for a relay; its descriptor is closed afterwards, whatever happens."""
    for board in gpu.boards[-1:]:
        board.clear()
    gpu.keys = iter(keys)
    request = {"size": BOARD_BYTES + len(CODE), "stride": 256, "inputs": 64, "operations": 5, "settles": False}
    copy = os.dup(gpu.fd)
    try:
        return gpu.relays.relay({**request, "indices": range(len(calls)), **changes}, copy, calls, 4_096)
    finally:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(copy)


def make_calls(gpu, **traits):
    return [PlayedCall(gpu, at, **traits) for at in range(CALLS)]


def steps_of(calls, keys=KEYS_GIVEN, nbytes=64):
    """Return what a GPU does for some calls with these keys."""
    steps = []
    for call, key in zip(calls, keys, strict=False):
        given = ("unmask", call.at, key, Piece(4_096 + 256 * call.at, nbytes)), ("call", call.at)
        commit = "commit", call.at, [one.data_ptr() for one in call.results or call.slots]
        ends = [commit, ("put away", call.at)]  # before they are put away nobody has copied results
        steps += [*given, *(ends if call.results else ends[::-1])]
    return steps


WAYS = {"a graph": {}, "launches": {"operations": None}, "settled": {"settles": True}}


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_each_call_gets_its_inputs_by_the_sessions_key_and_commits_to_its_results(gpu, way, plain):
    calls = make_calls(gpu, plain=plain)
    assert run_relay(gpu, calls, **WAYS[way]) == {"relayed": CALLS, "joined": way == "a graph"}
    assert gpu.done == steps_of(calls)
    assert gpu.captures == (way == "a graph")
    assert read_keys(gpu.fd)[: CALLS + 1] == [*KEYS_GIVEN, 0]
    assert all(call.result is None for call in calls)


@pytest.mark.parametrize(
    ("way", "launched"), [("a graph", [CALLS] * CALLS), ("launches", [CALLS] * CALLS), ("settled", [1, 2, 3])]
)
def test_a_call_is_told_as_launched_before_it_gets_its_key(gpu, way, launched):
    run_relay(gpu, make_calls(gpu), **WAYS[way])
    assert gpu.launched_before_keys == launched


@pytest.mark.parametrize("nbytes", [SMALL_BYTES, SMALL_BYTES + 16])
def test_a_graph_has_the_operations_of_a_call_and_what_goes_before_it(gpu, nbytes):
    calls = make_calls(gpu)
    run_relay(gpu, calls, inputs=nbytes)
    assert gpu.seen == [5 + count_launches(nbytes)]
    assert gpu.done == steps_of(calls, nbytes=nbytes)


def test_calls_are_captured_once_until_they_are_forgotten(gpu):
    calls = make_calls(gpu)
    for keys in (KEYS_GIVEN, [7, 8, 9]):
        assert run_relay(gpu, calls, keys)["joined"]
    assert gpu.done == steps_of(calls) + steps_of(calls, [7, 8, 9])
    assert (len(gpu.boards), gpu.captures) == (1, 1)
    assert gpu.relays.forget()
    assert not gpu.relays.forget()
    assert gpu.boards[0].releases == 1
    assert run_relay(gpu, calls)["joined"]
    assert (len(gpu.boards), gpu.captures) == (2, 2)


def test_calls_that_no_graph_holds_are_launched_and_not_captured_again(gpu, monkeypatch):
    def see(least):
        raise CaptureRefused("a graph of it holds fewer")

    monkeypatch.setattr(calls_module, "see_operations", see)
    calls = make_calls(gpu)
    for _ in range(2):
        assert run_relay(gpu, calls) == {"relayed": CALLS, "joined": False}
    assert gpu.captures == 1
    assert gpu.done == 2 * steps_of(calls)


@pytest.mark.parametrize("raises", range(CALLS))
@pytest.mark.parametrize("way", WAYS)
def test_where_a_call_raises_no_kernel_waits_for_a_key_any_more(gpu, way, raises):
    calls = [PlayedCall(gpu, at, raises=at == raises) for at in range(CALLS)]
    with pytest.raises(ZeroDivisionError, match=str(raises)):
        run_relay(gpu, calls, **WAYS[way])
    given = KEYS_GIVEN[: raises + 1] if way == "settled" else []
    assert read_keys(gpu.fd)[: CALLS + 1] == [*given, *[1] * (CALLS - len(given)), 0]
    assert gpu.queue == []  # the device was waited for
    assert [step for step in gpu.done if step[0] == "call"] == [("call", at) for at in range(raises)]


def test_what_a_call_raised_is_told_where_it_has_broken_the_device(gpu, monkeypatch):
    def fail(device):
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    with pytest.raises(ZeroDivisionError):
        run_relay(gpu, [PlayedCall(gpu, 0, raises=True)])


def test_a_settled_call_waits_for_its_key_for_no_longer_than_the_kernels_do(gpu, monkeypatch):
    monkeypatch.setattr(calls_module, "LIMIT_S", 0.01)
    calls = make_calls(gpu)
    run_relay(gpu, calls, keys=(), settles=True)
    assert gpu.done == steps_of(calls, [0] * CALLS)


def test_where_the_board_cannot_be_mapped_its_memory_is_given_up(gpu, monkeypatch):
    def fail(fd, size):
        raise DriverError("mapping the board of a relay failed")

    monkeypatch.setattr(calls_module, "MappedBoard", fail)
    with pytest.raises(DriverError, match="mapping the board"):
        run_relay(gpu, make_calls(gpu))
    assert not gpu.relays.forget()
